"""The doctor's checks of this host: which packages are found, what provides Box2D, environments, noise, disks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from es_queue import host
from es_queue.commands import shown_command
from es_queue.errors import EsQueueError
from master.doctor.environment import Tried, Wanted
from master.doctor.finding import Finding, failed, ok, warning
from master.doctor.server import megabytes
from master.wording import printable

OURS = ("es_queue", "master", "workers")
USUAL = (Wanted("CartPole-v1"), Wanted("BipedalWalker-v3"))
LEAST_FREE = 500e6
INSTALL = "pip install --force-reinstall --no-deps box2d"


def check_packages(found: Mapping[str, Path | None], by_workers: Mapping[str, Path | None]) -> Finding:
    """found: the folder from which Python imports each of our packages here; by_workers: those that ``rq worker``
    would import, which looks into the current folder too."""
    home = host.home()
    for where, whom in ((found, "Python"), (by_workers, "rq worker in this folder")):
        for name, folder in where.items():
            if folder != home / name:
                place = "nowhere" if folder is None else printable(folder)
                text = f"the package {name!r} that {whom} finds is {place}, not es-queue's in {printable(home)}"
                return failed("packages", text, "run from another folder, or take that one off PYTHONPATH")
    return ok("packages", f"master, workers and es_queue are imported from {printable(home)}")


def folders(more: Iterable[str] = ()) -> dict[str, Path | None]:
    """Where Python finds each of our packages."""
    return {name: host.folder_of(name, more) for name in OURS}


def check_versions(versions: str) -> Finding:
    missing = [name for name in host.PACKAGES if f" {name} " not in f" {versions.replace(',', ' ,')}"]
    if missing:
        return failed("versions", f"{versions}; {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing", f"install es-queue again, or\npip install {' '.join(missing)}")
    return ok("versions", versions)


def check_box2d(provided: str, where: str = "") -> Finding:
    """provided: the distributions that provide Box2D, joined by ``and``; where: the host, empty for this one."""
    on = f" on {where}" if where else ""
    if not provided:
        return warning("box2d", f"nothing provides Box2D{on}: walkers and landers cannot be played", "install it by\npip install box2d")
    names = [one.split()[0] for one in provided.split(" and ") if one.split()]
    if len(names) > 1:
        others = " ".join(name for name in names if name != "box2d")
        fix = f"keep one of them; both own the same files, so install it anew:\npip uninstall --yes {printable(others)}\n{INSTALL}"
        return warning("box2d", f"two distributions provide Box2D{on}: {printable(provided)}", fix)
    return ok("box2d", f"{printable(provided)} provides Box2D{on}")


def check_envpool(version: str) -> Finding:
    return ok("envpool", f"EnvPool {version}" if version else "EnvPool is not installed; only runs with --backend envpool need it")


def check_environments(tried: Sequence[Tried]) -> list[Finding]:
    return [check_environment(one) for one in tried]


def check_environment(tried: Tried) -> Finding:
    name = printable(tried.id, 80)
    if not tried.error:
        return ok("environment", f"{name}: {printable(tried.like)}")
    return failed("environment", f"{name}: {printable(tried.error)}", environment_fix(tried.error))


def environment_fix(error: str) -> str:
    if "pip install" in error:
        return f"install it by\n{printable(error[error.index('pip install'):])}"
    if "cannot be imported" in error:
        return "run from the folder of its module, or put that folder on PYTHONPATH; the same goes for each rq worker"
    return "make it work here by itself first; the workers need the same"


# --- the noise table


@dataclass(frozen=True)
class NoiseLook:
    """This host's table as its files tell it. stored: the digest beside it, None where there is none; sound: whether its content has it."""

    path: str
    size: int
    stored: str | None
    sound: bool = True
    trouble: str = ""


def look_at_noise(size: int, folder: Path) -> NoiseLook:
    """Read the whole table of ``size`` floats where there is one; none is made."""
    from es_queue.noise import DEFAULT_SEED, mapped, stored_digest, table_path
    from es_queue.normals import table_digest

    path = table_path(folder, DEFAULT_SEED, size)
    try:
        stored = stored_digest(path, DEFAULT_SEED, size)
        sound = stored is None or table_digest(mapped(path, size)) == stored
    except (EsQueueError, OSError) as error:
        return NoiseLook(str(path), size, None, trouble=str(error))
    return NoiseLook(str(path), size, stored, sound)


def check_noise(look: NoiseLook, wanted: str | None) -> Finding:
    """wanted: the digest of the run's table, None where its task does not tell."""
    if look.trouble:
        return failed("noise", printable(look.trouble), "choose another folder with ES_QUEUE_NOISE_DIR")
    bytes_ = megabytes(4 * look.size)
    if look.stored is None:
        return ok("noise", f"the run's table ({bytes_}) is not built yet on this host; its first worker builds it")
    remove = f"remove it, it will be built anew:\nrm {quote(look.path)}"
    if not look.sound:
        return failed("noise", f"the table {printable(look.path)} is damaged: its content does not have the digest beside it", remove)
    if wanted is not None and wanted != look.stored:
        return failed("noise", f"this host's table has digest {look.stored}, the run's has {wanted}", f"install the run's release of es-queue here, or {remove}")
    same = "" if wanted is None else ", as the run's"
    return ok("noise", f"digest {look.stored}{same} ({bytes_}, read whole)")


def noise_folder() -> tuple[Path | None, str]:
    """This user's folder of noise tables, or why there is none."""
    try:
        from es_queue.noise import default_folder

        return default_folder(), ""
    except (EsQueueError, OSError, ImportError) as error:  # numpy may be what is broken
        return None, str(error)


# --- disks


def check_disks(free: Mapping[str, int | None]) -> Finding:
    """free: bytes by what the place is for."""
    text = ", ".join(f"{what} {'not known' if count is None else megabytes(count)}" for what, count in free.items())
    short = [what for what, count in free.items() if count is not None and count < LEAST_FREE]
    if short:
        return warning("disk", f"free: {text}", f"make room for {' and '.join(short)}: a checkpoint or table that does not fit ends a run")
    return ok("disk", f"free: {text}")


def free_space(run_dir: Path, noise: Path | None) -> dict[str, int | None]:
    places = {"run folder": run_dir, "noise tables": noise, "temporary files": Path(tempfile.gettempdir())}
    return {what: host.free_bytes(place) for what, place in places.items() if place is not None}


def rq_fix(what: str, url: str, secret: bool, *words: str) -> str:
    """``what`` by the exact line for ``rq``; secret: the URL holds something that does not belong on a command line."""
    command, first, rest = shown_command("rq"), words[0], " ".join(map(quote, words[1:]))
    if secret:
        return f"put the whole URL into RQ_REDIS_URL, then {what}\n{command} {first} {rest}".rstrip()
    return f"{what}\n{command} {first} --url {quote(url)} {rest}".rstrip()
