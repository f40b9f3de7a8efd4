"""The generation loop over the in-memory ring: the same parameters at any size of cluster, and
every way to end.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import master.fleet.idle_monitor as idle_monitor
import master.loop.listeners as module
from es_queue.config.run_config import RunConfig
from es_queue.errors import EnvironmentFailure, FencedError, RunFolderError
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.return_statistics import ReturnStatistics
from es_queue.protocol.messages import CENTRE, EVAL, TRAIN, Block
from es_queue.strategies import STRATEGIES
from master.collect.collector import Interrupted, Unserved
from master.loop import publisher
from master.loop.generation_loop import Loop, format_pace
from master.loop.learner import Learner
from master.loop.listeners import Outcome
from master.loop.publisher import required_slots
from master.loop.state import CLOSING, FINAL, TRAINING, Best, Change, RunState
from master.run.lease import take_lease
from master.run.setup import Setup, prepare_run
from master.storage import checkpoint
from tests.cases import each_case
from tests.memory_channel import MemoryMasterChannel, MemoryServer, MemoryWorkerChannel
from tests.ring import QUICK, Sink, collector_of, make_loop, quick_config, run_ring, workers
from tests.tiny import MOODY, QUAD, eventually

TABLE = NoiseTable.in_memory(2**16)
#: What depends on when and by whom a generation was worked.
CHANGING = (
    "publication",
    "workers",
    "eta",
    "steps_per_second",
    "late",
    "duplicate",
    "reissued",
    "refused",
    "recovered",
    "lost_steps",
)


def lively(strategy: str, **values: Any) -> RunConfig:
    """Everything on that could make the order of answers show: growth, an adaptive limit,
    statistics, evaluations.
    """
    plain = {
        "strategy": strategy,
        "population": 8,
        "population_max": 40,
        "min_steps": 300,
        "step_limit": "adaptive:12,0.4,1.5",
        "eval_every": 2,
        "eval_episodes": 3,
        "eval_step_limit": 30,
        "final_episodes": 4,
        "generations": 5,
        "target_reward": "none",
        "noise_size": TABLE.size,
    }
    plain |= {"candidates": 3, "elite_episodes": 4} if strategy in ("ga", "random_search") else {}
    plain |= {"truncation": 4} if strategy == "ga" else {}
    plain |= {"cells": (2,)} if strategy == "map_elites" else {}
    plain |= (
        {"members": 3, "neighbours": 2, "behaviour_episodes": 2} if strategy == "novelty" else {}
    )
    return quick_config(**{**plain, **values})


#: What brings Quad to its best return within a few generations.
QUICKLY = {
    "strategy": "ars",
    "learning_rate": 0.1,
    "sigma": 0.2,
    "obs_norm": False,
    "target_reward": "-1",
    "generations": 60,
}


def tiny(**values: Any) -> RunConfig:
    plain = {
        "env": QUAD,
        "strategy": "pgpe",
        "population": 8,
        "eval_every": 3,
        "eval_episodes": 4,
        "final_episodes": 6,
        "target_reward": "none",
    }
    return quick_config(**{**plain, "noise_size": TABLE.size, **values})


@dataclass
class Saved:
    """A checkpoints folder that keeps everything."""

    all: list[tuple[int, bytes]] = field(default_factory=list)
    best: list[bytes] = field(default_factory=list)

    def save(self, generation: int, data: bytes) -> Path:
        self.all.append((generation, data))
        return Path("nowhere")

    def is_best_stored(self, best: Best) -> bool:
        return False

    def is_snapshot(self, generation: int) -> bool:
        return False

    def save_best(self, data: bytes) -> Path:
        self.best.append(data)
        return Path("nowhere")


@dataclass
class Run:
    """A run's fixed parts over one memory server; ``play`` trains with so many worker threads."""

    config: RunConfig
    server: MemoryServer = field(default_factory=MemoryServer)
    sink: Sink = field(default_factory=Sink)
    saved: Any = field(default_factory=Saved)

    def __post_init__(self) -> None:
        self.setup: Setup = prepare_run(self.config, table=TABLE)

    def loop(self, **more: Any) -> Loop:
        return make_loop(self.setup, self.server, self.sink, self.saved, **more)

    def play(
        self, count: int = 1, state: RunState | None = None, adopted: str | None = None, **more: Any
    ) -> Outcome:
        loop = self.loop(**more)
        with workers(self.server, self.setup.config, TABLE, count):
            return loop.run(state or self.setup.initial_state(), adopted)

    def figures(self) -> list[dict[str, Any]]:
        """What people see of each generation, less what may differ."""
        return [
            {
                name: value
                for name, value in record.items()
                if name not in CHANGING and not name.startswith("seconds")
            }
            for record in self.sink.records
        ]


