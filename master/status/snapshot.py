"""What runs look like from outside: Redis and run folders, read once, as plain records.

``RedisReader`` and ``RunFolder`` make a Run; terminal, JSON, page, metrics and doctor render it.
Nothing is written. A value that is missing, too long, or of another type counts as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import redis

from es_queue.command_line import format_command
from es_queue.config.run_config import ASKED, every_setting, users_of
from es_queue.config.settings import NONE
from es_queue.errors import RedisError
from es_queue.files import read_end, read_file
from es_queue.protocol.connection import (
    MISTYPED_RUNS,
    OUTAGE_ERRORS,
    client_from_url,
    explained,
    redacted_url,
)
from es_queue.protocol.keys import (
    ACTIVE_STATES,
    FAILED,
    FINISHED,
    PAUSED,
    RQ_SUSPENDED,
    RUN_ID,
    RUNNING,
    RUNS,
    STOPPED,
    STOPPING,
    RunKeys,
)
from es_queue.run_folder import (
    CHECKPOINT_NAME,
    ERROR_REPORTS_FILE,
    FAILURE_FILE,
    LEADER_FILE,
    NamedRun,
    find_run,
    read_stored_name,
)
from es_queue.text import sanitize, to_text
from master.services.leader import leader_of
from master.status.curve import MOST_LINES, Curve, file_stamp, modification_time
from master.status.figures import (
    PROGRESS,
    TEXT,
    WORKER_FIGURES,
    Record,
    Value,
    finite_or_none,
    format_duration,
    format_idle_workers,
    parse_number,
)
from master.storage.metrics_files import METRICS, parse_json_lines, read_json_lines

ORPHANED, HEALTHY, STALLED, DONE = "orphaned", "healthy", "stalled", "done"
UNREACHABLE = "unreachable"
#: What es-status RUN ends with.
EXIT_CODES = {HEALTHY: 0, UNREACHABLE: 3, DONE: 10, STALLED: 11, ORPHANED: 12, FAILED: 13}
#: A run in which nothing counted for so long, and for so many usual generations, is stalled.
STALLED_SECONDS, STALLED_GENERATIONS = 60.0, 10.0
#: More of anything than this is not shown; nothing that es-queue writes comes near.
MOST_RUNS, MOST_WORKERS, MOST_REASONS, MOST_REPORTS, MOST_SETTINGS = 200, 1000, 50, 20, 300
LONGEST_VALUE, LONGEST_NAME, LONGEST_CONFIG = 1000, 200, 2**20
LONGEST_REPORT, LONGEST_TRACE, MOST_REPORT_BYTES = 2**16, 100, 2**22
#: Bytes of the settings in a run's folder, and of the end of metrics.jsonl for a list of runs.
MOST_SETTINGS_BYTES, END_BYTES = 2**16, 2**20
BUDGETS = {"generations": "generation", "max_steps": "env_steps", "max_seconds": "seconds"}

WORKER = {name: unit for name, (unit, _) in WORKER_FIGURES.items()}
REPORT_FIELDS = ("time", "worker", "environment", "seed", "kind", "slot", "generation", "reason")
# Another attempt cannot succeed either: the whole look at the server fails.
FATAL_ERRORS = (
    *OUTAGE_ERRORS,
    redis.exceptions.AuthenticationError,
    redis.exceptions.NoPermissionError,
)


@dataclass
class Run:
    """A run, as ``es-status --json`` prints it. Its figures, by their names in FIGURES, are fields
    of the same JSON object. All texts are safe for a terminal.
    """

    run: Annotated[str, "its name"]
    redis: Annotated[str, "its server without the password, or its folder"]
    started: Annotated[float | None, "Unix time of its first start"] = None
    leased: Annotated[bool, "whether a master leads it"] = False
    on_disk: Annotated[bool, "whether only its folder could be read"] = False
    master: Annotated[str | None, "host and process of the master"] = None
    resume: Annotated[str, "the command that continues it"] = ""
    purge: Annotated[str, "the command that removes it"] = ""
    state: Annotated[str, "as below"] = "unknown"
    stored_state: Annotated[Value, "the state in Redis or in the folder"] = None
    health: Annotated[str, "healthy, stalled, orphaned, unreachable, failed or done"] = HEALTHY
    health_why: Annotated[str, "the reason, or a remark"] = ""
    # only of a run that is asked for
    living: Annotated[list[Record], "its workers, as below"] = field(default_factory=list)
    ever: Annotated[int, "workers that have ever joined"] = 0
    refused: Annotated[dict[str, int], "refused results by reason"] = field(default_factory=dict)
    errors: Annotated[int, "reports of failed episodes"] = 0
    requests: Annotated[int, "requests that the master has not answered yet"] = 0
    budget: Annotated[dict[str, Any], "limit, spent and left of each budget"] = field(
        default_factory=dict
    )
    evaluations: Annotated[
        list[Record], "generation and eval_mean of each; of many, a sample or means of neighbours"
    ] = field(default_factory=list)
    # not in the JSON of es-status
    figures: Record = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    is_configured: bool = True
    is_detailed: bool = False
    source: Any = None  # its RedisReader or RunFolder
    folder: NamedRun | None = None  # if it is known
    is_suspended: bool = False  # whether RQ's workers take no jobs
    unreachable: str = ""  # why its server could not be asked whether a master leads it

    @property
    def code(self) -> int:
        return EXIT_CODES[self.health]

    @property
    def is_over(self) -> bool:
        return self.state in (FINISHED, STOPPED, FAILED)

    @property
    def is_asked(self) -> bool:
        """Whether other programs score its vectors, so that no worker serves it."""
        return self.figures.get("env") == ASKED

    def number(self, name: str) -> float | None:
        return finite_or_none(self.figures.get(name))

    def to_json(self) -> dict[str, Any]:
        names = [one.name for one in fields(Run)]
        end = names.index("figures" if self.is_detailed else "living")
        own = {name: getattr(self, name) for name in names[:end]}
        return {"run": self.run, **self.figures, **own}


def clean(values: Mapping[str, object], units: Mapping[str, str]) -> Record:
    """The short values of these names: texts that are safe for a terminal, numbers, or None for
    what should be a number.
    """
    found: Record = {}
    for name, unit in units.items():
        value = values.get(name)
        value = to_text(value) if isinstance(value, bytes) else value
        if value in (None, "") or (isinstance(value, str) and len(value) > LONGEST_VALUE):
            continue
        if unit != TEXT:
            found[name] = parse_number(value)
        elif isinstance(value, str):
            found[name] = sanitize(value)
    return found


# --- health


def judge(run: Run, curve: Curve | None = None) -> Run:
    """Fill in what follows from the rest: state, budget, health, and evaluations if the curve was
    read. Ages are differences on the master's own clock.
    """
    run.stored_state = run.figures.get("state")
    run.state = str(run.figures.get("state", "unknown"))
    if run.is_over or run.on_disk:
        for name in ("stage", "workers", "busy", "starting", "eta"):  # as it was when it ended
            run.figures.pop(name, None)
    if run.state in ACTIVE_STATES and not run.leased:
        run.state = "unknown" if run.unreachable else ORPHANED
    for name, figure in BUDGETS.items():
        limit, used = finite_or_none(run.config.get(name)) or 0.0, run.number(figure) or 0.0
        if limit > 0:
            run.budget[name] = {"limit": limit, "spent": used, "left": max(0.0, limit - used)}
    usual = run.number("seconds_wait")
    if curve is not None:
        usual = usual if curve.usual_wait is None else curve.usual_wait
        run.evaluations = [
            {"generation": int(number), "eval_mean": mean}
            for number, mean in curve.evaluation.points("generation")
        ]
    run.health, run.health_why = _health(run, usual)
    return run


def _health(run: Run, usual: float | None) -> tuple[str, str]:
    """The health and its reason. usual: seconds that a generation usually waits for its results."""
    why = str(run.figures.get("why", ""))
    if run.is_over:
        return FAILED if run.state == FAILED else DONE, why
    if run.state == "unknown" and run.unreachable:
        return UNREACHABLE, run.unreachable
    if run.state == ORPHANED:
        gone = "no master holds its lease: its master has ended, or cannot reach Redis"
        return ORPHANED, "its master ended without stopping the run" if run.on_disk else gone
    if not run.leased and run.is_configured:
        return ORPHANED, "its master has ended before the first generation"
    if not run.leased:
        return DONE, "its keys have expired"
    if run.state == PAUSED:
        who = run.figures.get("paused_by")
        return HEALTHY, f"paused by {who}" if who else ""
    if run.stored_state is not None and run.state not in (RUNNING, STOPPING):
        strange = f"its state is {sanitize(run.state, 40)}, which no master writes"
        return STALLED, f"{strange}: see es-status --keys"
    # A reason for missing results is reported at once, and is a stall if it lasts.
    updated, answered = run.number("updated"), run.number("answered_at")
    age = 0.0 if updated is None or answered is None else max(0.0, updated - answered)
    cause = no_workers(run)
    patience = 0.0 if cause else STALLED_GENERATIONS * (usual or 0.0)
    if age <= max(STALLED_SECONDS, patience):
        return HEALTHY, cause or idle_workers(run) or str(run.figures.get("advice", ""))
    since = f"no result counted for {format_duration(age)}"
    if cause:
        return STALLED, f"{since}: {cause}"
    if usual is None:
        return STALLED, since
    wait = format_duration(usual) if usual >= 1 else "less than a second"
    return STALLED, f"{since}, though a generation usually waits {wait}"


def idle_workers(run: Run) -> str:
    """A remark if workers have too little work, else empty."""
    names = ("workers", "training_slots", "busy", "scale")
    workers, slots, busy, scale = map(run.number, names)
    return format_idle_workers(workers or 0, slots, busy, max(1.0, scale or 1.0))


def no_workers(run: Run) -> str:
    """Why no results can arrive; empty while a usable worker is present."""
    refusing = [worker for worker in run.living if "refuses" in worker]
    if len(refusing) < len(run.living) or (not run.living and (run.number("workers") or 0) > 0):
        return ""
    if refusing:
        all_of = f"all {len(refusing)} workers refuse"
        what = all_of if len(refusing) > 1 else "the only worker refuses"
        host = sanitize(refusing[0].get("host", "one"), 60)
        return f"{what}; {host} reports: {refusing[0]['refuses']}"
    if run.number("workers") is None:  # its master has not looked yet
        return ""
    if run.number("starting"):
        return "local workers are starting"
    if run.is_asked:
        return f'no program asks for trials; use es_queue.AskTell("{run.run}")'
    if run.is_suspended:
        return "RQ is suspended, so no rq worker takes a seat; rq resume ends that"
    queue = sanitize(run.figures.get("queue") or "default", 60)
    return f"no worker has joined; start rq worker on the same Redis, queue {queue}"


def commands(word: str) -> dict[str, Any]:
    """The commands that continue and remove the run of this word."""
    command = format_command("es-master")
    return {"resume": f"{command} --resume {word}", "purge": f"{command} --purge {word}"}


# --- Redis


class RedisReader:
    """One server, read by read-only commands.

    url_flag: the flag by which es-master finds it again; folders: those of runs that remember it.
    Every method raises RedisError in one sentence, which never contains the password.
    """

    def __init__(self, url: str, url_flag: str = "", is_private: bool = False) -> None:
        self.client: Any = client_from_url(url)
        self.url, self.name, self.is_private = url, redacted_url(url), is_private
        self.folders: list[Path] = []
        self._url_flag = url_flag

    def list_runs(self) -> list[Run]:
        """The newest runs, newest first."""
        listed, kind = self.ask([("zrevrange", RUNS, 0, MOST_RUNS - 1, True), ("type", RUNS)])
        if kind not in (None, b"zset", b"none"):
            raise RedisError(f"Redis at {self.name} {MISTYPED_RUNS}")
        started = {to_text(member): finite_or_none(score) for member, score in listed or ()}
        return self._read({run: at for run, at in started.items() if RUN_ID.fullmatch(run)})

    def find_run(self, run: str) -> Run | None:
        """One run, listed or not; None if the server does not know it."""
        (started,) = self.ask([("zscore", RUNS, run)])
        (found,) = self._read({run: finite_or_none(started)})
        return found if found.stored_state or len(found.figures) > 1 or found.started else None

    def _read(self, started: Mapping[str, float | None]) -> list[Run]:
        keys = [RunKeys(run) for run in started]
        holders = self.ask(("getrange", one.master, 0, LONGEST_NAME - 1) for one in keys)
        configured = self.ask(("exists", one.config) for one in keys)
        progress = self.read_hashes([one.progress for one in keys], PROGRESS)
        folders = {member.run: member for path in self.folders for member in find_run(path).members}
        runs = []
        for (run, at), holder, is_configured, figures in zip(
            started.items(), holders, configured, progress, strict=True
        ):
            folder = folders.get(run)
            if self.is_private and folder:  # its server is as young as this session
                at = first_start(folder.folder) or at
            master = sanitize(to_text(holder or b"").rpartition(" ")[0], 100)
            found = Run(
                *(run, sanitize(self.name), at, bool(holder)),
                master=master or None,
                **commands(f"{folder.word if folder else run}{self._url_flag}"),
                figures=figures,
                is_configured=bool(is_configured),
                source=self,
                folder=folder,
            )
            runs.append(judge(found))
        return runs

    def read_details(self, run: Run, curve: Curve | None = None) -> Run:
        """The run with its details, and with its evaluations if there is a curve."""
        keys, run.is_detailed = RunKeys(run.run), True
        if curve is not None:
            # A quarter of the time; a folder of a named server's run may be older than the run.
            path = run.folder.folder / METRICS if run.folder and self.is_private else None
            if path is not None and path.is_file():
                curve.read_file(path)
            else:
                curve.read_redis(self.ask, run.run)
        known, errors, refused, requests, config = self.ask(
            [
                ("smembers", keys.workers),
                ("llen", keys.errors),
                ("hgetall", keys.refused),
                ("llen", keys.commands),
                ("getrange", keys.config, 0, LONGEST_CONFIG),
            ]
        )
        with suppress(RedisError):  # some users may read no key of RQ
            (run.is_suspended,) = self.ask([("exists", RQ_SUSPENDED)])
        ids = sorted(name for name in map(to_text, known or ()) if len(name) <= LONGEST_NAME)
        shown = [keys.worker(one) for one in ids[:MOST_WORKERS]]
        lives = self.ask(("pttl", key) for key in shown)
        for one, about, left in zip(ids, self.read_hashes(shown, WORKER), lives, strict=False):
            if about:
                lasts, left = finite_or_none(about.get("beat_ttl")), -1 if left is None else left
                silence = None if lasts is None or left < 0 else max(0.0, lasts - left / 1000)
                about["seen"] = None if silence is None else round(silence, 3)
                run.living.append({"worker": sanitize(one), **about})
        run.ever, run.errors, run.requests = len(known or ()), errors or 0, requests or 0
        run.refused = {
            sanitize(to_text(reason), 100): int(number)
            for reason, count in islice((refused or {}).items(), MOST_REASONS)
            if len(count) <= LONGEST_NAME and (number := finite_or_none(to_text(count))) is not None
        }
        run.config = parse_object(config or b"") if len(config or b"") <= LONGEST_CONFIG else {}
        return judge(run, curve)

    def read_reports(self, run: str) -> list[bytes]:
        """The newest reports of its workers, newest last."""
        (entries,) = self.ask([("lrange", RunKeys(run).errors, -MOST_REPORTS, -1)])
        return list(entries or ())

    def close(self) -> None:
        self.client.close()

    def read_hashes(self, keys: Sequence[str], units: Mapping[str, str]) -> list[Record]:
        """The short values of these fields, as ``clean`` returns them, of each hash."""
        answers = self.ask(("hmget", key, list(units)) for key in keys)
        return [clean(dict(zip(units, values or (), strict=False)), units) for values in answers]

    def ask(self, questions: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Replies to commands of redis-py, in order; None if a key has another type."""
        pipeline = self.client.pipeline(transaction=False)
        for command, *arguments in questions:
            getattr(pipeline, command)(*arguments)
        try:
            answers = pipeline.execute(raise_on_error=False)
        except (redis.exceptions.RedisError, OSError) as error:
            raise explained(self.client, self.name, error) from None
        for answer in answers:
            if isinstance(answer, FATAL_ERRORS):
                raise explained(self.client, self.name, answer)
            if isinstance(answer, Exception) and "unknown command" in str(answer):
                raise RedisError(
                    f"{self.name} does not know a command of Redis; if it is a Sentinel, give the "
                    "URL of the server that it watches"
                )
        return [None if isinstance(answer, Exception) else answer for answer in answers]


