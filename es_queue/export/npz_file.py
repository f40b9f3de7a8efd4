"""The policy as an ``.npz`` for ``load_policy`` and es-play, without the data that only a resume
needs.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def npz_bytes(arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> bytes:
    """All ``arrays`` and the ``meta`` that ``read_checkpoint`` gives, uncompressed,
    without pickle.
    """
    buffer = io.BytesIO()
    stored_meta = {name: value for name, value in meta.items() if name != "state"}
    np.savez(buffer, allow_pickle=False, meta=np.array(json.dumps(stored_meta)), **arrays)
    return buffer.getvalue()
