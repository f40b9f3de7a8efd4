"""Internal: the process that runs episodes.

An RQ job holds a seat, claims blocks, plays their episodes and returns the results. Modules and
names in here change without notice; ``RQ_JOB_CLASS`` and the like keep their values.
"""
