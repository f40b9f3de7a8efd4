"""Rebuilds any recorded individual, and plays its own episodes again.

Without a slot, it is the generation's unperturbed policy, on the final evaluation's episodes.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from es_queue.environments.factory import describe, make_reference_batch
from es_queue.environments.interface import EnvironmentRequest
from es_queue.errors import EnvironmentFailure, EsQueueError, RunFolderError, UsageError
from es_queue.numerics.fingerprint import limit_blas_threads
from es_queue.numerics.statistics import sum_in_order
from es_queue.policies import make_policy
from es_queue.run_folder import existing_folder
from es_queue.seed_list import open_noise_table
from es_queue.slot_record import (
    FOLDER,
    SlotRecord,
    read_record,
    record_path,
    recorded_generations,
)
from es_queue.strategies import make_strategy
from es_queue.user_code import named_modules, require_trust
from workers.episode import Episode, EpisodeControl, OnStep
from workers.play.playback import (
    Drawing,
    episode_seeds,
    open_playback,
    playable_request,
    save_video,
)
from workers.play.report import format_played, format_policy, print_played, summarize
from workers.player import Player

#: '+' and '-' as people write them behind a slot's number.
SIGNS = {"+": 0, "-": 1}


@dataclass(frozen=True)
class IndividualSelector:
    """An individual of a generation: ``individual`` 0 or 1 of the slot; slot None for the
    unperturbed policy.
    """

    generation: int
    slot: int | None = None
    individual: int = 0

    @property
    def name(self) -> str:
        return (
            "the unperturbed policy"
            if self.slot is None
            else f"slot {self.slot}{'+-'[self.individual]}"
        )


def parse_selector(generation: str, slot: str | None) -> IndividualSelector:
    """The selector for ``--generation 12`` and ``--slot 7-``; a slot without a sign is its first
    individual. Raises UsageError.
    """
    if not (generation.isascii() and generation.isdigit()):
        raise UsageError(f"--generation is {generation!r}: use a whole number from 0")
    if slot is None:
        return IndividualSelector(int(generation))
    number, sign = (slot[:-1], slot[-1]) if slot[-1:] in SIGNS else (slot, "+")
    if not (number.isascii() and number.isdigit()):
        raise UsageError(f"--slot is {slot!r}: use a slot's number and its sign, such as 7- or 7+")
    return IndividualSelector(int(generation), int(number), SIGNS[sign])


def find_snapshot(given: Namespace) -> Path | None:
    """The checkpoint of the requested generation's unperturbed policy, if the run's folder has it.
    Raises UsageError for an invalid generation.
    """
    selector = parse_selector(given.generation, given.slot)
    file = f"checkpoints/generation-{selector.generation:08d}.npz"
    path = existing_folder(given.checkpoint, given.runs_dir) / file
    return path if selector.slot is None and path.is_file() else None


def load_record(run_dir: Path, selector: IndividualSelector) -> SlotRecord:
    """The generation's record. Raises RunFolderError if it was not kept or cannot be used."""
    path = record_path(run_dir, selector.generation)
    if not path.is_file():
        raise RunFolderError(
            f"{run_dir / FOLDER} has no generation {selector.generation}: "
            f"{format_kept(recorded_generations(run_dir))}"
        )
    record = read_record(path)
    require_trust(str(path), named_modules(record.config))
    if not len(record.published):
        raise RunFolderError(
            f"{path} holds no parameters, because {record.task.size:,} floats per generation are "
            "too many to keep: play a checkpoint instead"
        )
    if selector.slot is not None and record.row(selector.slot, selector.individual) is None:
        raise RunFolderError(
            f"generation {selector.generation} has no {selector.name}: {record.format_extent()}"
        )
    return record


def format_kept(generations: Sequence[int]) -> str:
    if not generations:
        return "the run has kept none (--keep-generations)"
    return (
        f"it has {len(generations)} from {generations[0]} to {generations[-1]}; the newest are "
        f"{', '.join(map(str, generations[-8:]))}"
    )


