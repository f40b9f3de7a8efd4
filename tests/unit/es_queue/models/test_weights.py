"""The arithmetic of a model's weights: noise, perturbations and updates."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from es_queue.config.run_config import RunConfig  # noqa: E402
from es_queue.models.weights import Model  # noqa: E402
from es_queue.numerics.normals import keyed_normals  # noqa: E402
from es_queue.strategies.model_es import Update  # noqa: E402
from tests.cases import each_case  # noqa: E402
from tests.networks import Loss  # noqa: E402

pytestmark = pytest.mark.fast

KEYS = [3, 2**63 + 5, 8, 11, 12, 4]


def model(name: str = "Network", **settings: object) -> Model:
    return Model(RunConfig(model=f"tests.networks:{name}", **settings))


def update(coefficients: list[float], **values: object) -> Update:
    first = Update(1, 0, 0, 0, 0.5, 0.0, "0" * 32, np.array(coefficients, np.float32))
    return first._replace(**values)


def state(one: Model) -> dict[str, bytes]:
    return {
        name: tensor.float().numpy().tobytes() for name, tensor in one.module.state_dict().items()
    }


def test_normals_of_a_stream_depend_only_on_their_place() -> None:
    long = keyed_normals(5, 6, 100_001)
    assert all(
        np.array_equal(keyed_normals(5, 6, count), long[:count]) for count in (1, 7, 2**14 + 1)
    )
    assert abs(long.mean()) < 0.01 and abs(long.std() - 1) < 0.01
    assert abs(np.corrcoef(long[::2][:50_000], long[1::2])[0, 1]) < 0.02


@each_case("perturbation", ["full", "rank:2"])
def test_no_two_leaves_and_no_two_slots_share_noise(perturbation: str) -> None:
    one = model(perturbation=perturbation)
    drawn = [leaf.noise(key).ravel()[:2].tolist() for leaf in one.leaves for key in KEYS]
    assert len({tuple(values) for values in drawn}) == len(one.leaves) * len(KEYS)


@each_case("perturbation", ["full", "rank:2"])
def test_a_pair_is_mirrored_and_leaves_the_weights_as_they_were(perturbation: str) -> None:
    one, seen = model(perturbation=perturbation), list[np.ndarray]()
    before, fixed = state(one), torch.randn(5, 4)

    def score(module: torch.nn.Module, seeds: list[int]) -> list[float]:
        with torch.no_grad():
            seen.append(module[0](fixed).double().numpy())
        return [0.0]

    one.user.score = score
    for sigma in (0.3, -0.3, 0.0):
        one.perturbed_scores(7, sigma, [1])
    plus, minus, centre = seen
    assert np.abs(plus - centre).max() > 0.1
    np.testing.assert_allclose(plus - centre, centre - minus, atol=1e-6)
    one.user.score = lambda module, seeds: 1 / 0
    with pytest.raises(ZeroDivisionError):
        one.perturbed_scores(7, 0.3, [1])
    assert state(one) == before


@each_case("settings", [{"perturbation": "full"}, {"perturbation": "rank:2"}])
def test_an_update_moves_the_weights_by_the_noise_that_was_scored(settings: dict) -> None:
    one, values = model(momentum=0.0, **settings), [0.5, -1.0, 0.0, 2.0, 0.25, -0.125]
    first, total = one.module[0].weight.double().clone(), 0.0
    for key, value in zip(KEYS, values, strict=True):
        leaf = one.leaves[0]
        noise = leaf.noise(key).double()
        if leaf.rank:
            left, right = (part.double() for part in leaf.factors(key))
            noise = left.T @ right / 2**0.5
        total = total + value * noise
    one.apply(update(values), KEYS)
    np.testing.assert_allclose(one.module[0].weight.double(), first + 0.5 * total, atol=1e-5)


def test_decay_is_towards_zero_or_towards_the_first_weights() -> None:
    zero, anchored = model(), model(anchor=True, weight_decay=0.5)
    first = zero.module[0].weight.clone()
    for one in (zero, anchored):
        one.apply(update([1.0], decay=0.0), KEYS[:1])
    moved = zero.module[0].weight - first
    zero.has_velocity = anchored.has_velocity = False
    for one in (zero, anchored):
        one.apply(update([0.0], decay=0.5), KEYS[:1])
    np.testing.assert_allclose(zero.module[0].weight, (first + moved) / 2, atol=1e-6)
    np.testing.assert_allclose(anchored.module[0].weight, first + moved / 2, atol=1e-6)


@each_case("perturbation", ["full", "rank:1"])
def test_the_estimate_points_along_the_back_propagated_gradient(perturbation: str) -> None:
    one, user = model("Loss", momentum=0.0, perturbation=perturbation), Loss()
    one.module.requires_grad_(True)
    user.loss(one.module).backward()
    slope = torch.cat([-leaf.parameter.grad.ravel() for leaf in one.leaves])
    one.module.requires_grad_(False)
    keys, sigma = list(range(400)), 1e-2
    scores = [[one.perturbed_scores(key, sign * sigma, [0])[0] for sign in (1, -1)] for key in keys]
    before = torch.cat([leaf.weights.ravel().clone() for leaf in one.leaves])
    values = [(plus - minus) / (2 * sigma * len(keys)) for plus, minus in scores]
    one.apply(update(values, rate=1.0), keys)
    step = torch.cat([leaf.weights.ravel() for leaf in one.leaves]) - before
    # 78 weights and 400 pairs: about sqrt(400 / 478) is expected
    cosine = float(torch.nn.functional.cosine_similarity(step, slope, 0))
    assert 0.8 < cosine < 1.0


def test_only_named_parameters_are_trained_and_others_stay() -> None:
    one = model("Half", momentum=0.0)
    before = state(one)
    one.apply(update([1.0]), KEYS[:1])
    after = state(one)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"0.weight", "0.bias"}
    assert one.module[0].weight.dtype == torch.bfloat16
