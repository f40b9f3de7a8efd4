"""One es-master process's part in a run: connect, take the lease, train, leave everything as it should be left."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from es_queue.config import RunConfig
from es_queue.custom_code import named_modules
from es_queue.errors import NoRunError, RunBusyError, RunFolderError, UsageError
from es_queue.protocol import keys
from es_queue.protocol.again import Again
from es_queue.protocol.channel import FAILED, STOPPED
from es_queue.protocol.clocks import Clocks
from es_queue.protocol.connection import ANY_ERROR, client_from_url, refusal, refuse_unfit, safe_name
from es_queue.protocol.redis_channel import RedisMasterChannel
from es_queue.validation import refuse_combinations
from master import checkpoint
from master.budget import reopened
from master.checkpoint import Checkpoints, write_atomically
from master.course import Course, without
from master.drive import LEAVE_SECONDS, Drive, View
from master.household.client import GuardianClient, guardian_for
from master.household.embedded import EmbeddedServer
from master.learn import Record
from master.lease import holder_name, refuse_live, take
from master.named_redis import network_warnings, reach_of, seen_already, warning_line
from master.options import RESUMABLE, Launch
from master.place import Place, new_place, old_place
from master.run_card import write_card
from master.setup import prepare, unnormalised
from master.standby import Standby
from master.state import FINAL, RunState
from master.warm_start import warm_state

#: The state of a summary of a standby that was not needed.
UNNEEDED = "unneeded"


class Session:
    """Composes a run's parts; ``drive`` does the work and always cleans up what it started.

    say: hears what is to be told before there is a view
    looping: the run has begun, so ``interrupted`` is looked at and the run ends in order
    """

    def __init__(
        self, launch: Launch, clocks: Clocks, make_view: Callable[[Place, RunConfig, str], View], interrupted: Callable[[], bool],
        say: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.launch, self.clocks = launch, clocks
        self._make_view, self._interrupted = make_view, interrupted
        self._say = say
        self.looping = False
        self._fresh: Path | None = None
        self._warnings: list[str] = []
        self._modules: list[str] = []
        self._server: EmbeddedServer | None = None
        self._guardian: GuardianClient | None = None

    def drive(self, config: RunConfig | None, changes: dict[str, Any] | None = None, keep_going: Callable[[Record], bool] = lambda _: True) -> dict[str, Any]:
        """Train a new run of ``config``, or go on with ``launch.resume`` under ``changes``; returns the summary.

        A KeyboardInterrupt leaves a run that can be resumed, or nothing when nothing was published yet.
        """
        try:
            if self.launch.resume is not None:
                return self._resume(changes or {}, keep_going)
            assert config is not None
            return self._begin(config, keep_going)
        except ANY_ERROR as error:
            self._abandon()
            raise refusal(error) from None
        except RunBusyError:  # the folder may be the other master's, and so may be the server
            if self._server is not None and self._guardian is not None:
                self._guardian.release()
            raise
        except BaseException:
            self._abandon()
            raise
        finally:
            self.stop()

    def stop(self) -> None:
        """End local workers and the private server; nothing is left running."""
        if self._guardian is not None:
            self._guardian.stop()

    def kill(self) -> None:
        """End them at once."""
        if self._guardian is not None:
            self._guardian.kill()

    # --- beginning and resuming

    def _begin(self, config: RunConfig, keep_going: Callable[[Record], bool]) -> dict[str, Any]:
        self._modules = named_modules(config)
        setup = prepare(config, self.launch.noise_dir)
        start = setup.start() if self.launch.warm_start is None else warm_state(setup, self.launch.warm_start)
        place = new_place(config, self.launch)
        self._fresh = None if place.run_dir.exists() else place.run_dir
        place.prepare()
        channel = self._connect(place)
        if channel.stored()[0] is not None:
            refuse_live(channel, self.clocks, wait=False, note=lambda _: None)
            raise UsageError(f"run {place.run} exists in this Redis already; go on with it by --resume {place.run}, or give another --run")
        channel.forget_gone_runs()
        view = self._make_view(place, setup.config, self._redis_name)
        for text in filter(None, (setup.spec.note, *self._warnings, *unnormalised(config, setup.config))):
            view.note(text)
        holder = holder_name()
        token = take(channel, holder, self.clocks, wait=False)
        with self._released(channel, token, 0):
            write_atomically(place.config_file, setup.config.to_json().encode())
            write_card(place.run_dir, place.run, setup.config, self.launch.warm_start)
            drive = Drive(self, place, setup, channel, view, holder, token, keep_going)
        return drive.run(start, None)

    def _resume(self, changes: dict[str, Any], keep_going: Callable[[Record], bool]) -> dict[str, Any]:
        """Prepare what takes long, raise the token, and only then read: the newer of Redis and disk (rule 11)."""
        place = old_place(self.launch)
        if self.launch.redis_url is None and not place.run_dir.is_dir():
            raise NoRunError(
                f"there is no run {place.run} to resume: {place.run_dir} does not exist; give --run-dir, or --redis-url for a run on a shared Redis"
            )
        checkpoints = Checkpoints(place.run_dir)
        disk = checkpoints.newest(place.run)
        if disk is not None:
            self._modules = named_modules(newest(place, disk, None)[0])  # a folder of another run is refused before anything is started in it
        channel = self._connect(place)
        stored = channel.stored()[2]
        if disk is None and stored is None:
            news = "".join(f"; {text}" for text in (self._guardian.news() if self._guardian is not None else ()))
            raise NoRunError(
                f"there is no run {place.run} to resume: neither {place.run_dir} nor Redis holds "
                f"a checkpoint of it{news}"
            )
        place.prepare()
        channel.forget_gone_runs()
        said = [*self._warnings, *checkpoints.passed_over]
        if not self.launch.standby:
            refuse_live(channel, self.clocks, wait=True, note=said.append)
        config, state = newest(place, disk, stored)
        self._modules = named_modules(config)
        refuse_combinations(replace(config, **changes))
        setup = prepare(replace(config, **changes), self.launch.noise_dir)
        holder = holder_name()
        if self.launch.standby:
            token = self._turn(channel, holder, state.epoch)
        else:
            token = take(channel, holder, self.clocks, wait=True, floor=state.epoch, note=said.append)
        if token is None:
            return {"state": UNNEEDED}
        with self._released(channel, token, keys.RUN_SECONDS):
            found, state = newest(place, Checkpoints(place.run_dir).newest(place.run), channel.stored()[2], said.append)
            if found != config:  # another master went on with it meanwhile, under other budgets
                setup = prepare(replace(found, **changes), self.launch.noise_dir)
            write_atomically(place.config_file, setup.config.to_json().encode())
            write_card(place.run_dir, place.run, setup.config)
            view = self._make_view(place, setup.config, self._redis_name)
            if state.noise != setup.table.digest:
                said.append(f"this es-queue makes other noise than the one that made generation {state.generation}: the run goes on, but no longer as it would have")
                state = replace(state, reproducible=False)
            for text in said:
                view.note(text)
            state = replace(state, changes=without(state.changes, changes))
            now = Course(setup.learner).learner_at(state)
            state = reopened(now.config, state, now.target)
            drive = Drive(self, place, setup, channel, view, holder, token, keep_going, resumed=True)
            adopted = drive.adoptable(state)
            was = channel.state()
        return drive.run(state, adopted, was)

    def _turn(self, channel: RedisMasterChannel, holder: str, floor: int) -> str | None:
        """Stand by until the run has lost its master, and take it; None when it has ended. The first of several gets it."""
        standby = Standby(channel, self.clocks, self._say, self._interrupted)
        while standby.wait():
            try:
                return take(channel, holder, self.clocks, wait=False, floor=floor)
            except RunBusyError:
                continue
        return None

    @contextmanager
    def _released(self, channel: RedisMasterChannel, token: str, seconds: int) -> Iterator[None]:
        """Give the lease back when what stands between it and the first generation fails."""
        try:
            yield
        except BaseException as error:
            channel.again.seconds = LEAVE_SECONDS
            stopped = isinstance(error, KeyboardInterrupt)
            why = {} if stopped else {"why": str(error)[:300]}
            with suppress(Exception):
                channel.finish(token, {"state": STOPPED if stopped else FAILED, "workers": "0", **why}, seconds, None)
            raise

    def _abandon(self) -> None:
        """Leave nothing of a run that came to nothing."""
        self.stop()
        self._remove_unused()

    def _remove_unused(self) -> None:
        """Remove the folder that was made for a run of which nothing came."""
        if self._fresh is not None and not (self._fresh / "checkpoints").exists():
            shutil.rmtree(self._fresh, ignore_errors=True)
            if self.launch.run_dir is None:
                with suppress(OSError):  # it holds other runs
                    self._fresh.parent.rmdir()

    def _connect(self, place: Place) -> RedisMasterChannel:
        """The channel over the server that was named, or over a private one in the run's folder."""
        url, again = self.launch.redis_url, Again()
        if url is None:
            place.prepare()
            self._server = EmbeddedServer(place.run_dir / "redis")
            self.guard(place)
            url = self._server.url
            again.on_outage = self._mend
        self.url = url
        self._redis_name = safe_name(url)
        self.client = client_from_url(url)
        refuse_unfit(self.client, self._redis_name)
        if self.launch.redis_url is not None and not self.launch.insecure:
            found = network_warnings(reach_of(self.client, self._redis_name))
            for text in found:
                self._say(warning_line(text))
            self._warnings = [] if seen_already() else found
        return RedisMasterChannel(self.client, place.run, again)

    def guard(self, place: Place) -> GuardianClient | None:
        """The guardian of the private server and the local workers, started; None for a run that has neither."""
        if self._guardian is None:
            self._guardian = guardian_for(self.launch, place, self.clocks, self._server, self._modules)
            if self._guardian is not None:
                self._guardian.start()
        return self._guardian

    def _mend(self, _: float) -> None:
        """The private server did not answer, and there is no household yet to look after it."""
        if self._guardian is not None:
            self._guardian.ensure()

    @property
    def private_server(self) -> EmbeddedServer | None:
        return self._server

    @property
    def interrupted(self) -> Callable[[], bool]:
        return self._interrupted


