"""What the classes in ``es_queue/policies`` declare, readable without numpy.

Written by ``python -m tools.write_reference``: edit the classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from es_queue.config.declarations import option

#: The settings that each policy uses.
POLICIES: dict[str, tuple[str, ...]] = {
    "linear": ("init",),
    "mlp": ("activation", "batch_norm", "biases", "hidden", "init"),
    "rnn": ("hidden", "init"),
    "lstm": ("hidden", "init"),
    "gru": ("hidden", "init"),
    "nature": ("batch_norm", "init"),
    "uber": ("batch_norm", "init"),
    "uber-large": ("batch_norm", "init"),
    "cshenton": ("batch_norm", "init"),
    "conv-lstm": ("batch_norm", "init"),
}


@dataclass(frozen=True)
class PolicySettings:
    """The settings that policies declare; ``RunConfig`` has them all."""

    activation: str = option(
        "tanh",
        "policy",
        "activation function between the layers (mlp)",
        allowed=("tanh", "relu", "selu", "elu", "lrelu"),
    )

    batch_norm: str = option(
        "none",
        "policy",
        "virtual: normalise units or convolutions with a reference batch of observations, which "
        "depends only on the seed (mlp, nature, uber, uber-large, cshenton, conv-lstm)",
        allowed=("none", "virtual"),
    )

    biases: bool = option(
        True,
        "policy",
        "each layer adds a bias to its outputs (mlp)",
    )

    hidden: tuple[int, ...] = option(
        (64, 64),
        "policy",
        "widths of the hidden layers, or of the recurrent layers, separated by commas (mlp, rnn, "
        "lstm, gru)",
        unit="units",
        allowed=(1, 65536),
    )

    init: str = option(
        "auto",
        "policy",
        "initial parameters; auto is zero for linear policies, normal for images, and orthogonal "
        "for all others",
        allowed=("auto", "zero", "orthogonal", "normal"),
    )
