"""es-master --seeds: one run per seed over the same workers."""
