"""The doctor's checks of RQ's workers, of a run, and of the run's workers."""

from __future__ import annotations

import re
from typing import Any

from master.doctor.finding import FAILED, OK, WARNING, Finding
from master.doctor.run import (
    QueueState,
    RunCheckInput,
    check_listening,
    check_run,
    check_suspended,
)
from master.status.redis_reader import RunSummary
from tests.cases import each_case

HERE = (
    "es-queue 0.1.0, python 3.11.7, numpy 2.4.6, redis 8.0, rq 2.12.0, gymnasium 1.4.0, msgpack 1.1"
)
NOISE = "ab" * 16
SOUND = {
    "host": "a",
    "numerics": "1" * 32,
    "versions": HERE,
    "box2d": "box2d 2.3.10",
    "threads": "1",
    "noise": NOISE,
    "packages": "/venv",
}


def run(
    *workers: dict[str, str],
    state: str = "running",
    leased: bool = True,
    here: str = HERE,
    progress: dict[str, str] | None = None,
) -> dict[str, Finding]:
    """What is found of a run whose workers differ from a sound one in what is given."""
    seen = RunSummary(
        "walker-1",
        "redis://host",
        "es-master --resume walker-1",
        900.0,
        leased,
        {"state": state, "why": "it broke", **(progress or {})},
    )
    fleet = {
        f"h-{k}-abcdef": {name: value for name, value in {**SOUND, **one}.items() if value != "-"}
        for k, one in enumerate(workers)
    }
    return {one.name: one for one in check_run(RunCheckInput(seen, fleet, here, NOISE))}


def test_an_idle_fleet_is_named_with_its_cure() -> None:
    progress = {"workers": "60", "busy": "12.1", "scale": "1", "training_slots": "64"}
    idle = run({}, progress=progress)["idle"]
    assert idle.text == "12 of 60 workers are busy on average"
    assert idle.fix == "`--scale 8` would use them"
    assert "idle" not in run({}, progress={**progress, "busy": "50"})


@each_case(
    ("workers", "name", "state", "words"),
    [
        (
            [{}, {"host": "b", "numerics": "2" * 32}],
            "fingerprint",
            WARNING,
            ["11111111… on a", "22222222… on b", "mixed fleet"],
        ),
        (
            [{"host": "b", "versions": HERE.replace("numpy 2.4.6", "numpy 2.3.1")}],
            "fleet versions",
            WARNING,
            ["numpy 2.3.1 (here 2.4.6) on b"],
        ),
        (
            [{"host": "b", "versions": HERE.replace("0.1.0", "0.2.0")}],
            "fleet versions",
            WARNING,
            ["es-queue 0.2.0 (here 0.1.0) on b"],
        ),
        (
            [{"host": "b", "versions": "-"}],
            "fleet versions",
            WARNING,
            ["not reported by workers on b"],
        ),
        ([{}, {"packages": "/other"}], "fleet folders", WARNING, ["/other and /venv"]),
        ([{"packages": "/venv and /x"}], "fleet folders", WARNING, ["/venv and /x"]),
        ([{}, {"host": "b", "packages": "/other"}], "fleet folders", OK, ["/other on b"]),
        ([{"threads": "8", "host": "b"}], "threads", WARNING, ["several threads on b"]),
        ([{"noise": "c" * 32, "host": "b"}], "fleet noise", FAILED, ["on b"]),
        ([{"box2d": "box2d 2.3.10 and box2d-py 2.3.5", "host": "b"}], "box2d", WARNING, ["on b"]),
        (
            [{"refuses": "Refusal: noise digest", "host": "b"}],
            "workers",
            FAILED,
            ["0 joined, 1 cannot", "b: Refusal"],
        ),
        (
            [{"refuses": "Refusal: noise digest", "host": "b"}, {}],
            "workers",
            WARNING,
            ["1 joined, 1 cannot"],
        ),
        ([], "workers", WARNING, ["no worker serves walker-1"]),
    ],
)
def test_what_is_not_well_with_workers_is_told_with_their_hosts(
    workers: list[dict[str, str]], name: str, state: str, words: list[str]
) -> None:
    one = run(*workers)[name]
    assert one.state == state and all(word in one.text for word in words), one
    assert bool(one.fix) == (state != OK)


def test_hostile_texts_of_workers_cannot_reach_the_terminal() -> None:
    hostile = dict.fromkeys([*SOUND, "refuses"], "\x1b[2J\n and \u202e" * 20)
    for one in run(hostile, {}, here="\x1b[2J").values():
        assert (
            not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", one.text + one.fix)
            and "\n" not in one.text
        )


# --- the queue


def queue(**more: Any) -> QueueState:
    return QueueState("es", "redis://host:6379", **more)


def test_a_queue_without_a_worker_comes_with_the_line_that_starts_one() -> None:
    one = check_listening(queue(elsewhere=["other,es-2", "other"]), needed=True)
    assert one.state == FAILED and re.search(
        r"\n(\S*/)?rq worker --url redis://host:6379 es$", one.fix
    )
    assert "2 listen on es-2, other" in one.text
    assert check_listening(queue(), needed=False).state == WARNING


def test_a_url_with_a_secret_stands_on_no_command_line() -> None:
    look = QueueState("es", "redis://:***@host:6379", secret=True, suspended=True)
    for fix in (check_listening(look, needed=True).fix, check_suspended(look).fix):
        assert "RQ_REDIS_URL" in fix and "***" not in fix and "--url" not in fix
