"""The settings that only some strategies or policies use; ``RunConfig`` has them all.

A class names those that it uses (``settings``), and ``--help`` lists the classes behind the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from es_queue.config.declarations import Grows, WithoutEffect, option

#: The optimizers that use a setting, for settings that not all of them use.
OPTIMIZER_USERS = {"max_speed": ("clipup",), "momentum": ("clipup", "sgd")}
ONLY_ISO_LINE = (
    WithoutEffect(
        "emitter",
        "gaussian",
        "the emitter gaussian takes no step to a second elite",
        "use the emitter iso_line",
    ),
)


def policy(default: Any, text: str, **more: Any) -> Any:
    """A field as of ``option``, in the group of policies."""
    return option(default, "policy", text, **more)


def search(default: Any, text: str, **more: Any) -> Any:
    """A field as of ``option``, in the group of strategies."""
    return option(default, "search", text, **more)


@dataclass(frozen=True)
class PolicySettings:
    activation: str = policy(
        "tanh",
        "activation function between the layers",
        allowed=("tanh", "relu", "selu", "elu", "lrelu"),
    )

    batch_norm: str = policy(
        "none",
        "virtual: normalise units or convolutions with a reference batch of observations, which "
        "depends only on the seed",
        allowed=("none", "virtual"),
    )

    biases: bool = policy(True, "each layer adds a bias to its outputs")

    hidden: tuple[int, ...] = policy(
        (64, 64),
        "widths of the hidden layers, or of the recurrent layers, separated by commas",
        unit="units",
        allowed=(1, 65536),
    )

    init: str = policy(
        "auto",
        "initial parameters; auto is zero for linear policies, normal for images, and orthogonal "
        "for all others",
        allowed=("auto", "zero", "orthogonal", "normal"),
    )


@dataclass(frozen=True)
class StrategySettings:
    active: bool = search(
        True,
        "the covariance also learns from the worse half of a generation, by negative weights",
    )

    archive: str = search(
        "grid",
        "cells of behaviours: equal boxes (grid), or the nearest of evenly spread centroids (cvt), "
        "for behaviours of many numbers",
        allowed=("grid", "cvt"),
    )

    archive_size: int = search(
        2000,
        "size of the archive of behaviours; the oldest are removed",
        allowed=(1, 100_000),
    )

    average_decay: float = search(
        0.0,
        "share of the running average of the parameters that each generation keeps; above 0, the "
        "average is evaluated and saved",
        allowed=(0.0, 0.999),
    )

    behaviour: str = search(
        "auto",
        "descriptor of an episode's behaviour: last-observation, final-position, feet-contact "
        "(walkers), ram (Atari games), or your own function of the environment at the episode's "
        "end; auto suits the environment",
        allowed=(
            "auto",
            "last-observation",
            "final-position",
            "feet-contact",
            "ram",
            "module:function",
        ),
    )

    behaviour_bounds: str = search(
        "0:1",
        "LOW:HIGH of each number of a behaviour, joined by commas; one pair holds for all of them; "
        "behaviours outside count in the nearest cell",
    )

    behaviour_episodes: int = search(
        5,
        "episodes whose mean behaviour is archived for each updated member",
        allowed=(1, 1000),
    )

    candidates: int = search(
        10,
        "number of best individuals evaluated again before one of them becomes the elite",
        allowed=(1, 1000),
    )

    cells: tuple[int, ...] = search(
        (32, 32),
        "cells along each number of a behaviour; one entry holds for all of them; the product is "
        "the number of centroids of archive cvt",
        allowed=(1, 2**20),
    )

    directions: int = search(
        0,
        "number of evolution paths that form the matrix; auto is 4 + 3 ln n for n parameters",
        allowed=(0, 1000),
        default_word="auto",
    )

    elite_episodes: int = search(
        30,
        "fresh episodes of that evaluation, the same for all of these individuals",
        allowed=(1, 1000),
    )

    emitter: str = search(
        "iso_line",
        "how individuals are made of elites: noise and a step towards or away from a second elite "
        "(iso_line), or only noise (gaussian)",
        allowed=("iso_line", "gaussian"),
    )

    gradient_form: str = search(
        "starter",
        "starter: the gradient of evolution-strategies-starter; true: divided by sigma, as in the "
        "paper",
        allowed=("starter", "true"),
    )

    initial_sigma: float = search(
        0.0,
        "standard deviation of the first individuals around the first parameters; auto is sigma",
        allowed=(0.0, 1000.0),
        default_word="auto",
    )

    l2: float = search(
        0.0,
        "coefficient of -l2*parameters added to the gradient",
        allowed=(0.0, None),
    )

    learning_rate: float = search(
        0.0,
        "step size of the update; auto is the strategy's own default",
        allowed=(0.0, None),
        default_word="auto",
    )

    learning_rate_schedule: str = search(
        "constant",
        "factor of the learning rate per generation: constant, exponential:RATE[,LEAST], "
        "linear:END,N or piecewise:N=FACTOR,...",
    )

    line_sigma: float = search(
        0.2,
        "standard deviation of the step to the second elite, in distances of the two",
        allowed=(0.0, 1000.0),
        rules=ONLY_ISO_LINE,
    )

    linear_share: float = search(
        0.0,
        "share of centred ranks in the utilities; the rest are the paper's log ranks",
        allowed=(0.0, 1.0),
    )

    max_speed: float = search(
        0.0,
        "longest step of clipup; auto is twice the learning rate",
        allowed=(0.0, None),
        default_word="auto",
    )

    member_init: str = search(
        "near",
        "first parameters of the other members: near the first member's, with a standard deviation "
        "of 0.05, or own, which draws each by --init",
        allowed=("near", "own"),
    )

    members: int = search(
        5,
        "number of unperturbed policies (members); the more novel ones are trained more often",
        allowed=(1, 100),
    )

    momentum: float = search(0.9, "momentum of sgd and clipup", allowed=(0.0, 0.9999))

    neighbours: int = search(
        10,
        "number of nearest behaviours in the archive; their mean distance is the novelty",
        allowed=(1, 1000),
    )

    novelty: str = search(
        "nsr",
        "what is maximised: only novelty (ns), novelty and reward equally (nsr), or a mixture that "
        "moves to novelty while the reward stagnates (nsra)",
        allowed=("ns", "nsr", "nsra"),
    )

    optimizer: str = search(
        "auto",
        "optimizer of the update",
        allowed=("auto", "adam", "sgd", "clipup"),
    )

    qd_offset: float = search(
        0.0,
        "lowest possible fitness, subtracted from that of each elite in qd_score",
    )

    shaping: str = search(
        "centered-rank",
        "how fitness is converted to utility",
        allowed=("centered-rank", "centered-sign-rank", "log-rank", "sign", "z-score"),
    )

    sigma_learning_rate: float = search(
        -1.0,
        "step size of the learnt sigma; 0 keeps sigma fixed, auto is the strategy's own default",
        allowed=(-1.0, None),
        default_word="auto",
    )

    sigma_max_change: float = search(
        0.2,
        "largest relative change of the learnt sigma per generation",
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

    top: int = search(
        0,
        "number of directions that are used, best first",
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

    truncation: int = search(
        0,
        "number of parents: the elite and the best others of the population; auto is 20, or a "
        "smaller population",
        unit="individuals",
        allowed=(0, 1_000_000),
        default_word="auto",
        rules=(
            Grows(
                0.5,
                20,
            ),
        ),
    )

    weight_decay: float = search(
        0.0,
        "multiply the parameters by 1 - weight_decay after each step",
        allowed=(0.0, 1.0),
    )
