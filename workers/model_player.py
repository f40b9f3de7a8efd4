"""Plays rows of a run whose individuals are perturbations of a model that the worker holds."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.environments.factory import describe
from es_queue.environments.interface import Environment, EnvironmentRequest
from es_queue.errors import EnvironmentFailure
from es_queue.models.snapshots import Snapshots
from es_queue.models.weights import Model, missing_packages, weights_check
from es_queue.numerics.arrays import Floats
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.statistics import sum_in_order
from es_queue.policies.base import ConstantPolicy
from es_queue.protocol.messages import ELITE, MOST_RETURN, TRAIN, Block, Task
from es_queue.protocol.store import WorkerStore
from es_queue.slots import HOST_FAILED, Table, spans_from_bytes, training_plan
from es_queue.strategies.model_es import HEAD, ModelES, Update, row_digest
from workers.episode import EpisodeFailed
from workers.heartbeat import EpisodeControl, Leaving
from workers.player import Answer, Failure, Player, Refusal, failure_code

CHECK_SEEDS = (0, 1)


class ModelPlayer(Player):
    """Holds the weights of one generation, and follows the run by the updates that it publishes."""

    def __init__(self, config: RunConfig, table: NoiseTable, control: EpisodeControl) -> None:
        """Raises EnvironmentFailure for a model that cannot be loaded or scored."""
        spec = describe(EnvironmentRequest.of(config))
        policy, nothing = ConstantPolicy(HEAD), cast(Environment, None)
        super().__init__(config, spec, policy, nothing, noise=table, control=control)
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
        if scores[0] != scores[2] and not self.config.allow_nondeterministic:
            raise EnvironmentFailure(
                f"{self.config.model} does not repeat itself: the same weights and seeds gave "
                "different scores; draw all randomness from the seeds, or use "
                "--allow-nondeterministic and lose reproducible results"
            )
        if unused := self.model.unused_layers():
            raise EnvironmentFailure(
                f"score of {self.config.model} does not call the layer of {unused[0]}, so noise of "
                "rank R would have no effect on it: leave it out of trained, or use "
                "--perturbation full"
            )
        return bytes_digest(scores[0])

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
        self.task, self.published = task, published
        self.slots = self._table(spans_from_bytes(task.spans))
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
        place = self._place()
        if place is None:
            raise EnvironmentFailure("the run does not say where its snapshots are")
        self._row = self._no_row
        self._row = Snapshots(place).read(newest.snapshot, self.model)
        self._note_check()

    # --- play

    def play(self, block: Block, worker: int) -> Answer:
        rows = self.slots.table[block.start : block.stop]
        results: Table = np.zeros(len(rows), self.shape.result)
        results["row"], results["worker"] = rows["row"], worker
        for name in ("fitness", "returns", "behaviour", "info"):
            results[name] = np.nan
        failures, done = list[Failure](), 0
        for row, result in zip(rows, results, strict=True):
            began, seeds = time.monotonic(), row["seeds"].tolist()
            try:
                self._play_row(row, seeds, result)
                self.control.episodes += sum(seed >= 0 for part in seeds for seed in part)
            except Leaving:
                raise
            except Exception as error:  # whatever a user's class raises
                result["failure"] = HOST_FAILED if row["kind"] == ELITE else failure_code(error)
                failures.append(self._failure(row, max(0, seeds[0][0]), error))
                self.control.failures += 1
            finally:
                self.control.end_episode()
            result["seconds"], done = time.monotonic() - began, done + 1
            if self.control.finish_reason:
                break
        return Answer(results[:done], np.empty(0, self.shape.moments), failures)

    def _play_row(self, row: Any, seeds: Sequence[Sequence[int]], result: Any) -> None:
        kind, key = int(row["kind"]), int(row["key"])
        assert self.task is not None
        for name in ("fitness", "returns", "behaviour"):
            result[name] = 0.0
        if kind == ELITE:
            result["fitness"][0], result["steps"][0] = self._write_snapshot(), 1
            return
        for player in range(int(row["players"])):
            part = [seed for seed in seeds[player] if seed >= 0]
            about = {"generation": self.slots.generation, "slot": int(row["number"])}
            self.control.begin_episode({**about, "seed": part[0]})
            self.control.begin_steps(len(part))
            if kind == TRAIN:
                sigma = -self.task.sigma if player else self.task.sigma
                scores = self.model.perturbed_scores(key, sigma, part)
            else:
                scores = self.model.scores(part)
            mean = sum_in_order(scores) / len(scores)
            if not abs(mean) <= MOST_RETURN:
                raise EpisodeFailed(f"the score is {mean}: return finite numbers")
            result["fitness"][player] = result["returns"][player] = mean
            result["steps"][player] = len(part)

    def _write_snapshot(self) -> int:
        place = self._place()
        if place is None:
            raise OSError("the run does not say where its snapshots are")
        digest = self._note_check()
        Snapshots(place).write(self.model, self._row, digest)
        return weights_check(digest)


def join_model(config: RunConfig, control: EpisodeControl, table: NoiseTable) -> ModelPlayer:
    """Raises Refusal or EnvironmentFailure in one sentence."""
    if missing := missing_packages(config.snapshots):
        raise Refusal(missing)
    control.begin_episode({})  # a model may hang when it is loaded
    try:
        return ModelPlayer(config, table, control)
    finally:
        control.end_episode()
