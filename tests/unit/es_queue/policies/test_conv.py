"""Convolutional policies: the published parameter counts, the documented layout, and bits that do
not depend on company.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.environments.spaces import ActionSpec, EnvironmentSpec
from es_queue.errors import UsageError
from es_queue.policies import Policy, make_policy
from es_queue.policies.conv import ConvPolicy
from es_queue.policies.layers.activations import ACTIVATIONS
from es_queue.policies.layers.conv_layout import ARCHITECTURES
from es_queue.policies.layers.image_shape import ImageShape
from es_queue.policies.net2wider import widen
from master.run.setup import MOST_NORMALISED, resolve_config
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
    layer = policy.layout.convolutions[number]
    return np.pad(picture, (layer.vertical_padding, layer.horizontal_padding, (0, 0)))


def by_definition(policy: ConvPolicy, parameters: np.ndarray, picture: np.ndarray) -> np.ndarray:
    """The documented layout of a policy without a cell, read independently in float64, a place at a
    time.
    """
    architecture = policy.layout.architecture
    start, x = 0, picture.astype(np.float64)

    def take(*shape: int) -> np.ndarray:
        nonlocal start
        start += int(np.prod(shape))
        return parameters[start - int(np.prod(shape)) : start].reshape(shape).astype(np.float64)

    def active(x: np.ndarray) -> np.ndarray:
        ACTIVATIONS[policy.activation](x, x)
        return x

    for number, filters in enumerate(ARCHITECTURES[policy.layout.kind].stack):
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


@pytest.mark.parametrize("kind", ["nature", "uber", "uber-large", "cshenton", "conv-lstm"])
def test_torch_computes_the_same(kind: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install torch)")
    policy = made(kind, SMALL)
    parameters, seen = restless(policy, 1), abs(drawn(5, 3, policy.observation_size))
    begin = policy.bind(parameters).begin()
    ours = np.stack([begin(one) for one in seen])
    layers = [
        (torch.from_numpy(weights.copy()), torch.from_numpy(bias.copy()) if len(bias) else None)
        for weights, bias in policy.layout.layers(parameters[0])
    ]
    activate = getattr(torch.nn.functional, policy.activation)
    x = torch.from_numpy(seen.reshape(3, *SMALL))
    for layer, (weights, bias) in zip(policy.layout.convolutions, layers, strict=False):
        size = layer.filters.kernel
        filters = weights.reshape(size, size, layer.channels, layer.filters.count).permute(
            3, 2, 0, 1
        )
        x = torch.nn.functional.pad(x, (*layer.horizontal_padding, *layer.vertical_padding))
        x = activate(torch.nn.functional.conv2d(x, filters, bias, layer.filters.stride))
    x = x.permute(0, 2, 3, 1).flatten(1)
    look, *state, (last, last_bias) = layers[len(policy.layout.convolutions) :]
    if policy.layout.cell:
        cell = torch.nn.LSTM(look[0].shape[0], policy.layout.architecture.units)
        given = {
            "weight_ih_l0": look[0].T,
            "weight_hh_l0": state[0][0].T,
            "bias_ih_l0": look[1],
            "bias_hh_l0": state[0][1],
        }
        cell.load_state_dict(given)
        x = cell(x)[0]
    else:
        x = activate(torch.nn.functional.linear(x, look[0].T, look[1]))
    theirs = torch.nn.functional.linear(x, last.T, last_bias)
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)


@each_case("kind", ARCHITECTURES)
def test_whoever_acts_at_once_gets_the_bits_that_each_gets_alone(kind: str) -> None:
    policy = made(kind, SMALL)
    parameters, seen = restless(policy, 5), abs(drawn(7, 3, 5, policy.observation_size))
    together = policy.bind(parameters)
    alone = [policy.bind(row[None]).begin() for row in parameters]
    for step in seen:
        assert (
            together(step).tobytes()
            == np.stack([act(one) for act, one in zip(alone, step, strict=True)]).tobytes()
        )


def test_an_episode_of_the_recurrent_one_remembers_nothing_of_the_one_before() -> None:
    policy = made("conv-lstm", SMALL)
    bound, seen = policy.bind(restless(policy, 1)), abs(drawn(1, 2, policy.observation_size))
    fresh = bound.begin()(seen[0])
    later = bound.act_one(seen[0])
    assert not np.array_equal(fresh, later)
    assert np.array_equal(bound.begin()(seen[0]), fresh)


@each_case("kind", ARCHITECTURES)
def test_first_parameters_are_a_function_of_the_seed_and_put_out_little(kind: str) -> None:
    policy = made(kind, SMALL)
    first = policy.initial(3, "auto")
    assert np.array_equal(first, policy.initial(3, "auto")) and not np.array_equal(
        first, policy.initial(4, "auto")
    )
    out = policy.bind(first[None]).begin()(abs(drawn(1, policy.observation_size)))
    assert 0 < abs(out).max() < 0.5
    assert not policy.initial(3, "zero").any()


@each_case("shape", [(), (3, 4, 5, 6)])
def test_what_is_no_picture_is_refused_with_what_would_do(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        UsageError,
        match=r"policy is nature, which takes images .* use linear, mlp, rnn, lstm or gru",
    ):
        make_policy(RunConfig(policy="nature"), 360, discrete(2), shape)


def test_colours_may_come_last_and_frames_first() -> None:
    assert made("cshenton", (210, 160, 3)).layout.image_shape == ImageShape(
        210, 160, 3, channels_first=False
    )
    assert made("nature", (4, 84, 84)).layout.image_shape == ImageShape(
        84, 84, 4, channels_first=True
    )
    assert made("conv-lstm", (42, 42)).layout.image_shape == ImageShape(
        42, 42, 1, channels_first=True
    )


def test_a_trained_one_goes_on_as_it_is_and_does_not_grow() -> None:
    policy = made("uber", SMALL)
    trained, first = policy.initial(1, "auto"), policy.initial(2, "auto")
    assert np.array_equal(widen(policy, trained, made("uber", SMALL), first), trained)
    with pytest.raises(UsageError, match="a uber policy cannot grow"):
        widen(policy, trained, made("uber", SMALL, 7), first)
    with pytest.raises(
        UsageError, match="a uber policy cannot become a nature one: use --policy uber"
    ):
        widen(policy, trained, made("nature", SMALL), first)


@each_case(
    ("kind", "shape", "image_norm", "normalised"),
    [
        ("linear", (8,), False, True),
        ("uber", SMALL, False, False),
        ("uber", SMALL, True, True),
        ("linear", (MOST_NORMALISED + 1,), False, False),
        ("linear", (MOST_NORMALISED + 1,), True, True),
    ],
)
def test_images_and_vast_observations_are_normalised_only_with_image_norm(
    kind: str, shape: tuple[int, ...], image_norm: bool, normalised: bool
) -> None:
    spec = EnvironmentSpec(
        "Any-v0",
        int(np.prod(shape)),
        discrete(2),
        None,
        None,
        None,
        "stock",
        True,
        observation_shape=shape,
    )
    config = RunConfig(env="Any-v0", policy=kind, image_norm=image_norm)
    policy = make_policy(config, spec.observation_size, spec.action, shape)
    assert resolve_config(config, spec, policy).obs_norm is normalised
    assert not resolve_config(replace(config, obs_norm=False), spec, policy).obs_norm
