"""RunConfig: all settings that can change a run's numbers, in one flat frozen dataclass.

Each field has its help. The command line, the TOML files, the built-in recipes and the JSON stored
with a run all derive from this class. It has no connection, no path and no secret.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, asdict, dataclass, fields
from inspect import Signature, signature
from typing import Any, Self

from es_queue.backends import BACKENDS, format_backends
from es_queue.config.algorithms.facts import POLICIES, STRATEGIES
from es_queue.config.algorithms.settings import PolicySettings, StrategySettings
from es_queue.config.declarations import (
    Conflict,
    GivesWay,
    PolicyFacts,
    StrategyFacts,
    WithoutEffect,
    option,
)
from es_queue.text import format_suggestion

AUTO = "auto"
NONE = "none"
SYNC, ASYNC = "sync", "async"
VIRTUAL = "virtual"


#: Values that leave observation normalisation, and so its settings, unused.
NOT_NORMALISED = (
    WithoutEffect(
        "obs_norm",
        False,
        "without obs_norm observations are used unchanged",
        "leave --no-obs-norm out",
    ),
    WithoutEffect(
        "batch_norm",
        VIRTUAL,
        "with batch_norm virtual observations are used unchanged",
        "leave batch_norm out",
    ),
)
#: Settings that an objective leaves unused, and that need synchronous generations.
OF_ENVIRONMENTS = ("env_arg", "wrapper", "policy", "action_noise", "action_bins", "observe")
OF_GENERATIONS = ("min_steps", "audit", "rollback", "restart_deadlines")
WITHOUT_TARGET = WithoutEffect(
    "target_reward", NONE, "target_reward is none, so nothing is compared with it", "name a target"
)


class InitSignature:
    """The signature that help() and editors show for a class: that of ``__init__``, although the
    class has a ``__new__``.
    """

    def __get__(self, _: object, owner: type) -> Signature:
        given = signature(owner.__init__)  # type: ignore[misc]
        return given.replace(parameters=list(given.parameters.values())[1:])


@dataclass(frozen=True)
class RunConfig(PolicySettings, StrategySettings):
    """The settings of a run. Runs with equal settings end with equal parameters, to the bit."""

    # --- what is trained
    env: str = option(
        "",
        "task",
        "Gymnasium environment id, or module:Id for your own environment",
    )

    objective: str = option(
        "",
        "task",
        "your own function to maximise instead of an environment's return; it takes a float32 "
        "vector, or the vector and an integer seed",
        rules=tuple(
            Conflict(
                name,
                "is set, and an objective has no environment and no policy",
                f"leave {name} out",
            )
            for name in OF_ENVIRONMENTS
        ),
    )

    parameters: int = option(
        0,
        "task",
        "length of the objective's vector",
        allowed=(0, 2**28),
    )

    seed: int = option(
        -1,
        "task",
        "seed of all randomness of the run; a random one is printed and stored",
        allowed=(-1, 2**63 - 1),
        default_word="random",
    )

    env_arg: tuple[tuple[str, Any], ...] = option(
        (),
        "task",
        "argument for the environment's constructor; repeatable",
    )

    wrapper: tuple[str, ...] = option(
        (),
        "task",
        "Gymnasium wrapper, applied in the order given; repeatable",
    )

    backend: str = option(
        AUTO,
        "task",
        f"environment back end: {format_backends()}",
        allowed=(AUTO, *BACKENDS),
    )

    # --- policy
    policy: str = option(
        "linear",
        "policy",
        "kind of policy (docs/policies.md describes them)",
        allowed=(*POLICIES, "module:Class"),
    )

    observe: str = option(
        "all",
        "policy",
        "numbers of the observation that the policy receives, counted from 0, such as 0-13 or "
        "0,2,5-7; all gives it the whole observation",
        rules=(GivesWay("env_arg"), GivesWay("wrapper")),
    )

    action_bound: str = option(
        "clip",
        "policy",
        "how a box action is kept inside its bounds",
        allowed=("clip", "tanh"),
    )

    action_bins: str = option(
        "none",
        "policy",
        "discretise each number of a box action, and choose the value with the largest "
        "output: uniform:K for K evenly spaced values, or custom:A,B,... from -1 (lower "
        "bound) to 1 (upper bound); none is continuous",
    )

    action_noise: float = option(
        0.0,
        "policy",
        "standard deviation of Gaussian noise added to box actions in training",
        allowed=(0.0, None),
    )

    obs_norm: bool = option(
        True,
        "policy",
        "normalise observations by their running mean and standard deviation",
    )

    image_norm: bool = option(
        False,
        "policy",
        "also normalise images, and other observations of more than 4096 numbers",
        rules=NOT_NORMALISED,
    )

    obs_clip: float = option(
        5.0,
        "policy",
        "clip normalised observations to this many standard deviations; 0 disables",
        unit="standard deviations",
        allowed=(0.0, None),
        rules=NOT_NORMALISED,
    )

    obs_sample: float = option(
        0.25,
        "policy",
        "fraction of slots whose observations update the statistics",
        allowed=(0.0, 1.0),
        rules=NOT_NORMALISED,
    )

    # --- search
    strategy: str = option(
        AUTO,
        "search",
        "the algorithm; auto is snes for policies of up to 2,000 parameters and pgpe for larger "
        "ones, or pgpe if a setting that it uses is given (docs/choosing.md)",
        allowed=(AUTO, *STRATEGIES, "module:Class"),
    )

    population: int = option(
        64,
        "search",
        "individuals per generation (a pair counts as two)",
        allowed=(2, 1_000_000),
    )

    population_max: int = option(
        0,
        "search",
        "largest population that --min-steps may reach; auto is 8 times --population",
        allowed=(0, 8_000_000),
        default_word="auto",
        rules=tuple(GivesWay(name) for name in ("population", "min_steps", "schedule")),
    )

    scale: float = option(
        1.0,
        "search",
        "enlarge the search for about this many times the workers: population, rates and "
        "schedules follow (docs/scale.md); may change during a run",
        allowed=(1.0, 1024.0),
    )

    min_steps: int = option(
        0,
        "search",
        "add slots to a generation until its episodes have this many steps; 0 disables",
        unit="steps",
        allowed=(0, None),
    )

    episodes: int = option(
        1,
        "search",
        "episodes per individual; the fitness is their mean",
        allowed=(1, 1000),
    )

    env_seeds: str = option(
        AUTO,
        "search",
        "which individuals share an environment seed: the two of a pair, the whole "
        "generation, or none (slot); auto is pair if the strategy samples pairs, slot if "
        "--strategy auto chooses snes or in the schedule async, else generation",
        allowed=(AUTO, "pair", "generation", "slot"),
    )

    sigma: float = option(
        0.0,
        "search",
        "standard deviation of the perturbations; auto is the strategy's own default",
        allowed=(0.0, None),
        default_word="auto",
    )

    sigma_schedule: str = option(
        "constant",
        "search",
        "multiply sigma (for pgpe and snes, the learnt sigma) by a factor that depends on the "
        "generation, written as in --learning-rate-schedule",
    )

    decay_schedule: str = option(
        "constant",
        "search",
        "multiply l2 and weight_decay by a factor that depends on the generation, written as "
        "in --learning-rate-schedule",
    )

    fitness_cap: str = option(
        NONE,
        "search",
        "in the update, a fitness above this number counts as this number: once many individuals "
        "reach it, the search makes the others rarer",
        rules=(GivesWay("reward_shift"),),
    )

    schedule: str = option(
        SYNC,
        "search",
        "sync closes a generation when all its results are in; async updates as soon as "
        "--population results are in, from any open generation, so no worker waits; async is "
        "not bit-reproducible",
        allowed=(SYNC, ASYNC),
        rules=tuple(
            Conflict(
                name,
                "needs generations that close on their own slots",
                f"leave {name} out, or use the schedule sync",
            )
            for name in OF_GENERATIONS
        ),
    )

    max_lag: int = option(
        8,
        "search",
        "with --schedule async: most generations by which a result may be late",
        unit="generations",
        allowed=(1, 100),
        rules=(
            Conflict(
                "schedule",
                "is sync, which does not use it",
                "leave max_lag out, or use the schedule async",
                SYNC,
            ),
        ),
    )

    # --- episodes in training
    step_limit: str = option(
        "env",
        "episodes",
        "step limit of training episodes: env, a number, "
        "adaptive:START,FRACTION,RATIO[,MAX], or mean:FACTOR",
        unit="steps",
        rules=(GivesWay("schedule"),),
    )

    reward_shift: float = option(
        0.0,
        "episodes",
        "number subtracted from each reward before the fitness is summed",
    )

    reward_floor: str = option(
        NONE,
        "episodes",
        "in the fitness, a reward below this number counts as this number",
    )

    patience: str = option(
        NONE,
        "episodes",
        "N,D: end a training episode when its fitness gained less than D in N steps",
    )

    stall: str = option(
        NONE,
        "episodes",
        "I:X:N: end a training episode when |observation[I]| < X for N steps in a row",
    )

    reward_clip: bool = option(
        False,
        "episodes",
        "sum the signs of the rewards as fitness, as is usual for Atari games; returns stay "
        "the game's own score",
    )

    life_loss: bool = option(
        False,
        "episodes",
        "end a training episode when a life is lost (Atari games)",
    )

    wall_limit: float = option(
        300.0,
        "episodes",
        "end the worker process if an episode lasts longer; that episode is never scored",
        unit="seconds",
        allowed=(0.1, None),
    )

    # --- evaluation and stopping
    eval_every: int = option(
        10,
        "evaluation",
        "generations between evaluations of the unperturbed policy; 0 disables",
        unit="generations",
        allowed=(0, None),
    )

    eval_episodes: int = option(
        20,
        "evaluation",
        "episodes per evaluation during training",
        allowed=(1, 100_000),
        rules=(
            WithoutEffect(
                "eval_every",
                0,
                "eval_every is 0, so nothing is evaluated before the end",
                "set eval_every to 1 or more",
            ),
        ),
    )

    final_episodes: int = option(
        100,
        "evaluation",
        "episodes of the final evaluation, the only figure to quote; 0 disables",
        allowed=(0, 100_000),
    )

    eval_step_limit: int = option(
        0,
        "evaluation",
        "step limit of evaluations; auto is the environment's own limit, or 10000",
        unit="steps",
        allowed=(0, None),
        default_word="auto",
    )

    rollback: bool = option(
        False,
        "evaluation",
        "restore the best parameters, optimizer and statistics when an evaluation of at least "
        "50 episodes falls below theirs by more than two standard errors",
    )

    restart_deadlines: str = option(
        "none",
        "evaluation",
        "STEPS=RETURN,...: begin the search and its schedules again if its best evaluation is "
        "below RETURN after STEPS steps, counted from its own beginning; or none",
        rules=(
            Conflict(
                "eval_every",
                "is 0, and deadlines compare evaluations",
                "set eval_every to 1 or more, or restart_deadlines to none",
                0,
            ),
            Conflict(
                "rollback",
                "replaces searches by its own rule",
                "leave restart_deadlines or rollback out",
            ),
        ),
    )

    target_reward: str = option(
        AUTO,
        "evaluation",
        "end the run if an evaluation reaches this return and fresh episodes confirm it; "
        "auto is the environment's registered threshold",
    )

    confirm_episodes: int = option(
        100,
        "evaluation",
        "fresh episodes whose mean must also reach target_reward",
        allowed=(1, 100_000),
        rules=(WITHOUT_TARGET,),
    )

    target_margin: float = option(
        0.0,
        "evaluation",
        (
            "standard errors of its mean by which an evaluation, and its confirmation, must exceed "
            "target_reward; above 0, the more returns differ, the higher their mean must be"
        ),
        allowed=(0.0, 10.0),
        rules=(WITHOUT_TARGET,),
    )

    target_every: int = option(
        1,
        "evaluation",
        "generations between comparisons of an evaluation with the target, a multiple of "
        "eval_every; 1 compares every evaluation",
        unit="generations",
        allowed=(1, None),
        rules=(GivesWay("eval_every"),),
    )

    generations: int = option(
        0,
        "evaluation",
        "stop after this many generations",
        allowed=(0, None),
        default_word="none",
    )

    max_steps: int = option(
        0,
        "evaluation",
        "stop at the end of the generation that reaches this many counted training steps",
        unit="steps",
        allowed=(0, None),
        default_word="none",
    )

    max_seconds: float = option(
        0.0,
        "evaluation",
        "stop training after this time and drop the open generation; the final episodes follow",
        unit="seconds",
        allowed=(0.0, None),
        default_word="none",
    )

    # --- machinery that changes no number of a healthy run
    noise_size: int = option(
        0,
        "machinery",
        "size of the shared noise table; auto grows with the policy",
        unit="floats",
        allowed=(0, 2**32 - 1),
        default_word="auto",
    )

    block: int = option(
        0,
        "machinery",
        "slots per block of work; auto is about half a second of work (changes no result)",
        unit="slots",
        allowed=(0, 4096),
        default_word="auto",
    )

    worker_memory: int = option(
        0,
        "machinery",
        "replace a worker process after the episode in which its memory exceeds this "
        "(changes no result)",
        unit="MB",
        allowed=(0, 2**24),
        default_word="none",
    )

    keep_generations: int = option(
        200,
        "machinery",
        "number of generations whose individuals are recorded for es-play RUN --generation "
        "(newest first, older ones thinned); 0 disables (changes no result)",
        allowed=(0, 100_000),
    )

    snapshot_every: int = option(
        0,
        "machinery",
        "keep the checkpoint of every N-th generation, for es-play RUN --generation (at most "
        "100, older ones thinned); 0 keeps only the newest two (changes no result)",
        unit="generations",
        allowed=(0, 1_000_000),
    )

    audit: float = option(
        0.0,
        "machinery",
        "fraction of slots that the master plays itself, to find broken hosts: the run stops if a "
        "result differs (changes no result)",
        allowed=(0.0, 1.0),
        rules=(
            Conflict(
                "allow_nondeterministic",
                "lets two correct results of a slot differ",
                "leave one of the two settings out",
            ),
        ),
    )

    strict: bool = option(
        False,
        "machinery",
        "refuse workers whose fingerprint (a hash of their arithmetic) differs from the run's own",
    )

    allow_nondeterministic: bool = option(
        False,
        "machinery",
        "train even if the environment is not reproducible",
    )

    __signature__ = InitSignature()

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        """Raises TypeError for an unknown setting, with the nearest names."""
        for name in settings.keys() - cls.__dataclass_fields__.keys():
            hint = format_suggestion(name, cls.__dataclass_fields__)
            raise TypeError(f"RunConfig has no setting {name!r}{hint and f'; {hint}'}")
        return super().__new__(cls)

    @property
    def task(self) -> str:
        """The name of the optimised task: the environment's id or the objective."""
        return self.env or self.objective

    @property
    def policy_name(self) -> str:
        """The kind of policy for display; an objective has a vector instead."""
        return "vector" if self.objective else self.policy

    def to_json(self) -> str:
        """The configuration as indented JSON, readable by ``parsing.config_from_json``."""
        return json.dumps(self.to_dict(), indent=2)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: tuples become lists, ``env_arg`` becomes a table."""
        values = asdict(self)
        plain = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in ((name, values[name]) for name in option_fields())
        }
        return {**plain, "env_arg": dict(self.env_arg)}


def option_fields() -> dict[str, Field[Any]]:
    """All options by name, in the order of ``--help``: those of policies and strategies last."""
    named = {option_field.name: option_field for option_field in fields(RunConfig)}
    declared = {*PolicySettings.__annotations__, *StrategySettings.__annotations__}
    return {name: named[name] for name in sorted(named, key=declared.__contains__)}


def option_text(option: Field[Any]) -> str:
    """The sentence of ``--help``, with the strategies or policies that use the option unless all
    do.
    """
    text = str(option.metadata["text"])
    users = users_of(option.name)
    if not users or len(users) == len(POLICIES if users[0] in POLICIES else STRATEGIES):
        return text
    if option.name != "optimizer":
        return f"{text} ({', '.join(users)})"
    choices = (f"{user}: {', '.join(STRATEGIES[user].optimizers)}" for user in users)
    return f"{text} ({'; '.join(choices)})"


def default_of(name: str) -> Any:
    default = option_fields()[name].default
    return None if default is MISSING else default


def flag_name(name: str) -> str:
    """A setting's name in a command, after ``--``."""
    return name.replace("_", "-")


def users_of(setting: str) -> tuple[str, ...]:
    """The strategies or policies of es-queue that use a setting."""
    known: dict[str, StrategyFacts | PolicyFacts] = {**STRATEGIES, **POLICIES}
    return tuple(name for name, facts in known.items() if setting in facts.settings)
