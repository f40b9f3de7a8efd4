"""How a master and its supervisor communicate: files of one folder, two locks, and signals."""

from __future__ import annotations

import json
import os
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import es_queue
from es_queue import errors
from es_queue.errors import DecodeError, EsQueueError, RedisError, RunFolderError
from es_queue.files import open_file, parse_json, read_file
from es_queue.protocol.timing import Clocks
from es_queue.security.private_directory import no_link, replacing
from es_queue.util.file_lock import is_locked, read_pid

#: Where a supervisor is in its life, as ``state.json`` tells it.
READY, FAILED, ENDING = "ready", "failed", "ending"
MOST_NEWS = 64 * 1024
LONGEST_LINE = 600
#: Of a spec, which names the modules of the user's code, and of a state with its sentence.
MOST_BYTES = 2**20


@dataclass(frozen=True)
class SupervisorSpec:
    """What a supervisor keeps running, without a password. A living supervisor with an equal spec
    is the required one.

    server:  folder of the private server, None for a named Redis (its URL is in RQ_REDIS_URL)
    binary:  the server's program
    listen:  HOST:PORT at which other hosts reach the private server, None for none
    redis:   name of the named Redis
    modules: of the user's own code, which the local workers may import
    workers: number of local workers, with logs in ``logs``, noise in ``noise`` (None: the default),
    on ``queue``
    """

    run: str
    server: str | None
    binary: str | None
    listen: str | None
    redis: str
    workers: int
    queue: str
    noise: str | None
    logs: str
    clocks: dict[str, float]
    modules: list[str] = field(default_factory=list)
    folder: str = field(default_factory=os.getcwd)
    host: str = field(default_factory=platform.node)
    version: str = es_queue.__version__

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    @staticmethod
    def from_json(text: str | bytes) -> SupervisorSpec:
        """Raises RunFolderError for an invalid spec."""
        try:
            values = parse_json(text, MOST_BYTES)
            if set(values) != {spec_field.name for spec_field in fields(SupervisorSpec)}:
                raise ValueError
            Clocks(**values["clocks"])
            return SupervisorSpec(**values)
        except (DecodeError, ValueError, TypeError, KeyError):
            raise RunFolderError(
                "the supervisor's spec.json is damaged: remove the run's folder guardian and "
                "try again"
            ) from None


class SupervisorFiles:
    """The folder ``<run_dir>/guardian``, accessible only to its user.

    owner.lock:    held by the living master, with its pid
    guardian.lock: held by the living supervisor, with its pid
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.spec, self.state = self.folder / "spec.json", self.folder / "state.json"
        self.owner_lock, self.supervisor_lock = (
            self.folder / "owner.lock",
            self.folder / "guardian.lock",
        )
        self.news, self.log = self.folder / "events.jsonl", self.folder / "guardian.log"

    def prepare(self) -> None:
        """Make the folder. Raises RunFolderError."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.folder.is_symlink():
                raise RunFolderError(
                    f"{self.folder} is a link, which es-master never creates: remove it"
                )
            self.folder.chmod(0o700)
        except OSError as error:
            raise RunFolderError(
                f"{self.folder} cannot be created ({error.strerror}); give a --run-dir that you "
                f"can write to"
            ) from None

    def owner_pid(self) -> int:
        """The living master's pid, 0 if there is none."""
        return (read_pid(self.owner_lock) or -1) if is_locked(self.owner_lock) else 0

    # --- where the supervisor is in its life

    def read_spec(self) -> SupervisorSpec:
        """Raises OSError, and RunFolderError for a damaged spec."""
        return SupervisorSpec.from_json(read_file(self.spec, MOST_BYTES))

    def write_state(self, name: str, error: EsQueueError | None = None) -> None:
        """Raises RunFolderError."""
        details = {} if error is None else {"kind": type(error).__name__, "why": str(error)}
        try:
            with replacing(self.state) as file:
                file.write(json.dumps({"state": name, **details}).encode())
        except OSError as trouble:
            raise RunFolderError(
                f"{self.state} cannot be written: {trouble.strerror}; free space there or "
                "give another --run-dir"
            ) from None

    def read_state(self) -> tuple[str, EsQueueError | None]:
        """Empty before there is one; with the error of a supervisor that failed."""
        try:
            stored = parse_json(read_file(self.state, MOST_BYTES), MOST_BYTES)
            name = str(stored["state"])
        except (OSError, DecodeError, TypeError, KeyError):
            return "", None
        if name != FAILED:
            return name, None
        kind = getattr(errors, str(stored.get("kind")), None)
        known = kind if isinstance(kind, type) and issubclass(kind, EsQueueError) else RedisError
        return name, known(str(stored.get("why")))

    # --- what the supervisor has to tell

    def append_news(self, text: str) -> None:
        with suppress(OSError):
            full = self.news.exists() and self.news.stat().st_size > MOST_NEWS
            with open(self.news, "w" if full else "a", opener=no_link) as file:
                file.write(json.dumps({"text": text[:LONGEST_LINE]}) + "\n")

    def read_news(self, offset: int) -> tuple[list[str], int]:
        """Whole lines after ``offset`` bytes, and the offset after them."""
        try:
            if self.news.stat().st_size < offset:
                offset = 0
            with open_file(self.news) as file:
                file.seek(offset)
                data = file.read(2 * MOST_NEWS)
        except OSError:
            return [], offset
        whole = data[: data.rfind(b"\n") + 1]
        news = []
        for line in whole.splitlines():
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                news.append(str(json.loads(line)["text"])[:LONGEST_LINE])
        return news, offset + len(whole)

    def news_end(self) -> int:
        return self.news.stat().st_size if self.news.exists() else 0
