"""Environments by id: what they are like (``describe``), one that plays episodes (``open_world``), one that plays many (``open_worlds``).

Importing this package registers Marvin-v0 and the old ids (BipedalWalker-v2 and its kin) with Gymnasium.
"""

from es_queue.environments.catalogue import register_our_ids
from es_queue.environments.opening import at_once, describe, everywhere, open_world, open_worlds, played_by
from es_queue.environments.request import DrawnWorld, EnvironmentRequest, World, Worlds

__all__ = ["DrawnWorld", "EnvironmentRequest", "World", "Worlds", "at_once", "describe", "everywhere", "open_world", "open_worlds", "played_by"]

register_our_ids()