def replay_episodes(
    record: SlotRecord,
    selector: IndividualSelector,
    player: Player,
    seeds: list[int],
    on_step: OnStep | None,
) -> list[Episode]:
    """The individual's own episodes, or the unperturbed policy's on ``seeds``. Raises
    EnvironmentFailure.
    """
    try:
        if selector.slot is None:
            return player.play_centre(seeds, on_step)
        return player.play_individual(selector.slot, selector.individual, on_step)
    except EsQueueError:
        raise
    except Exception as error:  # whatever a user's environment raises
        raise EnvironmentFailure(
            f"{record.config.task} fails when it is played: {type(error).__name__}: {error}"
        ) from error


def play_recorded(
    given: Namespace, record: SlotRecord, selector: IndividualSelector
) -> tuple[list[Episode], str]:
    """The episodes, and a line about their film. Raises RunFolderError if the record does not fit
    the installed environment.
    """
    limit_blas_threads()
    config = record.config
    drawing = Drawing.of(given)
    request = playable_request(EnvironmentRequest.of(config), drawing)
    spec = describe(request)
    policy = make_policy(
        *(config, spec.observation_size, spec.action, spec.observation_shape),
        make_reference_batch(config),
    )
    try:
        table = open_noise_table(config, policy.size)
    except ValueError as error:
        raise RunFolderError(
            f"generation {selector.generation} of run {record.run} cannot be played: {error}"
        ) from None
    if table.digest != record.task.noise:
        raise RunFolderError(
            f"run {record.run} used a different noise table from this version's: play it with the "
            "version of es-queue that trained it"
        )
    with open_playback(request, spec.id, drawing) as (env, recorder):
        strategy = make_strategy(config, policy.size)
        player = Player(config, spec, policy, strategy, table, EpisodeControl(), env)
        if not player.fits(record.task):
            raise RunFolderError(
                f"generation {selector.generation} was played with observation or action spaces "
                f"that differ from those of the installed {spec.id}"
            )
        player.open(record.task, record.published)
        episodes = replay_episodes(
            record,
            selector,
            player,
            episode_seeds(config, given.episodes, given.seed),
            recorder.capture if recorder else None,
        )
        return episodes, save_video(recorder)


def show_individual(given: Namespace) -> None:
    selector = parse_selector(given.generation, given.slot)
    folder = existing_folder(given.checkpoint, given.runs_dir)
    record = load_record(folder, selector)
    episodes, video_line = play_recorded(given, record, selector)
    about = {
        "run": record.run,
        "checkpoint": str(record_path(folder, selector.generation)),
        "generation": selector.generation,
        "env": record.config.task,
        "policy": record.config.policy_name,
    }
    summary = {
        **summarize(about, given.seed, episodes, None),
        "slot": None if selector.slot is None else selector.name.removeprefix("slot "),
        **compare_recorded(record, selector, episodes),
    }
    print_played(
        summary, format_report(summary, selector), episodes, video_line, as_json=given.json
    )


def compare_recorded(
    record: SlotRecord, selector: IndividualSelector, episodes: Sequence[Episode]
) -> dict[str, Any]:
    row = None if selector.slot is None else record.row(selector.slot, selector.individual)
    if row is None or row["return"] != row["return"]:
        return {"recorded": None, "equal": None}
    totals = [episode.total for episode in episodes]
    return {
        "recorded": row["return"],
        "equal": sum_in_order(totals) / len(totals) == row["return"],
        "noise_index": row["noise_index"],
        "fitness": row["fitness"],
    }


def format_report(summary: Mapping[str, Any], selector: IndividualSelector) -> list[str]:
    lines = [f"{format_policy(summary)}, {selector.name}", format_played(summary)]
    if summary["equal"] is not None:
        lines.append(
            f"{'equal to' if summary['equal'] else 'not equal to'} the worker's result: "
            f"{summary['recorded']!r}, noise index {summary['noise_index']}, fitness "
            f"{summary['fitness']:.6g}"
        )
    return lines
