"""es-status --doctor: what is wrong with Redis, this host and the workers, each with its fix."""
