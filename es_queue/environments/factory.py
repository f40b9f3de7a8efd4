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
from es_queue.config.run_config import VIRTUAL, RunConfig
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
from es_queue.environments.objective import Objective
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
    has_equal_backends: whether lean and EnvPool play the same episodes to the bit
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
        self.has_equal_backends = self.is_walker and point == WALKER_V3
        self.is_hardcore = bool(entry.arguments.get("hardcore", False))
        self.behaviour = resolve_behaviour(entry, request)

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
        if self.behaviour == FEET:
            validate_contacts(self.entry, self.request)
        readers = list(BACKENDS)
        if is_read_inside(self.behaviour):
            readers = [name for name in BACKENDS if PLAYED_BY[name](self).reads_inside]
        if requested == AUTO:
            if self.has_equal_backends and ENVPOOL.name in readers and is_installed():
                return ENVPOOL.name
            is_lean = LEAN.name in readers and not Lean(self).refusal()
            return LEAN.name if is_lean else STOCK.name
        if requested not in readers:
            raise UsageError(
                f"the {requested} back end does not report the {self.behaviour} of "
                f"{self.entry.id}: use --backend {' or '.join((AUTO, *readers))}, or the behaviour "
                "last-observation"
            )
        if refusal := PLAYED_BY[requested](self).refusal():
            raise UsageError(refusal)
        return requested

    @property
    def played_by(self) -> BackEnd:
        return PLAYED_BY[resolve_backend(self.backend)](self)

    @property
    def batch(self) -> type[VectorEnvironment] | None:
        """The class that plays many episodes at once, here or on other hosts, None if none does."""
        return PLAYED_BY[self.backend](self).batch

    @property
    def portable(self) -> EnvironmentRequest:
        """The same episodes, to the bit, from a back end that every installation has and that
        plays them one by one, if there is one.
        """
        backend = self.request.backend
        if backend in (ENVPOOL.name, ANY.name) and self.has_equal_backends:
            return replace(self.request, backend=LEAN.name)
        if backend in (AUTO, LEAN.name) and self.is_cartpole:
            return replace(self.request, backend=STOCK.name)
        return self.request

    # --- what plays it

    def open(self) -> Environment:
        env = self.played_by.open()
        return ContactShares(env) if self.behaviour == FEET else env

    def open_vector(self) -> VectorEnvironment | None:
        """None if this back end plays episodes one by one."""
        return self.played_by.open_vector()

    def open_rendered(self, render_mode: str) -> RenderedEnvironment:
        """Rendered episodes; of Gymnasium's own environment in place of EnvPool's."""
        played_by = self.played_by
        is_lean = self.is_walker and not isinstance(played_by, Stock)
        return (Lean(self) if is_lean else Stock(self)).open_rendered(render_mode)

    def describe(self) -> EnvironmentSpec:
        request, backend = self.request, self.backend
        stock = StockEnvironment(self.entry, request)  # describes the spaces for all back ends
        spec, is_stock = stock.spec, isinstance(self.played_by, Stock)
        is_played = is_stock and self.behaviour != FEET
        if not is_played:
            stock.close()
        if not is_stock and (
            spec.observation
            or spec.action.kind not in ("box", "discrete")
            or any(spec.action.starts)
        ):
            raise UsageError(
                f"the envpool back end does not play {spec.id}: it supports array observations, "
                "and box or discrete actions"
            )
        env = stock if is_played else self.open()
        try:
            _probe_environment(env, spec)
            return replace(
                spec,
                backend=backend,
                lives=stock.lives() if is_played else 0,
                action=with_bins(spec.action, request.action_bins),
                behaviour=self.behaviour,
                behaviour_size=_behaviour_size(env, spec, self.behaviour),
                info=_reported_info(stock if is_played else None, request),
            )
        finally:
            env.close()


# --- the back ends


class BackEnd:
    """How a back end plays an environment. A new one is a subclass in PLAYED_BY, and a row of
    ``es_queue.backends``.

    reads_inside: whether it reports a behaviour that observations do not contain
    batch: the class that plays many episodes at once; None if it plays them one by one
    """

    reads_inside = False
    batch: type[VectorEnvironment] | None = None

    def __init__(self, env: ResolvedEnvironment) -> None:
        self.env, self.entry = env, env.entry

    def refusal(self) -> str:
        """Why it cannot play this environment with these settings; empty if it can."""
        return ""

    def open(self) -> Environment:
        envs = self.open_vector()
        assert envs is not None
        return UnbatchedEnvironment(envs)

    def open_vector(self) -> VectorEnvironment | None:
        return None


