"""Recurrent policies: the published equations in the documented layout, memory that begins empty,
bits that need no company.
"""

from __future__ import annotations

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.environments.interface import ActionSpec
from es_queue.policies import make_policy
from es_queue.policies.recurrent import CELLS, RecurrentPolicy
from es_queue.policies.saved_policy import SavedPolicy
from tests.cases import each_case
from tests.parts import built

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
BOX = ActionSpec("box", (2,), (-1.0,) * 2, (1.0,) * 2)


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def restless(policy: RecurrentPolicy, count: int) -> np.ndarray:
    return np.stack(
        [policy.initial(seed, "normal") + 0.2 * drawn(seed, policy.size) for seed in range(count)]
    )


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
    policy = built(kind, 3, 2, hidden=(4,))
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
    saved = SavedPolicy(
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
