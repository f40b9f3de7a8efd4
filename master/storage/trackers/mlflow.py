"""MLflow: a file store in the run's folder, or the server of MLFLOW_TRACKING_URI."""

from __future__ import annotations

import os
import time
from typing import Any

from master.display.format import Record
from master.storage.trackers.base import Tracker, best_checkpoint, summary_texts

EXPERIMENT = "es-queue"
#: The tag by which a resumed run finds its own.
RUN_TAG = "es_queue_run"


class MlflowTracker(Tracker):
    """Its steps are environment steps. A resumed run continues in the same MLflow run."""

    name = "mlflow"
    _status = "FAILED"
    _pending: Any = None

    def _open(self) -> None:
        # MLflow 3.7 and later ask for this word before they use a file store.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        # A server that does not answer must not keep the master from its lease.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        # optional: mlflow
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI") or self._folder.absolute().as_uri()
        self._metric, self._client = Metric, MlflowClient(tracking_uri=uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = (
            self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        )
        former = self._client.search_runs([experiment_id], f"tags.{RUN_TAG} = '{self._run}'")
        if former:
            self._id = former[0].info.run_id
            self._client.set_terminated(self._id, "RUNNING")
            return
        tags = {RUN_TAG: self._run}
        self._id = self._client.create_run(experiment_id, tags=tags, run_name=self._run).info.run_id
        settings = self._config.to_dict().items()
        self._client.log_batch(self._id, params=[Param(key, str(value)) for key, value in settings])

    def _write(self, figures: dict[str, float], steps: int) -> None:
        now = round(time.time() * 1000)
        metrics = [self._metric(tag, value, now, steps) for tag, value in figures.items()]
        # A thread of MLflow's writes it: training does not wait for a server.
        self._pending = self._client.log_batch(self._id, metrics=metrics, synchronous=False)

    def _wait(self) -> None:
        """Wait for that thread: a file store cannot be read while it writes."""
        if self._pending is not None:
            self._pending.wait()

    def _finish(self, record: Record) -> None:
        self._wait()
        for key, text in summary_texts(record).items():
            self._client.set_tag(self._id, key, text)
        if path := best_checkpoint(record):
            self._client.log_artifact(self._id, str(path))
        self._status = "FINISHED"

    def _close(self) -> None:
        self._wait()
        self._client.set_terminated(self._id, self._status)


TRACKER = MlflowTracker
