"""Controls a run from any terminal that reaches its Redis: stop, pause, continue, change settings,
purge.

The run's master carries requests out within a second. If the run has no master, these commands end
or remove it.
"""

from __future__ import annotations

import getpass
import platform
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from es_queue.command_line import format_command
from es_queue.config.parsing import config_from_json
from es_queue.errors import EXIT_DONE, NoRunError, RedisError, RunBusyError, UsageError
from es_queue.protocol import keys
from es_queue.protocol.connection import client_from_url, has_secret, redacted_url, tested_client
from es_queue.protocol.control import (
    CONTINUE,
    MAX_NAME,
    PAUSE,
    SET,
    STOP,
    ControlClient,
    ControlRequest,
)
from es_queue.protocol.keys import ACTIVE_STATES, STOPPED, clocks_from_environment
from es_queue.protocol.store import MasterStore
from es_queue.run_folder import NamedRun, no_run_error, read_run_name
from es_queue.text import sanitize
from master.control.control_arguments import ATTACH, PURGE, ControlArgs
from master.loop.config_timeline import apply_changes
from master.loop.state import Change
from master.run.launch import Launch
from master.run.lease import format_host, holder_name, take_lease
from master.run.run_paths import existing_paths
from master.services.private_server import PrivateServer
from master.status.snapshot import RunFolder
from master.status.sources import unknown_run_error

#: A master answers within a second, but it may be learning from a large generation.
ANSWER_SECONDS = 60.0
POLL_SECONDS = 0.1
#: Workers leave a stopped run when their episode is over.
LEAVE_SECONDS = 15.0


def run_control_command(args: ControlArgs, launch: Launch) -> int:
    """Carry out one control command; returns the exit code. Raises EsQueueError."""
    run = existing_paths(args.run, launch).named_run
    if run.is_study:
        raise UsageError(f"{run.run} {run.several_runs}")
    command = ControlCommand(args, run, launch)
    verbs = {
        STOP: command.stop,
        PAUSE: command.pause,
        CONTINUE: command.resume,
        PURGE: command.purge,
        ATTACH: command.change,
    }
    verbs[args.verb]()
    return EXIT_DONE


