"""Environments: what they are like, and how their episodes are stepped."""
