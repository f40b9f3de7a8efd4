"""The training loop, synchronous and asynchronous, and the state that it carries."""
