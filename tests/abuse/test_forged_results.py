"""Results that somebody with the worker's password makes up: they decide nothing, and they expel
nobody.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from es_queue.config.parsing import config_from_json
from es_queue.errors import DecodeError
from es_queue.numerics.slot_plan import CONFIRMATION, EVALUATION, evaluation_seeds
from es_queue.protocol import messages
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.keys import RunKeys
from es_queue.protocol.messages import Answer, SlotResult, publication_generation
from master.storage import checkpoint
from master.storage.checkpoint import Checkpoints
from tests.abuse.servers import BOTH
from tests.abuse.test_least_privilege import Household, guarded
from tests.faults import crashing
from tests.integration.processes import (
    CLOCKS,
    Processes,
    Seen,
    Started,
    clocks_text,
    flags,
    quiet_digest,
    texts,
    wait_for,
)

RUN = "forged"
FORGED = 1e9
STREAMS = {messages.EVAL: EVALUATION, messages.CONFIRM: CONFIRMATION}
TINY: dict[str, Any] = {
    "env": "CartPole-v1",
    "seed": 5,
    "population": 16,
    "step_limit": 60,
    "eval_every": 1,
    "eval_episodes": 3,
    "eval_step_limit": 60,
    "final_episodes": 3,
    "generations": 6,
    "noise_size": 2**18,
}


class Intruder:
    """Holds the worker's password and nothing else."""

    def __init__(self, household: Household) -> None:
        self.client: Any = client_from_url(household.url("worker"))
        self.keys = RunKeys(RUN)

    def publication(self) -> str:
        """The open one."""
        found = self.client.get(self.keys.task)
        return "" if found is None else str(messages.Task.decode(found).publication)

    def enrol(self, worker: str, host: str) -> str:
        """Write what a worker that joined says of itself."""
        numerics = self.client.hget(self.keys.progress, "numerics") or b"0" * 32
        # At once, as a worker does: the master removes ids that have no information from the set.
        pipeline = self.client.pipeline(transaction=True)
        pipeline.hset(
            self.keys.worker(worker),
            mapping={"host": host, "rq_name": host, "pid": "1", "numerics": numerics},
        )
        pipeline.pexpire(self.keys.worker(worker), 600_000)
        pipeline.sadd(self.keys.workers, worker)
        pipeline.execute()
        return worker

    def send(self, answer: Answer) -> None:
        self.client.xadd(
            self.keys.results(answer.publication), {"answer": answer.encode()}, nomkstream=True
        )

    def forge_evaluation(self, worker: str) -> None:
        """Answer the open generation's evaluation, and its confirmation before it is asked for."""
        publication, config = (
            self.publication(),
            config_from_json(self.client.get(self.keys.config)),
        )
        generation = publication_generation(publication)
        for kind, count in (
            (messages.EVAL, config.eval_episodes),
            (messages.CONFIRM, config.confirm_episodes),
        ):
            seeds = evaluation_seeds(config, STREAMS[kind], generation, count).tolist()
            results = tuple(
                SlotResult(slot, -1, seed, (FORGED,), (FORGED,), (60,), (0,), (0,))
                for slot, seed in enumerate(seeds)
            )
            self.send(Answer(publication, kind, worker, 0.1, results))


@pytest.fixture(params=BOTH)
def household(
    request: pytest.FixtureRequest, tmp_path: Path, processes: Processes
) -> Iterator[Household]:
    with guarded(request.param, tmp_path, processes) as one:
        yield one


def refused(seen: Seen) -> dict[str, int]:
    return {
        reason: int(count)
        for reason, count in texts(seen.client.hgetall(seen.keys.refused)).items()
    }


@pytest.mark.parametrize("schedule", ["sync", "async"])
@pytest.mark.parametrize(
    "enrolled", [False, True], ids=["by somebody who never enrolled", "by somebody who enrolled"]
)
def test_a_forged_evaluation_is_not_the_best_and_does_not_end_the_run(
    household: Household, tmp_path: Path, enrolled: bool, schedule: str
) -> None:
    folder = tmp_path / "run"
    master = household.master(
        "--run",
        RUN,
        "--run-dir",
        folder,
        "--workers",
        0,
        "--json",
        "--schedule",
        schedule,
        *flags(TINY),
    )
    intruder = Intruder(household)
    wait_for(intruder.publication, "the first generation is open")
    intruder.forge_evaluation(
        intruder.enrol("stranger-1-aaaaaa", "stranger") if enrolled else "stranger-1-aaaaaa"
    )
    household.worker()
    assert master.wait() == 0, master.said()
    summary = (
        master.events("summary")[-1]
        if master.events("summary")
        else json.loads((folder / "summary.json").read_text())
    )
    seen = Seen(household.client, RUN)
    print(summary["generation"], summary["reason"], refused(seen))
    assert summary["generation"] == TINY["generations"] and summary["reason"] != "target"
    kept = Checkpoints(folder).read_newest()
    assert kept is not None
    best = checkpoint.decode(kept)[1].best
    assert best is not None and best.eval_mean <= TINY["eval_step_limit"], "no policy can have more"
    assert refused(seen)["refuted" if enrolled else "unknown-worker"] >= TINY["eval_episodes"]
    assert schedule == "async" or summary["digest"] == quiet_digest(
        {**TINY, "target_reward": "none"}
    )


