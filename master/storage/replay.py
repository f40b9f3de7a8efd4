"""``--replay RUN``: computes a run's parameters again from its log, without environments, and
compares digests.

The strategy's own update gets the logged fitness of each generation, under the settings of that
generation. A changed byte anywhere in the log breaks its chain of digests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.errors import EXIT_DONE, RunFolderError
from es_queue.numerics.arrays import Integers, NoiseRows
from es_queue.numerics.noise_table import NoiseTable
from es_queue.slot_plan import make_generation_plan
from es_queue.strategies.base import Batch, Strategy
from es_queue.user_code import describe_error, named_modules, require_trust
from master.loop import checkpoint
from master.loop.checkpoint import Checkpoints
from master.loop.config_timeline import strategy_of
from master.loop.loop import run_digest
from master.loop.state import CurrentDescent, OpenPublication, RollbackPoint, RunState
from master.storage.replay_log import (
    REPLAY_FOLDER,
    LogFrame,
    ReplayStep,
    list_log_files,
    read_frames,
)

#: A publication has at most so many slots, or eight times a population.
MOST_SLOTS = 2**20
#: What a strategy raises for arrays and settings that do not fit it.
MISMATCH = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
#: What no digest of parameters covers.
UNCHECKED = "observation statistics and step limit"


def replay_run(
    run: str,
    run_dir: Path,
    noise_dir: Path | None,
    write: Callable[[str], None] = print,
    trust: bool = False,
) -> int:
    """Replay the whole log and compare its end with the newest checkpoint; returns 0.

    Raises RunFolderError with file and generation if anything differs or is missing.
    """
    log_files = list_log_files(run_dir / REPLAY_FOLDER)
    if not log_files:
        raise RunFolderError(
            f"{run_dir / REPLAY_FOLDER} holds no replay log of {run}: give --run-dir of the run"
        )
    began = time.monotonic()
    table: NoiseTable | None = None
    state: RunState | None = None
    for path in log_files:
        frames = read_frames(path, strict=True)
        first = next(frames, None)
        if first is None:
            raise RunFolderError(f"{path} is empty: the log has a gap there")
        config, start, logged_run = checkpoint.decode(first.payload)
        require_trust(str(path), named_modules(config), trust)
        if logged_run != run:
            raise RunFolderError(
                f"{path} belongs to run {logged_run[:40]!r}, not {run}: give the --run-dir of {run}"
            )
        table = table or NoiseTable.open(config.noise_size, noise_dir)
        if start.noise != table.digest:
            raise RunFolderError(
                f"{path} was written with another version of the noise table: replay it with "
                f"the es-queue that wrote it"
            )
        if state is not None:
            verify_digest(path, state, state_digest(config, start), start.generation, config)
        state = replay_steps(path, frames, config, start, table)
    assert state is not None, "there was a file"
    compared = compare_with_checkpoint(run_dir, state, trust)
    write(
        f"generations {int(log_files[0].stem)} to {state.generation} of run {run} recomputed in "
        f"{time.monotonic() - began:.1f} s: every digest of the parameters agrees, the last is "
        f"{state_digest(config, state)}{compared}"
    )
    return EXIT_DONE


def replay_steps(
    path: Path, frames: Iterator[LogFrame], config: RunConfig, state: RunState, noise: NoiseRows
) -> RunState:
    """The state after a file's last generation. Raises RunFolderError at the first that differs."""
    for frame in frames:
        step = ReplayStep.decode(frame.payload)
        verify_digest(path, state, step.digest, step.generation, config)
        try:
            state = next_state(config, state, step, noise)
        except MISMATCH as error:
            raise RunFolderError(
                f"{path}: its content for generation {step.generation} does not match its "
                f"settings ({describe_error(error)[:200]}): restore the log from a copy"
            ) from None
    return state


def next_state(config: RunConfig, state: RunState, step: ReplayStep, noise: NoiseRows) -> RunState:
    strategy = strategy_of_state(config, state)
    if step.again.size and not strategy.reevaluates:
        raise ValueError("again has numbers, but the strategy evaluates no individual again")
    numbers = state.moments.mean.size
    if not step.moments.mean.size == step.moments.m2.size == numbers:
        raise ValueError(f"mean and m2 have {step.moments.mean.size} numbers, not {numbers}")
    if step.anchored:
        state = replace(state, anchor=RollbackPoint.of(state))
    changes, following = (*state.changes, *step.changes), state.generation + 1
    descent = state.descent
    if step.back is None:
        batch = make_batch(config, state, strategy, step, noise)
        before, (after, _) = strategy, strategy.learn(state.strategy, batch)
    elif state.anchor is None or state.anchor.generation != step.back:
        raise RunFolderError(
            f"generation {step.generation} of the replay log returns to generation "
            f"{step.back}, which it did not keep"
        )
    else:
        before, after = (
            strategy_of(config, changes, step.back, strategy.size),
            state.anchor.strategy,
        )
        if config.restart_deadlines != "none":
            descent = CurrentDescent(generation=following)
    opened = (*state.open, published(state, strategy)) if len(step.used) else ()
    learning = strategy_of(config, changes, following, strategy.size, descent.generation)
    return replace(
        state,
        generation=following,
        descent=descent,
        strategy=learning.migrate_state(after, before),
        moments=step.moments,
        step_limit=step.step_limit,
        changes=changes,
        open=tuple(one for one in opened if one.generation >= following - config.max_lag),
    )


def published(state: RunState, strategy: Strategy) -> OpenPublication:
    """What the state published; in a log, the generation names it."""
    spread, nothing = strategy.spread(state.strategy), np.empty((0, 2), np.int64)
    return OpenPublication(f"{state.generation}.1-00000000", state.step_limit, spread, nothing)