def newest(place: Place, disk: bytes | None, stored: bytes | None, note: Callable[[str], None] = lambda _: None) -> tuple[RunConfig, RunState]:
    """The newer of two checkpoints of one run; Redis holds every generation, the disk one every few seconds.

    note: hears of one that cannot be used while the other can

    Raises RunFolderError when one is of another run than ``place.run``, or when they are of two runs of that name.
    """
    found = []
    trouble: RunFolderError | None = None
    for data, where in ((stored, "Redis"), (disk, str(place.run_dir))):
        if data is None:
            continue
        try:
            config, state, run = checkpoint.decode(data)
        except RunFolderError as error:
            trouble = error
            note(f"the checkpoint in {where} was passed over: {error}")
            continue
        if run != place.run:
            raise RunFolderError(f"{where} holds run {run[:40]!r}, not {place.run}: go on with it by --resume {run[:40]}, or give the --run-dir of {place.run}")
        found.append((config, state))
    if not found:
        raise trouble or RunFolderError("there is no checkpoint to resume")
    differing = [one.name for one in fields(RunConfig) if one.name not in RESUMABLE and len({str(getattr(config, one.name)) for config, _ in found}) > 1]
    if differing:
        raise RunFolderError(
            f"{place.run_dir} and Redis hold two different runs called {place.run} ({', '.join(differing[:5])} differ): "
            "give another --run-dir to go on with the one in Redis, or the --redis-url where this folder's run was"
        )
    return max(found, key=lambda one: (one[1].generation, one[1].stage == FINAL))


def resumable_changes(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in RESUMABLE}
