"""es-play: plays a trained policy; without flags it repeats the run's final evaluation to the last digit.

Nothing here imports numpy before the numeric environment is fixed, so the heavy imports stand in functions.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import es_queue
from es_queue.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EnvironmentFailure,
    EsQueueError,
    RunFolderError,
    UsageError,
)
from es_queue.numerics import fix_numeric_environment
from es_queue.settings import config_from_json

if TYPE_CHECKING:
    from es_queue.config import RunConfig
    from es_queue.environments import World
    from es_queue.figures import Figures
    from es_queue.policies.saved import SavedPolicy
    from es_queue.spaces import EnvironmentSpec
    from workers.rollout import Episode

DEFAULT_EPISODES = 100
MOST_EPISODES = 1_000_000
#: Environment seeds are int32.
SEEDS = 2**31
BEST = "best.npz"
#: Where a run's folder has its best policy.
PLACES = (BEST, f"checkpoints/{BEST}")
EPILOG = """\
Without --episodes and --seed it plays the episodes of the run's final
evaluation, and its mean equals the recorded one to the last digit on a
machine that computes the same bits.

exit codes: 0 done, 2 bad usage, 5 environment, 6 checkpoint, 130 interrupted
"""


@dataclass(frozen=True)
class Checkpoint:
    """A policy and what its file says of it. evaluation: the run's final one, None where it had not been played."""

    path: Path
    config: RunConfig
    policy: SavedPolicy
    run: str
    generation: int | None
    evaluation: dict[str, Any] | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; es-play --help explains all options")


