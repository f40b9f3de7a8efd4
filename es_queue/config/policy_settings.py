"""What the classes in ``es_queue/policies`` declare, readable without numpy.

Written by ``python -m tools.write_reference``: edit the classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from es_queue.config.declarations import PolicyFacts, option

POLICIES: dict[str, PolicyFacts] = {
    "linear": PolicyFacts(
        "es_queue.policies.linear:LinearPolicy",
        ("init",),
    ),
    "mlp": PolicyFacts(
        "es_queue.policies.mlp:MlpPolicy",
        ("activation", "batch_norm", "biases", "hidden", "init"),
    ),
    "rnn": PolicyFacts(
        "es_queue.policies.recurrent:RecurrentPolicy",
        ("hidden", "init"),
    ),
    "lstm": PolicyFacts(
        "es_queue.policies.recurrent:RecurrentPolicy",
        ("hidden", "init"),
    ),
    "gru": PolicyFacts(
        "es_queue.policies.recurrent:RecurrentPolicy",
        ("hidden", "init"),
    ),
    "nature": PolicyFacts(
        "es_queue.policies.conv:ConvPolicy",
        ("batch_norm", "init"),
    ),
    "uber": PolicyFacts(
        "es_queue.policies.conv:ConvPolicy",
        ("batch_norm", "init"),
    ),
    "uber-large": PolicyFacts(
        "es_queue.policies.conv:ConvPolicy",
        ("batch_norm", "init"),
    ),
    "cshenton": PolicyFacts(
        "es_queue.policies.conv:ConvPolicy",
        ("batch_norm", "init"),
    ),
    "conv-lstm": PolicyFacts(
        "es_queue.policies.conv:ConvPolicy",
        ("batch_norm", "init"),
    ),
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
