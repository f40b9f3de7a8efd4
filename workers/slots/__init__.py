"""The slots of a block: their episodes, how they are played, and their results."""
