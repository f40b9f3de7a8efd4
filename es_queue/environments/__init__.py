"""Environments by id: what they are like (``describe``) and one that plays episodes (``open_world``).

Importing this package registers the old ids (BipedalWalker-v2 and its kin) with Gymnasium.
"""

from es_queue.environments.catalogue import register_old_ids
from es_queue.environments.opening import describe, open_world
from es_queue.environments.request import DrawnWorld, EnvironmentRequest, World

__all__ = ["DrawnWorld", "EnvironmentRequest", "World", "describe", "open_world"]

register_old_ids()
