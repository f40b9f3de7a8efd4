"""Controls a run from any terminal that reaches its Redis: stop, pause, continue, set, purge.

The run's master carries requests out within a second. A run without one is ended or removed here.
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
from es_queue.config.run_config import RunConfig
from es_queue.errors import EXIT_DONE, RedisError, RunBusyError, UsageError
from es_queue.protocol import keys
from es_queue.protocol.connection import client_from_url, redacted_url, tested_client
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
from master.loop.config_timeline import config_at
from master.loop.state import Change
from master.run.launch import ATTACH, PURGE, ControlArgs, Launch, existing_run
from master.run.lease import format_host, holder_name, take_lease
from master.services.leader import leader_of
from master.services.local_services import run_words
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
    run = existing_run(args.run, launch)
    if run.is_study:
        raise UsageError(f"{run.run} {run.several_runs}")
    url = server_url(run, launch)
    if url is None:
        control_without_server(args, run)
        return EXIT_DONE
    command = ControlCommand(args, run, launch, url)
    {
        STOP: command.stop,
        PAUSE: command.pause,
        CONTINUE: command.resume,
        PURGE: command.purge,
        ATTACH: command.change,
    }[args.verb]()
    return EXIT_DONE


def server_url(run: NamedRun, launch: Launch) -> str | None:
    """The named server, else the private one in the run's folder; None if that does not run."""
    folder = run.server_folder
    if launch.redis_url is not None:
        return launch.redis_url
    return PrivateServer(folder).running_url if folder.is_dir() else None


def control_without_server(args: ControlArgs, run: NamedRun) -> None:
    """A run whose private server does not run has no master."""
    folder, leader = run.server_folder, leader_of(run)
    if leader is not None and not leader.ended and not leader.is_here:
        raise RunBusyError(f"run {run.run} cannot be reached from this host: {leader}")
    if not folder.is_dir():
        if not read_run_name(run.folder):
            raise no_run_error(run)
        raise UsageError(
            f"no private server runs for {run.run} in {run.folder}: its master has ended, "
            "or is still starting; for a run on a shared Redis give --redis-url or set "
            "RQ_REDIS_URL"
        )
    if args.verb == PURGE:
        confirm(f"remove the private server's data in {folder}? checkpoints and logs stay", args)
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)
        print(f"the data of run {run.run} in {folder} were removed; checkpoints stay")
    else:
        refuse_ended(args.verb, run.run, RunFolder(run.folder).summarize().state, run.word)


def refuse_ended(verb: str, run: str, state: str, words: str) -> None:
    """Print that a run has ended. Raises UsageError, unless it was to stop."""
    why = {
        STOP: "there is nothing to stop",
        PAUSE: "it cannot be paused",
        CONTINUE: f"continue where it stopped: {format_command('es-master')} --resume {words}",
        ATTACH: "its settings cannot be changed",
    }[verb]
    if verb != STOP:
        raise UsageError(f"run {run} is {state}: {why}")
    print(f"run {run} is {state}: {why}")


def confirm(question: str, args: ControlArgs) -> None:
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("--purge asks for confirmation, but there is no terminal: add --yes")
    if input(f"{question} This cannot be undone. [y/N] ").strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was removed")


