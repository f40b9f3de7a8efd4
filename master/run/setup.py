"""Makes everything that a run needs before its first generation from its configuration."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

from es_queue.config.run_config import RunConfig
from es_queue.config.scaling import format_scaling
from es_queue.environments.episode_rules import parse_patience, parse_stall, parse_step_limit
from es_queue.environments.factory import describe, make_reference_batch
from es_queue.environments.interface import EnvironmentRequest, EnvironmentSpec
from es_queue.errors import EnvironmentFailure, RunFolderError, UsageError
from es_queue.numerics.arrays import Floats
from es_queue.numerics.noise_table import NoiseTable, default_size
from es_queue.numerics.statistics import Moments
from es_queue.policies import initial_parameters, make_policy
from es_queue.policies.actions import ActionMap
from es_queue.policies.base import Policy
from es_queue.protocol.messages import MAX_OBSERVATION
from es_queue.slot_plan import resolve_seed_sharing, validate_noise_size
from es_queue.strategies import make_strategy, strategy_class, try_strategy
from es_queue.strategies.auto import with_chosen_strategy
from es_queue.strategies.base import Strategy
from master.display.notes import TERMINAL
from master.loop.learner import Learner
from master.loop.state import RollbackPoint, RunState

#: Numbers of an observation that are normalised at most. More of them are an image or a game's
#: memory: they have one scale, and their moments (16 bytes per number of each sampled episode)
#: would outweigh the result by far.
MOST_NORMALISED = 4096
#: An environment that takes longer to create and step is named.
WAIT_SECONDS = 1.5


@dataclass(frozen=True)
class Setup:
    """A run's fixed parts. ``config`` has the master's own choices, see ``resolve_config``."""

    config: RunConfig
    spec: EnvironmentSpec
    policy: Policy
    strategy: Strategy
    table: NoiseTable
    learner: Learner

    def first_parameters(self) -> Floats:
        """float32 [size]: from the seed and --init, or an objective's own first vector."""
        return initial_parameters(self.config, self.policy)

    def validate_state(self, state: RunState) -> None:
        """Raises RunFolderError for a checkpoint's state that this run cannot continue from, and
        EnvironmentFailure if the environment or the policy has changed since.
        """
        before, now = state.moments.mean.size, self.spec.observation_size
        if before != now:
            raise self._changed_error(f"observations of {before:,} numbers", now)
        states = [state.strategy, *([state.anchor.strategy] if state.anchor else ())]
        try:
            for strategy_state in states:
                self.strategy.validate_state(strategy_state, self.spec.behaviour_size)
        except (RunFolderError, UsageError) as error:
            raise RunFolderError(f"the checkpoint cannot be resumed: {error}") from None
        saved, size = state.strategy.get("parameters"), self.policy.size
        if saved is not None and saved.shape != (size,):
            raise self._changed_error(f"a policy of {saved.size:,} parameters", size)

    def _changed_error(self, before: str, now: int) -> EnvironmentFailure:
        return EnvironmentFailure(
            f"{self.config.problem} or its policy has changed: the checkpoint has {before}, and "
            f"now there are {now:,}: restore them, or begin a new run with --warm-start"
        )

    def initial_state(
        self,
        parameters: Floats | None = None,
        moments: Moments | None = None,
        origin: str = "",
    ) -> RunState:
        """The state of generation 0, with an optional warm start, described by ``origin``."""
        limit = parse_step_limit(self.config.step_limit).initial_limit(self.spec.step_limit)
        statistics = moments or Moments.empty(self.spec.observation_size)
        begun = self.strategy.begin(
            self.strategy.start(self.first_parameters() if parameters is None else parameters),
            statistics,
            partial(initial_parameters, self.config, self.policy),
            self.spec.behaviour_size,
        )
        state = RunState(0, begun, statistics, limit, origin=origin)
        # Each descent of --restart-deadlines begins with this search.
        return replace(state, anchor=RollbackPoint.of(state)) if self.learner.deadlines else state


def prepare_run(
    config: RunConfig, noise_folder: Path | None = None, table: NoiseTable | None = None
) -> Setup:
    """Describe the environment, build policy, strategy and noise table.

    Raises EnvironmentFailure, UsageError or RunFolderError in one sentence.
    """
    text = (
        f"waiting for {config.problem}: its first step has taken {WAIT_SECONDS:g} s; Ctrl-C ends it"
    )
    waiting = Timer(WAIT_SECONDS, TERMINAL.warning, [text])
    waiting.daemon = True
    waiting.start()
    try:
        spec = describe(EnvironmentRequest.of(config))
    finally:
        waiting.cancel()
    spaces = spec.observation_size, spec.action, spec.observation_shape
    policy = make_policy(config, *spaces)
    validate_environment_settings(config, spec)
    config = resolve_config(config, spec, policy)
    # An environment that cannot show it fails here, before anything is begun.
    reference = make_reference_batch(config)
    if reference is not None:
        policy = make_policy(config, *spaces, reference)
    strategy = make_strategy(config, policy.size)
    try_strategy(strategy)
    table = table or NoiseTable.open(config.noise_size, noise_folder)
    learner = Learner(config, spec, strategy, table)
    return Setup(
        config=config, spec=spec, policy=policy, strategy=strategy, table=table, learner=learner
    )


