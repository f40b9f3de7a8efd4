"""The process that decides: it publishes generations, collects answers, learns, and keeps the run
safe.

``from master import train`` trains from Python; importing has no side effect.
"""

from __future__ import annotations

from typing import Any

__all__ = ["train"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import master`` stays free of numpy."""
    if name == "train":
        # Not from a module "train": once imported, that module would stand here in the function's
        # place.
        from master.run.training import train

        return train
    raise AttributeError(f"module 'master' has no attribute {name!r}")
