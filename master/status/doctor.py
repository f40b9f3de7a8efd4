"""es-status --doctor: fifteen checks of Redis, this host and the runs, each with its fix.

It writes nothing to Redis. Environments are created in fresh processes.

Exit code: 3 if a check of Redis failed, else 5 if an environment failed, else 6 for an unknown run,
else 2 if anything else failed (this host's packages, RQ, the run and its workers), else 0;
warnings do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import redis
from rich.filesize import decimal

from es_queue import host
from es_queue.acl import DEFAULT_QUEUE
from es_queue.command_line import format_command
from es_queue.config.run_config import MAX_JSON, RunConfig
from es_queue.credentials import environment_without_redis
from es_queue.errors import (
    EXIT_DONE,
    EnvironmentFailure,
    EsQueueError,
    NoRunError,
    RedisError,
    UsageError,
)
from es_queue.files import read_file
from es_queue.protocol import keys
from es_queue.protocol.connection import (
    START_SERVER,
    explained,
    first_line,
    has_secret,
    is_local,
    is_password_set,
    unfit_reasons,
)
from es_queue.run_folder import runs_folder
from es_queue.text import sanitize, to_text
from master.display.log_view import SafeStream
from master.processes import POLL_SECONDS, Child, ProcessGroup, module_command, signal_name
from master.services.private_server import server_binary
from master.services.redis_url import network_problems
from master.status.figures import TEXT, finite_or_none, format_hosts
from master.status.snapshot import (
    DONE,
    LONGEST_NAME,
    ORPHANED,
    RedisReader,
    Run,
    idle_workers,
)
from master.status.sources import Sources, find_sources

OK, WARNING, FAILED = "ok", "warning", "failed"
SERVER_CHECKS = {"redis", "server", "memory", "writes", "connections", "open"}
UNKNOWN_RUN = "unknown run"
#: The most RQ workers and waiting jobs to read.
MOST_LISTENERS, MOST_JOBS = 1000, 500
LEAST_LEFT_BYTES, LEAST_LEFT_FRACTION = 64 * 2**20, 0.10
CONNECTIONS_PER_WORKER, LEAST_WORKERS = 6, 20
LEAST_FREE = 500e6
USUAL_ENVIRONMENTS = (RunConfig(env="CartPole-v1"), RunConfig(env="BipedalWalker-v3"))
ENVIRONMENT_SECONDS = 60.0
#: Packages whose version may change a run's numbers, or its messages in Redis.
COMPARED_PACKAGES = ("es-queue", "numpy", "gymnasium")
NAME_WIDTH, LONGEST_LINE = 12, 2000
SIGNS = {OK: ("✓", "green"), WARNING: ("▲", "yellow"), FAILED: ("✗", "bold red")}


@dataclass(frozen=True)
class Finding:
    """The outcome of a check. state: ok, warning or failed; fix: empty if none is needed.

    A line break in ``fix`` precedes each command, which gets its own uncut line.
    """

    name: str
    state: str
    text: str
    fix: str = ""


def run_doctor(given: argparse.Namespace, out: SafeStream) -> int:
    """Returns the exit code."""
    findings = []
    for found in examine(given):
        # Texts come from servers, files and users' code.
        fix = "\n".join(sanitize(part, LONGEST_LINE) for part in found.fix.split("\n"))
        finding = replace(found, text=sanitize(found.text, LONGEST_LINE), fix=fix)
        findings.append(finding)
        if not given.json:
            print_finding(finding, out)
    count = Counter(finding.state for finding in findings)
    if given.json:
        checks = [{**asdict(one), "fix": one.fix.replace("\n", " ")} for one in findings]
        summary = {"checks": checks, "failed": count[FAILED], "warnings": count[WARNING]}
        out.write_line(json.dumps(summary, allow_nan=False))
    else:
        out.write_line(
            f"{len(findings)} checks: {count[OK]} ok, {pluralize(count[WARNING], 'warning')}, "
            f"{count[FAILED]} failed"
        )
    failed = {finding.name for finding in findings if finding.state == FAILED}
    if failed & SERVER_CHECKS:
        return RedisError.exit_code
    if "environment" in failed:
        return EnvironmentFailure.exit_code
    if UNKNOWN_RUN in failed:
        return NoRunError.exit_code
    return UsageError.exit_code if failed else EXIT_DONE


def examine(given: argparse.Namespace) -> Iterator[Finding]:
    try:
        sources = find_sources(given)
        if not sources.servers:
            server_binary()
            text = "no Redis is named and no private server runs; es-master starts one per run"
            yield Finding("redis", OK, text)
    except EsQueueError as error:
        sources = Sources([], [])
        yield Finding("redis", FAILED, str(error))
    with sources:
        runs, trouble = list[Run](), None
        try:
            if given.run is not None:
                runs = [sources.find_run(given.run)]
            elif sources.servers:
                runs = [run for run in sources.list_runs() if run.leased]
        except NoRunError as error:
            trouble = Finding(UNKNOWN_RUN, FAILED, str(error), "es-status lists the runs")
        except RedisError as error:
            trouble = redis_failure(error)
        # A run's name chooses among the servers, if one of them has it.
        its_own = [run.source for run in runs if given.run is not None and not run.on_disk]
        servers = its_own or sources.servers
        for server in servers:
            for finding in check_server(server):
                yield finding
                if (finding.name, finding.state) == ("redis", FAILED):
                    servers = [one for one in servers if one is not server]
        if trouble and (trouble.name == UNKNOWN_RUN or servers):
            yield trouble
        yield from check_packages()
        yield check_box2d(host.box2d_versions())
        yield check_disks(given.run_dir or given.run_folder or runs_folder(given.runs_dir))
        if given.run is None or not its_own:
            yield from check_environments(USUAL_ENVIRONMENTS)
        for server in servers:
            if not any(run.source is server for run in runs):
                yield check_listening(server, None)
        for run in runs:
            try:
                yield from examine_run(run, is_named=given.run is not None)
            except RedisError as error:
                fix = "run the doctor as a user that can read es:* (+@read)"
                yield Finding("run", WARNING, f"unknown: {error}", fix)


def redis_failure(error: RedisError) -> Finding:
    """The sentence has its own fix: about a password, TLS, rights, or a server that is away."""
    what = str(error).removesuffix(f"; {START_SERVER}")
    return Finding("redis", FAILED, what, START_SERVER if what != str(error) else "")


# --- Redis


def check_server(server: RedisReader) -> Iterator[Finding]:
    client = server.client
    try:
        client.ping()
        began = time.perf_counter()
        client.ping()
        milliseconds = 1000 * (time.perf_counter() - began)
        yield Finding("redis", OK, f"{server.name} answers a PING in {milliseconds:,.1f} ms")
        on_socket, is_here = is_local(client)
        try:
            yield from check_information(client.info(), is_private=is_here)
        except redis.exceptions.ResponseError as error:
            text = f"unknown: {first_line(error)}"
            yield Finding("server", WARNING, text, "let an administrator grant +info")
        problems = network_problems(client, server.name)  # es-master warns about them
        for problem, fix in problems:
            yield Finding("open", WARNING, problem, fix)
        text = "only this machine reaches it" if is_here else "a password is required"
        if not problems:
            yield Finding("open", OK, f"a Unix socket: {text}" if on_socket else text)
    except (redis.exceptions.RedisError, OSError) as error:
        yield redis_failure(explained(client, server.name, error))


def check_information(information: Mapping[str, Any], is_private: bool) -> Iterator[Finding]:
    """INFO. is_private: whether only this host reaches the server."""

    def number(name: str) -> float:
        return finite_or_none(information.get(name)) or 0.0

    valkey = information.get("valkey_version")
    version = sanitize(valkey or information.get("redis_version", "unknown"), 20)
    kind = "Valkey" if valkey else "Redis"
    reasons = unfit_reasons(dict(information))
    for reason in reasons:
        what, _, fix = reason.partition(": ")
        if "noeviction" in fix:
            fix += ", as administrator:\nredis-cli CONFIG SET maxmemory-policy noeviction"
        yield Finding("server", FAILED, f"{kind} {what}", fix)
    if not reasons:
        yield Finding("server", OK, f"{kind} {version}, a single server that evicts nothing")

    used, limit = number("used_memory"), number("maxmemory")
    whole = limit or number("total_system_memory")
    left = max(0.0, whole - used)
    text = f"{decimal(int(used))} used"
    if whole > 0:
        place = "left of its limit" if limit > 0 else "left of the machine's"
        text += f", {decimal(int(left))} {place} {decimal(int(whole))}"
    if whole > 0 and left < max(LEAST_LEFT_BYTES, LEAST_LEFT_FRACTION * whole):
        fix = "raise maxmemory, or remove runs (es-master --purge RUN)"
        yield Finding("memory", WARNING, text, f"{fix}; a full server refuses writes")
    elif limit <= 0 and not is_private:
        yield Finding(
            "memory",
            WARNING,
            "no memory limit: a client that fills the memory can crash the server",
            "set maxmemory in redis.conf to at most half of what its container or machine has, "
            "with maxmemory-policy noeviction (docker/redis.conf does)",
        )
    else:
        yield Finding("memory", OK, text)

    outcomes = {
        "aof_last_write_status": "its append-only file",
        "rdb_last_bgsave_status": "a snapshot",
    }
    unwritten = [what for name, what in outcomes.items() if information.get(name, "ok") != "ok"]
    if unwritten:
        text = f"the server could not write {unwritten[0]}, and may refuse writes"
        yield Finding("writes", FAILED, text, "check the server's log and disk")
    elif number("loading"):
        text = "the server is still loading its data"
        yield Finding("writes", WARNING, text, "wait until it is ready")
    else:
        after = "after a crash of the server, a run resumes from the checkpoint in its folder"
        yield Finding("writes", OK, f"no write to its disk has failed; {after}")

    clients, most = number("connected_clients"), number("maxclients")
    room = int(max(0.0, most - clients) // CONNECTIONS_PER_WORKER)
    text = f"{clients:,.0f} of {most:,.0f}, room for about {room:,} more workers"
    if most > 0 and room < LEAST_WORKERS:
        fix = "raise maxclients in redis.conf (a worker uses five or six of them)"
        yield Finding("connections", WARNING, text, fix)
    else:
        yield Finding("connections", OK, text if most > 0 else f"{clients:,.0f} now")


# --- this host


def check_packages() -> Iterator[Finding]:
    """Whether Python and ``rq worker``, which also searches the current folder, find our packages,
    and whether those that they need are installed.
    """
    home, versions = host.source_root(), host.versions()
    for importer, more in (("Python", []), ("rq worker in this folder", [str(Path.cwd())])):
        for name in ("es_queue", "master", "workers"):
            folder = host.package_folder(name, more)
            if folder != home / name:
                text = (
                    f"the package {name!r} that {importer} finds is {folder or 'nowhere'}, not "
                    f"es-queue's in {home}"
                )
                fix = "run from another folder, or remove the other package's folder from"
                yield Finding("packages", FAILED, text, f"{fix} PYTHONPATH")
                return
    missing = [name for name in host.PACKAGES if not host.version_of(name)]
    if missing:
        text = f"missing: {', '.join(missing)} (installed: {versions})"
        fix = f"install es-queue again, or\npip install {' '.join(missing)}"
        yield Finding("packages", FAILED, text, fix)
    else:
        yield Finding("packages", OK, f"{versions}, imported from {home}")


def check_box2d(provided: str) -> Finding:
    """provided: the distributions that provide Box2D, joined by ``and``."""
    if not provided:
        text = "Box2D is missing: walkers and landers cannot be played"
        return Finding("box2d", WARNING, text, "install it with\npip install box2d")
    others = {part.split()[0] for part in provided.split(" and ")} - {"box2d"}
    if " and " not in provided:
        return Finding("box2d", OK, f"{provided} provides Box2D")
    return Finding(
        "box2d",
        WARNING,
        f"two distributions provide Box2D: {provided}",
        "keep one of them; both own the same files, so install it again:\n"
        f"pip uninstall --yes {' '.join(sorted(others))}\n"
        "pip install --force-reinstall --no-deps box2d",
    )


def check_disks(run_dir: Path) -> Finding:
    places = {"run folder": run_dir, "temporary files": Path(tempfile.gettempdir())}
    try:
        # start-up: numpy, which may be broken
        from es_queue.numerics.noise_table import default_folder

        noise = default_folder()
        places[f"noise tables in {noise}"] = noise
    except (EsQueueError, OSError, ImportError) as error:
        fix = "choose another folder for noise tables with ES_QUEUE_NOISE_DIR"
        return Finding("disk", FAILED, str(error), fix)
    free = {what: host.free_bytes(place) for what, place in places.items()}
    sizes = {what: "unknown" if count is None else decimal(count) for what, count in free.items()}
    text = f"free: {', '.join(f'{size} ({what})' for what, size in sizes.items())}"
    short = [what for what, count in free.items() if count is not None and count < LEAST_FREE]
    if not short:
        return Finding("disk", OK, text)
    fix = "a checkpoint or table that does not fit ends a run"
    return Finding("disk", WARNING, text, f"make room for {' and '.join(short)}: {fix}")


def check_environments(configs: Sequence[RunConfig]) -> Iterator[Finding]:
    """All at once, each in a fresh process that ends at the deadline, with its children."""
    with tempfile.TemporaryDirectory() as folder, ProcessGroup(grace=0.5) as group:
        for number, config in enumerate(configs):
            place = Path(folder, str(number))
            place.mkdir()
            (place / "config.json").write_text(config.to_json())
            command = partial(module_command, "master.status.environment_probe", str(place))
            environment = environment_without_redis(os.environ)
            group.start(Child(config.problem, command, place / "log", environment))
        deadline = time.monotonic() + ENVIRONMENT_SECONDS
        while any(child.process for child in group.children) and time.monotonic() < deadline:
            group.watch()
            time.sleep(POLL_SECONDS)
        findings = [check_environment(child) for child in group.children]
    yield from findings


def check_environment(child: Child) -> Finding:
    """What a probe wrote is untrusted."""
    text, code = "", child.code
    try:
        text, _, trouble = read_file(child.log.with_name("answer"), 2**14).decode().partition("\0")
    except (OSError, UnicodeDecodeError):
        trouble = f"its process ended with code {code} and no result"
        if code is None:
            trouble = f"it hangs: creating it and one step took over {ENVIRONMENT_SECONDS:g} s"
        elif code > 128:
            trouble = f"its process was ended by {signal_name(code - 128)}"
    name, trouble = sanitize(child.name, 80), sanitize(trouble)
    if not trouble:
        return Finding("environment", OK, f"{name}: {text}")
    fix = "make it work on this host, then on the workers' hosts"
    if "pip install" in trouble:
        fix = f"install it with\n{trouble[trouble.index('pip install') :]}"
    elif "cannot be imported" in trouble:
        fix = "run in the folder of its module, or put that folder on PYTHONPATH, for es-master and"
        fix += " for each rq worker"
    return Finding("environment", FAILED, f"{name}: {trouble}", fix)


# --- runs and their workers


def examine_run(run: Run, is_named: bool) -> Iterator[Finding]:
    if run.on_disk:
        yield check_run(run)
        return
    server = run.source
    if is_named:
        try:
            (settings,) = server.ask([("getrange", keys.RunKeys(run.run).config, 0, MAX_JSON)])
            yield from check_environments([RunConfig.from_json(settings or b"")])
        except UsageError as error:
            text = f"the settings of {run.run} cannot be read: {error}"
            fix = f"use the run's own release of es-queue, in its folder:\n{run.resume}"
            yield Finding("run", FAILED, text, fix)
    server.read_details(run)
    yield check_run(run)
    if not run.is_asked:
        yield check_listening(server, run)
    workers = [
        {"host": "a host", **{name: str(value) for name, value in about.items()}}
        for about in run.living
    ]
    if is_working(run) or workers:
        yield check_workers(run, workers)
    if workers:
        remark, _, fix = idle_workers(run).partition(": ")
        if remark:
            yield Finding("idle", WARNING, remark, fix)
        yield check_fleet(workers, host.versions())


def is_working(run: Run) -> bool:
    return run.leased and run.state in (keys.RUNNING, keys.PAUSED)


def check_run(run: Run) -> Finding:
    """The state as es-status shows it."""
    if run.health in (ORPHANED, keys.FAILED):
        level = FAILED if run.health == ORPHANED else WARNING
        text = "has no master" if run.health == ORPHANED else "failed"
        fix = f"fix that, then continue it with\n{run.resume}"
        why = run.health_why or "no reason recorded"
        return Finding("run", level, f"{run.run} {text}: {why}", fix)
    if run.code and run.health != DONE:
        fix = f"see its reports:\n{format_command('es-status')} {run.run} --errors"
        return Finding("run", WARNING, f"{run.run} is {run.health}: {run.health_why}", fix)
    if not run.is_over and (advice := str(run.figures.get("advice", ""))):
        what, _, fix = advice.partition(". ")
        return Finding("run", WARNING, f"{run.run}: {what}", fix)
    return Finding("run", OK, f"{run.run} is {sanitize(run.state, 40)}")


def check_listening(server: RedisReader, run: Run | None) -> Finding:
    """Whether RQ workers take the seats of the run, or of any run."""
    queue = str((run.figures.get("queue") if run is not None else "") or DEFAULT_QUEUE)
    shown = sanitize(queue, 60)
    try:
        suspended, registered, members, waiting = server.ask(
            [
                ("exists", keys.RQ_SUSPENDED),
                ("smembers", keys.RQ_WORKERS),
                ("smembers", keys.rq_workers(queue)),
                ("lrange", keys.rq_queue(queue), 0, MOST_JOBS - 1),
            ]
        )
        names = sorted(to_text(name) for name in registered or () if len(name) <= LONGEST_NAME)
        names = [name for name in names if name.startswith(keys.rq_worker(""))][:MOST_LISTENERS]
        about = server.read_hashes(names, {"hostname": TEXT, "queues": TEXT})
    except RedisError as error:
        text = f"unknown: {error}"
        return Finding("listening", WARNING, text, "run the doctor as a user that can read rq:*")
    living = {name.encode(): each for name, each in zip(names, about, strict=True) if each}
    listeners = [
        str(each.get("hostname", "a host"))
        for name, each in living.items()
        if name in (members or ())
    ]
    if suspended:
        fix = format_rq_fix("resume it with", server, "resume")
        return Finding("listening", FAILED, "RQ is suspended: no worker takes a seat", fix)
    if listeners:
        seats = [job.decode("ascii", "replace") for job in waiting or ()]
        runs = [keys.parse_seat_id(seat)[0] for seat in seats if keys.is_seat_id(seat)]
        count = len(runs) if run is None else runs.count(run.run)
        return Finding(
            "listening",
            OK,
            f"{pluralize(len(listeners), 'RQ worker')} on queue {shown} "
            f"({format_hosts(listeners)}); {pluralize(count, 'open seat')}",
        )
    if run is not None and any("refuses" not in worker for worker in run.living):
        text = f"no RQ worker listens on queue {shown}, but es-workers serve the run"
        return Finding("listening", OK, text)
    others = {name for each in living.values() for name in str(each.get("queues", "")).split(",")}
    elsewhere = sanitize(", ".join(sorted(others - {"", queue})), 60)
    aside = f" ({len(living)} listen on {elsewhere})" if elsewhere else ""
    where = "this machine" if is_local(server.client)[1] else "any host"
    state = FAILED if run is not None and is_working(run) else WARNING
    fix = format_rq_fix(f"start one on {where}:", server, "worker", queue)
    return Finding("listening", state, f"no RQ worker listens on queue {shown}{aside}", fix)


def check_workers(run: Run, workers: Sequence[Mapping[str, str]]) -> Finding:
    refusing = [about for about in workers if about.get("refuses")]
    joined = len(workers) - len(refusing)
    if refusing:
        hosts = {about["refuses"]: sanitize(about["host"], 60) for about in refusing}
        reasons = "; ".join(f"{name}: {reason}" for reason, name in list(hosts.items())[:3])
        text = f"{joined} joined, {len(refusing)} cannot ({reasons})"
        fix = "fix that on the named host, or stop its workers"
        return Finding("workers", WARNING if joined else FAILED, text, fix)
    if joined:
        hosts_of = format_hosts(about["host"] for about in workers)
        return Finding("workers", OK, f"{joined} joined ({hosts_of})")
    if run.is_asked:
        fix = f'use es_queue.AskTell("{run.run}")'
        return Finding("workers", WARNING, f"no program asks for trials of {run.run}", fix)
    fix = "see the check listening; es-status shows whether other runs have all workers"
    return Finding("workers", WARNING, f"no worker serves {run.run}", fix)


def check_fleet(workers: Sequence[Mapping[str, str]], here: str) -> Finding:
    """Whether all compute the same bits, with the same packages as here. here: this host's
    versions
    """
    kinds, others = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    ours = parse_versions(here)
    for about in workers:
        if about.get("numerics"):
            kinds[f"{about['numerics'][:8]}…"].append(about["host"])
        theirs = parse_versions(about.get("versions", ""))
        for name in COMPARED_PACKAGES:
            if theirs.get(name, ours.get(name)) != ours.get(name):
                difference = f"{name} {theirs[name]} (here {ours.get(name, 'none')})"
                others[difference].append(about["host"])
    differences = "; ".join(f"{what} on {format_hosts(on)}" for what, on in sorted(others.items()))
    if len(kinds) > 1:
        shown = "; ".join(f"{bits} on {format_hosts(on)}" for bits, on in sorted(kinds.items())[:4])
        mixed = f"mixed fleet, {len(kinds)} kinds of arithmetic: {shown}"
        fix = (
            "the run learns equally well, but cannot be repeated to the bit: use one processor "
            "type and the same packages, or move the other workers to another --queue"
        )
        return Finding("fleet", WARNING, "; ".join(filter(None, (mixed, differences))), fix)
    if differences:
        same = " ".join(f"{name}=={ours[name]}" for name in COMPARED_PACKAGES[1:] if name in ours)
        fix = "install the same release of es-queue on all hosts, and the same packages:"
        return Finding("fleet", WARNING, differences, f"{fix}\npip install {same}")
    bits = f"all workers compute the same bits ({next(iter(kinds), 'not reported yet')})"
    return Finding("fleet", OK, bits)


# --- text


def print_finding(finding: Finding, out: SafeStream) -> None:
    """A line for files and programs; on a terminal, signs and colours, and wrapped texts. Commands
    are not wrapped, so they can be copied.
    """
    fix = finding.fix.split("\n") if finding.fix else []
    if not out.is_terminal:
        advice = f"; fix: {' '.join(fix)}" if fix else ""
        out.write_line(f"{finding.state:<9}{finding.name:<{NAME_WIDTH}} {finding.text}{advice}")
        return
    # start-up: rich, which JSON does not need
    from rich.table import Table
    from rich.text import Text

    from master.display.panel import make_console

    sign, style = SIGNS[finding.state]
    head = ((f"{sign} {finding.state:<8}", style), (f"{finding.name:<{NAME_WIDTH}} ", "bold"))
    row = Table.grid()
    row.add_column(width=2 + 8 + NAME_WIDTH + 1, no_wrap=True)
    row.add_column(overflow="fold")
    text = "\n".join([finding.text, *(f"fix: {part}" for part in fix[:1])])
    row.add_row(Text.assemble(*head), Text(text))
    console = make_console(out)
    console.print(row)
    for command in fix[1:]:
        console.print(Text(f"    {command}"), soft_wrap=True)


def format_rq_fix(what: str, server: RedisReader, *words: str) -> str:
    """``what`` with the exact line for ``rq``; a URL's secrets do not belong on a command line."""
    command, first, rest = format_command("rq"), words[0], " ".join(map(quote, words[1:]))
    if is_password_set(server.client) or has_secret(server.url):
        what = f"put the whole URL into RQ_REDIS_URL, then {what}"
        return f"{what}\n{command} {first} {rest}".rstrip()
    return f"{what}\n{command} {first} --url {quote(server.name)} {rest}".rstrip()


def parse_versions(versions: str) -> dict[str, str]:
    """``numpy 2.4.6, rq 2.12`` by name."""
    return dict(re.findall(r"([a-z0-9_-]{1,40}) ([^\s,]{1,40})", versions))


def pluralize(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