# --- folders


class RunFolder:
    """The folder of a run whose server has ended, does not answer, or does not know the run.

    run: its stored id, else the folder's name; empty if neither is valid
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.config = folder, read_settings(folder / "config.json")
        self.folder_name = folder.name if RUN_ID.fullmatch(folder.name) else ""
        self._named, self._leader = read_stored_name(folder), leader_of(NamedRun("", folder))
        self.run = self._named or self.folder_name
        self._started, self._figures = first_start(folder), self._read_figures()

    def can_be_run(self, run: str) -> bool:
        """Whether the folder can be that run's: a folder of another name can, unless its summary
        names another run.
        """
        return bool(self.config) and run in (self._named or run, self._named)

    def summarize(self, run: str = "", silent: str = "") -> Run:
        """The run, from the folder, under the given id if any. silent: its server, if that does not
        answer
        """
        run, leader = run or self.run, self._leader
        where, why = "its server has ended", ""
        if leader is not None and not leader.ended and not (leader.url or leader.is_here):
            where, why = f"its server is on {leader.host}", f"{leader}: look there"
        elif silent:
            where = why = f"{silent} does not answer"
        elif leader is not None and leader.url and not leader.is_trusted:
            where = why = f"{leader.server} was not asked: give --redis-url"
        elif leader is not None and leader.url:
            where = f"{leader.server} has no such run"
        found = Run(
            *(run, sanitize(f"{self.folder} ({where})"), self._started),
            on_disk=True,
            **commands(NamedRun(self._named or run, self.folder).word),
            figures=dict(self._figures),
            config=self.config,
            unreachable=sanitize(why, 300),
            source=self,
            folder=NamedRun(run, self.folder),
        )
        return judge(found)

    def read_details(self, run: Run, curve: Curve | None = None) -> Run:
        if curve is not None:
            curve.read_file(self.folder / METRICS)
        run.errors, run.is_detailed = len(self._report_lines()), True
        return judge(run, curve)

    def read_reports(self, run: str) -> list[bytes]:
        return self._report_lines()[-MOST_REPORTS:]

    def _report_lines(self) -> list[bytes]:
        """The workers' reports that were kept when the run ended, newest last."""
        try:
            return read_end(self.folder / ERROR_REPORTS_FILE, MOST_REPORT_BYTES).splitlines()
        except OSError:
            return []

    def _read_figures(self) -> Record:
        """As Redis would hold them: settings, the last generation's record, then the summary."""
        summary = clean(read_object(self.folder / "summary.json"), PROGRESS)
        is_finished = summary.get("state") == FINISHED
        last, evaluated = dict[str, Any](), dict[str, Any]()
        with suppress(OSError):
            for record in read_json_lines(self.folder / METRICS, MOST_LINES, END_BYTES):
                last = clean(record, PROGRESS)
                if last.get("eval_mean") is not None:
                    evaluated = {name: last.get(name) for name in ("eval_mean", "eval_info")}
        env = self.config.get("env") or self.config.get("objective")
        known = clean({**self.config, "env": env}, {"env": TEXT, "strategy": TEXT})
        for more in (evaluated, last, summary if is_finished else {}):
            known |= {name: value for name, value in more.items() if value is not None}
        recorded = modification_time(self.folder / METRICS)
        if (failure := self.folder / FAILURE_FILE).is_file():
            known |= {"why": "", **clean(read_object(failure), {"why": TEXT}), "state": FAILED}
        elif not is_finished:
            known["state"] = RUNNING
            if self._leader is not None and self._leader.ended:
                # A master that ends in order saves the open generation.
                names = (path.name for path in (self.folder / "checkpoints").glob("*.npz"))
                saved = [int(match[1]) for match in map(CHECKPOINT_NAME.fullmatch, names) if match]
                closed = finite_or_none(last.get("generation")) or 0
                known |= {"state": STOPPED, "generation": max([int(closed), *saved])}
        return known if recorded is None else {**known, "updated": recorded}


