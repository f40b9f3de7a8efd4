"""Plays rows of a slot table, as a worker does. An episode depends only on the plan, the
parameters, the frozen statistics, the episode rules and the back end.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from rq.timeouts import BaseTimeoutException

from es_queue.config.episode_rules import EpisodeRules, evaluation_rules
from es_queue.config.run_config import RunConfig
from es_queue.environments.interface import Environment, EnvironmentSpec, VectorEnvironment
from es_queue.errors import StrategyFailure
from es_queue.numerics.arrays import Floats
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.statistics import FrozenStatistics, sum_in_order
from es_queue.policies import initial_parameters
from es_queue.policies.base import Policy
from es_queue.protocol.messages import (
    CENTRE,
    ELITE,
    FINAL,
    KINDS,
    MAX_REASON,
    MOST_RETURN,
    TRAIN,
    Block,
    Task,
)
from es_queue.slots import (
    EPISODE_FAILED,
    HOST_FAILED,
    STRATEGY_FAILED,
    TRAINED,
    Shape,
    Slots,
    Span,
    Table,
    spans_from_bytes,
)
from es_queue.strategies.base import Strategy, strategy_failure, validate_individuals
from workers.episode import (
    Episode,
    EpisodeControl,
    EpisodeFailed,
    EpisodePlayer,
    EpisodeSpec,
    OnStep,
    Places,
    Played,
)


@dataclass(frozen=True)
class Failure:
    """Why a row has no result, for people: the first of its episodes that raised."""

    kind: str
    slot: int
    generation: int
    seed: int
    reason: str
    trace: str


@dataclass(frozen=True)
class Answer:
    """The results and moments of a block, as in ``es_queue.slots.Shape``."""

    results: Table
    moments: Table
    failures: Sequence[Failure]


class Player:
    """Plays the rows of one run's publications, one publication after the other."""

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        policy: Policy,
        strategy: Strategy,
        table: NoiseTable,
        control: EpisodeControl,
        env: Environment,
        envs: VectorEnvironment | None = None,
    ) -> None:
        """``env`` plays episodes one by one, ``envs`` many at once."""
        self.config, self.spec, self.policy, self.strategy = config, spec, policy, strategy
        self.noise, self.control, self.env = table, control, env
        self._episodes = EpisodePlayer(
            config=config,
            spec=spec,
            policy=policy,
            control=control,
            env=env,
            envs=envs,
            table=table,
        )
        self.shape = Shape.of(strategy, spec)
        self._build = strategy.builder(table)
        self._draw = partial(initial_parameters, config, policy)
        self._evaluation = evaluation_rules(config.evaluation_limit(spec.step_limit))
        self.task: Task | None = None
        self.numerics = self.backend = ""  # fingerprint, and the back end in use: set at joining

    # --- a publication

    def fits(self, task: Task) -> bool:
        """Whether the publication's vectors and records have the sizes of this run's policy."""
        size, sizes = self.spec.observation_size, (task.row, task.moment)
        return (
            self.strategy.fits(task.size, size)
            and len(task.obs_mean) == 4 * size
            and sizes == (self.shape.result.itemsize, self.shape.moments.itemsize)
        )

    def open(self, task: Task, published: Floats) -> None:
        """Play rows of this publication from now on; ``published``: float32 [task.size]."""
        self.task, self.published = task, published
        self.slots = self._table(spans_from_bytes(task.spans))
        self._training = self.config.training_rules(task.step_limit, self.strategy.fitness_by_sign)
        self._statistics = self._frozen(
            np.frombuffer(task.obs_mean, "<f4"), np.frombuffer(task.obs_std, "<f4")
        )

    def has(self, block: Block) -> bool:
        """Whether the block's rows are of this publication, and in its table by now."""
        is_open = self.task is not None and self.task.publication == block.publication
        return is_open and block.stop <= len(self.slots)

    def _table(self, spans: Sequence[Span]) -> Slots:
        assert self.task is not None
        return Slots(self.config, self.strategy, self.spec, self.task.generation, spans)

    def _frozen(self, mean: Floats, std: Floats) -> FrozenStatistics | None:
        if not self.config.obs_norm:
            return None
        mean, std = mean.astype(np.float32), std.astype(np.float32)
        return FrozenStatistics(mean, std, self.config.obs_clip)

    def _rules(self, kind: int) -> EpisodeRules:
        return self._training if kind in TRAINED else self._evaluation

    # --- play

    def play(self, block: Block, worker: int) -> Answer:
        """Play a block's rows; worker: ``worker_mark`` of this one.

        Raises Leaving between steps. An episode that raises becomes a failure of its row. If the
        process has grown too large, the answer has only the rows that were played.
        """
        rows = self.slots.table[block.start : block.stop]
        results: Table = np.zeros(len(rows), self.shape.result)
        results["row"], results["worker"] = rows["row"], worker
        for name in ("fitness", "returns", "behaviour"):
            results[name] = np.nan
        moments, failures, done, control = list[Any](), list[Failure](), 0, self.control
        # Together, but each centre by itself, because it may have its own statistics.
        size = 1 if rows["kind"][0] == CENTRE else len(rows)
        with np.errstate(all="ignore"):
            for first in range(0, len(rows), size):
                group, began = rows[first : first + size], time.monotonic()
                played = self._play_rows(group)
                for row in group:
                    count = int((row["seeds"] >= 0).sum())
                    failure = self._summarize(row, results[done], [*islice(played, count)], moments)
                    if failure is None:
                        control.episodes += count
                    else:
                        failures.append(failure)
                        control.failures += 1
                    done += 1
                    if control.finish_reason and not self._episodes.unread:
                        break  # the rest is for a smaller process
                # Rows that are played together take equally long.
                results["seconds"][first:done] = (time.monotonic() - began) / (done - first)
                if control.finish_reason:
                    break
        return Answer(results[:done], np.array(moments, self.shape.moments), failures)

    def _play_rows(self, rows: Table) -> Iterator[Played]:
        """The episodes of rows of one kind."""
        first, kind = rows[0], int(rows["kind"][0])
        about = {"generation": self.slots.generation, "slot": int(first["number"])}
        self.control.begin_episode({**about, "seed": int(first["seeds"][0, 0])})
        own = None
        if kind == CENTRE:
            own = self.strategy.centre_statistics(self.published, int(first["number"]))
        statistics = self._statistics if own is None else self._frozen(*own)
        specs = (spec for row in rows for spec in self._specs(row))
        count = int((rows["seeds"] >= 0).sum())
        return self._episodes.play(specs, count, self._rules(kind), statistics)

    def _specs(self, row: Any) -> Iterator[EpisodeSpec | Exception]:
        """The episodes of a row, individual by individual; an error for each if the individuals
        cannot be built.
        """
        seeds = [[seed for seed in each if seed >= 0] for each in row["seeds"].tolist()]
        seeds = seeds[: int(row["players"])]
        try:
            individuals = self._individuals(row)
        except BaseTimeoutException:
            raise
        except Exception as error:  # a noise table that cannot be read, a user's own strategy
            yield from (error for part in seeds for _ in part)
            return
        key = int(row["key"]) if row["noisy"] else None
        behave = self.strategy.wants_behaviour and int(row["kind"]) in TRAINED
        sampled = int(row["place"]) >= 0
        for parameters, part in zip(individuals, seeds, strict=True):
            for seed in part:
                yield EpisodeSpec(parameters, seed, sampled, key, behave)

    def _individuals(self, row: Any) -> Floats:
        """float32 [players, size] of a row."""
        kind, number, index = int(row["kind"]), int(row["number"]), int(row["index"])
        strategy, task = self.strategy, self.task
        assert task is not None
        if kind not in (TRAIN, ELITE):
            centre = number if kind == CENTRE else 0
            return strategy.centre_of(self.published, centre, self._draw)[None]
        try:
            individuals = self._build(self.published, task.sigma, task.generation, number, index)
        except (OSError, MemoryError, BaseTimeoutException):
            raise
        except Exception as error:
            raise strategy_failure(strategy, "ask", error) from error
        validate_individuals(strategy, individuals, (int(row["players"]), self.policy.size))
        return individuals

    # --- the result of a row

    def _summarize(
        self, row: Any, result: Any, played: Sequence[Played], moments: list[Any]
    ) -> Failure | None:
        """Fill the row's result: means of the scores in order, sums of the rest. Returns its
        failure, if an episode failed.
        """
        seeds = row["seeds"][row["seeds"] >= 0].tolist()
        episodes: list[Episode] = []
        for seed, episode in zip(seeds, played, strict=True):
            if isinstance(episode, Episode):
                if max(abs(episode.total), abs(episode.fitness)) <= MOST_RETURN:
                    episodes.append(episode)
                    continue
                episode = EpisodeFailed(  # the master would refuse it
                    f"the episode's return is beyond {MOST_RETURN:g}: scale its rewards down"
                )
            result["failure"] = failure_code(episode)
            return self._failure(row, seed, episode)
        rules = self._rules(int(row["kind"]))
        cuts_earlier = self.spec.step_limit is None or rules.limit < self.spec.step_limit
        each = len(episodes) // int(row["players"])
        for name in ("fitness", "returns", "behaviour"):
            result[name] = 0.0  # also of an individual that this kind of slot does not have
        for player in range(int(row["players"])):
            part = episodes[player * each : (player + 1) * each]
            result["fitness"][player] = sum_in_order([one.fitness for one in part]) / each
            result["returns"][player] = sum_in_order([one.total for one in part]) / each
            result["steps"][player] = sum(one.steps for one in part)
            result["at_limit"][player] = sum(one.at_limit for one in part)
            result["cut"][player] = sum(one.cut or (one.at_limit and cuts_earlier) for one in part)
            if part[0].behaviour is not None:
                result["behaviour"][player] = mean_behaviour(part)
        if row["place"] >= 0:
            for number, episode in enumerate(episodes):
                moments.append((int(row["row"]), number, *moments_of(episode, self.policy.numbers)))
        return None

    def _failure(self, row: Any, seed: int, error: Exception) -> Failure:
        kind = "" if isinstance(error, StrategyFailure) else f"{type(error).__name__}: "
        return Failure(
            kind=KINDS[int(row["kind"])],
            slot=int(row["number"]),
            generation=self.slots.generation,
            seed=seed,
            reason=f"{kind}{error}"[:MAX_REASON],
            trace="".join(traceback.format_exception(error, limit=-12))[-4000:],
        )

    # --- for people: any individual again

    def play_individual(
        self, slot: int, individual: int, on_step: OnStep | None = None
    ) -> list[Episode]:
        """One individual of a training slot, on its own episodes; ``on_step`` follows each step.
        Raises what an episode raises.
        """
        row = self._table([Span(TRAIN, slot, slot + 1)]).table[0]
        specs = [*self._specs(row)]
        each = len(specs) // int(row["players"])
        return self._play_all(specs[individual * each : (individual + 1) * each], TRAIN, on_step)

    def play_centre(self, seeds: Sequence[int], on_step: OnStep | None = None) -> list[Episode]:
        """The unperturbed policy as it is evaluated, on ``seeds``."""
        centre = self.strategy.centre(self.published)
        return self._play_all([EpisodeSpec(centre, seed) for seed in seeds], FINAL, on_step)

    def _play_all(
        self, specs: Sequence[EpisodeSpec | Exception], kind: int, on_step: OnStep | None
    ) -> list[Episode]:
        rules, episodes = self._rules(kind), []
        with np.errstate(all="ignore"):
            for played in self._episodes.play(specs, len(specs), rules, self._statistics, on_step):
                if isinstance(played, Exception):
                    raise played
                episodes.append(played)
        return episodes


