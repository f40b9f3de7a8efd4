"""Where runs are looked for: servers that answer, and the folders of private servers that have ended."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from es_queue.errors import RedisError, UsageError
from es_queue.protocol.connection import url_from_environment
from es_queue.protocol.passwords import password_of, with_password
from master.named_redis import SHOWN_PASSWORD
from master.status.folders import RunFolder, newest_folders
from master.status.history import History
from master.status.observe import Inside, SeenRun, Server, named_server, private_server

T = TypeVar("T")

NO_SERVER = "no Redis is named and no private server runs in ./runs: give --redis-url or --run-dir, or set RQ_REDIS_URL"


@dataclass(frozen=True)
class Sources:
    """Servers that may answer, and folders of runs whose private server does not run; named: the person named the place."""

    servers: list[Server]
    folders: list[Path]
    named: bool = True

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.close()

    def runs(self) -> list[SeenRun]:
        """The runs of all servers and folders, newest first. A server that does not answer hides no other run.

        Raises RedisError where nothing answers.
        """
        lists, folders = self.asked(lambda server: server.runs())
        found = [seen for one in lists for seen in one] + [one.seen() for one in folders if one.run]
        return sorted(found, key=lambda seen: -(seen.started or 0.0))

    def find(self, run: str) -> Found:
        """A run, wherever it is; a server's word goes before a folder's. Raises UsageError for an unknown one."""
        asked, folders = self.asked(lambda server: (server, server.find(run)))
        for server, seen in asked:
            if seen is not None:
                return Found(seen, server)
        for folder in folders:
            if folder.run == run or (self.named and folder.may_be(run)):
                return Found(folder.seen(run), None, folder)
        others = [seen.run for seen in self.runs()][:10]
        known = f"there are {', '.join(others)}" if others else "there are no runs"
        places = [server.name for server in self.servers] + [str(folder) for folder in self.folders]
        raise UsageError(f"there is no run {run} at {', '.join(places[:3])}; {known}")

    def asked(self, question: Callable[[Server], T]) -> tuple[list[T], list[RunFolder]]:
        """What the servers answer, and the folders of the runs whose servers do not. Raises RedisError where nothing does."""
        answers: list[T] = []
        silent: list[Server] = []
        trouble: RedisError | None = None
        for server in self.servers:
            try:
                answers.append(question(server))
            except RedisError as error:
                trouble = trouble or error
                silent.append(server)
        folders = newest_folders([*self.folders, *(server.folder for server in silent if server.folder)])
        if trouble is not None and not answers and not folders:
            raise trouble
        return answers, folders


@dataclass(frozen=True)
class Found:
    """A run and where it was found: at a server, or in a folder."""

    seen: SeenRun
    server: Server | None
    folder: RunFolder | None = None

    def look(self, history: History) -> tuple[Inside, History]:
        """The rest of the run, with its history; ``history`` is what is known of that already."""
        if self.server is not None:
            history.follow(self.server, self.seen.run)
            return self.server.inside(self.seen.run), history
        assert self.folder is not None
        return Inside({}, 0, 0, config=self.folder.config), self.folder.history


def chosen_sources(given: argparse.Namespace) -> Sources:
    """The named server, else the environment's, else the private ones of ./runs with the folders of those that ended.

    Raises RedisError where there is none, UsageError for a folder that is none.
    """
    if given.redis_url is not None:
        return Sources([named_server(completed(given.redis_url, given), given_by_flag=True)], [])
    if given.run_dir is not None:
        return sources_of([given.run_dir])
    if url := url_from_environment():
        return Sources([named_server(completed(url, given), given_by_flag=False)], [])
    found = sources_of([path.parent for path in sorted(Path("runs").glob("*/redis"))], named=False)
    if not found.servers and not any(RunFolder(folder).config for folder in found.folders):
        raise RedisError(NO_SERVER)
    return found


def completed(url: str, given: argparse.Namespace, warn: Callable[[str], None] | None = None) -> str:
    """The URL with its password. Raises UsageError for one that cannot be had."""
    file = getattr(given, "redis_password_file", None)
    return with_password(url, None if file is None else Path(file), warn)


def unsafe_password(given: argparse.Namespace) -> list[str]:
    """What is to be said, once, of how the password was given. Raises UsageError, as ``completed`` does."""
    found: list[str] = []
    url = given.redis_url or (None if given.run_dir else url_from_environment())
    if url is not None:
        completed(url, given, found.append)
    elif given.redis_password_file is not None:
        raise UsageError("--redis-password-file is for a Redis that is named: give --redis-url or set RQ_REDIS_URL")
    return [SHOWN_PASSWORD, *found] if given.redis_url and password_of(given.redis_url) is not None else found


def sources_of(folders: list[Path], named: bool = True) -> Sources:
    """Servers of run folders, as far as they run. A single folder in which nothing is to be seen is an error."""
    servers: list[Server] = []
    ended: list[Path] = []
    for folder in folders:
        try:
            servers.append(private_server(folder))
        except RedisError:
            if named and not RunFolder(folder).config:
                raise
            ended.append(folder)
        except UsageError:
            if named:
                raise
    return Sources(servers, ended, named)


def chosen_servers(given: argparse.Namespace) -> list[Server]:
    """The servers alone. Raises RedisError where there is none."""
    if given.run_dir is not None:
        return [private_server(given.run_dir)]
    servers = chosen_sources(given).servers
    if not servers:
        raise RedisError(NO_SERVER)
    return servers
