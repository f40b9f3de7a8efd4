"""``--replay RUN``: compute a run's parameters again from its log, without environments, and compare digests.

Generation by generation: the logged fitness of the plan's perturbations through the strategy's own update, under the
settings and the pace of that generation. A byte that differs anywhere in the log breaks its chain of digests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.config import RunConfig
from es_queue.custom_code import describe_error
from es_queue.errors import EXIT_DONE, RunFolderError
from es_queue.noise import NoiseTable
from es_queue.plan import plan_for
from es_queue.strategies.base import Batch, NoiseRows, Strategy
from master import checkpoint
from master.checkpoint import Checkpoints
from master.course import strategy_of
from master.learn import Used, parts_of, plans_of
from master.loop import digest_of
from master.replay_log import FOLDER, Step, files, frames
from master.state import Anchor, Floats, OpenPublication, RunState

#: A publication has at most so many slots, or eight times a population.
MOST_SLOTS = 2**20
#: What no digest of parameters covers.
UNCHECKED = "observation statistics and step limits"


def replay(run: str, run_dir: Path, noise_dir: Path | None, say: Callable[[str], None] = print) -> int:
    """Replay the whole log and compare its end with the newest checkpoint; returns 0.

    Raises RunFolderError, which names the file and the generation, where anything differs or is missing.
    """
    found = files(run_dir / FOLDER)
    if not found:
        raise RunFolderError(f"{run_dir / FOLDER} holds no replay log of {run}: give --run-dir of the run")
    began = time.monotonic()
    first = int(found[0].stem)
    table: NoiseTable | None = None
    state: RunState | None = None
    for path in found:
        config, start, named = checkpoint.decode(first_frame(path))
        if named != run:
            raise RunFolderError(f"{path} is of run {named[:40]!r}, not {run}: give the --run-dir of {run}")
        table = table or NoiseTable.open(config.noise_size, noise_dir)
        if start.noise != table.digest:
            raise RunFolderError(f"{path} was written with other noise than this es-queue makes: replay it with the es-queue that wrote it")
        if state is not None:
            compare(path, state, digest(config, start), start.generation, config)
        state = replayed(path, config, start, table)
    assert state is not None, "there was a file"
    compared = against_checkpoint(run_dir, state)
    say(
        f"generations {first} to {state.generation} of run {run} computed again in {time.monotonic() - began:.1f} s: "
        f"of the parameters every digest agrees, the last is {digest(config, state)}{compared}"
    )
    return EXIT_DONE


def first_frame(path: Path) -> bytes:
    """The checkpoint with which a file begins. Raises RunFolderError for an empty file."""
    for frame in frames(path, strict=True):
        return frame.payload
    raise RunFolderError(f"{path} is empty: the log has a gap there")


def replayed(path: Path, config: RunConfig, state: RunState, noise: NoiseRows) -> RunState:
    """The state after a file's last generation. Raises RunFolderError at the first that differs."""
    for frame in list(frames(path, strict=True))[1:]:
        step = Step.read(frame.payload)
        compare(path, state, step.digest, step.generation, config)
        try:
            state = following(config, state, step, noise)
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            raise RunFolderError(
                f"{path}: what it holds of generation {step.generation} fits no run of its "
                f"settings ({describe_error(error)[:200]}): restore the log from a copy"
            ) from None
    return state


def following(config: RunConfig, state: RunState, step: Step, noise: NoiseRows) -> RunState:
    """The next generation's state, from what the log says of this one."""
    strategy = strategy_of(config, state.changes, state.generation, size_of(state))
    if step.back is None and step.fitness.shape[1] != strategy.per_slot:
        raise ValueError(f"individuals is {step.fitness.shape[1]}, not {strategy.per_slot}")
    if step.used and sum(len(slots) for _, slots in step.used) != len(step.fitness):
        raise ValueError("used does not have one slot for each row of fitness")
    if step.moments.mean.shape != state.moments.mean.shape or step.moments.m2.shape != state.moments.m2.shape:
        raise ValueError(f"mean has {step.moments.mean.size} numbers, not {state.moments.mean.size}")
    if step.anchored:
        state = replace(state, anchor=Anchor(state.generation, state.strategy, state.moments, state.step_limit, 0.0, 0))
    if step.back is not None:
        if state.anchor is None or state.anchor.generation != step.back:
            raise RunFolderError(f"generation {step.generation} of the replay log goes back to generation {step.back}, which it has not kept")
        strategy = strategy_of(config, (*state.changes, *step.changes), step.back, size_of(state))
        after = state.anchor.strategy
    else:
        after, _ = strategy.learn(state.strategy, batch_of(config, strategy, step, noise, spreads_of(state, strategy, step)))
    changes = (*state.changes, *step.changes)
    fresh = strategy_of(config, changes, state.generation + 1, size_of(state))
    return replace(
        state, generation=state.generation + 1, strategy=fresh.taken_over(after, strategy), moments=step.moments, step_limit=step.step_limit, changes=changes, open=still_open(config, state, strategy, step)
    )  # fmt: skip


