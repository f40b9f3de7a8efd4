"""What the classes in ``es_queue/policies`` declare, readable without numpy.

Written by ``python -m tools.write_reference``: edit the classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from es_queue.config.declarations import PolicyFacts, option

POLICIES: dict[str, PolicyFacts] = {
    "linear": PolicyFacts(
        path="es_queue.policies.linear:LinearPolicy",
        settings=("init",),
    ),
    "mlp": PolicyFacts(
        path="es_queue.policies.mlp:MlpPolicy",
        settings=("activation", "batch_norm", "biases", "hidden", "init"),
    ),
    "rnn": PolicyFacts(
        path="es_queue.policies.recurrent:RecurrentPolicy",
        settings=("hidden", "init"),
    ),
    "lstm": PolicyFacts(
        path="es_queue.policies.recurrent:RecurrentPolicy",
        settings=("hidden", "init"),
    ),
    "gru": PolicyFacts(
        path="es_queue.policies.recurrent:RecurrentPolicy",
        settings=("hidden", "init"),
    ),
    "nature": PolicyFacts(
        path="es_queue.policies.conv:ConvPolicy",
        settings=("batch_norm", "init"),
    ),
    "uber": PolicyFacts(
        path="es_queue.policies.conv:ConvPolicy",
        settings=("batch_norm", "init"),
    ),
    "uber-large": PolicyFacts(
        path="es_queue.policies.conv:ConvPolicy",
        settings=("batch_norm", "init"),
    ),
    "cshenton": PolicyFacts(
        path="es_queue.policies.conv:ConvPolicy",
        settings=("batch_norm", "init"),
    ),
    "conv-lstm": PolicyFacts(
        path="es_queue.policies.conv:ConvPolicy",
        settings=("batch_norm", "init"),
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
