"""``--track``: writes a run's settings, figures and result for experiment trackers."""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from es_queue.config.run_config import RunConfig
from es_queue.config.settings import CUSTOM_NAME
from es_queue.errors import UsageError
from es_queue.hooks import Hook
from es_queue.user_code import describe_error, last_line, load_attribute
from master.display.log_view import RunView
from master.status.figures import FIGURES, Record, finite_or_none

LOGGER = logging.getLogger("es_queue.storage")
#: The package that each tracker needs. Its name is also its extra's.
PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}
USER_IN_URL = re.compile(r"//\S*@")
#: What is tracked of a generation: its name in a tracker, and its name in metrics.jsonl.
TAGS = {figure.tag: name for name, figure in FIGURES.items() if figure.tag}
#: The texts that are kept about a run's end.
TEXTS = ("state", "digest", "reproducible")


def parse_trackers(text: str) -> tuple[str, ...]:
    """``wandb,mlflow`` as names, each once. Raises UsageError, before anything begins, for an
    unknown one, or one whose package is not installed.
    """
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in PACKAGES:
            raise UsageError(
                f"track is {name!r}: use {', '.join(PACKAGES)}, or several, separated by commas"
            )
        if find_spec(PACKAGES[name]) is None:
            raise UsageError(
                f"--track {name} needs the package {PACKAGES[name]}: pip install 'es-queue[{name}]'"
            )
    return names


def open_trackers(
    names: Iterable[str], run: str, run_dir: Path, config: RunConfig
) -> list[Tracker]:
    """The trackers of these names; each writes into the folder of its name in ``run_dir``."""
    kinds: dict[str, type[Tracker]] = {
        kind.name: kind for kind in (TensorBoardTracker, WandbTracker, MlflowTracker)
    }
    return [kinds[name](run, run_dir, config) for name in names]


class Tracker(RunView):
    """One run in the files of one tracker. Its package is third-party code: after any exception
    from it, which is logged once, training continues without it.
    """

    #: Its name, and that of its folder in the run's.
    name: ClassVar[str]

    def __init__(self, run: str, run_dir: Path, config: RunConfig) -> None:
        self._run, self._config, self._folder = run, config, run_dir / self.name
        self._is_open = self._is_broken = False

    def generation(self, record: Record) -> None:
        numbers = {tag: finite_or_none(record.get(name)) for tag, name in TAGS.items()}
        info = [name for name in record if name.startswith(("info_", "eval_info_"))]
        numbers |= {name.replace("info_", "info/"): finite_or_none(record[name]) for name in info}
        figures = {tag: value for tag, value in numbers.items() if value is not None}
        steps = int(finite_or_none(record.get("env_steps")) or 0)
        self._attempt(lambda: self._write(figures, steps))

    def summary(self, record: Record) -> None:
        texts, path = {name: str(record.get(name)) for name in TEXTS}, record.get("best_checkpoint")
        best = Path(path) if isinstance(path, str) else None
        self._attempt(lambda: self._finish(texts, best))

    def close(self) -> None:
        is_open, self._is_open = self._is_open, False
        if is_open:
            self._attempt(self._close, opens=False)

    def _attempt(self, write: Callable[[], None], *, opens: bool = True) -> None:
        is_reported = self._is_broken
        if is_reported and opens:
            return
        try:
            if opens and not self._is_open:
                self._open()
                self._is_open = True
            write()
        except Exception as error:
            self._is_broken = True
            # An address may hold a user and a password.
            text = f"{type(error).__name__}: {USER_IN_URL.sub('//', str(error))}"
            if not is_reported:
                LOGGER.warning(
                    f"{self._folder} cannot be written ({text}); training continues without it"
                )

    def _open(self) -> None:
        """Called with the first figures."""

    def _write(self, figures: dict[str, float], steps: int) -> None:
        raise NotImplementedError

    def _finish(self, texts: dict[str, str], best: Path | None) -> None:
        """The run has ended in order."""

    def _close(self) -> None:
        raise NotImplementedError


class HookSink(RunView):
    """Calls a hook of the user's, until it raises."""

    def __init__(self, hook: Hook, run: str, run_dir: Path, config: RunConfig) -> None:
        self._hook: Hook | None = hook
        self._about = {"run": run, "run_dir": str(run_dir), "config": config.to_dict()}

    def started(self, about: Mapping[str, str]) -> None:
        self._call("on_start", self._about)

    def generation(self, record: Record) -> None:
        self._call("on_generation", record)
        if record.get("eval_mean") is not None:
            self._call("on_evaluation", record)

    def summary(self, record: Record) -> None:
        self._call("on_end", record)

    def _call(self, event: str, figures: Mapping[str, Any]) -> None:
        if self._hook is None:
            return
        try:
            getattr(self._hook, event)(dict(figures))
        except Exception as error:  # whatever a user's own code raises
            kind, self._hook = type(self._hook), None
            LOGGER.warning(
                f"the hook {kind.__module__}:{kind.__qualname__} failed in {event} "
                f"({describe_error(error)}){last_line(error)}: training continues without it"
            )