class Stock(BackEnd):
    """A library's own environment: Gymnasium's, or the old gym's."""

    reads_inside = True

    def open(self) -> Environment:
        return StockEnvironment(self.entry, self.env.request)

    def open_rendered(self, render_mode: str) -> RenderedEnvironment:
        return StockEnvironment(self.entry, self.env.request, render_mode)


class Lean(BackEnd):
    """es-queue's own walkers, and many CartPoles at once."""

    def __init__(self, env: ResolvedEnvironment) -> None:
        super().__init__(env)
        self.reads_inside = env.is_walker and env.behaviour in (POSITION, FEET)
        self.batch = CartPoleVectorEnvironment if env.is_cartpole else None

    def refusal(self) -> str:
        if self.env.is_walker or self.env.is_cartpole:
            return ""
        return (
            f"the lean back end does not play {self.env.request.id} with these settings: it plays "
            "BipedalWalker and BipedalWalkerHardcore, v2 and v3, Marvin and CartPole, without "
            "wrappers, and only with the arguments hardcore and sutton_barto_reward"
        )

    def open(self) -> Environment:
        if self.batch is not None:
            return super().open()
        try:
            # start-up: Box2D
            from es_queue.environments.walker import LIDAR, LeanMarvin, LeanWalker
        except ImportError as error:
            raise MissingPackage(format_missing_package(self.entry, error)) from error
        seen = self.env.request.seen
        if seen is None or self.env.behaviour == LAST:
            seen = (*LIDAR,)
        if self.entry.entry_point == MARVIN:
            return LeanMarvin(seen)
        return LeanWalker(self.env.is_hardcore, self.entry.entry_point == WALKER_V2, seen)

    def open_vector(self) -> VectorEnvironment | None:
        return CartPoleVectorEnvironment(self.entry.arguments) if self.batch is not None else None

    def open_rendered(self, render_mode: str) -> RenderedEnvironment:
        """Only of a walker."""
        try:
            # start-up: pygame
            from es_queue.environments.rendered_walker import RenderedMarvin, RenderedWalker
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            raise MissingPackage(format_missing_package(self.entry, error)) from error
        if self.entry.entry_point == MARVIN:
            return RenderedMarvin(render_mode)
        return RenderedWalker(
            self.env.is_hardcore, self.entry.entry_point == WALKER_V2, render_mode
        )


class EnvPool(BackEnd):
    batch = EnvPoolVectorEnvironment

    def __init__(self, env: ResolvedEnvironment) -> None:
        super().__init__(env)
        self.task = env.entry.spec.id
        if env.entry.entry_point in (WALKER_V2, WALKER_V3):
            self.task = "BipedalWalkerHardcore-v3" if env.is_hardcore else "BipedalWalker-v3"

    def refusal(self) -> str:
        env, request = self.env, self.env.request
        if env.is_walker and env.is_hardcore and self.entry.entry_point == WALKER_V2:
            return (
                f"the envpool back end does not play {self.entry.id}: EnvPool has only the lidar "
                "of version 3; use lean"
            )
        changed = self.entry.module or request.wrappers or request.arguments
        if (changed and not env.is_walker) or (
            self.task not in load_envpool(self.entry.id).list_all_envs()
        ):
            return (
                f"the envpool back end does not play {request.id} with these settings: it "
                "plays EnvPool's own ids, without wrappers and arguments"
            )
        return ""

    def open_vector(self) -> VectorEnvironment:
        return EnvPoolVectorEnvironment(self.task)


class Either(BackEnd):
    """EnvPool or lean, as each host has it."""

    batch = EnvPoolVectorEnvironment

    def refusal(self) -> str:
        if self.env.has_equal_backends:
            return ""
        return (
            "backend is any, but only BipedalWalker-v3 and BipedalWalkerHardcore-v3 are known to "
            f"play the same episodes on every back end, not {self.env.request.id} with these "
            "settings: use auto, or name one back end"
        )


PLAYED_BY: dict[str, type[BackEnd]] = {
    LEAN.name: Lean,
    ENVPOOL.name: EnvPool,
    STOCK.name: Stock,
    GYM.name: Stock,
    ANY.name: Either,
}


