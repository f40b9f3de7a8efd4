"""Names and limits shared by es-play's parts, without numpy."""

from __future__ import annotations

DEFAULT_EPISODES = 100
MAX_EPISODES = 1_000_000
#: Environment seeds are int32.
SEED_LIMIT = 2**31
