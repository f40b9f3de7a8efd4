"""Files and requests from a stranger that are small and would be large in memory: each is read in a
process whose memory is measured."""

from __future__ import annotations

import io
import json
import re
import socket
import struct
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from es_queue.numerics.noise_table import NoiseTable
from es_queue.pretrained import path_of
from es_queue.slot_record import COLUMNS
from master.storage.replay import chain_digest
from tests.integration.processes import BIN

# --- files from a stranger that are small on the disk and large in memory: each is read in a
# process whose memory is measured


#: What a process may take beside the file itself: numpy and our modules are about 60 MB of it.
MOST_MEGABYTES = 300
#: VmHWM, because ru_maxrss of a child begins with its parent's peak.
MEASURED = (
    "{}\nimport re, pathlib\n"
    "status = pathlib.Path('/proc/self/status').read_text()\n"
    "print(int(re.search(r'VmHWM:\\s+(\\d+)', status)[1]) // 1024)"
)
READ_RECORD = (
    "from pathlib import Path\nfrom es_queue.slot_record import read_record\nfrom "
    "es_queue.errors import RunFolderError\ntry: read_record(Path({!r})); print('read')\nexcept "
    "RunFolderError as error: print(error)"
)
READ_CHECKPOINT = (
    "from pathlib import Path\nfrom master.loop.checkpoint import decode\nfrom "
    "es_queue.errors import RunFolderError\ntry: decode(Path({!r}).read_bytes()); "
    "print('read')\nexcept RunFolderError as error: print(error)"
)
READ_LOG = (
    "from pathlib import Path\n"
    "from master.storage.replay import LoggedGeneration, read_frames\n"
    "from es_queue.errors import RunFolderError\n"
    "try:\n  for frame in read_frames(Path({!r}), strict=True):\n"
    "    LoggedGeneration.decode(frame.payload)\n"
    "  print('read')\nexcept RunFolderError as error: print(error)"
)


def measured(program: str, path: Path) -> tuple[str, int]:
    """What a process said of the file, and the megabytes that it took at most."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED.format(program.format(str(path)))],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    *said, memory = done.stdout.splitlines()
    return " ".join(said), int(memory)


def npy(dtype: str, length: int) -> bytes:
    """The header of an array's file."""
    header = io.BytesIO()
    about = {"descr": dtype, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(header, about)  # type: ignore[no-untyped-call]
    return header.getvalue()


def member(label: bytes, crc: int, packed: int, size: int) -> bytes:
    """The local header of a member of an .npz, which is before its data."""
    return struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 33, crc, packed, size, len(label), 0)


def zipped(data: bytes, directory: list[tuple[bytes, int, int, int, int]]) -> bytes:
    """An .npz of these members: the label, CRC, packed and unpacked size and offset of each."""
    central = b"".join(
        struct.pack("<4s6H3L", b"PK\1\2", 20, 20, 0, 0, 0, 33, crc, packed, size)
        + struct.pack("<5H2L", len(label), 0, 0, 0, 0, 0, offset)
        + label
        for label, crc, packed, size, offset in directory
    )
    count = len(directory)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(central), len(data), 0)
    return data + central + end


def overlapping(names: list[str], megabytes: int) -> bytes:
    """An .npz whose members lie within one another: each array continues to the end of the last
    one's data.
    """
    data, members = bytes(megabytes << 20), list[tuple[bytes, int, int, int]]()
    for name in reversed(names):
        content, label = npy("|i1", len(data)) + data, f"{name}.npy".encode()
        crc, size = zlib.crc32(content), len(content)
        data = member(label, crc, size, size) + label + content
        members.append((label, crc, size, len(data)))
    return zipped(
        data, [(label, crc, size, size, len(data) - to) for label, crc, size, to in members]
    )


@pytest.mark.parametrize(
    ("program", "names"),
    [
        (READ_CHECKPOINT, [f"a{number}" for number in range(180)]),
        (READ_RECORD, ["meta", "published", *COLUMNS]),
    ],
)
def test_arrays_that_overlap_in_the_file_are_refused_before_they_are_read(
    program: str, names: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "gift.npz"
    path.write_bytes(overlapping(names, 8 if program == READ_CHECKPOINT else 30))
    said, memory = measured(program, path)
    assert memory < MOST_MEGABYTES, said
    assert "overlap" in said


def test_an_array_that_claims_more_than_the_file_has_is_refused(tmp_path: Path) -> None:
    path, label, content = tmp_path / "gift.npz", b"meta.npy", npy("<f8", 2**27)
    about = label, zlib.crc32(content), len(content), 2**30
    path.write_bytes(zipped(member(*about) + label + content, [(*about, 0)]))
    for program in (READ_CHECKPOINT, READ_RECORD):
        said, memory = measured(program, path)
        assert memory < MOST_MEGABYTES and said != "read"


def logged(path: Path, *payloads: bytes) -> Path:
    digest = b""
    with path.open("wb") as file:
        for payload in payloads:
            digest = chain_digest(digest, payload)
            file.write(len(payload).to_bytes(4, "little") + digest + payload)
    return path


def test_a_frame_of_empty_maps_does_not_swell(tmp_path: Path) -> None:
    many = 20_000_000
    bombs = {
        "maps": b"\x81\xa7changes\xdd" + many.to_bytes(4, "big") + b"\x80" * many,
        "lists of maps": b"\x81\xa7changes\xdc\x4e\x20"
        + (b"\xdc\x03\xe8" + b"\x80" * 1000) * 20_000,
        "short texts": b"\x81\xa7changes\xdd"
        + (many // 3).to_bytes(4, "big")
        + b"\xa2ab" * (many // 3),
        "nested lists": b"\xdd\xff\xff\xff\xff" * 500,
    }
    for name, payload in bombs.items():
        said, memory = measured(READ_LOG, logged(tmp_path / "00000000.log", payload))
        assert memory < MOST_MEGABYTES, (name, said, memory)
        assert "cannot be read" in said, name


# --- what es-play, es-status, its page and es-plot take of memory for files and requests of
# strangers that the other tests do not send


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
