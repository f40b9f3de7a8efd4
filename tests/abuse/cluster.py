"""A server with the project's users, and masters on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from es_queue import acl
from es_queue.protocol.connection import client_from_url
from tests.abuse.servers import WHEEL, serving
from tests.integration.processes import BIN, Processes, Seen, Started, flags
from tests.leaks import digest, simple_password

ADMIN = simple_password("admin")


class Cluster:
    """A server with the project's users, and what the tests start on it."""

    def __init__(self, port: int, folder: Path, processes: Processes) -> None:
        self.port, self.folder, self._processes = port, folder, processes
        self.admin: Any = client_from_url(f"redis://admin:{ADMIN}@127.0.0.1:{port}")

    def url(self, user: str) -> str:
        password = (self.folder / f"{user}.password").read_text().strip()
        return f"redis://{user}:{password}@127.0.0.1:{self.port}"

    def master(self, run: str, values: dict[str, Any]) -> Started:
        return self._processes.start(
            BIN / "es-master",
            *flags(values),
            "--run",
            run,
            "--queue",
            run,
            "--json",
            RQ_REDIS_URL=self.url("master"),
        )

    def seen(self, run: str) -> Seen:
        return Seen(self.admin, run)


@contextmanager
def cluster_of(folder: Path, processes: Processes, *settings: object) -> Iterator[Cluster]:
    acl.write_acl_files(folder / "keys")
    rules = folder / "keys" / acl.ACL_FILE
    rules.write_text(rules.read_text() + f"user admin on #{digest(ADMIN)} ~* &* +@all\n")
    with serving(WHEEL, folder / "server", "--aclfile", rules, *settings) as port:
        found = Cluster(port, folder / "keys", processes)
        try:
            yield found
        finally:
            found.admin.close()
