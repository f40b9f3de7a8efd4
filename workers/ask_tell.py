"""Ask and tell: any program scores a run's vectors, such as a robot, a laboratory or a simulator
in another language. Its run is ``es-master --objective ask --parameters N``.

Each open ask has a lane: a thread that is a worker like any other, with its own id and heartbeat,
and claims a slot only for it. A program that dies leaves its slots to the others.
"""

from __future__ import annotations

import math
import platform
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from es_queue.config.run_config import ASKED
from es_queue.config.settings import short
from es_queue.environments.factory import describe
from es_queue.environments.interface import EnvironmentRequest
from es_queue.errors import EsQueueError, NoRunError, UsageError
from es_queue.numerics.arrays import Floats
from es_queue.numerics.noise_table import NoiseTable
from es_queue.policies import make_policy
from es_queue.protocol.connection import (
    client_from_url,
    clone_client,
    redacted_url,
    url_from_environment,
    validate_server,
)
from es_queue.protocol.keys import checked_run_id, clocks_from_environment
from es_queue.protocol.messages import Block
from es_queue.protocol.store import WorkerStore
from workers.episode import EpisodeFailed
from workers.heartbeat import EpisodeControl, Heartbeat, Leaving, worker_info
from workers.player import Player
from workers.serving import Service, load_config, make_worker_id

#: Seconds between two looks at whether a lane must leave.
LOOK = 0.2


@dataclass(frozen=True, eq=False)
class Trial:
    """One vector to be scored.

    vector: float32 [parameters], in the units of ``--bounds``
    seed: for all randomness of the trial
    """

    vector: Floats
    seed: int
    _score: list[float] = field(default_factory=list, repr=False)


class AskTell:
    """Trials of a run, for this program to score. Its methods may be called from any thread.

    ended: how the run has ended: finished, stopped, failed, or gone from the server; empty before

    >>> with AskTell("oven", "redis://localhost") as oven:
    ...     while trial := oven.ask():
    ...         oven.tell(trial, score=bake(trial.vector))
    """

    def __init__(self, run: str, redis_url: str | None = None, lease: float = 600.0) -> None:
        """Join a run.

        Args:
            run: Its name.
            redis_url: Of its server; by default RQ_REDIS_URL, then REDIS_URL.
            lease: Seconds for which a trial belongs to this program. One that is not told by
                then is asked again, here or elsewhere.

        Raises UsageError, RedisError, and NoRunError if there is no such run on the server.
        """
        url = redis_url or url_from_environment()
        if url is None:
            raise UsageError("no Redis is named: give redis_url, or set RQ_REDIS_URL")
        if not (isinstance(lease, int | float) and lease > 0):
            raise UsageError(f"lease is {short(lease)}: use a number of seconds above 0")
        self.run, self.lease = checked_run_id(str(run)), lease
        self._client, self._clocks = client_from_url(url), clocks_from_environment()
        validate_server(self._client, redacted_url(url), scripts=False)
        raw = WorkerStore(self._client, self.run, make_worker_id(platform.node())).config()
        if raw is None:
            raise NoRunError(
                f"{redacted_url(url)} has no run {run}: start it with es-master --objective "
                f"{ASKED} --parameters N --run {run}"
            )
        self.config, unreadable = load_config(raw)
        if unreadable:
            raise UsageError(unreadable)
        if self.config.objective != ASKED:
            raise UsageError(
                f"run {run} plays {self.config.problem} itself: ask needs a run with --objective "
                f"{ASKED}"
            )
        self.noise = NoiseTable.open(self.config.noise_size)
        self._changed = threading.Condition()
        #: Trials that no ask has taken yet, the asks that wait, and the lanes.
        self._offered, self._asking, self._lanes = deque[Trial](), 0, set[_Lane]()
        self._over, self._error, self.ended = False, "", ""
        #: Whether the last ask ended before a trial came: the next one finds it.
        self._polled = False

    def ask(self, wait: float | None = None) -> Trial | None:
        """The next trial; None after ``wait`` seconds without one (None: no limit), and once
        the run has ended. Raises EsQueueError if this program cannot work for the run.
        """
        if wait is not None and not (isinstance(wait, int | float) and wait >= 0):
            raise UsageError(f"wait is {short(wait)}: use a number of seconds, or None")
        until = None if wait is None else time.monotonic() + wait
        with self._changed:
            self._asking, self._polled = self._asking + 1, False
            try:
                while not (self._offered or self._over):
                    if self._is_wanted() and not any(lane.is_free for lane in self._lanes):
                        self._lanes.add(lane := _Lane(self))
                        lane.start()
                    self._changed.notify_all()
                    left = LOOK if until is None else min(LOOK, until - time.monotonic())
                    if left <= 0:
                        self._polled = True
                        return None
                    self._changed.wait(left)
                if self._error:
                    raise EsQueueError(self._error)
                return self._offered.popleft() if self._offered else None
            finally:
                self._asking -= 1

    def tell(self, trial: Trial, score: float) -> bool:
        """The larger the better. A trial whose score is not finite has failed, and is asked again
        up to twice. False if it comes too late: after the lease, or after the run has learnt from
        enough others; and for a trial that was told before.
        """
        if not isinstance(trial, Trial):
            raise UsageError(f"tell got {short(trial)}: give it a trial that ask has returned")
        try:
            number = float(score)
        except (TypeError, ValueError, OverflowError):
            raise UsageError(f"the score is {short(score)}: tell a number") from None
        with self._changed:
            waits = not trial._score and any(lane.trial is trial for lane in self._lanes)
            if waits:
                trial._score.append(number)
                self._changed.notify_all()
            return waits

    def close(self) -> None:
        """Return what was asked and not told. Afterwards ``ask`` returns None."""
        with self._changed:
            self._over = True
            lanes = [*self._lanes]
            for lane in lanes:
                lane.control.leave("the program has closed its AskTell")
            self._changed.notify_all()
        for lane in lanes:
            lane.join(self._clocks.beat_ttl)
        self._client.close()

    def __enter__(self) -> AskTell:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_wanted(self) -> bool:
        """Whether an ask waits for which no lane looks yet, or the last one was too short."""
        return max(self._asking, self._polled) > len(self._offered) + sum(
            lane.is_looking for lane in self._lanes
        )


