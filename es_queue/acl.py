"""The old name of ``es_queue.security.acl``, for scripts with ``python -m es_queue.acl FOLDER``."""

import sys

from es_queue.security.acl import main

if __name__ == "__main__":
    sys.exit(main())
