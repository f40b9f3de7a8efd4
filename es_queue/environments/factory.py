"""Creates environments: chooses the back end, plays a trial step, and describes the environment;
and the reference batch of virtual batch normalisation.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache
from math import isfinite
from typing import cast, overload

import gymnasium
import numpy as np

from es_queue.backends import ANY, BACKENDS, ENVPOOL, GYM, LEAN, STOCK
from es_queue.config.run_config import ASKED, VIRTUAL, RunConfig
from es_queue.config.settings import AUTO
from es_queue.environments.episode_rules import parse_bins
from es_queue.environments.interface import (
    ActionSpec,
    BehaviourEnvironment,
    Environment,
    EnvironmentRequest,
    EnvironmentSpec,
    RenderedEnvironment,
    VectorEnvironment,
    best_batch_size,
)
from es_queue.environments.registry import (
    CARTPOLE,
    CARTPOLE_ARGUMENTS,
    MARVIN,
    WALKER_V2,
    WALKER_V3,
    find_environment,
    format_missing_package,
)
from es_queue.environments.stock import (
    FEET,
    LAST,
    POSITION,
    ContactShares,
    StockEnvironment,
    is_read_inside,
    resolve_behaviour,
    validate_contacts,
    validate_length,
)
from es_queue.environments.vector import (
    CartPoleVectorEnvironment,
    EnvPoolVectorEnvironment,
    UnbatchedEnvironment,
    is_installed,
    load_envpool,
)
from es_queue.errors import EnvironmentFailure, MissingPackage, UsageError
from es_queue.numerics.arrays import Doubles, Floats
from es_queue.policies.actions import ActionMap
from es_queue.slot_plan import REFERENCE, evaluation_seeds, uniforms
from es_queue.user_code import describe_error

_PROBE_SEED = 0
#: What environments with a goal report in their info.
SUCCESS = "is_success"


class ResolvedEnvironment:
    """A request, its resolved id, and the back end that plays it. Raises EnvironmentFailure.

    is_walker, is_cartpole: with only settings that the lean classes support
    """

    def __init__(self, request: EnvironmentRequest) -> None:
        self.request = request
        if request.backend == GYM.name:
            # start-up: few runs use the old gym
            from es_queue.environments.old_gym import find_gym_environment

            self.entry = entry = find_gym_environment(request)
        else:
            self.entry = entry = find_environment(request)
        point, arguments = entry.entry_point, entry.arguments.keys()
        is_plain = not (entry.module or request.wrappers or entry.spec.additional_wrappers)
        self.is_walker = is_plain and (
            (point in (WALKER_V2, WALKER_V3) and arguments <= {"hardcore"})
            or (point == MARVIN and not arguments)
        )
        self.is_cartpole = is_plain and point == CARTPOLE and arguments <= CARTPOLE_ARGUMENTS
        #: Whether lean and EnvPool are known to play the same episodes to the bit: EnvPool has no
        #: lidar of version 2.
        self.has_equal_backends = self.is_walker and point == WALKER_V3
        self.is_hardcore = bool(entry.arguments.get("hardcore", False))

    @property
    def is_stock(self) -> bool:
        """Whether a library's own environment plays it."""
        return self.backend in (STOCK.name, GYM.name)

    @cached_property
    def behaviour(self) -> str:
        return resolve_behaviour(self.entry, self.request)

    @cached_property
    def backend(self) -> str:
        """Never "auto"; "any" stays, because each host decides. Raises UsageError if it is unknown
        or cannot play this environment.
        """
        requested = self.request.backend
        if requested not in (AUTO, *BACKENDS):
            raise UsageError(
                f"there is no back end {requested!r}; the back ends are "
                f"{', '.join((AUTO, *BACKENDS))}"
            )
        lean = self.is_walker or self.is_cartpole
        looks_inside = is_read_inside(self.behaviour)
        if self.behaviour == FEET:
            validate_contacts(self.entry, self.request)
        if looks_inside:
            lean = self.is_walker and self.behaviour in (POSITION, FEET)
            readers = [name for name, backend in BACKENDS.items() if backend.reads_inside]
            allowed = (AUTO, STOCK.name, LEAN.name) if lean else (AUTO, *readers)
            if requested not in allowed:
                raise UsageError(
                    f"the {requested} back end does not report the {self.behaviour} of "
                    f"{self.entry.id}: use --backend {' or '.join(allowed)}, or the behaviour "
                    "last-observation"
                )
        if requested == AUTO:
            if self.has_equal_backends and is_installed() and not looks_inside:
                return ENVPOOL.name
            return LEAN.name if lean else STOCK.name
        if requested == LEAN.name and not lean:
            raise UsageError(
                f"the lean back end does not play {self.request.id} with these settings: it plays "
                "BipedalWalker and BipedalWalkerHardcore, v2 and v3, Marvin and CartPole, without "
                "wrappers, and only with the arguments hardcore and sutton_barto_reward"
            )
        if requested == ANY.name and not self.has_equal_backends:
            raise UsageError(
                "backend is any, but only BipedalWalker-v3 and BipedalWalkerHardcore-v3 are known "
                f"to play the same episodes on every back end, not {self.request.id} with these "
                "settings: use auto, or name one back end"
            )
        if requested == ENVPOOL.name:
            self._validate_envpool()
        return requested

    def _validate_envpool(self) -> None:
        entry = self.entry
        if self.is_walker and self.is_hardcore and entry.entry_point == WALKER_V2:
            raise UsageError(
                f"the envpool back end does not play {entry.id}: EnvPool has only the lidar "
                "of version 3; use lean"
            )
        changed = entry.module or self.request.wrappers or self.request.arguments
        if (changed and not self.is_walker) or (
            self._envpool_task not in load_envpool(entry.id).list_all_envs()
        ):
            raise UsageError(
                f"the envpool back end does not play {self.request.id} with these settings: it "
                "plays EnvPool's own ids, without wrappers and arguments"
            )

    @property
    def _envpool_task(self) -> str:
        if self.entry.entry_point in (WALKER_V2, WALKER_V3):
            return "BipedalWalkerHardcore-v3" if self.is_hardcore else "BipedalWalker-v3"
        return self.entry.spec.id

    # --- what plays it

    def open(self) -> Environment:
        """One episode after the other."""
        env: Environment
        if self.is_stock:
            env = StockEnvironment(self.entry, self.request)
        elif (envs := self.open_vector()) is not None:
            return UnbatchedEnvironment(envs)
        else:
            env = self._open_walker()
        return ContactShares(env) if self.behaviour == FEET else env

    def open_vector(self) -> VectorEnvironment | None:
        """Many episodes at once; None if this back end plays them one by one."""
        if resolve_backend(self.backend) == ENVPOOL.name:
            return EnvPoolVectorEnvironment(self._envpool_task)
        if self.backend == LEAN.name and self.is_cartpole:
            return CartPoleVectorEnvironment(self.entry.arguments)
        return None

    def _open_walker(self) -> Environment:
        try:
            # start-up: Box2D
            from es_queue.environments.walker import LIDAR, LeanMarvin, LeanWalker
        except ImportError as error:
            raise MissingPackage(format_missing_package(self.entry, error)) from error
        seen = self.request.seen
        if seen is None or self.behaviour == LAST:
            seen = (*LIDAR,)
        if self.entry.entry_point == MARVIN:
            return LeanMarvin(seen)
        return LeanWalker(self.is_hardcore, self.entry.entry_point == WALKER_V2, seen)

    def open_rendered(self, render_mode: str) -> RenderedEnvironment:
        """Open the environment for rendered episodes; Gymnasium's own one in place of EnvPool's."""
        if self.is_stock or not self.is_walker:
            return StockEnvironment(self.entry, self.request, render_mode)
        try:
            # start-up: pygame
            from es_queue.environments.rendered_walker import RenderedMarvin, RenderedWalker
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            raise MissingPackage(format_missing_package(self.entry, error)) from error
        if self.entry.entry_point == MARVIN:
            return RenderedMarvin(render_mode)
        return RenderedWalker(self.is_hardcore, self.entry.entry_point == WALKER_V2, render_mode)


