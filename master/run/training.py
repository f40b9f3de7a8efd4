"""Training from Python, as with the command; returns the summary."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from es_queue.config.recipes import format_recipe, named_recipe, resolve
from es_queue.config.run_config import (
    RunConfig,
    check_resume_changes,
    every_setting,
    naming_settings,
)
from es_queue.config.settings import NONE, short
from es_queue.errors import UsageError
from es_queue.hooks import Hook
from es_queue.numerics.fingerprint import fix_numeric_environment, limit_blas_threads
from es_queue.text import format_suggestion, nearest_names
from master.status.figures import format_mean_std

if TYPE_CHECKING:
    from es_queue.environments.registry import GivenEnvironment
    from es_queue.policies.saved_policy import SavedPolicy
    from es_queue.run_folder import NamedRun

GenerationCallback = Callable[[dict[str, Any]], bool | None]


class TrainOptions(TypedDict, total=False):
    """As the flags."""

    redis_url: str | None
    workers: int | None
    queue: str
    run: str | None
    run_dir: str | Path | None
    runs_dir: str | Path | None
    noise_dir: str | Path | None
    trust: bool
    recipe: str


class TrainResult(dict[str, Any]):
    """The summary of a run: a mapping whose figures are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the result of a run has no {name!r}") from None

    def __repr__(self) -> str:
        figures = format_mean_std(self.get("eval_mean"), self.get("eval_std"))
        return (
            f"<TrainResult of run {self.get('run')}: {self.get('state')} at generation "
            f"{self.get('generation')}, evaluation {figures}>"
        )

    @cached_property
    def policy(self) -> SavedPolicy:
        """The best policy, else the newest. Raises RunFolderError if it cannot be loaded."""
        # start-up: numpy
        from es_queue.policies.saved_policy import load_policy

        return load_policy(self.get("best_checkpoint") or self["last_checkpoint"])


