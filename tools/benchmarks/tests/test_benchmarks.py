"""The benchmark suite's own logic; no figure is asserted anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from es_queue.protocol.messages import Block
from tests.cases import each_case
from tools.benchmarks import machine, report
from tools.benchmarks.charts.flame import left_behind, readable, stacks
from tools.benchmarks.charts.flame_graph import drawing, tree
from tools.benchmarks.figures import Row, number
from tools.benchmarks.micro.rates import ring_seconds
from tools.benchmarks.recording import Event, counted_blocks, ranges
from tools.benchmarks.runs import HOUSE, Bench
from tools.benchmarks.suite import MEASURES, rows_of
from tools.benchmarks.timed_master import GROUPS, Sums, install
from tools.benchmarks.utilisation.idle import idle_shares

#: Of a style sheet's selector.


def row(*values: float, **more: object) -> Row:
    return Row("name", "a figure", values, **more)  # type: ignore[arg-type]


def event(pid: int, kind: str, text: str, time: float, fresh: bool = True) -> Event:
    return Event(pid, kind, Block.decode(text), fresh, time)


@each_case(
    ("bound", "at", "beyond"),
    [("≥", True, True), ("≤", True, False), ("<", False, False)],
)
def test_a_target_is_met_as_its_bound_says(bound: str, at: bool, beyond: bool) -> None:
    assert row(2.0, target=2.0, bound=bound).met is at
    assert row(2.1, target=2.0, bound=bound).met is beyond
    assert row(1.9, target=2.0, bound=bound).met is not (bound == "≥")


def test_the_median_counts_and_the_spread_is_of_all_values() -> None:
    found = row(3.0, 1.0, 100.0, target=2.0)
    assert (found.figure, found.spread(), found.verdict) == (3.0, "1 to 100", "met")
    assert (row(1.0).spread(), row(1.0).verdict) == ("", "reported")
    assert row(0.9, 0.95, 0.99, repeats=7).times == 7


def test_a_skipped_row_has_no_figure_and_says_why() -> None:
    found = Row("whole-envpool", "a ratio", (), target=0.92, skipped="envpool is not installed")
    assert (found.met, found.shown()) == (None, "")
    assert "skipped, envpool is not installed" in report.line(found)


def test_numbers_show_three_digits_that_count() -> None:
    assert [number(value) for value in (0, 0.01234, 1.2345, 99.96, 1234.5)] == [
        "0",
        "0.0123",
        "1.23",
        "100",
        "1,234",
    ]


def test_a_row_survives_the_file() -> None:
    found = row(1.0, 2.0, target=1.5, bound="<", beside={"rate": "5"})
    assert Row.read(found.to_dict()) == found


def test_the_page_has_the_table_and_names_causes_of_what_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(report.CAUSES, "name", "It is the cache.")
    page = report.document(
        {
            "machine": {"cores": "2"},
            "repeats": 5,
            "rows": [row(0.9, target=0.95, beside={"steps": "7"}).to_dict()],
        }
    )
    assert "| a figure | ≥ 0.95 | 0.9 |  | **missed** |" in page
    assert "0.9, the target was ≥ 0.95. It is the cache." in page


def test_writing_the_page_again_keeps_what_was_written_by_hand() -> None:
    found = {"machine": {"cores": "2"}, "repeats": 5, "rows": [row(1.0).to_dict()]}
    first = report.document(found)
    again = report.document({**found, "repeats": 7}, first + "\nA sentence.\n")
    assert again.endswith("\nA sentence.\n")
    assert again.count(report.BY_HAND) == 1
    assert "7 repeats" in again


def test_what_the_page_says_of_the_machine_holds_no_path_and_no_host_name() -> None:
    import platform

    told = "\n".join(machine.about().values())
    assert str(HOUSE) not in told
    assert platform.node() not in told.split()


def test_slots_that_two_workers_answered_count_once_and_for_the_first() -> None:
    events = [
        event(2, "answer", "5.1-00000000 train 1 2", 1.0),
        event(1, "answer", "5.1-00000000 train 0 3", 2.0),
        event(2, "answer", "5.1-00000000 train 3 4", 3.0, fresh=False),
        event(2, "answer", "6.1-00000000 train 0 4", 4.0),
    ]
    texts = [(pid, str(block).partition(" ")[2]) for pid, block in counted_blocks(events, 5, 5)]
    assert texts == [(2, "train 1 2"), (1, "train 0 1"), (1, "train 2 3")]
    assert ranges([]) == []


def test_idle_is_from_the_last_answer_in_time_to_the_first_claim_of_the_next_generation() -> None:
    first, second = "5.1-00000000 train 0 1", "6.1-00000000 train 0 1"
    events = [
        event(1, "claim", first, 0.0),
        event(2, "claim", first, 0.0),
        event(2, "answer", first, 8.0),
        event(2, "claim", first, 8.1),
        event(1, "answer", first, 9.0),
        event(2, "answer", first, 9.5, fresh=False),
        event(1, "claim", second, 10.0),
        event(2, "claim", second, 10.5),
        event(1, "claim", "6.1-00000000 train 1 2", 12.0),
        event(2, "claim", "6.1-00000000 train 2 3", 13.0),
    ]
    ((share, seconds),) = idle_shares(events, 5, 5)
    assert share == pytest.approx((1.0 + 2.5) / 20)
    assert seconds == 10.0


def test_frames_of_a_flame_graph_name_no_folder_of_this_machine() -> None:
    assert readable(f"play ({HOUSE}/workers/episode.py:150)") == "play (workers/episode.py)"
    assert (
        readable("step (/somewhere/lib/python3.11/site-packages/envpool/pool.py:7)")
        == "step (envpool/pool.py)"
    )
    assert readable("0x7f0012 (libc.so.6)") == "? (libc.so.6)"
    assert left_behind("<title>a (/tmp/x/y.py)</title>") == ["/tmp/x/y.py"]


def test_what_waits_is_not_drawn() -> None:
    folded = (
        "main (a.py:1);BlockWorker.run (s.py:2);play (p.py:3) 4\nHeartbeat.run (l.py:1);Event.wait "
        "(t.py:1) 9\nHeartbeat.run (l.py:1);poll (libc) 9\nHeartbeat.run (l.py:1);beat (l.py:2) 1\n"
    )
    found = stacks(folded)
    assert found == [
        (("BlockWorker.run (s.py)", "play (p.py)"), 4),
        (("Heartbeat.run (l.py)", "beat (l.py)"), 1),
    ]
    assert tree(found).count == 5


def test_a_drawing_escapes_names_and_leaves_out_what_is_too_narrow() -> None:
    svg = drawing([(("<module>",), 9999), (("narrow",), 1)], "A & B")
    assert "&lt;module&gt;: 100.0 %" in svg
    assert "narrow" not in svg
    assert "A &amp; B" in svg


def test_the_clocks_of_the_extras_fit_the_code_and_count_the_outermost_call_alone() -> None:
    """A name that is gone raises; everything is put back."""
    from importlib import import_module

    owners = []
    for name in (name for names in GROUPS.values() for name in names):
        module, _, path = name.partition(":")
        owner = import_module(module)
        for one in path.split(".")[:-1]:
            owner = getattr(owner, one)
        owners.append((owner, path.split(".")[-1], getattr(owner, path.split(".")[-1])))
    try:
        install(Sums())
    finally:
        for owner, last, function in owners:
            setattr(owner, last, function)
    sums = Sums()
    inner = sums.timed("inner", lambda: 1)
    assert sums.timed("outer", lambda: inner() + 1)() == 2
    assert set(sums.seconds) == {"outer"}


def test_a_measurement_that_cannot_be_made_here_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.benchmarks.suite.is_installed", lambda: False)
    [found] = rows_of("whole-envpool", Bench(tmp_path, 1, True))
    assert found.skipped
    assert {"whole-lean", "idle-envpool", "start-lean", "gradient", "noise", "cartpole"} <= set(
        MEASURES
    )


def test_a_generation_of_the_ring_can_be_timed() -> None:
    assert ring_seconds(2) > 0
