"""What the classes in ``es_queue/strategies`` declare, readable without numpy.

Written by ``python -m tools.write_reference``: edit the classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from es_queue.config.declarations import Grows, ScaleRule, StrategyFacts, WithoutEffect, option

STRATEGIES: dict[str, StrategyFacts] = {
    "ars": StrategyFacts(
        "es_queue.strategies.ars:ARS",
        pairs=True,
        settings=(
            "average_decay",
            "learning_rate",
            "learning_rate_schedule",
            "top",
            "weight_decay",
        ),
        asynchronous=True,
        scale_rules={"": ScaleRule(8.0, 1.0)},
    ),
    "cma_es": StrategyFacts(
        "es_queue.strategies.covariance.cma_es:CMAES",
        pairs=False,
        settings=(
            "active",
            "average_decay",
            "learning_rate",
            "learning_rate_schedule",
            "restarts",
            "weight_decay",
        ),
        scale_rules={"": ScaleRule(4.0, 0.0)},
    ),
    "csa_es": StrategyFacts(
        "es_queue.strategies.covariance.csa_es:CSAES",
        pairs=False,
        settings=(
            "average_decay",
            "learning_rate",
            "learning_rate_schedule",
            "restarts",
            "weight_decay",
        ),
        scale_rules={"": ScaleRule(4.0, 0.0)},
    ),
    "ga": StrategyFacts(
        "es_queue.strategies.ga:GA",
        pairs=False,
        settings=("candidates", "elite_episodes", "truncation"),
        asynchronous=True,
    ),
    "lm_ma_es": StrategyFacts(
        "es_queue.strategies.covariance.lm_ma_es:LMMAES",
        pairs=False,
        settings=(
            "average_decay",
            "directions",
            "learning_rate",
            "learning_rate_schedule",
            "restarts",
            "weight_decay",
        ),
        scale_rules={"": ScaleRule(4.0, 0.0)},
    ),
    "map_elites": StrategyFacts(
        "es_queue.strategies.map_elites.strategy:MapElites",
        pairs=False,
        settings=(
            "archive",
            "behaviour",
            "behaviour_bounds",
            "cells",
            "emitter",
            "initial_sigma",
            "line_sigma",
            "qd_offset",
            "search_steps",
            "searches",
            "step_length",
        ),
        asynchronous=True,
    ),
    "novelty": StrategyFacts(
        "es_queue.strategies.novelty:Novelty",
        pairs=True,
        settings=(
            "archive_size",
            "behaviour",
            "behaviour_episodes",
            "gradient_form",
            "l2",
            "learning_rate",
            "learning_rate_schedule",
            "member_init",
            "members",
            "momentum",
            "neighbours",
            "novelty",
            "optimizer",
            "weight_decay",
        ),
        optimizers=("adam", "sgd"),
        scale_rules={"adam": ScaleRule(8.0, 0.5), "sgd": ScaleRule(8.0, 1.0)},
    ),
    "openai_es": StrategyFacts(
        "es_queue.strategies.openai_es:OpenaiES",
        pairs=True,
        settings=(
            "average_decay",
            "gradient_form",
            "l2",
            "learning_rate",
            "learning_rate_schedule",
            "momentum",
            "optimizer",
            "shaping",
            "weight_decay",
        ),
        asynchronous=True,
        optimizers=("adam", "sgd"),
        scale_rules={"adam": ScaleRule(8.0, 0.5), "sgd": ScaleRule(8.0, 1.0)},
    ),
    "pgpe": StrategyFacts(
        "es_queue.strategies.pgpe:PGPE",
        pairs=True,
        settings=(
            "average_decay",
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
        asynchronous=True,
        optimizers=("clipup", "adam", "sgd"),
        scale_rules={
            "clipup": ScaleRule(4.0, 0.5),
            "adam": ScaleRule(4.0, 0.5),
            "sgd": ScaleRule(4.0, 1.0),
        },
    ),
    "random_search": StrategyFacts(
        "es_queue.strategies.random_search:RandomSearch",
        pairs=False,
        settings=("candidates", "elite_episodes"),
    ),
    "sep_cma_es": StrategyFacts(
        "es_queue.strategies.covariance.sep_cma_es:SepCMAES",
        pairs=False,
        settings=(
            "active",
            "average_decay",
            "learning_rate",
            "learning_rate_schedule",
            "restarts",
            "weight_decay",
        ),
        scale_rules={"": ScaleRule(4.0, 0.0)},
    ),
    "snes": StrategyFacts(
        "es_queue.strategies.snes:SNES",
        pairs=False,
        settings=(
            "average_decay",
            "learning_rate",
            "learning_rate_schedule",
            "linear_share",
            "sigma_learning_rate",
            "weight_decay",
        ),
        asynchronous=True,
        scale_rules={"": ScaleRule(4.0, 1.0)},
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

    active: bool = option(
        True,
        "search",
        "the covariance also learns from the worse half of a generation, by negative weights "
        "(cma_es, sep_cma_es)",
    )

    archive: str = option(
        "grid",
        "search",
        "cells of behaviours: equal boxes (grid), or the nearest of evenly spread centroids (cvt), "
        "for behaviours of many numbers (map_elites)",
        allowed=("grid", "cvt"),
    )

    archive_size: int = option(
        2000,
        "search",
        "size of the archive of behaviours; the oldest are removed (novelty)",
        allowed=(1, 100000),
    )

    average_decay: float = option(
        0.0,
        "search",
        "share of the running average of the parameters that each generation keeps; above 0, the "
        "average is evaluated and saved (ars, cma_es, csa_es, lm_ma_es, openai_es, pgpe, "
        "sep_cma_es, snes)",
        allowed=(0.0, 0.999),
    )

    behaviour: str = option(
        "auto",
        "search",
        "descriptor of an episode's behaviour: last-observation, final-position, feet-contact "
        "(walkers), ram (Atari games), or your own function of the environment at the episode's "
        "end; auto suits the environment (map_elites, novelty)",
        allowed=(
            "auto",
            "last-observation",
            "final-position",
            "feet-contact",
            "ram",
            "module:function",
        ),
    )

    behaviour_bounds: str = option(
        "0:1",
        "search",
        "LOW:HIGH of each number of a behaviour, joined by commas; one pair holds for all of them; "
        "behaviours outside count in the nearest cell (map_elites)",
    )

    behaviour_episodes: int = option(
        5,
        "search",
        "episodes whose mean behaviour is archived for each updated member (novelty)",
        allowed=(1, 1000),
    )

    candidates: int = option(
        10,
        "search",
        "number of best individuals evaluated again before one of them becomes the elite (ga, "
        "random_search)",
        allowed=(1, 1000),
    )

    cells: tuple[int, ...] = option(
        (32, 32),
        "search",
        "cells along each number of a behaviour; one entry holds for all of them; the product is "
        "the number of centroids of archive cvt (map_elites)",
        allowed=(1, 1048576),
    )

    directions: int = option(
        0,
        "search",
        "number of evolution paths that form the matrix; auto is 4 + 3 ln n for n parameters "
        "(lm_ma_es)",
        allowed=(0, 1000),
        default_word="auto",
    )

    elite_episodes: int = option(
        30,
        "search",
        "fresh episodes of that evaluation, the same for all of these individuals (ga, "
        "random_search)",
        allowed=(1, 1000),
    )

    emitter: str = option(
        "iso_line",
        "search",
        "how individuals are made of elites: noise and a step towards or away from a second elite "
        "(iso_line), only noise (gaussian), or several searches that begin at elites (me_es) "
        "(map_elites)",
        allowed=("iso_line", "gaussian", "me_es"),
    )

    gradient_form: str = option(
        "starter",
        "search",
        "starter: the gradient of evolution-strategies-starter; true: divided by sigma, as in the "
        "paper (novelty, openai_es)",
        allowed=("starter", "true"),
    )

    initial_sigma: float = option(
        0.0,
        "search",
        "standard deviation of the first individuals around the first parameters; auto is sigma "
        "(map_elites)",
        allowed=(0.0, 1000.0),
        default_word="auto",
    )

    l2: float = option(
        0.0,
        "search",
        "coefficient of -l2*parameters added to the gradient (novelty, openai_es)",
        allowed=(0.0, None),
    )

    learning_rate: float = option(
        0.0,
        "search",
        "step size of the update; auto is the strategy's own default (ars, cma_es, csa_es, "
        "lm_ma_es, novelty, openai_es, pgpe, sep_cma_es, snes)",
        allowed=(0.0, None),
        default_word="auto",
    )

    learning_rate_schedule: str = option(
        "constant",
        "search",
        "factor of the learning rate per generation: constant, exponential:RATE[,LEAST], "
        "linear:END,N or piecewise:N=FACTOR,... (ars, cma_es, csa_es, lm_ma_es, novelty, openai_es,"
        " pgpe, sep_cma_es, snes)",
    )

    line_sigma: float = option(
        0.2,
        "search",
        "standard deviation of the step to the second elite, in distances of the two (map_elites)",
        allowed=(0.0, 1000.0),
        rules=(
            WithoutEffect(
                "emitter",
                "gaussian",
                "the emitter gaussian takes no step to a second elite",
                "use the emitter iso_line",
            ),
            WithoutEffect(
                "emitter",
                "me_es",
                "the emitter me_es takes no step to a second elite",
                "use the emitter iso_line",
            ),
        ),
    )

    linear_share: float = option(
        0.0,
        "search",
        "share of centred ranks in the utilities; the rest are the paper's log ranks (snes)",
        allowed=(0.0, 1.0),
    )

    max_speed: float = option(
        0.0,
        "search",
        "longest step of clipup; auto is twice the learning rate (pgpe)",
        allowed=(0.0, None),
        default_word="auto",
    )

    member_init: str = option(
        "near",
        "search",
        "first parameters of the other members: near the first member's, with a standard deviation "
        "of 0.05, or own, which draws each by --init (novelty)",
        allowed=("near", "own"),
    )

    members: int = option(
        5,
        "search",
        "number of unperturbed policies (members); the more novel ones are trained more often "
        "(novelty)",
        allowed=(1, 100),
    )

    momentum: float = option(
        0.9,
        "search",
        "momentum of sgd and clipup (novelty, openai_es, pgpe)",
        allowed=(0.0, 0.9999),
    )

    neighbours: int = option(
        10,
        "search",
        "number of nearest behaviours in the archive; their mean distance is the novelty (novelty)",
        allowed=(1, 1000),
    )

    novelty: str = option(
        "nsr",
        "search",
        "what is maximised: only novelty (ns), novelty and reward equally (nsr), or a mixture that "
        "moves to novelty while the reward stagnates (nsra) (novelty)",
        allowed=("ns", "nsr", "nsra"),
    )

    optimizer: str = option(
        "auto",
        "search",
        "optimizer of the update (novelty: adam, sgd; openai_es: adam, sgd; pgpe: clipup, adam, "
        "sgd)",
        allowed=("auto", "adam", "sgd", "clipup"),
    )

    qd_offset: float = option(
        0.0,
        "search",
        "lowest possible fitness, subtracted from that of each elite in qd_score (map_elites)",
    )

    restarts: str = option(
        "none",
        "search",
        "what follows a descent that stagnates: nothing (none), a descent with a larger population "
        "(ipop), or with larger and smaller ones in turn (bipop) (cma_es, csa_es, lm_ma_es, "
        "sep_cma_es)",
        allowed=("none", "ipop", "bipop"),
    )

    search_steps: int = option(
        10,
        "search",
        "steps of a search before it begins again at another elite (map_elites)",
        allowed=(1, 100000),
        rules=(
            WithoutEffect(
                "emitter",
                "iso_line",
                "the emitter iso_line has no searches",
                "use the emitter me_es",
            ),
            WithoutEffect(
                "emitter",
                "gaussian",
                "the emitter gaussian has no searches",
                "use the emitter me_es",
            ),
        ),
    )

    searches: int = option(
        8,
        "search",
        "searches of emitter me_es at once; half of them climb towards fitness, the others towards "
        "novelty (map_elites)",
        allowed=(1, 10000),
        rules=(
            WithoutEffect(
                "emitter",
                "iso_line",
                "the emitter iso_line has no searches",
                "use the emitter me_es",
            ),
            WithoutEffect(
                "emitter",
                "gaussian",
                "the emitter gaussian has no searches",
                "use the emitter me_es",
            ),
        ),
    )

    shaping: str = option(
        "centered-rank",
        "search",
        "how fitness is converted to utility (openai_es, pgpe)",
        allowed=("centered-rank", "centered-sign-rank", "log-rank", "sign", "z-score"),
    )

    sigma_learning_rate: float = option(
        -1.0,
        "search",
        "step size of the learnt sigma; 0 keeps sigma fixed, auto is the strategy's own default "
        "(pgpe, snes)",
        allowed=(-1.0, None),
        default_word="auto",
    )

    sigma_max_change: float = option(
        0.2,
        "search",
        "largest relative change of the learnt sigma per generation (pgpe)",
        allowed=(0.0, 0.99),
        rules=(
            WithoutEffect(
                "sigma_learning_rate",
                0.0,
                "sigma_learning_rate is 0, so sigma is fixed",
                "set sigma_learning_rate above 0",
            ),
        ),
    )

    step_length: float = option(
        0.5,
        "search",
        "length of such a step: root mean square change of a parameter, in sigma (map_elites)",
        allowed=(0.0, 1000.0),
        rules=(
            WithoutEffect(
                "emitter",
                "iso_line",
                "the emitter iso_line has no searches",
                "use the emitter me_es",
            ),
            WithoutEffect(
                "emitter",
                "gaussian",
                "the emitter gaussian has no searches",
                "use the emitter me_es",
            ),
        ),
    )

    top: int = option(
        0,
        "search",
        "number of directions that are used, best first (ars)",
        unit="pairs",
        allowed=(0, None),
        default_word="all",
        rules=(
            Grows(
                1.0,
                0,
            ),
        ),
    )

    truncation: int = option(
        0,
        "search",
        "number of parents: the elite and the best others of the population; auto is 20, or a "
        "smaller population (ga)",
        unit="individuals",
        allowed=(0, 1000000),
        default_word="auto",
        rules=(
            Grows(
                0.5,
                20,
            ),
        ),
    )

    weight_decay: float = option(
        0.0,
        "search",
        "multiply the parameters by 1 - weight_decay after each step (ars, cma_es, csa_es, "
        "lm_ma_es, novelty, openai_es, pgpe, sep_cma_es, snes)",
        allowed=(0.0, 1.0),
    )