class _Lane(threading.Thread):
    """Serves one ask at a time. It is the run's store, and the environment of its player, too.

    is_looking: whether it looks for a slot for an ask
    trial: that it waits for
    """

    def __init__(self, asks: AskTell) -> None:
        super().__init__(name="es-queue-ask", daemon=True)
        self._asks, self.control = asks, EpisodeControl()
        self.is_looking = False
        self.trial: Trial | None = None

    @property
    def is_free(self) -> bool:
        """Whether it can look for a slot at once, or soon: its trial has been told."""
        return not self.is_looking and (self.trial is None or bool(self.trial._score))

    def run(self) -> None:
        asks, changed = self._asks, self._asks._changed
        try:
            self._serve()
        except Leaving:
            pass
        except Exception as error:  # the program that asks must hear of it
            with changed:
                asks._error, asks._over = f"{type(error).__name__}: {error}", True
        finally:
            with changed:
                asks._lanes.discard(self)
                changed.notify_all()

    def _serve(self) -> None:
        asks, control = self._asks, self.control
        clocks, config = asks._clocks, asks.config
        client, own_client = clone_client(asks._client), clone_client(asks._client)
        retry = control.retry(None)
        store = _Claims(client, asks.run, make_worker_id(platform.node()), retry=retry)
        store.lane = self
        spec = describe(EnvironmentRequest.of(config))
        policy = make_policy(config, spec.observation_size, spec.action)
        player = Player(config, spec, policy, env=self, noise=asks.noise, control=control)
        about = {"backend": ASKED, "noise": asks.noise.digest, **worker_info(clocks)}
        own_store = WorkerStore(own_client, asks.run, store.worker, retry=retry)
        # A trial has a lease instead.
        unlimited = replace(config, wall_limit=max(config.wall_limit, 2 * asks.lease))
        heartbeat = Heartbeat(own_store, control, about, clocks, unlimited)
        store.arrive(about, clocks.beat_ttl)
        heartbeat.start()
        try:
            Service(store, player, clocks).run()
        finally:
            heartbeat.stop()
            store.depart()
            client.close()
            own_client.close()
            asks.ended = heartbeat.ended
            asks._over = asks._over or bool(heartbeat.ended)

    # --- its environment: a trial is one step

    def reset(self, seed: int) -> Floats:
        self._seed = seed
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> tuple[Floats, float, bool]:
        """Offer the vector, and wait for its score. Raises Leaving, also after the lease."""
        asks, changed = self._asks, self._asks._changed
        trial, until = Trial(np.array(action), self._seed), time.monotonic() + asks.lease
        with changed:
            self.trial, self.is_looking = trial, False
            asks._offered.append(trial)
            changed.notify_all()
            try:
                while not trial._score:
                    if time.monotonic() > until:
                        self.control.leave("its trial was not told within the lease")
                    self.control.begin_steps(0)
                    changed.wait(LOOK)
            finally:
                self.trial = None
                with suppress(ValueError):
                    asks._offered.remove(trial)
        if not math.isfinite(score := trial._score[0]):
            raise EpisodeFailed(f"the score that was told is {score}, not a finite number")
        return np.zeros(1, np.float32), score, True

    def close(self) -> None: ...


class _Claims(WorkerStore):
    """Claims a block only when an ask waits."""

    lane: _Lane

    def claim(self, wait: float) -> Block | None:
        lane, asks = self.lane, self.lane._asks
        with asks._changed:
            lane.is_looking = False
            if not asks._is_wanted():
                asks._changed.wait(min(wait, LOOK))
            if not asks._is_wanted() or lane.control.leave_reason:
                return None
            lane.is_looking = True
        block = super().claim(wait)
        with asks._changed:
            lane.is_looking = lane.is_looking and block is not None
        return block