def make_batch(
    config: RunConfig, state: RunState, strategy: Strategy, step: ReplayStep, noise: NoiseRows
) -> Batch:
    """The batch that the strategy learnt from: the plans' noise indices, the logged fitness."""
    rows = len(step.fitness)
    if step.fitness.shape[1] != strategy.per_slot:
        raise ValueError(f"individuals is {step.fitness.shape[1]}, not {strategy.per_slot}")
    if len(step.used) not in (0, rows):
        raise ValueError("used does not have one slot for each row of fitness")
    used = step.used
    if not len(used):
        used = np.stack([np.full(rows, step.generation), np.arange(rows)], axis=1)
    spreads = {one.generation: one.spread for one in (*state.open, published(state, strategy))}
    parts, indices = [], [np.empty(0, np.int64)]
    ends = [*(np.flatnonzero(np.diff(used[:, 0])) + 1).tolist(), rows]
    for start, stop in pairwise([0, *ends]) if rows else ():
        generation = int(used[start, 0])
        if generation not in spreads:
            raise RunFolderError(
                f"generation {step.generation} of the replay log learnt from generation "
                f"{generation}, which the log lacks"
            )
        parts.append((slice(start, stop), spreads[generation]))
        indices.append(noise_indices_of(config, strategy, generation, used[start:stop, 1]))
    failed = np.isnan(step.fitness).all(axis=1)
    return Batch(
        noise,
        np.where(failed, 0, np.concatenate(indices)),
        step.fitness,
        step.again,
        parts,
        step.behaviour,
        step.centre_fitness,
        step.centre_behaviour,
        step.generation,
        used,
        step.tried,
    )


def noise_indices_of(
    config: RunConfig, strategy: Strategy, generation: int, slots: Integers
) -> Integers:
    """The noise indices of a generation's slots. Raises RunFolderError for slots that no generation
    has.
    """
    most = max(MOST_SLOTS, 8 * max(config.population, config.population_max))
    for slot in (slots.min(), slots.max()):
        if not 0 <= slot < most:
            raise RunFolderError(
                f"generation {generation} of the replay log has slot {slot}, but only 0 to "
                f"{most - 1} are possible"
            )
    plan = make_generation_plan(config, generation, strategy.size, strategy.per_slot)
    return plan.slots(0, int(slots.max()) + 1).noise_indices[slots]


def strategy_of_state(config: RunConfig, state: RunState) -> Strategy:
    size, begun = len(state.strategy["parameters"]), state.descent.generation
    return strategy_of(config, state.changes, state.generation, size, begun)


def state_digest(config: RunConfig, state: RunState) -> str:
    """Raises RunFolderError for the arrays of another strategy."""
    try:
        return run_digest(state, strategy_of_state(config, state))
    except MISMATCH as error:
        raise RunFolderError(
            f"the arrays of generation {state.generation} are not those of the strategy "
            f"{config.strategy} ({describe_error(error)[:200]}): restore the run's folder from a "
            "copy"
        ) from None


def verify_digest(
    path: Path, state: RunState, logged: str, generation: int, config: RunConfig
) -> None:
    """Raise RunFolderError unless the state is that generation's and publishes the logged
    parameters.
    """
    if state.generation != generation:
        raise RunFolderError(
            f"{path} continues with generation {generation}, but {state.generation} is "
            f"expected: the log has a gap"
        )
    computed = state_digest(config, state)
    if computed != logged:
        raise RunFolderError(
            f"{path}: the parameters of generation {generation} computed again have the "
            f"digest {computed}, but the run published {logged}"
        )


def compare_with_checkpoint(run_dir: Path, state: RunState, trust: bool = False) -> str:
    """Compare with the newest checkpoint of the folder. Returns words about it. Raises
    RunFolderError if it differs.
    """
    checkpoints = Checkpoints(run_dir)
    data = checkpoints.read_newest()
    if checkpoints.warnings:
        raise RunFolderError(
            f"the log is intact up to generation {state.generation}, but {checkpoints.warnings[0]}"
        )
    if data is None:
        return f"; there is no checkpoint to compare with, so {UNCHECKED} were not checked"
    config, saved, _ = checkpoint.decode(data)
    require_trust(str(run_dir), named_modules(config), trust)
    if saved.generation > state.generation:
        raise RunFolderError(
            f"the replay log ends with generation {state.generation}, but the newest "
            f"checkpoint is of generation {saved.generation}"
        )
    if saved.generation < state.generation:
        newest = f"the newest checkpoint is of generation {saved.generation}"
        return f"; {newest}, so {UNCHECKED} were not checked"
    if state_digest(config, saved) != state_digest(config, state):
        raise RunFolderError(
            f"the parameters of generation {state.generation} computed again differ from the "
            "newest checkpoint's"
        )
    computed, other = state.moments.to_arrays(), saved.moments.to_arrays()
    same = computed.keys() == other.keys() and all(
        np.array_equal(computed[key], other[key], equal_nan=True) for key in computed
    )
    for name, is_equal in (
        ("observation statistics", same),
        ("step limit", state.step_limit == saved.step_limit),
    ):
        if not is_equal:
            raise RunFolderError(
                f"the {name} of generation {state.generation} in the replay log differs from the "
                "newest checkpoint's: restore the log and the checkpoint from one copy"
            )
    words = f", which the newest checkpoint has too, with the same {UNCHECKED}"
    if state.changes != saved.changes:  # after a --resume that set a changed setting again
        words += ", but the settings that were changed during the run differ"
    return words
