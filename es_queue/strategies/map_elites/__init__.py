"""MAP-Elites: an archive of the best policy of each kind of behaviour."""

from es_queue.strategies.map_elites.archive import Archive, load_archive
from es_queue.strategies.map_elites.strategy import MapElites

__all__ = ["Archive", "MapElites", "load_archive"]
