"""One es-master process's part in a run: connect, take the lease, train, leave everything as it should be left."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from es_queue.commands import shown_command
from es_queue.config import RunConfig
from es_queue.errors import DecodeError, EsQueueError, FencedError, RunFolderError, UsageError
from es_queue.numerics import bytes_digest
from es_queue.protocol import keys
from es_queue.protocol.channel import FAILED, FINISHED, STOPPED
from es_queue.protocol.clocks import Clocks
from es_queue.protocol.connection import client_from_url, refuse_unfit, safe_name
from es_queue.protocol.messages import Task
from es_queue.protocol.redis_channel import Again, RedisMasterChannel
from master import checkpoint
from master.budget import reopened
from master.checkpoint import Checkpoints, write_atomically
from master.collector import Collector, Interrupted
from master.embedded import EmbeddedServer
from master.household import Household
from master.learn import Record
from master.lease import holder_name, refuse_live, take
from master.local_workers import LocalWorkers, default_workers
from master.loop import Loop, Outcome
from master.options import RESUMABLE, Launch
from master.seats import Keeper
from master.setup import Setup, prepare
from master.state import FINAL, RunState


class View(Protocol):
    """What a session says: ``Report`` for the command line, less for Python."""

    def started(self, about: dict[str, str]) -> None: ...

    def generation(self, record: Record) -> None: ...

    def live(self, figures: Record) -> None: ...

    def note(self, text: str) -> None: ...

    def summary(self, record: Record) -> None: ...


@dataclass(frozen=True)
class Place:
    """Where a run lives: its id, and its folder on this host."""

    run: str
    run_dir: Path

    @property
    def config_file(self) -> Path:
        return self.run_dir / "config.json"

    def prepare(self) -> None:
        """Make the folder. Raises RunFolderError when it cannot be written."""
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"run-dir {self.run_dir} cannot be made ({error.strerror}); give a folder that you may write to") from None
        probe = self.run_dir / f".probe-{secrets.token_hex(4)}"
        try:
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise RunFolderError(f"run-dir {self.run_dir} cannot be written ({error.strerror}); give a folder that you may write to") from None


def new_place(config: RunConfig, launch: Launch) -> Place:
    """The id and folder of a new run. Raises UsageError for a folder that holds a run already."""
    run = launch.run or derived_run_id(config.env)
    place = Place(keys.checked_run_id(run), launch.run_dir or Path("runs") / run)
    if place.config_file.exists():
        raise UsageError(f"run-dir {place.run_dir} holds a run already; go on with it by --resume {run}, or give another --run")
    return place


def derived_run_id(env: str) -> str:
    """``bipedalwalker-v2-1120-143259-4f``: which, when, and two letters against chance."""
    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in env.lower()).strip("-")
    return f"{name[:22].strip('-')}-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(1)}"


def old_place(launch: Launch) -> Place:
    run = launch.resume or ""
    return Place(run, launch.run_dir or Path("runs") / run)


class Session:
    """Composes a run's parts; ``drive`` does the work and always cleans up what it started."""

    def __init__(self, launch: Launch, clocks: Clocks, make_view: Callable[[Place, RunConfig, str], View], interrupted: Callable[[], bool]) -> None:
        self.launch, self.clocks = launch, clocks
        self._make_view, self._interrupted = make_view, interrupted
        self._server: EmbeddedServer | None = None
        self._workers: LocalWorkers | None = None

    def drive(self, config: RunConfig | None, changes: dict[str, Any] | None = None, keep_going: Callable[[Record], bool] = lambda _: True) -> dict[str, Any]:
        """Train a new run of ``config``, or go on with ``launch.resume`` under ``changes``; returns the summary."""
        try:
            if self.launch.resume is not None:
                return self._resume(changes or {}, keep_going)
            assert config is not None
            return self._begin(config, keep_going)
        finally:
            self.stop()

    def stop(self) -> None:
        """End local workers and the private server; nothing is left running."""
        if self._workers is not None:
            self._workers.stop()
        if self._server is not None:
            self._server.stop()

    def kill(self) -> None:
        """End the workers without waiting for them; the kernel ends the private server with this process."""
        if self._workers is not None:
            self._workers.kill()

    # --- beginning and resuming

    def _begin(self, config: RunConfig, keep_going: Callable[[Record], bool]) -> dict[str, Any]:
        setup = prepare(config, self.launch.noise_dir)
        place = new_place(config, self.launch)
        place.prepare()
        channel = self._connect(place)
        if channel.stored()[0] is not None:
            refuse_live(channel, self.clocks, wait=False, note=lambda _: None)
            raise UsageError(f"run {place.run} exists in this Redis already; go on with it by --resume {place.run}, or give another --run")
        write_atomically(place.config_file, setup.config.to_json().encode())
        view = self._make_view(place, setup.config, self._redis_name)
        holder = holder_name()
        token = take(channel, holder, self.clocks, wait=False)
        return Drive(self, place, setup, channel, view, holder, token, keep_going).run(setup.start(), None)

    def _resume(self, changes: dict[str, Any], keep_going: Callable[[Record], bool]) -> dict[str, Any]:
        """Raise the token first, then read: the newer of Redis and disk (rule 11)."""
        place = old_place(self.launch)
        if self.launch.redis_url is None and not place.run_dir.is_dir():
            raise RunFolderError(
                f"there is no run {place.run} to resume: {place.run_dir} does not exist; give --run-dir, or --redis-url for a run on a shared Redis"
            )
        disk = Checkpoints(place.run_dir).newest()
        channel = self._connect(place)
        if disk is None and channel.stored()[2] is None:
            raise RunFolderError(f"there is no run {place.run} to resume: neither {place.run_dir} nor Redis holds a checkpoint of it")
        place.prepare()
        holder = holder_name()
        said: list[str] = []
        floor = 0 if disk is None else checkpoint.decode(disk)[1].epoch
        token = take(channel, holder, self.clocks, wait=True, floor=floor, note=said.append)
        config, state = newest(disk, channel.stored()[2])
        setup = prepare(replace(config, **changes), self.launch.noise_dir)
        write_atomically(place.config_file, setup.config.to_json().encode())
        view = self._make_view(place, setup.config, self._redis_name)
        for text in said:
            view.note(text)
        state = reopened(setup.config, state, setup.learner.target)
        drive = Drive(self, place, setup, channel, view, holder, token, keep_going, resumed=True)
        return drive.run(state, drive.adoptable(state))

    def _connect(self, place: Place) -> RedisMasterChannel:
        """The channel over the server that was named, or over a private one in the run's folder."""
        url = self.launch.redis_url
        if url is None:
            place.prepare()
            self._server = EmbeddedServer(place.run_dir / "redis")
            self._server.start()
            url = self._server.url
        self.url = url
        self._redis_name = safe_name(url)
        self.client = client_from_url(url)
        refuse_unfit(self.client, self._redis_name)
        return RedisMasterChannel(self.client, place.run, Again())

    def start_workers(self, place: Place) -> LocalWorkers | None:
        count = self.launch.workers
        if count is None:
            count = default_workers() if self._server is not None else 0
        if count == 0:
            return None
        self._workers = LocalWorkers(count, self.launch.queue, self.url, place.run_dir / "logs")
        self._workers.start()
        return self._workers

    @property
    def private_server(self) -> EmbeddedServer | None:
        return self._server

    @property
    def interrupted(self) -> Callable[[], bool]:
        return self._interrupted


