"""Joining a run: what a worker checks before its first claim."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from es_queue import __version__
from es_queue.config.episode_rules import evaluation_rules
from es_queue.config.parsing import config_from_json
from es_queue.config.run_config import RunConfig
from es_queue.environments.factory import (
    describe,
    open_environment,
    open_vector_environment,
    portable_request,
    resolve_backend,
)
from es_queue.environments.interface import Environment, EnvironmentRequest
from es_queue.environments.reference_batch import make_reference_batch
from es_queue.environments.spaces import EnvironmentSpec
from es_queue.errors import (
    DecodeError,
    EnvironmentFailure,
    EsQueueError,
    MissingPackage,
    UsageError,
)
from es_queue.numerics.fingerprint import bytes_digest, limit_blas_threads
from es_queue.numerics.noise_table import NoiseTable
from es_queue.policies import make_policy
from es_queue.policies.actions import ActionMap
from es_queue.policies.base import Policy
from es_queue.protocol.messages import Task
from es_queue.protocol.store import WorkerStore
from es_queue.slot_plan import initial_parameters_seed
from es_queue.strategies import make_strategy
from es_queue.user_code import ALLOW, INSTALLED, named_modules, refused_module
from workers.episode import EpisodeControl, Leaving, play_episode
from workers.player import Player

CHECK_STEPS = 50
CHECK_SEEDS = (0, 1, 0)


class Refusal(EsQueueError):  # noqa: N818 - the worker refuses; nothing is broken
    """This worker cannot work for the run; the sentence names the difference."""


def make_bindable_policy(config: RunConfig, spec: EnvironmentSpec) -> Policy:
    """The run's policy with its reference batch. Raises UsageError."""
    reference = make_reference_batch(config)
    return make_policy(
        config, spec.observation_size, spec.action, spec.observation_shape, reference
    )


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
    request = EnvironmentRequest.of(config)
    control.begin_episode({})  # an environment may hang when it is made
    try:
        spec = describe(request)
        policy = make_bindable_policy(config, spec)
        limit_blas_threads()  # also those of libraries that a user's policy has imported
        strategy = make_strategy(config, policy.size)
        env, envs = open_environment(request), open_vector_environment(request)
        numerics = fingerprint(config, spec, policy, env, control)
        portable = portable_request(request)
        if portable != request:  # it must play the same bits as the requested back end
            env.close()
            env = open_environment(portable)
            if fingerprint(config, spec, policy, env, control) != numerics:
                raise Refusal(
                    f"back ends: {spec.backend} and {portable.backend} play different "
                    f"episodes of {config.task} here: compare this host's packages, or use "
                    f"--backend {portable.backend}"
                )
    # This host lacks something, such as a module with the user's strategy.
    except (UsageError, MissingPackage) as error:
        raise Refusal(str(error)) from None
    finally:
        control.end_episode()
    table = table or NoiseTable.open(config.noise_size, noise_folder)
    player = Player(config, spec, policy, strategy, table, control, env, envs)
    player.numerics, player.backend = numerics, resolve_backend(spec.backend)
    return player


def fingerprint(
    config: RunConfig,
    spec: EnvironmentSpec,
    policy: Policy,
    env: Environment,
    control: EpisodeControl,
) -> str:
    """Digest of a fixed policy's fixed episode, played twice with another episode between.

    Raises EnvironmentFailure if the two differ, unless the config allows it: a slot's result would
    then depend on the worker and the time.
    """
    parameters = policy.initial(initial_parameters_seed(config.seed), "normal")
    traces = [
        episode_trace(config, spec, policy, env, parameters, seed, control) for seed in CHECK_SEEDS
    ]
    if traces[0] != traces[2] and not config.allow_nondeterministic:
        raise EnvironmentFailure(
            f"{config.task} does not repeat itself: the same seed and actions gave different "
            "episodes; seed all its randomness in reset, or use --allow-nondeterministic and lose "
            "reproducible results"
        )
    return bytes_digest(traces[0])


def episode_trace(
    config: RunConfig,
    spec: EnvironmentSpec,
    policy: Policy,
    env: Environment,
    parameters: np.ndarray,
    seed: int,
    control: EpisodeControl,
) -> bytes:
    """The bytes of an episode's observations, outputs and rewards, or of its failure. Raises
    Leaving.
    """
    trace: list[bytes] = []
    act = policy.bind(parameters[None]).begin()
    control.begin_episode({"seed": seed})

    def traced_act(observation: np.ndarray) -> np.ndarray:
        outputs = act(observation)
        trace.append(observation.tobytes() + outputs.tobytes())
        return outputs

    actions, rules = ActionMap(spec.action, config.action_bound), evaluation_rules(CHECK_STEPS)
    with np.errstate(all="ignore"):
        try:
            episode = play_episode(env, traced_act, actions, rules, seed, control)
        except Leaving:
            raise
        # The worker joins all the same: the failure of a slot is counted and reported.
        except Exception as error:
            return b"".join(trace) + type(error).__name__.encode()
    return b"".join(trace) + np.float64(episode.total).tobytes()


def load_task(raw: bytes, digest: str) -> Task:
    """The run's task. Raises Refusal if this es-queue cannot read it, or if this host's noise table
    differs.
    """
    try:
        task = Task.decode(raw)
    except DecodeError as error:
        raise Refusal(
            f"protocol: es-queue {__version__} here cannot read the run's task ({error}): "
            "install the master's version"
        ) from None
    if task.noise != digest:
        raise Refusal(f"noise digest: this host's table is {digest}, the run's is {task.noise}")
    return task


def validate_admission(store: WorkerStore, player: Player) -> None:
    """Refuse before the first claim for the same reasons as ``load_task``, and with other
    arithmetic under --strict.
    """
    if (raw := store.task()) is not None:
        load_task(raw, player.noise.digest)
    expected = store.progress_field("numerics") if player.config.strict else None
    if expected and expected != player.numerics:
        raise Refusal(
            f"numerics: this host's fingerprint is {player.numerics[:8]}, the run's is "
            f"{expected[:8]}, and the run is --strict: use the CPU type and numpy of its other "
            "hosts, or leave out --strict"
        )


def load_config(raw: bytes) -> tuple[RunConfig, str]:
    """The run's settings, and why this es-queue cannot read them (the settings are then the
    defaults).
    """
    try:
        return config_from_json(raw), ""
    except UsageError as error:
        return RunConfig(), (
            f"settings: es-queue {__version__} here cannot read the run's ({error}): install the "
            "master's version"
        )
