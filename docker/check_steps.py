#!/usr/bin/env python3
"""Run the steps of docker/Dockerfile without Docker, to test the file itself. Linux, as root.

    debootstrap --variant=minbase trixie /tmp/images/from
    # every step of the target's stages, each in a copy of its own
    docker/check_steps.py build /tmp/images worker
    docker/check_steps.py run /tmp/images worker --volume /tmp/keys:/keys \\
        --env RQ_REDIS_URL=redis://worker@127.0.0.1 -- worker

``from`` stands for the image that the first FROM names. A "container" is its own process and mount
namespace with a read-only root file system, the image's user, environment, working directory and
ENTRYPOINT, and the host's network. Kill its first process (the child of ``unshare``), and the
kernel ends all others in it. What pip needs to reach an index from this machine is lent to the
steps and leaves no trace: PIP_* variables and the certificates of PIP_CERT.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

HOUSE = Path(__file__).resolve().parent.parent
DOCKERFILE = HOUSE / "docker" / "Dockerfile"
#: The folder in place of the image that the first FROM names.
BASE = "from"
LENT = "/run/lent.crt"
PRIVATE = ("unshare", "--mount", "--pid", "--fork")


@dataclass(frozen=True)
class Step:
    """One instruction of a Dockerfile and what stands behind it, its lines joined."""

    word: str
    rest: str


@dataclass(frozen=True)
class Stage:
    """The steps between one FROM and the next. parent: another stage's name, or the base image."""

    name: str
    parent: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Settings:
    """What steps leave to the steps and containers after them."""

    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = "root"
    folder: str = "/"
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


# --- reading


def steps_of(text: str) -> Iterator[Step]:
    """The instructions of a Dockerfile in order; comments and joined lines are done with."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        if word:
            yield Step(word, rest.strip())


def stages_of(text: str) -> dict[str, Stage]:
    """The stages by name. Raises ValueError for a FROM in another form than ``FROM IMAGE
    AS NAME``.
    """
    found: dict[str, Stage] = {}
    current: Stage | None = None
    for step in steps_of(text):
        if step.word == "FROM":
            image, word, name = step.rest.split()
            if word != "AS":
                raise ValueError(f"FROM {step.rest}: only FROM IMAGE AS NAME is known here")
            current = Stage(name, image if image in found else BASE)
        elif current is not None:
            current = replace(current, steps=(*current.steps, step))
        if current is not None:
            found[current.name] = current
    return found


def needed(stages: Mapping[str, Stage], target: str) -> list[Stage]:
    """The stages that a target stands on, itself last: parents and those from which it copies."""
    stage = stages[target]
    copied = [
        word.removeprefix("--from=")
        for step in stage.steps
        for word in step.rest.split()
        if step.word == "COPY" and word.startswith("--from=")
    ]
    before = [
        one for name in (stage.parent, *copied) if name != BASE for one in needed(stages, name)
    ]
    return list(dict.fromkeys([*before, stage]))


def after(settings: Settings, step: Step) -> Settings:
    """The settings after a step that sets some. Raises ValueError for an instruction that nobody
    knows.
    """
    match step.word:
        case "ENV":
            pairs = dict(word.split("=", 1) for word in shlex.split(step.rest))
            return replace(settings, environment={**settings.environment, **pairs})
        case "USER":
            return replace(settings, user=step.rest)
        case "WORKDIR":
            return replace(settings, folder=step.rest)
        case "ENTRYPOINT":
            return replace(settings, entrypoint=tuple(json.loads(step.rest)), command=())
        case "CMD":
            return replace(settings, command=tuple(json.loads(step.rest)))
        case "RUN" | "COPY" | "HEALTHCHECK" | "STOPSIGNAL":
            return settings
    raise ValueError(f"{step.word} is not known here")


def settings_of(stages: Mapping[str, Stage], target: str) -> Settings:
    """What a container of the target is started with."""
    stage = stages[target]
    settings = Settings() if stage.parent == BASE else settings_of(stages, stage.parent)
    for step in stage.steps:
        settings = after(settings, step)
    return settings


# --- building


def build(images: Path, target: str, *, keep: bool) -> None:
    """Carry out all steps of the target's stages. keep: but of those that are there. Raises
    CalledProcessError for a step that fails.
    """
    stages = stages_of(DOCKERFILE.read_text())
    for stage in needed(stages, target):
        root = images / stage.name
        if keep and root.exists():
            continue
        shutil.rmtree(root, ignore_errors=True)
        subprocess.run(["cp", "-a", "--reflink=auto", images / stage.parent, root], check=True)
        settings = Settings() if stage.parent == BASE else settings_of(stages, stage.parent)
        for step in stage.steps:
            print(f"{stage.name}: {step.word} {step.rest[:150]}", flush=True)
            carry_out(images, root, settings, step)
            settings = after(settings, step)


def carry_out(images: Path, root: Path, settings: Settings, step: Step) -> None:
    """What a step does to the file system."""
    if step.word == "COPY":
        copy(images, root, step.rest.split())
    elif step.word == "WORKDIR":
        (root / step.rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
    elif step.word == "RUN":
        lent = {
            name: value
            for name, value in os.environ.items()
            if name.startswith("PIP_") and name not in ("PIP_FIND_LINKS", "PIP_CERT")
        }
        certificate = os.environ.get("PIP_CERT")
        volumes = ((certificate, LENT),) if certificate else ()
        environment = {
            **settings.environment,
            **lent,
            **({"PIP_CERT": LENT} if certificate else {}),
        }
        command = inside(
            root, replace(settings, environment=environment), ["/bin/sh", "-c", step.rest], volumes
        )
        subprocess.run(command, check=True)
        (root / LENT.lstrip("/")).unlink(missing_ok=True)


def copy(images: Path, root: Path, words: Sequence[str]) -> None:
    """COPY [--from=STAGE] SOURCE… TARGET: of a folder what is in it, as Docker does it."""
    stage = next(
        (images / word.removeprefix("--from=") for word in words if word.startswith("--from=")),
        None,
    )
    *sources, target = [word for word in words if not word.startswith("--")]
    place = root / target.lstrip("/")
    with tempfile.TemporaryDirectory() as scratch:
        context = stage or exported(Path(scratch))
        for source in sources:
            found = context / source.lstrip("/")
            into = (
                place / found.name
                if found.is_file() and (len(sources) > 1 or target.endswith("/"))
                else place
            )
            into.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(
                [
                    "cp",
                    "-a",
                    "--no-preserve=ownership",
                    *([found, into] if found.is_file() else [f"{found}/.", into]),
                ],
                check=True,
            )


def exported(folder: Path) -> Path:
    """The build context: what git knows of the repository, or would if it were added."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=HOUSE,
        check=True,
        capture_output=True,
    )
    tar = subprocess.run(
        ["tar", "-c", "--null", "-T", "-"],
        cwd=HOUSE,
        input=listed.stdout,
        check=True,
        capture_output=True,
    )
    subprocess.run(["tar", "-x"], cwd=folder, input=tar.stdout, check=True)
    folder.chmod(0o755)  # COPY . takes it along
    return folder


