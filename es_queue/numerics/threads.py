"""Threads for arithmetic: numpy releases the interpreter's lock inside its loops."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

Item = TypeVar("Item")

#: More threads would wait for each other's calls into numpy, and for memory.
MAX_THREADS = 8


def usable_cores() -> int:
    """The number of cores that this process may use, 1 to ``MAX_THREADS``."""
    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min(usable, MAX_THREADS))


def for_each(work: Callable[[Item], object], items: Iterable[Item], threads: int) -> None:
    """Call ``work`` once with each item, in that many threads; a free thread takes the next item.

    The threads end with the call, so a process may fork afterwards; they see the caller's
    ``np.errstate``. Raises what ``work`` raises, after the running calls have ended.
    """
    if threads <= 1:
        for item in items:
            work(item)
        return
    pool = ThreadPoolExecutor(threads)
    try:
        for future in [pool.submit(copy_context().run, work, item) for item in items]:
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)
