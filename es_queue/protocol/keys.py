"""Every Redis key of es-queue: name, type, content, lifetime. The only place with a key string.

| key | type | content | lifetime |
|---|---|---|---|
| es:runs | zset | run ids, scored by start time | none; each master drops ids without a config |
| es:<run>:config | string | the RunConfig as indented JSON | run |
| es:<run>:iteration | string | the open generation, decimal | run |
| es:<run>:progress | hash | state, publication, generation, | run |
| | | return_mean … as plain text; open: | |
| | | older publications that still count | |
| | | (--schedule async) | |
| es:<run>:history | stream | one entry per generation, with all its figures | run |
| es:<run>:parameters:<p> | string | raw little-endian float32 | until <p> closes |
| es:<run>:task | string | msgpack header of the open publication | run |
| es:<run>:todo | list | blocks not yet claimed: "<p> <kind> | run |
| | | <start> <stop>", rows of the table | |
| es:<run>:claims:<worker> | list | blocks that the worker holds | until it leaves |
| es:<run>:results:<p>:<n> | string | results in order of arrival: records | until <p> closes |
| | | of a fixed size, part n | |
| es:<run>:moments:<p>:<n> | string | moments of their sampled episodes | until <p> closes |
| es:<run>:bell | list | an entry when results have come | run |
| es:<run>:workers | set | ids of all workers that have joined | run |
| es:<run>:worker:<worker> | hash | host, pid, back end, numerics, block, steps per second | beat |
| es:<run>:refused | hash | reason -> count | run |
| es:<run>:errors | list | reports of workers as JSON, newest last | run |
| es:<run>:epoch | string | fencing token "<n>-<nonce>" | run |
| es:<run>:master | string | the lease: which master leads the run | lease |
| es:<run>:checkpoint | string | the .npz that a resume reads | run |
| es:<run>:commands | list | requests from other terminals, as JSON | run |
| es:<run>:seatno | string | counter of opened seats | run |

"run": refreshed to 30 days by every publish, set to 24 hours when the run finishes.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, fields

from es_queue.errors import UsageError

RUNS = "es:runs"
#: States of a run, in its progress.
RUNNING, PAUSED, STOPPING, STOPPED = "running", "paused", "stopping", "stopped"
FINISHED, FAILED = "finished", "failed"
#: A run in one of these states continues, and needs a master.
ACTIVE_STATES = (RUNNING, PAUSED, STOPPING)
RUN_ID = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,40}")
SEAT_ID = re.compile(
    r"(?P<run>es-[A-Za-z0-9_-]{1,40}|es_-[A-Za-z0-9_-]{1,80})"
    r"-(?P<nonce>[0-9a-f]{6})-(?P<number>[0-9]{1,12})"
)

#: Why a worker leaves a run for another one.
GIVE_WAY = "another run needs workers"

RUN_SECONDS = 30 * 24 * 3600
FINISHED_SECONDS = 24 * 3600

#: Suffixes of the keys that live as long as the run, with their types; expiry is refreshed on all
#: of them together.
RUN_LIFETIME_KEYS = {
    "config": b"string",
    "iteration": b"string",
    "progress": b"hash",
    "history": b"stream",
    "task": b"string",
    "todo": b"list",
    "workers": b"set",
    "refused": b"hash",
    "errors": b"list",
    "checkpoint": b"string",
    "commands": b"list",
    "seatno": b"string",
    "bell": b"list",
}


def config_of(run: bytes) -> bytes:
    """The key of the configuration of any entry in the list of runs."""
    return b"es:%s:config" % run


def checked_run_id(run: str) -> str:
    """``run`` itself when it is a run id. Raises UsageError."""
    if not RUN_ID.fullmatch(run):
        raise UsageError(
            f"run is {run!r}, but a name has 1 to 40 letters, digits, '-', '_' and '.', "
            "with no dot at the beginning"
        )
    return run


@dataclass(frozen=True)
class RunKeys:
    run: str

    def __post_init__(self) -> None:
        checked_run_id(self.run)

    @property
    def prefix(self) -> str:
        return f"es:{self.run}:"

    def __getattr__(self, suffix: str) -> str:
        """``keys.todo`` is ``es:<run>:todo``, for keys that contain only the run's name."""
        if suffix in RUN_LIFETIME_KEYS or suffix in ("epoch", "master"):
            return f"{self.prefix}{suffix}"
        raise AttributeError(f"no key of a run is called {suffix!r}")

    def lasting_keys(self) -> list[str]:
        return [f"{self.prefix}{suffix}" for suffix in (*RUN_LIFETIME_KEYS, "epoch")]

    def parameters(self, publication: str) -> str:
        return f"{self.prefix}parameters:{publication}"

    def results(self, publication: str, part: int | str = 0) -> str:
        return f"{self.prefix}results:{publication}:{part}"

    def moments(self, publication: str, part: int | str = 0) -> str:
        return f"{self.prefix}moments:{publication}:{part}"

    def claims(self, worker: str) -> str:
        return f"{self.prefix}claims:{worker}"

    def worker(self, worker: str) -> str:
        return f"{self.prefix}worker:{worker}"


