"""The process that runs episodes: an RQ job holds a seat, claims blocks, rolls out, pushes what
came of it.
"""
