"""``--track``: each tracker's own files hold what metrics.jsonl holds, and trouble with them ends
no run.
"""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from es_queue.config.recipes import resolve
from es_queue.errors import UsageError
from master.cli.options import parse_command_line
from master.display.log_view import QuietView, SafeStream
from master.display.notes import NoteHandler
from master.display.reporter import METRICS, Reporter
from master.storage.trackers import PACKAGES, TAGS, open_trackers, parse_trackers
from tests.leaks import MARK, password
from tests.notes import collect_notes
from tests.tiny import eventually

CONFIG = resolve({"env": "CartPole-v1", "seed": 7})
RECORD: dict[str, Any] = {
    "generation": 0,
    "env_steps": 1200,
    "return_mean": 1.5,
    "return_std": None,
    "eval_mean": float("nan"),
    "sigma": 1 / 3,
}
RECORDS = [RECORD, {**RECORD, "generation": 1, "env_steps": 2400, "eval_mean": -2.5}]
SUMMARY = {"state": "finished", "digest": "0123abcd", "reproducible": True}
Series = dict[str, list[tuple[int, float]]]


def track(name: str, folder: Path, records: list[dict[str, Any]]) -> None:
    """What a master does with a run of these generations."""
    best = folder / "checkpoints" / "best.npz"
    best.parent.mkdir(exist_ok=True)
    best.write_bytes(b"parameters")
    opened = open_trackers([name], "run-1", folder, CONFIG)
    report = Reporter(folder, QuietView(SafeStream(io.StringIO()), CONFIG), trackers=opened)
    notes: list[str] = []
    with NoteHandler(notes.append):
        for record in records:
            report.generation(record)
        report.summary({**SUMMARY, "best_checkpoint": str(best)})
        report.close()
    assert notes == []


def tracked_metrics(folder: Path) -> Series:
    """metrics.jsonl as a tracker names it."""
    series: Series = {}
    for line in (folder / METRICS).read_text().splitlines():
        record = json.loads(line)
        for tag, name in TAGS.items():
            if record.get(name) is not None:
                series.setdefault(tag, []).append((record["env_steps"], record[name]))
    return series


def wandb_records(data: bytes) -> Iterator[Any]:
    """W&B's records: a header, and blocks of 32 KiB with (checksum, length, kind), each followed
    by a record or a part of one.
    """
    from wandb.proto import wandb_internal_pb2

    position, parts = 7, b""
    while position + 7 <= len(data):
        if (left := 2**15 - position % 2**15) < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        position += 7 + length
        parts = (parts if kind in (3, 4) else b"") + data[position - length : position]
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(parts)


def tensorboard_events(folder: Path) -> list[Any]:
    """TensorBoard's records: length, its checksum, an event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            found.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return found


def read_tensorboard(folder: Path) -> Series:
    series: Series = {}
    for event in tensorboard_events(folder / "tensorboard"):
        for value in event.summary.value:
            series.setdefault(value.tag, []).append((event.step, value.simple_value))
    return series


def items(fields: Any) -> dict[str, Any]:
    return {item.key or item.nested_key[0]: json.loads(item.value_json) for item in fields}


def read_wandb(folder: Path) -> Series:
    """Its figures; the settings, the digest and the best checkpoint are checked at once."""
    (path,) = folder.glob("wandb/offline-run-*/run-run-1.wandb")
    series: Series = {}
    settings: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    # Its own process writes the last records after `finish`.
    assert eventually(
        lambda: any(record.HasField("exit") for record in wandb_records(path.read_bytes()))
    )
    for record in wandb_records(path.read_bytes()):
        settings |= items(record.run.config.update)
        summary |= items(record.summary.update)
        figures = items(record.history.item)
        for tag in TAGS.keys() & figures.keys():
            series.setdefault(tag, []).append((figures["env_steps"], figures[tag]))
    assert settings["seed"] == 7 and summary["digest"] == "0123abcd"
    assert (path.parent / "files" / "best.npz").read_bytes() == b"parameters"
    return series


def read_mlflow(folder: Path) -> Series:
    """Its figures; the settings, the digest and the best checkpoint are checked at once."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(folder / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("es-queue")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["seed"] == "7" and run.data.tags["digest"] == "0123abcd"
    assert run.info.status == "FINISHED"
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["best.npz"]
    return {
        tag: [(item.step, item.value) for item in client.get_metric_history(run.info.run_id, tag)]
        for tag in run.data.metrics
    }


