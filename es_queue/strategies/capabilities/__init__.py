"""Optional features of strategies: one capability per file."""
