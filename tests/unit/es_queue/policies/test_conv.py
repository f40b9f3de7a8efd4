"""Convolutional policies: the published parameter counts, the documented layout, and bits that do
not depend on company.
"""

from __future__ import annotations

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.environments.interface import ActionSpec
from es_queue.errors import UsageError
from es_queue.policies import Policy, make_policy
from es_queue.policies.conv import ARCHITECTURES, ConvPolicy
from es_queue.policies.linear_mlp import ACTIVATIONS
from tests.cases import each_case

SHAPES = {"cshenton": (210, 160, 3), "conv-lstm": (1, 42, 42)}
SMALL = (2, 40, 44)


def discrete(choices: int) -> ActionSpec:
    return ActionSpec("discrete", sizes=(choices,), starts=(0,))


def made(kind: str, shape: tuple[int, ...], choices: int = 6) -> ConvPolicy:
    policy = make_policy(RunConfig(policy=kind), int(np.prod(shape)), discrete(choices), shape)
    assert isinstance(policy, ConvPolicy)
    return policy


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def restless(policy: Policy, count: int) -> np.ndarray:
    return np.stack(
        [policy.initial(seed, "normal") + 0.02 * drawn(seed, policy.size) for seed in range(count)]
    )


@each_case(
    ("kind", "pong", "atari"),
    [
        ("nature", 1_687_206, 1_693_362),
        ("uber", 1_005_366, 1_008_450),
        ("uber-large", 4_046_502, 4_052_658),
        ("cshenton", 4_434_944 + 256 * 6, 4_434_944 + 256 * 18),
        ("conv-lstm", 588_710, 591_794),
    ],
)
def test_each_has_as_many_parameters_as_the_published_one(kind: str, pong: int, atari: int) -> None:
    shape = SHAPES.get(kind, (4, 84, 84))
    assert (made(kind, shape, 6).size, made(kind, shape, 18).size) == (pong, atari)


def padded(picture: np.ndarray, policy: ConvPolicy, number: int) -> np.ndarray:
    layer = policy.convolutions[number]
    return np.pad(picture, (*layer.padding, (0, 0)))


def by_definition(policy: ConvPolicy, parameters: np.ndarray, picture: np.ndarray) -> np.ndarray:
    """The documented layout of a policy without a cell, read independently in float64, a place at a
    time.
    """
    architecture = policy.architecture
    start, x = 0, picture.astype(np.float64)

    def take(*shape: int) -> np.ndarray:
        nonlocal start
        start += int(np.prod(shape))
        return parameters[start - int(np.prod(shape)) : start].reshape(shape).astype(np.float64)

    def active(x: np.ndarray) -> np.ndarray:
        ACTIVATIONS[policy.activation](x, x)
        return x

    for number, filters in enumerate(ARCHITECTURES[policy.kind].stack):
        size, stride, x = filters.kernel, filters.stride, padded(x, policy, number)
        weights, bias = (
            take(size, size, x.shape[2], filters.count),
            take(filters.count) if architecture.biases else 0,
        )
        rows, columns = ((length - size) // stride + 1 for length in x.shape[:2])
        out = np.empty((rows, columns, filters.count))
        for i, j in np.ndindex(rows, columns):
            seen = x[i * stride : i * stride + size, j * stride : j * stride + size]
            out[i, j] = np.einsum("abc,abcd->d", seen, weights) + bias
        x = active(out)
    hidden = take(architecture.units, x.size) @ x.ravel() + (
        take(architecture.units) if architecture.biases else 0
    )
    last = take(policy.outputs, architecture.units) @ active(hidden) + (
        take(policy.outputs) if architecture.biases else 0
    )
    assert start == len(parameters)
    return last


@each_case("kind", ["nature", "uber", "uber-large", "cshenton"])
@each_case("shape", [SMALL, (44, 40, 3)])
def test_a_policy_is_convolutions_a_hidden_layer_and_outputs_in_the_documented_layout(
    kind: str, shape: tuple[int, ...]
) -> None:
    policy = made(kind, shape)
    parameters, seen = restless(policy, 1), abs(drawn(5, policy.observation_size))
    upright = seen.reshape(shape) if shape[2] == 3 else seen.reshape(shape).transpose(1, 2, 0)
    np.testing.assert_allclose(
        policy.bind(parameters).act_one(seen),
        by_definition(policy, parameters[0], upright),
        rtol=1e-4,
        atol=1e-4,
    )


@each_case("shape", [(), (3, 4, 5, 6)])
def test_what_is_no_picture_is_refused_with_what_would_do(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        UsageError,
        match=r"policy is nature, which takes images .* use linear, mlp, rnn, lstm or gru",
    ):
        make_policy(RunConfig(policy="nature"), 360, discrete(2), shape)
