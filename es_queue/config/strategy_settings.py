"""What the classes in ``es_queue/strategies`` say of themselves, readable without numpy.

Written by ``python -m tools.write_reference``: edit the classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from es_queue.config.declarations import StrategyFacts, option

STRATEGIES: dict[str, StrategyFacts] = {
    "ars": StrategyFacts(
        pairs=True,
        asynchronous=True,
        optimizers=(),
        settings=(
            "learning_rate",
            "learning_rate_schedule",
            "top",
            "weight_decay",
        ),
    ),
    "ga": StrategyFacts(
        pairs=False,
        asynchronous=True,
        optimizers=(),
        settings=(
            "candidates",
            "elite_episodes",
            "truncation",
        ),
    ),
    "novelty": StrategyFacts(
        pairs=True,
        asynchronous=False,
        optimizers=("adam", "sgd"),
        settings=(
            "archive_size",
            "behaviour",
            "behaviour_episodes",
            "gradient_form",
            "l2",
            "learning_rate",
            "learning_rate_schedule",
            "members",
            "momentum",
            "neighbours",
            "novelty",
            "optimizer",
            "weight_decay",
        ),
    ),
    "openai_es": StrategyFacts(
        pairs=True,
        asynchronous=True,
        optimizers=("adam", "sgd"),
        settings=(
            "gradient_form",
            "l2",
            "learning_rate",
            "learning_rate_schedule",
            "momentum",
            "optimizer",
            "shaping",
            "weight_decay",
        ),
    ),
    "pgpe": StrategyFacts(
        pairs=True,
        asynchronous=True,
        optimizers=("clipup", "adam", "sgd"),
        settings=(
            "learning_rate",
            "learning_rate_schedule",
            "max_speed",
            "momentum",
            "optimizer",
            "shaping",
            "sigma_learning_rate",
            "sigma_max_change",
            "weight_decay",
        ),
    ),
    "random_search": StrategyFacts(
        pairs=False,
        asynchronous=False,
        optimizers=(),
        settings=(
            "candidates",
            "elite_episodes",
        ),
    ),
    "snes": StrategyFacts(
        pairs=False,
        asynchronous=True,
        optimizers=(),
        settings=(
            "learning_rate",
            "learning_rate_schedule",
            "sigma_learning_rate",
            "weight_decay",
        ),
    ),
}
#: The optimizers that use a setting, for settings that not all of them use.
OPTIMIZER_USERS: dict[str, tuple[str, ...]] = {
    "max_speed": ("clipup",),
    "momentum": ("clipup", "sgd"),
}


@dataclass(frozen=True)
class StrategySettings:
    """The settings that strategies declare; ``RunConfig`` has them all."""

    archive_size: int = option(
        2000,
        "search",
        text="behaviours that the archive keeps; the oldest go (novelty)",
        low=1,
        high=100000,
    )

    behaviour: str = option(
        "auto",
        "search",
        text=(
            "what of an episode is compared: its last-observation, its final-position, the ram "
            "of an Atari game, or module:function of your own, of the environment at its end; "
            "auto is what fits the environment (novelty)"
        ),
        choices=(
            "auto",
            "last-observation",
            "final-position",
            "ram",
        ),
        custom=True,
    )

    behaviour_episodes: int = option(
        5,
        "search",
        text="episodes whose mean behaviour enters the archive for a new centre (novelty)",
        low=1,
        high=1000,
    )

    candidates: int = option(
        10,
        "search",
        text=(
            "best individuals of a generation that are evaluated again before one becomes the "
            "elite (ga, random_search)"
        ),
        low=1,
        high=1000,
    )

    elite_episodes: int = option(
        30,
        "search",
        text="fresh episodes of such an evaluation, the same for all of them (ga, random_search)",
        low=1,
        high=1000,
    )

    gradient_form: str = option(
        "starter",
        "search",
        text=(
            "starter leaves the gradient as evolution-strategies-starter has it, true divides "
            "it by sigma as the paper does (novelty, openai_es)"
        ),
        choices=(
            "starter",
            "true",
        ),
    )

    l2: float = option(
        0.0,
        "search",
        text="coefficient of -l2*parameters added to the gradient (novelty, openai_es)",
        low=0.0,
    )

    learning_rate: float = option(
        0.0,
        "search",
        text=(
            "step size of the update; 0 takes the strategy's own default (ars, novelty, "
            "openai_es, pgpe, snes)"
        ),
        low=0.0,
    )

    learning_rate_schedule: str = option(
        "constant",
        "search",
        text=(
            "factor of the learning rate over generations: constant, exponential:RATE[,LEAST], "
            "linear:END,N or piecewise:N=FACTOR,... (ars, novelty, openai_es, pgpe, snes)"
        ),
    )

    max_speed: float = option(
        0.0,
        "search",
        text="largest step of clipup; 0 is twice the learning rate (pgpe)",
        low=0.0,
    )

    members: int = option(
        5,
        "search",
        text="centres that are trained in turn, the more often the more novel they are (novelty)",
        low=1,
        high=100,
    )

    momentum: float = option(
        0.9,
        "search",
        text="momentum of sgd and clipup (novelty, openai_es, pgpe)",
        low=0.0,
        high=0.9999,
    )

    neighbours: int = option(
        10,
        "search",
        text="nearest behaviours of the archive whose mean distance is novelty (novelty)",
        low=1,
        high=1000,
    )

    novelty: str = option(
        "nsr",
        "search",
        text=(
            "what is climbed: only novelty (ns), novelty and reward alike (nsr), or a mixture "
            "that turns to novelty while reward stagnates (nsra) (novelty)"
        ),
        choices=(
            "ns",
            "nsr",
            "nsra",
        ),
    )

    optimizer: str = option(
        "auto",
        "search",
        text=(
            "what turns a gradient into a step (novelty: adam, sgd; openai_es: adam, sgd; pgpe:"
            " clipup, adam, sgd)"
        ),
        choices=(
            "auto",
            "adam",
            "sgd",
            "clipup",
        ),
    )

    shaping: str = option(
        "centered-rank",
        "search",
        text="how fitness becomes utility (openai_es, pgpe)",
        choices=(
            "centered-rank",
            "centered-sign-rank",
            "log-rank",
            "sign",
            "z-score",
        ),
    )

    sigma_learning_rate: float = option(
        -1.0,
        "search",
        text=(
            "step size of the learnt sigma; 0 keeps sigma fixed, -1 takes the strategy's own "
            "default (pgpe, snes)"
        ),
        low=-1.0,
    )

    sigma_max_change: float = option(
        0.2,
        "search",
        text="largest relative change of the learnt sigma per generation (pgpe)",
        low=0.0,
        high=0.99,
    )

    top: int = option(
        0,
        "search",
        text="directions that are kept, best first; 0 keeps all (ars)",
        unit="pairs",
        low=0,
    )

    truncation: int = option(
        0,
        "search",
        text=(
            "parents: the elite and the best others of the population; 0: 20, or a smaller "
            "population (ga)"
        ),
        unit="individuals",
        low=0,
        high=1000000,
    )

    weight_decay: float = option(
        0.0,
        "search",
        text=(
            "parameters are multiplied by 1 - weight_decay after each step (ars, novelty, "
            "openai_es, pgpe, snes)"
        ),
        low=0.0,
        high=1.0,
    )
