"""es-status --doctor: is everything here that a run needs? A line a check, and what to do where one is not well.

It writes nothing to Redis. With a run's name its environment is imported here, as a worker would import it.

Exit code: 3 when a check of Redis failed, else 5 when an environment failed, else 2 when anything else failed
(this host's packages, RQ, the run and its workers), else 0; warnings do not count.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from es_queue import host
from es_queue.errors import EXIT_DONE, DecodeError, EnvironmentFailure, EsQueueError, RedisError, UsageError
from es_queue.protocol import keys
from es_queue.protocol.connection import holds_secret, url_from_environment
from es_queue.protocol.messages import MAX_TASK, Task
from es_queue.settings import MAX_JSON, config_from_json
from master.console import SafeStream
from master.doctor import host as doctor_host
from master.doctor import rights as doctor_rights
from master.doctor import run as doctor_run
from master.doctor import server as doctor_server
from master.doctor.environment import Wanted, try_out
from master.doctor.finding import FAILED, OK, WARNING, Finding, failed, unknown
from master.doctor.look import Denied, Look
from master.doctor.show import show_findings
from master.status.observe import Server

#: Servers of ./runs that are looked at when none is named.
MOST_SERVERS = 8
MOST_LISTENERS = 1000
SETTINGS = ("bind", "protected-mode", "save", "client-output-buffer-limit")
DEFAULT_QUEUE = "default"
NO_SERVER = "no Redis is named and no private server runs in ./runs"
NAME_ONE = "give --redis-url or --run-dir, or set RQ_REDIS_URL"


def doctor(given: argparse.Namespace, choose: Callable[[], list[Server]], out: SafeStream, *, as_json: bool) -> int:
    """Run all checks and print them; returns the exit code. ``choose`` gives the servers, or raises."""
    findings = examine(given, choose, lambda one: None if as_json else show_findings([one], out))
    count = {state: sum(one.state == state for one in findings) for state in (OK, WARNING, FAILED)}
    if as_json:
        checks = [{"name": one.name, "state": one.state, "text": one.text, "fix": one.fix.replace("\n", " ")} for one in findings]
        out.line(json.dumps({"checks": checks, "failed": count[FAILED], "warnings": count[WARNING]}, allow_nan=False))
    else:
        out.line(f"{len(findings)} checks: {count[OK]} ok, {count[WARNING]} {'warning' if count[WARNING] == 1 else 'warnings'}, {count[FAILED]} failed")
    return exit_code(findings)


def exit_code(findings: Sequence[Finding]) -> int:
    """As the module's first words say."""
    wrong = {one.name for one in findings if one.state == FAILED}
    if wrong & SERVER_CHECKS:
        return RedisError.exit_code
    if "environment" in wrong:
        return EnvironmentFailure.exit_code
    return UsageError.exit_code if wrong else EXIT_DONE


SERVER_CHECKS = {"redis", "server", "version", "persistence", "eviction", "role", "memory", "connections", "network", "encryption", "clock", "rights"}


class Notes(list[Finding]):
    """Findings in order, each shown as soon as it is there."""

    def __init__(self, show: Callable[[Finding], None]) -> None:
        super().__init__()
        self._show = show

    def add(self, *findings: Finding) -> None:
        for one in findings:
            self.append(one)
            self._show(one)


def examine(given: argparse.Namespace, choose: Callable[[], list[Server]], show: Callable[[Finding], None] = lambda _: None) -> list[Finding]:
    """All findings: of Redis, of this host, of the run and its workers."""
    notes = Notes(show)
    servers: list[Server] = []
    try:
        servers = choose()
    except EsQueueError as error:
        notes.add(failed("redis", str(error), NAME_ONE))
    else:
        if not servers:
            notes.add(failed("redis", NO_SERVER, NAME_ONE))
    try:
        looks = [Look(server) for server in servers[:MOST_SERVERS]]
        if given.run is not None and len(looks) > 1:
            looks = [look for look in looks if knows(look, given.run)] or looks
        answering = [look for look in looks if examine_server(look, given, notes)]
        examine_host(notes)
        examine_runs(answering, given, notes)
    finally:
        for server in servers:
            server.close()
    return notes


def knows(look: Look, run: str) -> bool:
    try:
        return look.server.find(run) is not None
    except RedisError:
        return False


# --- Redis


def examine_server(look: Look, given: argparse.Namespace, notes: Notes) -> bool:
    """Whether the server answers; the checks of it."""
    try:
        notes.add(*doctor_server.check_server(looked_at(look)))
        notes.add(rights(look, given.run or "doctor"))
    except (RedisError, Denied) as error:
        notes.add(failed("redis", str(error), "start it, or correct RQ_REDIS_URL or --redis-url"))
        return False
    return True


def looked_at(look: Look) -> doctor_server.ServerLook:
    denied: dict[str, str] = {}

    def ask(name: str, question: Callable[[], Any], otherwise: Any) -> Any:
        try:
            found = question()
        except Denied as why:
            denied[name] = str(why)
            return otherwise
        return otherwise if found is None else found

    ping = look.ping()
    return doctor_server.ServerLook(
        look.name, ping,
        information=ask("info", lambda: look.ask(lambda client: client.info()), {}),
        settings=ask("config", lambda: doctor_server.settings_of(look.ask(lambda client: [client.config_get(one) for one in SETTINGS])), {}),
        ahead=ask("time", look.ahead, None), strangers=None if look.on_socket else look.open_to_strangers(), on_socket=look.on_socket, on_loopback=look.on_loopback,
        encrypted=look.encrypted, verified=look.verified, denied=denied,
    )  # fmt: skip