class ControlCommand:
    def __init__(self, args: ControlArgs, run: NamedRun, launch: Launch) -> None:
        self._args, self._named_run, self._launch = args, run, launch
        self._run = run.run
        url = server_url(run, launch)
        self._url = url or ""
        self._client = None if url is None else ControlClient(tested_client(url), run.run)

    # --- the verbs

    def stop(self) -> None:
        """Ask the master to stop, and wait until the run has stopped; a run without a master is
        marked as stopped.
        """
        if (state := self._ended_state()) is not None:
            print(f"run {self._run} is {state}: there is nothing to stop")
            return
        if self._require_client().lease_status().holder is None:
            self._mark_stopped(keys.RUN_SECONDS)
            print(
                f"run {self._run} had no master and is now marked as stopped; continue it: "
                f"{self._command('--resume')}"
            )
            return
        self._send(self._request(STOP), lambda: not self._needs_master())
        print(f"run {self._run} has stopped; continue it: {self._command('--resume')}")

    def pause(self) -> None:
        self._validate_not_ended("it cannot be paused")
        self._validate_has_master()
        self._send(self._request(PAUSE))
        print(f"run {self._run} is paused; continue it: {self._command('--continue')}")

    def resume(self) -> None:
        self._validate_not_ended(f"continue where it stopped: {self._command('--resume')}")
        self._validate_has_master()
        self._send(self._request(CONTINUE))
        print(f"run {self._run} continues")

    def change(self) -> None:
        """Change settings of a live run. Raises UsageError if they cannot change."""
        self._validate_not_ended("its settings cannot be changed")
        raw = self._require_client().config()
        if raw is None:
            raise self._unknown_run_error()
        apply_changes(
            config_from_json(raw), [Change(0, dict(self._args.settings))]
        )  # a mistake is refused here, before it is sent
        self._validate_has_master()
        print(f"run {self._run}: {sanitize(self._send(self._request(SET)), 1000)}")

    def purge(self) -> None:
        """Remove all data of a run without a master from Redis. Raises RunBusyError if it has
        one.
        """
        if self._client is None:
            self._purge_folder()
            return
        lease = self._client.lease_status()
        if lease.holder is not None:
            raise RunBusyError(
                f"run {self._run} is live: {format_host(lease.holder)} leads it; stop it first: "
                f"{self._command('--stop')}"
            )
        count = self._client.key_count()
        if count == 0 and lease.state is None:
            raise self._unknown_run_error()
        self._confirm(
            f"remove the {count} keys of run {self._run} from Redis at "
            f"{redacted_url(self._url)}? The folder on disk stays"
        )
        self._mark_stopped(0)
        deadline = time.monotonic() + LEAVE_SECONDS
        while (
            self._client.has_workers() and time.monotonic() < deadline
        ):  # what they give back would outlive the run
            time.sleep(POLL_SECONDS)
        self._client.delete_keys()
        print(
            f"run {self._run} was removed from Redis at {redacted_url(self._url)}; checkpoints "
            f"on disk stay"
        )

    # --- what they share

    def _request(self, verb: str) -> ControlRequest:
        who = sanitize(f"{user_name()}@{platform.node()}", MAX_NAME)
        return ControlRequest(
            secrets.token_hex(4), verb, who, time.time(), self._args.settings, self._args.at
        )

    def _send(self, request: ControlRequest, is_done: Callable[[], bool] | None = None) -> str:
        """Send a request and wait for the reply, or until ``is_done``. Raises UsageError if the
        master refuses, RunBusyError if it does not reply.
        """
        client = self._require_client()
        client.send(request)
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            reply = client.poll_reply(request) if is_done is None else "" if is_done() else None
            if reply is not None and reply.startswith("refused: "):
                raise UsageError(f"run {self._run}: {sanitize(reply, 1000)}")
            if reply is not None:
                return reply
            if is_done is None and client.lease_status().holder is None:
                client.withdraw(request)
                self._validate_has_master()
            time.sleep(POLL_SECONDS)
        client.withdraw(request)
        raise RunBusyError(
            f"the master of {self._run} has not answered for {ANSWER_SECONDS:.0f} s, and the "
            f"request was withdrawn; see es-status {self._words()}"
        )

    def _needs_master(self) -> bool:
        """A private server ends with its run."""
        try:
            return self._require_client().lease_status().state in ACTIVE_STATES
        except RedisError:
            if self._launch.redis_url is None and server_url(self._named_run, self._launch) is None:
                return False
            raise

    def _ended_state(self) -> str | None:
        """The state of an ended run, None for a live one. Raises UsageError for an unknown run."""
        if self._client is None and self._is_on_disk():
            return RunFolder(self._named_run.folder).summarize().state
        state = self._require_client().lease_status().state
        if state is None:
            raise self._unknown_run_error()
        return None if state in ACTIVE_STATES else sanitize(state, 40)

    def _validate_not_ended(self, consequence: str) -> None:
        if (state := self._ended_state()) is not None:
            raise UsageError(f"run {self._run} is {state}: {consequence}")

    def _validate_has_master(self) -> None:
        if self._require_client().lease_status().holder is None:
            raise RunBusyError(
                f"run {self._run} has no master to carry this out; continue it: "
                f"{self._command('--resume')}"
            )

    def _mark_stopped(self, seconds: int) -> None:
        """Take over the run briefly: a former master is fenced, and workers leave."""
        channel = MasterStore(client_from_url(self._url), self._run)
        token = take_lease(channel, holder_name(), clocks_from_environment(), wait=False)
        channel.finish(
            token,
            {"state": STOPPED, "workers": "0", "answered": ""},
            seconds or keys.FINISHED_SECONDS,
            None,
        )

    def _purge_folder(self) -> None:
        folder = self._named_run.server_folder
        if not self._is_on_disk():
            raise self._unknown_run_error()
        self._confirm(f"remove the private server's data in {folder}? checkpoints and logs stay")
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)
        print(f"the data of run {self._run} in {folder} were removed; checkpoints stay")

    def _confirm(self, question: str) -> None:
        if self._args.yes:
            return
        if not sys.stdin.isatty():
            raise UsageError("--purge asks for confirmation, but there is no terminal: add --yes")
        if input(f"{question} This cannot be undone. [y/N] ").strip().lower() not in ("y", "yes"):
            raise UsageError("nothing was removed")

    def _is_on_disk(self) -> bool:
        """Whether the run had a private server. Raises UsageError for the folder of another run."""
        run = self._named_run
        if read_run_name(run.folder) and not run.server_folder.is_dir():
            raise UsageError(
                f"no private server runs for {run.run} in {run.folder}: its master has ended, "
                "or is still starting; for a run on a shared Redis give --redis-url or set "
                "RQ_REDIS_URL"
            )
        return run.server_folder.is_dir()

    def _require_client(self) -> ControlClient:
        if self._client is None:
            raise self._unknown_run_error()
        return self._client

    def _unknown_run_error(self) -> NoRunError:
        if self._client is None:
            return no_run_error(self._named_run)
        return unknown_run_error(self._named_run, self._url)

    def _command(self, flag: str) -> str:
        return f"{format_command('es-master')} {flag} {self._words()}"

    def _words(self) -> str:
        """The words by which a command finds the run; never a URL with a secret."""
        is_shown = self._launch.redis_url is not None and not has_secret(self._url)
        return f"{self._named_run.word}{f' --redis-url {self._url}' if is_shown else ''}"


def server_url(run: NamedRun, launch: Launch) -> str | None:
    """The named server, else the private one in the run's folder; None if that does not run."""
    folder = run.server_folder
    if launch.redis_url is not None:
        return launch.redis_url
    return PrivateServer(folder).running_url if folder.is_dir() else None


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return "somebody"
