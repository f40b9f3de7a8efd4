"""Keeps the old name of ``master.cli.supervised``, which operators have typed in
``python -m master.supervised --run RUN``.
"""

import sys

from master.cli.supervised import main

if __name__ == "__main__":
    sys.exit(main())