# --- running


def inside(
    root: Path,
    settings: Settings,
    words: Sequence[str],
    volumes: Sequence[tuple[str, str]] = (),
    *,
    read_only: bool = False,
) -> list[str]:
    """The command that runs ``words`` in a root file system, with namespaces of its own.

    volumes: (path here, path there); read_only: nothing but volumes, /tmp and /run can be written.
    """
    there = shlex.quote(str(root))
    lines = ["set -eu", *([f"mount --bind {there} {there}"] if read_only else []), f"cd {there}"]
    lines += ["mount -t proc proc proc", "mount --rbind /dev dev"]
    lines += ["mount -t tmpfs -o mode=1777 tmpfs tmp"] if read_only else []
    for here, place in volumes:
        path = shlex.quote(place.lstrip("/"))
        lines += [f"[ -e {path} ] || touch {path}", f"mount --bind {shlex.quote(here)} {path}"]
    lines += ["mount -o remount,bind,ro ."] if read_only else []
    variables = [f"{name}={value}" for name, value in settings.environment.items()]
    owner, _, group = settings.user.partition(":")
    user = (
        []
        if owner == "root"
        else ["setpriv", "--reuid", owner, "--regid", group or owner, "--clear-groups"]
    )
    chroot = ["chroot", ".", "env", "-i", f"--chdir={settings.folder}", *variables, *user, *words]
    return [*PRIVATE, "/bin/sh", "-c", "\n".join([*lines, f"exec {shlex.join(chroot)}"])]


def container(images: Path, given: argparse.Namespace) -> list[str]:
    """The command of a container of the target."""
    settings = settings_of(stages_of(DOCKERFILE.read_text()), given.target)
    named = dict(pair.split("=", 1) for pair in given.env)
    volumes = [(here, there) for here, _, there in (pair.partition(":") for pair in given.volume)]
    words = [
        *(settings.entrypoint if given.entrypoint is None else shlex.split(given.entrypoint)),
        *(given.words or settings.command),
    ]
    return inside(
        images / given.target,
        replace(settings, environment={**settings.environment, **named}),
        words,
        volumes,
        read_only=True,
    )


def main() -> None:
    """``build IMAGES TARGET`` or ``run IMAGES TARGET [--volume HERE:THERE] [--env NAME=VALUE]
    [--entrypoint WORDS] -- WORDS``.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["build", "run"])
    parser.add_argument("images", type=Path)
    parser.add_argument("target")
    parser.add_argument(
        "--keep", action="store_true", help="build: do not begin stages anew that are there"
    )
    parser.add_argument("--volume", action="append", default=[])
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--entrypoint")
    ours, words = (
        (argv[: argv.index("--")], argv[argv.index("--") + 1 :])
        if "--" in (argv := sys.argv[1:])
        else (argv, [])
    )
    given = parser.parse_args(ours, argparse.Namespace(words=words))
    if given.verb == "build":
        build(given.images.resolve(), given.target, keep=given.keep)
        return
    command = container(given.images.resolve(), given)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
