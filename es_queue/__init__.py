"""Distributed Evolution Strategies on the Redis that you already run.

Most programs need only ``from es_queue import RunConfig, load_policy, train``.
docs/reference/api.md lists everything that is public and stable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["AskTell", "Hook", "RunConfig", "__version__", "load_model", "load_policy", "train"]

if TYPE_CHECKING:
    from es_queue.config.run_config import RunConfig
    from es_queue.hooks import Hook
    from es_queue.models.snapshots import load_model
    from es_queue.policies.saved_policy import load_policy
    from master.run.training import train
    from workers.ask_tell import AskTell


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import es_queue`` stays free of numpy and of side effects."""
    if name == "AskTell":
        # start-up: numpy; the only import of ``workers`` here
        from workers.ask_tell import AskTell

        return AskTell
    if name == "Hook":
        # start-up: ``import es_queue`` loads nothing else
        from es_queue.hooks import Hook

        return Hook
    if name == "RunConfig":
        # start-up: ``import es_queue`` loads nothing else
        from es_queue.config.run_config import RunConfig

        return RunConfig
    if name == "load_model":
        # start-up: numpy; torch when it is called
        from es_queue.models.snapshots import load_model

        return load_model
    if name == "load_policy":
        # start-up: numpy
        from es_queue.policies.saved_policy import load_policy

        return load_policy
    if name == "train":
        # start-up: numpy; the only import of ``master`` from this package
        from master.run.training import train

        return train
    raise AttributeError(f"module 'es_queue' has no attribute {name!r}")
