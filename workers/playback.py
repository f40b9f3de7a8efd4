"""Plays a policy, or a recorded individual, as a worker does; in a window or into a film if
requested. Then reports what the episodes returned.

Importing this module loads numpy: fix the numeric environment first.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ctypes.util import find_library
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import RunConfig, every_setting
from es_queue.config.settings import COMMAND_LINE
from es_queue.environments.episode_rules import EpisodeRules, evaluation_rules
from es_queue.environments.factory import (
    describe,
    make_reference_batch,
    open_environment,
    resolve,
)
from es_queue.environments.interface import Environment, EnvironmentRequest, RenderedEnvironment
from es_queue.errors import EnvironmentFailure, EsQueueError, RunFolderError, UsageError
from es_queue.numerics.fingerprint import limit_blas_threads
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.statistics import (
    FrozenStatistics,
    bootstrap_interval,
    finite_means,
    means,
    return_statistics,
    sum_in_order,
)
from es_queue.policies import make_policy
from es_queue.private_files import create_new
from es_queue.protocol.messages import FINAL, TRAIN
from es_queue.run_folder import existing_folder
from es_queue.seed_list import open_noise_table
from es_queue.slot_plan import FINAL_SEEDS, evaluation_seeds
from es_queue.slot_record import (
    SlotRecord,
    read_record,
    record_path,
    recorded_generations,
)
from es_queue.text import escape
from es_queue.user_code import describe_error, named_modules, require_trust
from workers.episode import Episode, EpisodeSpec
from workers.player import Player
from workers.policy_files import Checkpoint, format_return

DEFAULT_EPISODES = 100
#: Environment seeds are int32.
SEED_LIMIT = 2**31
#: Between the places of consecutive seeds in the noise table, so that their noise has nothing in
#: common.
SEED_DISTANCE = 1_000_003
#: '+' and '-' as people write them behind a slot's number.
SIGNS = {"+": 0, "-": 1}
#: Fewer episodes show no shape and no interval worth the name.
MIN_FOR_HISTOGRAM, MIN_FOR_INTERVAL = 10, 3
BINS, WIDTH = 10, 40

FrameArray = NDArray[np.uint8]
SUFFIXES = (".gif", ".mp4")
GIF_WIDTH, GIF_COLOURS = 600, 64
#: Frames whose colours are those of the whole GIF.
PALETTE_FRAMES = 16
#: A GIF counts hundredths of a second, and viewers play one faster than this slowly.
GIF_FPS = 25
#: Longer films are cut: every frame is held until the film is written.
MAX_FRAMES, MAX_GIF_FRAMES = 6_000, 1_000


def show_policy(given: Namespace, checkpoint: Checkpoint, elite: dict[str, Any] | None) -> None:
    """Play a policy on the command line's episodes, and print the report.

    elite: what is known about the policy, if it is an elite
    """
    config, trained = checkpoint.config, checkpoint.policy
    seeds = episode_seeds(config, given)
    limit_blas_threads()
    # Playing needs no behaviour, and the code that computes it may not be here.
    request = playable_request(replace(EnvironmentRequest.of(config), behaviour=""), given)
    spec, size = describe(request), len(trained.statistics.mean)
    if spec.observation_size != size or spec.action != trained.action:
        raise RunFolderError(
            f"{checkpoint.path} does not fit the installed {spec.id}: it takes observations of "
            f"{size} numbers and gets {spec.observation_size}, or their actions differ"
        )
    policy = make_policy(
        *(config, spec.observation_size, spec.action, spec.observation_shape),
        trained.policy.reference,
    )
    noise = make_noise(checkpoint) if given.stochastic else None
    keys = [None if noise is None else seed * SEED_DISTANCE for seed in seeds]
    specs = [
        EpisodeSpec(trained.parameters, seed, key=key)
        for seed, key in zip(seeds, keys, strict=True)
    ]
    rules = evaluation_rules(config, spec.step_limit)
    statistics = trained.statistics if config.obs_norm else None
    with opened(request, given) as (env, recorder):
        player = Player(config, spec, policy, env, noise=noise)
        episodes = play_all(player, specs, rules, statistics, recorder)
        video_line = save_video(recorder)
    about = {
        "run": checkpoint.run,
        "checkpoint": str(checkpoint.path),
        "generation": checkpoint.generation,
        "env": config.problem,
        "policy": config.policy_name,
        "command": checkpoint.command,
        "stochastic": given.stochastic,
        **({} if elite is None else {"elite": elite}),
    }
    compares = given.seed is None and not (given.stochastic or given.env_arg)
    evaluation = checkpoint.evaluation if compares else None
    summary = summarize(about, given.seed, episodes, evaluation, spec.info)
    print_played(summary, format_summary(summary), episodes, video_line, given)


def episode_seeds(config: RunConfig, given: Namespace) -> list[int]:
    """The seeds of the command line's episodes, by default those of the final evaluation."""
    count = given.episodes or config.final_episodes or DEFAULT_EPISODES
    first: int | None = given.seed
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