def same(one: Outcome, other: Outcome) -> bool:
    lasting = [
        replace(
            each.state.counters,
            seconds=0,
            late=0,
            duplicate=0,
            reissued=0,
            refused=0,
            recovered=0,
            lost_steps=0,
        )
        for each in (one, other)
    ]
    best = (
        one.best.parameters.tobytes() == other.best.parameters.tobytes()
        and one.best.std.tobytes() == other.best.std.tobytes()
    )
    return best and (one.digest, one.evaluation, lasting[0]) == (
        other.digest,
        other.evaluation,
        lasting[1],
    )


# --- the same parameters at any size of cluster


@each_case("strategy", list(STRATEGIES))
def test_the_result_is_the_same_for_any_workers_and_blocks(strategy: str) -> None:
    quiet = Run(
        lively(strategy, seed=16)
    )  # of a seed that brings all of what the next lines ask for
    expected = quiet.play()
    shown = quiet.figures()
    assert len({record["population"] for record in shown if record["population"]}) > 1  # it grew
    assert len({record["step_limit"] for record in shown}) > 1  # it adapted
    assert expected.state.counters.surplus_steps > 0
    for count, block in ((2, 1), (3, 3), (2, 7)):
        other = Run(lively(strategy, seed=16, block=block))
        assert same(other.play(count), expected)
        assert other.figures() == shown


@each_case(("interactions", "reached"), [(400, True), (5000, False)])
def test_the_population_of_pgpe_grows_until_a_number_of_interactions_or_to_its_largest(
    interactions: int, reached: bool
) -> None:
    run = Run(
        lively("pgpe", generations=3, step_limit="40", population_max=24, min_steps=interactions)
    )
    run.play()
    grown = [(record["population"], record["steps_generation"]) for record in run.sink.records[:-1]]
    if reached:  # by the last pair and not before
        assert all(
            8 < population < 24 and 0 <= steps - interactions < 2 * 40
            for population, steps in grown
        )
    else:
        assert {population for population, _ in grown} == {24}


def test_the_result_is_the_same_with_several_episodes_each() -> None:
    config = tiny(generations=3, episodes=3, env_seeds="slot", action_noise=0.1)
    assert same(Run(replace(config, block=1)).play(3), Run(config).play())


def test_another_seed_gives_another_run() -> None:
    assert Run(tiny(generations=1)).play().digest != Run(tiny(generations=1, seed=4)).play().digest


# --- ends


def test_a_run_ends_after_its_generations_with_an_evaluation_of_the_last() -> None:
    run = Run(tiny(generations=4))
    ended = run.play()
    assert (ended.state.stage, ended.state.reason, ended.state.generation) == (
        FINAL,
        "generations",
        4,
    )
    evaluated = [
        record["generation"] for record in run.sink.records if record["eval_mean"] is not None
    ]
    assert evaluated == [0, 3, 4] and run.sink.records[-1]["population"] == 0
    for name in ("sigma", "learning_rate"):
        assert all(record[name] is not None for record in run.sink.records), "also of the last"
    assert ended.best.eval_mean == max(
        record["eval_mean"] for record in run.sink.records if record["eval_mean"] is not None
    )
    assert ended.evaluation is not None and ended.evaluation.count == 6


def test_evaluations_are_slots_of_a_generation_like_any_other_and_come_first() -> None:
    setup = prepare_run(tiny(eval_every=3), table=TABLE)
    state = setup.initial_state()
    required = required_slots(state, setup.learner)
    assert list(required) == [EVAL, CENTRE, TRAIN]
    assert required[EVAL] == setup.config.eval_episodes
    assert list(required_slots(replace(state, generation=1), setup.learner)) == [CENTRE, TRAIN]


