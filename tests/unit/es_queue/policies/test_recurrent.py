"""Recurrent policies: the published equations in the documented layout, memory that begins empty,
bits that need no company.
"""

from __future__ import annotations

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.environments.spaces import ActionSpec
from es_queue.errors import UsageError
from es_queue.policies import make_policy
from es_queue.policies.checkpoint_policy import SavedPolicy
from es_queue.policies.layers.cells import CELLS
from es_queue.policies.net2wider import widen
from es_queue.policies.recurrent import RecurrentPolicy
from tests.cases import each_case

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
BOX = ActionSpec("box", (2,), (-1.0,) * 2, (1.0,) * 2)


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def restless(policy: RecurrentPolicy, count: int) -> np.ndarray:
    return np.stack(
        [policy.initial(seed, "normal") + 0.2 * drawn(seed, policy.size) for seed in range(count)]
    )


@each_case("kind", CELLS)
def test_the_parameters_are_those_of_torch_s_layers(kind: str) -> None:
    policy = make_policy(RunConfig(policy=kind, hidden=(16, 8)), 5, BOX)
    assert isinstance(policy, RecurrentPolicy)
    gates = GATES[kind]
    assert policy.size == gates * (16 * (5 + 16 + 2) + 8 * (16 + 8 + 2)) + 8 * 2 + 2
    assert policy.memory_size == (2 if kind == "lstm" else 1) * 24


def logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def by_definition(
    kind: str, seen: list[np.ndarray], kept: list[np.ndarray], h: np.ndarray, c: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The equations, a gate at a time, of what each gate gets from the input and from the state."""
    if kind == "rnn":
        return np.tanh(seen[0] + kept[0]), c
    if kind == "gru":
        r, z = logistic(seen[0] + kept[0]), logistic(seen[1] + kept[1])
        return (1 - z) * np.tanh(seen[2] + r * kept[2]) + z * h, c
    i, f, g, o = (x + y for x, y in zip(seen, kept, strict=True))
    c = logistic(f) * c + logistic(i) * np.tanh(g)
    return logistic(o) * np.tanh(c), c


@each_case("kind", CELLS)
def test_a_policy_is_its_equations_in_the_documented_layout(kind: str) -> None:
    policy = RecurrentPolicy(kind, 3, 2, (4,))
    parameters, act = restless(policy, 1), None
    wide = GATES[kind] * 4
    cuts = np.cumsum([3 * wide, wide, 4 * wide, wide, 4 * 2])
    w_in, b_in, w_state, b_state, w, b = np.split(parameters[0].astype(np.float64), cuts)
    act, h, c = policy.bind(parameters).begin(), np.zeros(4), np.zeros(4)
    for x in drawn(1, 6, 3):
        seen = np.split(x @ w_in.reshape(3, wide) + b_in, GATES[kind])
        kept = np.split(h @ w_state.reshape(4, wide) + b_state, GATES[kind])
        h, c = by_definition(kind, seen, kept, h, c)
        np.testing.assert_allclose(act(x), h @ w.reshape(4, 2) + b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", CELLS)
def test_torch_computes_the_same_through_several_layers(kind: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install torch)")
    policy = RecurrentPolicy(kind, 5, 2, (6, 6))
    parameters, seen = restless(policy, 1), drawn(2, 7, 5)
    begin = policy.bind(parameters).begin()
    ours = np.stack([begin(x) for x in seen])
    layers = [
        (torch.from_numpy(weights[0].copy()), torch.from_numpy(bias[0].copy()))
        for weights, bias in policy.layers(parameters)
    ]
    module = getattr(torch.nn, kind.upper())(5, 6, 2)
    names = [
        f"{part}_{side}_l{number}"
        for number in (0, 1)
        for side in ("ih", "hh")
        for part in ("weight", "bias")
    ]
    module.load_state_dict(
        dict(
            zip(
                names,
                (one for weights, bias in layers[:-1] for one in (weights.T, bias)),
                strict=True,
            )
        )
    )
    theirs = torch.nn.functional.linear(
        module(torch.from_numpy(seen))[0], layers[-1][0].T, layers[-1][1]
    )
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)


@each_case("hidden", [(16,), (1,), (33, 7), (64, 64)])
@each_case("kind", CELLS)
def test_whoever_acts_at_once_gets_the_bits_that_each_gets_alone(
    kind: str, hidden: tuple[int, ...]
) -> None:
    policy = RecurrentPolicy(kind, 24, 4, hidden)
    parameters, seen = restless(policy, 9), drawn(7, 5, 9, 24)
    together = policy.bind(parameters)
    alone = [policy.bind(row[None]).begin() for row in parameters]
    for step in seen:
        assert (
            together(step).tobytes()
            == np.stack([act(one) for act, one in zip(alone, step, strict=True)]).tobytes()
        )


@each_case("kind", CELLS)
def test_an_episode_remembers_nothing_of_the_one_before(kind: str) -> None:
    policy = RecurrentPolicy(kind, 3, 2, (4, 4))
    bound, seen = policy.bind(restless(policy, 1)), drawn(1, 3)
    fresh = bound.begin()(seen)
    assert not np.array_equal(bound.act_one(seen), fresh)
    assert np.array_equal(bound.begin()(seen), fresh)


@each_case("kind", CELLS)
def test_a_checkpoint_s_policy_remembers_within_an_episode_and_forgets_between_them(
    kind: str,
) -> None:
    config = RunConfig(env="Any-v0", policy=kind, hidden=(4,), obs_norm=False)
    policy = make_policy(config, 3, BOX)
    parameters = policy.initial(1, "auto") + 0.3 * drawn(5, policy.size)
    arrays = {
        "parameters": parameters,
        "obs_mean": np.zeros(3, np.float32),
        "obs_std": np.ones(3, np.float32),
    }
    saved = SavedPolicy.from_arrays(
        arrays,
        {
            "config": config.to_dict(),
            "observation_size": 3,
            "observation_shape": [],
            "observation": None,
            "discrete_observation": None,
            "action": BOX.to_dict(),
        },
    )
    first, second = saved.act(np.ones(3)), saved.act(np.ones(3))
    saved.begin()
    assert not np.array_equal(first, second) and np.array_equal(saved.act(np.ones(3)), first)


@each_case("kind", CELLS)
def test_first_parameters_put_out_little_and_an_lstm_keeps_what_it_remembers(kind: str) -> None:
    policy = RecurrentPolicy(kind, 3, 2, (4, 5))
    first = policy.initial(3, "auto")
    assert (
        np.array_equal(first, policy.initial(3, "auto"))
        and abs(policy.bind(first[None]).begin()(drawn(1, 3))).max() < 0.1
    )
    biases = [bias[0] for _, bias in policy.layers(first[None])]
    assert sum(bias.sum() for bias in biases) == (9 if kind == "lstm" else 0)
    if kind == "lstm":
        assert biases[0][4:8].tolist() == [1] * 4 and biases[2][5:10].tolist() == [1] * 5
    assert not policy.initial(3, "zero").any()


def test_a_trained_one_goes_on_as_it_is_and_does_not_grow() -> None:
    policy = RecurrentPolicy("gru", 3, 2, (4,))
    trained = policy.initial(1, "auto")
    assert np.array_equal(
        widen(policy, trained, RecurrentPolicy("gru", 3, 2, (4,)), policy.initial(2, "auto")),
        trained,
    )
    wider = RecurrentPolicy("gru", 3, 2, (8,))
    with pytest.raises(
        UsageError,
        match="a gru policy cannot grow: observations, layers and actions must be equal",
    ):
        widen(policy, trained, wider, wider.initial(2, "auto"))
    other = RecurrentPolicy("lstm", 3, 2, (4,))
    with pytest.raises(UsageError, match="a gru policy cannot become a lstm one: use --policy gru"):
        widen(policy, trained, other, other.initial(2, "auto"))