def first_start(folder: Path) -> float | None:
    """When the run's first master began; its settings are written by each."""
    try:
        first = read_object(folder / "run.json")["sittings"][0]["time"]
        return datetime.fromisoformat(first).timestamp()
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return modification_time(folder / "config.json")


def newest_folders(folders: Iterable[Path]) -> list[RunFolder]:
    """Folders with a configuration, newest first. Their content is cached while their files are
    unchanged: a list that is redrawn each second would otherwise read megabytes.
    """
    newest = sorted(folders, key=lambda one: -(modification_time(one / "config.json") or 0.0))
    files = ("config.json", "summary.json", FAILURE_FILE, METRICS, LEADER_FILE)
    found = [
        _read_folder(folder, *(file_stamp(folder / name) for name in files))
        for folder in newest[:MOST_RUNS]
    ]
    return [folder for folder in found if folder.config]


@lru_cache(maxsize=MOST_RUNS)
def _read_folder(folder: Path, *_: object) -> RunFolder:
    return RunFolder(folder)


def read_object(path: Path, most: int = LONGEST_CONFIG) -> dict[str, Any]:
    """Empty for anything but a JSON object of plausible size."""
    try:
        return parse_object(read_file(path, most))
    except OSError:
        return {}


def parse_object(data: bytes) -> dict[str, Any]:
    """Empty for anything but a JSON object."""
    return next(parse_json_lines([data]), {})


