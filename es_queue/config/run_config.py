"""RunConfig: every choice that can change a run's numbers, one flat frozen dataclass, a sentence a
field.

The command line, the TOML files, the built-in recipes and the JSON stored with a run all derive
from it. It holds no connection, no path and no secret.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, asdict, dataclass, fields
from typing import Any

from es_queue.config.declarations import option
from es_queue.config.strategy_settings import STRATEGIES, StrategySettings

AUTO = "auto"
NONE = "none"
SYNC, ASYNC = "sync", "async"
VIRTUAL = "virtual"
IMAGE_POLICIES = ("nature", "uber", "uber-large", "cshenton", "conv-lstm")
#: Those of the second line remember; those of the third take pictures.
POLICIES = (
    "linear",
    "mlp",
    "rnn",
    "lstm",
    "gru",
    *IMAGE_POLICIES,
)


@dataclass(frozen=True)
class RunConfig(StrategySettings):
    """The settings of a run. Two runs with equal settings end with equal parameters, bit
    for bit.
    """

    # --- what is trained
    env: str = option(
        "",
        "task",
        text="Gymnasium environment id, or module:Id for one of your own",
    )

    objective: str = option(
        "",
        "task",
        text=(
            "module:function to be maximised in place of an environment's return, of a float32 "
            "vector and an integer seed"
        ),
    )

    parameters: int = option(
        0,
        "task",
        text="length of the vector that the objective takes",
        low=0,
        high=2**28,
    )

    seed: int = option(
        -1,
        "task",
        text="seed of all the run's randomness; -1 draws one, prints and stores it",
        low=-1,
        high=2**63 - 1,
    )

    env_arg: tuple[tuple[str, Any], ...] = option(
        (),
        "task",
        text="key=value handed to the environment when it is made; repeatable",
    )

    wrapper: tuple[str, ...] = option(
        (),
        "task",
        text="module:Class of a Gymnasium wrapper, applied in the order given; repeatable",
    )

    preprocessing: str = option(
        AUTO,
        "task",
        text=(
            "what a policy sees of an Atari game: dqn (grey, 84x84, the newest 4; auto), small "
            "(grey, 42x42), raw (210x160 in colour), ram (the memory; auto for -ram ids), or "
            "none (as Gymnasium has it); --env-arg sets single values"
        ),
        choices=(AUTO, NONE, "dqn", "small", "raw", "ram"),
    )

    backend: str = option(
        AUTO,
        "task",
        text=(
            "how the environment is stepped: lean (ours, faster; CartPole many at once), "
            "envpool (many at once in C++), stock (Gymnasium's own), gym (the old gym's own), "
            "or any (lean or envpool, as each host has it, where both give the same bits)"
        ),
        choices=(AUTO, "lean", "envpool", "stock", "gym", "any"),
    )

    # --- policy
    policy: str = option(
        "linear",
        "policy",
        text=(
            "kind of policy: linear, mlp, with memory (rnn, lstm, gru), or on pictures (the "
            "others; docs/policies.md says what they are)"
        ),
        choices=POLICIES,
        custom=True,
    )

    hidden: tuple[int, ...] = option(
        (64, 64),
        "policy",
        text=(
            "widths of the hidden layers of an mlp, or of the layers of cells of an rnn, lstm "
            "or gru, comma separated"
        ),
        unit="units",
        low=1,
        high=65536,
    )

    activation: str = option(
        "tanh",
        "policy",
        text="activation between the layers of an mlp",
        choices=("tanh", "relu", "selu", "elu"),
    )

    batch_norm: str = option(
        NONE,
        "policy",
        text=(
            "virtual normalises the units of an mlp or of convolutions by a reference batch, "
            "observations of random actions that depend on the seed alone"
        ),
        choices=(NONE, VIRTUAL),
    )

    init: str = option(
        AUTO,
        "policy",
        text=(
            "first parameters: zero is auto's choice for linear, normal for pictures, "
            "orthogonal for the rest"
        ),
        choices=(AUTO, "zero", "orthogonal", "normal"),
    )

    action_bound: str = option(
        "clip",
        "policy",
        text="how a box action is kept inside its bounds",
        choices=("clip", "tanh"),
    )

    action_bins: str = option(
        "none",
        "policy",
        text=(
            "each number of a box action is one of a few values, that with the largest output: "
            "uniform:K of even distances, or custom:a,b,... from -1 (the lower bound) to 1 (the "
            "upper); none"
        ),
    )

    action_noise: float = option(
        0.0,
        "policy",
        text="standard deviation of Gaussian noise added to box actions in training",
        low=0.0,
    )

    obs_norm: bool = option(
        True,
        "policy",
        text="normalise observations by their running mean and deviation",
    )

    obs_clip: float = option(
        5.0,
        "policy",
        text="normalised observations are clipped to this many deviations; 0 clips nothing",
        unit="deviations",
        low=0.0,
    )

    obs_sample: float = option(
        0.25,
        "policy",
        text="fraction of the slots whose observations feed the statistics",
        low=0.0,
        high=1.0,
    )

    # --- search
    strategy: str = option(
        "pgpe",
        "search",
        text="the algorithm",
        choices=tuple(STRATEGIES),
        custom=True,
    )

    population: int = option(
        64,
        "search",
        text="individuals a generation (pairs count as two)",
        low=2,
        high=1_000_000,
    )

    population_max: int = option(
        0,
        "search",
        text="largest population that --min-steps may ask for; 0 is 8 times the population",
        low=0,
        high=8_000_000,
    )

    min_steps: int = option(
        0,
        "search",
        text="a generation grows by slots until its episodes have this many steps",
        unit="steps",
        low=0,
    )

    episodes: int = option(
        1,
        "search",
        text="episodes an individual plays; its fitness is their mean",
        low=1,
        high=1000,
    )

    env_seeds: str = option(
        AUTO,
        "search",
        text=(
            "who shares an environment seed: the two of a pair (auto, where the strategy tries "
            "pairs), the whole generation (auto elsewhere), or (slot) nobody"
        ),
        choices=(AUTO, "pair", "generation", "slot"),
    )

    sigma: float = option(
        0.0,
        "search",
        text="deviation of the perturbations; 0 takes the strategy's own default",
        low=0.0,
    )

    sigma_schedule: str = option(
        "constant",
        "search",
        text=(
            "factor of sigma over generations, in the same forms (pgpe, snes: of the sigma that "
            "it has learnt)"
        ),
    )

    decay_schedule: str = option(
        "constant",
        "search",
        text="factor of l2 and weight_decay over generations, in the same forms",
    )

    schedule: str = option(
        SYNC,
        "search",
        text=(
            "when a batch closes: with its generation (sync), or (async) with as many answers "
            "of any open one, so that nobody waits; async is not bit-reproducible"
        ),
        choices=(SYNC, ASYNC),
    )

    max_lag: int = option(
        8,
        "search",
        text=(
            "generations that an answer may be late in the async schedule; later ones do not count"
        ),
        unit="generations",
        low=1,
        high=100,
    )

    # --- episodes in training
    step_limit: str = option(
        "env",
        "episodes",
        text="training step limit: env, a number, adaptive:init,fraction,ratio[,max], or mean:2",
        unit="steps",
    )

    reward_shift: float = option(
        0.0,
        "episodes",
        text="subtracted from each reward that the strategy sees",
    )

    reward_floor: str = option(
        NONE,
        "episodes",
        text="rewards below it count as it, in the fitness alone; none for no floor",
    )

    patience: str = option(
        NONE,
        "episodes",
        text="N,d ends a training episode when its fitness gained less than d in N steps; none",
    )

    stall: str = option(
        NONE,
        "episodes",
        text="i:x:N ends a training episode when |observation[i]| < x for N steps in a row; none",
    )

    reward_clip: bool = option(
        False,
        "episodes",
        text=(
            "the fitness sums the signs of the rewards, as is usual for Atari games; returns "
            "stay the game's own score"
        ),
    )

    life_loss: bool = option(
        False,
        "episodes",
        text="a lost life ends a training episode (Atari games)",
    )

    wall_limit: float = option(
        300.0,
        "episodes",
        text="an episode that lasts longer ends its worker process (never scored)",
        unit="seconds",
        low=0.1,
    )

    # --- evaluation and stopping
    eval_every: int = option(
        10,
        "evaluation",
        text="generations between evaluations of the unperturbed policy; 0 for none",
        unit="generations",
        low=0,
    )

    eval_episodes: int = option(
        20,
        "evaluation",
        text="episodes of such an evaluation",
        low=1,
        high=100_000,
    )

    final_episodes: int = option(
        100,
        "evaluation",
        text="episodes of the final evaluation, the only figure to quote",
        low=0,
        high=100_000,
    )

    eval_step_limit: int = option(
        0,
        "evaluation",
        text="step limit of evaluations; 0 is the environment's own, else 10000",
        unit="steps",
        low=0,
    )

    rollback: bool = option(
        False,
        "evaluation",
        text=(
            "go back to the best parameters, optimiser and statistics when an evaluation of 50 "
            "episodes or more falls below theirs by over two standard errors"
        ),
    )

    target_reward: str = option(
        AUTO,
        "evaluation",
        text=(
            "return at which the run may end; auto is the environment's registered threshold; none"
        ),
    )

    generations: int = option(
        0,
        "evaluation",
        text="stop after this many generations; 0 for no limit",
        low=0,
    )

    max_steps: int = option(
        0,
        "evaluation",
        text="stop after this many counted training steps; 0 for no limit",
        unit="steps",
        low=0,
    )

    max_seconds: float = option(
        0.0,
        "evaluation",
        text="stop between generations after this time; 0 for no limit",
        unit="seconds",
        low=0.0,
    )

    # --- machinery that changes no number of a healthy run
    noise_size: int = option(
        0,
        "machinery",
        text="floats in the shared noise table; 0 grows with the policy",
        unit="floats",
        low=0,
        high=2**32 - 1,
    )

    block: int = option(
        0,
        "machinery",
        text="slots a block of work; 0 is about half a second of work (changes no result)",
        unit="slots",
        low=0,
        high=4096,
    )

    worker_memory: int = option(
        0,
        "machinery",
        text=(
            "a worker whose process holds more leaves its seat after the episode, and a fresh "
            "one takes its place; 0 for no limit (changes no result)"
        ),
        unit="MB",
        low=0,
        high=2**24,
    )

    keep_generations: int = option(
        200,
        "machinery",
        text=(
            "generations of which the run's folder keeps who lived in them, for es-play RUN "
            "--generation; the newest, and of older ones some; 0 for none (changes no result)"
        ),
        low=0,
        high=100_000,
    )

    audit: float = option(
        0.0,
        "machinery",
        text=(
            "fraction of the slots that another worker plays again, to find broken machines and "
            "false answers (changes no result)"
        ),
        low=0.0,
        high=1.0,
    )

    strict: bool = option(
        False,
        "machinery",
        text=(
            "refuse workers whose arithmetic differs from the run's own (their numerics "
            "fingerprint), where the fleet would else be mixed"
        ),
    )

    allow_nondeterministic: bool = option(
        False,
        "machinery",
        text="go on with an environment that does not repeat itself",
    )

    @property
    def task(self) -> str:
        """What is optimised, by name: the environment's id or the objective."""
        return self.env or self.objective

    @property
    def policy_name(self) -> str:
        """The kind of policy, for people: an objective has its vector and no policy."""
        return "vector" if self.objective else self.policy

    def to_json(self) -> str:
        """The configuration as indented JSON, fit for people and for
        ``parsing.config_from_json``.
        """
        return json.dumps(self.to_dict(), indent=2)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: tuples become lists, ``env_arg`` becomes a table."""
        values = asdict(self)
        return {
            **{name: values[name] for name in option_fields()},
            "hidden": list(self.hidden),
            "wrapper": list(self.wrapper),
            "env_arg": dict(self.env_arg),
        }


def option_fields() -> dict[str, Field[Any]]:
    """All options by name, in the order in which ``--help`` shows them: those of the strategies
    last.
    """
    named = {option_field.name: option_field for option_field in fields(RunConfig)}
    of_strategies = {option_field.name for option_field in fields(StrategySettings)}
    return {name: named[name] for name in sorted(named, key=of_strategies.__contains__)}


def default_of(name: str) -> Any:
    """The default of one option."""
    default = option_fields()[name].default
    return None if default is MISSING else default


def users_of(setting: str) -> tuple[str, ...]:
    """The strategies of es-queue that use a setting."""
    return tuple(name for name, facts in STRATEGIES.items() if setting in facts.settings)
