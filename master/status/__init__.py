"""es-status: runs and their workers, read from Redis alone."""