# --- settings


def read_settings(path: Path) -> dict[str, Any]:
    """The short values of a run's config.json."""
    settings = read_object(path, MOST_SETTINGS_BYTES).items()
    short = ((name, value) for name, value in settings if len(str(value)) <= LONGEST_VALUE)
    return dict(islice(short, MOST_SETTINGS))


def written_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """The settings in words, of those that its strategy and its policy use."""
    parts = {str(config.get("strategy")), str(config.get("policy"))}
    is_own = any(":" in part for part in parts)  # a user's class, which is not imported

    def write(name: str, value: Any) -> str:
        if is_default(name, value):
            return every_setting()[name].shown()
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, list):
            return ", ".join(map(str, value)) or NONE
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    return {
        sanitize(name, 200): sanitize(write(name, value), LONGEST_NAME)
        for name, value in config.items()
        if is_own or not users_of(name) or parts & {*users_of(name)}
    }


def is_default(name: str, value: object) -> bool:
    """value: as JSON has it"""
    setting = every_setting().get(name)
    default = setting and (
        list(setting.default) if isinstance(setting.default, tuple) else setting.default
    )
    return setting is not None and (value or None) == (default or None)


# --- reports of failed episodes


def read_reports(run: Run) -> list[dict[str, Any]]:
    """Newest first."""
    return [parse_report(data) for data in reversed(run.source.read_reports(run.run))]


def parse_report(data: bytes) -> dict[str, Any]:
    """A report's fields, or ``trouble`` if it has none."""
    if len(data) > LONGEST_REPORT:
        size = f"{len(data):,} bytes is larger than {LONGEST_REPORT:,}"
        return {"trouble": f"a report of {size}: not shown"}
    found = parse_object(data)
    if not found:
        return {"trouble": f"a report that is not a JSON object: {sanitize(to_text(data), 200)}"}
    report: dict[str, Any] = {}
    for name in REPORT_FIELDS:
        if name in found:
            number, value = parse_number(found[name]), found[name]
            is_text = isinstance(value, str) or number is None
            report[name] = None if value is None else sanitize(value) if is_text else number
    if isinstance(found.get("trace"), str):
        report["trace"] = [sanitize(line) for line in found["trace"].splitlines()[-LONGEST_TRACE:]]
    return report
