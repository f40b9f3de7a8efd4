"""Requests to a run from other terminals: stop, pause, change settings, purge."""
