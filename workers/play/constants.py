"""Names and limits that es-play's command line shares with its parts; free of numpy."""

from __future__ import annotations

DEFAULT_EPISODES = 100
MAX_EPISODES = 1_000_000
#: Environment seeds are int32.
SEED_LIMIT = 2**31
