"""Any individual that ever lived, again: made from a generation's record as a worker made it, on its own episodes.

Without a slot it is the generation's unperturbed policy, on the final evaluation's episodes.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from es_queue.errors import EnvironmentFailure, EsQueueError, RunFolderError, UsageError
from workers.told import figures_shown, histogram, outcome, shown

if TYPE_CHECKING:
    from es_queue.slot_record import SlotRecord
    from workers.evaluate import Evaluator
    from workers.rollout import Episode

#: '+' and '-' as people write them behind a slot's number.
SIGNS = {"+": 0, "-": 1}


@dataclass(frozen=True)
class Wanted:
    """Who of a generation: ``individual`` 0 or 1 of the slot; slot None for the unperturbed policy."""

    generation: int
    slot: int | None = None
    individual: int = 0

    @property
    def name(self) -> str:
        return "the unperturbed policy" if self.slot is None else f"slot {self.slot}{'+-'[self.individual]}"


def parse_wanted(generation: str, slot: str | None) -> Wanted:
    """Of ``--generation 12`` and ``--slot 7-``; a slot without a sign is its first individual. Raises UsageError."""
    if not (generation.isascii() and generation.isdigit()):
        raise UsageError(f"--generation is {generation!r}: use a whole number from 0")
    if slot is None:
        return Wanted(int(generation))
    number, sign = (slot[:-1], slot[-1]) if slot[-1:] in SIGNS else (slot, "+")
    if not (number.isascii() and number.isdigit()):
        raise UsageError(f"--slot is {slot!r}: use a slot's number and its sign, such as 7- or 7+")
    return Wanted(int(generation), int(number), SIGNS[sign])


def record_of(run_dir: Path, wanted: Wanted) -> SlotRecord:
    """The generation's record. Raises UsageError or RunFolderError where it was not kept or cannot be used."""
    from es_queue.slot_record import FOLDER, file_of, generations_in, read_record

    if not run_dir.is_dir():
        raise UsageError(f"--generation wants the folder of a run, and {run_dir} is none")
    path = file_of(run_dir, wanted.generation)
    if not path.is_file():
        raise RunFolderError(f"{run_dir / FOLDER} holds no generation {wanted.generation}: {kept(generations_in(run_dir))}")
    record = read_record(path)
    if not len(record.published):
        raise RunFolderError(f"{path} holds no parameters, since {record.task.size:,} floats a generation are too many to keep: play a checkpoint instead")
    if wanted.slot is not None and record.row(wanted.slot, wanted.individual) is None:
        raise RunFolderError(f"generation {wanted.generation} has no {wanted.name}: {record.extent()}")
    return record


def kept(generations: Sequence[int]) -> str:
    """Which generations there are, in a few words."""
    if not generations:
        return "the run has kept none (--keep-slots)"
    return f"it has {len(generations)} of {generations[0]} to {generations[-1]}, the newest of them {', '.join(map(str, generations[-8:]))}"


def relive(record: SlotRecord, wanted: Wanted, evaluator: Evaluator, seeds: list[int], look: Callable[[], None] | None) -> list[Episode]:
    """The individual's own episodes, or the unperturbed policy's on ``seeds``. Raises EnvironmentFailure."""
    try:
        if wanted.slot is None:
            return evaluator.centre(record.task, record.published, seeds, look)
        return evaluator.individual(record.task, record.published, wanted.slot, wanted.individual, look)
    except EsQueueError:
        raise
    except Exception as error:  # whatever a user's environment raises
        raise EnvironmentFailure(f"{record.config.task} fails when played: {type(error).__name__}: {error}") from error


def played(given: Namespace, record: SlotRecord, wanted: Wanted) -> tuple[list[Episode], str]:
    """The episodes, and a line about their film. Raises RunFolderError where the record does not fit what is installed."""
    from es_queue.environments import describe, everywhere
    from es_queue.environments.reference import reference_of
    from es_queue.numerics import single_threaded_blas
    from es_queue.policies import make_policy
    from es_queue.seed_list import table_of
    from es_queue.strategies import make_strategy
    from workers.evaluate import Evaluator
    from workers.join import environment_request
    from workers.play import opened, saved, seeds_of
    from workers.rollout import Watch

    single_threaded_blas()
    config = record.config
    request = everywhere(environment_request(config))
    spec = describe(request)
    policy = make_policy(config, spec.observation_size, spec.action, spec.observation_shape, reference_of(config))
    try:
        table = table_of(config, policy.size)
    except ValueError as error:
        raise RunFolderError(f"generation {wanted.generation} of run {record.run} cannot be played: {error}") from None
    if table.digest != record.task.noise:
        raise RunFolderError(f"run {record.run} was made with other noise than this es-queue makes: play it with the es-queue that made it")
    with opened(request, spec.id, given.render, given.record) as (world, film):
        evaluator = Evaluator(config, spec, world, policy, make_strategy(config, policy.size), table, Watch())
        if not evaluator.fits(record.task):
            raise RunFolderError(f"generation {wanted.generation} was played in other spaces than the installed {spec.id} has")
        episodes = relive(record, wanted, evaluator, seeds_of(config, given.episodes, given.seed), film.look if film else None)
        return episodes, saved(film)


def show_ancestor(given: Namespace) -> None:
    """Play and print whom ``--generation`` and ``--slot`` name."""
    wanted = parse_wanted(given.generation, given.slot)
    record = record_of(given.checkpoint, wanted)
    episodes, film = played(given, record, wanted)
    about = {"run": record.run, "checkpoint": str(given.checkpoint), "generation": wanted.generation, "env": record.config.task, "policy": record.config.policy_name}
    found = {**outcome(about, given.seed, episodes, None), "slot": None if wanted.slot is None else wanted.name.removeprefix("slot "), **compared(record, wanted, episodes)}
    if given.json:
        print(json.dumps(found, allow_nan=False))
    else:
        print("\n".join([*told(found, wanted), *histogram([one.total for one in episodes]), *filter(None, [film])]))


def compared(record: SlotRecord, wanted: Wanted, episodes: Sequence[Episode]) -> dict[str, Any]:
    """What was recorded of the individual, and whether it is the same again."""
    row = None if wanted.slot is None else record.row(wanted.slot, wanted.individual)
    if row is None or row["return"] != row["return"]:
        return {"recorded": None, "equal": None}
    from workers.evaluate import mean

    return {"recorded": row["return"], "equal": mean([one.total for one in episodes]) == row["return"], "noise_index": row["noise_index"], "fitness": row["fitness"]}


def told(found: Mapping[str, Any], wanted: Wanted) -> list[str]:
    lines = [
        f"{shown(found['checkpoint'])}: {shown(found['env'])}, {found['policy']} policy of run {shown(found['run'])}, generation {wanted.generation}, {wanted.name}",
        f"{found['episodes']} {'episode' if found['episodes'] == 1 else 'episodes'}: {figures_shown(found)}",
    ]
    if found["equal"] is not None:
        lines.append(f"{'equal to' if found['equal'] else 'not equal to'} what its worker answered: {found['recorded']!r}, noise index {found['noise_index']}, fitness {found['fitness']:.6g}")
    return lines
