"""What a run says of itself: to people on a terminal, in a log, to programs, and into
metrics.jsonl.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from es_queue.config.run_config import RunConfig
from master.display.log_view import SafeStream
from master.display.notes import LOGGER, NoteHandler
from master.display.reporter import EQUAL_RETURNS_HINT, Reporter, make_view

WALKER = RunConfig(env="BipedalWalker-v3", seed=7)
ABOUT = {
    "redis": "redis://host:6379",
    "watch": "es-status some-run",
    "join": "rq worker --url unix:///somewhere",
}


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def record(generation: int, **figures: Any) -> dict[str, Any]:
    return {
        "generation": generation,
        "return_mean": -92.34,
        "return_std": 10.0,
        "return_max": 3.0,
        "cut_fraction": 0.0,
        "env_steps": 1000 * (generation + 1),
        "steps_per_second": 4321.0,
        "workers": 8,
        "eta": None,
        "eval_mean": None,
        "eval_std": None,
        "eval_best": None,
        **figures,
    }


SUMMARY = {
    "state": "finished",
    "run": "some-run",
    "run_dir": "runs/some-run",
    "digest": "ab" * 16,
    "generation": 12,
    "env_steps": 1_234_567,
    "eval_steps": 230_000,
    "episodes": 1536,
    "seconds": 720.0,
    "eval_mean": 302.44,
    "eval_std": 3.1,
    "eval_min": 290.0,
    "eval_episodes": 100,
    "confirm_mean": None,
    "best_checkpoint": "runs/some-run/best.npz",
    "last_checkpoint": "runs/some-run/last.npz",
}


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., tuple[Reporter, io.StringIO, Clock]]:
    def make(
        stream: io.StringIO | None = None, config: RunConfig = WALKER, **flags: bool
    ) -> tuple[Reporter, io.StringIO, Clock]:
        out, clock = stream if stream is not None else io.StringIO(), Clock()
        view = make_view(SafeStream(out), "some-run", config, clock=clock, **flags)
        reporter = Reporter(tmp_path, view, clock=clock)
        LOGGER.addHandler(NoteHandler(reporter.note))
        return reporter, out, clock

    return make


# --- a log


def test_the_summary_quotes_the_final_evaluation_and_says_how_to_play_the_policy(
    report: Any,
) -> None:
    it, out, _ = report()
    it.summary(SUMMARY)
    assert "302.4 ± 3.1 over 100 fresh episodes" in out.getvalue()
    assert "1,234,567 in training + 230,000 in evaluations" in out.getvalue()
    assert "es-play runs/some-run/best.npz" in out.getvalue()


# --- notes and hints


def test_ten_generations_of_equal_returns_give_one_hint(report: Any) -> None:
    it, out, _ = report()
    for generation in range(9):
        it.generation(record(generation, return_std=0.0))
    assert EQUAL_RETURNS_HINT not in out.getvalue()
    for generation in range(9, 40):
        it.generation(record(generation, return_std=0.0))
    assert out.getvalue().count(EQUAL_RETURNS_HINT) == 1


def test_training_and_evaluation_have_speeds_of_their_own_after_the_first_generation(
    report: Any,
) -> None:
    it, out, clock = report()
    for generation in range(2):
        clock.now += 5
        it.generation(record(generation, eval_steps_per_second=210.0, eta=60))
    first, second = out.getvalue().splitlines()[-2:]
    assert "steps/s" not in first and " left" not in first, "workers were still starting"
    assert "training 4,321 + evaluation 210 steps/s" in second and "60 s left" in second


def test_a_long_note_on_a_terminal_breaks_between_words_unless_it_has_a_command(
    monkeypatch: pytest.MonkeyPatch, report: Any
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    _, out, _ = report(Terminal())
    words = " ".join(f"word{number}" for number in range(30))
    LOGGER.warning(words)
    LOGGER.warning(f"{words}: es-master --resume run")
    *lines, command = out.getvalue().splitlines()
    assert " ".join(lines) == words and all(len(line) <= 60 for line in lines)
    assert command == f"{words}: es-master --resume run"


def test_a_note_cannot_steer_a_terminal(report: Any) -> None:
    _, out, _ = report()
    LOGGER.warning("host \x1b[2J\x9b31m\u202eevil\nsecond line [bold]")
    assert out.getvalue() == "host \\x1b[2J\\x9b31m\\u202eevil\\nsecond line [bold]\n"


def test_quiet_leaves_warnings_and_the_summary(report: Any) -> None:
    it, out, _ = report(quiet=True)
    it.started(ABOUT)
    it.generation(record(0))
    assert out.getvalue() == ""
    LOGGER.warning("a warning")
    it.summary(SUMMARY)
    assert out.getvalue().startswith("a warning\nrun some-run finished")


# --- terminals


def live_screen(monkeypatch: pytest.MonkeyPatch, report: Any, columns: int) -> str:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "40")
    it, out, clock = report(
        Terminal(), RunConfig(env="BipedalWalker-v3", strategy="snes", max_steps=20_000_000)
    )
    it.live({"workers": 0, "answered": 0, "slots": 65})
    for generation in range(3):
        clock.now += 1
        it.generation(
            record(
                generation,
                cut_fraction=0.2,
                eval_mean=-90.0 + generation,
                eval_best=-88.0,
                centre_rank=0.61,
                centre_return=-80.5,
                eta=600,
                target=300.0,
                recovered=2,
                refused=0,
                late=3,
            )
        )
    clock.now += 1
    it.live({"workers": 8, "answered": 20, "slots": 65})
    LOGGER.warning("host \x1b[2J [bold]")
    it.close()
    return out.getvalue()


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_terminal_shows_a_panel_that_never_exceeds_its_width(
    monkeypatch: pytest.MonkeyPatch, report: Any, columns: int
) -> None:
    screen = live_screen(monkeypatch, report, columns)
    last = "".join(part for part in screen[screen.rindex("╭") :])
    plain = [line for line in strip_codes(last).split("\n") if line[:1] in "╭│╰"]
    assert columns < 80 or "-80.5 in one episode, fitter than 61 % of the perturbed" in last
    assert len(plain) > 8 and all(len(line.strip("\r")) <= columns - len("^C") for line in plain)
    assert "host \\x1b[2J [bold]" in screen


def test_a_terminal_shows_what_a_person_asks_first(
    monkeypatch: pytest.MonkeyPatch, report: Any
) -> None:
    screen = strip_codes(live_screen(monkeypatch, report, 120))
    assert "none, waiting for one to join" in screen
    last = screen[screen.rindex("╭") :]
    for text in (
        "some-run · BipedalWalker-v3 · snes, linear",
        "3,000 of 20.00 M",
        "20 % of episodes cut short",
        "-88.0, best -88.0, in generation 2, target 300.0",
        "▁▅█  -90.0 to -88.0",
        "2 blocks recovered, 3 late",
        "fitter than 61 %",
        "20 of 65 results",
        "about 10 min left",
        "near 500,000 steps",
    ):
        assert text in last


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch, report: Any) -> None:
    monkeypatch.setenv("TERM", "dumb")
    it, out, _ = report(Terminal())
    it.generation(record(0))
    assert "\x1b" not in out.getvalue() and "generation 0" in out.getvalue()


def strip_codes(text: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