def newest(disk: bytes | None, stored: bytes | None) -> tuple[RunConfig, RunState]:
    """The newer of two checkpoints; Redis holds every generation, the disk one every few seconds."""
    found = []
    trouble: RunFolderError | None = None
    for data in (stored, disk):
        if data is None:
            continue
        try:
            config, state, _ = checkpoint.decode(data)
            found.append((config, state))
        except RunFolderError as error:
            trouble = error
    if not found:
        raise trouble or RunFolderError("there is no checkpoint to resume")
    return max(found, key=lambda one: (one[1].generation, one[1].stage == FINAL))


class Drive:
    """The run itself, with the lease in hand."""

    def __init__(
        self, session: Session, place: Place, setup: Setup, channel: RedisMasterChannel, view: View, holder: str, token: str,
        keep_going: Callable[[Record], bool], resumed: bool = False,
    ) -> None:  # fmt: skip
        self._session, self._place, self._setup, self._channel, self._view = session, place, setup, channel, view
        self._token, self._holder, self._resumed = token, holder, resumed
        self._checkpoints = Checkpoints(place.run_dir)
        config, clocks, launch = setup.config, session.clocks, session.launch
        timeout = int(clocks.seat_lease + config.wall_limit + clocks.seat_margin)
        self._keeper = Keeper(session.client, launch.queue, place.run, secrets.token_hex(3), timeout, view.note)
        workers = session.start_workers(place)
        household = Household(session.private_server, workers, self._keeper, view.note)
        channel.again.on_outage = household.outage
        self._collector = Collector(channel, token, holder, clocks, config.block, household, view.live, view.note, session.interrupted)
        self._loop = Loop(channel, setup.learner, token, setup.table.digest, self._collector, view, self._checkpoints, clocks, keep_going)

    def adoptable(self, state: RunState) -> str | None:
        """The open publication, when it is whole and of exactly this state's parameters."""
        stored = self._channel.stored()[1]
        found = self._channel.renew(self._token, self._holder, self._session.clocks.lease, {}, {})
        try:
            task = Task.decode(stored) if stored is not None else None
        except DecodeError:
            return None
        vector = self._setup.strategy.published(state.strategy)
        if task is None or state.stage == FINAL or task.generation != state.generation:
            return None
        if found.publication != task.publication or not found.whole:
            return None
        return task.publication if task.digest == bytes_digest(vector.astype("<f4").tobytes()) else None

    def run(self, state: RunState, adopted: str | None) -> dict[str, Any]:
        """Train to the end, or leave a run that can be resumed."""
        self._view.started(self._about(state))
        try:
            outcome = self._loop.run(state, adopted)
        except Interrupted:
            return self._stopped()
        except FencedError:
            raise
        except EsQueueError as error:
            self._give_up(error)
            raise
        return self._finished(outcome)

    def _about(self, state: RunState) -> dict[str, str]:
        session, queue = self._session, self._session.launch.queue
        private = session.private_server is not None
        where = f"--run-dir {self._place.run_dir}" if private else f"--redis-url {safe_name(session.url)}"
        join = f"{shown_command('rq') if private else 'rq'} worker --url {safe_name(session.url)}{'' if queue == 'default' else ' ' + queue}"
        about = {"watch": f"{shown_command('es-status')} {self._place.run} {where}", "join": join, "seed": str(self._setup.config.seed)}
        if self._resumed:
            about["resumed"] = f"generation {state.generation}, {state.counters.env_steps:,} steps done"
        return about

    # --- ends

    def _stopped(self) -> dict[str, Any]:
        """Ctrl-C: nothing is lost, and the way back is said."""
        state, data = self._loop.current()
        path = self._checkpoints.save(state.generation, data)
        self._end(STOPPED, keys.RUN_SECONDS, data)
        summary = self._summary(STOPPED, state, None)
        self._view.summary(summary)
        url = "" if self._session.private_server is not None else f" --redis-url {safe_name(self._session.url)}"
        folder = f" --run-dir {self._place.run_dir}" if self._session.launch.run_dir is not None else ""
        again = f"{shown_command('es-master')} --resume {self._place.run}{folder}{url}"
        self._view.note(f"stopped at generation {state.generation}, checkpoint {path}; go on with: {again}")
        return summary

    def _give_up(self, error: EsQueueError) -> None:
        """The run failed: keep what can be resumed, and let workers go."""
        current = self._loop.current_or_none()
        try:
            if current is not None:
                self._checkpoints.save(current[0].generation, current[1])
            self._end(FAILED, keys.RUN_SECONDS, None if current is None else current[1], why=str(error)[:300])
        except EsQueueError:
            return

    def _finished(self, outcome: Outcome) -> dict[str, Any]:
        state, data = self._loop.current()
        self._checkpoints.save(state.generation, data)
        summary = self._summary(FINISHED, outcome.state, outcome)
        write_atomically(self._place.run_dir / "summary.json", json.dumps(summary, indent=2).encode())
        self._end(FINISHED, keys.FINISHED_SECONDS, None, eval_mean=summary["eval_mean"])
        self._view.summary(summary)
        return summary

    def _end(self, state: str, seconds: int, data: bytes | None, **more: Any) -> None:
        shown = {name: str(value) for name, value in more.items() if value is not None}
        self._keeper.close()
        self._channel.finish(self._token, {"state": state, "updated": f"{time.time():.3f}", "workers": "0", **shown}, seconds, data)

    def _summary(self, name: str, state: RunState, outcome: Outcome | None) -> dict[str, Any]:
        figures = outcome.evaluation if outcome else None
        vector = self._setup.strategy.published(state.strategy)
        best = self._checkpoints.best
        return {
            "state": name, "reason": state.reason, "run": self._place.run, "run_dir": str(self._place.run_dir),
            "digest": bytes_digest(vector.astype("<f4").tobytes()), "generation": state.generation,
            "env_steps": state.counters.env_steps, "episodes": state.counters.episodes, "seconds": round(state.counters.seconds, 3),
            "eval_mean": figures.mean if figures else None, "eval_std": figures.std if figures else None,
            "eval_min": figures.least if figures else None, "eval_episodes": figures.count if figures else None,
            "confirm_mean": state.confirm_mean, "reproducible": state.reproducible, "seed": self._setup.config.seed,
            "best_checkpoint": str(best) if best.exists() else None,
            "last_checkpoint": str(self._checkpoints.last) if self._checkpoints.last else None,
        }  # fmt: skip


def resumable_changes(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in RESUMABLE}
