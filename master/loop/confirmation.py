"""A group sequential test: fresh episodes that confirm a target are played in stages.

At each look, all returns so far are tested, and the first look that fails ends the confirmation.
The bound rises to that of the last look, which is the whole test: mean - margin standard errors >=
target. It is the lower bound of Pocock's shape in Pampallona and Tsiatis 1994, "Group sequential
designs for one-sided and two-sided hypothesis testing with provision for early stopping in favor of
the null hypothesis", at t = n/N of the episodes, in standard errors of the mean:

    margin*sqrt(t) - FUTILITY*(1 - sqrt(t))

There is no upper bound: a policy that falls in one of fifty episodes often looks perfect in 25. A
policy that passes has played every episode, so no look makes a false positive more frequent. The
error that remains is in docs/results.md, "How a confirmation ends early".
"""

from __future__ import annotations

import math

#: Fractions of the episodes after which the returns are tested, and the fewest episodes of a look:
#: the standard error of fewer returns is too uncertain.
LOOKS, FEWEST = (1 / 8, 1 / 4, 1 / 2, 1), 20
#: A policy whose mean is so many standard errors (of all episodes) above the least that would pass
#: is at the bound at the beginning.
FUTILITY = 2.0


def next_look(played: int, episodes: int) -> int:
    """How many of the ``episodes`` are played by the next look, after ``played``; the same if that
    was the last.
    """
    looks = (math.ceil(part * episodes) for part in LOOKS)
    return next((look for look in looks if look > played and look >= FEWEST), episodes)


def errors_at(played: int, episodes: int, margin: float) -> float:
    """Standard errors by which the mean of ``played`` returns must exceed the target; negative if
    it may be below.
    """
    root = math.sqrt(played / episodes)
    return margin * root - FUTILITY * (1 - root)
