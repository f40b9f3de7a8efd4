"""A run's folder describes itself: ``run.json`` says what ran where and how to repeat it, ``README.txt`` what the files are."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import es_queue
from es_queue import host
from es_queue.config import RunConfig
from es_queue.custom_code import named_modules
from es_queue.private_folder import read_small
from master.checkpoint import write_atomically
from master.repeat import repeating
from master.wording import printable

CARD, README = "run.json", "README.txt"
#: Those of a run that was resumed more often: the first and the newest.
MOST_SITTINGS = 100
MOST_BYTES = 2**24
#: What environments come from, beside numpy and the like; those that are not installed are left out.
WORLDS = ("box2d", "box2d-py", "envpool", "ale-py", "mujoco", "torch")
GIT_SECONDS = 5.0


def write_card(folder: Path, run: str, config: RunConfig, warm_start: Path | None = None) -> None:
    """Describe a run that begins or goes on. Raises RunFolderError where the folder cannot be written."""
    former = _former(folder / CARD)
    sittings = [*former.get("sittings", [])[:MOST_SITTINGS], sitting(config)]
    sittings = [*sittings[:1], *sittings[1:][1 - MOST_SITTINGS :]]
    command = former.get("command") or repeating(config, warm_start)
    card = {"run": run, "command": command, "config": config.to_dict(), "sittings": sittings}
    write_atomically(folder / CARD, json.dumps(card, indent=2).encode() + b"\n", durable=False)
    write_atomically(folder / README, readme(run, config, str(command), sittings[0]).encode(errors="replace"), durable=False)


def _former(path: Path) -> dict[str, Any]:
    """The card of a run that goes on; empty for none, or for one that somebody has spoilt."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_small(path, MOST_BYTES))
        if isinstance(found, dict) and isinstance(found.get("sittings"), list) and found["sittings"] and all(map(_readable, found["sittings"])):
            return found
    return {}


def _readable(one: object) -> bool:
    """Whether it can be a sitting: ``readme`` looks into these."""
    return isinstance(one, dict) and all(isinstance(one.get(name) or {}, dict) for name in ("versions", "code", "machine"))


def sitting(config: RunConfig) -> dict[str, Any]:
    """Where and with what one master drives a run."""
    return {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "versions": versions(config), "code": code(Path.cwd()), "es_queue_code": code(host.home()), "machine": machine()}


def versions(config: RunConfig) -> dict[str, str]:
    """Of es-queue, Python, and every installed package that a run's numbers may depend on."""
    modules = {one.partition(".")[0] for one in named_modules(config)}
    named = [one for module in sorted(modules) for one in packages_distributions().get(module, ())] if modules else []
    installed = {name: host.version_of(name) for name in (*host.PACKAGES, *WORLDS, *named)}
    return {"es-queue": es_queue.__version__, "python": platform.python_version(), **{name: one for name, one in installed.items() if one}}


def machine() -> dict[str, Any]:
    """The host's name, system, processor, cores that we may use, and memory in GiB."""
    memory = None
    with suppress(OSError, ValueError, AttributeError):
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"host": platform.node(), "system": platform.platform(), "cpu": host.cpu_model(), "cores": cores, "memory_gib": memory}


def code(folder: Path) -> dict[str, Any] | None:
    """The git revision of a folder, and whether files under git's care differ from it; None where there is no git or no revision."""
    revision = _git(folder, "rev-parse", "HEAD")
    if not revision:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"revision": printable(revision, 80), "dirty": None if changed is None else bool(changed)}


def _git(folder: Path, *words: str) -> str | None:
    """What git says, None where it cannot say. Nothing that the folder's own settings name is run for it."""
    quiet = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    command: Sequence[str] = ("git", "-c", "core.fsmonitor=false", "-C", str(folder), *words)
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, env={**os.environ, **quiet}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=GIT_SECONDS, errors="replace")
        return done.stdout.strip() if done.returncode == 0 else None
    return None


def readme(run: str, config: RunConfig, command: str, first: dict[str, Any]) -> str:
    """The folder for people."""
    about, revision = first.get("machine") or {}, (first.get("code") or {}).get("revision")
    where = f"{about.get('host')}: {about.get('cpu')}, {about.get('cores')} cores, {about.get('memory_gib')} GiB"
    lines = [
        f"Run {run}: {config.task}, {config.strategy}, a {config.policy_name} policy, population {config.population}, seed {config.seed}.",
        "",
        f"begun       {first.get('time')} on {where}",
        f"with        {', '.join(f'{name} {one}' for name, one in (first.get('versions') or {}).items())}",
        *([f"your code   git {revision}{' with changes that are not committed' if first['code'].get('dirty') else ''}"] if revision else []),
        "",
        "The same run again (to the bit with equal versions and processors, unless a budget of seconds ends it or its schedule is async):",
        "",
        f"  {command}",
        "",
        FILES,
    ]
    return "\n".join(lines)


FILES = """\
run.json        all of the above for programs, with every host that drove the run ("sittings") and all settings
config.json     the settings, as es-master --resume reads them
metrics.jsonl   a JSON object a generation; metrics.csv the main ones as a table
summary.json    how it ended; only its eval_mean is a result to quote. It is there once the run has finished
checkpoints/    the newest two, and best.npz: the parameters with the best evaluation
replay/         what each generation learnt from, for es-master --replay
slots/          what each individual did, of the generations that --keep-slots keeps
videos/         with --video-every: films of the policy
logs/           what local workers said
tensorboard/    with --tensorboard: for tensorboard --logdir

  es-play THIS-FOLDER              play the best policy
  es-master --resume RUN           go on
  es-status RUN                    how it fares; --web shows its curves in a browser
"""
