"""Control of a run from any terminal that reaches its Redis: stop, pause, continue, change settings, purge.

The run's master does what is asked, within a second; where a run has no master any more, this ends or removes it.
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
from pathlib import Path

from es_queue.commands import shown_command
from es_queue.errors import EXIT_DONE, RedisError, RunBusyError, UsageError
from es_queue.protocol import keys
from es_queue.protocol.channel import NEEDS_A_MASTER, STOPPED
from es_queue.protocol.clocks import clocks_from_environment
from es_queue.protocol.connection import client_from_url, client_tried_once, holds_secret, safe_name
from es_queue.protocol.desk import Desk
from es_queue.protocol.redis_channel import RedisMasterChannel
from es_queue.protocol.requests import LONGEST_NAME, SET, Request
from es_queue.protocol.requests import PAUSE as ASK_PAUSE
from es_queue.settings import config_from_json
from master.asks import ATTACH, CONTINUE, PAUSE, PURGE, REPLAY, STOP, Ask
from master.course import changed
from master.household.embedded import EmbeddedServer
from master.lease import holder_name, host_of, take
from master.options import Launch
from master.state import Change
from master.wording import printable

#: A master answers within a second, but it may be learning from a large generation.
ANSWER_SECONDS = 60.0
POLL_SECONDS = 0.1
#: Workers leave a stopped run when their episode is over.
LEAVE_SECONDS = 15.0


def control(ask: Ask, launch: Launch, say: Callable[[str], None] = print) -> int:
    """Do what is asked; returns the exit code. Raises EsQueueError in one sentence."""
    if ask.verb == REPLAY:
        from master.replay import replay

        return replay(ask.run, launch.run_dir or Path("runs") / ask.run, launch.noise_dir, say)
    if ask.verb == ATTACH and not ask.settings:
        from master.attach import attach

        return attach(ask.run, launch)
    counter = Counter(ask, launch, say)
    verbs = {STOP: counter.stop, PAUSE: counter.pause, CONTINUE: counter.go_on, PURGE: counter.purge, ATTACH: counter.change}
    verbs[ask.verb]()
    return EXIT_DONE


def url_of(run: str, launch: Launch) -> str | None:
    """Where the run's server is: the one that was named, else the private one in its folder; None when that does not run."""
    if launch.redis_url is not None:
        return launch.redis_url
    folder = private_folder(run, launch)
    if not folder.is_dir():
        return None
    server = EmbeddedServer(folder)
    url = server.url
    return url if server.socket_path.is_socket() else None


def private_folder(run: str, launch: Launch) -> Path:
    return (launch.run_dir or Path("runs") / run) / "redis"


