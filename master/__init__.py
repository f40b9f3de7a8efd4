"""Internal: the process that leads a run, and the commands around it.

It publishes generations, collects results, updates the parameters and saves the run. Use
``from es_queue import train``; modules and names in here change without notice.
"""

from __future__ import annotations

from typing import Any

__all__ = ["train"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import master`` stays free of numpy."""
    if name == "train":
        # start-up: numpy. The module is not called ``train``: it would replace the function here.
        from master.run.training import train

        return train
    raise AttributeError(f"module 'master' has no attribute {name!r}")