def playable_request(request: EnvironmentRequest, given: Namespace) -> EnvironmentRequest:
    """The request with the given arguments, for a back end that plays one by one. EnvPool cannot
    draw, so Gymnasium's own environment is drawn, with a note.
    """
    more = every_setting()["env_arg"].checked(given.env_arg or (), COMMAND_LINE)
    request = replace(request, arguments=tuple({**dict(request.arguments), **dict(more)}.items()))
    portable = resolve(request).portable
    if portable.backend != "envpool" or not (given.render or given.record):
        return portable
    print(
        f"es-play: EnvPool cannot draw, so Gymnasium's own {escape(request.id)} plays: its "
        "episodes differ from those in training",
        file=sys.stderr,
    )
    return replace(portable, backend="stock")


@contextmanager
def opened(
    request: EnvironmentRequest, given: Namespace
) -> Iterator[tuple[Environment, VideoRecorder | None]]:
    """The environment, and its film if requested."""
    recorder: VideoRecorder | None = None
    try:
        env: Environment
        if given.record is not None:
            env = rendered = open_environment(request, "rgb_array")
            recorder = VideoRecorder(rendered, given.record, rendered.fps, given.caption)
        elif given.render is not None:
            env = open_environment(request, given.render)
        else:
            env = open_environment(request)
    except (EsQueueError, KeyboardInterrupt):
        raise
    except Exception as error:  # whatever a window or a user's environment raises
        raise EnvironmentFailure(
            f"{request.id} cannot be opened: {describe_error(error)}"
        ) from error
    try:
        yield env, recorder
    finally:
        env.close()


def make_noise(checkpoint: Checkpoint) -> NoiseTable:
    """The table of the action noise of training."""
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


def play_all(
    player: Player,
    specs: Sequence[EpisodeSpec | Exception],
    rules: EpisodeRules,
    statistics: FrozenStatistics | None,
    recorder: VideoRecorder | None,
) -> list[Episode]:
    """The episodes, by a worker's functions and arithmetic; on a terminal with their mean so far.
    Raises EnvironmentFailure.
    """
    on_step = recorder.capture if recorder else None
    terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    episodes, total = list[Episode](), 0.0
    try:
        with np.errstate(all="ignore"):
            results = player.play_episodes(specs, len(specs), rules, statistics, on_step)
            for one, result in zip(specs, results, strict=True):
                # whatever a user's environment raises, and a return that is not finite
                if isinstance(result, Exception):
                    seed = f" of seed {one.seed}" if isinstance(one, EpisodeSpec) else ""
                    raise EnvironmentFailure(
                        f"{player.spec.id} fails in the episode{seed}: "
                        f"{type(result).__name__}: {result}"
                    ) from result
                episodes.append(result)
                total += result.total
                if terminal:
                    mean = format_return(total / len(episodes))
                    shown = f"{len(episodes)} of {len(specs)} episodes, mean {mean}"
                    print(f"\r{shown}\x1b[K", end="", file=sys.stderr, flush=True)
    finally:
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return episodes


