"""What the classes of strategies and policies declare, readable without numpy.

Written by ``python -m tools.write_reference``: edit the classes.
"""

from __future__ import annotations

from es_queue.config.declarations import PolicyFacts, ScaleRule, StrategyFacts

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
        "es_queue.strategies.covariance:CMAES",
        pairs=False,
        settings=(
            "active",
            "average_decay",
            "learning_rate",
            "learning_rate_schedule",
            "weight_decay",
        ),
        scale_rules={"": ScaleRule(4.0, 0.0)},
    ),
    "csa_es": StrategyFacts(
        "es_queue.strategies.covariance:CSAES",
        pairs=False,
        settings=("average_decay", "learning_rate", "learning_rate_schedule", "weight_decay"),
        scale_rules={"": ScaleRule(4.0, 0.0)},
    ),
    "ga": StrategyFacts(
        "es_queue.strategies.ga:GA",
        pairs=False,
        settings=("candidates", "elite_episodes", "truncation"),
        asynchronous=True,
    ),
    "lm_ma_es": StrategyFacts(
        "es_queue.strategies.covariance:LMMAES",
        pairs=False,
        settings=(
            "average_decay",
            "directions",
            "learning_rate",
            "learning_rate_schedule",
            "weight_decay",
        ),
        scale_rules={"": ScaleRule(4.0, 0.0)},
    ),
    "map_elites": StrategyFacts(
        "es_queue.strategies.map_elites:MapElites",
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
        "es_queue.strategies.covariance:SepCMAES",
        pairs=False,
        settings=(
            "active",
            "average_decay",
            "learning_rate",
            "learning_rate_schedule",
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

POLICIES: dict[str, PolicyFacts] = {
    **dict.fromkeys(
        ("linear",),
        PolicyFacts(
            "es_queue.policies.linear:LinearPolicy",
            ("init",),
        ),
    ),
    **dict.fromkeys(
        ("mlp",),
        PolicyFacts(
            "es_queue.policies.mlp:MlpPolicy",
            ("activation", "batch_norm", "biases", "hidden", "init"),
        ),
    ),
    **dict.fromkeys(
        ("rnn", "lstm", "gru"),
        PolicyFacts(
            "es_queue.policies.recurrent:RecurrentPolicy",
            ("hidden", "init"),
        ),
    ),
    **dict.fromkeys(
        ("nature", "uber", "uber-large", "cshenton", "conv-lstm"),
        PolicyFacts(
            "es_queue.policies.conv:ConvPolicy",
            ("batch_norm", "init"),
        ),
    ),
}
