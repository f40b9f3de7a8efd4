"""What a strategy may adopt beside ``Strategy``: one capability per file."""