def train(
    config: RunConfig | None = None,
    on_generation: GenerationCallback | None = None,
    *,
    env: GivenEnvironment | None = None,
    model: str | type | None = None,
    resume: str | None = None,
    changes: dict[str, Any] | None = None,
    progress: bool | None = None,
    hooks: Sequence[Hook] = (),
    **options: Unpack[TrainOptions],
) -> TrainResult:
    """Train, and return the summary with the keys of the command's ``{"event": "summary"}``.

    Call it from the main thread. A KeyboardInterrupt leaves a stopped run that can be resumed, and
    is raised again.

    Args:
        config: Settings of a new run. As on the command line, those that it was not given come from
            the recipe for its environment, else they are the defaults.
        on_generation: Called with the figures of each generation. If it returns False, the run ends
            after that generation.
        env: The environment, instead of the config's: an id, a class, a function that makes one,
            or an environment. Workers must be able to import it.
        model: The class of a model, or its ``module:Class``, instead of an environment. Workers
            must be able to import it.
        resume: Name, folder or checkpoint of a run to continue with its own configuration;
            ``config`` is ignored.
        changes: With ``resume``: settings to change, such as {"generations": 500}; see
            ``es_queue.config.run_config.resumable``.
        progress: Show the run as es-master does: a panel on a terminal or in a notebook, else a
            line per generation. By default only in a notebook.
        hooks: Objects whose methods are called at the run's events; see ``es_queue.Hook``.
        options: ``redis_url``, ``workers``, ``queue``, ``run``, ``run_dir``, ``runs_dir``,
            ``noise_dir``, ``trust`` and ``recipe``, as the flags. Without ``redis_url`` it starts
            a private server and local workers, whatever the environment says. With ``resume`` it
            uses the server that the run was on, unless ``redis_url`` names another one, or is
            "private".
            ES_QUEUE_REDIS_PASSWORD(_FILE) may hold the password of another.

    Raises:
        EsQueueError: In one sentence.
    """
    if unknown := options.keys() - TrainOptions.__annotations__.keys():
        raise UsageError(f"train() has no option {min(unknown)}{_format_fix(min(unknown))}")
    fix_numeric_environment()
    limit_blas_threads()
    # start-up: numpy, whose threads must be fixed before it loads
    from es_queue.credentials import with_password
    from es_queue.host import checked_workers
    from es_queue.protocol.connection import PRIVATE, URL_FLAG
    from es_queue.protocol.keys import clocks_from_environment
    from es_queue.user_code import named_modules
    from master.display.log_view import SafeStream
    from master.display.reporter import Callback, Reporter, WarningView, is_notebook, make_view
    from master.run.launch import Launch, with_run_server
    from master.run.session import Session
    from master.storage.trackers import HookSink

    if config is not None and not isinstance(config, RunConfig):
        fix = "env=..." if isinstance(config, str) or callable(config) else "a RunConfig"
        if isinstance(config, dict):
            settings = ", ".join(f"{name}={short(value)}" for name, value in config.items())
            fix = f"train(RunConfig({settings[:200]}))"
        raise UsageError(f"train() got {short(config)} as its config: write {fix}")
    for hook in hooks:
        if not isinstance(hook, Hook):
            raise UsageError(f"train() got {short(hook)} as a hook: use objects of es_queue.Hook")
    if resume is None and ((config is None and env is None and model is None) or changes):
        raise UsageError("train() needs a config for a new run, or env=; changes= needs resume=")
    given: dict[str, Any] = {**options, "resume": resume}
    if given.get("workers") is not None:
        given["workers"] = checked_workers(given["workers"], "train()")
    for name in ("run_dir", "runs_dir", "noise_dir"):
        if given.get(name) is not None:
            given[name] = Path(given[name])
    if (url := given.get("redis_url")) is not None:
        given["redis_source"] = URL_FLAG
        given["redis_url"] = (
            with_password(url, warn=lambda text: warnings.warn(text, stacklevel=3))
            if url != PRIVATE
            else None
        )
    callback = Callback(on_generation or (lambda record: None))

    def make_reporter(run: NamedRun, config: RunConfig) -> Reporter:
        is_shown = is_notebook() if progress is None else progress
        view = make_view(SafeStream(sys.stdout), run.run, config) if is_shown else WarningView()
        sinks = [callback, *(HookSink(hook, run.run, run.folder, config) for hook in hooks)]
        return Reporter(run.folder, view, trackers=sinks)

    with naming_settings(as_flags=False, others=("resume", *TrainOptions.__annotations__)):
        checked = None
        if resume is None:
            checked, notes = make_config(config, env, given.get("recipe", ""), model)
            given |= {"own_modules": tuple(named_modules(checked))}
            given |= {"notes": notes} if progress else {}
        launch = with_run_server(Launch(**given))
        session = Session(launch, clocks_from_environment(), make_reporter, lambda: False)
        changes = check_resume_changes(changes or {}, "changes")
        try:
            return TrainResult(session.run(checked, changes, lambda _: callback.keeps_going))
        except KeyboardInterrupt as interrupt:
            if session.resume_command:
                interrupt.add_note(f"the run was stopped; continue with: {session.resume_command}")
            raise


def _format_fix(name: str) -> str:
    """How to give train() what it does not take by that name; empty if nobody can tell."""
    cure = "config=RunConfig(env=..., {}=...) instead of env="
    if name in every_setting():
        return f": it is a setting, so use {cure.format(name)}"
    options = (*TrainOptions.__annotations__, "config", "env", "resume")
    if near := format_suggestion(name, options):
        return f"; {near}"
    near = next(iter(nearest_names(name, every_setting())), "")
    return near and f"; did you mean the setting {near}? Use {cure.format(near)}"


def make_config(
    config: RunConfig | None,
    env: GivenEnvironment | None,
    recipe: str = "",
    model: str | type | None = None,
) -> tuple[RunConfig, tuple[str, ...]]:
    """The settings of a new run, and the line about those that come from recipes. Raises
    UsageError.
    """
    # start-up: numpy, whose threads must be fixed before it loads
    from es_queue.environments.registry import environment_settings

    values: dict[str, Any] = {}
    if config is not None:
        # A value without effect is not refused: a complete config has them.
        used = config.given - config.useless().keys()
        values = {name: getattr(config, name) for name in used}
    if env is not None:
        if config is not None and config.problem:
            raise UsageError(f"train() has env= and a config for {config.problem}: leave one out")
        values |= environment_settings(env)
    if isinstance(model, type):
        if model.__module__ == "__main__":
            raise UsageError(
                f"workers cannot import the model {model.__name__} of the main program: put the "
                "class into a module of its own"
            )
        model = f"{model.__module__}:{model.__qualname__}"
    if model is not None:
        values["model"] = model
    inherited = {} if recipe in ("", NONE) else named_recipe(recipe)
    extra = inherited.keys() - values.keys()
    values = inherited | values
    return resolve(values, extra, recipe != NONE), format_recipe(values, extra, recipe)