def describe(request: EnvironmentRequest) -> EnvironmentSpec:
    """Create the environment, play one step, and return its spec. Raises EnvironmentFailure, and
    UsageError for an invalid back end or wrapper.
    """
    if request.is_model:
        # start-up: of models
        from es_queue.strategies.model_es import model_spec

        return model_spec(request.id)
    if request.parameters:
        # start-up: of objectives
        from es_queue.environments.objective import describe_objective

        return describe_objective(request)
    resolved = ResolvedEnvironment(request)
    backend = resolved.backend
    stock = StockEnvironment(resolved.entry, request)  # describes the spaces for all back ends
    spec = stock.spec
    is_played = resolved.is_stock and resolved.behaviour != FEET
    if not is_played:
        stock.close()
    if not resolved.is_stock and (
        spec.discrete_start is not None
        or spec.observation is not None
        or spec.action.kind not in ("box", "discrete")
        or any(spec.action.starts)
    ):
        raise UsageError(
            f"the envpool back end does not play {spec.id}: it supports array observations, "
            "and box or discrete actions"
        )
    env = stock if is_played else resolved.open()
    try:
        _probe_environment(env, spec)
        size = _behaviour_size(env, spec, resolved.behaviour)
        return replace(
            spec,
            backend=backend,
            lives=stock.lives() if is_played else 0,
            action=with_bins(spec.action, request.action_bins),
            behaviour=resolved.behaviour,
            behaviour_size=size,
            info=_reported_info(stock if is_played else None, request),
        )
    finally:
        env.close()


