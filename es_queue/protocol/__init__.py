"""The protocol between master and workers: keys, messages, and the channel that carries them."""
