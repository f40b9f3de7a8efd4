"""The run's workers, as the master sees them each second: which are present, which have other
arithmetic, which have too little to do, and whether any can work.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from heapq import nsmallest
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from es_queue.errors import EnvironmentFailure
from es_queue.protocol.keys import Clocks
from es_queue.protocol.messages import KINDS
from es_queue.protocol.store import MasterStore
from es_queue.slots import Slots, worker_mark
from es_queue.text import sanitize
from master.display.notes import LimitedNotes
from master.status.figures import Record, busy_workers, format_idle_workers

LOGGER = logging.getLogger("es_queue.fleet")
#: Up to so many workers are read whole each second, and of more one in so many. Those that refuse
#: or have not joined yet are all read, unless there are too many of them.
MOST_READ_WHOLE, REFRESH_TURNS, MANY_NEW = 100, 10, 2000
#: Workers that are remembered after they have left, for results that they still have here.
MOST_REMEMBERED = 20_000
#: Every worker reads which workers should leave, so only a few of those with other arithmetic.
LEAVING_NAMED = 100
REFUSING_SECONDS = IDLE_SECONDS = 5.0
#: Local workers that start on a busy host, or workers that return, are there before the first; for
#: a run that starts no workers, others join before the second, or later than one would wait.
UNSERVED_SECONDS, ABSENT_SECONDS = 30.0, 10.0
#: After a pause, busy shares still include it for so long.
BUSY_SECONDS = 60.0
#: Of the reasons for which workers cannot join so many are named, each with so many hosts and
#: letters, and again after so many seconds.
REASONS_NAMED, HOSTS_NAMED, LETTERS, AGAIN_SECONDS = 3, 20, 500, 60.0
GROUPS_NAMED, LONGEST_HOST, LONGEST_NAME = 5, 60, 120

About = Mapping[str, str]
#: What else is done each second, given the workers, whether any result has ever counted, and
#: whether the run is paused; returns the workers that should leave.
Maintain = Callable[[Mapping[str, About], bool, bool], list[str]]


class Lasting:
    """Whether a condition has held for more than ``seconds`` without a break."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._since, self._is_noted = seconds, math.inf, False

    def update(self, holds: bool) -> bool:
        self._since = min(self._since, time.monotonic()) if holds else math.inf
        return self.has_lasted

    @property
    def has_lasted(self) -> bool:
        return time.monotonic() - self._since > self.seconds

    def is_news(self, holds: bool) -> bool:
        """``update``; True the first time that the condition has lasted."""
        is_first = self.update(holds) and not self._is_noted
        self._is_noted |= is_first
        return is_first


