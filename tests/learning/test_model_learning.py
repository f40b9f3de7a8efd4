"""A model learns from its scores: the example of docs/large_models.md, shortened."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from es_queue.user_code import ALLOW  # noqa: E402
from examples import addition  # noqa: E402
from tests import memory  # noqa: E402


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_transformer_adds_better_after_evolution_strategies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW, "installed,examples")
    torch.manual_seed(0)
    module = addition.Transformer()
    addition.pretrain(module)
    monkeypatch.setattr(addition, "FILE", tmp_path / "addition.pt")
    torch.save(module.state_dict(), addition.FILE)
    monkeypatch.setattr(memory, "SECONDS", 600.0)
    run = memory.play(
        model="examples.addition:Addition",
        env="",
        strategy="auto",
        snapshots=str(tmp_path / "snapshots"),
        population=32,
        generations=8,
        eval_every=8,
        eval_episodes=4,
        final_episodes=4,
    )
    first, last = (value for value in run.column("eval_mean") if value is not None)
    assert last > first + 0.03