def load_hooks(references: Iterable[str]) -> list[Hook]:
    """An object of each ``module:Class``. Raises UsageError for what is no hook."""
    hooks = []
    for reference in references:
        if not CUSTOM_NAME.fullmatch(reference):
            raise UsageError(f"hook is {reference!r}: use module:Class")
        kind = load_attribute(f"hook {reference}", reference, UsageError)
        if not (isinstance(kind, type) and issubclass(kind, Hook)):
            raise UsageError(f"hook is {reference}, which is no class that extends es_queue.Hook")
        try:
            hooks.append(kind())
        except Exception as error:  # whatever a user's own code raises
            raise UsageError(
                f"the hook {reference} cannot be made without arguments: {describe_error(error)}"
            ) from error
    return hooks


class TensorBoardTracker(Tracker):
    """TensorBoard's event files. TensorBoard shows once what a resumed run repeats. The horizontal
    axis is environment steps.
    """

    name = "tensorboard"
    _writer: Any = None

    def _write(self, figures: dict[str, float], steps: int) -> None:
        if self._writer is None:  # opened by the first step, because a resumed run repeats steps
            # optional: tensorboardX
            from tensorboardX import SummaryWriter

            former = self._folder.exists() and any(self._folder.iterdir())
            self._writer = SummaryWriter(str(self._folder), purge_step=steps if former else None)
        for tag, value in figures.items():
            self._writer.add_scalar(tag, value, steps)
        self._writer.flush()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WandbTracker(Tracker):
    """Weights & Biases, offline unless WANDB_MODE changes that; ``wandb sync`` uploads the files.
    Its steps are generations, so that it drops those that a resumed run repeats. Its horizontal
    axis is environment steps.
    """

    name = "wandb"
    _wandb_run: Any = None
    _exit_code = 1

    def _open(self) -> None:
        # optional: wandb
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._wandb_run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "es-queue"),
            id=self._run,
            name=self._run,
            dir=str(self._folder.parent),  # where it makes the folder "wandb"
            mode=mode,
            # What is online already is continued; files of an offline run are always new.
            resume="allow" if mode == "online" else None,
            config=self._config.to_dict(),
            # A command line may hold a Redis URL with a password, so nothing of this process is
            # recorded.
            settings=wandb.Settings(
                silent=True,
                init_timeout=20,  # seconds; the master's lease must be renewed meanwhile
                console="off",
                disable_git=True,
                save_code=False,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        self._wandb_run.define_metric("*", step_metric="env_steps")

    def _write(self, figures: dict[str, float], steps: int) -> None:
        step = int(figures.get("run/generation", 0))
        self._wandb_run.log({**figures, "env_steps": steps}, step=step)

    def _finish(self, texts: dict[str, str], best: Path | None) -> None:
        self._wandb_run.summary.update(texts)
        if best:
            folder = Path(self._wandb_run.dir)
            copy = shutil.copyfile(best, folder / best.name)
            self._wandb_run.save(str(copy), base_path=str(folder), policy="now")
        self._exit_code = 0

    def _close(self) -> None:
        self._wandb_run.finish(exit_code=self._exit_code)


class MlflowTracker(Tracker):
    """MLflow: a file store in the run's folder, or the server of MLFLOW_TRACKING_URI. Its steps are
    environment steps. A resumed run continues in the same MLflow run.
    """

    name = "mlflow"
    _status = "FAILED"
    _pending: Any = None

    def _open(self) -> None:
        # MLflow 3.7 and later ask for this word before they use a file store.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        # A server that does not answer must not keep the master from its lease.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        # One thread writes in order: when the last figures are written, all are.
        os.environ.setdefault("MLFLOW_ASYNC_LOGGING_THREADPOOL_SIZE", "1")
        # optional: mlflow
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI") or self._folder.absolute().as_uri()
        self._metric, self._client = Metric, MlflowClient(tracking_uri=uri)
        client = self._client
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "es-queue")
        found = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if found is None else found.experiment_id
        tags = {"es_queue_run": self._run}  # by which a resumed run finds its own
        former = client.search_runs([experiment], f"tags.es_queue_run = '{self._run}'")
        if former:
            self._id = former[0].info.run_id
            client.set_terminated(self._id, "RUNNING")
            return
        self._id = client.create_run(experiment, tags=tags, run_name=self._run).info.run_id
        settings = self._config.to_dict().items()
        client.log_batch(self._id, params=[Param(key, str(value)) for key, value in settings])

    def _write(self, figures: dict[str, float], steps: int) -> None:
        now = round(time.time() * 1000)
        metrics = [self._metric(tag, value, now, steps) for tag, value in figures.items()]
        # A thread of MLflow's writes it: training does not wait for a server.
        self._pending = self._client.log_batch(self._id, metrics=metrics, synchronous=False)

    def _finish(self, texts: dict[str, str], best: Path | None) -> None:
        self._wait()
        for key, text in texts.items():
            self._client.set_tag(self._id, key, text)
        if best:
            self._client.log_artifact(self._id, str(best))
        self._status = "FINISHED"

    def _close(self) -> None:
        self._wait()
        self._client.set_terminated(self._id, self._status)

    def _wait(self) -> None:
        """Wait for that thread: a file store cannot be read while it writes."""
        if self._pending is not None:
            self._pending.wait()
