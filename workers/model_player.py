"""Plays rows of a run whose individuals are perturbations of a model that the worker holds."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.environments.factory import describe
from es_queue.environments.interface import EnvironmentRequest
from es_queue.errors import EnvironmentFailure
from es_queue.models.snapshots import Snapshots
from es_queue.models.weights import Model, missing_packages, weights_check
from es_queue.numerics.arrays import Floats
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.numerics.noise_table import NoiseTable
from es_queue.policies.base import ConstantPolicy
from es_queue.protocol.messages import ELITE, MOST_RETURN, TRAIN, Task
from es_queue.protocol.store import WorkerStore
from es_queue.slots import Table, training_plan
from es_queue.strategies.model_es import HEAD, ModelES, Update, row_digest
from workers.episode import Episode, EpisodeFailed, Played
from workers.heartbeat import EpisodeControl, Leaving
from workers.player import Player, Refusal, digest_of_repeats, seeds_of

CHECK_SEEDS = (0, 1)


class ModelPlayer(Player):
    """Holds the weights of one generation, and follows the run by the updates that it publishes."""

    def __init__(self, config: RunConfig, table: NoiseTable, control: EpisodeControl) -> None:
        """Raises Refusal, or EnvironmentFailure for a model that cannot be loaded or scored."""
        if missing := missing_packages(config.snapshots):
            raise Refusal(missing)
        spec = describe(EnvironmentRequest.of(config))
        super().__init__(config, spec, ConstantPolicy(HEAD), None, noise=table, control=control)
        self.width = cast(ModelES, self.strategy).width
        self.model = Model(config)
        self.backend = self.model.device
        self.numerics = self._fingerprint()
        # The row that led to the weights, and checks of weights that had a snapshot.
        self._row = self.strategy.start(np.zeros(HEAD, np.float32))["log"][0]
        self._no_row = self._row.copy()
        self._no_row[0] = -1
        self._checks: dict[int, int] = {}
        self._note_check()
        self._place: Callable[[], str | None] = lambda: None
        self._report: Callable[[str], None] = lambda text: None

    def _fingerprint(self) -> str:
        """Digest of scores of the first weights, made twice with others between."""
        scores = []
        for seeds in (CHECK_SEEDS, CHECK_SEEDS[1:], CHECK_SEEDS):
            try:
                scores.append(np.array(self.model.scores(seeds)).tobytes())
            except Exception as error:
                raise EnvironmentFailure(
                    f"score of {self.config.model} failed: {type(error).__name__}: {error}"
                ) from error
        complaint = (
            "the same weights and seeds gave different scores; draw all randomness from the seeds"
        )
        digest = digest_of_repeats(self.config, scores, complaint)
        if unused := self.model.unused_layers():
            raise EnvironmentFailure(
                f"score of {self.config.model} does not call the layer of {unused[0]}, so noise of "
                "rank R would have no effect on it: leave it out of trained, or use "
                "--perturbation full"
            )
        return digest

    # --- a publication

    def fetch(self, store: WorkerStore, task: Task, _: object) -> bytes | None:
        """The newest rows of the log, as many as the weights lack. The newest one has the task's
        digest, and each has that of the one before.
        """
        self._place = partial(store.progress_field, "snapshots")
        self._report = store.report
        missing = task.generation - Update.of(self._row).generation
        rows = task.size // self.width
        count = missing if 0 < missing <= rows else rows
        width = 4 * self.width
        data = store.parameters(task.publication, count * width)
        return data if data and bytes_digest(data[: width - 4]) == task.digest else None

    def open(self, task: Task, published: Floats) -> None:
        """Bring the weights to the publication's generation. Raises EnvironmentFailure."""
        super().open(task, published)
        rows = published.reshape(-1, self.width)
        newest, own = Update.of(rows[0]), Update.of(self._row)
        if newest.snapshot in self._checks:
            self._compare(newest)
            own = Update.of(self._row)
        if np.array_equal(rows[0, :HEAD], self._row[:HEAD]):
            return
        missing = newest.generation - own.generation
        if not (0 < missing <= len(rows) and self._follows(rows[:missing])):
            self._reload(
                newest if len(newest.coefficients) else newest._replace(snapshot=newest.generation)
            )
            missing = newest.generation - Update.of(self._row).generation
            if not (0 <= missing <= len(rows) and self._follows(rows[:missing])):
                raise EnvironmentFailure(
                    f"the snapshot of generation {int(self._row[0])} does not belong to this run"
                )
        for row in rows[:missing][::-1]:
            self._apply(row)

    def _follows(self, rows: Floats) -> bool:
        """Whether these rows, the newest first, lead on from the weights."""
        parents = [Update.of(row).parent for row in rows]
        digests = [row_digest(row) for row in (*rows[1:], self._row)]
        return parents == digests[: len(parents)] and all(row[HEAD] > 0 for row in rows)

    def _apply(self, row: Floats) -> None:
        update = Update.of(row)
        count = len(update.coefficients)
        plan = training_plan(self.config, self.strategy, update.plan, count)
        self._row = self._no_row  # until all leaves have moved
        self.model.apply(update, plan.noise_keys[:count])
        self._row = row.copy()
        if update.generation % self.config.eval_every == 0:
            self._note_check()

    def _note_check(self) -> str:
        """The weights' digest, remembered for a comparison with a snapshot."""
        digest = self.model.digest()
        self._checks = {int(self._row[0]): weights_check(digest)}
        return digest

    def _compare(self, newest: Update) -> None:
        """Load the snapshot if it differs from this worker's weights of that generation."""
        own = self._checks.pop(newest.snapshot)
        if own == newest.check:
            return
        self._report(
            f"the weights of generation {newest.snapshot} on {platform.node()} "
            f"({self.model.device}) differ from the snapshot, which was loaded instead"
        )
        self._reload(newest)

    def _reload(self, newest: Update) -> None:
        snapshots = self._snapshots()
        self._row = self._no_row
        self._row = snapshots.read(newest.snapshot, self.model)
        self._note_check()

    def _snapshots(self) -> Snapshots:
        place = self._place()
        if place is None:
            raise EnvironmentFailure("the run does not say where its snapshots are")
        return Snapshots(place)

    # --- play

    def _play_rows(self, rows: Table) -> Iterator[Played]:
        """A score is an episode of one step. The row of an elite asks for a snapshot of the
        weights, and its fitness is their check.
        """
        assert self.task is not None
        for row in rows:
            kind = int(row["kind"])
            for player, seeds in enumerate(seeds_of(row)):
                self._begin(row, seeds[0])
                played: list[Played]
                try:
                    if kind == ELITE:
                        played = [Episode(0.0, self._write_snapshot(), 1)]
                    else:
                        self.control.begin_steps(len(seeds))
                        sigma = -self.task.sigma if player else self.task.sigma
                        scores = (
                            self.model.perturbed_scores(int(row["key"]), sigma, seeds)
                            if kind == TRAIN
                            else self.model.scores(seeds)
                        )
                        played = [episode_of(score) for score in scores]
                except Leaving:
                    raise
                except Exception as error:  # whatever a user's class raises
                    played = [error] * len(seeds)
                finally:
                    self.control.end_episode()
                yield from played

    def _write_snapshot(self) -> int:
        """Raises OSError for whatever prevents it, because that is no fault of the model."""
        try:
            digest = self._note_check()
            self._snapshots().write(self.model, self._row, digest)
            return weights_check(digest)
        except (OSError, MemoryError):
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error


def episode_of(score: float) -> Played:
    if not abs(score) <= MOST_RETURN:
        return EpisodeFailed(f"the score is {score}: return finite numbers")
    return Episode(score, score, 1)