def _reported_info(env: StockEnvironment | None, request: EnvironmentRequest) -> tuple[str, ...]:
    """The names of the request, else ``is_success`` if the episode that has just begun reports it.

    env: None if its back end has no info
    """
    if env is None and request.info:
        raise UsageError(
            f"info is {','.join(request.info)}, but only environments of Gymnasium itself report "
            f"it: use --backend {STOCK.name}, without --behaviour {FEET}"
        )
    if env is None or request.info:
        return request.info
    return (SUCCESS,) if np.isfinite(env.info([SUCCESS])).all() else ()


def with_bins(spec: ActionSpec, text: str) -> ActionSpec:
    """``spec`` with the bins of ``text``. Raises UsageError unless it is a box with finite
    bounds.
    """
    bins = parse_bins(text)
    if bins and (spec.kind != "box" or not all(map(isfinite, (*spec.low, *spec.high)))):
        raise UsageError(
            f"action_bins is {text}, but only box actions with finite bounds can be divided "
            "into bins: leave it out"
        )
    return replace(spec, bins=bins)


@overload
def open_environment(request: EnvironmentRequest, render_mode: None = None) -> Environment: ...
@overload
def open_environment(request: EnvironmentRequest, render_mode: str) -> RenderedEnvironment: ...


def open_environment(request: EnvironmentRequest, render_mode: str | None = None) -> Environment:
    """The environment of ``request``; with ``render_mode`` one that draws."""
    if not request.parameters:
        resolved = ResolvedEnvironment(request)
        return resolved.open() if render_mode is None else resolved.open_rendered(render_mode)
    if render_mode is not None:
        raise UsageError(
            f"{request.id} is an objective, so there is nothing to draw: leave --render and "
            "--record out"
        )
    if request.id == ASKED:
        raise UsageError(
            "other programs score this run's vectors (es_queue.AskTell), no worker: the best is "
            "load_policy(RUN).vector"
        )
    # start-up: of objectives
    from es_queue.environments.objective import ObjectiveEnvironment

    return ObjectiveEnvironment(request)


def open_vector_environment(request: EnvironmentRequest) -> VectorEnvironment | None:
    """A VectorEnvironment of ``request``; None if its back end plays episodes one by one."""
    if request.parameters:
        # start-up: of objectives
        from es_queue.environments.objective import ObjectiveBatch

        return ObjectiveBatch(request) if request.backend == LEAN.name else None
    return ResolvedEnvironment(request).open_vector()


def batch_size_range(request: EnvironmentRequest, parameters: int = 1) -> tuple[int, int] | None:
    """The fewest and the most episodes to play at once for policies of that size, or None."""
    if request.is_model:
        return None
    kind: type[VectorEnvironment]
    if request.parameters:
        # start-up: of objectives
        from es_queue.environments.objective import ObjectiveBatch

        if request.backend != LEAN.name:
            return None
        return ObjectiveBatch.min_episodes, best_batch_size(ObjectiveBatch.max_episodes, parameters)
    resolved = ResolvedEnvironment(request)
    if resolved.backend in (ENVPOOL.name, ANY.name):
        kind = EnvPoolVectorEnvironment
    elif resolved.backend == LEAN.name and resolved.is_cartpole:
        kind = CartPoleVectorEnvironment
    else:
        return None
    max_episodes = best_batch_size(kind.max_episodes, parameters)
    if max_episodes < kind.min_episodes and portable_request(request) != request:
        return None
    return min(kind.min_episodes, max_episodes), max_episodes


def portable_request(request: EnvironmentRequest) -> EnvironmentRequest:
    """The same episodes, to the bit, from a back end that every installation has and that plays
    them one by one, if there is one.
    """
    if request.parameters:
        return request
    resolved = ResolvedEnvironment(request)
    if request.backend in (ENVPOOL.name, ANY.name) and resolved.has_equal_backends:
        return replace(request, backend=LEAN.name)
    if request.backend in (AUTO, LEAN.name) and resolved.is_cartpole:
        return replace(request, backend=STOCK.name)
    return request