class Counter:
    """One thing that is asked of one run."""

    def __init__(self, ask: Ask, launch: Launch, say: Callable[[str], None]) -> None:
        self._ask, self._launch, self._say = ask, launch, say
        self._run = ask.run
        url = url_of(ask.run, launch)
        self._url = url or ""
        self._desk = None if url is None else Desk(client_tried_once(url), ask.run)

    # --- the verbs

    def stop(self) -> None:
        """Ask the master to stop, and wait until the run has stopped; a run without a master is marked as stopped."""
        if (state := self._ended()) is not None:
            self._say(f"run {self._run} is {state}: nothing is to be stopped")
            return
        if self._desk_or_fail().standing().holder is None:
            self._release(keys.RUN_SECONDS)
            self._say(f"run {self._run} had no master and counts as stopped now; go on with it: {self._resume()}")
            return
        self._send(self._request(STOP), lambda: not self._live())
        self._say(f"run {self._run} has stopped; go on with it: {self._resume()}")

    def pause(self) -> None:
        """Let the workers of a run wait."""
        self._refuse_ended("it cannot be paused")
        self._refuse_unled()
        self._send(self._request(ASK_PAUSE))
        self._say(f"run {self._run} is paused; go on with it: {shown_command('es-master')} --continue {self._run}{self._way()}")

    def go_on(self) -> None:
        """Go on with a paused run."""
        self._refuse_ended(f"begin where it stopped: {self._resume()}")
        self._refuse_unled()
        self._send(self._request(CONTINUE))
        self._say(f"run {self._run} goes on")

    def change(self) -> None:
        """Change settings of a run that is under way. Raises UsageError where they cannot be."""
        desk = self._desk_or_fail()
        raw = desk.config()
        if raw is None:
            raise self._unknown()
        changed(config_from_json(raw), [Change(0, dict(self._ask.settings))])  # a mistake is refused here, before it is sent
        self._refuse_ended("its settings cannot be changed")
        self._refuse_unled()
        self._say(f"run {self._run}: {printable(self._send(self._request(SET)), 1000)}")

    def purge(self) -> None:
        """Remove all that Redis holds of a run that nobody drives. Raises RunBusyError for one that has a master."""
        if self._desk is None:
            self._purge_folder()
            return
        standing = self._desk.standing()
        if standing.holder is not None:
            raise RunBusyError(f"run {self._run} is live: {host_of(standing.holder)} drives it; stop it first: {shown_command('es-master')} --stop {self._run}{self._way()}")
        count = self._desk.count()
        if count == 0 and standing.state is None:
            raise self._unknown()
        self._confirm(f"remove the {count} keys of run {self._run} from Redis at {safe_name(self._url)}? its folder on disk stays")
        self._release(0)
        deadline = time.monotonic() + LEAVE_SECONDS
        while self._desk.inhabited() and time.monotonic() < deadline:  # what they give back would outlive the run
            time.sleep(POLL_SECONDS)
        self._desk.purge()
        self._say(f"run {self._run} is gone from Redis at {safe_name(self._url)}; checkpoints on disk are where they were")

    # --- what they share

    def _request(self, verb: str) -> Request:
        who = printable(f"{user()}@{platform.node()}", LONGEST_NAME)
        return Request(secrets.token_hex(4), verb, who, time.time(), self._ask.settings, self._ask.at)

    def _send(self, request: Request, done: Callable[[], bool] | None = None) -> str:
        """Ask, and wait for the master's reply, or until it is ``done``. Raises UsageError when it refuses, RunBusyError
        when it says nothing."""
        desk = self._desk_or_fail()
        desk.ask(request)
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            reply = desk.reply(request) if done is None else "" if done() else None
            if reply is not None and reply.startswith("refused: "):
                raise UsageError(f"run {self._run}: {printable(reply, 1000)}")
            if reply is not None:
                return reply
            if done is None and desk.standing().holder is None:
                desk.withdraw(request)
                self._refuse_unled()
            time.sleep(POLL_SECONDS)
        desk.withdraw(request)
        raise RunBusyError(f"the master of {self._run} has not answered for {ANSWER_SECONDS:.0f} s, and the request was taken back; look at es-status {self._run}{self._way()}")

    def _live(self) -> bool:
        """Whether the run still has a state that needs its master; a private server ends with its run."""
        try:
            return self._desk_or_fail().standing().state in NEEDS_A_MASTER
        except RedisError:
            if self._launch.redis_url is None and url_of(self._run, self._launch) is None:
                return False
            raise

    def _ended(self) -> str | None:
        """The state of a run that has ended, None for one that goes on. Raises UsageError for a run that nobody knows."""
        state = self._desk_or_fail().standing().state
        if state is None:
            raise self._unknown()
        return None if state in NEEDS_A_MASTER else printable(state, 40)

    def _refuse_ended(self, consequence: str) -> None:
        if (state := self._ended()) is not None:
            raise UsageError(f"run {self._run} is {state}: {consequence}")

    def _refuse_unled(self) -> None:
        if self._desk_or_fail().standing().holder is None:
            raise RunBusyError(f"run {self._run} has no master that could hear this; go on with it: {self._resume()}")

    def _release(self, seconds: int) -> None:
        """Take the run over for a moment and mark it as stopped: what wakes later is fenced, and workers leave."""
        channel = RedisMasterChannel(client_from_url(self._url), self._run)
        token = take(channel, holder_name(), clocks_from_environment(), wait=False)
        channel.finish(token, {"state": STOPPED, "workers": "0", "answered": ""}, seconds or keys.FINISHED_SECONDS, None)

    def _purge_folder(self) -> None:
        """The private server does not run: its data are what the run's folder holds of it."""
        folder = private_folder(self._run, self._launch)
        if not folder.is_dir():
            raise self._unknown()
        self._confirm(f"remove the private server's data in {folder}? checkpoints and logs stay")
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)
        self._say(f"the data of run {self._run} in {folder} are gone; checkpoints are where they were")

    def _confirm(self, question: str) -> None:
        if self._ask.yes:
            return
        if not sys.stdin.isatty():
            raise UsageError("--purge asks first, and nobody is at a terminal to answer: give --yes")
        if input(f"{question} This cannot be undone. [y/N] ").strip().lower() not in ("y", "yes"):
            raise UsageError("nothing was removed")

    def _desk_or_fail(self) -> Desk:
        if self._desk is None:
            raise self._unknown()
        return self._desk

    def _unknown(self) -> UsageError:
        if self._launch.redis_url is None:
            folder = private_folder(self._run, self._launch).parent
            return UsageError(f"no private server runs for {self._run} in {folder}: its master has ended; for a run on a shared Redis give --redis-url or set RQ_REDIS_URL")
        return UsageError(f"there is no run {self._run} in Redis at {safe_name(self._url)}; es-status lists the runs")

    def _resume(self) -> str:
        return f"{shown_command('es-master')} --resume {self._run}{self._way()}"

    def _way(self) -> str:
        """The flags by which the same run is found again; a URL with a secret stays out of sight."""
        if self._launch.redis_url is not None:
            return "" if holds_secret(self._url) else f" --redis-url {self._url}"
        return "" if self._launch.run_dir is None else f" --run-dir {self._launch.run_dir}"


def user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return "somebody"
