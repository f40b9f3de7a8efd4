"""What a worker says of itself beside its figures: what does not change while it holds its seat."""

from __future__ import annotations

from collections.abc import Callable

from es_queue import host
from es_queue.protocol.clocks import Clocks

LONGEST = 400


def facts(clocks: Clocks, hardened: bool = False) -> dict[str, str]:
    """Texts for the worker's hash, by name; computed once for a seat, takes milliseconds, never raises.

    versions: of the packages that matter; box2d: distributions that provide it; envpool: version, empty without it;
    packages: folder from which workers and es_queue were imported, two where they differ; beat_ttl: seconds after
    which a silent worker counts as gone; threads: of BLAS; cpu: model; hardened: yes for a worker of workers.rq_classes
    """
    asked: dict[str, Callable[[], str]] = {
        "versions": host.versions,
        "box2d": host.box2d,
        "envpool": lambda: host.version_of("envpool"),
        "packages": packages,
        "beat_ttl": lambda: f"{clocks.beat_ttl:g}",
        "threads": lambda: str(host.blas_threads()),
        "cpu": host.cpu_model,
        "hardened": lambda: "yes" if hardened else "no",
    }
    return {name: quiet(ask) for name, ask in asked.items()}


def packages() -> str:
    """The folder that our packages were imported from; two, should they come from different places."""
    folders = [host.home(), *(found.parent for found in (host.folder_of("workers"),) if found)]
    return " and ".join(dict.fromkeys(map(str, folders)))


def quiet(ask: Callable[[], str]) -> str:
    """The answer, empty where there is none: what is told to people is not worth a seat."""
    try:
        return ask()[:LONGEST]
    except Exception:
        return ""
