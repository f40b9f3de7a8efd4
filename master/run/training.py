"""Training from Python: the same as the command, returning the summary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from es_queue.config.run_config import RunConfig
from es_queue.numerics.fingerprint import fix_numeric_environment, limit_blas_threads

if TYPE_CHECKING:
    from master.storage.metrics_files import LineFile

GenerationCallback = Callable[[dict[str, Any]], bool | None]


class CallbackView:
    """A view for Python: the caller's function hears of every generation, the run's files have it
    as the command's do, and warnings go to ``note``.

    keeps_going: False once the function has answered False
    """

    def __init__(self, callback: GenerationCallback | None, note: Callable[[str], None]) -> None:
        self.note, self.keeps_going = note, True
        self._callback = callback
        self._files: list[LineFile] = []

    def open_files(self, run_dir: Path) -> CallbackView:
        # start-up: numpy, whose threads must be fixed before it loads
        from master.storage.metrics_files import METRICS, METRICS_TABLE, MetricsFile, TableFile

        self._files = [MetricsFile(run_dir / METRICS), TableFile(run_dir / METRICS_TABLE)]
        return self

    def started(self, about: dict[str, str]) -> None: ...

    def generation(self, record: dict[str, Any]) -> None:
        for trouble in filter(None, [file.append(record) for file in self._files]):
            self.note(trouble)
        if self._callback is not None and self._callback(dict(record)) is False:
            self.keeps_going = False

    def live(self, figures: dict[str, Any]) -> None: ...

    def summary(self, record: dict[str, Any]) -> None: ...

    def close(self) -> None:
        for file in self._files:
            file.close()


def train(
    config: RunConfig | None = None,
    on_generation: GenerationCallback | None = None,
    *,
    redis_url: str | None = None,
    workers: int | None = None,
    queue: str = "default",
    run: str | None = None,
    run_dir: str | Path | None = None,
    resume: str | None = None,
    noise_dir: str | Path | None = None,
    changes: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Train and return the summary (the keys of the command's ``{"event": "summary"}``).

    config: zeros and "auto" become defaults as on the command line; recipes are not applied, for
    every field of a
        RunConfig has a value (``es_queue.config.resolution.resolve({"env": …})`` makes one with the
        recipe)
    on_generation: called with each generation's figures, the last one's too; returning False ends
    the run after it
    resume: id of an existing run to go on with under its own configuration; ``config`` is not
    looked at and may be None
    changes: what --resume may change too, such as {"generations": 500}
    (``es_queue.config.changeable.RESUMABLE``)
    redis_url: None starts a private server and local workers, whatever the environment says; for
    another one
        ES_QUEUE_REDIS_PASSWORD(_FILE) may hold the password; the rest as the flags
    A KeyboardInterrupt leaves a stopped run that can be resumed, and is raised again. Call it from
    the main thread, to which the child processes are bound. Raises EsQueueError in one sentence.
    """
    fix_numeric_environment()
    limit_blas_threads()
    # start-up: numpy, whose threads must be fixed before it loads
    import warnings

    from es_queue.config.changeable import validate_resume_changes
    from es_queue.config.parsing import config_from_values
    from es_queue.errors import UsageError
    from es_queue.protocol.timing import clocks_from_environment
    from es_queue.security.passwords import with_password
    from master.run.launch import Launch
    from master.run.session import Session

    if resume is None and (config is None or changes):
        raise UsageError("train() needs a config for a new run; changes= goes with resume=")
    folder, noise = (None if path is None else Path(path) for path in (run_dir, noise_dir))
    url = (
        None
        if redis_url is None
        else with_password(redis_url, warn=lambda text: warnings.warn(text, stacklevel=3))
    )
    launch = Launch(url, workers, queue, run, folder, resume, noise_dir=noise)
    checked = (
        config_from_values(config.to_dict(), "the configuration")
        if config is not None and resume is None
        else None
    )
    view = CallbackView(on_generation, lambda text: warnings.warn(text, stacklevel=2))
    session = Session(
        launch,
        clocks_from_environment(),
        lambda place, *_: view.open_files(place.run_dir),
        lambda: False,
    )
    try:
        return session.run(
            checked, validate_resume_changes(changes or {}), lambda _: view.keeps_going
        )
    finally:
        view.close()