def resolve_backend(backend: str) -> str:
    """The back end of this host for a choice: EnvPool for "any" if it is installed, else lean."""
    if backend != ANY.name:
        return backend
    return ENVPOOL.name if is_installed() else LEAN.name


def _behaviour_size(env: Environment, spec: EnvironmentSpec, behaviour: str) -> int:
    """Numbers of the behaviour, measured on the episode that has just begun; 0 without one."""
    if not behaviour:
        return 0
    try:
        size = (
            len(cast(BehaviourEnvironment, env).behaviour())
            if is_read_inside(behaviour)
            else spec.observation_size
        )
        validate_length(size)
    except Exception as error:  # whatever a user's function raises
        raise EnvironmentFailure(
            f"{behaviour} of {spec.id} cannot be read: "
            f"{error if isinstance(error, EnvironmentFailure) else describe_error(error)}"
        ) from error
    return size


def _probe_environment(env: Environment, spec: EnvironmentSpec) -> None:
    try:
        first = env.reset(_PROBE_SEED)
        idle = ActionMap(spec.action, "clip").act_one(np.zeros(spec.action.outputs, np.float32))
        second = env.step(idle)[0]
    except Exception as error:
        raise EnvironmentFailure(
            f"{spec.id} fails when it is played: "
            f"{error if isinstance(error, EnvironmentFailure) else describe_error(error)}"
        ) from error
    for observation in (first, second):
        if observation.shape != (spec.observation_size,):
            raise EnvironmentFailure(
                f"{spec.id} declares observations of {spec.observation_size} numbers "
                f"but yields {observation.size}"
            )


# --- the reference batch: observations under random actions, which every process makes for itself

#: Observations of the batch, and steps between two of them: neighbours are nearly the same.
BATCH_SIZE, STEPS_BETWEEN = 128, 8


def make_reference_batch(config: RunConfig) -> Floats | None:
    """float32[BATCH_SIZE, observation_size] for a resolved config, read-only; None without virtual
    batch normalisation. Raises EnvironmentFailure.
    """
    if not config.has_virtual_norm:
        return None
    return _collect_batch(
        portable_request(replace(EnvironmentRequest.of(config), behaviour="")), config.seed
    )


@lru_cache(maxsize=2)
def _collect_batch(request: EnvironmentRequest, seed: int) -> Floats:
    spec = describe(request)
    try:
        batch = np.stack(_sample_observations(request, spec, seed))
    except Exception as error:  # whatever a user's environment raises
        raise EnvironmentFailure(
            f"{spec.id} fails under the random actions that batch_norm {VIRTUAL} needs: "
            f"{describe_error(error)}"
        ) from error
    if not np.isfinite(batch).all():
        raise EnvironmentFailure(
            f"{spec.id} has observations that are not finite, so batch_norm "
            f"{VIRTUAL} cannot normalise them: leave it out"
        )
    batch.flags.writeable = False
    return batch


def _sample_observations(
    request: EnvironmentRequest, spec: EnvironmentSpec, seed: int
) -> list[Floats]:
    most = BATCH_SIZE * STEPS_BETWEEN
    seeds = iter(evaluation_seeds(RunConfig(seed=seed), REFERENCE, 0, most).tolist())
    draws = uniforms(seed, REFERENCE, 1, most * spec.action.outputs).reshape(most, -1)
    actions, env = ActionMap(spec.action, "clip"), open_environment(request)
    observations: list[Floats] = []
    try:
        over, steps = True, 0
        for number, draw in enumerate(draws):
            if over or steps == spec.step_limit:
                observation, steps = env.reset(next(seeds)), 0
            if number % STEPS_BETWEEN == 0:
                observations.append(observation)
            observation, _, over = env.step(actions.act_one(uniform_outputs(spec.action, draw)))
            steps += 1
    finally:
        env.close()
    return observations


def uniform_outputs(action: ActionSpec, draw: Doubles) -> Floats:
    """Outputs of a policy for an action that is uniform in its space (-1 to 1 if unbounded).

    draw: float64[outputs], uniform in [0, 1)
    """
    if action.kind != "box" or action.bins:
        return (draw - 0.5).astype(np.float32)
    bounds = np.array([action.low, action.high])
    low, high = np.where(np.isfinite(bounds).all(0), bounds, [[-1.0], [1.0]])
    drawn: Floats = (low + draw * (high - low)).astype(np.float32)
    return drawn