def test_a_master_killed_while_its_verifier_plays_verifies_again_when_it_is_resumed(
    household: Household, tmp_path: Path
) -> None:
    values = {**TINY, "target_reward": "none"}
    household.worker()

    def run_of(name: str, *words: object, calls: int = 0) -> Started:
        """calls: at the reading of which of the verifier's replies the master is killed,
        0 for none
        """
        program = (sys.executable, crashing.__file__, "mid-verification", calls)
        return household.processes.start(
            *program,
            *words,
            "--run-dir",
            tmp_path / name,
            "--workers",
            0,
            "--json",
            "--redis-url",
            household.url("master", False),
            "--redis-password-file",
            household.folder / "master.password",
            ES_QUEUE_CLOCKS=clocks_text(CLOCKS),
        )

    def best_of(name: str) -> tuple[int, float, bytes]:
        kept = Checkpoints(tmp_path / name).read_newest()
        assert kept is not None
        best = checkpoint.decode(kept)[1].best
        assert best is not None
        return best.generation, best.eval_mean, best.parameters.tobytes()

    quiet = run_of("quiet", "--run", "quiet", *flags(values))
    assert quiet.wait() == 0, quiet.said()
    seen, opened = Seen(household.client, RUN), []
    for words, calls in ((("--run", RUN, *flags(values)), 2), (("--resume", RUN), 1)):
        killed = run_of(RUN, *words, calls=calls)
        assert killed.wait() == -signal.SIGKILL, killed.said()
        opened.append(seen.generation())
    assert opened[0] == opened[1] > 0, "the resumed master verifies the same evaluation"
    resumed = run_of(RUN, "--resume", RUN)
    assert resumed.wait() == 0, resumed.said()
    assert resumed.events("summary")[-1]["digest"] == quiet_digest(values)
    assert best_of(RUN) == best_of("quiet")


def contradict(intruder: Intruder, seen: Seen, stop: threading.Event, fits: bool) -> None:
    """Answer again, under two invented names, what somebody has answered, with another result, as
    long as the run lasts. fits: whether the fitness is that of the returns.
    """
    names = [
        intruder.enrol(f"invented{number}-1-aaaaa{number}", f"invented{number}")
        for number in range(2)
    ]
    cursor = {"": "0"}
    while not stop.is_set():
        publication = intruder.publication()
        for entry, fields in seen.client.xrange(
            seen.keys.results(publication), f"({cursor.get(publication, '0')}"
        ):
            cursor = {publication: entry.decode()}
            try:
                genuine = Answer.decode(fields.get(b"answer", b""))
            except DecodeError:
                continue
            if genuine.worker in names:
                continue
            results = tuple(
                replace(one, fitness=(7.5,) * len(one.steps))
                if not fits
                else replace(one, fitness=(7.5,) * len(one.steps), returns=(7.5,) * len(one.steps))
                for one in genuine.results
            )
            for name in names:
                intruder.send(replace(genuine, worker=name, results=results))
        stop.wait(0.001)


@pytest.mark.parametrize("fits", [True, False], ids=["believable", "refused"])
def test_second_answers_that_nobody_asked_for_expel_no_honest_worker(
    household: Household, tmp_path: Path, fits: bool
) -> None:
    master = household.master(
        "--run",
        RUN,
        "--run-dir",
        tmp_path / "run",
        "--workers",
        0,
        "--json",
        "--block",
        1,
        "--audit",
        0.2,
        *flags(
            {
                **TINY,
                "generations": 100_000,
                "eval_every": 0,
                "eval_episodes": None,
                "target_reward": "none",
            }
        ),
    )
    seen, stop = Seen(household.client, RUN), threading.Event()
    honest = [household.worker("--name", f"honest-{number}") for number in range(3)]
    for one in honest:
        seen.joined(one)
    intruder = Intruder(household)
    wait_for(intruder.publication, "a generation is open")
    thread = threading.Thread(target=contradict, args=(intruder, seen, stop, fits), daemon=True)
    thread.start()
    try:
        began = seen.generation()
        wait_for(
            lambda: (
                seen.generation() >= began + 30
                or any("honest" in name for _, name in expelled(seen))
            ),
            "the run goes on",
            90,
        )
        print(seen.generation() - began, expelled(seen), refused(seen))
        assert not [name for _, name in expelled(seen) if "honest" in name]
        assert seen.progress()["state"] == "running" and master.process.poll() is None
    finally:
        stop.set()
        thread.join(10)


def expelled(seen: Seen) -> list[list[str]]:
    found: list[list[str]] = json.loads(seen.progress().get("quarantined") or "[]")
    return found


def test_a_registered_worker_that_answers_nothing_does_not_hold_an_audited_run(
    household: Household, tmp_path: Path
) -> None:
    master = household.master(
        "--run",
        RUN,
        "--run-dir",
        tmp_path / "run",
        "--workers",
        0,
        "--json",
        "--audit",
        1.0,
        *flags(
            {
                **TINY,
                "generations": 100_000,
                "eval_every": 0,
                "eval_episodes": None,
                "target_reward": "none",
            }
        ),
    )
    seen = Seen(household.client, RUN)
    seen.joined(household.worker("--name", "honest"))
    wait_for(seen.has_reached(2), "the honest worker answers")
    Intruder(household).enrol("silent-1-aaaaaa", "silent")
    wait_for(lambda: int(seen.progress()["workers"]) == 2, "the master has seen both")
    wait_for(seen.has_reached(seen.generation() + 10), "the generations close", 30)
    assert int(seen.progress()["audited"]) > 0
    assert not expelled(seen) and master.process.poll() is None