def test_a_run_ends_after_its_steps() -> None:
    ended = Run(tiny(max_steps=100)).play()  # a generation has 40
    assert (ended.state.reason, ended.state.generation, ended.state.counters.env_steps) == (
        "max_steps",
        3,
        120,
    )
    assert ended.state.counters.eval_steps == 5 * (
        3 + 2 * 4
    )  # the centre, and the evaluations of generation 0 and 3


def test_a_run_ends_when_the_caller_says_so() -> None:
    heard: list[Any] = []
    ended = Run(tiny()).play(
        keep_going=lambda record: (heard.append(record["generation"]), len(heard) < 2)[1]
    )
    assert heard == [0, 1] and (ended.state.reason, ended.state.generation) == (
        "stopped by the caller",
        2,
    )


def test_without_evaluations_the_last_parameters_are_the_result() -> None:
    run = Run(tiny(generations=2, eval_every=0, final_episodes=0))
    ended = run.play()
    assert np.array_equal(ended.best.parameters, ended.state.strategy["parameters"])
    assert (ended.evaluation, ended.best.generation) == (None, 2)


def test_the_final_episodes_are_played_by_the_best_and_repeat_to_the_last_digit() -> None:
    wild = Run(
        tiny(generations=3, learning_rate=50.0)
    ).play()  # so wild that the start stays the best
    assert (
        wild.best.generation == 0 and wild.evaluation is not None and wild.evaluation.mean == -6.25
    )
    run = Run(tiny(**{**QUICKLY, "target_reward": "none", "generations": 9}))
    ended = run.play()
    assert ended.best.generation > 0 and ended.evaluation is not None and ended.evaluation.mean > -3
    again = Run(run.config).play(2, ended.state)
    assert again.evaluation == ended.evaluation


def test_reaching_the_target_is_confirmed_on_fresh_episodes_and_ends_with_those_parameters() -> (
    None
):
    run = Run(tiny(**QUICKLY))
    ended = run.play()
    last = run.sink.records[-1]
    assert (ended.state.reason, ended.state.stage) == ("target", FINAL)
    assert (
        min(last["eval_mean"], last["confirm_mean"]) >= -1
        and last["eval_mean"] != last["confirm_mean"]
    )
    assert (
        ended.best.confirmed
        and ended.best.generation == ended.state.generation == last["generation"]
    )
    assert np.array_equal(ended.best.parameters, ended.state.strategy["parameters"])
    assert last["digest"] == ended.digest  # of what was published, and not learnt from afterwards
    assert same(Run(replace(run.config, block=1)).play(2), ended)


def test_more_evaluations_move_neither_the_end_nor_the_digest() -> None:
    sparse = Run(tiny(**QUICKLY, eval_every=8))
    dense = Run(tiny(**QUICKLY, eval_every=1, target_every=8))
    ended, other = sparse.play(), dense.play()
    assert (ended.digest, ended.state.generation) == (other.digest, other.state.generation)
    evaluated = [record for record in dense.sink.records if record["eval_mean"] is not None]
    assert len(evaluated) == ended.state.generation + 1
    assert any(record["eval_mean"] >= -1 for record in evaluated[:-1])  # not compared there


def test_a_target_that_fresh_episodes_do_not_confirm_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, tried = Learner.is_target_passed, []

    def passes(self: Learner, figures: ReturnStatistics | None) -> bool:
        if figures is not None and figures.count == 30:
            tried.append(figures)
            return len(set(map(id, tried))) > 1 and real(self, figures)
        return real(self, figures)

    monkeypatch.setattr(Learner, "is_target_passed", passes)
    run = Run(tiny(**QUICKLY, confirm_episodes=30))
    ended = run.play()
    confirmed = [
        record["generation"] for record in run.sink.records if record["confirm_mean"] is not None
    ]
    assert (
        len(confirmed) == 2
        and ended.state.reason == "target"
        and ended.best.generation == confirmed[1]
    )


# --- going on


