"""A simulated cluster: real Redis, real master, real wire format, workers that wait instead of
playing. ``python -m tools.benchmarks.cluster --help``.
"""
