"""Internal: the process that runs episodes.

An RQ job holds a seat, claims blocks, plays their episodes and returns the results. Modules and
names here can change without notice; values of ``RQ_JOB_CLASS`` and ``RQ_WORKER_CLASS`` stay.
"""
