"""Adapters for environments of the old gym library."""
