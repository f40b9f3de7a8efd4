"""Containers without Docker for the tests of the images: ``docker/check_steps.py`` starts them,
SIGKILL ends all that is in them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from es_queue import acl
from es_queue.protocol.connection import client_from_url
from tests.faults.servers import free_port
from tests.integration.processes import Seen, wait_for

HOUSE = Path(__file__).resolve().parents[2]
USER = 10001
#: The user's own folders of each service, as docker/compose.yaml mounts them.
KEYS = ("redis", "master", "worker", "viewer")


class Container:
    """A started container and what it printed."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def first(self) -> int | None:
        """The pid here of the container's first process; None when it has ended. The kernel ends
        the others with it.
        """
        try:
            children = (
                Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
                .read_text()
                .split()
            )
        except OSError:
            return None
        return int(children[0]) if children else None

    def kill(self) -> None:
        """As ``docker kill``, a lost host or the kernel's want of memory do it."""
        if self.process.poll() is None:
            wait_for(
                lambda: self.first or self.process.poll() is not None, "the container has begun"
            )
            self.signal(signal.SIGKILL)
            self.process.wait(20)

    def stop(self) -> int:
        """As ``docker stop`` does it: SIGTERM to the first process of the container. Its
        exit code.
        """
        self.signal(signal.SIGTERM)
        return self.process.wait(30)

    def signal(self, number: signal.Signals) -> None:
        if self.first is not None:
            os.kill(self.first, number)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """What --json printed so far."""
        lines = [json.loads(line) for line in self.said().split("\n")[:-1] if line.startswith("{")]
        return [one for one in lines if one["event"] == name]


class Cluster:
    """Redis, a master and workers from the images in ``images``, with everything that they keep
    under ``folder``.
    """

    def __init__(self, images: Path, folder: Path) -> None:
        self.images, self.folder, self.port = images, folder, free_port()
        self.started: list[Container] = []
        for name in (*(f"keys/{one}" for one in KEYS), "data", "runs", "cache", "worker-cache"):
            self.made(name)
        keys = [f"{self.folder}/keys/{one}:/keys/{one}" for one in KEYS]
        assert self.start("master", keys, entrypoint="make_keys").process.wait(60) == 0, (
            self.started[-1].said()
        )

    def made(self, name: str) -> Path:
        """A folder that stands for a volume: the containers' user owns it."""
        path = self.folder / name
        path.mkdir(parents=True, exist_ok=True)
        shutil.chown(path, USER, USER)
        path.chmod(0o700)
        return path

    def start(
        self,
        target: str,
        volumes: list[str],
        *words: object,
        entrypoint: str = "",
        **environment: str,
    ) -> Container:
        """``docker run`` of a target with volumes (HERE:THERE)."""
        command = [
            sys.executable,
            str(HOUSE / "docker" / "check_steps.py"),
            "run",
            str(self.images),
            target,
        ]
        command += [word for one in volumes for word in ("--volume", one)]
        command += [
            word for name, value in environment.items() for word in ("--env", f"{name}={value}")
        ]
        command += ["--entrypoint", entrypoint] if entrypoint else []
        self.started.append(
            Container(
                [*command, "--", *map(str, words)],
                self.folder / f"{len(self.started)}-{target}.log",
            )
        )
        return self.started[-1]

    def redis(self) -> Container:
        server = self.start(
            "redis",
            [f"{self.folder}/keys/redis:/keys", f"{self.folder}/data:/data"],
            "--port",
            self.port,
            "--bind",
            "127.0.0.1",
        )
        wait_for(self.answers, "Redis lets the master in")
        return server

    def master(self, *words: object) -> Container:
        volumes = [
            f"{self.folder}/keys/master:/keys",
            f"{self.folder}/runs:/runs",
            f"{self.folder}/cache:/cache",
        ]
        return self.start(
            "master", volumes, *words, RQ_REDIS_URL=f"redis://master@127.0.0.1:{self.port}"
        )

    def worker(self, target: str = "worker", *words: object, entrypoint: str = "") -> Container:
        volumes = [f"{self.folder}/keys/worker:/keys", f"{self.folder}/worker-cache:/cache"]
        return self.start(
            target,
            volumes,
            *words,
            entrypoint=entrypoint,
            RQ_REDIS_URL=f"redis://worker@127.0.0.1:{self.port}",
        )

    def password(self, user: str) -> str:
        return (self.folder / "keys" / user / f"{user}.password").read_text().strip()

    def seen(self, run: str) -> Seen:
        return Seen(
            client_from_url(f"redis://master:{self.password(acl.MASTER)}@127.0.0.1:{self.port}"),
            run,
        )

    def answers(self) -> bool:
        with client_from_url(
            f"redis://master:{self.password(acl.MASTER)}@127.0.0.1:{self.port}"
        ) as client:
            try:
                return bool(client.ping())
            except OSError:
                return False
            except Exception as error:  # redis-py's own ConnectionError, while it starts
                return bool(str(error)) and False

    def end(self) -> None:
        for one in self.started:
            one.kill()
