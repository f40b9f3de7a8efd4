"""Blocks: how slots are issued, and issued again."""
