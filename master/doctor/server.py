"""The doctor's checks of a Redis server; pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from es_queue.protocol.connection import MIN_VERSION
from es_queue.security.bounded_reads import to_text
from es_queue.security.sanitize import sanitize
from master.display.format import finite_or_none
from master.doctor.finding import Finding, failed, named, ok, unknown, warning
from master.services.redis_url import has_open_listeners, is_bound_openly

LEAST_LEFT_BYTES = 64 * 2**20
LEAST_LEFT_FRACTION = 0.10
CONNECTIONS_PER_WORKER = 6
LEAST_WORKERS = 20
#: Fragmentation of a small server means nothing.
FRAGMENTED_FROM = 64 * 2**20
INFO_FIX = "let an administrator grant it: +info"

Information = Mapping[str, Any]


@dataclass(frozen=True)
class ServerState:
    """The state of one server. information: INFO's fields; settings: the CONFIG values that it
    reveals.

    ping: seconds; ahead: seconds of its clock before ours, or None; strangers: whether it accepts
    clients without a password; denied: the refused questions, with the reason
    """

    name: str
    ping: float
    information: Information
    settings: Mapping[str, str] = field(default_factory=dict)
    ahead: float | None = None
    strangers: bool | None = None
    on_socket: bool = False
    on_loopback: bool = False
    encrypted: bool = False
    verified: bool = True
    denied: Mapping[str, str] = field(default_factory=dict)


def check_server(state: ServerState) -> list[Finding]:
    private, denied = state.on_socket or state.on_loopback, state.denied
    digits = 1 if state.ping < 0.1 else 0
    alive = f"{state.name} answers a PING in {1000 * state.ping:,.{digits}f} ms"
    findings = [ok(alive).named("redis")]
    if "info" in denied:
        what = "version, policy, persistence, role, memory, connections"
        findings.append(unknown(f"{denied['info']} ({what})", INFO_FIX).named("server"))
    else:
        findings += [
            check_version(state.information),
            check_eviction(state.information, private),
            check_persistence(
                state.information, state.settings, denied.get("config", ""), state.on_socket
            ),
            check_role(state.information),
            check_memory(state.information),
            check_connections(state.information),
        ]
    return [
        *findings,
        *check_replies(state.settings, private),
        check_network(state),
        check_encryption(state),
        check_clock(state.ahead, denied.get("time", "")),
    ]


@named("version")
def check_version(information: Information) -> Finding:
    valkey = information.get("valkey_version")
    text = sanitize(valkey or information.get("redis_version", "unknown"), 20)
    kind = "Valkey" if valkey else "Redis"
    numbers = [part for part in text.split(".")[:2] if part.isascii() and part.isdigit()]
    version = tuple(map(int, numbers))
    if version < MIN_VERSION:
        return failed(f"{kind} {text} is too old", "use Redis 6.2 or later, or Valkey")
    has_key_rights = valkey or version >= (7,)
    missing = "" if has_key_rights else "; rights by key (ACL files with selectors) need 7"
    return ok(f"{kind} {text}{missing}")


@named("eviction")
def check_eviction(information: Information, is_private: bool) -> Finding:
    """is_private: whether only this host reaches the server."""
    policy = sanitize(information.get("maxmemory_policy", "noeviction"), 40)
    limit = info_number(information, "maxmemory")
    if limit <= 0 and is_private:
        return ok(f"no memory limit, so nothing is evicted (policy {policy})")
    if limit <= 0:
        fix = (
            "set maxmemory in redis.conf to at most half of what its container or machine has, "
            "with maxmemory-policy noeviction (docker/redis.conf does)"
        )
        return warning("no memory limit: a client that fills the memory can crash the server", fix)
    size = format_bytes(limit)
    if policy == "noeviction":
        return ok(f"noeviction under a limit of {size}")
    fix = (
        "set maxmemory-policy noeviction in redis.conf; to set it now, as administrator:\n"
        "redis-cli CONFIG SET maxmemory-policy noeviction"
    )
    what = "silently drops parameters and claims"
    return failed(f"maxmemory {size} with maxmemory-policy {policy} {what}", fix)


@named("persistence")
def check_persistence(
    information: Information,
    settings: Mapping[str, str],
    denied: str = "",
    on_socket: bool = False,
) -> Finding:
    """denied: why CONFIG is unknown; INFO does not show whether snapshots are configured.
    on_socket: reached as a run's private server is
    """
    if info_number(information, "loading"):
        return warning("the server is still loading its data", "wait until it is ready")
    for name, what in (
        ("aof_last_write_status", "its append-only file"),
        ("rdb_last_bgsave_status", "a snapshot"),
    ):
        if information.get(name, "ok") != "ok":
            return failed(
                f"the server could not write {what}, and may refuse writes",
                "check the server's log and disk",
            )
    if info_number(information, "aof_enabled"):
        return ok("append-only file")
    snapshots = settings.get("save")
    if snapshots or (denied and info_number(information, "rdb_saves") > 0):
        times = f" (save {sanitize(snapshots, 60)})" if snapshots else ""
        return ok(f"snapshots{times}; after a crash, work since the last one is repeated")
    if on_socket:
        return ok("none; after a crash, a run resumes from the checkpoint in its folder")
    fix = (
        "set appendonly yes in redis.conf; to set it now, as administrator:\nredis-cli "
        "CONFIG SET appendonly yes"
    )
    state = "no append-only file, and no snapshot yet" if denied else "none"
    lost = "a restart of Redis loses the open generation, and the run resumes from its checkpoint"
    return warning(f"{state}: {lost}", fix)


@named("role")
def check_role(information: Information) -> Finding:
    if info_number(information, "cluster_enabled"):
        return failed(
            "cluster mode, which neither RQ nor multi-key scripts can use",
            "give the URL of a single server",
        )
    if information.get("role") == "slave" and information.get("slave_read_only", 1) not in (0, "0"):
        return failed("a read-only replica", "give the URL of its master")
    replicas = info_number(information, "connected_slaves")
    return ok("a single server, not a cluster" + (f", {replicas:.0f} replicas" if replicas else ""))


@named("memory")
def check_memory(information: Information) -> Finding:
    names = ("used_memory", "maxmemory", "total_system_memory", "mem_fragmentation_ratio")
    used, limit, machine, ratio = (info_number(information, name) for name in names)
    whole = limit if limit > 0 else machine
    left = max(0.0, whole - used)
    text = f"{format_bytes(used)} used"
    if limit > 0:
        text += f", {format_bytes(left)} left of its limit"
    elif machine > 0:
        text += f", the machine has {format_bytes(machine)}"
    if used >= FRAGMENTED_FROM and ratio > 0:
        text += f", fragmentation {ratio:.1f}"
    if whole > 0 and left < max(LEAST_LEFT_BYTES, LEAST_LEFT_FRACTION * whole):
        fix = (
            "raise maxmemory, or remove runs (es-status lists them); when it is full, writes "
            "are refused"
        )
        return warning(text, fix)
    return ok(text)


@named("connections")
def check_connections(information: Information) -> Finding:
    used, most = (
        info_number(information, "connected_clients"),
        info_number(information, "maxclients"),
    )
    if most <= 0:
        return ok(f"{used:.0f} now")
    room = int(max(0.0, most - used) // CONNECTIONS_PER_WORKER)
    text = f"{used:,.0f} of {most:,.0f}, room for about {room:,} more workers"
    return (
        ok(text)
        if room >= LEAST_WORKERS
        else warning(text, "raise maxclients in redis.conf (a worker uses five or six of them)")
    )


def check_replies(settings: Mapping[str, str], is_private: bool) -> list[Finding]:
    """A warning if one command may take any memory; empty if CONFIG is unknown.

    is_private: whether only this host reaches the server.
    """
    words = settings.get("client-output-buffer-limit", "").split()
    if is_private or words[:2] != ["normal", "0"]:
        return []
    text = (
        "no limit on replies: one command that reads a large value many times can fill the memory"
    )
    fix = (
        "set client-output-buffer-limit normal 384mb 0 0 in redis.conf (docker/redis.conf does), "
        "and never less than maxmemory-clients"
    )
    return [warning(text, fix).named("replies")]


@named("network")
def check_network(state: ServerState) -> Finding:
    if state.on_socket:
        return ok("a Unix socket: reachable only from this machine")
    if state.strangers is None:
        return ok("unknown whether it requires a password")
    if not state.strangers:
        return ok("clients without a password are refused")
    users = "give it users (python -m es_queue.security.acl FOLDER) or a password"
    if not state.on_loopback or is_bound_openly(state.settings):
        return warning(
            "anyone who reaches this server can use it without a password, and run code on the "
            "workers",
            f"{users} (requirepass), or bind Redis to this machine",
        )
    if state.settings:
        return ok("no password, but reachable only from this machine")
    why = state.denied.get("config", "no CONFIG")
    if has_open_listeners(state.information):
        return warning(
            f"no password, and it listens on addresses beyond this machine; other machines may be "
            f"able to connect ({why})",
            f"{users}, or bind Redis to this machine",
        )
    return ok(f"no password; unknown whether other machines can connect ({why})")


@named("encryption")
def check_encryption(state: ServerState) -> Finding:
    if state.on_socket or state.on_loopback:
        none = "none, and none is needed on this machine"
        return ok("TLS" if state.encrypted else none)
    if not state.encrypted:
        return warning(
            "passwords, parameters and settings cross the network in plain text",
            "use rediss:// (redis.conf: tls-port), a tunnel, or a network that you trust",
        )
    if not state.verified:
        return warning(
            "TLS, but the server's certificate is not verified (ssl_cert_reqs=none): anyone on "
            "the network path can impersonate it",
            "name the authority's file in the URL: ?ssl_ca_certs=FILE",
        )
    return ok("TLS, and the server's certificate is verified")


@named("clock")
def check_clock(offset: float | None, denied: str = "") -> Finding:
    if offset is None:
        return ok(f"unknown: {denied}")
    way = "ahead of" if offset > 0 else "behind"
    where = "agrees with" if abs(offset) < 0.05 else f"is {abs(offset):,.1f} s {way}"
    return ok(f"the server's {where} this host's; it affects only displayed ages")


def info_number(information: Information, name: str) -> float:
    """0 for anything else."""
    return finite_or_none(information.get(name)) or 0.0


def format_bytes(count: float) -> str:
    for size, unit in ((1e12, "TB"), (1e9, "GB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e6:.0f} MB" if count >= 1e7 else f"{count / 1e6:.1f} MB"


def parse_settings(answers: Sequence[Mapping[Any, Any]]) -> dict[str, str]:
    return {
        to_text(name): to_text(value)
        for answer in answers
        if isinstance(answer, Mapping)
        for name, value in answer.items()
    }
