"""In which blocks slots are issued, and issued again."""
