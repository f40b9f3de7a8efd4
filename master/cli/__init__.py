"""The es-master command: flags, TOML files, the Redis address, and the supervised variant."""