def test_going_on_from_any_checkpoint_gives_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_SECONDS_BETWEEN_SAVES", 0.0)
    for strategy in STRATEGIES:
        quiet = Run(lively(strategy, generations=4))
        expected = quiet.play(2)
        states = [checkpoint.decode(data) for _, data in quiet.saved.all]
        assert [(state.generation, state.stage) for _, state, _ in states] == [
            (0, "training"),
            (1, "training"),
            (2, "training"),
            (3, "training"),
            (4, CLOSING),
            (4, FINAL),
        ]
        for config, state, _ in states:
            other = Run(config)
            assert same(other.play(1, state), expected)
            assert other.figures() == quiet.figures()[state.generation + (state.stage == FINAL) :]


def test_the_disks_checkpoint_is_written_at_the_start_and_the_end_and_now_and_then() -> None:
    run = Run(tiny(generations=3))
    run.play()
    assert [generation for generation, _ in run.saved.all] == [0, 3, 3]
    assert run.server.checkpoint == run.saved.all[-1][1]
    metas = [
        checkpoint.json.loads(np.load(checkpoint.io.BytesIO(data))["meta"].item())
        for data in run.saved.best
    ]
    assert metas[-1]["evaluation"]["eval_episodes"] == 6 and {
        meta["evaluation"] for meta in metas[:-1]
    } == {None}


def test_a_stopped_run_goes_on_in_the_open_publication_with_what_was_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = Run(lively("pgpe", generations=3)).play()
    run, asked, real = (
        Run(lively("pgpe", generations=3, block=1)),
        threading.Event(),
        MemoryWorkerChannel.answer,
    )

    def answered() -> int:
        return max(
            (
                len(entries) - 1
                for name, entries in run.server.results.items()
                if name.startswith("2.")
            ),
            default=0,
        )

    def answer(self: MemoryWorkerChannel, block: Block, payload: bytes) -> bool:
        if answered() == 2:
            asked.wait(10)
        return real(self, block, payload)

    def ask() -> bool:
        if answered() == 2:
            asked.set()
        return asked.is_set()

    monkeypatch.setattr(MemoryWorkerChannel, "answer", answer)
    with pytest.raises(Interrupted):
        run.play(interrupted=ask)
    run.server.lease = ("", 0.0)
    publication = run.server.progress["publication"]
    state = checkpoint.decode(run.server.checkpoint or b"")[1]
    assert state.generation == 2 and publication.startswith("2.") and answered() >= 2
    assert same(run.play(2, state, publication), expected)


def test_a_second_master_takes_over_and_the_first_writes_nothing_more() -> None:
    expected = Run(tiny(generations=3)).play()
    run = Run(tiny(generations=3))
    fenced: list[BaseException] = []

    def first() -> None:
        try:
            loop.run(run.setup.initial_state())
        except FencedError as error:
            fenced.append(error)

    loop = run.loop()
    thread = threading.Thread(target=first)
    thread.start()
    assert eventually(lambda: run.server.todo)
    state = checkpoint.decode(run.server.checkpoint or b"")[1]
    second = Run(run.config, run.server)
    # It was paused for too long. It renews its lease soon, so nothing slow may come in between.
    run.server.lease = ("", 0.0)
    outcome = second.play(2, state, run.server.progress["publication"])
    thread.join(10)
    assert (
        len(fenced) == 1 and not thread.is_alive() and len(run.sink.records) <= 1
    )  # it may read, but not publish
    assert same(outcome, expected)
    assert take_lease(MemoryMasterChannel(run.server), "third", QUICK, wait=True).startswith("3-")


@each_case("generation", ["0", "1", "3"])
def test_a_redis_that_comes_back_empty_costs_nothing_but_time(
    monkeypatch: pytest.MonkeyPatch, generation: str
) -> None:
    expected = Run(lively("ars", generations=3)).play()
    run, flushed, real = Run(lively("ars", generations=3, block=1)), [], MemoryWorkerChannel.answer

    def answer(self: MemoryWorkerChannel, block: Block, payload: bytes) -> bool:
        with self.server.changed:
            if (
                not flushed
                and block.publication.startswith(f"{generation}.")
                and len(self.server.results.get(block.publication, ())) == 2
            ):
                flushed.append(block)  # the first answer is there, this one comes too late
                self.server.flush()
        return real(self, block, payload)

    monkeypatch.setattr(MemoryWorkerChannel, "answer", answer)
    assert same(run.play(2), expected)
    assert flushed and any("published again" in note for note in run.sink.notes)


