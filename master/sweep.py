"""``es-master --seeds``: one es-master per seed, over one server and one group of workers.

A study's folder has ``seeds.json`` (settings, outcome of each run, figures over all) and a run's
folder per seed. Each run is a child of this process, which reads its events as lines of JSON.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from es_queue.command_line import format_command
from es_queue.config.recipes import resolve
from es_queue.config.run_config import RunConfig
from es_queue.config.scaling import scaled
from es_queue.config.settings import NONE, format_flag
from es_queue.credentials import environment_without_redis
from es_queue.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    DecodeError,
    RedisError,
    RunBusyError,
    RunFolderError,
    UsageError,
)
from es_queue.files import FORMAT, parse_json, read_file
from es_queue.numerics.statistics import aggregate
from es_queue.protocol import keys
from es_queue.protocol.connection import ANY_ERROR, redacted_url
from es_queue.protocol.keys import clocks_from_environment
from es_queue.run_folder import STUDY_FILE, NamedRun
from es_queue.strategies.auto import with_chosen_strategy
from es_queue.text import sanitize
from es_queue.user_code import allowing, loose_modules, named_modules, require_trust
from master.display.log_view import SafeStream, format_generation, format_json_line, format_labelled
from master.display.notes import TERMINAL, NoteHandler
from master.loop.checkpoint import Checkpoints, write_atomically
from master.processes import Child, ProcessGroup, StopSignals, module_command, signal_name
from master.run.launch import (
    Launch,
    derive_run_id,
    existing_run,
    new_run,
    prepare_folder,
    remove_new_folder,
)
from master.run.manifest import repro_command
from master.run.setup import prepare_run
from master.services.leader import FolderLock
from master.services.local_services import LocalServices, run_words, start_lines
from master.status.figures import (
    finite_or_none,
    format_compact,
    format_mean_std,
    format_score,
    format_whole,
)

LONGEST_RUN_ID, TIME_AND_LETTERS = 40, len("-1120-143259-4f01ab")
LOOK_SECONDS, CHECK_SECONDS = 0.1, 1.0
#: What a failing study grants its runs to leave their checkpoints.
LEAVE_SECONDS = 20.0
#: Waits before an es-master that was killed is started again; the longest outlasts the lease of its
#: predecessor.
BACKOFF_SECONDS = (1.0, 4.0, 12.0)
#: A seed has a line at most so often, and in a file one for each evaluation.
LINE_SECONDS = 10.0
MOST_SEEDS, MOST_BYTES = 100, 2**24
WAITING, RUNNING, FINISHED, STOPPED, FAILED = "waiting", "running", "finished", "stopped", "failed"
STATES = (WAITING, RUNNING, FINISHED, STOPPED, FAILED)
#: How a run's note begins that names its own command to resume.
STOPPED_NOTE = "stopped at generation"
#: What seeds.json has of each seed.
STORED = {
    "seed": int,
    "state": str,
    "begun": bool,
    "code": int | None,
    "why": str,
    "summary": dict | None,
}


@dataclass(eq=False)
class Seed:
    """One seed's run. begun: whether it was ever started; code: exit code of its es-master; why:
    its last error; summary: its last event; shown: when it last had a line
    """

    seed: int
    state: str = WAITING
    begun: bool = False
    code: int | None = None
    why: str = ""
    summary: dict[str, Any] | None = None
    shown: float = -LINE_SECONDS

    @property
    def evaluation(self) -> float | None:
        """None unless the run has finished."""
        mean = finite_or_none((self.summary or {}).get("eval_mean"))
        return mean if self.state == FINISHED else None

    def outcome(self) -> str:
        summary = self.summary or {}
        if self.state == FAILED:
            return f"failed with exit code {self.code}{f': {self.why}' if self.why else ''}"
        if not self.begun:
            return "not begun"
        if self.state != FINISHED:
            last = finite_or_none(summary.get("generation"))
            at = "" if last is None else f" at generation {format_whole(last)}"
            return f"{self.state}{at}, no final evaluation"
        steps = f"{format_compact(summary.get('env_steps'))} steps"
        if self.evaluation is None:
            return f"finished after {steps} without a final evaluation"
        mean = format_mean_std(self.evaluation, summary.get("eval_std"))
        return f"{mean}, min {format_score(summary.get('eval_min'))}, after {steps}"


def run_sweep(values: dict[str, Any], launch: Launch) -> int:
    """Run ``launch.seeds`` under the settings ``values``; returns the exit code: 0 if all have
    finished, 130 if a person stopped them, else the code of the first that failed.

    Raises EsQueueError before the first run is started.
    """
    study = Study(launch)
    config = resolve(values, launch.inherited, launch.recipe != NONE)
    room = LONGEST_RUN_ID - len(f"-s{max(launch.seeds)}")
    study.run = launch.run or derive_run_id(config.problem[: room - TIME_AND_LETTERS])
    if len(study.run) > room:
        raise UsageError(
            f"--run is {study.run!r}, but -s{max(launch.seeds)} is added to it and an id has at "
            f"most {LONGEST_RUN_ID}: use at most {room} letters"
        )
    place = new_run(config.problem, replace(launch, run=study.run))
    study.config = study.prepare(config)
    study.seeds = [Seed(seed) for seed in launch.seeds]
    study.warm_start = None if launch.warm_start is None else str(launch.warm_start.absolute())
    is_new = not place.folder.exists()
    try:
        return study.lead(place)
    except BaseException:
        if is_new and not study.is_begun:
            remove_new_folder(place.folder)
        raise


def resume_sweep(launch: Launch, changes: dict[str, Any]) -> int:
    """Continue the study ``launch.resume`` as ``run_sweep`` does. Seeds that have finished run
    again only with ``changes``, which can extend their budget.
    """
    study = Study(launch)
    place = existing_run(launch.resume or "", launch)
    study.load(place.folder)
    if study.run != place.run:
        raise UsageError(
            f"{place.folder} holds the study {study.run}, not {place.run}: continue it with "
            f"--resume {study.run}, or give the --run-dir of {place.run}"
        )
    study.changes |= changes
    study.config = replace(study.config, **study.changes)
    require_trust(str(place.folder), named_modules(study.config), launch.trust, launch.own_modules)
    for seed in study.seeds:
        if changes or seed.state != FINISHED:
            seed.state, seed.code, seed.why = WAITING, None, ""
    study.prepare(study.config)
    return study.lead(place)


class Study:
    """changes: settings that resumes have changed; target: the return that counts as solved;
    is_begun: an end must be an orderly one; way_back: the command that continues it
    """

    run: str
    config: RunConfig
    seeds: list[Seed]
    warm_start: str | None = None
    target: float | None = None

    def __init__(self, launch: Launch) -> None:
        self.launch, self.is_begun, self.way_back = launch, False, ""
        self.state, self.changes = RUNNING, dict[str, Any]()
        self.out = SafeStream(sys.stdout)
        self.stop = StopSignals()
        self.stop.install(lambda: self.is_begun, lambda: self.way_back)

    @property
    def trust(self) -> str:
        """The flag that a command needs for the run's own modules."""
        return " --trust" if named_modules(self.config) else ""

    def prepare(self, config: RunConfig) -> RunConfig:
        """The settings with their strategy chosen. Raises EsQueueError if no run can begin with
        them.
        """
        with allowing(named_modules(config)):
            setup = prepare_run(replace(config, seed=0), self.launch.noise_dir)
        self.target = setup.learner.target
        return with_chosen_strategy(config, setup.policy.size)

    def to_dict(self) -> dict[str, Any]:
        """The event ``study`` of ``--json``, and half of seeds.json."""
        means = [seed.evaluation for seed in self.seeds]
        figures, target = asdict(aggregate(means)), self.target
        return {
            "run": self.run,
            "state": self.state,
            "seeds": [seed.seed for seed in self.seeds],
            "runs_counted": figures.pop("count"),
            "runs_total": figures.pop("total"),
            "target": target,
            "reached_target": None
            if target is None
            else sum(mean is not None and mean >= target for mean in means),
            **figures,
            "interval_level": 0.95,
            "runs": [
                {
                    "run": f"{self.run}-s{seed.seed}",
                    **{name: getattr(seed, name) for name in STORED},
                    "eval_mean": seed.evaluation,
                }
                for seed in self.seeds
            ],
        }

    def save(self) -> None:
        """Raises RunFolderError."""
        settings = {name: value for name, value in self.config.to_dict().items() if name != "seed"}
        about = {"format": FORMAT, **self.to_dict(), "settings": settings}
        about |= {"changes": self.changes, "warm_start": self.warm_start}
        data = json.dumps(about, indent=2, allow_nan=False).encode()
        write_atomically(self.folder / STUDY_FILE, data)

    def load(self, folder: Path) -> None:
        """Raises RunFolderError."""
        path = folder / STUDY_FILE
        try:
            about = parse_json(read_file(path, MOST_BYTES), MOST_BYTES)
            runs, settings, self.warm_start = about["runs"], about["settings"], about["warm_start"]
            if not (
                about["format"] == FORMAT
                and isinstance(self.warm_start, str | None)
                and all(isinstance(one[name], STORED[name]) for one in runs for name in STORED)
                and all(one["state"] in STATES and one["seed"] is not True for one in runs)
                and all(0 <= one["seed"] < 2**63 for one in runs)
                and 0 < len({one["seed"] for one in runs}) == len(runs) <= MOST_SEEDS
            ):
                raise ValueError("a field is invalid")
            self.run = keys.checked_run_id(about["run"])
            self.config = RunConfig.of(settings, str(path))
            changed = RunConfig.of({**settings, **about["changes"]}, str(path))
            self.changes = {name: getattr(changed, name) for name in about["changes"]}
            self.seeds = [Seed(**{name: one[name] for name in STORED}) for one in runs]
            for seed in self.seeds:
                seed.why = sanitize(seed.why)
        except OSError as error:
            raise RunFolderError(f"{path} cannot be read: {error.strerror}") from None
        except (DecodeError, ValueError, TypeError, KeyError, UsageError) as error:
            raise RunFolderError(
                f"{path} was changed or damaged ({type(error).__name__}: "
                f"{str(error)[:200]}); restore it from a copy, or start again"
            ) from None

    def lead(self, place: NamedRun) -> int:
        """Run what has not finished."""
        launch, self.folder = self.launch, place.folder
        words = run_words(place, launch.redis_url, launch.redis_password_file)
        self.way_back = f"{format_command('es-master')} --resume {words}{self.trust}"
        prepare_folder(place.folder, launch.shared)
        self.lock = lock = FolderLock(place, launch.redis_url or "", clocks_from_environment())
        lock.take(leased=False)
        lock.write()
        self.services = LocalServices(launch)
        failure = EXIT_DONE
        try:
            with (
                NoteHandler(lambda text: print(text, file=sys.stderr, flush=True), TERMINAL),
                NoteHandler(self.note),
                allowing(named_modules(self.config)),
            ):
                if any(seed.state == WAITING for seed in self.seeds):
                    self.begin(place)
                    with ProcessGroup(LEAVE_SECONDS) as runs:
                        failure = self.watch(runs)
                states = {seed.state for seed in self.seeds}
                failed = FAILED in states and not self.stop.requested
                self.state = FINISHED if states == {FINISHED} else FAILED if failed else STOPPED
                self.save()
                lock.mark_ended()
                self.emit({"event": "study", **self.to_dict()}, *self.format_result())
                if self.state != FINISHED:
                    self.note(f"continue with: {self.way_back}")
        finally:
            self.services.stop()
            lock.release()
        if failed:
            return failure
        return EXIT_DONE if {seed.code for seed in self.seeds} <= {EXIT_DONE} else EXIT_INTERRUPTED

    def begin(self, place: NamedRun) -> None:
        """Start the private server, if any, and the workers. Raises RedisError, RunFolderError."""
        launch, services, config = self.launch, self.services, self.config
        self.url, self.client = services.connect(self.folder)
        services.start_workers(self.folder / "logs", self.url)
        self.save()
        if not launch.quiet:
            about = {
                "redis": redacted_url(self.url),
                "folder": str(self.folder),
                **start_lines(
                    self.url,
                    launch.queue,
                    place,
                    services.server,
                    loose_modules(config),
                    launch.redis_password_file,
                ),
            }
            what = (
                f"{sanitize(config.problem)}, {config.strategy} with a {config.policy_name} policy,"
                f" population {scaled(config).population}, {format_count(len(self.seeds), 'seed')}"
            )
            numbers = [seed.seed for seed in self.seeds]
            event = {"event": "study", "run": self.run, "state": self.state, "seeds": numbers}
            self.emit(event | about, *format_labelled(f"study {self.run}", what, about))
        for text in launch.notes:
            self.note(text)
        if len(self.seeds) == 1 and 1 < (number := self.seeds[0].seed) < 100:
            self.note(
                f"this is one run, with seed {number}: --seeds 1-{number} trains {number} runs"
            )
        self.is_begun = True

    def watch(self, runs: ProcessGroup) -> int:
        """Until all have ended; returns the exit code of the first that failed, else 0.

        There are no more runs at a time than workers: one without would only wait, and its
        --max-seconds would run out.
        """
        children = {seed: self.make_child(seed) for seed in self.seeds}
        failure, next_check, places, is_stopping = EXIT_DONE, 0.0, 1, False
        while True:
            if self.stop.requested and not is_stopping:
                is_stopping = True
                runs.terminate()
            if time.monotonic() >= next_check:
                self.services.restart_ended()
                self.lock.beat()
                places = max(1, self.services.count, self.count_workers())
                next_check = time.monotonic() + CHECK_SECONDS
            active = sum(not child.is_over for child in runs.children)
            waiting = [seed for seed in self.seeds if seed.state == WAITING]
            for seed in () if self.stop.requested else waiting[: max(0, places - active)]:
                children[seed].log.unlink(missing_ok=True)
                runs.start(children[seed])
                seed.begun, seed.state = True, RUNNING
                self.save()
            for seed, child in children.items():
                news = runs.look(child)
                self.read_events(seed, child.lines())
                if news and child.due is not None:
                    self.note(news, seed)
                elif seed.state == RUNNING and child.is_over:
                    self.judge_end(seed, child)
                    failure = failure or (seed.state == FAILED and (seed.code or 1)) or EXIT_DONE
                    self.save()
            if all(child.is_over for child in runs.children) and (
                self.stop.requested or not waiting
            ):
                return failure
            time.sleep(LOOK_SECONDS)

    def make_child(self, seed: Seed) -> Child:
        launch = self.launch
        run, folder = f"{self.run}-s{seed.seed}", self.folder / f"s{seed.seed}"
        words = ["--json", "--workers", "0", "--queue", launch.queue, "--run-dir", str(folder)]
        # The study has warned about a server that others can reach.
        words += ["--insecure"] * (launch.redis_url is not None) + ["--shared"] * launch.shared
        words += ["--track", ",".join(launch.track)] if launch.track else []
        words += [word for hook in launch.hook for word in ("--hook", hook)]
        words += ["--noise-dir", str(launch.noise_dir)] if launch.noise_dir else []

        def command() -> list[str]:
            if seed.begun and self.has_checkpoint(folder, run):
                changes = [f"{format_flag(name)}={value}" for name, value in self.changes.items()]
                return module_command("master.cli.main", *words, "--resume", run, *changes)
            if seed.begun:
                (folder / "config.json").unlink(missing_ok=True)  # it had no checkpoint
            start = None if self.warm_start is None else Path(self.warm_start)
            config = replace(self.config, seed=seed.seed)
            more = shlex.split(repro_command(config, start, with_recipe=False))[1:]
            return module_command("master.cli.main", *words, "--run", run, *more)

        def comes_back(code: int) -> bool:
            """It was killed, or a killed one still holds the lease, or Redis is away."""
            again = code in (RunBusyError.exit_code, RedisError.exit_code) or code > 128
            return again and code != EXIT_INTERRUPTED and not self.stop.requested

        return Child(
            "its es-master",
            command,
            self.folder / "logs" / f"s{seed.seed}.err",
            environment={**environment_without_redis(os.environ), "RQ_REDIS_URL": self.url},
            pipes=True,
            backoff=BACKOFF_SECONDS,
            comes_back=comes_back,
        )

    def has_checkpoint(self, folder: Path, run: str) -> bool:
        """Also if Redis is away: an es-master that resumes waits for it."""
        with suppress(ANY_ERROR):
            return Checkpoints(folder).read_newest() is not None or bool(
                self.client.exists(keys.RunKeys(run).checkpoint)
            )
        return True

    def count_workers(self) -> int:
        with suppress(ANY_ERROR):
            return int(self.client.scard(keys.rq_workers(self.launch.queue)))
        return 0

    def read_events(self, seed: Seed, lines: list[str]) -> None:
        """What a run's es-master has printed: lines of JSON, among an environment's own words."""
        is_text = not self.launch.quiet and not self.launch.json
        for line in lines:
            try:
                event = json.loads(line)
                kind = event["event"]
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
            if kind == "note":
                text = str(event.get("text"))
                # The study names the command that resumes all.
                if not (self.stop.requested and text.startswith(STOPPED_NOTE)):
                    self.note(text, seed)
            elif kind == "summary":
                seed.summary = {name: value for name, value in event.items() if name != "event"}
                if is_text:
                    ended = replace(seed, state=str(event.get("state")))
                    self.note(f"{ended.state}: {ended.outcome()}", seed)
            elif kind == "generation" and is_text:
                is_evaluated = finite_or_none(event.get("eval_mean")) is not None
                is_due = time.monotonic() - seed.shown >= LINE_SECONDS
                if is_due or (is_evaluated and not self.out.is_terminal):
                    seed.shown = time.monotonic()
                    self.note(format_generation(event, self.config), seed)
            if self.launch.json and (
                kind == "summary" or (kind != "note" and not self.launch.quiet)
            ):
                self.out.write_line(format_json_line({**event, "seed": seed.seed}))

    def judge_end(self, seed: Seed, child: Child) -> None:
        """The state of a run whose es-master has ended for good."""
        seed.code, state = child.code or 0, (seed.summary or {}).get("state")
        was_killed = seed.code > 128
        if seed.code == EXIT_DONE and state in (FINISHED, STOPPED):
            seed.state = state
        elif seed.code == EXIT_INTERRUPTED or (was_killed and self.stop.requested):
            seed.state = STOPPED
        else:
            killed = f"its es-master was killed by {signal_name(seed.code - 128)}"
            last = (child.last_lines() or [killed if was_killed else ""])[-1]
            seed.state, seed.why = FAILED, sanitize(last.removeprefix("es-master: "))
            self.note(seed.outcome(), seed)

    # --- what people read

    def note(self, text: str, seed: Seed | None = None) -> None:
        text, number = sanitize(text, 1000), None if seed is None else seed.seed
        line = text if number is None else f"seed {number}: {text}"
        self.emit({"event": "note", "text": text, "seed": number}, line)

    def emit(self, event: Mapping[str, Any], *lines: str) -> None:
        """The event for programs, or the lines for people."""
        for line in [json.dumps(event, allow_nan=False)] if self.launch.json else lines:
            self.out.write_line(line)

    def format_result(self) -> list[str]:
        """Each seed, then figures over them, and over how many."""
        about, seeds = self.to_dict(), self.seeds
        runs = format_count(len(seeds), "run")
        width = max(len(str(seed.seed)) for seed in seeds)
        finished = sum(seed.state == FINISHED for seed in seeds)
        lines = [f"study {self.run} {self.state}: {finished} of {runs} finished"]
        for seed in seeds:
            lines.append(f"  seed {seed.seed:<{width}}  {sanitize(seed.outcome())}")
            if digest := (seed.summary or {}).get("digest"):
                lines.append(f"  {'':<{width + 5}}  digest {sanitize(digest, 40)}")
        counted = about["runs_counted"]
        if not counted:
            return [*lines, "  no run has a final evaluation, so there is no figure to quote"]
        rest = f"{counted} of {runs}: the others are missing, not counted as 0"
        lines.append(f"  final evaluations of {runs if counted == len(seeds) else rest}")
        for label in ("IQM", "mean", "median", "worst"):
            line = f"  {label:<8}{format_score(about[label.lower()])}"
            if between := about.get(f"{label.lower()}_interval"):
                line += f", 95 % interval {' to '.join(map(format_score, between))}"
            lines.append(line)
        if about["iqm_interval"] is None:
            lines.append("  no interval: fewer than 3 runs show nothing about others")
        if self.target is not None:
            reached = f"{about['reached_target']} of {runs}"
            lines.append(f"  {'target':<8}{format_score(self.target)} reached by {reached}")
        best = max(seeds, key=lambda one: -math.inf if one.evaluation is None else one.evaluation)
        if file := (best.summary or {}).get("best_checkpoint"):
            player = format_command("es-play")
            lines.append(f"  play it {player} {sanitize(file, 4096)}{self.trust}")
        return lines


def format_count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
