"""What a worker says of itself beside its figures: what does not change while it holds its seat."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from es_queue.protocol.channel import WorkerChannel
from es_queue.protocol.timing import Clocks
from es_queue.util import host_info

MAX_TEXT = 400


def send_report(channel: WorkerChannel, reason: str, **more: object) -> None:
    """Tell people of trouble, in the run's list of errors. Raises what the channel raises."""
    about = {"time": round(time.time(), 3), "worker": channel.worker, "reason": reason}
    channel.report(json.dumps({**about, **more}))


def worker_info(clocks: Clocks, hardened: bool = False) -> dict[str, str]:
    """Texts for the worker's hash, by name; computed once for a seat, takes milliseconds, never
    raises.

    versions: of the packages that matter; box2d: distributions that provide it; envpool: version,
    empty without it;
    packages: folder from which workers and es_queue were imported, two where they differ; beat_ttl:
    seconds after which a silent worker counts as gone; threads: of BLAS; cpu: model; hardened: yes
    for a worker of workers.hardened_worker
    """
    sources: dict[str, Callable[[], str]] = {
        "versions": host_info.versions,
        "box2d": host_info.box2d_versions,
        "envpool": lambda: host_info.version_of("envpool"),
        "packages": packages_folder,
        "beat_ttl": lambda: f"{clocks.beat_ttl:g}",
        "threads": lambda: str(host_info.blas_threads()),
        "cpu": host_info.cpu_model,
        "hardened": lambda: "yes" if hardened else "no",
    }
    return {name: text_or_empty(ask) for name, ask in sources.items()}


def packages_folder() -> str:
    """The folder that our packages were imported from; two, should they come from
    different places.
    """
    folders = [
        host_info.source_root(),
        *(folder.parent for folder in (host_info.package_folder("workers"),) if folder),
    ]
    return " and ".join(dict.fromkeys(map(str, folders)))


def text_or_empty(ask: Callable[[], str]) -> str:
    """The answer, empty where there is none: what is told to people is not worth a seat."""
    try:
        return ask()[:MAX_TEXT]
    except Exception:
        return ""
