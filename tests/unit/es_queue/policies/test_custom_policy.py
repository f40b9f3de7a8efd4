"""Policies of the user's own: the documented examples learn on the ring, and what cannot be is
refused in one sentence.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.environments.interface import ActionSpec
from es_queue.errors import RunFolderError, UsageError
from es_queue.policies import BoundPolicy, NumpyPolicy, Policy, make_policy
from es_queue.policies.saved_policy import load_policy
from es_queue.user_code import ALLOW, named_modules
from master.loop.checkpoint import Checkpoints
from tests.cases import each_case
from tests.memory import quick_config, run_ring
from workers.es_play import main
from workers.heartbeat import EpisodeControl
from workers.player import Refusal, join

TEXT = (Path(__file__).parents[4] / "docs" / "policies.md").read_text()
EXAMPLE, MODULE, *_ = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
HERE = "tests.unit.es_queue.policies.test_custom_policy"
TWO = ActionSpec("discrete", sizes=(2,), starts=(0,))


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The documented policy as an importable module; its name."""
    (tmp_path / "my_policies.py").write_text(EXAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_policies", raising=False)
    monkeypatch.setenv(ALLOW, "installed,my_policies,tests")
    return "my_policies:Quadratic"


def test_the_documented_policy_learns_and_gives_the_same_bits_for_any_workers(
    example: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"--policy {example}" in TEXT
    config = quick_config(
        policy=example,
        population=24,
        step_limit="60",
        eval_step_limit=60,
        eval_every=4,
        eval_episodes=4,
        generations=12,
        target_reward="none",
        final_episodes=4,
    )
    expected, sink = run_ring(config, checkpoints=Checkpoints(tmp_path))
    assert max(one["eval_mean"] or 0 for one in sink.records) > 40
    assert run_ring(replace(config, block=1, backend="stock"), 3)[0].digest == expected.digest
    assert main([str(tmp_path)]) == 0
    assert "equal to the recorded evaluation to the last digit" in capsys.readouterr().out


def test_a_worker_that_may_not_import_it_or_lacks_it_refuses_with_its_name(
    example: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = quick_config(policy=example)
    assert named_modules(config) == ["my_policies"]
    monkeypatch.setenv(ALLOW, "installed")
    with pytest.raises(
        Refusal, match="the run names the module my_policies, which is not allowed here"
    ):
        join(config, EpisodeControl())
    monkeypatch.setenv(ALLOW, "missing_here")
    with pytest.raises(
        Refusal, match="the policy missing_here:Net cannot be imported: ModuleNotFoundError"
    ):
        join(replace(config, policy="missing_here:Net"), EpisodeControl())


def test_a_checkpoint_imports_no_module_that_is_not_allowed(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_ring(
        quick_config(
            policy=example,
            population=4,
            generations=1,
            eval_every=1,
            eval_episodes=1,
            final_episodes=1,
            target_reward="none",
        ),
        checkpoints=Checkpoints(tmp_path),
    )
    path = tmp_path / "checkpoints" / "best.npz"
    assert load_policy(path).act(np.zeros(4)) in (0, 1)
    monkeypatch.setenv(ALLOW, "installed")
    assert load_policy(path), "who has imported it trusts it"
    monkeypatch.delitem(sys.modules, "my_policies")
    with pytest.raises(RunFolderError, match=r"names the module 'my_policies'.*trust=True"):
        load_policy(path)
    assert "my_policies" not in sys.modules
    assert load_policy(path, trust=True).act(np.zeros(4)) in (0, 1)


# --- what is refused


class Plain(NumpyPolicy):
    def __init__(
        self, observation_size: int, outputs: int, size: int | None = None, memory_size: int = 0
    ) -> None:
        super().__init__(observation_size, outputs, outputs if size is None else size, memory_size)

    def act(self, parameters: np.ndarray, observation: np.ndarray, memory: np.ndarray) -> Any:
        return parameters * observation.sum()


class Short(Plain):
    def act(self, parameters: np.ndarray, observation: np.ndarray, memory: np.ndarray) -> Any:
        return parameters[:1]


class Raising(Plain):
    def act(self, parameters: np.ndarray, observation: np.ndarray, memory: np.ndarray) -> Any:
        raise KeyError("the\nkey")


class Diary(Plain):
    """It remembers across episodes."""

    calls = 0

    def act(self, parameters: np.ndarray, observation: np.ndarray, memory: np.ndarray) -> Any:
        self.calls += 1
        return parameters + self.calls


class Crowded(Policy):
    """Its rows depend on how many there are."""

    def __init__(self, observation_size: int, outputs: int) -> None:
        self.observation_size, self.outputs, self.size = observation_size, outputs, outputs

    def initial(self, seed: int, init: str) -> np.ndarray:
        return np.zeros(self.size, np.float32)

    def bind(self, parameters: np.ndarray) -> BoundPolicy:
        rows = self.checked(parameters)
        return BoundPolicy(len(rows), lambda x: rows[0], lambda x: rows + np.float32(len(rows)))


@each_case(
    ("name", "sentence"),
    [
        ("HERE", "is neither a class"),
        ("Short", "fails in a test: ValueError: act returned 1 numbers, but must return 2"),
        ("Raising", r"fails in a test: KeyError: 'the\nkey'"),
        ("Diary", "gives different bits for many individuals at once"),
        ("Crowded", "gives different bits for many individuals at once than for single ones"),
    ],
)
def test_what_is_no_policy_is_refused_in_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)) as caught:
        make_policy(RunConfig(policy=f"{HERE}:{name}"), 4, TWO)
    assert "\n" not in str(caught.value) and f"{HERE}:{name}" in str(caught.value)


class Shaped(Plain):
    def __init__(
        self, observation_size: int, outputs: int, observation_shape: tuple[int, ...]
    ) -> None:
        super().__init__(observation_size, outputs)
        self.shape = observation_shape


def test_one_that_asks_is_told_the_shape_of_what_it_observes() -> None:
    found = make_policy(RunConfig(policy=f"{HERE}:Shaped"), 6, TWO, (2, 3))
    assert type(found).__name__ == Shaped.__name__ and vars(found)["shape"] == (2, 3)
    assert make_policy(RunConfig(policy=f"{HERE}:Plain"), 6, TWO, (2, 3)).size == 2
