"""What happens once a generation besides learning: checkpoints, logs, files, display.

The loop calls each ``Listener`` with the generation and its outcome.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from es_queue.config.run_config import RunConfig
from es_queue.errors import RunFolderError
from es_queue.numerics.arrays import Floats
from es_queue.numerics.statistics import ReturnStatistics
from es_queue.protocol.messages import ELITE, EVAL, Task
from es_queue.slot_plan import resolve_seed_sharing
from es_queue.slots import FAILED, TRAINED, Slots
from es_queue.strategies.base import Strategy
from master.display.log_view import RunView
from master.loop import checkpoint
from master.loop.checkpoint import Checkpoints
from master.loop.config_timeline import format_changes
from master.loop.generation_record import evaluation_figures
from master.loop.learner import Chosen, Learner, evaluation_of
from master.loop.state import TRAINING, Best, RunState
from master.status.figures import Record

LOGGER = logging.getLogger("es_queue.loop")
LEAST_SECONDS_BETWEEN_SAVES = 5.0
#: Generations between two notes on behaviours.
NOTED_EVERY = 100


@dataclass(frozen=True)
class Outcome:
    """How a run ended. evaluation: the final one, the only figure to quote; failed_seeds:
    environment seeds of the final episodes that failed, which are not in it; info: what its
    environments reported, see ``generation_record.info_record``
    """

    state: RunState
    best: Best
    evaluation: ReturnStatistics | None
    digest: str
    failed_seeds: Sequence[int] = ()
    info: Record = field(default_factory=dict)


@dataclass
class Generation:
    """A published generation.

    tables: whose results count, oldest first; only the asynchronous schedule has older ones
    task: the header, which grows with the newest table
    vector: the parameters that workers perturb; digest: of the run's parameters; checkpoint: of the
    state; seconds: that publishing took
    """

    state: RunState
    learner: Learner
    tables: Sequence[Slots]
    task: Task
    vector: Floats
    digest: str
    checkpoint: bytes
    seconds: float = 0.0

    @property
    def slots(self) -> Slots:
        """The newest table."""
        return self.tables[-1]

    @property
    def record(self) -> Record:
        number = self.state.generation
        changes = [change for change in self.state.changes if change.generation == number]
        return {
            "generation": number,
            "publication": self.task.publication,
            "digest": self.digest,
            "bytes_published": 4 * len(self.vector),
            "seconds_publish": self.seconds,
            "step_limit": self.state.step_limit,
            "target": self.learner.target,
            "changed": format_changes(changes) or None,
        }


@dataclass(frozen=True)
class Report:
    """A closed generation and its outcome.

    chosen: the rows that it learnt from; after: the next generation's state; record: its figures;
    rolled_back_to: the generation of the restored search; is_finite: whether the learnt state was
    finite; last_failure: the newest failed slot, in words
    """

    generation: Generation
    chosen: Chosen
    after: RunState
    record: Record
    rolled_back_to: int | None
    is_finite: bool
    last_failure: str

    @property
    def has_learnt(self) -> bool:
        return self.after.generation > self.generation.state.generation


class Listener:
    """What happens once a generation: files, display, a user's own. Called by the loop in this
    order.
    """

    def on_published(self, generation: Generation) -> None:
        """Workers play the generation."""

    def on_generation(self, report: Report) -> None:
        """The generation has closed; the next one is not published yet."""

    def on_finished(self, generation: Generation, outcome: Outcome) -> None:
        """The final episodes are played."""


class ViewListener(Listener):
    """Shows the figures of each generation, and notes what is unusual in it."""

    def __init__(self, view: RunView) -> None:
        self._view, self._last_noted = view, -NOTED_EVERY

    def on_generation(self, report: Report) -> None:
        slots, number = report.generation.slots, report.generation.state.generation
        learner, descent = report.generation.learner, report.after.descent
        failed = slots.table["state"] == FAILED
        worst = sum(int(failed[slots.rows(kind)].sum()) for kind in TRAINED)
        if descent.generation > number:
            LOGGER.info(
                f"generation {number} ends a descent that has missed a deadline "
                f"(--restart-deadlines): descent {descent.number} begins"
            )
        elif report.rolled_back_to is not None:
            LOGGER.warning(
                f"the evaluation of generation {number} is below the best: the search returns to "
                f"generation {report.rolled_back_to}"
            )
        if not report.is_finite:
            LOGGER.warning(
                f"generation {number}: no step, because the new state of the strategy "
                f"{learner.config.strategy} was not finite (no_step is 1)"
            )
        if learner.strategy.wants_behaviour and number >= self._last_noted + NOTED_EVERY:
            behaviour = report.chosen.column("behaviour")
            note = learner.strategy.behaviour_note(behaviour.reshape(-1, behaviour.shape[-1]))
            if note:
                LOGGER.warning(f"generation {number}: {note}")
                self._last_noted = number
        names = [name for name in slots.info_names if f"info_{name}" not in report.record]
        if names and number == 0:
            LOGGER.warning(
                f"--info: no training episode ended with a number {', '.join(names)} in its info"
            )
        elites = slots.rows(ELITE)
        if len(elites) and failed[elites].all():
            LOGGER.warning(
                f"generation {number}: every re-evaluation failed, so none of them counts"
            )
        if worst:
            LOGGER.warning(
                f"slots of generation {number} that failed on every worker and count as the "
                f"worst: {worst}; the last: {report.last_failure}"
            )
        self._view.generation(report.record)


# --- what to try when a run has stopped improving

#: A run has stopped improving after so many evaluations and generations without a better one, if
#: they are half of all its evaluations.
LEAST_EVALUATIONS, LEAST_GENERATIONS = 20, 100
MOST_HINTS = 3
PAGE = 'docs/troubleshooting.md has more under "My environment does not learn"'

#: Generation, mean and standard deviation of each evaluation.
Evaluations = Sequence[tuple[int, float, float]]


class ProgressNote(Listener):
    """Says once that evaluations no longer rise, and what is most likely to help. The figure
    ``advice`` has it for es-status and the doctor for as long as it is true.
    """

    def __init__(self) -> None:
        self._evaluations: list[tuple[int, float, float]] = []
        self._is_said = self._is_advised = False

    def on_generation(self, report: Report) -> None:
        figures = evaluation_of(report.generation.slots, EVAL)
        if figures is None:
            return
        learner, number = report.generation.learner, report.generation.state.generation
        self._evaluations.append((number, figures.mean, figures.std))
        best = find_plateau(self._evaluations, learner.target)
        if self._is_advised == (best is not None):
            return
        self._is_advised, advice = best is not None, ""
        if best is not None:
            hints = "; ".join(choose_hints(learner.config, learner.strategy))
            advice = (
                f"no evaluation has been better than generation {best[0]}'s ({best[1]:g}) for "
                f"{number - best[0]} generations. What helps most often: {hints}. {PAGE}"
            )
            if not self._is_said:
                self._is_said = True
                LOGGER.warning(advice)
        report.record["advice"] = advice


def find_plateau(evaluations: Evaluations, target: float | None) -> tuple[int, float] | None:
    """Generation and mean of the best evaluation, if none has been better for long; None if the
    target is reached, or all episodes of the best one had the same return: it is probably the
    highest.
    """
    place = max(range(len(evaluations)), key=lambda number: evaluations[number][1])
    number, mean, deviation = evaluations[place]
    since = len(evaluations) - 1 - place
    is_long = since >= LEAST_EVALUATIONS and 2 * since >= len(evaluations)
    is_long &= evaluations[-1][0] - number >= LEAST_GENERATIONS
    is_solved = deviation == 0 or (target is not None and mean >= target)
    return (number, mean) if is_long and not is_solved else None


def choose_hints(config: RunConfig, strategy: Strategy) -> list[str]:
    """The most likely remedies first, without those that the run has already."""
    hints = []
    if config.env and config.policy == "linear":
        if not getattr(config, "biases", True):
            hints.append("a bias (--biases)")
        hints.append("a layer (--policy mlp --hidden 16)")
    if config.env and resolve_seed_sharing(config, strategy.per_slot) == "generation":
        hints.append("an environment seed for each individual (--env-seeds slot)")
    if config.env and not config.obs_norm:
        hints.append("observation normalisation (without --no-obs-norm)")
    hints.append("a reward that rises with each improvement, of about the size 1 per step")
    hints.append("a larger population, or another --sigma")
    return hints[:MOST_HINTS]


# --- checkpoints


class CheckpointWriter(Listener):
    """Writes the checkpoint after an accepted publish, at most every few seconds."""

    def __init__(self, checkpoints: Checkpoints, run: str) -> None:
        self._checkpoints, self._run = checkpoints, run
        self._last_saved = 0.0
        self._saved_best: Best | None = None

    def on_published(self, generation: Generation) -> None:
        """The best policy's file too is saved while workers play. If a master ends before that, its
        successor compares the older file with the checkpoint, which also has the best policy.
        """
        state, checkpoints, now = generation.state, self._checkpoints, time.monotonic()
        best = state.best
        if best is not None and best is not self._saved_best:
            is_stored = self._saved_best is None and checkpoints.is_best_stored(best)
            data = self._encode_best(generation, best, None)
            if is_stored or try_write(partial(checkpoints.save_best, data)):
                self._saved_best = best
        is_due = now - self._last_saved >= LEAST_SECONDS_BETWEEN_SAVES
        is_due = is_due or bool(generation.learner.config.model)  # small, and snapshots are removed
        if is_due or state.stage != TRAINING or checkpoints.is_snapshot(state.generation):
            self._last_saved = now
            try_write(partial(checkpoints.save, state.generation, generation.checkpoint))

    def on_finished(self, generation: Generation, outcome: Outcome) -> None:
        evaluation: Record | None = None
        if (figures := outcome.evaluation) is not None:
            evaluation = {**evaluation_figures(figures), "eval_episodes": figures.count}
        self._checkpoints.save_best(self._encode_best(generation, outcome.best, evaluation))

    def _encode_best(self, generation: Generation, best: Best, evaluation: Record | None) -> bytes:
        learner = generation.learner
        return checkpoint.encode_best(learner.requested, learner.spec, self._run, best, evaluation)


def try_write(write: Callable[[], object]) -> bool:
    """Write, and return whether it succeeded. A failure does not stop training: Redis has every
    generation, and the next checkpoint tries again. The run's last files must be written, because
    they are all that remains.
    """
    try:
        write()
    except RunFolderError as error:
        LOGGER.warning(f"{error}; training continues and tries again")
        return False
    return True