def batch_of(config: RunConfig, strategy: Strategy, step: Step, noise: NoiseRows, spreads: dict[str, Floats]) -> Batch:
    """What the strategy learnt from: the plans' noise indices, the logged fitness."""
    used = step.used or ((f"{step.generation}.", np.arange(len(step.fitness))),)
    indices = np.concatenate([indices_of(config, strategy, name, slots) for name, slots in used])
    failed = np.isnan(step.fitness).all(axis=1)
    parts = parts_of([Used(name, slots, spreads[name]) for name, slots in step.used])
    drawn, tried = (plans_of(step.used), plans_of(step.tried)) if step.used else (None, None)
    return Batch(
        noise, np.where(failed, 0, indices), step.fitness, step.again, parts, step.behaviour, step.centre_fitness, step.centre_behaviour, step.generation, drawn, tried
    )  # fmt: skip


def indices_of(config: RunConfig, strategy: Strategy, publication: str, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """The noise indices of slots of a publication. Raises RunFolderError for slots that no publication has."""
    most = max(MOST_SLOTS, 8 * max(config.population, config.population_max))
    if slots.min(initial=0) < 0 or slots.max(initial=0) >= most:
        raise RunFolderError(
            f"publication {publication[:60]} of the replay log has slot "
            f"{slots.min() if slots.min() < 0 else slots.max()}, where 0 to {most - 1} are "
            "possible"
        )
    generation = int(publication.partition(".")[0])
    return plan_for(config, generation, strategy.size, strategy.per_slot).slots(0, int(slots.max(initial=-1)) + 1).noise_indices[slots]


def spreads_of(state: RunState, strategy: Strategy, step: Step) -> dict[str, Floats]:
    """What learning must know of the perturbations of each publication that can be in the batch. Raises RunFolderError for one that is not known."""
    known = {**{one.publication: one.spread for one in state.open}, step.publication: strategy.spread(state.strategy)}
    missing = [name for name, _ in step.used if name not in known]
    if missing:
        raise RunFolderError(f"generation {step.generation} of the replay log learnt from publication {missing[0][:60]}, which the log does not know")
    return known


def still_open(config: RunConfig, state: RunState, strategy: Strategy, step: Step) -> tuple[OpenPublication, ...]:
    """The publications that later batches can have slots of."""
    if not step.used:
        return ()
    own = OpenPublication(step.publication, state.step_limit, strategy.spread(state.strategy), np.empty((0, 2), np.int64))
    return tuple(one for one in (*state.open, own) if step.generation + 1 - one.generation <= config.max_lag)


def size_of(state: RunState) -> int:
    return len(state.strategy["parameters"])


def digest(config: RunConfig, state: RunState) -> str:
    """The digest of what the state publishes."""
    strategy = strategy_of(config, state.changes, state.generation, size_of(state))
    return digest_of(strategy.identified(state.strategy, strategy.published(state.strategy)))


def compare(path: Path, state: RunState, logged: str, generation: int, config: RunConfig) -> None:
    """Raise RunFolderError unless the state is that generation's and publishes what was logged."""
    if state.generation != generation:
        raise RunFolderError(f"{path} goes on with generation {generation} where {state.generation} is due: the log has a gap")
    own = digest(config, state)
    if own != logged:
        raise RunFolderError(f"{path}: the parameters of generation {generation} computed again have the digest {own}, but the run published {logged}")


def against_checkpoint(run_dir: Path, state: RunState) -> str:
    """Compare with the newest checkpoint of the folder: words about it. Raises RunFolderError where it differs."""
    checkpoints = Checkpoints(run_dir)
    data = checkpoints.newest()
    if checkpoints.passed_over:
        raise RunFolderError(f"the log is whole up to generation {state.generation}, but {checkpoints.passed_over[0]}")
    if data is None:
        return f"; there is no checkpoint to compare with, so {UNCHECKED} are as logged"
    config, saved, _ = checkpoint.decode(data)
    if saved.generation > state.generation:
        raise RunFolderError(f"the replay log ends with generation {state.generation}, but the newest checkpoint is of generation {saved.generation}")
    if saved.generation < state.generation:
        return f"; the newest checkpoint is of generation {saved.generation}, so {UNCHECKED} are as logged"
    if digest(config, saved) != digest(config, state):
        raise RunFolderError(f"the parameters of generation {state.generation} computed again differ from the newest checkpoint's")
    for name, own, other in (
        ("observation statistics", state.moments.to_arrays(), saved.moments.to_arrays()),
        ("step limit", {"": np.array(state.step_limit)}, {"": np.array(saved.step_limit)}),
    ):
        if not same(own, other):
            raise RunFolderError(
                f"the {name} of generation {state.generation} in the replay log differs from the "
                "newest checkpoint's: restore the log and the checkpoint from one copy"
            )
    words = ", as the newest checkpoint's; its observation statistics and step limit agree too"
    if state.changes != saved.changes:  # honest after a --resume that set a changed setting anew
        words += ", but the settings changed while the run was under way are others"
    return words


def same(own: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]]) -> bool:
    """Whether arrays have the same names and numbers, NaN like NaN."""
    return own.keys() == other.keys() and all(
        np.array_equal(own[name], other[name], equal_nan=own[name].dtype.kind == "f") for name in own
    )
