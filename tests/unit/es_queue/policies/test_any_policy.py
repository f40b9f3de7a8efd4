"""What every policy promises. The list of kinds is the list here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from es_queue.config.run_config import POLICIES, RunConfig, own_settings
from es_queue.environments.interface import ActionSpec
from es_queue.policies import make_policy
from tests.cases import each_case

SHAPE = (2, 40, 44)
SIZE = int(np.prod(SHAPE))
CHOICE = ActionSpec("discrete", sizes=(6,), starts=(0,))


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def variants(kind: str) -> Iterator[Any]:
    own = own_settings("policy", kind)
    for norm, biases in (("none", True), ("none", False), ("virtual", True)):
        if norm == "none" or "batch_norm" in own:
            values = {"hidden": (9, 5), "batch_norm": norm, "biases": biases}
            config = RunConfig(policy=kind, **{one: values[one] for one in values if one in own})
            reference = abs(drawn(1, 5, SIZE)) if norm == "virtual" else None
            yield make_policy(config, SIZE, CHOICE, SHAPE, reference)


@each_case("kind", POLICIES)
def test_whoever_acts_at_once_gets_the_bits_that_each_gets_alone(kind: str) -> None:
    for policy in variants(kind):
        rows = np.stack([policy.initial(seed, "normal") for seed in range(3)])
        rows += 0.02 * drawn(5, *rows.shape)
        seen = abs(drawn(7, 2, 3, SIZE))
        together = policy.bind(rows)
        alone = [policy.bind(row[None]).begin() for row in rows]
        for step in seen:
            expected = np.stack([act(one) for act, one in zip(alone, step, strict=True)])
            assert together(step).tobytes() == expected.tobytes()
            assert np.isfinite(expected).all() and expected.any()


@each_case("kind", POLICIES)
def test_an_episode_remembers_nothing_of_the_one_before(kind: str) -> None:
    for policy in variants(kind):
        bound = policy.bind(policy.initial(1, "normal")[None])
        episodes = []
        for _ in range(2):
            act = bound.begin()
            episodes.append([act(one).tobytes() for one in abs(drawn(1, 2, SIZE))])
        assert episodes[0] == episodes[1]