class _AnyRun(RunKeys):
    """Patterns in place of keys, for the rights of Redis users."""

    def __post_init__(self) -> None:
        """Skips the check, because a star is not a run's id."""


ANY_RUN = _AnyRun("*")
ANY_KEY = ANY_RUN.prefix.removesuffix("*:") + "*"


def seat_id(run: str, nonce: str, number: int) -> str:
    """The id of an RQ job that is a seat; it is the seat's only argument."""
    return f"{_run_prefix(run)}-{nonce}-{number}"


def _run_prefix(run: str) -> str:
    """The run's part of a seat's id. RQ allows no dot, so ``_d`` replaces a dot, and ``__`` an
    underscore.
    """
    return "es_-" + run.replace("_", "__").replace(".", "_d") if "." in run else f"es-{run}"


def parse_seat_id(text: str) -> tuple[str, str]:
    """(run, nonce) of a seat's id. Raises UsageError for any other id."""
    match = SEAT_ID.fullmatch(text)
    kind, _, run = ("" if match is None else match["run"]).partition("-")
    if kind == "es_":
        run = re.sub("__|_d", lambda pair: "_" if pair[0] == "__" else ".", run)
    if match is None or not RUN_ID.fullmatch(run) or _run_prefix(run) != match["run"]:
        raise UsageError("this job is not a seat of an es-queue run")
    return run, match["nonce"]


def is_seat_id(text: str) -> bool:
    with suppress(UsageError):
        return bool(parse_seat_id(text))
    return False


# RQ's own keys that seats and masters look at; a master clears what they hold of its run's
# abandoned seats.
RQ_ANY_KEY = "rq:*"
RQ_SUSPENDED = "rq:suspended"
RQ_WORKERS = "rq:workers"
RQ_QUEUES = "rq:queues"
RQ_GROUPS = "rq:groups"
#: Of a worker, a queue, a job, or a queue and a job.
rq_worker = "rq:worker:{}".format
rq_workers = "rq:workers:{}".format
rq_pubsub = "rq:pubsub:{}".format
rq_wip = "rq:wip:{}".format
rq_queue = "rq:queue:{}".format
rq_failed = "rq:failed:{}".format
rq_finished = "rq:finished:{}".format
rq_job = "rq:job:{}".format
rq_dependencies = "rq:job::{}:dependencies".format  # two colons: RQ's own way
rq_results = "rq:results:{}".format
rq_intermediate = "rq:queue:{}:intermediate".format
rq_first_seen = "rq:queue:{}:intermediate:first_seen:{}".format
rq_execution = "rq:execution:{}".format  # <job>:<execution>, as the registry of begun jobs has it
rq_executions = "rq:executions:{}".format
rq_cleaning = "rq:clean_registries:{}".format


VARIABLE = "ES_QUEUE_CLOCKS"


@dataclass(frozen=True)
class Clocks:
    """Every time constant of the protocol, in seconds. Blocking calls are shorter than 5 s.

    grace: from the end of a dead master's lease to that of its private server, local workers and
    seats
    silence: that a run's first episodes may take before es-master names --step-limit
    """

    lease: float = 10.0
    renew: float = 1.0
    beat_ttl: float = 5.0
    beat: float = 1.0
    leave_poll: float = 0.2
    claim_wait: float = 0.25
    collect_wait: float = 1.0
    reconcile: float = 1.0
    overdue: float = 1.0
    seat_lease: float = 600.0
    seat_margin: float = 60.0
    grace: float = 60.0
    silence: float = 60.0


def clocks_from_environment() -> Clocks:
    """The clocks, changed by ES_QUEUE_CLOCKS (JSON, seconds by field name). Raises UsageError."""
    text = os.environ.get(VARIABLE)
    if not text:
        return Clocks()
    try:
        changes = {name: float(value) for name, value in json.loads(text).items()}
        if min(changes.values(), default=1.0) <= 0:
            raise ValueError
        return Clocks(**changes)
    except (ValueError, TypeError, AttributeError):
        names = ", ".join(field.name for field in fields(Clocks))
        raise UsageError(f"{VARIABLE} is not JSON of seconds above 0 by name ({names})") from None
