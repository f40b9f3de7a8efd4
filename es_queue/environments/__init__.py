"""Environments: what they are to the rest, how they are found, made and stepped."""