READERS: dict[str, Callable[[Path], Series]] = {
    "tensorboard": read_tensorboard,
    "wandb": read_wandb,
    "mlflow": read_mlflow,
}


@pytest.fixture(params=PACKAGES)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A tracker whose package is installed, and which reads nothing of this user's."""
    tracker: str = request.param
    package = PACKAGES[tracker]
    pytest.importorskip(package, reason=f"{package} is not installed (pip install '.[{tracker}]')")
    for variable in (
        "WANDB_MODE",
        "WANDB_PROJECT",
        "MLFLOW_TRACKING_URI",
        "MLFLOW_EXPERIMENT_NAME",
    ):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for variable in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    return tracker


def test_each_tracker_holds_the_figures_of_metrics_jsonl_by_steps(
    name: str, tmp_path: Path
) -> None:
    track(name, tmp_path, RECORDS)
    series = READERS[name](tmp_path)
    assert series["evaluation/mean"] == [(2400, -2.5)] and "training/return_std" not in series
    expected = tracked_metrics(tmp_path)
    assert series.keys() == expected.keys()
    for tag, figures in expected.items():
        steps, values = zip(*sorted(series[tag]), strict=True)
        assert steps == tuple(step for step, _ in figures)
        assert values == pytest.approx([value for _, value in figures], rel=1e-6)


def test_no_tracker_records_its_process_s_command_line_or_environment(
    name: str, tmp_path: Path
) -> None:
    url = f"redis://:{password('tracker')}@host"
    code = "import sys; from pathlib import Path; from test_trackers import RECORDS, track; "
    code += "track(sys.argv[1], Path(sys.argv[2]), RECORDS)"
    subprocess.run(
        [sys.executable, "-c", code, name, str(tmp_path), "--redis-url", url],
        env={**os.environ, "RQ_REDIS_URL": url, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    assert READERS[name](tmp_path)  # it is all written
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not [path for path in files if MARK.encode() in path.read_bytes()]


def test_a_tracker_that_cannot_be_opened_is_reported_once_and_the_run_continues(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"nowhere://me:{MARK}/a@b@host/api")
    (tmp_path / name).write_text("a file in the place of the folder")
    (tracker,) = open_trackers([name], "run-1", tmp_path, CONFIG)
    notes = collect_notes()
    for _ in range(2):
        tracker.generation(RECORD)
    tracker.summary(SUMMARY)
    tracker.close()
    (sentence,) = notes
    assert str(tmp_path / name) in sentence and "training continues without it" in sentence
    assert MARK not in sentence, "an address may hold a password"


def test_a_resumed_run_continues_in_the_same_mlflow_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed (pip install '.[mlflow]')")
    track("mlflow", tmp_path, RECORDS[:1])
    track("mlflow", tmp_path, RECORDS[1:])
    assert read_mlflow(tmp_path)["run/generation"] == [(1200, 0.0), (2400, 1.0)]


def test_a_resumed_run_replaces_what_it_repeats_in_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip(
        "tensorboardX", reason="tensorboardX is not installed (pip install '.[tensorboard]')"
    )
    for steps in (1200, 800):
        track("tensorboard", tmp_path, [{**RECORD, "env_steps": steps}])
    events = tensorboard_events(tmp_path / "tensorboard")
    assert [event.step for event in events if event.session_log.status == 1] == [800]


def test_trackers_are_named_with_commas_between_and_an_unknown_one_is_refused() -> None:
    for words, tracked in (
        (["--tensorboard"], ("tensorboard",)),
        (["--track", "tensorboard,tensorboard"], ("tensorboard",)),
        (["--track", "tensorboard", "--tensorboard"], ("tensorboard",)),
    ):
        assert parse_command_line(["--env", "CartPole-v1", *words])[1].track == tracked
    with pytest.raises(UsageError, match="track is 'aim': use tensorboard, wandb, mlflow"):
        parse_trackers("aim,tensorboard")
