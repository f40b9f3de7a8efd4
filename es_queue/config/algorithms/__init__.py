"""Strategies and policies: their facts, their own settings, and the choice of a strategy."""
