"""The algorithm on one page, ``examples/es_in_one_file.py``, beside the distributed one."""

from __future__ import annotations

import runpy
from pathlib import Path

from es_queue import RunConfig, train
from es_queue.numerics.fingerprint import array_digest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/es_in_one_file.py"


def test_the_example_of_one_file_ends_with_the_parameters_of_a_run_on_workers(
    tmp_path: Path,
) -> None:
    example = runpy.run_path(str(EXAMPLE))
    generations = example["GENERATIONS"]
    config = RunConfig(
        env="CartPole-v1",
        strategy="openai_es",
        seed=example["SEED"],
        population=example["POPULATION"],
        obs_sample=1.0,
        generations=generations,
        eval_every=0,
        target_reward="none",
        final_episodes=0,
    )
    summary = train(config, workers=2, runs_dir=tmp_path)
    assert summary["digest"] == array_digest(example["train"]())
    assert summary["generation"] == generations


def test_the_example_of_one_file_stays_a_page_without_redis_or_processes() -> None:
    text = EXAMPLE.read_text("utf-8")
    assert len(text.splitlines()) < 200
    imports = [line.split()[1] for line in text.splitlines() if line.startswith(("import", "from"))]
    allowed = {"__future__", "math", "dataclasses", "gymnasium", "numpy", "numpy.typing"}
    arithmetic = ("es_queue.numerics.", "es_queue.slot_plan")
    assert {name for name in imports if not name.startswith(arithmetic)} <= allowed
