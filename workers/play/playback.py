"""Play episodes as a worker's evaluation plays them, in a window or into a video if requested.

Importing this module loads numpy: fix the numeric environment first.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from es_queue.config.episode_rules import evaluation_limit, evaluation_rules
from es_queue.config.run_config import RunConfig
from es_queue.environments.factory import describe, open_environment, portable_request
from es_queue.environments.interface import Environment, EnvironmentRequest, EnvironmentSpec
from es_queue.errors import EnvironmentFailure, EsQueueError, RunFolderError, UsageError
from es_queue.numerics.fingerprint import limit_blas_threads
from es_queue.numerics.noise_table import NoiseTable
from es_queue.policies import make_policy
from es_queue.seed_list import open_noise_table
from es_queue.slot_plan import FINAL_SEEDS, evaluation_seeds
from es_queue.text import escape
from workers.episode import Episode, EpisodeControl, EpisodePlayer, EpisodeSpec, OnStep
from workers.play.checkpoint import Checkpoint
from workers.play.constants import DEFAULT_EPISODES, SEED_LIMIT
from workers.play.report import format_return
from workers.play.video import VideoRecorder

#: Between the places of consecutive seeds in the noise table, so that their noise has nothing in
#: common.
SEED_DISTANCE = 1_000_003


def episode_seeds(config: RunConfig, episodes: int | None, first: int | None) -> list[int]:
    """The seeds of ``episodes`` episodes, by default those of the final evaluation. Raises
    UsageError beyond the last seed.
    """
    count = episodes or config.final_episodes or DEFAULT_EPISODES
    if first is None:
        return [int(seed) for seed in evaluation_seeds(config, FINAL_SEEDS, 0, count)]
    if first + count > SEED_LIMIT:
        raise UsageError(f"--seed {first} leaves no room for {count} episodes below {SEED_LIMIT}")
    return list(range(first, first + count))


def validate_display() -> None:
    """Raise EnvironmentFailure if no window can open, because SDL would then draw nothing."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in names):
        raise EnvironmentFailure(
            "there is no display to draw on: leave --render out, or run es-play in a desktop "
            "session"
        )


@dataclass(frozen=True)
class Drawing:
    """Whether episodes are shown in a window, or filmed into a file, perhaps with a caption."""

    render: str | None = None
    record: Path | None = None
    caption: bool = False

    @classmethod
    def of(cls, given: Namespace) -> Drawing:
        return cls(given.render, given.record, given.caption)


def playable_request(request: EnvironmentRequest, drawing: Drawing) -> EnvironmentRequest:
    """The request for a back end that plays one by one. EnvPool cannot draw, so Gymnasium's own
    environment is drawn, with a note.
    """
    portable = portable_request(request)
    if portable.backend != "envpool" or not (drawing.render or drawing.record):
        return portable
    print(
        f"es-play: EnvPool cannot draw, so Gymnasium's own {escape(request.id)} plays: its "
        "episodes differ from those in training",
        file=sys.stderr,
    )
    return replace(portable, backend="stock")


def play(
    checkpoint: Checkpoint, seeds: list[int], drawing: Drawing, *, stochastic: bool = False
) -> tuple[list[Episode], str]:
    """Play the episodes under an evaluation's rules. Returns them, and a line about the film.

    stochastic: with the action noise of training. Raises EnvironmentFailure.
    """
    limit_blas_threads()
    # How an episode behaves is training's business; the code that tells it may not be here.
    request = replace(EnvironmentRequest.of(checkpoint.config), behaviour="")
    request = playable_request(request, drawing)
    spec = describe(request)
    validate_spaces(checkpoint, spec)
    noise = make_noise(checkpoint) if stochastic else None
    with (
        open_playback(request, spec.id, drawing) as (env, recorder),
        np.errstate(all="ignore"),
    ):
        on_step = recorder.capture if recorder else None
        episodes = play_seeds(checkpoint, spec, env, seeds, noise, on_step)
        return with_progress(episodes, len(seeds)), save_video(recorder)


