"""What es-play, es-status, its page and es-plot take of memory for files and requests of strangers
that the other tests do not send.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from es_queue.numerics.noise_table import NoiseTable
from es_queue.pretrained import path_of
from tests.abuse.test_swollen_files import MOST_MEGABYTES, measured
from tests.integration.processes import BIN

#: es-status stays below this, as SECURITY.md says.
MOST_STATUS = 128
READ_SEEDS = (
    "from pathlib import Path\nfrom es_queue.seed_list import read_seed_list\nfrom "
    "es_queue.errors import EsQueueError\ntry: read_seed_list(Path({!r})); print('read')\nexcept "
    "EsQueueError as error: print(str(error)[:200])"
)


def many(what: str, size: int) -> str:
    """A JSON list of about ``size`` bytes."""
    return f"[{','.join([what] * (size // (len(what) + 1)))}]"


@pytest.mark.parametrize("what", ["[]", '{"":0}', "0.1", "{}"])
def test_a_seed_list_of_many_small_things_does_not_swell(what: str, tmp_path: Path) -> None:
    path = tmp_path / "gift.json"
    path.write_text('{"kind":"es-queue seed list","a":' + many(what, 2**25 - 1000) + "}")
    said, memory = measured(READ_SEEDS, path)
    assert memory < MOST_MEGABYTES, (said, memory)


def test_a_seed_list_of_two_kilobytes_does_not_make_a_policy_of_gigabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 million parameters here; the file may name 268 million."""
    monkeypatch.setenv("ES_QUEUE_NOISE_DIR", str(tmp_path / "noise"))
    with np.load(path_of("CartPole-v1"), allow_pickle=False) as archive:
        meta = json.loads(archive["meta"].item())
    size = 2**25
    meta["config"] |= {
        "strategy": "ga",
        "env_seeds": "generation",
        "backend": "stock",
        "policy": "mlp",
        "hidden": [4000, 4000],
        "noise_size": size,
    }
    listed = {
        **meta,
        "kind": "es-queue seed list",
        "seeds": [1],
        "sigma": 0.1,
        "digest": "",
        "noise": NoiseTable.open(size).digest,
    }
    path = tmp_path / "gift.json"
    path.write_text(json.dumps(listed))
    assert path.stat().st_size < 3000
    said, memory = measured(READ_SEEDS, path)
    assert memory < MOST_MEGABYTES, (said, memory)


HEADERS = b"GET / HTTP/1.1\r\n" + b"".join(
    b"a%d: " % number + b"x" * 65000 + b"\r\n" for number in range(99)
)


def test_the_page_stays_small_under_requests_with_long_headers(tmp_path: Path) -> None:
    """Nobody's password is asked for, and the Host header not looked at before all are read."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text('{"env":"x"}')
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [str(BIN / "es-status"), "--run-dir", str(folder), "--web", f"127.0.0.1:{port}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    connections: list[socket.socket] = []
    try:
        assert process.stdout is not None and b"http" in process.stdout.readline()
        for _ in range(60):
            with suppress(OSError):
                connections.append(one := socket.create_connection(("127.0.0.1", port), timeout=5))
                one.sendall(HEADERS)
        time.sleep(1)
        status = Path(f"/proc/{process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+)", status)
        assert found is not None and int(found[1]) // 1024 < MOST_STATUS, found and found[0]
    finally:
        for one in connections:
            one.close()
        process.terminate()
        process.communicate(timeout=10)
