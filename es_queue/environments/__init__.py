"""Environments: what they are like, and how their episodes are stepped.

Importing this package registers Marvin-v0 and the old ids (``BipedalWalker-v2`` and others) with
Gymnasium.
"""

from es_queue.environments.bundled_ids import register_bundled_ids

register_bundled_ids()
