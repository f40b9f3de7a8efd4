"""Genomes as lists of noise indices: mutation chains, parents in memory, seed lists."""