def failure_code(error: Exception) -> int:
    """What failed: the episode, this host (disk, memory, files), or the user's own strategy."""
    if isinstance(error, StrategyFailure):
        return STRATEGY_FAILED
    return HOST_FAILED if isinstance(error, OSError | MemoryError) else EPISODE_FAILED


def mean_behaviour(episodes: Sequence[Episode]) -> Floats:
    """The mean over an individual's episodes, summed in order in float64."""
    first, *others = [one.behaviour for one in episodes if one.behaviour is not None]
    total = first.astype(np.float64)
    for behaviour in others:
        total = total + behaviour
    mean: Floats = (total / len(episodes)).astype("<f4")
    return mean


def moments_of(episode: Episode, numbers: Places | None) -> tuple[int, Any, Any]:
    """count, mean and M2; nothing for an infinite observation, as in a merge.

    numbers: those that the policy receives; the others, which a back end may not have, are 0
    """
    moments = episode.moments
    assert moments is not None
    mean, m2 = moments.mean, moments.m2
    if numbers is not None:
        seen = np.zeros(len(mean), np.bool_)
        seen[numbers] = True
        mean, m2 = np.where(seen, mean, 0.0), np.where(seen, m2, 0.0)
    if not (np.isfinite(mean).all() and np.isfinite(m2).all()):
        nothing = np.zeros(len(mean))
        return 0, nothing, nothing
    return moments.count, mean, m2