class Workers:
    """present: those that do not refuse to work, by id
    numerics: the run's first fingerprint, empty before there is one; is_uniform: whether every
    worker since had the same
    starting: workers of the master's host that are starting; 0 once any has joined, or is overdue
    """

    def __init__(
        self,
        store: MasterStore,
        clocks: Clocks,
        *,
        strict: bool = False,
        local: int = 0,
        maintain: Maintain = lambda workers, served, paused: [],
        why_absent: Callable[[], str] = lambda: "",
    ) -> None:
        """``local``: workers that this process has started."""
        self._store, self._strict, self._maintain = store, strict, maintain
        self._why_absent = why_absent
        self.present: dict[str, dict[str, str]] = {}
        self.numerics, self.is_uniform, self.starting = "", True, local
        #: What all living workers report, by id; those that were seen last, by their mark.
        self._known: dict[str, dict[str, str]] = {}
        self._seen: dict[int, tuple[str, About]] = {}
        self._turn = self._late_taken = 0
        self._late_of: dict[str, int] = {}
        self._leaving: list[str] = []
        patience = UNSERVED_SECONDS if local else ABSENT_SECONDS
        self._absent, self._unserved = Lasting(patience), Lasting(patience)
        self._refusing, self._waiting = Lasting(REFUSING_SECONDS), Lasting(IDLE_SECONDS)
        #: Sentences about refusals that are not repeated before some time.
        self._refusals, self._named, self._forget_at = LimitedNotes(LOGGER), set[str](), -math.inf
        self._quiet_until = -math.inf
        # Longer than a beat: a worker that has not returned by then is gone.
        self._return_seconds = clocks.lease + clocks.beat_ttl
        self._outages, self._count_at = 0, math.inf
        self._before_outage: dict[str, dict[str, str]] = {}

    # --- each second

    def update(self) -> None:
        """Read the living workers. What they report is read when they join and every few seconds,
        because reading thousands of workers each second takes much of the master's time; that of
        refusing and joining ones each time. Raises EnvironmentFailure if no worker can join.
        """
        self._turn = (self._turn + 1) % REFRESH_TURNS
        joined = {
            name: about
            for name, about in self._known.items()
            if about.get("numerics") and "refuses" not in about
        }
        if len(self._known) - len(joined) > MANY_NEW:
            joined = self._known
        if len(self._known) <= MOST_READ_WHOLE:
            joined = {}
        self._known = self._store.workers(
            {
                name: about
                for name, about in joined.items()
                if crc32(name.encode()) % REFRESH_TURNS != self._turn
            }
        )
        self._note(self._known)

    def _note(self, workers: dict[str, dict[str, str]]) -> None:
        self.present = {name: about for name, about in workers.items() if "refuses" not in about}
        for name, about in self.present.items():
            mark = worker_mark(name)
            self._seen.pop(mark, None)
            self._seen[mark] = name, about
            if (late := about.get("late", "0")).isdecimal():
                self._late_of[name] = int(late[:9])
        while len(self._seen) > MOST_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        if self.present:
            self._unserved.seconds = UNSERVED_SECONDS
        self._unserved.update(not self.present)
        if workers:
            self._absent, self.starting = Lasting(IDLE_SECONDS), 0
        elif self._absent.is_news(True):
            self.starting = 0
            LOGGER.warning(
                self._why_absent()
                or "no worker has joined: start one with rq worker, on the same Redis and queue"
            )
        self._note_refusals([about for about in workers.values() if "refuses" in about])
        self._note_missing(workers)
        self._note_numerics()

    def maintain(self, *, served: bool, paused: bool) -> None:
        self._leaving = self._maintain(self.present, served, paused)

    def leaving(self) -> list[str]:
        """Workers that should leave: for another run, or because --strict refuses them."""
        other = sorted(name for name, about in self.present.items() if self._is_refused(about))
        return [*self._leaving, *other[:LEAVING_NAMED]]

    def _note_refusals(self, refusing: list[dict[str, str]]) -> None:
        """Name the workers that cannot join. If no other worker joins and the environment is the
        cause, the run cannot continue.
        """
        hosts_of: dict[str, list[str]] = {}
        for about in refusing:
            reason = sanitize(about["refuses"], LETTERS)
            hosts_of.setdefault(reason, []).append(sanitize(about.get("host", "?"), LONGEST_HOST))
        groups = sorted(hosts_of.items(), key=lambda group: (-len(group[1]), group[0]))
        lines = [
            f"{len(hosts)} worker{'s' if len(hosts) > 1 else ''} on {some_of(hosts)} "
            f"cannot join: {reason}"
            for reason, hosts in groups[:REASONS_NAMED]
        ]
        if others := groups[REASONS_NAMED:]:
            rest = sum(len(hosts) for _, hosts in others)
            lines.append(f"{rest} more workers cannot join, for {len(others)} other reasons")
        if time.monotonic() >= self._forget_at:
            self._named.clear()
            self._forget_at = time.monotonic() + AGAIN_SECONDS
        for line in lines:
            if line not in self._named:
                self._named.add(line)
                self._refusals.warning(line)
        has_lasted = self._refusing.update(bool(refusing) and not self.present)
        blamed = min((why for why in hosts_of if why.startswith("EnvironmentFailure")), default="")
        if blamed and has_lasted:
            raise EnvironmentFailure(
                f"no worker can join; the one on {min(hosts_of[blamed])} reports: "
                f"{blamed.partition(': ')[2]}"
            )

    def _note_missing(self, workers: dict[str, dict[str, str]]) -> None:
        """RQ ends a plain worker that needs Redis during an outage; nothing else would report it.
        Workers are counted, not names: a restarted worker has a new name.
        """
        now, before = time.monotonic(), self._before_outage
        if self._store.outages != self._outages:
            self._outages, self._count_at = self._store.outages, now + self._return_seconds
        elif now >= self._count_at:
            self._count_at = math.inf
            gone = [
                before[name].get("host", "?")[:LONGEST_HOST] for name in before.keys() - workers
            ]
            if len(before) > len(workers):
                LOGGER.warning(
                    f"{len(before) - len(workers)} of {len(before)} workers did not return after "
                    f"the Redis outage (on {some_of(gone)}): a plain rq worker exits when it "
                    "needs Redis during an outage; start them again (systemd's Restart=always does "
                    "this), or use rq worker-pool"
                )
        for name in self._leaving:
            before.pop(name, None)
        if self._count_at == math.inf:
            self._before_outage = dict(workers)

    def _note_numerics(self) -> None:
        prints = Counter(fingerprint_of(about) for about in self.present.values())
        del prints[""]
        if prints and not self.numerics:  # the most common, of two equally common ones the lesser
            self.numerics = max(sorted(prints), key=prints.__getitem__)
        if self.is_uniform and not self._strict and prints.keys() - {self.numerics}:
            self.is_uniform = False
            LOGGER.warning(
                f"mixed fleet: the run began with fingerprint {self.numerics[:8]}, so equal "
                f"bits are not guaranteed: {format_fingerprints(self.present.values())}"
            )

    # --- questions

    @property
    def is_unserved(self) -> bool:
        """Whether no usable worker has been present for longer than one takes to come."""
        return self._unserved.has_lasted

    @property
    def is_deserted(self) -> bool:
        """Whether no worker has come to this master, and it has waited for one."""
        return self.is_unserved and not self._seen

    def live_count(self) -> int:
        return max(1, len(self.present))

    def expected_count(self) -> int:
        """The number of workers; a new master has not read it yet."""
        if not self.present:
            self.update()
        return self.live_count()

    def _find(self, mark: int) -> tuple[str, About]:
        """The id and information of the worker whose results have this mark."""
        if mark not in self._seen:
            self._note(self._store.workers())
        return self._seen.get(mark, (f"an unknown worker ({mark:08x})", {}))

    def name_of(self, mark: int) -> str:
        return self._find(mark)[0]

    def reporter_of(self, mark: int) -> str:
        """A worker over all its seats: its name and host; its id if they are unknown."""
        worker, about = self._find(mark)
        name, host = (about.get(key, "")[:LONGEST_NAME] for key in ("name", "host"))
        return f"{name or 'a worker'} on {host}" if about else worker

    def refuses(self, marks: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """bool [A]: whether --strict refuses the results with these marks."""
        each = np.unique(marks).tolist() if self._strict else []
        return np.isin(marks, [mark for mark in each if self._is_refused(self._find(mark)[1])])

    def _is_refused(self, about: About) -> bool:
        return self._strict and fingerprint_of(about) not in ("", self.numerics)

    def reported_reason(self, slots: Slots, row: int) -> str:
        """Why the row failed, as a worker has reported it."""
        about = slots.table[row]
        expected = (slots.generation, KINDS[about["kind"]], int(about["number"]))
        for report in newest_reports(self._store):
            if (report.get("generation"), report.get("kind"), report.get("slot")) == expected:
                return str(report.get("reason", ""))
        return "the reports of workers do not say why"

    def live_figures(self, slots: int | None, scale: float, paused_by: str) -> Record:
        """What people at the terminal see; notes workers that have too little to do, once per run.

        slots: training slots of the generation, None if they are unlimited, or there are none
        """
        figures: Record = {"workers": len(self.present)}
        busy = busy_workers(self.present.values())
        if paused_by:  # workers may leave or wait
            self._quiet_until = time.monotonic() + BUSY_SECONDS
            self._waiting.update(False)
            self._absent.update(False)
            figures["waiting"] = f"paused by {paused_by}"
        else:
            sentence = format_idle_workers(len(self.present), slots, busy, scale)
            if time.monotonic() >= self._quiet_until and self._waiting.is_news(bool(sentence)):
                LOGGER.warning(sentence)
            if self.starting and not self.present:
                figures["waiting"] = "local workers are starting"
        return figures if busy is None else {**figures, "busy": busy}

    def progress_fields(self) -> dict[str, str]:
        """Fields of progress; workers that join read ``numerics``."""
        busy = busy_workers(self.present.values())
        return {
            "workers": str(len(self.present)),
            "starting": str(self.starting or ""),
            "busy": "" if busy is None else f"{busy:.3f}",
            "numerics": self.numerics,
        }

    def take_late(self) -> int:
        """Blocks whose publication was closed before their results came, since the last call."""
        total = sum(self._late_of.values())
        fresh, self._late_taken = max(0, total - self._late_taken), total
        return fresh


def newest_reports(store: MasterStore) -> Iterator[dict[str, Any]]:
    """The workers' reports, newest first, without those that are no JSON object."""
    for text in reversed(store.errors()):
        with suppress(ValueError, RecursionError):
            report = json.loads(text)
            if isinstance(report, dict):
                yield report


def fingerprint_of(about: About) -> str:
    """Empty before the worker has joined."""
    return about.get("numerics", "")[:LONGEST_NAME]


def some_of(hosts: Iterable[str]) -> str:
    """The first hosts in order, and how many more."""
    names = set(hosts)
    rest = len(names) - HOSTS_NAMED
    return ", ".join(nsmallest(HOSTS_NAMED, names)) + (f" and {rest} others" if rest > 0 else "")


def format_fingerprints(workers: Iterable[About]) -> str:
    """Each fingerprint's beginning with its hosts, a few of many: those that most hosts have."""
    groups: dict[str, set[str]] = {}
    for about in workers:
        host = about.get("host", "?")[:LONGEST_HOST]
        groups.setdefault(fingerprint_of(about)[:8], set()).add(host)
    common = sorted(groups, key=lambda name: (-len(groups[name]), name))
    named = [f"{name}: {some_of(groups[name])}" for name in sorted(common[:GROUPS_NAMED])]
    rest = len(common) - len(named)
    return "; ".join(named + [f"and {rest} others"] * (rest > 0))
