"""es-status --doctor: problems with Redis, this host and the workers, each with its fix."""
