"""A torch.nn.Module as a policy: flat parameters, bits that depend on nobody else, and what cannot
be trained so.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.environments.interface import ActionSpec
from es_queue.errors import UsageError
from es_queue.policies import make_policy
from es_queue.user_code import ALLOW
from master.loop.checkpoint import Checkpoints
from tests.memory import quick_config, run_ring
from tests.unit.es_queue.policies.test_custom_policy import MODULE
from workers.es_play import main

torch: Any = pytest.importorskip("torch", reason="pip install 'es-queue[torch]'")
HERE = "tests.unit.es_queue.policies.test_torch_module"
BOX = ActionSpec("box", (3,), (-1.0,) * 3, (1.0,) * 3)


def policy_of(name: str, shape: tuple[int, ...] = (), size: int = 6) -> Any:
    return make_policy(RunConfig(policy=f"{HERE}:{name}"), size, BOX, shape)


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, observation_size: int, outputs: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(observation_size, 8),
            torch.nn.Tanh(),
            torch.nn.Dropout(0.5),
            torch.nn.Linear(8, outputs),
        )

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Image(torch.nn.Module):  # type: ignore[misc]
    def __init__(
        self, observation_size: int, outputs: int, observation_shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(observation_shape[0], 2, 2),
            torch.nn.Flatten(),
            torch.nn.LazyLinear(outputs),
        )
        self.layers(torch.zeros(1, *observation_shape))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Remembering(torch.nn.Module):  # type: ignore[misc]
    memory_size = 5

    def __init__(self, observation_size: int, outputs: int) -> None:
        super().__init__()
        self.cell, self.last = torch.nn.GRUCell(observation_size, 5), torch.nn.Linear(5, outputs)

    def forward(self, x: Any, memory: Any) -> Any:
        memory = self.cell(x, memory)
        return self.last(memory), memory


class PartlyFixed(Net):
    def __init__(self, observation_size: int, outputs: int) -> None:
        super().__init__(observation_size, outputs)
        self.layers[0].requires_grad_(False)


class Normed(Net):
    def __init__(self, observation_size: int, outputs: int) -> None:
        super().__init__(observation_size, outputs)
        self.norm = torch.nn.BatchNorm1d(outputs)


class Nothing(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, observation_size: int, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, x: Any) -> Any:
        return x[:, : self.outputs]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "Normed",
            (
                "has buffers (norm.running_mean, norm.running_var, norm.num_batches_tracked), "
                "which are not parameters"
            ),
        ),
        ("Nothing", "has the size 0"),
    ],
)
def test_a_module_that_cannot_be_trained_is_refused_in_one_sentence(
    name: str, sentence: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)) as caught:
        policy_of(name)
    assert "\n" not in str(caught.value)


def test_the_flat_vector_is_torchs_own_and_outputs_are_the_modules() -> None:
    policy, module = policy_of("Net"), Net(6, 3).eval()
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    seen = np.linspace(-1, 1, 6, dtype=np.float32)
    assert policy.size == len(flat) == 7 * 8 + 9 * 3
    with torch.no_grad():
        expected = module(torch.tensor(seen)[None])[0].numpy()
    assert policy.bind(flat[None]).act_one(seen).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("name", "shape"), [("Net", ()), ("Image", (1, 2, 3)), ("Remembering", ())]
)
def test_many_individuals_give_the_bits_of_each_alone(name: str, shape: tuple[int, ...]) -> None:
    policy, draw = policy_of(name, shape), np.random.default_rng(2)
    rows, seen = (
        draw.normal(size=(5, policy.size)).astype(np.float32),
        draw.normal(size=(4, 5, 6)).astype(np.float32),
    )
    bound = policy.bind(rows)
    together = [bound(one).tobytes() for one in seen]
    singles = [policy.bind(rows[row : row + 1]).begin() for row in range(5)]
    assert together == [
        np.stack([act(one[row]) for row, act in enumerate(singles)]).tobytes() for one in seen
    ]


def test_first_parameters_come_from_the_seed_alone_and_torchs_generator_is_put_back() -> None:
    policy = policy_of("Net")
    torch.manual_seed(5)
    expected = torch.rand(1).item()
    torch.manual_seed(5)
    first = policy.initial(9, "auto")
    assert torch.rand(1).item() == expected
    assert (
        policy.initial(9, "auto").tobytes()
        == first.tobytes()
        != policy.initial(8, "auto").tobytes()
    )
    assert not policy.initial(9, "zero").any()
    normal = policy.initial(9, "normal")
    assert normal[:48].std() < 1 and not normal[48:56].any(), (
        "deviations by the number of inputs, no bias"
    )
    with pytest.raises(UsageError, match="use auto, zero or normal"):
        policy.initial(9, "orthogonal")


def test_the_documented_module_learns_on_the_ring_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_modules.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(ALLOW, "my_modules")
    config = quick_config(
        policy="my_modules:Net",
        population=16,
        eval_every=4,
        eval_episodes=3,
        generations=4,
        step_limit="60",
        eval_step_limit=60,
        target_reward="none",
        final_episodes=3,
    )
    expected, _ = run_ring(config, checkpoints=Checkpoints(tmp_path))
    assert run_ring(config, 2)[0].digest == expected.digest
    assert main([str(tmp_path)]) == 0
    assert "equal to the recorded evaluation to the last digit" in capsys.readouterr().out


def test_parameters_without_a_gradient_stay_as_the_constructor_made_them() -> None:
    policy = policy_of("PartlyFixed")
    assert policy.size == 8 * 3 + 3
    seen = np.ones(6, np.float32)
    torch.manual_seed(0)
    first = Net(6, 3).layers[:2](torch.ones(1, 6)).detach().numpy()[0]
    parameters = policy.initial(5, "auto")
    weights, bias = parameters[:24].reshape(3, 8), parameters[24:]
    outputs = policy.bind(parameters[None]).begin()(seen)
    np.testing.assert_allclose(outputs, weights @ first + bias, rtol=1e-5)
