"""The tests, and the programs among them. Their process computes the bits that the others do: this
comes before anything imports numpy.
"""

import os

from es_queue.numerics.fingerprint import fix_numeric_environment
from es_queue.user_code import ALLOW

fix_numeric_environment()

#: What this user has set names no server, secret or folder of runs.
for _name in ("RQ_REDIS_URL", "REDIS_URL", "ES_QUEUE_RUNS"):
    os.environ.pop(_name, None)
for _name in ("REDIS_PASSWORD", "REDIS_PASSWORD_FILE", "WEB_TOKEN", "WEB_TOKEN_FILE"):
    os.environ.pop(f"ES_QUEUE_{_name}", None)

#: The loose modules of environments that tests name; the tests of what is allowed set their own.
os.environ.setdefault(
    ALLOW, "installed,tests,blocking,counted,forgetful,hanging,raising,spies,worlds"
)
