"""es-play: plays a trained policy; without flags it repeats the run's final evaluation to the last digit.

Nothing here imports numpy before the numeric environment is fixed, so the heavy imports stand in functions.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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
from es_queue.wording import printable
from workers.told import histogram, outcome, sentences, shown

if TYPE_CHECKING:
    from es_queue.config import RunConfig
    from es_queue.environments import EnvironmentRequest, World
    from es_queue.policies.saved import SavedPolicy
    from es_queue.spaces import EnvironmentSpec
    from workers.film import Film
    from workers.rollout import Episode

DEFAULT_EPISODES = 100
LONGEST_ERROR = 4000
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
    """A policy and what its file says of it.

    evaluation: the run's final one, None where it had not been played; command: what made it, empty where nobody said
    """

    path: Path
    config: RunConfig
    policy: SavedPolicy
    run: str
    generation: int | None
    evaluation: dict[str, Any] | None
    command: str = ""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; es-play --help explains all options")


def main(argv: list[str] | None = None) -> int:
    """The command; see ``es-play --help``. Returns the exit code."""
    fix_numeric_environment()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without ± is no reason to fail
    try:
        given = parse(argv)
        from es_queue.custom_code import guarded_imports

        with guarded_imports(given.trust):
            leave_current_folder()
            show(given)
        sys.stdout.flush()
    except EsQueueError as error:
        print(f"es-play: {printable(' '.join(str(error).split()), LONGEST_ERROR)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python would fail once more on what is left in the buffer.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_DONE


def leave_current_folder() -> None:
    """Take the current folder off the path, where ``python -m`` has put it: what lies in it is nobody's installed package.

    A checkout of es-queue itself stays.
    """
    here, home = Path.cwd().resolve(), Path(__file__).resolve().parent.parent
    if here != home:
        sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line. Raises UsageError; --help and --version print and end the process."""
    parser = _Parser(
        prog="es-play", description="Play a trained policy.", epilog=EPILOG, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", nargs="?", type=Path, help=f"an .npz checkpoint, a .json seed list, or a run's folder for its {BEST}")
    add("--pretrained", metavar="ENV", help="in place of CHECKPOINT the trained policy that comes with es-queue")
    add("--export", metavar="FILE", type=Path, help="write the policy and play nothing: FILE.json a list of seeds (strategy ga), FILE.onnx, FILE.pt2 (torch), FILE.npz what load_policy reads")
    add("--which", choices=("best", "last"), default="best", help="of a run's folder: its best policy, or its newest checkpoint [default: best]")
    add("--generation", metavar="G", help="of a run's folder: the unperturbed policy of that generation, or with --slot whoever lived in it")
    add("--slot", metavar="K+|K-", help="with --generation: the individual of slot K that was perturbed by +noise or by -noise, on its own episodes")
    add("--record", metavar="FILE", type=Path, help="film the episodes, one unless --episodes says more: a .gif or an .mp4; needs no screen")
    add("--episodes", metavar="N", type=int, help="episodes to play [default: as many as the run's final evaluation]")
    add("--seed", metavar="S", type=int, help="environment seed of the first episode, the next has S+1 [default: the final evaluation's seeds]")
    add("--render", choices=("human",), help="show the episodes in a window")
    add(
        "--trust", action="store_true", help="import the modules that CHECKPOINT names, also from the current folder: their code runs "
        "on this machine [default: only installed packages, and what ES_QUEUE_ALLOW names]"
    )
    add("--json", action="store_true", help="print one JSON object")
    add("--version", action="version", version=f"es-queue {es_queue.__version__}", help="show the version and end")
    given = parser.parse_args(argv)
    if (given.checkpoint is None) == (given.pretrained is None):
        raise UsageError("give a CHECKPOINT or --pretrained ENV, one of them; es-play --help explains all options")
    if given.episodes is not None and not 1 <= given.episodes <= MOST_EPISODES:
        raise UsageError(f"--episodes is {given.episodes}: use a whole number from 1 to {MOST_EPISODES}")
    refuse_contradictions(given)
    if given.seed is not None and not 0 <= given.seed < SEEDS:
        raise UsageError(f"--seed is {given.seed}: use a whole number from 0 to {SEEDS - 1}")
    return given


def refuse_contradictions(given: argparse.Namespace) -> None:
    """Raises UsageError for options that do not go together."""
    if given.slot is not None:
        if given.generation is None:
            raise UsageError("--slot names an individual of a generation: give --generation with it")
        for name in ("seed", "episodes"):
            if getattr(given, name) is not None:
                raise UsageError(f"--slot plays the individual's own episodes: leave --{name} out")
    if given.pretrained is not None and (given.generation is not None or given.which != "best"):
        raise UsageError("--pretrained names the policy already: leave --generation and --which out")
    if given.generation is not None and (given.export or given.which != "best"):
        raise UsageError(f"--generation names the policy already: leave --{'export' if given.export else 'which'} out")
    if given.record is not None and given.render:
        raise UsageError("--render shows the episodes and --record films them: give one of the two")


def show(given: argparse.Namespace) -> None:
    """Play and print. Raises RunFolderError for the checkpoint, EnvironmentFailure for the environment."""
    if given.record is not None:
        from workers.film import refuse_unrecordable

        refuse_unrecordable(given.record)
        given.episodes = given.episodes or (1 if given.slot is None else None)
    if given.generation is not None:
        from workers.ancestor import show_ancestor

        show_ancestor(given)
        return
    path = pretrained(given.pretrained) if given.pretrained is not None else checkpoint_path(given.checkpoint, given.which)
    if given.export:
        from workers.carry import export

        export(path, given.export)
        return
    checkpoint = read(path)
    if given.render:
        refuse_without_display()
    episodes, film = play_all(checkpoint, chosen_seeds(checkpoint, given), given.render, given.record)
    recorded = None if given.seed is not None else checkpoint.evaluation
    found = outcome(about(checkpoint), given.seed, episodes, recorded)
    if given.json:
        print(json.dumps(found, allow_nan=False))
    else:
        print("\n".join([*sentences(found), *histogram([one.total for one in episodes]), *filter(None, [film])]))


def about(checkpoint: Checkpoint) -> dict[str, Any]:
    """Whose episodes they are, for what is printed."""
    return {
        "run": checkpoint.run, "checkpoint": str(checkpoint.path), "generation": checkpoint.generation, "env": checkpoint.config.task,
        "policy": checkpoint.config.policy_name, "command": checkpoint.command,
    }  # fmt: skip


# --- the checkpoint


def checkpoint_path(path: Path, which: str = "best") -> Path:
    """The file itself, or the best policy or the newest checkpoint of a run's folder. Raises RunFolderError."""
    if not path.is_dir():
        return path
    others = sorted(path.glob("checkpoints/generation-*.npz"))
    if which == "last":
        if others:
            return others[-1]
        raise RunFolderError(f"{path} holds no checkpoint of a generation: give --which best, or the folder of a run")
    for place in PLACES:
        if (path / place).is_file():
            return path / place
    hint = f"; its newest checkpoint is {others[-1]}" if others else ""
    raise RunFolderError(f"{path} holds no {BEST}: the run has not evaluated a policy yet{hint}")


def pretrained(environment: str) -> Path:
    """The file that comes with es-queue. Raises UsageError where there is none of that environment."""
    from es_queue.pretrained import path_of

    return path_of(environment)


def read(path: Path) -> Checkpoint:
    """The checkpoint or seed list at ``path``, checked. Raises RunFolderError in one sentence."""
    from es_queue.pretrained import origin
    from workers.carry import contents, policy_of

    arrays, meta = contents(path)
    policy = policy_of(path, arrays, meta)
    try:
        config = config_from_json(json.dumps(meta["config"]))
    except UsageError as error:
        raise RunFolderError(f"{path}: the checkpoint's settings cannot be used: {error}") from None
    generation, evaluation = meta.get("generation"), meta.get("evaluation")
    return Checkpoint(
        path, config, policy, str(meta.get("run", "unknown"))[:40],
        generation if isinstance(generation, int) else None, evaluation if isinstance(evaluation, dict) else None, origin(meta),
    )  # fmt: skip


def chosen_seeds(checkpoint: Checkpoint, given: argparse.Namespace) -> list[int]:
    """The environment seed of each episode: the final evaluation's, or consecutive ones from --seed on."""
    return seeds_of(checkpoint.config, given.episodes, given.seed)


def seeds_of(config: RunConfig, episodes: int | None, first: int | None) -> list[int]:
    """As many seeds as episodes were asked for, or as the final evaluation has. Raises UsageError beyond the last seed."""
    from es_queue.plan import FINAL, evaluation_seeds

    count = episodes or config.final_episodes or DEFAULT_EPISODES
    if first is None:
        return [int(seed) for seed in evaluation_seeds(config, FINAL, 0, count)]
    if first + count > SEEDS:
        raise UsageError(f"--seed {first} leaves no room for {count} episodes below {SEEDS}")
    return list(range(first, first + count))


# --- the episodes


def refuse_without_display() -> None:
    """Raise EnvironmentFailure where no window can open; SDL would draw into nothing there."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in names):
        raise EnvironmentFailure("there is no display to draw on: leave --render out, or run es-play in a desktop session")


def play_all(checkpoint: Checkpoint, seeds: list[int], render: str | None, record: Path | None) -> tuple[list[Episode], str]:
    """Play the episodes in order, under an evaluation's rules; and a line about the film. Raises EnvironmentFailure."""
    import numpy as np

    from es_queue.environments import describe, everywhere
    from es_queue.numerics import single_threaded_blas
    from workers.join import environment_request

    single_threaded_blas()
    # How an episode behaves is training's business; the code that tells it may not be here.
    request = everywhere(replace(environment_request(checkpoint.config), behaviour=""))
    spec = describe(request)
    refuse_other_spaces(checkpoint, spec)
    with opened(request, spec.id, render, record) as (world, film), np.errstate(all="ignore"):
        return followed(player(checkpoint, spec, world, film.look if film else None), seeds), saved(film)


@contextmanager
def opened(request: EnvironmentRequest, name: str, render: str | None, record: Path | None) -> Iterator[tuple[World, Film | None]]:
    """The world to play in, and its film where one is wanted. Raises EnvironmentFailure."""
    from es_queue.environments import open_world

    film: Film | None = None
    try:
        world: World
        if record is not None:
            from workers.film import Film

            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame else looks for a screen, and complains aloud of missing ones
            world = drawn = open_world(request, "rgb_array")
            film = Film(drawn, record, drawn.fps)
        else:
            world = open_world(request, render) if render else open_world(request)
    except (EsQueueError, KeyboardInterrupt):
        raise
    except Exception as error:  # whatever a window or a user's environment raises
        raise EnvironmentFailure(f"{name} cannot be opened: {type(error).__name__}: {error}") from error
    try:
        yield world, film
    finally:
        world.close()


def saved(film: Film | None) -> str:
    """Write the film; a line about it, empty where there is none."""
    if film is None:
        return ""
    size = film.save()
    return f"filmed in {shown(str(film.path))} ({size / 1024:,.0f} kB{', its end cut off' if film.cut else ''})"


def refuse_other_spaces(checkpoint: Checkpoint, spec: EnvironmentSpec) -> None:
    """Raise RunFolderError where the installed environment is not the one that the policy was trained for."""
    size = len(checkpoint.policy.statistics.mean)
    if spec.observation_size != size or spec.action != checkpoint.policy.action:
        raise RunFolderError(
            f"{checkpoint.path} was trained for other spaces than the installed {spec.id} has "
            f"({size} against {spec.observation_size} observed numbers, or other actions)"
        )


def player(checkpoint: Checkpoint, spec: EnvironmentSpec, world: World, look: Callable[[], None] | None = None) -> Callable[[int], Episode]:
    """Seed -> episode, with the very functions and in the very arithmetic of a worker's evaluation."""
    from es_queue.episode_rules import evaluation_limit, evaluation_rules
    from es_queue.policies import make_policy
    from es_queue.policies.actions import ActionMap
    from workers.rollout import Watch, actor, play

    config, saved = checkpoint.config, checkpoint.policy
    policy = make_policy(config, spec.observation_size, spec.action, spec.observation_shape, saved.policy.reference)
    begin = actor(policy, saved.parameters, saved.statistics if config.obs_norm else None)
    actions = ActionMap(spec.action, config.action_bound)
    rules = evaluation_rules(evaluation_limit(config, spec))

    def one(seed: int) -> Episode:
        try:
            return play(world, begin, actions, rules, seed, Watch(), look=look)
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


if __name__ == "__main__":
    sys.exit(main())
