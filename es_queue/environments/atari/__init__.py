"""Atari games: their ids, emulator, preprocessing and construction."""
