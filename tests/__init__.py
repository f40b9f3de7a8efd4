"""The tests, and the programs among them. Their process computes the bits that the others do: this
comes before anything imports numpy.
"""

import os

from es_queue.numerics.fingerprint import fix_numeric_environment
from es_queue.user_code import ALLOW

fix_numeric_environment()

#: The loose modules of environments that tests name; the tests of what is allowed set their own.
os.environ.setdefault(
    ALLOW, "installed,tests,blocking,counted,forgetful,hanging,raising,spies,worlds"
)
