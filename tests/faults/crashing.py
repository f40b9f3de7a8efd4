"""``python crashing.py POINT N WORDS…``: es-master with WORDS, killed by SIGKILL when it is at
POINT for the N-th time.

The product has no hooks for this: the function at that point is replaced in this process alone.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Where a master can be killed; in the order of a generation.
POINTS = (
    "before publish",
    "after publish",
    "mid-collect",
    "after update",
    "mid-checkpoint write",
    "after rename",
)


class Countdown:
    """Ends the process by SIGKILL at the n-th call."""

    def __init__(self, count: int) -> None:
        self._left = count

    def __call__(self, last_words: Callable[[], object] = lambda: None) -> None:
        self._left -= 1
        if self._left == 0:
            last_words()
            os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str, count: int) -> None:
    """Replace what stands at the point. Imports numpy, so the numeric environment must stand."""
    import master.loop.checkpoint
    import master.loop.listeners
    from es_queue.protocol.store import MasterStore
    from es_queue.slots import Slots
    from master.loop.learner import Learner

    die = Countdown(count)
    master.loop.listeners.LEAST_SECONDS_BETWEEN_SAVES = 0.0  # a checkpoint for each generation
    place: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
        "before publish": (MasterStore, "open", lambda publish: before(publish, die)),
        "after publish": (MasterStore, "open", lambda publish: after(publish, die)),
        "mid-collect": (
            Slots,
            "accept",
            lambda accept: after(accept, die, lambda settled, *_: len(settled) > 0),
        ),
        "after update": (Learner, "learn", lambda learn: after(learn, die)),
        "mid-checkpoint write": (os, "fsync", lambda fsync: torn(fsync, die)),
        "after rename": (
            Path,
            "replace",
            lambda replace: after(
                replace, die, lambda _, source, target: is_checkpoint(str(target))
            ),
        ),
    }
    owner, name, replaced = place[point]
    setattr(owner, name, replaced(getattr(owner, name)))


def before(call: Callable[..., Any], die: Countdown) -> Callable[..., Any]:
    def doomed(*words: Any, **named: Any) -> Any:
        die()
        return call(*words, **named)

    return doomed


def after(
    call: Callable[..., Any], die: Countdown, counts: Callable[..., bool] = lambda *_: True
) -> Callable[..., Any]:
    """counts: given the result and the arguments, whether this call is one of those that count."""

    def doomed(*words: Any, **named: Any) -> Any:
        result = call(*words, **named)
        if counts(result, *words):
            die()
        return result

    return doomed


def torn(fsync: Callable[[int], None], die: Countdown) -> Callable[[int], None]:
    """Of the checkpoint that is being written only one half gets to the disk."""

    def doomed(handle: int) -> None:
        if is_checkpoint(str(Path(f"/proc/self/fd/{handle}").readlink())):
            die(lambda: os.ftruncate(handle, os.fstat(handle).st_size // 2))
        fsync(handle)

    return doomed


def is_checkpoint(path: str) -> bool:
    return "generation-" in Path(path).name


def run() -> int:
    from es_queue.numerics.fingerprint import fix_numeric_environment
    from master.cli.main import main

    fix_numeric_environment()
    arm(sys.argv[1], int(sys.argv[2]))
    return main(sys.argv[3:])


if __name__ == "__main__":
    sys.exit(run())
