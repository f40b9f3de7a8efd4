"""A simulated cluster: real Redis, real master, real wire format, workers that wait instead of
playing.

``real`` is one such run, ``simulated`` a discrete-event simulation with the service times that are
fitted from real ones, ``all_rows`` the whole table. ``python -m tools.benchmarks.cluster --help``.
"""

from __future__ import annotations

from typing import Any

__all__ = ["all_rows", "real", "simulated"]


def __getattr__(name: str) -> Any:
    """Import on first use: each process of simulated workers imports this package too."""
    if name not in __all__:
        raise AttributeError(f"module 'tools.benchmarks.cluster' has no attribute {name!r}")
    from tools.benchmarks.cluster import scale_table

    return getattr(scale_table, name)
