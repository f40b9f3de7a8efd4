"""Joining a run: everything that a worker must have, and must agree on, before its first claim."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from es_queue import __version__
from es_queue.config import RunConfig
from es_queue.custom_code import named_modules, not_allowed
from es_queue.environments import (
    EnvironmentRequest,
    World,
    describe,
    everywhere,
    open_world,
    open_worlds,
    played_by,
)
from es_queue.environments.reference import reference_of
from es_queue.episode_rules import evaluation_rules
from es_queue.errors import DecodeError, EnvironmentFailure, EsQueueError, MissingPackage, UsageError
from es_queue.noise import NoiseTable
from es_queue.numerics import bytes_digest, single_threaded_blas
from es_queue.plan import first_parameters_seed
from es_queue.policies import Policy, make_policy
from es_queue.policies.actions import ActionMap
from es_queue.policies.base import Forward
from es_queue.protocol.channel import WorkerChannel, quarantined_in
from es_queue.protocol.messages import Task
from es_queue.settings import config_from_json
from es_queue.spaces import EnvironmentSpec
from es_queue.strategies import make_strategy
from workers.evaluate import Evaluator
from workers.rollout import Leaving, Watch, actor, play

CHECK_STEPS = 50
CHECK_SEEDS = (0, 1, 0)


class Refusal(EsQueueError):  # noqa: N818 - the worker refuses; nothing is broken
    """This worker may not work for the run; the sentence says what differs."""


@dataclass(frozen=True)
class Joined:
    """A worker's half of a run, ready for its first block. numerics: digest of the fixed episode; backend: what plays here."""

    evaluator: Evaluator
    noise_digest: str
    numerics: str
    backend: str


def environment_request(config: RunConfig) -> EnvironmentRequest:
    return EnvironmentRequest.of(config)


def join(config: RunConfig, watch: Watch, noise_folder: Path | None = None, table: NoiseTable | None = None) -> Joined:
    """Build the evaluator of a resolved config. Raises Refusal or EnvironmentFailure in one sentence."""
    foreign = not_allowed(named_modules(config))
    if foreign:
        raise Refusal(foreign)
    request = environment_request(config)
    watch.began, watch.playing = time.monotonic(), {}  # an environment that hangs may do so when it is made
    try:
        spec = describe(request)
        policy = make_policy(config, spec.observation_size, spec.action, spec.observation_shape, reference_of(config))
        single_threaded_blas()  # what a policy of the user's own has imported, too
        strategy = make_strategy(config, policy.size)
        world, worlds = open_world(request), open_worlds(request)
        numerics = fingerprint(config, spec, policy, world, watch)
        single = everywhere(request)
        if single != request:  # the fingerprint is of the back end that was asked for; this one has the same bits
            world.close()
            world = open_world(single)
            if fingerprint(config, spec, policy, world, watch) != numerics:
                raise Refusal(f"back ends: {spec.backend} and {single.backend} play different episodes of {config.task} here: compare this host's packages, or use --backend {single.backend}")
    except (UsageError, MissingPackage) as error:  # what this host has not, as a strategy or a module of the user's own
        raise Refusal(str(error)) from None
    finally:
        watch.began = None
    table = table or NoiseTable.open(config.noise_size, noise_folder)
    fewest = 1 if worlds is None or single == request else worlds.fewest
    evaluator = Evaluator(config, spec, world, policy, strategy, table, watch, worlds, fewest)
    return Joined(evaluator, table.digest, numerics, played_by(spec.backend))


def fingerprint(config: RunConfig, spec: EnvironmentSpec, policy: Policy, world: World, watch: Watch) -> str:
    """Digest of a fixed policy's fixed episode, played twice with another between.

    Raises EnvironmentFailure where the two differ, unless the config allows it: a slot's result would then
    depend on which worker ran it, and when.
    """
    parameters = policy.initial(first_parameters_seed(config.seed), "normal")
    traces = [episode_trace(config, spec, policy, world, parameters, seed, watch) for seed in CHECK_SEEDS]
    if traces[0] != traces[2] and not config.allow_nondeterministic:
        raise EnvironmentFailure(
            f"{config.task} does not repeat itself: the same seed and actions gave another episode the second time; "
            "seed all its randomness in reset, or use --allow-nondeterministic and lose reproducible results"
        )
    return bytes_digest(traces[0])


def episode_trace(
    config: RunConfig, spec: EnvironmentSpec, policy: Policy, world: World, parameters: np.ndarray, seed: int, watch: Watch
) -> bytes:
    """The bytes of an episode's observations, actions' outputs and rewards, or of how it failed. Raises Leaving."""
    seen: list[bytes] = []
    begin = actor(policy, parameters, None)
    watch.began, watch.playing = time.monotonic(), {"seed": seed}

    def begin_watched() -> Forward:
        act = begin()

        def watched(observation: np.ndarray) -> np.ndarray:
            outputs = act(observation)
            seen.append(observation.tobytes() + outputs.tobytes())
            return outputs

        return watched

    with np.errstate(all="ignore"):
        try:
            episode = play(world, begin_watched, ActionMap(spec.action, config.action_bound), evaluation_rules(CHECK_STEPS), seed, watch)
        except Leaving:
            raise
        except Exception as error:  # joining goes on: as a slot's failure it is counted, and the master hears of it
            return b"".join(seen) + type(error).__name__.encode()
    return b"".join(seen) + np.float64(episode.total).tobytes()


def readable_task(raw: bytes, digest: str) -> Task:
    """The run's task. Raises Refusal where this es-queue cannot read it, or the run's noise table is another than this host's."""
    try:
        task = Task.decode(raw)
    except DecodeError as error:
        raise Refusal(f"protocol: es-queue {__version__} here cannot read the run's task ({error}): install the master's version") from None
    if task.noise != digest:
        raise Refusal(f"noise digest: this host's table is {digest}, the run's is {task.noise}")
    return task


def check_noise(raw: bytes | None, digest: str) -> None:
    """Refuse before the first claim what ``readable_task`` refuses; nothing while the run has no task."""
    if raw is not None:
        readable_task(raw, digest)


def check_admitted(channel: WorkerChannel, config: RunConfig, host: str, rq_name: str, numerics: str) -> None:
    """Refuse what the master would: its audit has put this worker into quarantine, or the run wants one arithmetic."""
    if (host, rq_name) in quarantined_in(channel.shown("quarantined")):
        raise Refusal("quarantine: the audit found that this worker's results differ from those of two others: test this host's memory, and compare its packages")
    wanted = channel.shown("numerics") if config.strict else None
    if wanted and wanted != numerics:
        raise Refusal(f"numerics: this host's arithmetic has the fingerprint {numerics[:8]}, the run's is {wanted[:8]}, and the run is --strict: use the CPU type and the numpy of its other hosts, start es-master on a host like this one, or leave out --strict")


def readable_config(raw: bytes) -> tuple[RunConfig, str]:
    """The run's settings, and why this es-queue cannot read them; then they are the defaults."""
    try:
        return config_from_json(raw), ""
    except UsageError as error:
        return RunConfig(), f"settings: es-queue {__version__} here cannot read the run's ({error}): install the master's version"


def pause_between_refusals(count: int) -> float:
    """Seconds to wait before trying to join again: 1, 2, 4 … 60."""
    return float(min(60, 2 ** min(count, 6)))


def wait(watch: Watch, seconds: float, poll: float) -> None:
    """Wait unless told to leave."""
    until = time.monotonic() + seconds
    while not watch.leaving and time.monotonic() < until:
        time.sleep(min(poll, max(0.0, until - time.monotonic())))