@contextmanager
def open_playback(
    request: EnvironmentRequest, name: str, drawing: Drawing
) -> Iterator[tuple[Environment, VideoRecorder | None]]:
    """The environment, and its film if requested. Raises EnvironmentFailure."""
    recorder: VideoRecorder | None = None
    try:
        env: Environment
        if drawing.record is not None:
            env = rendered = open_environment(request, "rgb_array")
            recorder = VideoRecorder(rendered, drawing.record, rendered.fps, drawing.caption)
        elif drawing.render is not None:
            env = open_environment(request, drawing.render)
        else:
            env = open_environment(request)
    except (EsQueueError, KeyboardInterrupt):
        raise
    except Exception as error:  # whatever a window or a user's environment raises
        raise EnvironmentFailure(
            f"{name} cannot be opened: {type(error).__name__}: {error}"
        ) from error
    try:
        yield env, recorder
    finally:
        env.close()


def save_video(recorder: VideoRecorder | None) -> str:
    """A line about the film, empty if there is none."""
    if recorder is None:
        return ""
    size, cut = recorder.save(), ""
    if recorder.is_truncated:
        cut = f", only the first {recorder.most:,} frames"
    return f"filmed in {escape(str(recorder.path))} ({size / 1024:,.0f} kB{cut})"


def validate_spaces(checkpoint: Checkpoint, spec: EnvironmentSpec) -> None:
    """Raises RunFolderError if the policy was trained for another environment."""
    size = len(checkpoint.policy.statistics.mean)
    if spec.observation_size != size or spec.action != checkpoint.policy.action:
        raise RunFolderError(
            f"{checkpoint.path} does not fit the installed {spec.id}: it takes observations of "
            f"{size} numbers and gets {spec.observation_size}, or their actions differ"
        )


def make_noise(checkpoint: Checkpoint) -> NoiseTable:
    """The table of the action noise of training. Raises UsageError for a policy that was trained
    without it, RunFolderError for an impossible noise table.
    """
    config, action = checkpoint.config, checkpoint.policy.action
    if config.action_noise <= 0 or action.kind != "box":
        raise UsageError(
            f"--stochastic adds the action noise of training, but {checkpoint.path} was trained "
            "without any and always answers an observation with the same action: leave it out"
        )
    try:
        return open_noise_table(config, len(action.low))
    except ValueError as error:
        raise RunFolderError(f"{checkpoint.path}: {error}") from None


def play_seeds(
    checkpoint: Checkpoint,
    spec: EnvironmentSpec,
    env: Environment,
    seeds: Iterable[int],
    noise: NoiseTable | None = None,
    on_step: OnStep | None = None,
) -> Iterator[Episode]:
    """Episodes by the functions and the arithmetic of a worker's evaluation."""
    config, trained = checkpoint.config, checkpoint.policy
    policy = make_policy(
        config, spec.observation_size, spec.action, spec.observation_shape, trained.policy.reference
    )
    player = EpisodePlayer(config, spec, policy, EpisodeControl(), env, table=noise)
    rules = evaluation_rules(evaluation_limit(config, spec))
    statistics = trained.statistics if config.obs_norm else None
    specs = [EpisodeSpec(trained.parameters, seed, key=seed * SEED_DISTANCE) for seed in seeds]
    outcomes = player.play(specs, len(specs), rules, statistics, on_step)
    for played, outcome in zip(specs, outcomes, strict=True):
        # whatever a user's environment raises, and a return that is not finite
        if isinstance(outcome, Exception):
            raise EnvironmentFailure(
                f"{spec.id} fails in the episode of seed {played.seed}: "
                f"{type(outcome).__name__}: {outcome}"
            ) from outcome
        yield outcome


def with_progress(played: Iterable[Episode], count: int) -> list[Episode]:
    terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    episodes: list[Episode] = []
    try:
        for episode in played:
            episodes.append(episode)
            if terminal:
                mean = sum(each.total for each in episodes) / len(episodes)
                shown = f"{len(episodes)} of {count} episodes, mean {format_return(mean)}"
                print(f"\r{shown}\x1b[K", end="", file=sys.stderr, flush=True)
    finally:
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return episodes