def resolve_backend(backend: str) -> str:
    """The back end of this host for a choice: EnvPool for "any" if it is installed, else lean."""
    if backend != ANY.name:
        return backend
    return ENVPOOL.name if is_installed() else LEAN.name


# --- an environment or an objective


def resolve(request: EnvironmentRequest) -> ResolvedEnvironment | Objective:
    return Objective(request) if request.parameters else ResolvedEnvironment(request)


def describe(request: EnvironmentRequest) -> EnvironmentSpec:
    """Create the environment, play one step, and return its spec. Raises EnvironmentFailure, and
    UsageError for an invalid back end or wrapper.
    """
    if request.is_model:
        # start-up: of models
        from es_queue.strategies.model_es import model_spec

        return model_spec(request.id)
    try:
        return resolve(request).describe()
    except SystemExit as error:
        raise EnvironmentFailure(
            f"{request.id} calls sys.exit({error.code!r}): raise an error in its place"
        ) from error


@overload
def open_environment(request: EnvironmentRequest, render_mode: None = None) -> Environment: ...
@overload
def open_environment(request: EnvironmentRequest, render_mode: str) -> RenderedEnvironment: ...


def open_environment(request: EnvironmentRequest, render_mode: str | None = None) -> Environment:
    """With ``render_mode`` one that draws."""
    problem = resolve(request)
    return problem.open() if render_mode is None else problem.open_rendered(render_mode)


def batch_size_range(request: EnvironmentRequest, parameters: int = 1) -> tuple[int, int] | None:
    """The fewest and the most episodes to play at once for policies of that size, or None."""
    problem = None if request.is_model else resolve(request)
    if problem is None or (kind := problem.batch) is None:
        return None
    max_episodes = best_batch_size(kind.max_episodes, parameters)
    if max_episodes < kind.min_episodes and problem.portable != request:
        return None
    return min(kind.min_episodes, max_episodes), max_episodes


# --- the trial step


def _probe_environment(env: Environment, spec: EnvironmentSpec) -> None:
    try:
        first = env.reset(_PROBE_SEED)
        idle = ActionMap(spec.action, "clip").act_one(np.zeros(spec.action.outputs, np.float32))
        second = env.step(idle)[0]
    except Exception as error:
        failure = _failure(f"{spec.id} fails when it is played", error)
        if isinstance(error, TypeError) and "keyword argument 'seed'" in str(error):
            failure = type(failure)(f"{failure}; define reset(self, *, seed=None, options=None)")
        raise failure from error
    for observation in (first, second):
        if observation.shape != (spec.observation_size,):
            raise EnvironmentFailure(
                f"{spec.id} declares observations of {spec.observation_size} numbers "
                f"but yields {observation.size}"
            )


def _behaviour_size(env: Environment, spec: EnvironmentSpec, behaviour: str) -> int:
    """Numbers of the behaviour, measured on the episode that has just begun; 0 without one."""
    if not behaviour:
        return 0
    size = spec.observation_size
    try:
        if is_read_inside(behaviour):
            size = len(cast(BehaviourEnvironment, env).behaviour())
        validate_length(size)
    except Exception as error:  # whatever a user's function raises
        raise _failure(f"{behaviour} of {spec.id} cannot be read", error) from error
    return size


def _failure(what: str, error: Exception) -> EnvironmentFailure:
    known = isinstance(error, EnvironmentFailure)
    return EnvironmentFailure(f"{what}: {error if known else describe_error(error)}")


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
    """Raises UsageError unless it is a box with finite bounds."""
    bins = parse_bins(text)
    if bins and (spec.kind != "box" or not all(map(isfinite, (*spec.low, *spec.high)))):
        raise UsageError(
            f"action_bins is {text}, but only box actions with finite bounds can be divided "
            "into bins: leave it out"
        )
    return replace(spec, bins=bins)


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
        resolve(replace(EnvironmentRequest.of(config), behaviour="")).portable, config.seed
    )


@lru_cache(maxsize=2)
def _collect_batch(request: EnvironmentRequest, seed: int) -> Floats:
    spec = describe(request)
    try:
        batch = np.stack(_sample_observations(request, spec, seed))
    except Exception as error:  # whatever a user's environment raises
        what = f"{spec.id} fails under the random actions that batch_norm {VIRTUAL} needs"
        raise _failure(what, error) from error
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
