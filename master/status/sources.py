"""Chooses where runs are read: servers that answer, and folders whose private server has ended."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Self, TypeVar

from es_queue.credentials import password_of, with_password
from es_queue.errors import NoRunError, RedisError, UsageError
from es_queue.protocol.connection import SHOWN_PASSWORD, redacted_url, url_from_environment
from es_queue.run_folder import (
    LEADER_FILE,
    NamedRun,
    find_run,
    no_run_error,
    refuse_links,
    runs_folder,
)
from master.services.leader import is_same_server, leader_of
from master.services.private_server import PrivateServer
from master.status.snapshot import RedisReader, Run, RunFolder, newest_folders

T = TypeVar("T")


class Sources:
    """is_named: whether the user named the place; runs_dir: the value of --runs-dir"""

    def __init__(
        self,
        servers: list[RedisReader],
        folders: list[Path],
        is_named: bool = True,
        runs_dir: str | None = None,
    ) -> None:
        self.servers, self.folders = servers, folders
        self.is_named, self._runs_dir = is_named, runs_dir

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.close()

    def list_runs(self) -> list[Run]:
        """The runs of all servers and folders, newest first. A silent server hides no other run.

        Raises RedisError if nothing responds, or if there is neither server nor run.
        """
        runs = self._collect_runs()
        if not runs and not self.servers:
            raise RedisError(
                "no Redis is named and no private server runs in "
                f"{runs_folder(self._runs_dir)}: give --redis-url, --run-dir or --runs-dir, or "
                "set RQ_REDIS_URL"
            )
        return runs

    def find_study(self, study: str) -> list[Run]:
        """The runs of a study, newest first."""
        names = re.compile(rf"{re.escape(study)}-s[0-9]+")
        return [run for run in self._collect_runs() if names.fullmatch(run.run)]

    def _collect_runs(self) -> list[Run]:
        lists, folders = self.ask_servers(lambda server: server.list_runs())
        runs = [run for found in lists for run in found]
        on_servers = {(id(run.source), run.run) for run in runs}
        for name, folder, server, silent in folders:
            if name and (id(server), name) not in on_servers:
                runs.append(folder.summarize(name, silent))
        return sorted(runs, key=lambda run: -(run.started or 0.0))

    def find_run(self, name: str) -> Run:
        """A run from any place; servers take precedence over folders. Raises NoRunError for an
        unknown one.
        """
        answers, folders = self.ask_servers(lambda server: server.find_run(name))
        for run in answers:
            if run is not None:
                return run
        named_run = find_run(name, self._runs_dir)
        for known, folder, _, silent in folders:
            is_meant = known == name or folder.folder == named_run.folder
            if is_meant or (self.is_named and folder.can_be_run(name)):
                return folder.summarize(name, silent)
        raise self.unknown_run_error(named_run)

    def unknown_run_error(self, run: NamedRun) -> NoRunError:
        """The error for an unknown run. Raises RedisError if nothing responds."""
        known = [one.run for one in self._collect_runs()]
        return no_run_error(run, [server.name for server in self.servers], known)

    def ask_servers(
        self, question: Callable[[RedisReader], T]
    ) -> tuple[list[T], list[tuple[str, RunFolder, RedisReader | None, str]]]:
        """The servers' replies, and the folders of runs that no server or a silent one has, or that
        their server may have: each with its run's name, the server that it remembers, and the name
        of that server if the user named it and it was silent. Of two folders of one run, the copy
        has the name of its folder, empty if that is no valid name.

        Raises RedisError if nothing responds.
        """
        answers, troubles = list[T](), list[RedisError]()
        remembered: dict[Path, tuple[RedisReader | None, str]] = {}
        for server in self.servers:
            silent, is_sure = "", server.is_private
            try:
                answers.append(question(server))
            except RedisError as error:
                troubles.append(error)
                silent, is_sure = "" if server.is_private else server.name, False
            for path in server.folders if not is_sure else ():
                remembered |= dict.fromkeys(member_folders(path), (server, silent))
        found = newest_folders([*self.folders, *remembered])
        if troubles and not answers and not found:
            raise troubles[0]
        originals = {one.run for one in found if one.folder.name == one.run}
        return answers, [
            (
                one.folder_name if one.run in originals else one.run,
                one,
                *remembered.get(one.folder, (None, "")),
            )
            for one in found
        ]


def unknown_run_error(run: NamedRun, url: str) -> NoRunError:
    """The error for a run that the server at ``url`` lacks. Raises RedisError."""
    with Sources([make_named_reader(url, given_by_flag=False)], []) as sources:
        return sources.unknown_run_error(run)


def find_sources(given: argparse.Namespace) -> Sources:
    """The named server, else the environment's, else the private ones of the folder of runs with
    the folders of ended ones.

    Raises RedisError for a folder without a run, UsageError if it is not a folder.
    """
    if given.redis_url is not None:
        named = add_password(given.redis_url, given)
        return Sources([make_named_reader(named, given_by_flag=True)], [], True, given.runs_dir)
    if given.run_dir is not None:
        refuse_links(given.run_dir)
        return sources_in([given.run_dir], given)
    folders = [] if given.run_folder is None else [given.run_folder]
    if url := url_from_environment():
        server = make_named_reader(add_password(url, given), given_by_flag=False)
        # That user may differ from the master's, whose name the folder remembers.
        leaders = {folder: leader_of(NamedRun("", folder)) for folder in folders}
        server.folders += [
            folder for folder, one in leaders.items() if one and is_same_server(one.url, url)
        ]
        local = sources_in([one for one in folders if one not in server.folders], given, False)
        local.servers.insert(0, server)
        local.is_named = True
        return local
    if folders:
        return sources_in(folders, given)
    runs = runs_folder(given.runs_dir)
    found = {path.parent for name in ("redis", LEADER_FILE) for path in runs.glob(f"*/{name}")}
    return sources_in(sorted(found), given, named=False)


def sources_in(folders: list[Path], given: argparse.Namespace, named: bool = True) -> Sources:
    """Servers that run folders remember, and running private ones. Raises an error for a single
    folder with nothing to show.
    """
    servers, ended = dict[str, RedisReader](), list[Path]()
    for folder in folders:
        try:
            leader = leader_of(NamedRun("", folder))
            if leader is None or not leader.url:
                reader = make_private_reader(folder)
            elif leader.is_trusted:
                reader = make_named_reader(add_password(leader.url, given), given_by_flag=False)
            else:
                raise RedisError(
                    f"{folder / LEADER_FILE} names {leader.server}, but this account did not write "
                    "it: give --redis-url to look there"
                )
            servers.setdefault(reader.url, reader).folders.append(folder)
        except RedisError:
            members = member_folders(folder)
            if named and not any(RunFolder(path).config for path in members):
                raise
            ended += members
        except UsageError:
            if named:
                raise
    return Sources([*servers.values()], ended, named, given.runs_dir)


def member_folders(folder: Path) -> list[Path]:
    return [run.folder for run in NamedRun(folder.name, folder).members]


def make_named_reader(url: str, given_by_flag: bool) -> RedisReader:
    """The server of a URL. es-master needs the flag again, unless the environment names the server
    or the URL has a secret.
    """
    try:
        label = redacted_url(url)
    except ValueError:  # the server's own complaint about the URL is the better one
        label = url
    secret = label != url or "?" in url
    return RedisReader(url, f" --redis-url {quote(label)}" if given_by_flag and not secret else "")


def make_private_reader(run_dir: Path) -> RedisReader:
    """The private server of a run's folder. Raises RedisError if none runs."""
    if not run_dir.is_dir():
        raise UsageError(f"run-dir {run_dir} is not a folder")
    url = PrivateServer(NamedRun("", run_dir).server_folder).running_url
    if url is None:
        raise RedisError(
            f"no private server runs in {run_dir}: its master has ended, is still starting, "
            "or uses another Redis (give --redis-url)"
        )
    return RedisReader(url, is_private=True)


# --- passwords


def add_password(
    url: str, given: argparse.Namespace, warn: Callable[[str], None] | None = None
) -> str:
    """The URL with its password. Raises UsageError if the password cannot be read."""
    file = given.redis_password_file
    return with_password(url, None if file is None else Path(file), warn)


def password_warnings(given: argparse.Namespace) -> list[str]:
    """Warnings about how the password was given. Raises UsageError, like ``add_password``."""
    warnings: list[str] = []
    url = given.redis_url or (None if given.run_dir else url_from_environment())
    if url is not None:
        add_password(url, given, warnings.append)
    elif given.redis_password_file is not None:
        raise UsageError(
            "--redis-password-file belongs to a named Redis: give --redis-url or set RQ_REDIS_URL"
        )
    is_shown = given.redis_url and password_of(given.redis_url) is not None
    return [SHOWN_PASSWORD, *warnings] if is_shown else warnings
