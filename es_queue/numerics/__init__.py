"""Arithmetic that gives the same bits on every host: noise, sums, slot plans, statistics."""