class ControlCommand:
    """A command for a run whose server responds."""

    def __init__(self, args: ControlArgs, run: NamedRun, launch: Launch, url: str) -> None:
        self._args, self._named_run, self._launch, self._url = args, run, launch, url
        self._run = run.run
        self._client = ControlClient(tested_client(url), run.run)
        self._words = run_words(run, launch.redis_url, launch.redis_password_file)
        self._master = f"{format_command('es-master')} {{}} {self._words}"

    # --- the verbs

    def stop(self) -> None:
        """Ask the master to stop, and wait until the run has stopped; a run without a master is
        marked as stopped.
        """
        if not self._is_live():
            return
        said = "has stopped"
        if self._client.lease_status().holder is None:
            self._mark_stopped(keys.RUN_SECONDS)
            said = "had no master and is now marked as stopped"
        else:
            self._send(STOP, lambda: not self._needs_master())
        print(f"run {self._run} {said}; continue it: {self._master.format('--resume')}")

    def pause(self) -> None:
        self._ask(PAUSE)
        print(f"run {self._run} is paused; continue it: {self._master.format('--continue')}")

    def resume(self) -> None:
        self._ask(CONTINUE)
        print(f"run {self._run} continues")

    def change(self) -> None:
        """Change settings of a live run. Raises UsageError if they cannot change."""
        self._is_live()
        if (raw := self._client.config()) is None:
            raise unknown_run_error(self._named_run, self._url)
        # A mistake is refused here, before it is sent.
        config_at(RunConfig.from_json(raw), [Change(0, dict(self._args.settings))], 0)
        print(f"run {self._run}: {sanitize(self._ask(SET), 1000)}")

    def purge(self) -> None:
        """Remove all data of a run without a master from Redis. Raises RunBusyError if it has
        one.
        """
        lease = self._client.lease_status()
        if lease.holder is not None:
            raise RunBusyError(
                f"run {self._run} is live: {format_host(lease.holder)} leads it; stop it first: "
                f"{self._master.format('--stop')}"
            )
        count = self._client.key_count()
        if count == 0 and lease.state is None:
            raise unknown_run_error(self._named_run, self._url)
        name = redacted_url(self._url)
        confirm(
            f"remove the {count} keys of run {self._run} from Redis at {name}? The folder on disk "
            "stays",
            self._args,
        )
        self._mark_stopped(0)
        deadline = time.monotonic() + LEAVE_SECONDS
        # What workers give back would outlive the run.
        while self._client.has_workers() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        self._client.delete_keys()
        print(f"run {self._run} was removed from Redis at {name}; checkpoints on disk stay")

    # --- what they share

    def _ask(self, verb: str) -> str:
        """Have the master carry out the verb; returns its reply."""
        self._is_live()
        self._require_master()
        return self._send(verb)

    def _is_live(self) -> bool:
        """False if there is nothing to stop. Raises UsageError for an unknown run, and for another
        verb for one that has ended.
        """
        state = self._client.lease_status().state
        if state is None:
            raise unknown_run_error(self._named_run, self._url)
        if state not in ACTIVE_STATES:
            refuse_ended(self._args.verb, self._run, sanitize(state, 40), self._words)
        return state in ACTIVE_STATES

    def _require_master(self) -> None:
        if self._client.lease_status().holder is None:
            raise RunBusyError(
                f"run {self._run} has no master to carry this out; continue it: "
                f"{self._master.format('--resume')}"
            )

    def _send(self, verb: str, is_done: Callable[[], bool] | None = None) -> str:
        """Send a request and wait for the reply, or until ``is_done``. Raises UsageError if the
        master refuses, RunBusyError if it does not reply.
        """
        client = self._client
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a user without a name
            user = "somebody"
        request = ControlRequest(
            id=secrets.token_hex(4),
            verb=verb,
            by=sanitize(f"{user}@{platform.node()}", MAX_NAME),
            time=time.time(),
            settings=self._args.settings,
            generation=self._args.at,
        )
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
                self._require_master()
            time.sleep(POLL_SECONDS)
        client.withdraw(request)
        raise RunBusyError(
            f"the master of {self._run} has not answered for {ANSWER_SECONDS:.0f} s, and the "
            f"request was withdrawn; see es-status {self._words}"
        )

    def _needs_master(self) -> bool:
        """A private server ends with its run."""
        try:
            return self._client.lease_status().state in ACTIVE_STATES
        except RedisError:
            if server_url(self._named_run, self._launch) is None:
                return False
            raise

    def _mark_stopped(self, seconds: int) -> None:
        """Take over the run briefly: a former master is fenced, and workers leave."""
        store = MasterStore(client_from_url(self._url), self._run)
        token = take_lease(store, holder_name(), clocks_from_environment(), wait=False)
        ended = {"state": STOPPED, "workers": "0", "answered": ""}
        store.finish(token, ended, seconds or keys.FINISHED_SECONDS, None)
