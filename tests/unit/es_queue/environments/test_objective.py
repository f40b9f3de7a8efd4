"""Any function of a vector and a seed, through the same ring as an environment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue.config.run_config import (
    RunConfig,
)
from es_queue.environments.factory import (
    describe,
)
from es_queue.environments.interface import EnvironmentRequest
from es_queue.errors import EnvironmentFailure, UsageError
from es_queue.numerics.noise_table import NoiseTable
from es_queue.policies.actions import ActionMap, Margins
from es_queue.policies.base import ConstantPolicy
from es_queue.policies.saved_policy import load_policy
from es_queue.strategies.map_elites import Archive
from es_queue.user_code import ALLOW
from master.loop.checkpoint import Checkpoints
from master.run.setup import new_run_notes, prepare_run
from master.run.warm_start import make_warm_state
from master.storage.generation_store import GenerationStore
from master.storage.replay import replay_run
from tests.cases import each_case
from tests.memory import Sink, run_ring
from tests.objectives import arm, bowls
from workers import es_play as cli
from workers.heartbeat import EpisodeControl
from workers.player import join

SPHERE, ROSENBROCK = "tests.objectives:sphere", "tests.objectives:rosenbrock"
TABLE = NoiseTable.in_memory(2**14)
ARM: dict[str, Any] = {
    "objective": "tests.objectives:arm",
    "parameters": 6,
    "init": "normal",
    "generations": 6,
    "sigma": 0.3,
    "behaviour_bounds": "-1:1",
    "cells": (10, 10),
    "truncation": 4,
}


def config_of(objective: str = SPHERE, **values: Any) -> RunConfig:
    size = 4 if objective == SPHERE else 2
    plain = {
        "objective": objective,
        "parameters": size,
        "seed": 3,
        "noise_size": TABLE.size,
        "strategy": "snes",
        "population": 16,
        "eval_every": 10,
        "eval_episodes": 2,
        "final_episodes": 2,
    }
    return RunConfig.of({**plain, **values}, "the test")


def test_a_function_that_fails_costs_its_slot_alone() -> None:
    ended, sink = run_ring(
        config_of(
            "tests.objectives:picky",
            population=30,
            generations=4,
            sigma=0.3,
            eval_every=0,
            final_episodes=0,
            strategy="random_search",
            candidates=2,
            elite_episodes=1,
        ),
        2,
    )
    assert ended.state.generation == 4
    assert all(0 < record["failed"] < 30 for record in sink.records[:-1])
    said = " ".join(sink.notes)
    assert "ArithmeticError: no value above" in said or "not a finite number" in said


@each_case(
    ("name", "parameters", "sentence"),
    [
        ("tests.objectives:greedy", 2, r"it must take \(vector, seed\), or \(vector\)"),
        (
            "tests.objectives:strange",
            2,
            "tests.objectives:strange fails with its first vector: TypeError: it returned "
            "NoneType, but must return a number",
        ),
        (
            "tests.objectives:reversed_box",
            2,
            "in variable 1 of tests.objectives:reversed_box, lower is 1 and upper is 0.5: lower",
        ),
        (
            "tests.objectives:nowhere",
            2,
            "in variable 0 of tests.objectives:nowhere, lower is inf and upper is -inf: lower",
        ),
        (
            "tests.objectives:narrow_box",
            2,
            "the bounds 100000000 and 100000016 are too close for float32",
        ),
        (
            "tests.objectives:uneven",
            2,
            r"it returned \[2\] numbers for 1 vectors, but is batched and must return one for each",
        ),
    ],
)
def test_what_is_no_objective_is_refused_in_one_sentence(
    name: str, parameters: int, sentence: str
) -> None:
    with pytest.raises(EnvironmentFailure, match=sentence) as caught:
        describe(EnvironmentRequest(name, parameters=parameters))
    assert "\n" not in str(caught.value)


def test_a_function_that_does_not_repeat_itself_is_refused_by_the_worker() -> None:
    config = prepare_run(config_of("tests.objectives:restless"), table=TABLE).config
    with pytest.raises(
        EnvironmentFailure, match=r"tests.objectives:restless does not repeat itself"
    ):
        join(config, EpisodeControl(), table=TABLE)


BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"env": "X-v0"},
        (
            "env is X-v0 and objective is tests.objectives:sphere: a run has one of them, so "
            "leave the other out"
        ),
    ),
    (
        {"parameters": 0},
        (
            "objective is tests.objectives:sphere, but parameters is 0: set parameters to "
            "the length of its vector"
        ),
    ),
    (
        {"objective": "", "env": "X-v0", "parameters": 4},
        ("parameters is 4, but an environment does not use it: leave it out, or use an objective"),
    ),
    (
        {"backend": "envpool"},
        "backend is envpool, but an objective runs only on lean (in batches) and stock: leave "
        "backend at auto",
    ),
    (
        {"bounds": "0:1,0:2"},
        "bounds is 0:1,0:2, but there are 4 parameters: use one pair, or one for each",
    ),
    (
        {"bounds": "0:1,3:1"},
        "bounds is '0:1,3:1' in the test: 3:1 encloses nothing: write the smaller number first",
    ),
]


@each_case(("values", "sentence"), BAD)
def test_settings_that_an_objective_cannot_have_are_refused(
    values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        config_of(**values)
    assert str(caught.value) == sentence


def test_a_run_begins_where_the_function_says_else_at_zero_or_as_init_says() -> None:
    assert prepare_run(config_of(ROSENBROCK), table=TABLE).first_parameters().tolist() == [-1, 1]
    assert prepare_run(
        config_of(ROSENBROCK, init="zero"), table=TABLE
    ).first_parameters().tolist() == [0, 0]
    assert prepare_run(config_of(), table=TABLE).first_parameters().tolist() == [0] * 4
    drawn = ConstantPolicy(4000).initial(5, "normal")
    assert drawn.dtype == np.float32 and abs(drawn.mean()) < 0.1 and abs(drawn.std() - 1) < 0.1
    assert not np.array_equal(drawn, ConstantPolicy(4000).initial(6, "normal"))


def test_what_was_found_can_be_loaded_played_replayed_and_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = Sink()
    store = GenerationStore("memory", tmp_path, 0)
    ended, _ = run_ring(
        config_of(ROSENBROCK, generations=8, final_episodes=5),
        sink=sink,
        store=store,
        checkpoints=Checkpoints(tmp_path),
    )
    store.log.close()
    best = tmp_path / "checkpoints" / "best.npz"
    saved = load_policy(best)
    assert (
        saved.parameters.tobytes()
        == ended.best.parameters.tobytes()
        == saved.act(np.zeros(1)).tobytes()
    )
    monkeypatch.setenv(ALLOW, "installed")
    assert cli.main([str(best)]) == 6
    assert "use --trust" in capsys.readouterr().err
    assert cli.main([str(best), "--trust"]) == 0
    assert "equal to the recorded evaluation to the last digit" in capsys.readouterr().out
    monkeypatch.setenv(ALLOW, "tests")
    assert (
        replay_run("memory", tmp_path, tmp_path / "noise", sink.notes.append) == 0
        and ended.digest in sink.notes[-1]
    )
    warm = make_warm_state(prepare_run(config_of(ROSENBROCK), table=TABLE), best)
    assert warm.strategy["parameters"].tobytes() == saved.parameters.tobytes()


def test_an_objective_returns_the_behaviour_that_an_archive_is_filled_by() -> None:
    config = config_of(
        **{**{name: ARM[name] for name in ARM if name != "truncation"}, "strategy": "map_elites"}
    )
    outcome, _ = run_ring(config, 2)
    archive = Archive.of(config, outcome.state.strategy)
    assert len(archive) > 8
    for row in range(len(archive)):
        fitness, behaviour = arm(archive.parameters[row])
        assert archive.fitness[row] == fitness
        assert np.array_equal(archive.behaviour[row], behaviour.astype(np.float32))


def test_a_batched_function_gets_many_vectors_at_once_and_gives_the_bits_of_single_ones() -> None:
    bowls.sizes.clear()  # type: ignore[attr-defined]
    together = [
        run_ring(config_of("tests.objectives:bowls", generations=5, sigma=0.5), workers)[0]
        for workers in (1, 3)
    ]
    assert max(bowls.sizes) >= 5  # type: ignore[attr-defined]
    bowls.sizes.clear()  # type: ignore[attr-defined]
    alone = config_of("tests.objectives:bowls", generations=5, sigma=0.5, backend="stock")
    assert run_ring(alone)[0].digest == together[0].digest == together[1].digest
    assert bowls.sizes == {1}  # type: ignore[attr-defined]


def test_a_batch_that_gives_other_bits_or_raises_is_played_one_by_one_and_said() -> None:
    for name in ("crowded", "narrow"):
        requested = config_of(f"tests.objectives:{name}")
        setup = prepare_run(requested, table=TABLE)
        assert setup.config.backend == "stock" and setup.config.objective == requested.objective
        (note,) = new_run_notes(requested, setup)
        assert note.startswith(f"tests.objectives:{name} gives other bits for many vectors at once")
    requested = config_of("tests.objectives:crowded")
    with pytest.raises(UsageError, match="gives other bits"):
        prepare_run(replace(requested, backend="lean"), table=TABLE)
    with pytest.raises(UsageError, match="takes one vector at a time: set its attribute batched"):
        prepare_run(config_of(backend="lean"), table=TABLE)


def test_an_attribute_that_is_named_almost_as_one_that_counts_is_said() -> None:
    requested = config_of("tests.objectives:elsewhere")
    (note,) = new_run_notes(requested, prepare_run(requested, table=TABLE))
    assert note == (
        "the attribute initial of tests.objectives:elsewhere is not used: did you mean start?; "
        "the attribute low of tests.objectives:elsewhere is not used: did you mean lower?"
    )


@each_case("strategy", ["snes", "openai_es", "cma_es", "xnes", "ga", "pgpe"])
def test_every_strategy_searches_a_box_and_finds_the_bound(strategy: str, tmp_path: Path) -> None:
    own = {"truncation": 4} if strategy == "ga" else {}
    config = config_of(
        "tests.objectives:corner",
        strategy=strategy,
        sigma=0.3,
        generations=60,
        population=16,
        final_episodes=1,
        **own,
    )
    _, sink = run_ring(config, 2, checkpoints=Checkpoints(tmp_path))
    assert not any(record["failed"] for record in sink.records[:-1])
    saved = load_policy(tmp_path / "checkpoints" / "best.npz")
    assert saved.vector.dtype == np.float32 and abs(saved.vector[0] - 4) < 0.2
    assert abs(saved.vector[1] + 200) < 60 and not np.array_equal(saved.vector, saved.parameters)


def test_a_search_begins_at_start_and_inside_the_bounds_of_the_command_line() -> None:
    def first_vector(**values: Any) -> list[float]:
        setup = prepare_run(config_of(**values), table=TABLE)
        assert not setup.first_parameters().any()
        actions = ActionMap(setup.spec.action, "clip")
        return [round(float(x), 4) for x in actions.act_one(setup.first_parameters())]

    corner = "tests.objectives:corner"
    assert first_vector(objective=corner) == [1, 0]
    assert first_vector(objective=corner, bounds="0:4,-10:90") == [1, 0]
    assert first_vector(bounds="2:4") == [3, 3, 3, 3]
    with pytest.raises(EnvironmentFailure, match="start is 0, outside its bounds 5 to 9"):
        prepare_run(config_of(corner, bounds="0:4,5:9"), table=TABLE)


#: cma 4.5: BoxConstraintsLinQuadTransformation([[-1, 10]]).transform([x]) for each x.
PYCMA = {
    -40.0: 6.2, -12.3: 9.955, -1.2: -0.9, -1.1: -0.9875, -1.05: -1.0, -1.0: -0.9875, -0.95: -0.95,
    -0.5: -0.5, 3.7: 3.7, 9.4: 9.4, 9.6: 9.595, 10.0: 9.875, 10.3: 9.98, 10.55: 9.99875,
    11.0: 9.875, 25.0: 1.9, 77.7: 8.4,
}  # fmt: skip


def test_the_transformation_is_pycmas() -> None:
    margins = Margins(np.array([-1.0]), np.array([10.0]))
    free = np.array([*PYCMA])[:, None]
    np.testing.assert_allclose(margins.inside(free)[:, 0], [*PYCMA.values()], atol=1e-12)


def test_emitters_share_the_individuals_that_a_generation_gets_for_its_steps() -> None:
    own = {name: ARM[name] for name in ARM if name not in ("truncation", "generations")}
    config = config_of(**own, strategy="cma_me", population=8, min_steps=20, generations=2)
    _, sink = run_ring(config, 2)
    figures = [(record["failed"], record["steps_generation"]) for record in sink.records[:-1]]
    assert all(failed == 0 and steps >= 20 for failed, steps in figures)
