"""Internal: the process that runs episodes.

An RQ job holds a seat, claims blocks, plays their episodes and returns the results. Modules and
names here can change without notice.
"""