def test_progress_shows_the_digest_of_the_parameters_that_are_published() -> None:
    run = Run(tiny(generations=3, eval_every=0, final_episodes=0))
    ended = run.play()
    assert run.server.progress["digest"] == ended.digest == run.sink.records[-1]["digest"]
    assert [entry["generation"] for entry in run.server.history] == ["0", "1", "2", "3"]


# --- failures


def test_slots_that_fail_everywhere_are_the_same_for_everybody_and_the_run_goes_on() -> None:
    config = tiny(
        env=MOODY, env_arg=(("fault", "some"),), generations=4, eval_every=0, final_episodes=0
    )
    quiet = Run(config)
    expected = quiet.play()
    population = [record["population"] for record in quiet.sink.records[:-1]]
    assert min(population) < 8 and max(population) > 0
    for count, block in ((2, 1), (3, 2)):
        other = Run(replace(config, block=block))
        assert same(other.play(count), expected) and other.figures() == quiet.figures()
    assert quiet.server.errors and "fell over" in quiet.server.errors[0]
    assert sum(record["failed"] for record in quiet.sink.records) > 0
    assert any(
        "failed on every worker and count as the worst" in note and "fell over" in note
        for note in quiet.sink.notes
    )


def test_a_run_whose_every_episode_fails_stops_with_the_reason() -> None:
    config = tiny(env=MOODY, env_arg=(("fault", "all"),), eval_every=0)
    with pytest.raises(
        EnvironmentFailure, match=r"every episode of a generation failed; the last was.*fell over"
    ):
        Run(config).play(2)


def test_where_all_had_one_environment_seed_the_sentence_says_how_each_gets_its_own() -> None:
    config = tiny(env=MOODY, env_arg=(("fault", "all"),), eval_every=0, env_seeds="generation")
    with pytest.raises(
        EnvironmentFailure,
        match=(
            r"failed: all of them had the same environment seed; --env-seeds slot gives each "
            r"its own; "
            r"the last was"
        ),
    ):
        Run(config).play(2)


def test_an_evaluation_that_fails_stops_the_run_with_the_reason() -> None:
    config = tiny(env=MOODY, env_arg=(("fault", "some"),), eval_episodes=30)
    with pytest.raises(
        EnvironmentFailure,
        match=(
            r"eval slot \d+ \(generation \d+ of .*, environment seed \d+\) failed 3 times.*fell "
            r"over"
        ),
    ):
        Run(config).play()


def test_patience_that_ends_every_episode_is_refused_after_twenty_generations() -> None:
    run = Run(tiny(patience="2,0", eval_every=0, final_episodes=0))
    with pytest.raises(
        EnvironmentFailure, match="patience 2,0 ended every episode of 20 generations"
    ):
        run.play()
    assert len(run.sink.records) == 20


def test_episodes_that_all_reach_a_step_limit_are_no_fault_of_patience() -> None:
    run = Run(
        tiny(
            patience="4,0",
            reward_shift=-100.0,
            step_limit="3",
            eval_every=0,
            final_episodes=0,
            generations=22,
        )
    )
    assert run.play().state.generation == 22
    assert {record["cut_fraction"] for record in run.sink.records[:-1]} == {1.0}


def test_a_fleet_that_does_not_agree_is_written_down_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LEAST_SECONDS_BETWEEN_SAVES", 0.0)
    run = Run(tiny(generations=3))
    loop = run.loop()
    collector_of(loop).fleet.is_uniform = False
    with workers(run.server, run.setup.config, TABLE, 1):
        assert not loop.run(run.setup.initial_state()).state.reproducible
    state = checkpoint.decode(run.saved.all[1][1])[1]
    assert (state.generation, state.stage) == (1, "training")
    assert not Run(run.config).play(state=state).state.reproducible
    assert Run(run.config).play().state.reproducible