def main(argv: list[str] | None = None) -> int:
    """The command; see ``es-play --help``. Returns the exit code."""
    fix_numeric_environment()
    if "" not in sys.path and "." not in sys.path:
        sys.path.append(".")  # a user's own module:Id stands in the current folder, as for rq worker
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without ± is no reason to fail
    try:
        show(parse(argv))
        sys.stdout.flush()
    except EsQueueError as error:
        print(f"es-play: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python would fail once more on what is left in the buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_DONE


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line. Raises UsageError; --help and --version print and end the process."""
    parser = _Parser(
        prog="es-play", description="Play a trained policy.", epilog=EPILOG, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", type=Path, help=f"an .npz checkpoint, a .json seed list, or a run's folder for its {BEST}")
    add("--export", metavar="FILE.json", type=Path, help="write the policy as a list of seeds, and play nothing (strategy ga)")
    add("--episodes", metavar="N", type=int, help="episodes to play [default: as many as the run's final evaluation]")
    add("--seed", metavar="S", type=int, help="environment seed of the first episode, the next has S+1 [default: the final evaluation's seeds]")
    add("--render", choices=("human",), help="show the episodes in a window")
    add("--json", action="store_true", help="print one JSON object")
    add("--version", action="version", version=f"es-queue {es_queue.__version__}", help="show the version and end")
    given = parser.parse_args(argv)
    if given.episodes is not None and not 1 <= given.episodes <= MOST_EPISODES:
        raise UsageError(f"--episodes is {given.episodes}: use a whole number from 1 to {MOST_EPISODES}")
    if given.seed is not None and not 0 <= given.seed < SEEDS:
        raise UsageError(f"--seed is {given.seed}: use a whole number from 0 to {SEEDS - 1}")
    return given


def show(given: argparse.Namespace) -> None:
    """Play and print. Raises RunFolderError for the checkpoint, EnvironmentFailure for the environment."""
    path = checkpoint_path(given.checkpoint)
    if given.export:
        export(path, given.export)
        return
    checkpoint = read(path)
    if given.render:
        refuse_without_display()
    episodes = play_all(checkpoint, chosen_seeds(checkpoint, given), given.render)
    found = outcome(checkpoint, given, episodes)
    if given.json:
        print(json.dumps(found, allow_nan=False))
    else:
        print("\n".join(sentences(found)))


# --- the checkpoint


def checkpoint_path(path: Path) -> Path:
    """The file itself, or the best policy of a run's folder. Raises RunFolderError."""
    if not path.is_dir():
        return path
    for place in PLACES:
        if (path / place).is_file():
            return path / place
    others = sorted(path.glob("checkpoints/generation-*.npz"))
    hint = f"; its newest checkpoint is {others[-1]}" if others else ""
    raise RunFolderError(f"{path} holds no {BEST}: the run has not evaluated a policy yet{hint}")


def export(path: Path, target: Path) -> None:
    """Write the checkpoint's policy as a seed list. Raises RunFolderError in one sentence."""
    from es_queue.policies.archive import read_checkpoint
    from es_queue.seed_list import seed_list_of

    try:
        text = seed_list_of(path, *read_checkpoint(path))
    except RunFolderError as error:
        raise RunFolderError(f"{path}: {error}") from None
    try:
        target.write_text(text + "\n")
    except OSError as error:
        raise RunFolderError(f"{target} cannot be written: {error.strerror}") from None
    print(f"{shown(str(target))}: the policy of {shown(str(path))} in {len(text)} bytes; es-play plays it")


def read(path: Path) -> Checkpoint:
    """The checkpoint or seed list at ``path``, checked. Raises RunFolderError in one sentence."""
    from es_queue.policies.archive import read_checkpoint
    from es_queue.policies.saved import SavedPolicy
    from es_queue.seed_list import read_seed_list

    try:
        arrays, meta = read_seed_list(path) if path.suffix == ".json" else read_checkpoint(path)
        policy = SavedPolicy.from_arrays(arrays, meta)
        config = config_from_json(json.dumps(meta["config"]))
    except RunFolderError as error:
        raise RunFolderError(f"{path}: {error}") from None
    except UsageError as error:
        raise RunFolderError(f"{path}: the checkpoint's settings cannot be used: {error}") from None
    generation, evaluation = meta.get("generation"), meta.get("evaluation")
    return Checkpoint(
        path, config, policy, str(meta.get("run", "unknown"))[:40],
        generation if isinstance(generation, int) else None, evaluation if isinstance(evaluation, dict) else None,
    )  # fmt: skip


def chosen_seeds(checkpoint: Checkpoint, given: argparse.Namespace) -> list[int]:
    """The environment seed of each episode: the final evaluation's, or consecutive ones from --seed on."""
    from es_queue.plan import FINAL, evaluation_seeds

    config = checkpoint.config
    count = given.episodes or config.final_episodes or DEFAULT_EPISODES
    if given.seed is None:
        return [int(seed) for seed in evaluation_seeds(config, FINAL, 0, count)]
    if given.seed + count > SEEDS:
        raise UsageError(f"--seed {given.seed} leaves no room for {count} episodes below {SEEDS}")
    return list(range(given.seed, given.seed + count))


# --- the episodes


def refuse_without_display() -> None:
    """Raise EnvironmentFailure where no window can open; SDL would draw into nothing there."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in names):
        raise EnvironmentFailure("there is no display to draw on: leave --render out, or run es-play in a desktop session")


def play_all(checkpoint: Checkpoint, seeds: list[int], render: str | None) -> list[Episode]:
    """Play the episodes in order, under an evaluation's rules. Raises EnvironmentFailure."""
    import numpy as np

    from es_queue.environments import describe, everywhere, open_world
    from es_queue.numerics import single_threaded_blas
    from workers.join import environment_request

    single_threaded_blas()
    # How an episode behaves is training's business; the code that tells it may not be here.
    request = everywhere(replace(environment_request(checkpoint.config), behaviour=""))
    spec = describe(request)
    refuse_other_spaces(checkpoint, spec)
    try:
        world = open_world(request, render) if render else open_world(request)
    except (EsQueueError, KeyboardInterrupt):
        raise
    except Exception as error:  # whatever a window or a user's environment raises
        raise EnvironmentFailure(f"{spec.id} cannot be opened: {type(error).__name__}: {error}") from error
    try:
        with np.errstate(all="ignore"):
            return followed(player(checkpoint, spec, world), seeds)
    finally:
        world.close()


def refuse_other_spaces(checkpoint: Checkpoint, spec: EnvironmentSpec) -> None:
    """Raise RunFolderError where the installed environment is not the one that the policy was trained for."""
    size = len(checkpoint.policy.statistics.mean)
    if spec.observation_size != size or spec.action != checkpoint.policy.action:
        raise RunFolderError(
            f"{checkpoint.path} was trained for other spaces than the installed {spec.id} has "
            f"({size} against {spec.observation_size} observed numbers, or other actions)"
        )


def player(checkpoint: Checkpoint, spec: EnvironmentSpec, world: World) -> Callable[[int], Episode]:
    """Seed -> episode, with the very functions and in the very arithmetic of a worker's evaluation."""
    from es_queue.episode_rules import evaluation_limit, evaluation_rules
    from es_queue.policies import make_policy
    from es_queue.policies.actions import ActionMap
    from workers.rollout import Watch, actor, play

    config, saved = checkpoint.config, checkpoint.policy
    policy = make_policy(config, spec.observation_size, spec.action, spec.observation_shape)
    begin = actor(policy, saved.parameters, saved.statistics if config.obs_norm else None)
    actions = ActionMap(spec.action, config.action_bound)
    rules = evaluation_rules(evaluation_limit(config, spec))

    def one(seed: int) -> Episode:
        try:
            return play(world, begin, actions, rules, seed, Watch())
        except Exception as error:  # whatever a user's environment raises, and a return that is not finite
            raise EnvironmentFailure(f"{spec.id} fails in the episode of seed {seed}: {type(error).__name__}: {error}") from error

    return one


def followed(play: Callable[[int], Episode], seeds: Iterable[int]) -> list[Episode]:
    """The episodes, with a line of progress where somebody looks on."""
    terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    wanted = list(seeds)
    episodes: list[Episode] = []
    try:
        for seed in wanted:
            episodes.append(play(seed))
            if terminal:
                mean = sum(one.total for one in episodes) / len(episodes)
                print(f"\r{len(episodes)} of {len(wanted)} episodes, mean {mean:.1f}\x1b[K", end="", file=sys.stderr, flush=True)
    finally:
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return episodes


# --- what is said


def outcome(checkpoint: Checkpoint, given: argparse.Namespace, episodes: list[Episode]) -> dict[str, Any]:
    """The figures and how they compare with the recorded ones; recorded and equal are None where nothing compares."""
    from es_queue.figures import figures_of

    figures = figures_of([one.total for one in episodes])
    assert figures is not None  # at least one episode is played
    recorded = comparable(checkpoint, given, figures)
    return {
        "run": checkpoint.run, "checkpoint": str(checkpoint.path), "generation": checkpoint.generation,
        "env": checkpoint.config.task, "policy": checkpoint.config.policy_name, "episodes": figures.count, "seed": given.seed,
        "eval_mean": figures.mean, "eval_std": figures.std, "eval_min": figures.least, "eval_max": figures.greatest,
        "length_mean": sum(one.steps for one in episodes) / len(episodes),
        "recorded": recorded, "equal": None if recorded is None else figures.mean == recorded,
    }  # fmt: skip


def comparable(checkpoint: Checkpoint, given: argparse.Namespace, figures: Figures) -> float | None:
    """The recorded mean when it is of these episodes."""
    evaluation = checkpoint.evaluation or {}
    mean = evaluation.get("eval_mean")
    same = given.seed is None and evaluation.get("eval_episodes") == figures.count
    return float(mean) if same and isinstance(mean, (int, float)) and mean == mean else None


def sentences(found: dict[str, Any]) -> list[str]:
    """The outcome for people."""
    kind = "of the final evaluation" if found["seed"] is None else f"from seed {found['seed']} on"
    generation = "" if found["generation"] is None else f", generation {found['generation']}"
    lines = [
        f"{shown(found['checkpoint'])}: {shown(found['env'])}, {found['policy']} policy of run {shown(found['run'])}{generation}",
        f"{found['episodes']} {'episode' if found['episodes'] == 1 else 'episodes'} {kind}: {found['eval_mean']:.2f} ± {found['eval_std']:.2f}, "
        f"min {found['eval_min']:.2f}, max {found['eval_max']:.2f}, mean length {found['length_mean']:.1f} steps",
    ]
    if found["equal"]:
        lines.append(f"equal to the recorded evaluation to the last digit: {found['recorded']!r}")
    elif found["equal"] is False:
        lines.append(
            f"not equal to the recorded evaluation: {found['eval_mean']!r} against {found['recorded']!r} "
            "(another CPU type, or another release of numpy or of the environment, gives other bits)"
        )
    elif found["seed"] is None:
        lines.append("the checkpoint records no final evaluation of these episodes to compare with")
    return lines


def shown(text: str) -> str:
    """Text out of a file that may come from anyone, harmless to a terminal."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


if __name__ == "__main__":
    sys.exit(main())