# --- a recorded generation: any of its individuals, on its own episodes


def parse_individual(generation: str, slot: str | None) -> tuple[int, int | None, int]:
    """``--generation 12`` and ``--slot 7-`` as generation, slot and individual 0 or 1; without a
    slot the unperturbed policy, without a sign the first individual. Raises UsageError.
    """
    if not (generation.isascii() and generation.isdigit()):
        raise UsageError(f"--generation is {generation!r}: use a whole number from 0")
    if slot is None:
        return int(generation), None, 0
    number, sign = (slot[:-1], slot[-1]) if slot[-1:] in SIGNS else (slot, "+")
    if not (number.isascii() and number.isdigit()):
        raise UsageError(f"--slot is {slot!r}: use a slot's number and its sign, such as 7- or 7+")
    return int(generation), int(number), SIGNS[sign]


def find_snapshot(given: Namespace) -> Path | None:
    """The checkpoint of the requested generation's unperturbed policy, if the run has it."""
    generation, slot, _ = parse_individual(given.generation, given.slot)
    file = f"checkpoints/generation-{generation:08d}.npz"
    path = existing_folder(given.checkpoint, given.runs_dir) / file
    return path if slot is None and path.is_file() else None


def show_individual(given: Namespace) -> None:
    """Rebuild a recorded individual, play its own episodes again, and print whether they are equal.
    The unperturbed policy plays those of the final evaluation.
    """
    generation, slot, individual = parse_individual(given.generation, given.slot)
    name = "the unperturbed policy" if slot is None else f"slot {slot}{'+-'[individual]}"
    path = record_path(existing_folder(given.checkpoint, given.runs_dir), generation)
    record = load_record(path, generation)
    row = None if slot is None else record.row(slot, individual)
    if slot is not None and row is None:
        raise RunFolderError(f"generation {generation} has no {name}: {record.format_extent()}")
    episodes, video_line = play_recorded(given, record, generation, slot, individual)
    about = {
        "run": record.run,
        "checkpoint": str(path),
        "generation": generation,
        "env": record.config.problem,
        "policy": record.config.policy_name,
    }
    compared: dict[str, Any] = {"recorded": None, "equal": None}
    if row is not None and not math.isnan(row["return"]):
        totals = [episode.total for episode in episodes]
        compared = {
            "recorded": row["return"],
            "equal": sum_in_order(totals) / len(totals) == row["return"],
            "noise_index": row["noise_index"],
            "fitness": row["fitness"],
        }
    summary = {
        **summarize(about, given.seed, episodes, None, record.config.info),
        "slot": None if slot is None else name.removeprefix("slot "),
        **compared,
    }
    lines = [f"{format_policy(summary)}, {name}", format_played(summary)]
    if summary["equal"] is not None:
        lines.append(
            f"{'equal to' if summary['equal'] else 'not equal to'} the worker's result: "
            f"{summary['recorded']!r}, noise index {summary['noise_index']}, fitness "
            f"{summary['fitness']:.6g}"
        )
    print_played(summary, lines, episodes, video_line, given)


def load_record(path: Path, generation: int) -> SlotRecord:
    if not path.is_file():
        kept = recorded_generations(path.parent.parent)
        found = "the run has kept none (--keep-generations)"
        if kept:
            newest = ", ".join(map(str, kept[-8:]))
            found = f"it has {len(kept)} from {kept[0]} to {kept[-1]}; the newest are {newest}"
        raise RunFolderError(f"{path.parent} has no generation {generation}: {found}")
    record = read_record(path)
    require_trust(str(path), named_modules(record.config))
    if not len(record.published):
        raise RunFolderError(
            f"{path} holds no parameters, because {record.task.size:,} floats per generation are "
            "too many to keep: play a checkpoint instead"
        )
    return record