def test_a_folder_that_cannot_be_written_stops_no_training_but_the_end_needs_it() -> None:
    class Full(Saved):
        def save(self, generation: int, data: bytes) -> Path:
            raise RunFolderError("the folder cannot be written: No space left on device")

    run = Run(tiny(generations=3), saved=Full())
    assert same(run.play(), Run(tiny(generations=3)).play())
    assert (
        "the folder cannot be written: No space left on device; training continues and tries again"
        in run.sink.notes
    )

    class Fuller(Full):
        def save_best(self, data: bytes) -> Path:
            raise RunFolderError("no place for the best")

    with pytest.raises(RunFolderError, match="no place for the best"):
        Run(tiny(generations=3), saved=Fuller()).play()


def test_a_run_whose_time_is_up_before_its_first_generation_says_what_to_change() -> None:
    run = Run(tiny(generations=4, max_seconds=0.05))
    loop = run.loop()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(loop.run, run.setup.initial_state())
        assert eventually(lambda: loop.current and loop.current.state.stage == CLOSING)
        with workers(run.server, run.setup.config, TABLE):
            ended.result(30)
    slots = 9
    assert run.sink.notes[0] == (
        f"--max-seconds has passed with 0 of {slots} results of the first generation, so nothing "
        "was learnt: resume the run with more workers or a larger --max-seconds, or begin one with "
        "a smaller --population"
    )
    assert format_pace(12.0, 3, slots) == " (a generation takes about 36 s)"


def test_max_seconds_drops_the_open_generation_and_keeps_the_whole_ones() -> None:
    done = Run(tiny(generations=2)).play()
    state = replace(done.state, stage=TRAINING, reason="")
    run = Run(tiny(generations=4, max_seconds=state.counters.seconds + 0.05))
    loop = run.loop()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(loop.run, state)  # no worker answers until training has ended
        assert eventually(lambda: loop.current and loop.current.state.stage == CLOSING)
        assert loop.current is not None
        dropped = loop.current.state
        with workers(run.server, run.setup.config, TABLE):
            outcome = ended.result(30)
    assert (outcome.state.reason, outcome.state.generation) == ("max_seconds", 2)
    assert dropped.counters.seconds >= run.setup.config.max_seconds, "its time is used up"
    assert outcome.digest == done.digest
    assert run.sink.records[-1]["publication"].startswith("3."), "workers leave the dropped one"
    assert run.sink.notes[0].startswith("--max-seconds has passed: generation 2 is dropped with 0")
    assert not np.isnan(run.sink.records[-1]["eval_mean"]), "the last parameters are evaluated"

    assert all(record["seconds_wait"] >= 0 for record in run.sink.records)

    resumed = replace(outcome.state, stage=TRAINING, reason="")
    assert (
        Run(tiny(generations=4)).play(state=resumed).digest
        == Run(tiny(generations=4)).play().digest
    ), "a dropped generation is played again"


def test_max_seconds_stops_a_run_that_no_worker_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_monitor, "ABSENT_SECONDS", 0.1)
    run = Run(tiny(max_seconds=0.05))
    with pytest.raises(Unserved):
        run.play(count=0)


def test_more_seconds_that_a_person_gives_count_for_the_open_generation() -> None:
    run = Run(tiny(generations=2, max_seconds=0.001))
    loop = run.loop()
    collector_of(loop).inbox.pending_changes.append(Change(1, {"max_seconds": 0.0}))
    with workers(run.server, run.setup.config, TABLE):
        outcome = loop.run(run.setup.initial_state())
    assert (outcome.state.reason, outcome.state.generation) == ("generations", 2)


def test_max_seconds_does_not_count_a_pause() -> None:
    run = Run(tiny(max_seconds=0.3))
    loop = run.loop(interrupted=lambda: collector_of(loop).pauses.seconds > 0.5)
    collector_of(loop).inbox.paused_by = "a person"
    with pytest.raises(Interrupted):
        loop.run(run.setup.initial_state())
    assert loop.current is not None and loop.current.state.stage == TRAINING
    assert loop._totals.seconds(loop.current.state) < collector_of(loop).pauses.seconds


def test_a_checkpoint_that_is_too_large_for_redis_is_only_in_the_runs_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis would close the connection, again and again."""
    config = quick_config(population=4, generations=1, eval_every=0)
    for most, is_stored in ((2**29, True), (1000, False)):
        monkeypatch.setattr(publisher, "REDIS_CHECKPOINT_MOST", most)
        server = MemoryServer()
        run_ring(config, server=server)
        assert (server.checkpoint is not None) is is_stored
