"""es-status --doctor: checks everything that a run needs, one line per check, with a fix per
problem.

It writes nothing to Redis. With a run's name, it imports the run's environment, as a worker would.

Exit code: 3 if a check of Redis failed, else 5 if an environment failed, else 2 if anything else
failed (this host's packages, RQ, the run and its workers), else 0; warnings do not count.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from es_queue.config.parsing import MAX_JSON, config_from_json
from es_queue.errors import (
    EXIT_DONE,
    DecodeError,
    EnvironmentFailure,
    EsQueueError,
    NoRunError,
    RedisError,
    UsageError,
)
from es_queue.protocol import keys
from es_queue.protocol.connection import (
    has_secret,
    is_encrypted,
    is_local,
    is_open_to_anonymous,
    url_from_environment,
    verifies_certificate,
)
from es_queue.protocol.messages import MAX_TASK, Task
from es_queue.security.acl import DEFAULT_QUEUE
from es_queue.util import host_info
from es_queue.util.run_folder import runs_folder
from master.display.log_view import SafeStream
from master.doctor import host as doctor_host
from master.doctor import rights as doctor_rights
from master.doctor import run as doctor_run
from master.doctor import server as doctor_server
from master.doctor.finding import (
    FAILED,
    OK,
    WARNING,
    Finding,
    failed,
    named,
    ok,
    print_findings,
    unknown,
)
from master.doctor.host import probe_environments
from master.doctor.look import CommandDenied, ReadOnlyClient
from master.services.private_server import server_binary
from master.status.redis_reader import START_SERVER, RedisReader
from master.status.run_folders import RunFolder

#: The most servers of ./runs to check if none is named.
MOST_SERVERS = 8
MOST_LISTENERS = 1000
SETTINGS = ("bind", "protected-mode", "save", "client-output-buffer-limit")


def run_doctor(
    given: argparse.Namespace,
    choose: Callable[[], list[RedisReader]],
    out: SafeStream,
    *,
    as_json: bool,
) -> int:
    """Returns the exit code. ``choose`` returns the servers, or raises."""
    findings = examine(given, choose, None if as_json else out)
    count = Counter(finding.state for finding in findings)
    if as_json:
        checks = [
            {**asdict(finding), "fix": finding.fix.replace("\n", " ")} for finding in findings
        ]
        summary = {"checks": checks, "failed": count[FAILED], "warnings": count[WARNING]}
        out.write_line(json.dumps(summary, allow_nan=False))
    else:
        out.write_line(
            f"{len(findings)} checks: {count[OK]} ok, {count[WARNING]} "
            f"{'warning' if count[WARNING] == 1 else 'warnings'}, {count[FAILED]} failed"
        )
    return exit_code_of(findings)


def exit_code_of(findings: Sequence[Finding]) -> int:
    failed_names = {finding.name for finding in findings if finding.state == FAILED}
    if failed_names & SERVER_CHECKS:
        return RedisError.exit_code
    if "environment" in failed_names:
        return EnvironmentFailure.exit_code
    if UNKNOWN_RUN in failed_names:
        return NoRunError.exit_code
    return UsageError.exit_code if failed_names else EXIT_DONE


UNKNOWN_RUN = "unknown run"
SERVER_CHECKS = {
    "redis",
    "server",
    "version",
    "persistence",
    "eviction",
    "role",
    "memory",
    "connections",
    "network",
    "encryption",
    "clock",
    "rights",
}


class FindingList(list[Finding]):
    """Findings in order, each printed to ``out``, if given, at once."""

    def __init__(self, out: SafeStream | None) -> None:
        super().__init__()
        self._out = out

    def add(self, *findings: Finding) -> None:
        self.extend(findings)
        if self._out is not None:
            print_findings(findings, self._out)


def examine(
    given: argparse.Namespace, choose: Callable[[], list[RedisReader]], out: SafeStream | None
) -> list[Finding]:
    notes = FindingList(out)
    servers: list[RedisReader] = []
    try:
        servers = choose()
    except EsQueueError as error:
        notes.add(failed(str(error), "").named("redis"))
    else:
        if not servers:
            notes.add(check_no_server())
    try:
        clients = [ReadOnlyClient(server) for server in servers[:MOST_SERVERS]]
        if given.run is not None and len(clients) > 1:
            clients = [client for client in clients if has_run(client, given.run)] or clients
        reachable = [client for client in clients if examine_server(client, given, notes)]
        examine_host(notes)
        examine_runs(reachable, given, notes)
    finally:
        for server in servers:
            server.close()
    return notes


@named("redis")
def check_no_server() -> Finding:
    """No run has begun, or all have ended: this is not an error."""
    try:
        server_binary()
    except RedisError as error:
        return failed(str(error), "")
    return ok("no Redis is named and no private server runs; es-master starts one for each run")


def has_run(client: ReadOnlyClient, run: str) -> bool:
    try:
        return client.server.find_run(run) is not None
    except RedisError:
        return False


# --- Redis


def examine_server(client: ReadOnlyClient, given: argparse.Namespace, notes: FindingList) -> bool:
    """Returns whether it responds."""
    try:
        notes.add(*doctor_server.check_server(read_server(client)))
        notes.add(check_rights(client, given.run))
    except (RedisError, CommandDenied) as error:
        # The sentence has its own fix: about a password, TLS, rights, or a server that is away.
        text = str(error).removesuffix(f"; {START_SERVER}")
        fix = START_SERVER if text != str(error) else ""
        notes.add(failed(text, fix).named("redis"))
        return False
    return True


def read_server(client: ReadOnlyClient) -> doctor_server.ServerState:
    denied: dict[str, str] = {}

    def ask(name: str, question: Callable[[], Any], otherwise: Any) -> Any:
        try:
            answer = question()
        except CommandDenied as why:
            denied[name] = str(why)
            return otherwise
        return otherwise if answer is None else answer

    ping = client.ping()
    return doctor_server.ServerState(
        client.name,
        ping,
        information=ask("info", lambda: client.ask(lambda connection: connection.info()), {}),
        settings=ask(
            "config",
            lambda: doctor_server.parse_settings(
                client.ask(lambda connection: [connection.config_get(name) for name in SETTINGS])
            ),
            {},
        ),
        ahead=ask("time", client.clock_offset, None),
        strangers=None if client.is_on_socket else is_open_to_anonymous(client.redis),
        on_socket=client.is_on_socket,
        on_loopback=is_local(client.redis)[1],
        encrypted=is_encrypted(client.redis),
        verified=verifies_certificate(client.redis),
        denied=denied,
    )


def check_rights(client: ReadOnlyClient, run: str | None) -> Finding:
    seen = None
    with suppress(RedisError):
        seen = client.server.find_run(run) if run is not None else None
    queue = (seen.progress.get("queue") if seen is not None else None) or DEFAULT_QUEUE
    try:
        as_master, as_worker = (
            client.denied_commands(commands(run or "doctor", queue))
            for commands in (doctor_rights.master_commands, doctor_rights.worker_commands)
        )
    except CommandDenied as why:
        return doctor_rights.unknown_rights(why)
    return doctor_rights.check_rights(client.user, as_master, as_worker, queue)


# --- this host


def examine_host(notes: FindingList) -> None:
    notes.add(
        doctor_host.check_packages(
            doctor_host.package_folders(), doctor_host.package_folders(more=[str(Path.cwd())])
        )
    )
    notes.add(doctor_host.check_versions(host_info.versions()))
    notes.add(
        doctor_host.check_box2d(host_info.box2d_versions()),
        doctor_host.check_envpool(host_info.version_of("envpool")),
    )


def examine_disks(run_dir: Path, notes: FindingList) -> Path | None:
    folder, trouble = doctor_host.noise_folder()
    if folder is None:
        notes.add(failed(trouble, "choose another folder with ES_QUEUE_NOISE_DIR").named("noise"))
    notes.add(doctor_host.check_disks(doctor_host.free_space(run_dir, folder)))
    return folder


# --- the run


def examine_runs(
    clients: Sequence[ReadOnlyClient], given: argparse.Namespace, notes: FindingList
) -> None:
    """The named run if a server knows it; else what is known without one."""
    runs = runs_folder(given.runs_dir)
    folder = examine_disks(given.run_dir or given.run_folder or runs, notes)
    client = next(
        (client for client in clients if given.run is not None and has_run(client, given.run)), None
    )
    if client is None:
        notes.add(
            *doctor_host.check_environments(probe_environments(doctor_host.USUAL_ENVIRONMENTS))
        )
        if given.run_folder is not None:
            notes.add(doctor_run.check_state(RunFolder(given.run_folder).summarize(given.run)))
        elif given.run is not None:
            places = f" at {', '.join(client.name for client in clients)}" if clients else ""
            notes.add(no_run(f"{given.run}{places}"))
        for other in clients:
            examine_queue(other, given, DEFAULT_QUEUE, needed=False, notes=notes)
        return
    try:
        examine_run(client, given, folder, notes)
    except RedisError as error:
        fix = "run the doctor as a user that can read es:* (+@read)"
        notes.add(unknown(error, fix).named("run"))


def no_run(which: str) -> Finding:
    fix = "es-status lists the runs"
    return failed(f"there is no run {which}", fix).named(UNKNOWN_RUN)


def examine_run(
    client: ReadOnlyClient, given: argparse.Namespace, folder: Path | None, notes: FindingList
) -> None:
    run_keys = keys.RunKeys(given.run)
    server = client.server
    seen = server.find_run(given.run)
    if seen is None:  # it has gone in the meantime
        notes.add(no_run(given.run))
        return
    digest = noise_digest(server.read_string(run_keys.task, MAX_TASK))
    try:
        config = config_from_json(server.read_string(run_keys.config, MAX_JSON) or b"")
    except UsageError as error:
        text = f"the settings of {given.run} cannot be read: {error}"
        fix = f"use the run's own release of es-queue, in its folder:\n{seen.resume}"
        notes.add(failed(text, fix).named("config"))
    else:
        notes.add(*doctor_host.check_environments(probe_environments([config])))
        if folder is not None and config.noise_size:
            table = doctor_host.read_noise_state(config.noise_size, folder)
            notes.add(doctor_host.check_noise(table, digest))
    check_input = doctor_run.RunCheckInput(
        seen, server.read_details(given.run).workers, host_info.versions(), digest
    )
    examine_queue(
        client, given, seen.progress.get("queue") or DEFAULT_QUEUE, check_input.needs_workers, notes
    )
    notes.add(*doctor_run.check_run(check_input))


def noise_digest(task: bytes | None) -> str | None:
    try:
        return None if task is None else Task.decode(task).noise
    except DecodeError:
        return None


def examine_queue(
    client: ReadOnlyClient, given: argparse.Namespace, queue: str, needed: bool, notes: FindingList
) -> None:
    try:
        state = read_queue(client, given, queue)
    except CommandDenied as why:
        notes.add(
            unknown(f"{why} (rq:*)", "run the doctor as a user that can read rq:*").named(
                "listening"
            )
        )
    except (RedisError, ImportError) as error:
        notes.add(unknown(error, "fix that first, then run the doctor again").named("listening"))
    else:
        notes.add(doctor_run.check_suspended(state), doctor_run.check_listening(state, needed))


def read_queue(
    client: ReadOnlyClient, given: argparse.Namespace, queue: str
) -> doctor_run.QueueState:
    # optional: rq, because the doctor must work even if rq cannot be imported
    from es_queue.protocol.seats import is_seat_of, waiting_seat_ids

    prefix = keys.rq_worker("")
    registered, listening = (
        [key for key in client.members(members, MOST_LISTENERS) if key.startswith(prefix)]
        for members in (keys.RQ_WORKERS, keys.rq_workers(queue))
    )
    hashes = client.hashes(registered, doctor_run.LISTENER_FIELDS)
    living = dict(zip(registered, hashes, strict=True))
    waiting = client.ask(lambda connection: list(waiting_seat_ids(connection, queue))) or ()
    seats = [seat for seat in waiting if given.run is None or is_seat_of(seat, given.run)]
    url = given.redis_url or (None if given.run_dir else url_from_environment())
    return doctor_run.QueueState(
        queue,
        client.name,
        client.has_password or (url is not None and has_secret(url)),
        listeners=[living[key] for key in listening if living.get(key)],
        elsewhere=[about.get("queues", "") for about in living.values() if about],
        suspended=bool(client.ask(lambda connection: connection.exists(keys.RQ_SUSPENDED))),
        seats=len(seats),
        local=is_local(client.redis)[1],
    )
