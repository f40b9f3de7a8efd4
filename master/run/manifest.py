"""``run.json`` and ``README.txt``: the machine and versions of a run, how to repeat it, and its
files.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from contextlib import suppress
from importlib.metadata import packages_distributions
from pathlib import Path
from shlex import quote
from typing import Any

import es_queue
from es_queue import host
from es_queue.config.recipes import TUNED_SETTINGS, recipe_for, resolve
from es_queue.config.run_config import RunConfig, every_setting
from es_queue.config.scaling import scaled
from es_queue.config.settings import NONE, format_flag
from es_queue.errors import DecodeError
from es_queue.files import parse_json, read_file
from es_queue.run_folder import NamedRun
from es_queue.text import sanitize
from es_queue.user_code import named_modules
from master.loop.checkpoint import write_atomically
from master.run.launch import format_warm_start

MANIFEST, README = "run.json", "README.txt"
#: Those of a run that was resumed more often: the first and the newest.
MOST_SESSIONS = 100
MOST_BYTES = 2**24
#: The parts of a session that ``format_readme`` reads.
PARTS = ("versions", "code", "machine")
#: What environments come from, beside numpy and the like; those that are not installed are left
#: out.
ENVIRONMENT_PACKAGES = ("box2d", "box2d-py", "envpool", "ale-py", "mujoco", "torch")
GIT_SECONDS = 5.0


def write_manifest(run: NamedRun, config: RunConfig, warm_start: Path | None = None) -> None:
    """Describe a run that begins or continues. Raises RunFolderError if the folder cannot be
    written.
    """
    path = run.folder / MANIFEST
    former = _read_former(path)
    session = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": package_versions(config),
        "code": code_revision(Path.cwd()),
        "es_queue_code": code_revision(host.source_root()),
        "machine": describe_machine(),
    }
    sessions = [*former.get("sittings", [])[:MOST_SESSIONS], session]
    sessions = [*sessions[:1], *sessions[1:][1 - MOST_SESSIONS :]]
    command = str(former.get("command") or repro_command(config, warm_start))
    about = {"run": run.run, "command": command, "config": config.to_dict(), "sittings": sessions}
    write_atomically(path, json.dumps(about, indent=2).encode() + b"\n", durable=False)
    readme = format_readme(run.run, config, command, sessions[0]).encode(errors="replace")
    write_atomically(run.folder / README, readme, durable=False)


def _read_former(path: Path) -> dict[str, Any]:
    """The manifest of a continued run; empty if there is none or it is invalid."""
    with suppress(OSError, DecodeError, LookupError, AttributeError, TypeError):
        manifest: dict[str, Any] = parse_json(read_file(path, MOST_BYTES), MOST_BYTES, finite=False)
        parts = [each.get(name) or {} for each in manifest["sittings"] for name in PARTS]
        if parts and all(isinstance(part, dict) for part in parts):
            return manifest
    return {}


def package_versions(config: RunConfig) -> dict[str, str]:
    """Versions of es-queue, Python, and every installed package that may affect results."""
    modules = {module.partition(".")[0] for module in named_modules(config)}
    distributions = packages_distributions() if modules else {}
    named = [name for module in sorted(modules) for name in distributions.get(module, ())]
    installed = {
        name: host.version_of(name) for name in (*host.PACKAGES, *ENVIRONMENT_PACKAGES, *named)
    }
    return {
        "es-queue": es_queue.__version__,
        "python": platform.python_version(),
        **{name: version for name, version in installed.items() if version},
    }


def describe_machine() -> dict[str, Any]:
    memory = None
    with suppress(OSError, ValueError, AttributeError):
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "cpu": host.cpu_model(),
        "cores": host.default_workers(),
        "memory_gib": memory,
    }


def code_revision(folder: Path) -> dict[str, Any] | None:
    """The git revision of a folder; None without git or a revision.

    ``git rev-parse`` runs no program that the folder's settings of git name. ``git status`` does:
    it filters files.
    """
    command = ("git", "-c", "core.fsmonitor=false", "-C", str(folder), "rev-parse", "HEAD")
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            command,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            errors="replace",
        )
        revision = done.stdout.strip() if done.returncode == 0 else ""
        return {"revision": sanitize(revision, 80)} if revision else None
    return None


def format_readme(run: str, config: RunConfig, command: str, first: dict[str, Any]) -> str:
    about, revision = first.get("machine") or {}, (first.get("code") or {}).get("revision")
    versions = ", ".join(f"{name} {one}" for name, one in (first.get("versions") or {}).items())
    code = f"your code   git {revision}\n" if revision else ""
    return f"""\
