"""Forged fitness: strategies learn from it, so it is tied to the return of the same episodes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from es_queue.environments.factory import describe
from es_queue.environments.interface import EnvironmentRequest
from es_queue.environments.spaces import EnvironmentSpec
from es_queue.protocol.messages import CENTRE, EVAL, TRAIN, SlotResult
from master.collect.answer_check import ResultBounds, ResultShape
from master.collect.ledger import AnswerChecker
from tests.abuse.cluster import cluster_of
from tests.abuse.lying_strangely import LIE
from tests.integration.processes import CARTPOLE, Processes, quiet_digest
from tests.ring import quick_config, run_ring
from tests.unit.master.collect.test_ledger import CONFIG, OBSERVED, PLAIN, result

ROOT = Path(__file__).resolve().parents[2]
#: Returns of the individuals of one slot, after ten steps each.
RETURN, STEPS = 1.0, 10


def accepted(
    fitness: float,
    kind: str = TRAIN,
    spec: EnvironmentSpec | None = None,
    by_sign: bool = False,
    **settings: Any,
) -> str:
    config = dataclasses.replace(CONFIG, **settings)
    most = {TRAIN: 12, CENTRE: 1, EVAL: 5}
    expectations = AnswerChecker(
        config, 4, ResultShape(100, 2, OBSERVED), most, ResultBounds(spec=spec, by_sign=by_sign)
    )
    honest = result(PLAIN[0] if kind == TRAIN else 0, kind, RETURN)
    return expectations.refusal(
        kind, dataclasses.replace(honest, fitness=(fitness,) * len(honest.fitness))
    )


@pytest.mark.parametrize("kind", [TRAIN, CENTRE, EVAL])
def test_fitness_is_the_return_if_no_setting_changes_rewards(kind: str) -> None:
    assert accepted(RETURN, kind) == "" and accepted(RETURN + 1e-9, kind) == ""
    for false in (RETURN + 0.01, 0.0, -RETURN, 1e99, -1e99):
        assert accepted(false, kind) == "wrong-fitness"


@pytest.mark.parametrize("settings", [{"by_sign": True}, {"reward_clip": True}])
def test_fitness_by_sign_is_within_the_steps(settings: dict[str, Any]) -> None:
    for honest in (-STEPS, -1, 0, STEPS):
        assert accepted(honest, **settings) == ""
    for false in (-STEPS - 1, STEPS + 1, 1e99, -1e99):
        assert accepted(false, **settings) == "wrong-fitness"
    assert accepted(STEPS, EVAL, **settings) == "wrong-fitness", "evaluation counts rewards"


def test_a_reward_shift_moves_fitness_by_itself_for_each_step() -> None:
    assert accepted(RETURN - 0.3 * STEPS, reward_shift=0.3) == ""
    for false in (RETURN, RETURN - 0.3, 1e99, -1e99):
        assert accepted(false, reward_shift=0.3) == "wrong-fitness"


def test_a_reward_floor_bounds_fitness_from_below_and_declared_rewards_from_above() -> None:
    for honest in (RETURN, RETURN + 5):
        assert accepted(honest, reward_floor="-1") == ""
    assert accepted(0.9, reward_floor="-1") == "wrong-fitness", "a floor takes nothing away"
    assert accepted(RETURN, reward_floor="0.5") == "wrong-fitness", "less than the floor's sum"
    spec = dataclasses.replace(describe(EnvironmentRequest("CartPole-v1")), highest_reward=1.0)
    assert accepted(STEPS, spec=spec, reward_floor="-1") == ""
    assert accepted(STEPS + 0.1, spec=spec, reward_floor="-1") == "wrong-fitness"
    shifted = {"reward_floor": "-1", "reward_shift": 0.5}
    assert accepted(STEPS / 2, spec=spec, **shifted) == ""
    assert accepted(STEPS / 2 + 0.1, spec=spec, **shifted) == "wrong-fitness"


@pytest.mark.parametrize(
    "settings",
    [
        {"episodes": 3},
        {"patience": "3,0.5", "episodes": 2},
        {"stall": "2:0.05:3"},
        {"reward_shift": 0.1, "episodes": 3},
        {"reward_floor": "-0.05"},
        {"reward_shift": 0.3, "reward_floor": "-0.2", "patience": "5,0"},
        {"reward_clip": True, "episodes": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_honest_results_are_accepted(
    env: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    said, judge = list[str](), AnswerChecker.refusal

    def accepts(self: AnswerChecker, kind: str, one: SlotResult) -> str:
        said.append(judge(self, kind, one))
        return said[-1]

    monkeypatch.setattr(AnswerChecker, "refusal", accepts)
    if env == "Pendulum-v1" and "patience" in settings:  # it wants positive rewards
        settings = {**settings, "reward_shift": -20.0}
    few = {"generations": 1, "population": 8, "step_limit": "60", "final_episodes": 1}
    run_ring(quick_config(env=env, strategy="ars", **few, **settings))
    assert said and set(said) == {""}


@pytest.mark.parametrize(
    "settings",
    [{"strategy": "ars"}, {"strategy": "openai_es"}, {"strategy": "openai_es", "shaping": "sign"}],
    ids=lambda one: " ".join(one.values()),
)
def test_a_run_does_not_learn_from_a_fitness_of_1e99(
    settings: dict[str, Any], tmp_path: Path, processes: Processes
) -> None:
    values = {**CARTPOLE, "generations": 5, **settings, "block": 1}
    with cluster_of(tmp_path, processes) as cluster:
        bad = processes.start(
            processes.rq,
            "worker",
            "fit",
            "--name",
            "liar",
            "-w",
            "tests.abuse.lying_strangely.Worker",
            "--path",
            ROOT,
            RQ_REDIS_URL=cluster.url("worker"),
            **{LIE: "fitness"},
        )
        master = cluster.master("fit", values)
        cluster.seen("fit").joined(bad)
        cluster.worker("fit")
        assert master.wait(60) == 0, master.said()
    assert master.events("summary")[-1]["digest"] == quiet_digest(values)
