"""The doctor's checks of this host: packages, Box2D, environments, noise, disks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from es_queue.config.run_config import RunConfig
from es_queue.errors import EsQueueError
from es_queue.security.passwords import environment_without_redis
from es_queue.security.sanitize import sanitize
from es_queue.util import host_info
from es_queue.util.command_path import format_command
from es_queue.util.host_info import source_root
from master.doctor.finding import Finding, failed, named, ok, warning
from master.doctor.server import format_bytes
from master.processes import signal_name

DEADLINE_SECONDS = 60.0
LONGEST_ANSWER = 2**14
PROBE_PROGRAM = """\
import json, os, sys
sys.path += [folder for folder in (sys.argv[2],) if folder not in sys.path]
from es_queue.numerics.fingerprint import fix_numeric_environment
fix_numeric_environment()
from es_queue.errors import EsQueueError
try:
    from dataclasses import replace
    from es_queue.config.parsing import config_from_json
    from es_queue.environments.factory import describe
    from es_queue.environments.interface import EnvironmentRequest
    from es_queue.environments.observation_layout import format_parts
    from es_queue.security.user_code import INSTALLED, named_modules, refused_module
    config = config_from_json(sys.argv[3])
    if module := refused_module(named_modules(config), INSTALLED):
        raise EsQueueError(f"the module {module} is not allowed here: name it in ES_QUEUE_ALLOW")
    request = EnvironmentRequest.of(config)
    spec = describe(replace(request, behaviour=""))
    answer = {
        "observations": spec.observation_size,
        "parts": format_parts(spec.observation_parts)[:300] if spec.observation else "",
        "action": spec.action.kind,
        "backend": spec.backend,
    }
except EsQueueError as error:
    answer = {"error": str(error)[:1000]}
except Exception as error:
    answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
os.write(int(sys.argv[1]), json.dumps(answer).encode())
"""


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe: a description or an error. Both texts are untrusted."""

    id: str
    description: str = ""
    error: str = ""


def probe_environments(
    configs: Sequence[RunConfig], seconds: float = DEADLINE_SECONDS
) -> list[ProbeResult]:
    """Create the environment of each config, and play one step, all at once, with a deadline for
    each.
    """
    deadline = time.monotonic() + seconds
    probes = [EnvironmentProbe(config) for config in configs]
    try:
        return [probe.result(deadline, seconds) for probe in probes]
    finally:
        for probe in probes:
            probe.end()


class EnvironmentProbe:
    def __init__(self, config: RunConfig) -> None:
        self._id = config.task
        self._pipe, child_pipe = os.pipe()
        # -P: the current folder is not on the path, as it would be with -c.
        command = [
            sys.executable,
            "-P",
            "-c",
            PROBE_PROGRAM,
            str(child_pipe),
            str(source_root()),
            config.to_json(),
        ]
        nowhere = subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                command,
                stdin=nowhere,
                stdout=nowhere,
                stderr=nowhere,
                env=environment_without_redis(os.environ),
                pass_fds=[child_pipe],
                start_new_session=True,
            )
        finally:
            os.close(child_pipe)

    def result(self, deadline: float, seconds: float) -> ProbeResult:
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return ProbeResult(
                self._id,
                error=f"it hangs: creating it and one step took longer than {seconds:g} s",
            )
        # a process that it left behind may hold the other end
        os.set_blocking(self._pipe, False)
        try:
            answer = json.loads(os.read(self._pipe, LONGEST_ANSWER))
        except (OSError, ValueError):
            answer = {
                "error": f"its process was ended by {signal_name(-code)}"
                if code < 0
                else f"its process ended with code {code} and no output"
            }
        if "error" in answer:
            return ProbeResult(self._id, error=str(answer["error"]))
        parts = f" ({answer['parts']})" if answer["parts"] else ""
        return ProbeResult(
            self._id,
            f"{answer['observations']} observations{parts}, {answer['action']} actions, "
            f"{answer['backend']} back end",
        )

    def end(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._pipe)


OUR_PACKAGES = ("es_queue", "master", "workers")
USUAL_ENVIRONMENTS = (RunConfig(env="CartPole-v1"), RunConfig(env="BipedalWalker-v3"))
LEAST_FREE = 500e6
INSTALL = "pip install --force-reinstall --no-deps box2d"


@named("packages")
def check_packages(
    master_folders: Mapping[str, Path | None], worker_folders: Mapping[str, Path | None]
) -> Finding:
    """master_folders: the folder from which Python imports each of our packages here;
    worker_folders: the same for ``rq worker``, which also searches the current folder.
    """
    home = host_info.source_root()
    importers = {"Python": master_folders, "rq worker in this folder": worker_folders}
    for importer, folders in importers.items():
        for name, folder in folders.items():
            if folder != home / name:
                place = "nowhere" if folder is None else sanitize(folder)
                return failed(
                    f"the package {name!r} that {importer} finds is {place}, not es-queue's in "
                    f"{sanitize(home)}",
                    "run from another folder, or remove the other package's folder from PYTHONPATH",
                )
    return ok(f"master, workers and es_queue are imported from {sanitize(home)}")


def package_folders(more: Iterable[str] = ()) -> dict[str, Path | None]:
    return {name: host_info.package_folder(name, more) for name in OUR_PACKAGES}


@named("versions")
def check_versions(versions: str) -> Finding:
    missing = [
        name for name in host_info.PACKAGES if f" {name} " not in f" {versions.replace(',', ' ,')}"
    ]
    if missing:
        return failed(
            f"{versions}; {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing",
            f"install es-queue again, or\npip install {' '.join(missing)}",
        )
    return ok(versions)


