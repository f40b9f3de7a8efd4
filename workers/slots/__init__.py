"""The slots of a block: which episodes they are, how they are played, what came of them."""
