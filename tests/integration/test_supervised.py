"""What a supervisor starts again and again with the same words: it begins the run, goes on with it,
and knows when to leave it alone.
"""

from __future__ import annotations

import signal
import sys

import redis

from tests.integration.processes import (
    BIN,
    CARTPOLE,
    WALKER,
    Processes,
    Seen,
    Started,
    flags,
    quiet_digest,
    wait_for,
)

ENDLESS = {**CARTPOLE, "generations": 100_000}


def supervised(processes: Processes, url: str, *words: object) -> Started:
    return processes.start(
        sys.executable, "-m", "master.cli.supervised", "--json", "--redis-url", url, *words
    )


def test_killed_and_started_again_with_the_same_words_it_ends_with_the_parameters_of_a_quiet_run(
    valkey_url: str, redis_client: redis.Redis, processes: Processes
) -> None:
    words = ("--run", "walk", *flags(WALKER))
    seen = Seen(redis_client, "walk")
    processes.worker(valkey_url)
    first = supervised(processes, valkey_url, *words)
    wait_for(lambda: seen.generation() >= 2, "two generations")
    first.signal(signal.SIGKILL)
    first.process.wait(20)
    second = supervised(processes, valkey_url, *words)
    assert second.wait() == 0, second.said()
    assert second.events("summary")[-1]["digest"] == quiet_digest(WALKER)
    again = supervised(processes, valkey_url, *words)
    assert again.wait() == 0, again.said()
    assert again.events("summary")[-1]["digest"] == quiet_digest(WALKER), (
        "a run that has ended stays as it is"
    )


def test_a_run_that_a_person_stopped_is_left_alone_and_one_whose_process_was_told_to_end_is_not(
    valkey_url: str, redis_client: redis.Redis, processes: Processes
) -> None:
    seen = Seen(redis_client, "walk")
    processes.worker(valkey_url)
    for end, code in (("signal", 130), ("person", 0)):
        run = supervised(processes, valkey_url, "--run", "walk", *flags(ENDLESS))
        before = seen.generation()
        wait_for(lambda before=before: seen.generation() > before, "a generation")  # type: ignore[misc]
        if end == "signal":
            run.signal(signal.SIGTERM)
        else:
            assert (
                processes.start(
                    BIN / "es-master", "--stop", "walk", "--redis-url", valkey_url
                ).wait()
                == 0
            )
        assert run.wait() == code, run.said()


def test_a_run_without_a_name_is_refused_in_one_sentence(
    valkey_url: str, processes: Processes
) -> None:
    run = supervised(processes, valkey_url, *flags(CARTPOLE))
    assert run.wait() == 2 and "give --run RUN" in run.said()
