"""Processes of an es-master: a private server, local workers, and the supervisor that outlives it."""
