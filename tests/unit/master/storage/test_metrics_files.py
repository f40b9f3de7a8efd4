"""metrics.csv and TensorBoard's event files: what stands in them, and that trouble with them ends
no run.
"""

from __future__ import annotations

import csv
import io
import struct
from pathlib import Path
from typing import Any

import pytest

from es_queue.config.resolution import resolve
from es_queue.errors import UsageError
from master.cli.options import parse_command_line
from master.display.log_view import QuietView, SafeStream
from master.display.notes import NoteHandler
from master.display.reporter import METRICS, Reporter
from master.storage import tensorboard
from master.storage.metrics_files import METRICS_TABLE, TABLE_COLUMNS, TableFile
from master.storage.tensorboard import EventFile, validate_tensorboard_support
from tests.ring import run_ring

RECORD: dict[str, Any] = {
    "generation": 3,
    "env_steps": 1200,
    "return_mean": 1.5,
    "return_std": float("nan"),
    "eval_mean": None,
    "eval_best": 7.25,
    "sigma": 1 / 3,
    "digest": 'a,"b',
    "workers": 2,
}


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_a_table_has_its_columns_once_and_a_row_a_generation_also_when_a_run_goes_on(
    tmp_path: Path,
) -> None:
    for generation in (3, 4):
        table = TableFile(tmp_path / METRICS_TABLE)
        assert table.append({**RECORD, "generation": generation}) == ""
        table.close()
    first, second = rows(tmp_path / METRICS_TABLE)
    assert (
        tuple(first) == TABLE_COLUMNS
        and (tmp_path / METRICS_TABLE).read_text().count("generation") == 1
    )
    assert (
        first["generation"],
        second["generation"],
        first["return_mean"],
        first["return_std"],
        first["eval_mean"],
    ) == ("3", "4", "1.5", "", "")
    assert first["sigma"] == "0.3333333333" and first["env_steps"] == "1200"


def test_every_column_and_tag_is_a_figure_of_real_generations() -> None:
    _, sink = run_ring(
        resolve(
            {
                "env": "CartPole-v1",
                "seed": 1,
                "population": 4,
                "step_limit": "30",
                "eval_every": 1,
                "eval_episodes": 1,
                "final_episodes": 1,
                "generations": 2,
                "noise_size": 2**18,
            }
        )
    )
    known = {name for one in sink.records for name in one}
    assert set(TABLE_COLUMNS) - known == set() and set(tensorboard.TAGS.values()) - known == set()


def test_half_a_row_of_a_killed_master_spoils_no_other(tmp_path: Path) -> None:
    (tmp_path / METRICS_TABLE).write_text(",".join(TABLE_COLUMNS) + "\n1,2,3")
    table = TableFile(tmp_path / METRICS_TABLE)
    table.append(RECORD)
    table.close()
    assert [one["generation"] for one in rows(tmp_path / METRICS_TABLE)] == ["1", "3"]


def test_a_report_writes_both_files_and_says_once_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "run" / METRICS_TABLE).mkdir(parents=True)
    out = io.StringIO()
    report = Reporter(tmp_path / "run", QuietView(SafeStream(out)))
    with NoteHandler(report.note):
        for generation in range(3):
            report.generation({**RECORD, "generation": generation})
    report.close()
    assert (tmp_path / "run" / METRICS).read_text().count("\n") == 3
    assert out.getvalue().count("metrics.csv cannot be written") == 1


def events(folder: Path) -> list[Any]:
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


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    told: dict[str, list[tuple[int, float]]] = {}
    for event in events(folder):
        for value in event.summary.value:
            told.setdefault(value.tag, []).append((event.step, value.simple_value))
    return told


def test_tensorboard_gets_the_figures_by_steps_and_nothing_where_there_is_none(
    tmp_path: Path,
) -> None:
    pytest.importorskip(
        "tensorboardX", reason="tensorboardX is not installed (pip install '.[tensorboard]')"
    )
    file = EventFile(tmp_path)
    assert (
        file.append(RECORD) == ""
        and file.append({**RECORD, "env_steps": 2400, "eval_mean": -2.5}) == ""
    )
    file.close()
    told = scalars(tmp_path)
    assert told["training/return_mean"] == [(1200, 1.5), (2400, 1.5)] and told[
        "evaluation/mean"
    ] == [(2400, -2.5)]
    assert "training/return_std" not in told and set(told) <= set(tensorboard.TAGS)


def test_a_run_that_goes_on_takes_back_what_it_does_again(tmp_path: Path) -> None:
    pytest.importorskip(
        "tensorboardX", reason="tensorboardX is not installed (pip install '.[tensorboard]')"
    )
    for steps in (1200, 800):
        file = EventFile(tmp_path)
        assert file.append({**RECORD, "env_steps": steps}) == ""
        file.close()
    started = [event.step for event in events(tmp_path) if event.session_log.status == 1]
    assert started == [800]


def test_what_cannot_be_written_is_said_once_and_the_run_goes_on(tmp_path: Path) -> None:
    pytest.importorskip(
        "tensorboardX", reason="tensorboardX is not installed (pip install '.[tensorboard]')"
    )
    (tmp_path / "taken").touch()
    file = EventFile(tmp_path / "taken")
    assert "training continues without it" in file.append(RECORD) and file.append(RECORD) == ""
    file.close()


def test_without_the_package_nothing_begins_and_the_command_to_install_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    with pytest.raises(
        UsageError,
        match=r"--tensorboard needs the package tensorboardX: "
        r"pip install 'es-queue\[tensorboard\]'",
    ):
        parse_command_line(["--env", "CartPole-v1", "--tensorboard"])
    validate_tensorboard_support(False)