@named("box2d")
def check_box2d(provided: str, where: str = "") -> Finding:
    """provided: the distributions that provide Box2D, joined by ``and``; where: the host, empty for
    this one.
    """
    on = f" on {where}" if where else ""
    if not provided:
        return warning(
            f"Box2D is missing{on}: walkers and landers cannot be played",
            "install it with\npip install box2d",
        )
    names = [words[0] for part in provided.split(" and ") if (words := part.split())]
    if len(names) < 2:
        return ok(f"{sanitize(provided)} provides Box2D{on}")
    others = sanitize(" ".join(name for name in names if name != "box2d"))
    return warning(
        f"two distributions provide Box2D{on}: {sanitize(provided)}",
        "keep one of them; both own the same files, so install it again:\n"
        f"pip uninstall --yes {others}\n{INSTALL}",
    )


@named("envpool")
def check_envpool(version: str) -> Finding:
    return ok(
        f"EnvPool {version}"
        if version
        else "EnvPool is not installed; only runs with --backend envpool need it"
    )


def check_environments(results: Sequence[ProbeResult]) -> list[Finding]:
    return [check_environment(result) for result in results]


@named("environment")
def check_environment(result: ProbeResult) -> Finding:
    name = sanitize(result.id, 80)
    if not result.error:
        return ok(f"{name}: {sanitize(result.description)}")
    return failed(f"{name}: {sanitize(result.error)}", environment_fix(result.error))


def environment_fix(error: str) -> str:
    if "pip install" in error:
        return f"install it with\n{sanitize(error[error.index('pip install') :])}"
    if "cannot be imported" in error:
        return (
            "run in the folder of its module, or put that folder on PYTHONPATH, for es-master and "
            "for each rq worker"
        )
    return "make it work on this host, then on the workers' hosts"


# --- the noise table


@dataclass(frozen=True)
class NoiseTableState:
    """This host's table. stored_digest: the digest beside it, or None; is_sound: whether its
    content matches.
    """

    path: str
    size: int
    stored_digest: str | None
    is_sound: bool = True
    trouble: str = ""


def read_noise_state(size: int, folder: Path) -> NoiseTableState:
    """Read the whole table of ``size`` floats if it exists."""
    # start-up: numpy
    from es_queue.numerics.noise_table import DEFAULT_SEED, map_table, stored_digest, table_path
    from es_queue.numerics.normals import table_digest

    path = table_path(folder, DEFAULT_SEED, size)
    try:
        stored = stored_digest(path, DEFAULT_SEED, size)
        sound = stored is None or table_digest(map_table(path, size)) == stored
    except (EsQueueError, OSError) as error:
        return NoiseTableState(str(path), size, None, trouble=str(error))
    return NoiseTableState(str(path), size, stored, sound)


@named("noise")
def check_noise(state: NoiseTableState, run_digest: str | None) -> Finding:
    """run_digest: the digest of the run's table, None if its task has none."""
    if state.trouble:
        return failed(sanitize(state.trouble), "choose another folder with ES_QUEUE_NOISE_DIR")
    bytes_ = format_bytes(4 * state.size)
    if state.stored_digest is None:
        return ok(
            f"the run's table ({bytes_}) is not built yet on this host; its first worker builds it"
        )
    remove = f"remove it, and it is built again:\nrm {quote(state.path)}"
    if not state.is_sound:
        return failed(
            (f"the table {sanitize(state.path)} is damaged: its content does not match its digest"),
            remove,
        )
    if run_digest is not None and run_digest != state.stored_digest:
        return failed(
            f"this host's table has digest {state.stored_digest}, the run's has {run_digest}",
            f"install the run's release of es-queue here, or {remove}",
        )
    same = "" if run_digest is None else ", as the run's"
    return ok(f"digest {state.stored_digest}{same} ({bytes_}, read whole)")


def noise_folder() -> tuple[Path | None, str]:
    """The folder, or why there is none."""
    try:
        # start-up: numpy
        from es_queue.numerics.noise_table import default_folder

        return default_folder(), ""
    except (EsQueueError, OSError, ImportError) as error:  # numpy may be broken
        return None, str(error)


# --- disks


@named("disk")
def check_disks(free: Mapping[str, int | None]) -> Finding:
    """free: bytes by the purpose of each folder."""
    text = ", ".join(
        f"{what} {'unknown' if count is None else format_bytes(count)}"
        for what, count in free.items()
    )
    short = [what for what, count in free.items() if count is not None and count < LEAST_FREE]
    if short:
        return warning(
            f"free: {text}",
            f"make room for {' and '.join(short)}: a checkpoint or table that does not fit "
            "ends a run",
        )
    return ok(f"free: {text}")


def free_space(run_dir: Path, noise: Path | None) -> dict[str, int | None]:
    places = {
        "run folder": run_dir,
        "noise tables": noise,
        "temporary files": Path(tempfile.gettempdir()),
    }
    return {
        what: host_info.free_bytes(place) for what, place in places.items() if place is not None
    }


def format_rq_fix(what: str, url: str, secret: bool, *words: str) -> str:
    """``what`` with the exact line for ``rq``; secret: the URL has a part that does not belong on a
    command line.
    """
    command, first, rest = format_command("rq"), words[0], " ".join(map(quote, words[1:]))
    if secret:
        return (
            f"put the whole URL into RQ_REDIS_URL, then {what}\n{command} {first} {rest}".rstrip()
        )
    return f"{what}\n{command} {first} --url {quote(url)} {rest}".rstrip()
