"""The bundled walkers BipedalWalker-v2 and Marvin-v0, and a lean BipedalWalker-v3."""
