"""Remove features one by one, and see that the test that holds each fails: ``python -m
tools.mutation_check [WORD]``.

Each mutation is made in a copy of the source, so that this checkout stays as it is. Those of
MuJoCo and Atari need the extras of these names. Ends with 1 if a test passes without its feature.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("docker", "docs", "es_queue", "master", "tests", "tools", "workers", "pyproject.toml")
STRATEGIES = "tests/unit/es_queue/strategies"
LOOP = "tests/unit/master/loop/test_generation_loop.py"
BEHAVIOURS = "tests/unit/es_queue/environments/test_behaviour_descriptor.py"


@dataclass(frozen=True)
class Mutation:
    """A feature as docs/reference/features.md calls it; the file, text and replacement that remove
    it; the test that must fail then.
    """

    feature: str
    path: str
    original: str
    mutated: str
    test: str


MUTATIONS = (
    Mutation(
        "observation normalisation",
        "workers/slots.py",
        "if not self._config.obs_norm:",
        "if self._config.obs_norm:",
        "tests/unit/workers/test_evaluator.py::test_all_episodes_of_a_generation_see_observations_normalised_by_what_was_published",
    ),
    Mutation(
        "exact resume (not there)",
        "master/loop/state.py",
        "moments=RunningMoments.from_arrays(arrays),",
        "moments=RunningMoments.empty(RunningMoments.from_arrays(arrays).mean.size),",
        f"{LOOP}::test_going_on_from_any_checkpoint_gives_the_same_run",
    ),
    Mutation(
        "virtual batch normalisation",
        "es_queue/policies/layers/virtual_norm.py",
        "gain = scale / np.sqrt(variance + EPSILON)",
        "gain = scale",
        "tests/unit/es_queue/policies/layers/test_virtual_norm.py::test_a_hidden_layer_is_normalised_by_its_statistics_over_the_batch",
    ),
    Mutation(
        "VINE: the cloud of offspring",
        "master/plot/cloud.py",
        "where[order, 1]",
        "where[order, 0]",
        "tests/unit/master/plot/test_plot_cloud.py::test_everybody_who_lived_is_a_dot_in_its_place",
    ),
    Mutation(
        "NS-ES, NSR-ES",
        "es_queue/strategies/novelty.py",
        '{"ns": 0.0, "nsr": 0.5,',
        '{"ns": 1.0, "nsr": 1.0,',
        f"{STRATEGIES}/test_novelty_strategy.py::test_the_step_follows_the_ranks_of_novelty_and_of_reward",
    ),
    Mutation(
        "random search",
        "es_queue/strategies/random_search.py",
        '{**state, "parameters": elite}',
        "{**state}",
        f"{STRATEGIES}/test_random_search.py::test_the_elite_is_the_very_vector_that_the_workers_played",
    ),
    Mutation(
        "evaluations among the work",
        "master/loop/publisher.py",
        "evaluation = learner.is_evaluation_due(state)",
        "evaluation = False",
        f"{LOOP}::test_evaluations_are_slots_of_a_generation_like_any_other_and_come_first",
    ),
    Mutation(
        "population that grows to a number of interactions",
        "master/loop/schedule.py",
        "if slots and steps < config.min_steps and",
        "if slots and steps < 0 and",
        f"{LOOP}::test_the_population_of_pgpe_grows_until_a_number_of_interactions_or_to_its_largest",
    ),
    Mutation(
        "SGD with momentum, Adam",
        "es_queue/strategies/optimizers.py",
        'velocity = blend(self.momentum, moments["velocity"]',
        'velocity = blend(0.0, moments["velocity"]',
        f"{STRATEGIES}/test_optimizers.py::test_sgd_averages_gradients_with_its_momentum",
    ),
    Mutation(
        "SGD with momentum, Adam",
        "es_queue/strategies/optimizers.py",
        "math.sqrt(1 - self.beta2**count) / (1 - self.beta1**count)",
        "1.0",
        f"{STRATEGIES}/test_optimizers.py::test_adam_corrects_the_bias_of_both_moments",
    ),
    Mutation(
        "SGD with momentum, Adam",
        "es_queue/strategies/optimizers.py",
        "self.learning_rate / length",
        "self.learning_rate",
        f"{STRATEGIES}/test_optimizers.py::test_clipup_steps_by_the_learning_rate_whatever_the_gradients_size",
    ),
    Mutation(
        "action bins uniform, custom, continuous",
        "es_queue/config/action_bins.py",
        "tuple((2 * place / (int(rest) - 1)) - 1 for place in range(int(rest)))",
        "()",
        "tests/unit/es_queue/config/test_action_bins.py::test_uniform_bins_lie_at_even_distances_from_bound_to_bound",
    ),
    Mutation(
        "action bins uniform, custom, continuous",
        "es_queue/config/action_bins.py",
        "                return values",
        "                return (-1.0, 0.0, 1.0)",
        "tests/unit/es_queue/config/test_action_bins.py::test_custom_bins_are_the_listed_values_between_the_bounds_of_each_number",
    ),
    Mutation(
        "action bins uniform, custom, continuous",
        "es_queue/config/action_bins.py",
        "    if text == NONE:\n        return ()",
        "    if text == NONE:\n        return (-1.0, 1.0)",
        "tests/unit/es_queue/config/test_action_bins.py::test_no_bins_change_nothing_and_old_checkpoints_have_none",
    ),
    Mutation(
        "behaviour: final position, RAM",
        "es_queue/environments/behaviour_descriptor.py",
        "return hull.position.x, hull.position.y",
        "return 0.0, 0.0",
        f"{BEHAVIOURS}::test_both_walkers_tell_where_the_hull_is",
    ),
    Mutation(
        "behaviour: final position, RAM",
        "es_queue/environments/behaviour_descriptor.py",
        "return data.qpos[:2]",
        "return data.qpos[2:4]",
        f"{BEHAVIOURS}::test_the_final_position_of_a_mujoco_body_is_where_gymnasium_has_it",
    ),
    Mutation(
        "behaviour: final position, RAM",
        "es_queue/environments/behaviour_descriptor.py",
        "return console.getRAM()",
        "return console.getRAM()[::-1]",
        f"{BEHAVIOURS}::test_the_ram_of_an_atari_game_is_what_the_game_shows_as_its_observation",
    ),
    Mutation(
        "MuJoCo bodies",
        "es_queue/environments/registry.py",
        'return newest, f"{name} is an old version',
        'return name, f"{name} is an old version',
        "tests/unit/es_queue/environments/test_mujoco_ids.py::test_each_body_is_played_under_each_of_its_versions",
    ),
    Mutation(
        "a checkpoint and a test episode each 100 iterations",
        "master/loop/learner.py",
        "state.generation % every == 0",
        "state.generation == 0",
        "tests/unit/master/loop/test_learner.py::test_evaluations_are_due_every_so_often_and_at_the_end",
    ),
    Mutation(
        "a checkpoint and a test episode each 100 iterations",
        "master/loop/listeners.py",
        "partial(self._checkpoints.save, state.generation, generation.checkpoint)",
        "lambda: None",
        f"{LOOP}::test_the_disks_checkpoint_is_written_at_the_start_and_the_end_and_now_and_then",
    ),
    Mutation(
        "a checkpoint and a test episode each 100 iterations",
        "master/display/video_jobs.py",
        "self._queue.append(generation)",
        "pass",
        "tests/unit/master/display/test_video_jobs.py::test_a_film_is_made_when_so_many_generations_have_passed",
    ),
    Mutation(
        "launcher for AWS",
        "docker/aws/template.yaml",
        "DesiredCapacity: !Ref Workers",
        'DesiredCapacity: "0"',
        "tests/deploy/test_files.py::test_the_aws_template_launches_redis_a_master_and_a_group_of_workers_that_find_it",
    ),
)


def copy_source(root: Path, copy: Path) -> None:
    """What the tests of the mutations read of ``root``."""
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, copy / name)


def run_test(copy: Path, test: str) -> str:
    """Whether a test of the copy "passed", "failed", or did "not run": skipped, or not found."""
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-p", "no:cacheprovider", test]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    ended = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    if ended.returncode == 0:
        return "passed" if " passed" in ended.stdout else "not run"
    return "failed" if ended.returncode == 1 else "not run"


def check_mutation(copy: Path, mutation: Mutation) -> str:
    """What the test does once the feature is gone from the copy, which is whole again afterwards.

    Raises ValueError if the original text is not in the file exactly once.
    """
    path = copy / mutation.path
    source = path.read_text("utf-8")
    if source.count(mutation.original) != 1:
        raise ValueError(f"{mutation.path} does not hold once: {mutation.original}")
    path.write_text(source.replace(mutation.original, mutation.mutated), "utf-8")
    try:
        return run_test(copy, mutation.test)
    finally:
        path.write_text(source, "utf-8")


def check_all(root: Path, mutations: Sequence[Mutation]) -> Iterator[tuple[Mutation, str]]:
    """Each mutation with what its test does: "failed" is right."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        copy_source(root, copy)
        for mutation in mutations:
            whole = run_test(copy, mutation.test)
            yield mutation, check_mutation(copy, mutation) if whole == "passed" else "not run"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("word", nargs="?", default="", help="only features whose name holds this")
    word = parser.parse_args().word
    outcomes = set()
    for mutation, outcome in check_all(ROOT, [one for one in MUTATIONS if word in one.feature]):
        outcomes.add(outcome)
        print(f"{outcome:8} {mutation.feature}: {mutation.path}, {mutation.test}", flush=True)
    return int("passed" in outcomes)


if __name__ == "__main__":
    sys.exit(main())
