"""The run itself, with the lease in hand: train to the end, and leave everything as it should be left."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import suppress
from typing import Any, Protocol

from es_queue.commands import shown_command
from es_queue.config import ASYNC
from es_queue.errors import DecodeError, EnvironmentFailure, FencedError
from es_queue.observations import described
from es_queue.protocol import keys
from es_queue.protocol.again import Again
from es_queue.protocol.channel import FAILED, FINISHED, PAUSED, RUNNING, STOPPED
from es_queue.protocol.clocks import Clocks
from es_queue.protocol.connection import client_like, holds_secret
from es_queue.protocol.messages import Task
from es_queue.protocol.redis_channel import RedisMasterChannel
from es_queue.wording import printable
from master.async_loop import ASYNC_LABEL, classes
from master.blocks import cutter
from master.checkpoint import Checkpoints, write_atomically
from master.collector import Interrupted
from master.course import Course
from master.films import LAST_SECONDS, Films
from master.household.client import GuardianClient
from master.household.duties import Household
from master.household.embedded import EmbeddedServer
from master.household.listen import directions
from master.learn import Record
from master.lease import LeaseRenewal
from master.loop import Outcome, Sink, digest_of
from master.options import Launch
from master.place import Place
from master.recoveries import TAKEN_OVER
from master.replay_log import ReplayLog
from master.requests import Requests
from master.seats import Keeper
from master.setup import Setup
from master.slot_files import SlotFiles
from master.state import FINAL, RunState
from master.verification import Verification
from master.verifier import VerificationError, Verifier

#: A master that goes waits no longer for a Redis that is away: its lease lapses by itself.
LEAVE_SECONDS = 5.0
#: Reports of workers that are kept in the folder of a run that its environment has ended, a JSON text a line.
ERRORS = "errors.jsonl"
LONGEST_REPORT = 64 * 2**10
#: Between two signs of life while the master computes its fingerprint.
SIGN_SECONDS = 0.2


class View(Sink, Protocol):
    """What a session says besides: ``Report`` for the command line, less for Python."""

    def started(self, about: dict[str, str]) -> None: ...

    def summary(self, record: Record) -> None: ...


class Host(Protocol):
    """What a run needs of the process that it runs in; ``Session`` is one.

    looping: set when the run has begun, so that an interrupt ends it in order
    """

    launch: Launch
    clocks: Clocks
    looping: bool

    @property
    def client(self) -> Any: ...

    @property
    def url(self) -> str: ...

    @property
    def private_server(self) -> EmbeddedServer | None: ...

    @property
    def interrupted(self) -> Callable[[], bool]: ...

    def guard(self, place: Place) -> GuardianClient | None: ...


class Drive:
    """The run itself, with the lease in hand."""

    def __init__(
        self, session: Host, place: Place, setup: Setup, channel: RedisMasterChannel, view: View, holder: str, token: str,
        keep_going: Callable[[Record], bool], resumed: bool = False,
    ) -> None:  # fmt: skip
        self._session, self._place, self._setup, self._channel, self._view = session, place, setup, channel, view
        self._token, self._holder, self._resumed = token, holder, resumed
        self._began = time.monotonic()
        self._checkpoints = Checkpoints(place.run_dir)
        config, clocks, launch = setup.config, session.clocks, session.launch
        timeout = int(clocks.seat_lease + config.wall_limit + clocks.seat_margin)
        self._keeper = Keeper(session.client, launch.queue, place.run, secrets.token_hex(3), timeout, view.note)
        self._keeper.missed = channel.missed
        self._own_client = client_like(session.client)
        self._renewal = LeaseRenewal(RedisMasterChannel(self._own_client, place.run, Again(clocks.renew)), token, holder, clocks)
        household = Household(session.guard(place), self._keeper, view.note)
        self._household, self._ended = household, False
        channel.again.on_outage = self._outage
        self._requests = Requests(channel, view.note, Course(setup.learner).refusal, self._way())
        self._verifier = Verifier(config, launch.noise_dir)
        # Only the master's own workers have the password of a private server.
        shared = session.private_server is None or launch.listen is not None
        verification = Verification(self._verifier, view.note) if shared else None
        collects, loops = classes(config)
        self._collector = collects(
            channel, token, holder, clocks, config.block, household, self._live, view.note, session.interrupted, self._requests,
            config.audit, config.strict, verification,
        )  # fmt: skip
        self._collector.about, self._collector.cutter = {"queue": launch.queue}, cutter(config, setup.strategy.per_slot, setup.policy.size)
        self._log = ReplayLog(place.run_dir)
        self._films = Films(place.run_dir, launch.video_every, launch.noise_dir, view.note)
        slot_files = SlotFiles(place.run, place.run_dir, config.keep_slots, then=self._films.kept)
        self._loop = loops(
            channel, setup.learner, token, setup.table.digest, self._collector, view, self._checkpoints,
            self._checked(keep_going), self._log, slot_files,
        )  # fmt: skip

    def _checked(self, keep_going: Callable[[Record], bool]) -> Callable[[Record], bool]:
        """The same, with a look at the noise table now and then."""

        def checked(record: Record) -> bool:
            if changed := self._setup.table.recheck():
                self._view.note(changed)
            return keep_going(record)

        return checked

    def adoptable(self, state: RunState) -> str | None:
        """The open publication, when it is whole and of exactly this state's parameters."""
        stored = self._channel.stored()[1]
        found = self._channel.renew(self._token, self._holder, self._session.clocks.lease, {}, {})
        try:
            task = Task.decode(stored) if stored is not None else None
        except DecodeError:
            return None
        vector = self._setup.strategy.published(state.strategy)
        if task is None or state.stage == FINAL or task.generation != state.generation or task.noise != self._setup.table.digest:
            return None
        if found.publication != task.publication or not found.whole:
            return None
        return task.publication if task.digest == digest_of(vector) else None

    def run(self, state: RunState, adopted: str | None, was: str | None = None) -> dict[str, Any]:
        """Train to the end, or leave a run that can be resumed, whatever ends it; the error itself is what is raised.

        was: the run's state as its last master left it; a paused run stays so.
        Interrupted before the first publish it raises KeyboardInterrupt: there is nothing to go on with.
        """
        self._session.looping = True
        self._renewal.show_sign()
        self._renewal.start()
        film = 0.0  # nobody who ends a run early waits for its film
        try:
            self._view.started(self._about(state))
            self._requests.begin(state.changes, was, self._channel.shown("paused_by"))
            if was in (RUNNING, PAUSED):  # its master was killed
                self._collector.recoveries.note(TAKEN_OVER, time.monotonic() - self._began)
            self._fix_fingerprint()
            outcome = self._loop.run(state, adopted)
            film = LAST_SECONDS
            return self._finished(outcome)
        except Interrupted:
            if self._loop.current_or_none() is not None:
                return self._stopped()
            self._leave(STOPPED)
            raise KeyboardInterrupt from None
        except FencedError:
            raise
        except KeyboardInterrupt:
            self._leave(STOPPED)
            raise
        except EnvironmentFailure as error:
            told = EnvironmentFailure(f"{error}{self._kept_reports()}")
            self._leave(FAILED, why=printable(error, 300))
            raise told from None
        except BaseException as error:
            self._leave(FAILED, why=printable(str(error) or type(error).__name__, 300))
            raise
        finally:
            self._renewal.end(LEAVE_SECONDS)
            self._own_client.close()
            self._log.close()
            self._verifier.close()
            self._films.close(film)

    def _fix_fingerprint(self) -> None:
        """Under --strict, the run's fingerprint is this host's, wherever somebody else's workers can join."""
        if not self._setup.config.strict or self._collector.verification is None:
            return
        asked = self._verifier.fingerprint()
        while not wait([asked], SIGN_SECONDS).done:
            self._renewal.show_sign()
            if self._session.interrupted():
                raise Interrupted
        try:
            self._collector.fleet.fix(asked.result().numerics)
        except VerificationError as error:
            raise EnvironmentFailure(
                f"--strict: the master cannot compute the run's fingerprint on its host ({error}): "
                "make the environment play there, or leave out --strict"
            ) from None

    def _kept_reports(self) -> str:
        """Where the newest tracebacks of workers are, for the end of a sentence: a private server ends with its run."""
        self._channel.again.seconds, self._channel.again.on_outage = LEAVE_SECONDS, lambda _: None
        path = self._place.run_dir / ERRORS
        with suppress(Exception):
            reports = self._channel.errors()
            if reports:
                write_atomically(path, "".join(f"{report_line(one)}\n" for one in reports).encode())
                return f"; the newest {len(reports)} reports of workers are in {path}"
        return ""

    def _live(self, figures: Record) -> None:
        """Once a second, while answers are awaited."""
        self._renewal.show_sign()
        self._view.live(figures)

    def _outage(self, seconds: float) -> None:
        """Redis did not answer; a person need not wait until it does."""
        self._renewal.show_sign()
        if self._session.looping and self._session.interrupted():
            raise Interrupted
        self._household.outage(seconds, self._channel.again.trouble)

    def _about(self, state: RunState) -> dict[str, str]:
        session, queue = self._session, self._session.launch.queue
        private = session.private_server is not None
        where = f" --run-dir {self._place.run_dir}" if private else self._redis_flag("--redis-url")
        join = f"{shown_command('rq') if private else 'rq'} worker{self._redis_flag('--url')}{'' if queue == 'default' else ' ' + queue}"
        about = {"watch": f"{shown_command('es-status')} {self._place.run}{where}", "join": join, "seed": str(self._setup.config.seed)}
        if session.private_server is not None:
            about |= directions(session.private_server.folder, session.private_server.socket_path, queue)
        if self._setup.config.schedule == ASYNC:
            about["schedule"] = ASYNC_LABEL
        if self._setup.spec.observation is not None:
            about["observes"] = described(self._setup.spec.observation_parts)
        if state.origin:
            about["begun with"] = state.origin
        if self._resumed:
            about["resumed"] = f"generation {state.generation}, {state.counters.env_steps:,} steps done"
        return about

    def _way(self) -> str:
        """The flags by which another terminal finds the run."""
        if self._session.private_server is None:
            return self._redis_flag("--redis-url")
        return "" if self._session.launch.run_dir is None else f" --run-dir {self._place.run_dir}"

    def _redis_flag(self, flag: str) -> str:
        """How a command is told the server; a URL with a secret belongs into RQ_REDIS_URL, so it has no flag."""
        url = self._session.url
        return f" {flag} {url}" if not holds_secret(url) else " (RQ_REDIS_URL must hold this server's URL there)"

    # --- ends

    def _stopped(self) -> dict[str, Any]:
        """Ctrl-C: nothing is lost, and the way back is said."""
        state, data = self._loop.current()
        try:
            path = self._checkpoints.save(state.generation, data)
        finally:
            self._leave(STOPPED)
        summary = self._summary(STOPPED, state, None)
        self._view.summary(summary)
        url = "" if self._session.private_server is not None else self._redis_flag("--redis-url")
        folder = f" --run-dir {self._place.run_dir}" if self._session.launch.run_dir is not None else ""
        door = "" if self._session.launch.listen is None else " --listen"
        again = f"{shown_command('es-master')} --resume {self._place.run}{folder}{url}{door}"
        self._view.note(f"stopped at generation {state.generation}, checkpoint {path}; go on with: {again}")
        return summary

    def _leave(self, name: str, why: str | None = None) -> None:
        """Keep what can be resumed, and let workers go; nothing that fails here hides why we leave."""
        if self._ended:
            return
        again = self._channel.again
        again.seconds, again.on_outage = LEAVE_SECONDS, lambda _: None
        current = self._loop.current_or_none()
        if current is not None:
            with suppress(Exception):
                self._checkpoints.save(current[0].generation, current[1])
        unused = current is None and name == STOPPED and not self._resumed
        with suppress(Exception):
            self._end(name, 0 if unused else keys.RUN_SECONDS, None if current is None else current[1], why=why)

    def _finished(self, outcome: Outcome) -> dict[str, Any]:
        current = self._loop.current_or_none()
        if current is not None:  # a finished run that plays nothing more has published nothing
            self._checkpoints.save(current[0].generation, current[1])
        summary = self._summary(FINISHED, outcome.state, outcome)
        write_atomically(self._place.run_dir / "summary.json", json.dumps(summary, indent=2).encode())
        final = {name: summary[name] for name in ("eval_mean", "eval_std", "eval_min", "eval_episodes")}
        with suppress(Exception):
            self._requests.end()
        self._end(FINISHED, keys.FINISHED_SECONDS, None, **final)
        self._view.summary(summary)
        return summary

    def _end(self, state: str, seconds: int, data: bytes | None, **more: Any) -> None:
        self._renewal.end(LEAVE_SECONDS)  # a renewal after the end would take the lease again
        shown = {name: str(value) for name, value in more.items() if value is not None}
        self._channel.finish(self._token, {"state": state, "updated": f"{time.time():.3f}", "workers": "0", "answered": "", **shown}, seconds, data)
        self._ended = True
        with suppress(Exception):  # after the fenced write: the seats may be another master's by now
            self._keeper.close()
            self._keeper.closed()

    def _summary(self, name: str, state: RunState, outcome: Outcome | None) -> dict[str, Any]:
        figures = outcome.evaluation if outcome else None
        vector = self._setup.strategy.published(state.strategy)
        best = self._checkpoints.best
        return {
            "state": name, "reason": state.reason, "run": self._place.run, "run_dir": str(self._place.run_dir),
            "digest": digest_of(self._setup.strategy.identified(state.strategy, vector)), "generation": state.generation,
            "env_steps": state.counters.env_steps, "episodes": state.counters.episodes, "seconds": round(state.counters.seconds, 3),
            "eval_mean": figures.mean if figures else None, "eval_std": figures.std if figures else None,
            "eval_min": figures.least if figures else None, "eval_episodes": figures.count if figures else None,
            "confirm_mean": state.confirm_mean, "reproducible": state.reproducible, "quarantined": sorted(map(str, self._collector.fleet.quarantined)), "seed": self._setup.config.seed,
            "best_checkpoint": str(best) if best.exists() else None,
            "last_checkpoint": str(self._checkpoints.last) if self._checkpoints.last else None,
        }  # fmt: skip


def report_line(text: str) -> str:
    """A worker's report as one line of JSON in ASCII; what is none, or too long, as a JSON text."""
    try:
        found = json.loads(text) if len(text) <= LONGEST_REPORT else text[:LONGEST_REPORT]
    except (ValueError, RecursionError):
        found = text
    return json.dumps(found)
