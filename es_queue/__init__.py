"""es-queue: distributed Evolution Strategies on the Redis that you already run.

``from es_queue import RunConfig, load_policy``; ``from master import train``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["RunConfig", "__version__", "load_policy"]

if TYPE_CHECKING:
    from es_queue.config.run_config import RunConfig
    from es_queue.policies.checkpoint_policy import load_policy


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import es_queue`` stays free of numpy and of side effects."""
    if name == "RunConfig":
        from es_queue.config.run_config import RunConfig

        return RunConfig
    if name == "load_policy":
        from es_queue.policies.checkpoint_policy import load_policy

        return load_policy
    raise AttributeError(f"module 'es_queue' has no attribute {name!r}")