def rights(look: Look, run: str) -> Finding:
    try:
        tried = [look.denied(commands(run, DEFAULT_QUEUE)) for commands in (doctor_rights.master_commands, doctor_rights.worker_commands)]
    except Denied as why:
        return doctor_rights.unknown_rights(why)
    return doctor_rights.check_rights(look.user, *tried)


# --- this host


def examine_host(notes: Notes) -> None:
    """Packages of this host; its environments and noise come with the run."""
    notes.add(doctor_host.check_packages(doctor_host.folders(), doctor_host.folders(more=[str(Path.cwd())])))
    notes.add(doctor_host.check_versions(host.versions()))
    notes.add(doctor_host.check_box2d(host.box2d()), doctor_host.check_envpool(host.version_of("envpool")))


def examine_disks(run_dir: Path, notes: Notes) -> Path | None:
    folder, trouble = doctor_host.noise_folder()
    if folder is None:
        notes.add(failed("noise", trouble, "choose another folder with ES_QUEUE_NOISE_DIR"))
    notes.add(doctor_host.check_disks(doctor_host.free_space(run_dir, folder)))
    return folder


# --- the run


def examine_runs(looks: Sequence[Look], given: argparse.Namespace, notes: Notes) -> None:
    """The named run where a server knows it; else what can be told without one."""
    folder = examine_disks(given.run_dir or Path("runs") / (given.run or ""), notes)
    look = next((one for one in looks if given.run is not None and knows(one, given.run)), None)
    if look is None:
        notes.add(*doctor_host.check_environments(try_out(doctor_host.USUAL)))
        if given.run is not None and looks:
            notes.add(failed("run", f"there is no run {given.run} at {', '.join(one.name for one in looks)}", "es-status lists the runs that there are"))
        for one in looks:
            examine_queue(one, given, DEFAULT_QUEUE, needed=False, notes=notes)
        return
    try:
        examine_run(look, given, folder, notes)
    except RedisError as error:
        notes.add(unknown("run", error, "look again, as a user who may read es:* (+@read)"))


def examine_run(look: Look, given: argparse.Namespace, folder: Path | None, notes: Notes) -> None:
    own = keys.RunKeys(given.run)
    server = look.server
    seen = server.find(given.run)
    if seen is None:  # it went away meanwhile
        notes.add(failed("run", f"there is no run {given.run}", "es-status lists the runs that there are"))
        return
    digest = noise_digest(server.string(own.task, MAX_TASK))
    try:
        config = config_from_json(server.string(own.config, MAX_JSON) or b"")
    except UsageError as error:
        notes.add(failed("config", f"the settings of {given.run} cannot be read: {error}", f"go on with the run's own release of es-queue, from its folder, by\n{seen.resume}"))
    else:
        wanted = Wanted(config.task, config.env_arg, config.wrapper, config.backend, config.parameters, config.preprocessing)
        notes.add(*doctor_host.check_environments(try_out([wanted])))
        if folder is not None and config.noise_size:
            notes.add(doctor_host.check_noise(doctor_host.look_at_noise(config.noise_size, folder), digest))
    found = doctor_run.RunLook(seen, server.inside(given.run).workers, host.versions(), digest)
    examine_queue(look, given, seen.progress.get("queue") or DEFAULT_QUEUE, found.wants_workers, notes)
    notes.add(*doctor_run.check_run(found))


def noise_digest(task: bytes | None) -> str | None:
    """The digest of the run's table as its open task tells it."""
    try:
        return None if task is None else Task.decode(task).noise
    except DecodeError:
        return None


def examine_queue(look: Look, given: argparse.Namespace, queue: str, needed: bool, notes: Notes) -> None:
    """RQ's own registries: who listens, and whether RQ is suspended."""
    try:
        found = queue_look(look, given, queue)
    except Denied as why:
        notes.add(unknown("listening", f"{why} (rq:*)", "look as a user who may read rq:*"))
    except (RedisError, ImportError) as error:
        notes.add(unknown("listening", error, "look again when that is mended"))
    else:
        notes.add(doctor_run.check_suspended(found), doctor_run.check_listening(found, needed))


def queue_look(look: Look, given: argparse.Namespace, queue: str) -> doctor_run.QueueLook:
    from es_queue.protocol.seats import is_of, open_ids

    prefix = keys.rq_worker("")
    everyone = [one for one in look.members(keys.RQ_WORKERS, MOST_LISTENERS) if one.startswith(prefix)]
    here = [one for one in look.members(keys.rq_workers(queue), MOST_LISTENERS) if one.startswith(prefix)]
    living = dict(zip(everyone, look.hashes(everyone, doctor_run.ABOUT_LISTENER), strict=True))
    seats = look.ask(lambda client: [one for one in open_ids(client, queue) if given.run is None or is_of(one, given.run)]) or []
    url = given.redis_url or (None if given.run_dir else url_from_environment())
    return doctor_run.QueueLook(
        queue, look.name, look.secret or (url is not None and holds_secret(url)),
        listeners=[living[one] for one in here if living.get(one)],
        elsewhere=[about.get("queues", "") for about in living.values() if about],
        suspended=bool(look.ask(lambda client: client.exists(keys.RQ_SUSPENDED))), seats=len(seats),
        local=look.on_socket or look.on_loopback,
    )  # fmt: skip
