"""The tests. Their process computes the bits that the others do: this comes before anything imports
numpy.
"""

from es_queue.numerics.fingerprint import fix_numeric_environment

fix_numeric_environment()
