"""How a run fares, from its stored figures alone: healthy, stalled, orphaned, failed or done."""

from __future__ import annotations

from master.status.figures import PROGRESS
from master.status.snapshot import WORKER as UNITS
from master.status.snapshot import Run, clean, judge
from tests.cases import each_case

#: Far from any clock of ours: ages are differences of the master's own times.
NOW = 5_000_000.0
WORKER = {"host": "h", "pid": "1", "generation": "generation 3"}
REFUSING = {"host": "h\x1b", "refuses": "no \x1b[2J noise"}


def run(
    state: str = "running",
    *,
    leased: bool = True,
    quiet: float | None = 0.0,
    configured: bool = True,
    **progress: str,
) -> Run:
    times = {} if quiet is None else {"updated": str(NOW), "answered_at": str(NOW - quiet)}
    figures = clean({"state": state, "workers": "1", **times, **progress}, PROGRESS)
    return Run("r", "redis://h", 1.0, leased, figures=figures, is_configured=configured)


def fares(seen: Run, *workers: dict[str, str], usual: float | None = 1.0) -> Run:
    seen.living = [clean(about, UNITS) for about in workers]
    seen.figures["seconds_wait"] = usual
    return judge(seen)


@each_case(("state", "word"), [("finished", "done"), ("stopped", "done"), ("failed", "failed")])
@each_case("leased", [True, False])
def test_a_run_that_ended_is_done_or_failed_with_its_reason(
    state: str, word: str, leased: bool
) -> None:
    health = fares(run(state, leased=leased, quiet=1e6, why="it \x1bbroke"))
    assert (health.health, health.health_why) == (word, "it \\x1bbroke")


@each_case(
    ("quiet", "usual", "word"),
    [
        (59, 1.0, "healthy"),
        (61, 1.0, "stalled"),
        (99, 10.0, "healthy"),
        (101, 10.0, "stalled"),
        (61, None, "stalled"),
    ],
)
def test_a_run_is_stalled_after_a_minute_and_ten_usual_generations_without_an_answer(
    quiet: float, usual: float | None, word: str
) -> None:
    health = fares(run(quiet=quiet), WORKER, usual=usual)
    assert health.health == word and ("no result counted" in health.health_why) == (
        word == "stalled"
    )


def test_without_a_worker_a_minute_is_enough_and_is_said_from_the_first_second() -> None:
    soon, late = (
        fares(run(quiet=1, workers="0", queue="walk"), usual=100.0),
        fares(run(quiet=61, workers="0"), usual=100.0),
    )
    assert (
        soon.health == "healthy"
        and "no worker has joined" in soon.health_why
        and "queue walk" in soon.health_why
    )
    assert late.health == "stalled" and "no worker has joined" in late.health_why


def test_workers_that_outnumber_the_slots_of_a_generation_are_counted_with_the_cure() -> None:
    for workers, slots, waiting in (
        ("20", "8", "12"),
        ("8", "8", ""),
        ("20", "", ""),
        ("x", "8", ""),
    ):
        health = fares(run(workers=workers, training_slots=slots), WORKER)
        assert health.health == "healthy"
        cure = f"at least {waiting} wait: `--scale 4` gives them work"
        assert (cure in health.health_why) == bool(waiting)


@each_case(
    ("busy", "scale", "why"),
    [
        ("12", "1", "12 of 60 workers are busy on average: `--scale 8` would use them"),
        ("12", "4", "12 of 60 workers are busy on average: `--scale 32` would use them"),
        ("12", "1024", ""),
        ("44", "1", "44 of 60 workers are busy on average: `--scale 2` would use them"),
        ("46", "1", ""),
        ("nan", "1", ""),
    ],
)
def test_workers_that_are_idle_for_a_quarter_of_their_time_are_counted_with_the_cure(
    busy: str, scale: str, why: str
) -> None:
    assert (
        fares(run(workers="60", training_slots="64", busy=busy, scale=scale), WORKER).health_why
        == why
    )


def test_workers_that_all_refuse_are_as_good_as_none_and_are_quoted() -> None:
    health = fares(run(quiet=61, workers="0"), REFUSING, REFUSING, usual=100.0)
    assert (
        health.health == "stalled"
        and "all 2 workers refuse" in health.health_why
        and "no \\x1b[2J noise" in health.health_why
    )
    assert "the only worker refuses" in fares(run(quiet=1, workers="0"), REFUSING).health_why
    assert fares(run(quiet=1), REFUSING, WORKER).health_why == ""