def play_recorded(
    given: Namespace, record: SlotRecord, generation: int, slot: int | None, individual: int
) -> tuple[list[Episode], str]:
    """The episodes, and a line about their film."""
    limit_blas_threads()
    config = record.config
    request = playable_request(EnvironmentRequest.of(config), given)
    spec = describe(request)
    policy = make_policy(
        *(config, spec.observation_size, spec.action, spec.observation_shape),
        make_reference_batch(config),
    )
    try:
        table = open_noise_table(config, policy.size)
    except ValueError as error:
        raise RunFolderError(
            f"generation {generation} of run {record.run} cannot be played: {error}"
        ) from None
    if table.digest != record.task.noise:
        raise RunFolderError(
            f"run {record.run} used a different noise table from this version's: play it with the "
            "version of es-queue that trained it"
        )
    with opened(request, given) as (env, recorder):
        player = Player(config, spec, policy, env, noise=table)
        if not player.fits(record.task):
            raise RunFolderError(
                f"generation {generation} was played with observation or action spaces "
                f"that differ from those of the installed {spec.id}"
            )
        player.open(record.task, record.published)
        specs: list[EpisodeSpec | Exception]
        if slot is None:
            centre = player.strategy.centre(record.published)
            specs, kind = (
                [EpisodeSpec(centre, seed) for seed in episode_seeds(config, given)],
                FINAL,
            )
        else:
            specs, kind = player.individual(slot, individual), TRAIN
        episodes = play_all(player, specs, player.rules(kind), player.statistics, recorder)
        return episodes, save_video(recorder)


# --- the report


def summarize(
    about: Mapping[str, Any],
    seed: int | None,
    episodes: Sequence[Episode],
    evaluation: Mapping[str, Any] | None,
    info: Sequence[str],
) -> dict[str, Any]:
    """``about`` with the figures, and a comparison with the recorded ``evaluation``.

    info: names of what the environment reported. recorded and equal are None if the episodes
    differ. interval: of the mean, 95 % by bootstrap over episodes, None for fewer than three
    """
    returns = [episode.total for episode in episodes]
    figures = return_statistics(returns)
    assert figures is not None  # at least one episode is played
    recorded = (evaluation or {}).get("eval_mean")
    if (evaluation or {}).get("eval_episodes") != figures.count or not (
        isinstance(recorded, (int, float)) and recorded == recorded
    ):
        recorded = None
    has_interval = figures.count >= MIN_FOR_INTERVAL
    return {
        **about,
        "episodes": figures.count,
        "seed": seed,
        "eval_mean": figures.mean,
        "eval_std": figures.std,
        "eval_min": figures.minimum,
        "eval_max": figures.maximum,
        "interval": list(bootstrap_interval(returns, means)) if has_interval else None,
        "length_mean": sum(episode.steps for episode in episodes) / len(episodes),
        "info": finite_means(info, np.array([one.info for one in episodes])) if info else {},
        "recorded": None if recorded is None else float(recorded),
        "equal": None if recorded is None else figures.mean == recorded,
    }


def print_played(
    summary: Mapping[str, Any],
    lines: Sequence[str],
    episodes: Sequence[Episode],
    video_line: str,
    given: Namespace,
) -> None:
    if given.json:
        print(json.dumps(summary, allow_nan=False), file=given.out)
        return
    histogram = format_histogram([episode.total for episode in episodes])
    print("\n".join([*lines, *histogram, *filter(None, [video_line])]))


def format_policy(summary: Mapping[str, Any]) -> str:
    generation = "" if summary["generation"] is None else f", generation {summary['generation']}"
    return (
        f"{escape(summary['checkpoint'])}: {escape(summary['env'])}, "
        f"{summary['policy']} policy of run {escape(summary['run'])}{generation}"
    )


def format_played(summary: Mapping[str, Any], kind: str = "") -> str:
    plural = "" if summary["episodes"] == 1 else "s"
    info = "".join(f", {name} {mean:.4g}" for name, mean in summary["info"].items())
    return f"{summary['episodes']} episode{plural}{kind}: {format_figures(summary)}{info}"