Run {run}: {config.problem}, {config.strategy}, a {config.policy_name} policy, \
population {scaled(config).population}, seed {config.seed}.

begun       {first.get("time")} on {about.get("host")}: {about.get("cpu")}, \
{about.get("cores")} cores, {about.get("memory_gib")} GiB
with        {versions}
{code}
This command repeats the run, to the bit with equal versions and processors, unless \
--max-seconds ended it or its schedule is async:

  {command}

{FILE_DESCRIPTIONS}"""


FILE_DESCRIPTIONS = """\
run.json        all of the above as JSON, with all settings and each master's session ("sittings")
config.json     the settings, as es-master --resume reads them
metrics.jsonl   one JSON object per generation; metrics.csv has the main figures as a table
summary.json    how the run ended, once it has; quote only its eval_mean
failure.json    why the run failed, if it did
checkpoints/    the newest two, snapshots, and best.npz: the parameters with the best evaluation
replay/         what each generation learnt from, for es-master --replay
slots/          what each individual did, for the generations that --keep-generations keeps
videos/         with --video-every: films of the policy
logs/           the logs of local workers
tensorboard/    with --track tensorboard: logs for tensorboard --logdir; also wandb/ and mlflow/

  es-play THIS-FOLDER              play the best policy
  es-master --resume RUN           continue the run
  es-status RUN                    its progress; --web shows its curves in a browser
"""


def repro_command(
    config: RunConfig, warm_start: Path | None = None, with_recipe: bool = True
) -> str:
    """``es-master --env … --seed …``: a new run of exactly this configuration, without server and
    password. with_recipe: whether the environment's recipe shortens it
    """
    recipe = recipe_for(config.env) if with_recipe else {}
    task = ("env",) if config.env else ("model",) if config.model else ("objective", "parameters")
    values, ignored = config.to_dict(), config.useless().keys()
    # The task, and what differs from the recipe; es-master derives the others from these.
    named = {name: getattr(config, name) for name in (*task, "seed")} | {
        name: getattr(config, name)
        for name in TUNED_SETTINGS
        if hasattr(config, name)
        and getattr(config, name) != recipe.get(name, every_setting()[name].default)
    }
    # The class of a strategy of your own is not loaded here, so its other settings are named.
    plain = {n: every_setting()[n].default if n in every_setting() else None for n in values}
    while True:
        # A setting that is named can keep the recipe from setting another.
        given = plain | resolve(named, with_recipe=with_recipe).to_dict()
        unlike = [n for n in values if n not in ignored and n not in named if values[n] != given[n]]
        if not unlike:
            break
        named |= {name: getattr(config, name) for name in unlike}
    words = [word for name in values if name in named for word in format_flags(name, values[name])]
    words += [] if with_recipe else [f"--recipe {NONE}"]
    words += [f"--warm-start {quote(format_warm_start(warm_start))}"] if warm_start else []
    return " ".join(["es-master", *words])


def format_flags(name: str, value: Any) -> list[str]:
    flag = format_flag(name)
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, dict):
        return [f"{flag} {quote(f'{key}={format_scalar(item)}')}" for key, item in value.items()]
    if name == "wrapper":
        return [f"{flag} {quote(wrapper)}" for wrapper in value]
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return [f"{flag}={quote(text)}" if text.startswith("-") else f"{flag} {quote(text)}"]


def format_scalar(value: Any) -> str:
    """A value of --env-arg: text unchanged, unless it would be read as JSON."""
    with suppress(ValueError, TypeError):
        json.loads(value)
        return json.dumps(value)
    return value if isinstance(value, str) else json.dumps(value)