def resolve_config(config: RunConfig, spec: EnvironmentSpec, policy: Policy) -> RunConfig:
    """The config with the master's own choices, which every worker and resume uses. Raises
    UsageError for settings that do not fit them.
    """
    requested, config = config, with_chosen_strategy(config, policy.size)
    try:
        config.check()
    except UsageError as error:
        if requested.strategy == config.strategy:
            raise
        raise UsageError(f"{error} (strategy auto is {config.strategy} here)") from None
    seed = config.seed if config.seed >= 0 else secrets.randbelow(2**31)
    size = config.noise_size or default_size(policy.size)
    if size < 2 * policy.size:
        raise UsageError(
            f"noise_size is {size}, but a policy of {policy.size} parameters needs at least "
            f"{2 * policy.size}"
        )
    kind = strategy_class(config)
    if ":" in config.strategy:
        config = config.completed(kind)
    own: dict[str, Any] = {"behaviour": spec.behaviour} if spec.behaviour else {}
    if not (config.objective or config.model):
        is_image = policy.takes_pixels or spec.observation_size > MOST_NORMALISED
        is_plain = kind.compares_generations or config.has_virtual_norm
        is_normalised = config.obs_norm and not is_plain and (config.image_norm or not is_image)
        own |= {"info": spec.info, "obs_norm": is_normalised}
    config = replace(
        config,
        # With a note, another environment is played than was requested: the record names that.
        env=spec.id if config.env and spec.note else config.env,
        seed=seed,
        backend=spec.backend,
        noise_size=size,
        env_seeds=resolve_seed_sharing(config, kind.per_slot),
        **own,
    )
    validate_noise_size(config, policy.size)
    return config


def new_run_notes(requested: RunConfig, setup: Setup) -> list[str]:
    """What a person should know about a new run, and did not ask for."""
    config, spec = setup.config, setup.spec
    notes = [spec.note] if spec.note else []
    name = requested.env.rpartition(":")[2]
    if name and spec.id.rpartition("-v")[0] == name:
        notes.append(f"{name} names no version: this run trains {spec.id}, the newest")
    if requested.obs_norm and not (config.obs_norm or requested.objective or config.model):
        notes.append(
            f"obs_norm is off: {config.strategy} compares results of all generations, and the "
            "statistics of observations change"
            if setup.strategy.compares_generations
            else f"obs_norm is off: images, observations of more than {MOST_NORMALISED} numbers, "
            "and those that batch_norm normalises are used unchanged (--image-norm normalises "
            "images)"
        )
    if config.policy == "linear" and len(spec.observation_shape) == 3:
        notes.append(
            f"the observations are images of {' x '.join(map(str, spec.observation_shape))} "
            "numbers, and the linear policy weighs each pixel by itself: a policy for images, such "
            "as --policy nature, usually learns more"
        )
    return notes if config.scale == 1 else [*notes, format_scaling(config)]


def validate_action_bound(config: RunConfig, spec: EnvironmentSpec) -> None:
    """Raises UsageError if a new run bounds discrete actions."""
    if config.action_bound == "tanh" and (spec.action.kind != "box" or spec.action.bins):
        raise UsageError(
            f"action_bound is tanh, but {config.problem} has discrete actions, not numbers between "
            "bounds: leave action_bound out"
        )


def validate_environment_settings(config: RunConfig, spec: EnvironmentSpec) -> None:
    """Raises UsageError for settings that do not fit this environment."""
    ActionMap(spec.action, config.action_bound)
    if spec.observation_size > MAX_OBSERVATION:  # no worker could read the run's task
        raise UsageError(
            f"{config.problem} has observations of {spec.observation_size:,} numbers, but at "
            f"most {MAX_OBSERVATION:,} are allowed: make its images smaller with your own "
            "--wrapper"
        )
    stall = parse_stall(config.stall)
    if stall is not None and stall.index >= spec.observation_size:
        raise UsageError(
            f"stall is {config.stall}, but {config.problem} has observations 0 to "
            f"{spec.observation_size - 1}"
        )
    never_positive = (
        spec.highest_reward is not None and spec.highest_reward - config.reward_shift <= 0
    )
    if parse_patience(config.patience) is not None and never_positive:
        raise UsageError(
            f"patience is {config.patience}, but rewards of {config.problem} are never positive, "
            "so every episode would end there: drop --patience or use --reward-shift"
        )
    if config.life_loss and not spec.lives:
        raise UsageError(
            f"life_loss is set, but {config.problem} does not count lives: leave it out"
        )
    if config.action_noise > 0 and spec.action.kind != "box":
        raise UsageError(
            f"action_noise is {config.action_noise:g}, but {config.problem} has no continuous "
            "actions: leave it at 0"
        )