def format_summary(summary: Mapping[str, Any]) -> list[str]:
    seed, elite = summary["seed"], summary.get("elite")
    kind = " with the final evaluation's seeds" if elite else " of the final evaluation"
    kind = kind if seed is None else f" from seed {seed} on"
    kind += ", with action noise" if summary["stochastic"] else ""
    lines = [format_policy(summary)]
    if elite:
        requested, behaviour = (
            ", ".join(f"{number:.6g}" for number in elite[name])
            for name in ("requested", "behaviour")
        )
        nearest = "" if elite["contains"] else f", the nearest: the cell of {requested} is empty"
        lines.append(
            f"elite of cell {elite['cell']}: behaviour {behaviour}, fitness "
            f"{format_return(elite['fitness'])} in training{nearest}"
        )
    if summary["command"]:
        lines.append(f"trained with: {escape(summary['command'])}")
    lines.append(format_played(summary, kind))
    if summary["equal"]:
        lines.append(f"equal to the recorded evaluation to the last digit: {summary['recorded']!r}")
    elif summary["equal"] is False:
        lines.append(
            f"not equal to the recorded evaluation: {summary['eval_mean']!r} against "
            f"{summary['recorded']!r} "
            "(another CPU type or another version of numpy or of the environment gives different "
            "bits)"
        )
    return lines


def format_figures(summary: Mapping[str, Any]) -> str:
    if summary["episodes"] == 1:
        return f"{format_return(summary['eval_mean'])} in {summary['length_mean']:.0f} steps"
    names = ("mean", "std", "min", "max")
    mean, std, least, most = (format_return(summary[f"eval_{name}"]) for name in names)
    length = f"mean length {summary['length_mean']:.1f} steps"
    if least == most:
        return f"{mean} in each, {length}"
    bounds = " to ".join(map(format_return, summary["interval"] or ()))
    interval = f" (95 % of the mean: {bounds})" if bounds else ""
    return f"{mean} ± {std}{interval}, min {least}, max {most}, {length}"


def format_histogram(returns: Sequence[float]) -> list[str]:
    """One line per range of returns; nothing for a few episodes, or equal ones."""
    low, high = min(returns), max(returns)
    if len(returns) < MIN_FOR_HISTOGRAM or not low < high or math.isinf(high - low):
        return []
    counts, edges = np.histogram(returns, BINS, (low, high))
    digits = min(9, max(0, 1 - math.floor(math.log10((high - low) / BINS))))
    wide = max(len(f"{edge:.{digits}f}") for edge in edges)
    return [
        (
            f"  {start:{wide}.{digits}f} … {stop:{wide}.{digits}f}  "
            f"{'█' * round(WIDTH * count / counts.max())}{' ' if count else ''}{count or ''}"
        ).rstrip()
        for start, stop, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]


# --- films, without a screen: a GIF by Pillow, or an MP4 by imageio-ffmpeg


