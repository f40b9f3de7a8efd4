"""es-status: shows runs and their workers, read from Redis."""
