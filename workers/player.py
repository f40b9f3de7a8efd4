"""The player of a run: ``join`` makes it, and it plays episodes and rows of slot tables. An episode
depends only on the plan, the parameters, the frozen statistics, the episode rules and the back end.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.environments.episode_rules import EpisodeRules, evaluation_rules, training_rules
from es_queue.environments.factory import (
    describe,
    make_reference_batch,
    open_environment,
    resolve,
    resolve_backend,
)
from es_queue.environments.interface import (
    BehaviourEnvironment,
    Environment,
    EnvironmentRequest,
    EnvironmentSpec,
    InfoEnvironment,
    VectorEnvironment,
    best_batch_size,
)
from es_queue.environments.stock import is_read_inside
from es_queue.environments.vector import UnbatchedEnvironment
from es_queue.errors import (
    EnvironmentFailure,
    EsQueueError,
    MissingPackage,
    StrategyFailure,
    UsageError,
)
from es_queue.numerics.arrays import Floats
from es_queue.numerics.fingerprint import bytes_digest, limit_blas_threads
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.statistics import FrozenStatistics, sum_in_order
from es_queue.policies import initial_parameters, make_policy
from es_queue.policies.actions import ActionMap
from es_queue.policies.base import Policy, SelectedInputsPolicy
from es_queue.protocol.messages import (
    CENTRE,
    ELITE,
    KINDS,
    MAX_REASON,
    MOST_RETURN,
    TRAIN,
    Block,
    Task,
)
from es_queue.protocol.store import WorkerStore
from es_queue.slot_plan import initial_parameters_seed
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
from es_queue.strategies import make_strategy
from es_queue.strategies.base import Builder, Strategy, strategy_failure, validate_individuals
from es_queue.user_code import ALLOW, INSTALLED, last_line, named_modules, refused_module
from workers.episode import (
    Batch,
    Episode,
    EpisodeFailed,
    EpisodeSpec,
    NextNoise,
    OnStep,
    Places,
    Played,
    action_noise,
    begin_acting,
    exits_refused,
    last_observation,
    play_episode,
)
from workers.heartbeat import EpisodeControl, Leaving

CHECK_STEPS = 50
CHECK_SEEDS = (0, 1, 0)
Data = bytes | memoryview


class Refusal(EsQueueError):  # noqa: N818 - the worker refuses; nothing is broken
    """This worker cannot work for the run; the sentence names the difference."""


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
    """Plays episodes of one run, and the rows of its publications, one publication after the other.

    env, envs: play episodes one by one and many at once
    noise: not needed for episodes without a key
    unread: results of the current batch that were not read yet
    numerics, backend: fingerprint, and the back end in use: set at joining
    """

    def __init__(
        self,
        config: RunConfig,
        spec: EnvironmentSpec,
        policy: Policy,
        env: Environment | None,
        envs: VectorEnvironment | None = None,
        noise: NoiseTable | None = None,
        control: EpisodeControl | None = None,
    ) -> None:
        self.config, self.spec, self.policy = config, spec, policy
        self.env, self._envs, self.unread = cast(Environment, env), envs, 0
        self.noise, self.control = cast(NoiseTable, noise), control or EpisodeControl()
        # Numbers that the policy leaves out are not even normalised.
        self._acting = policy.policy if isinstance(policy, SelectedInputsPolicy) else policy
        self._actions = ActionMap(spec.action, config.action_bound)
        self._is_noisy = config.action_noise > 0 and spec.action.kind == "box"
        self._draw = partial(initial_parameters, config, policy)
        self._evaluation = evaluation_rules(config, spec.step_limit)
        self.task: Task | None = None
        self.numerics = self.backend = ""

    @cached_property
    def strategy(self) -> Strategy:
        """Only rows need it. Raises UsageError."""
        return make_strategy(self.config, self.policy.size)

    @cached_property
    def shape(self) -> Shape:
        return Shape.of(self.strategy, self.spec)

    @cached_property
    def _build(self) -> Builder:
        return self.strategy.builder(self.noise)

    def close(self) -> None:
        """End its environments, which can hold processes and sockets."""
        for each in (self.env, self._envs):
            if each is not None:
                with suppress(Exception):  # of a user's environment
                    each.close()

    # --- a publication

    def fits(self, task: Task) -> bool:
        """Whether the publication's vectors and records have the sizes of this run's policy."""
        size, sizes = self.spec.observation_size, (task.row, task.moment)
        return (
            self.strategy.fits(task.size, size)
            and len(task.obs_mean) == 4 * size
            and sizes == (self.shape.result.itemsize, self.shape.moments.itemsize)
        )

    def fetch(
        self, store: WorkerStore, task: Task, fetch_whole: Callable[[], Data | None]
    ) -> Data | None:
        """The bytes of the publication's vector that the player needs; None if it has closed."""
        return fetch_whole()

    def open(self, task: Task, published: Floats) -> None:
        """Play rows of this publication from now on; ``published``: float32 [task.size]."""
        self.task, self.published = task, published
        self.slots = self._table(spans_from_bytes(task.spans))
        self._training = training_rules(self.config, task.step_limit, self.strategy.fitness_by_sign)
        self.statistics = self._frozen(
            np.frombuffer(task.obs_mean, "<f4"), np.frombuffer(task.obs_std, "<f4")
        )

    def has(self, block: Block) -> bool:
        """Whether the block's rows are of this publication, and in its table by now."""
        is_open = self.task is not None and self.task.publication == block.publication
        return is_open and block.stop <= len(self.slots)

    def rules(self, kind: int) -> EpisodeRules:
        return self._training if kind in TRAINED else self._evaluation

    def _table(self, spans: Sequence[Span]) -> Slots:
        assert self.task is not None
        return Slots(self.config, self.strategy, self.spec, self.task.generation, spans)

    def _frozen(self, mean: Floats, std: Floats) -> FrozenStatistics | None:
        if not self.config.obs_norm:
            return None
        mean, std = mean.astype(np.float32), std.astype(np.float32)
        return FrozenStatistics(mean, std, self.config.obs_clip)

    # --- play

    def play(self, block: Block, worker: int) -> Answer:
        """Play a block's rows; worker: ``worker_mark`` of this one.

        Raises Leaving between steps. An episode that raises becomes a failure of its row. If the
        process has grown too large, the answer has only the rows that were played.
        """
        rows = self.slots.table[block.start : block.stop]
        results: Table = np.zeros(len(rows), self.shape.result)
        results["row"], results["worker"] = rows["row"], worker
        for name in ("fitness", "returns", "behaviour", "info"):
            results[name] = np.nan
        moments, failures, done, control = list[Any](), list[Failure](), 0, self.control
        # Together, but each centre by itself, because it may have its own statistics.
        size = 1 if rows["kind"][0] == CENTRE else len(rows)
        with np.errstate(all="ignore"):
            for first in range(0, len(rows), size):
                group, began = rows[first : first + size], time.monotonic()
                played = self._play_rows(group)
                for row in group:
                    seeds = [seed for each in seeds_of(row) for seed in each]
                    episodes = [*islice(played, len(seeds))]
                    failure = self._summarize(row, results[done], seeds, episodes, moments)
                    if failure is None:
                        control.episodes += len(seeds)
                    else:
                        failures.append(failure)
                        control.failures += 1
                    done += 1
                    if control.finish_reason and not self.unread:
                        break  # the rest is for a smaller process
                # Rows that are played together take equally long.
                results["seconds"][first:done] = (time.monotonic() - began) / (done - first)
                if control.finish_reason:
                    break
        return Answer(results[:done], np.array(moments, self.shape.moments), failures)

    def _play_rows(self, rows: Table) -> Iterator[Played]:
        """The episodes of rows of one kind, as they are read."""
        first, kind = rows[0], int(rows["kind"][0])
        self._begin(first, int(first["seeds"][0, 0]))
        centre = None
        if kind == CENTRE:
            centre = self.strategy.centre_statistics(self.published, int(first["number"]))
        statistics = self.statistics if centre is None else self._frozen(*centre)
        specs = (spec for row in rows for spec in self._specs(row))
        count = int((rows["seeds"] >= 0).sum())
        return self.play_episodes(specs, count, self.rules(kind), statistics)

    def _begin(self, row: Any, seed: int) -> None:
        about = {"generation": self.slots.generation, "slot": int(row["number"]), "seed": seed}
        self.control.begin_episode(about)

    def _specs(self, row: Any) -> Iterator[EpisodeSpec | Exception]:
        """The episodes of a row, individual by individual; an error for each if the individuals
        cannot be built.
        """
        seeds = seeds_of(row)
        try:
            individuals = self._individuals(row)
        except Leaving:
            raise
        except Exception as error:  # a noise table that cannot be read, a user's own strategy
            self.control.end_episode()  # none has begun
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
        is_perturbed, published = kind in (TRAIN, ELITE), self.published
        try:
            if is_perturbed:
                individuals = self._build(published, task.sigma, task.generation, number, index)
            else:
                centre = number if kind == CENTRE else 0
                individuals = strategy.centre_of(published, centre, self._draw)[None]
        except (OSError, MemoryError, Leaving):
            raise
        except Exception as error:
            method = "ask" if is_perturbed else "centre_of"
            raise strategy_failure(strategy, method, error) from error
        validate_individuals(strategy, individuals, (int(row["players"]), self.policy.size))
        return individuals

    def individual(self, slot: int, individual: int) -> list[EpisodeSpec | Exception]:
        """The episodes of one individual of a training slot, for people who play them again."""
        row = self._table([Span(TRAIN, slot, slot + 1)]).table[0]
        specs = [*self._specs(row)]
        each = len(specs) // int(row["players"])
        return specs[individual * each : (individual + 1) * each]

    # --- the result of a row

    def _summarize(
        self, row: Any, result: Any, seeds: Sequence[int], played: Sequence[Played], moments: Any
    ) -> Failure | None:
        """Fill the row's result: means of the scores in order, sums of the rest. Returns its
        failure, if an episode failed.
        """
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
        rules = self.rules(int(row["kind"]))
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
                total = part[0].behaviour.astype(np.float64)
                for one in part[1:]:
                    total = total + cast(Floats, one.behaviour)
                result["behaviour"][player] = total / each
            if self.spec.info:
                known = np.ma.masked_invalid([one.info for one in part])
                result["info"][player] = known.mean(axis=0).filled(np.nan)
        if row["place"] >= 0:
            for number, episode in enumerate(episodes):
                moments.append((int(row["row"]), number, *moments_of(episode, self.policy.numbers)))
        return None

    def _failure(self, row: Any, seed: int, error: Exception) -> Failure:
        is_own = isinstance(error, EsQueueError)
        kind = "" if is_own else f"{type(error).__name__}: "
        place = "" if is_own else last_line(error)
        raised = error.__cause__ if is_own else error  # a sentence needs no traceback of its own
        return Failure(
            kind=KINDS[int(row["kind"])],
            slot=int(row["number"]),
            generation=self.slots.generation,
            seed=seed,
            reason=f"{kind}{error}"[: MAX_REASON - len(place)] + place,
            trace="".join(traceback.format_exception(raised, limit=-12))[-4000:] if raised else "",
        )

    # --- episodes

    def play_episodes(
        self,
        specs: Iterable[EpisodeSpec | Exception],
        count: int,
        rules: EpisodeRules,
        statistics: FrozenStatistics | None,
        on_step: OnStep | None = None,
    ) -> Iterator[Played]:
        """Play ``count`` specs in order, as results are read. An exception among them is its own
        result. Either all or none have a key. With ``on_step``, episodes are played one by one.
        Raises Leaving between two steps.
        """
        left, numbers = iter(specs), self.policy.numbers
        if statistics is not None and numbers is not None:
            statistics = FrozenStatistics(
                statistics.mean[numbers], statistics.std[numbers], statistics.clip
            )
        batches = 0 if on_step else self._batches(count)
        for number in range(batches):
            size = count * (number + 1) // batches - count * number // batches
            batch = list(islice(left, size))
            playable = [spec for spec in batch if isinstance(spec, EpisodeSpec)]
            played = iter(self._play_together(playable, rules, statistics) if playable else [])
            for self.unread, spec in zip(reversed(range(size)), batch, strict=True):
                yield spec if isinstance(spec, Exception) else next(played)
        parameters: Floats | None = None
        for spec in left:
            if isinstance(spec, Exception):
                yield spec
                continue
            self.control.begin_episode({**self.control.playing, "seed": spec.seed})
            try:
                if spec.parameters is not parameters:  # else the next episode of an individual
                    bound, parameters = self._acting.bind(spec.parameters[None]), spec.parameters
                with exits_refused():
                    episode = play_episode(
                        self.env,
                        begin_acting(bound, statistics, numbers),
                        self._actions,
                        rules,
                        spec.seed,
                        self.control,
                        spec.sampled,
                        self._noise_of(spec),
                        self._behaviour if spec.behave else None,
                        on_step,
                    )
                if self.spec.info:
                    info = cast(InfoEnvironment, self.env).info(self.spec.info)
                    episode = replace(episode, info=info)
                result: Played = episode
            except Leaving:
                raise
            except Exception as error:  # whatever a user's environment raises
                result = error
            finally:
                self.control.end_episode()
            yield result

    def _batches(self, count: int) -> int:
        """Into how many batches to divide the episodes; 0 for one by one."""
        if self._envs is None:
            return 0
        batches = -(-count // best_batch_size(self._envs.max_episodes, self._acting.size))
        pays = count >= batches * self._envs.min_episodes
        return batches if pays or isinstance(self.env, UnbatchedEnvironment) else 0

    def _play_together(
        self, specs: Sequence[EpisodeSpec], rules: EpisodeRules, statistics: FrozenStatistics | None
    ) -> list[Played]:
        """If one raises, it is unknown which: the unfinished ones are played again, one by one."""
        assert self._envs is not None
        results: list[Played | None] = [None] * len(specs)
        self.control.begin_episode({**self.control.playing, "seed": specs[-1].seed})
        try:
            noises = [noise for noise in map(self._noise_of, specs) if noise]
            batch = Batch(specs, results, self._acting, rules, noises, self.policy.numbers)
            with exits_refused():
                batch.play(self._envs, self._actions, statistics, self.control)
        except Leaving:
            raise
        except Exception as error:
            if len(specs) == 1:
                return [error]
        finally:
            self.control.end_episode()
        return [
            self._play_together([spec], rules, statistics)[0] if result is None else result
            for spec, result in zip(specs, results, strict=True)
        ]

    def _noise_of(self, spec: EpisodeSpec) -> NextNoise | None:
        if spec.key is None or not self._is_noisy:
            return None
        numbers = len(self.spec.action.low)
        return action_noise(self.noise, numbers, self.config.action_noise, spec.key)

    def _behaviour(self, observation: Floats) -> Floats:
        """The behaviour of the episode that ends with ``observation``. Raises EpisodeFailed."""
        spec = self.spec
        if not is_read_inside(spec.behaviour):
            return last_observation(observation)
        behaviour = cast(BehaviourEnvironment, self.env).behaviour()
        if len(behaviour) != spec.behaviour_size:
            raise EpisodeFailed(
                f"the behaviour has {len(behaviour)} numbers, but {spec.behaviour_size} in other "
                "episodes"
            )
        return behaviour


def seeds_of(row: Any) -> list[list[int]]:
    """The environment seeds of a row's individuals. A row without any, which asks for a snapshot of
    a model, counts as an episode of seed 0.
    """
    parts = row["seeds"].tolist()[: int(row["players"])]
    return [[seed for seed in part if seed >= 0] or [0] for part in parts]


def failure_code(error: Exception) -> int:
    """What failed: the episode, this host (disk, memory, files), or the user's own strategy."""
    if isinstance(error, StrategyFailure):
        return STRATEGY_FAILED
    return HOST_FAILED if isinstance(error, OSError | MemoryError) else EPISODE_FAILED


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


# --- before the first claim


def join(
    config: RunConfig,
    control: EpisodeControl,
    noise_folder: Path | None = None,
    table: NoiseTable | None = None,
) -> Player:
    """Build the player of a resolved config. Raises Refusal or EnvironmentFailure in one
    sentence.
    """
    if module := refused_module(named_modules(config), INSTALLED):
        raise Refusal(
            f"custom code: the run names the module {module[:80]}, which is not allowed here: "
            f"install its package on this host, or start this worker with {ALLOW}={INSTALLED},"
            f"{module[:80]}"
        )
    noise = partial(NoiseTable.open, config.noise_size, noise_folder)
    control.begin_episode({})  # an environment or a model may hang when it is made
    try:
        if config.model:
            make = import_module("workers.model_player").ModelPlayer
            model_player: Player = make(config, table or noise(), control)
            return model_player
        player = join_environment(config, control)
    # This host lacks something, such as a module with the user's strategy.
    except (UsageError, MissingPackage) as error:
        raise Refusal(str(error)) from None
    finally:
        control.end_episode()
    player.noise = table or noise()
    return player


def join_environment(config: RunConfig, control: EpisodeControl) -> Player:
    request = EnvironmentRequest.of(config)
    spec = describe(request)
    policy = make_policy(
        *(config, spec.observation_size, spec.action, spec.observation_shape),
        make_reference_batch(config),
    )
    limit_blas_threads()  # also those of libraries that a user's policy has imported
    problem = resolve(request)
    env, envs = problem.open(), problem.open_vector()
    player = Player(config, spec, policy, env, envs, control=control)
    try:
        _ = player.strategy  # made now, so that a setting that it refuses is known
        player.numerics, player.backend = fingerprint(player), resolve_backend(spec.backend)
        portable = problem.portable
        if portable != request:  # it must play the same bits as the requested back end
            env.close()
            player.env = open_environment(portable)
            if fingerprint(player) != player.numerics:
                raise Refusal(
                    f"back ends: {spec.backend} and {portable.backend} play different "
                    f"episodes of {config.problem} here: compare this host's packages, or use "
                    f"--backend {portable.backend}"
                )
    except BaseException:
        player.close()
        raise
    return player


def fingerprint(player: Player) -> str:
    """Digest of a fixed policy's fixed episode."""
    config = player.config
    parameters = player.policy.initial(initial_parameters_seed(config.seed), "normal")
    cure = (
        "take seed as the second argument, and draw all randomness from it"
        if config.objective
        else "seed all its randomness in reset"
    )
    traces = [episode_trace(player, parameters, seed) for seed in CHECK_SEEDS]
    return digest_of_repeats(
        config, traces, f"the same seed and actions gave different episodes; {cure}"
    )


def digest_of_repeats(config: RunConfig, traces: Sequence[bytes], complaint: str) -> str:
    """Digest of what was played first and, with something else between, last. If the two differ, a
    slot's result would depend on the worker and the time: EnvironmentFailure, unless it is allowed.
    """
    if traces[0] != traces[-1] and not config.allow_nondeterministic:
        raise EnvironmentFailure(
            f"{config.problem} does not repeat itself: {complaint}, or use "
            "--allow-nondeterministic and lose reproducible results"
        )
    return bytes_digest(traces[0])


def episode_trace(player: Player, parameters: np.ndarray, seed: int) -> bytes:
    """The bytes of an episode's observations, outputs and rewards, or of its failure. Raises
    Leaving.
    """
    trace, policy = list[bytes](), player.policy
    act = policy.bind(parameters[None]).begin()
    player.control.begin_episode({"seed": seed})

    def traced_act(observation: np.ndarray) -> np.ndarray:
        outputs = act(observation)
        seen = observation if policy.numbers is None else observation[policy.numbers]
        trace.append(seen.tobytes() + outputs.tobytes())
        return outputs

    actions = ActionMap(player.spec.action, player.config.action_bound)
    rules = EpisodeRules(CHECK_STEPS)
    with np.errstate(all="ignore"):
        try:
            with exits_refused():
                episode = play_episode(player.env, traced_act, actions, rules, seed, player.control)
        except Leaving:
            raise
        # The worker joins all the same: the failure of a slot is counted and reported.
        except Exception as error:
            return b"".join(trace) + type(error).__name__.encode()
    return b"".join(trace) + np.float64(episode.total).tobytes()
