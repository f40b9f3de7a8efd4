"""The workers of a run: registration, polling, losses, idleness and seats."""