class VideoRecorder:
    """Records frames of ``env``: every n-th, so that the film runs at the environment's own speed.

    fps: the environment's frames per second; has_caption: whether frames show step and return
    most: frames; is_truncated: whether frames were left out
    """

    def __init__(
        self, env: RenderedEnvironment, path: Path, fps: float, has_caption: bool = False
    ) -> None:
        self._env, self.path, self._has_caption = env, path, has_caption
        self._gif = path.suffix.lower() == ".gif"
        self._every = max(1, round(fps / GIF_FPS)) if self._gif else 1
        self.fps = fps / self._every
        self.most = MAX_GIF_FRAMES if self._gif else MAX_FRAMES
        self._step, self._frames = 0, list[FrameArray]()
        self.is_truncated = False

    def capture(self, step: int, total: float) -> None:
        self._step += 1
        if self._step % self._every:
            return
        if len(self._frames) >= self.most:
            self.is_truncated = True
            return
        frame = self._env.render()
        if frame is None:
            raise EnvironmentFailure("the environment renders no images: leave --record out")
        # optional: Pillow
        from PIL import Image, ImageDraw, ImageFont

        image = Image.fromarray(frame)
        width, height = image.size
        if not self._gif:  # H.264 needs an even height and width
            image = image.crop((0, 0, width - width % 2, height - height % 2))
        elif width > GIF_WIDTH:
            height = round(height * GIF_WIDTH / width)
            image = image.resize((GIF_WIDTH, height), Image.Resampling.BILINEAR)
        if self._has_caption:
            image, size = image.convert("RGB"), max(11, image.height // 22)
            ImageDraw.Draw(image).text(
                (size // 2, size // 3),
                f"step {step}   return {format_return(total)}",
                fill="white",
                font=ImageFont.load_default(size),
                stroke_width=2,
                stroke_fill="black",
            )
        self._frames.append(np.asarray(image))

    def save(self) -> int:
        """Whole or not at all; returns its bytes. Raises RunFolderError."""
        fresh = self.path.with_name(
            f".{self.path.stem}.{secrets.token_hex(8)}{self.path.suffix.lower()}"
        )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(create_new(fresh))  # nobody's link is in its place
            (write_gif if self._gif else write_mp4)(fresh, self._frames, self.fps)
            fresh.replace(self.path)
            return self.path.stat().st_size
        except OSError as error:
            raise RunFolderError(
                f"--record {self.path} cannot be written: {error.strerror or error}"
            ) from None
        finally:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)


def save_video(recorder: VideoRecorder | None) -> str:
    """A line about the film, empty if there is none."""
    if recorder is None:
        return ""
    size = recorder.save()
    cut = f", only the first {recorder.most:,} frames" if recorder.is_truncated else ""
    return f"filmed in {escape(str(recorder.path))} ({size / 1024:,.0f} kB{cut})"


def validate_recording(path: Path) -> None:
    """Raises UsageError for a film that cannot be made here, before an episode is played."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--record is {path}: its name must end in {' or '.join(SUFFIXES)}")
    try:
        # optional: Pillow
        import PIL.Image  # noqa: F401 - is it there?

        if path.suffix.lower() == ".mp4":
            # optional: imageio-ffmpeg
            import imageio_ffmpeg  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"--record {path} needs a package that is not installed ({error.name}): "
            "pip install 'es-queue[video]'"
        ) from None


def choose_offscreen_drawing() -> None:
    """Unless the user has chosen: SDL draws off screen, and MuJoCo takes EGL or OSMesa if there is
    no screen. Call it before MuJoCo is imported.
    """
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if sys.platform.startswith("linux") and not os.environ.get("DISPLAY"):
        libraries = {"egl": "EGL", "osmesa": "OSMesa"}
        if usable := [name for name, library in libraries.items() if find_library(library)]:
            os.environ.setdefault("MUJOCO_GL", usable[0])


def write_gif(path: Path, frames: list[FrameArray], fps: float) -> None:
    """One palette for all frames: what does not change takes no space."""
    # optional: Pillow
    from PIL import Image

    sample = frames[:: -(-len(frames) // PALETTE_FRAMES)]
    palette = Image.fromarray(np.concatenate(sample)).quantize(GIF_COLOURS)
    first, *others = (
        Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE)
        for frame in frames
    )
    first.save(
        path,
        format="GIF",
        save_all=True,
        append_images=others,
        duration=round(1000 / fps),
        loop=0,
        optimize=False,
    )


def write_mp4(path: Path, frames: list[FrameArray], fps: float) -> None:
    # optional: imageio-ffmpeg
    import imageio_ffmpeg

    height, width = frames[0].shape[:2]
    writer: Any = imageio_ffmpeg.write_frames(
        str(path), (width, height), fps=fps, macro_block_size=2, quality=7, ffmpeg_log_level="error"
    )
    writer.send(None)
    for frame in frames:
        writer.send(frame)
    writer.close()
