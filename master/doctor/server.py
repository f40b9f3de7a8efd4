"""The doctor's checks of a Redis server, each a pure function of what the server said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from es_queue.protocol.connection import MIN_VERSION
from es_queue.security.sanitize import sanitize
from master.cli.redis_url import has_open_listeners, is_bound_openly
from master.display.format import finite_or_none
from master.doctor.finding import (
    Finding,
    failed_finding,
    ok_finding,
    unknown_finding,
    warning_finding,
)
from master.status.values import to_text

LEAST_LEFT_BYTES = 64 * 2**20
LEAST_LEFT_FRACTION = 0.10
CONNECTIONS_PER_WORKER = 6
LEAST_WORKERS = 20
#: Fragmentation of a small server says nothing.
FRAGMENTED_FROM = 64 * 2**20
INFO_FIX = "let an administrator grant it: +info"

Information = Mapping[str, Any]


@dataclass(frozen=True)
class ServerState:
    """What was asked of one server. information: INFO's fields; settings: those of CONFIG that it
    tells.

    ping: seconds; ahead: seconds of its clock before ours, None where it did not tell; strangers:
    whether it serves clients without a password; denied: what was not told, and why, by question
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
    """All checks of the server but that of the user's rights."""
    findings = [
        ok_finding("redis", f"{state.name} answers a PING in {format_milliseconds(state.ping)}")
    ]
    if "info" in state.denied:
        findings.append(
            unknown_finding(
                "server",
                f"{state.denied['info']} (version, policy, persistence, role, memory, connections)",
                INFO_FIX,
            )
        )
    else:
        checks = (check_version, check_role, check_memory, check_connections)
        findings += [check(state.information) for check in checks]
        findings.insert(2, check_eviction(state.information, state.on_socket or state.on_loopback))
        findings.insert(
            3, check_persistence(state.information, state.settings, state.denied.get("config", ""))
        )
    findings += check_replies(state.settings, state.on_socket or state.on_loopback)
    return [
        *findings,
        check_network(state),
        check_encryption(state),
        check_clock(state.ahead, state.denied.get("time", "")),
    ]


def check_version(information: Information) -> Finding:
    valkey = information.get("valkey_version")
    version_text = sanitize(valkey or information.get("redis_version", "unknown"), 20)
    kind = "Valkey" if valkey else "Redis"
    version = tuple(
        int(part) for part in version_text.split(".")[:2] if part.isascii() and part.isdigit()
    )
    if version < MIN_VERSION:
        return failed_finding(
            "version", f"{kind} {version_text} is too old", "use Redis 6.2 or later, or Valkey"
        )
    return ok_finding(
        "version",
        f"{kind} {version_text}"
        + (
            "" if valkey or version >= (7,) else "; rights by key (ACL files with selectors) need 7"
        ),
    )


def check_eviction(information: Information, is_private: bool) -> Finding:
    """own: only this host reaches the server."""
    policy, limit = (
        sanitize(information.get("maxmemory_policy", "noeviction"), 40),
        info_number(information, "maxmemory"),
    )
    if limit <= 0 and is_private:
        return ok_finding("eviction", f"no memory limit, so nothing is evicted (policy {policy})")
    if limit <= 0:
        fix = (
            "set maxmemory in redis.conf to at most half of what its container or machine has, "
            "with maxmemory-policy noeviction (docker/redis.conf does)"
        )
        text = "no memory limit: a client that fills the memory gets the server killed"
        return warning_finding("eviction", text, fix)
    if policy != "noeviction":
        fix = (
            "set maxmemory-policy noeviction in redis.conf, and have an administrator set it now "
            "by\nredis-cli CONFIG SET maxmemory-policy noeviction"
        )
        return failed_finding(
            "eviction",
            (
                f"maxmemory {format_bytes(limit)} with maxmemory-policy {policy} silently drops "
                "parameters and claims"
            ),
            fix,
        )
    return ok_finding("eviction", f"noeviction under a limit of {format_bytes(limit)}")


def check_persistence(
    information: Information, settings: Mapping[str, str], denied: str = ""
) -> Finding:
    """denied: why CONFIG was not told; INFO alone does not say whether snapshots are asked for."""
    if info_number(information, "loading"):
        return warning_finding(
            "persistence", "the server is still loading its data", "wait until it has"
        )
    for name, what in (
        ("aof_last_write_status", "its append-only file"),
        ("rdb_last_bgsave_status", "a snapshot"),
    ):
        if information.get(name, "ok") != "ok":
            return failed_finding(
                "persistence",
                f"the server could not write {what}, and may refuse writes for it",
                "look into the server's log and at its disk",
            )
    if info_number(information, "aof_enabled"):
        return ok_finding("persistence", "append-only file")
    if settings.get("save"):
        return ok_finding(
            "persistence",
            (
                f"snapshots (save {sanitize(settings['save'], 60)}); what came after the last "
                "one is lost by a crash, and played again"
            ),
        )
    lost = "a restart of Redis loses the open generation, the run goes on from its checkpoint"
    fix = (
        "set appendonly yes in redis.conf, and have an administrator set it now by\nredis-cli "
        "CONFIG SET appendonly yes"
    )
    if denied and info_number(information, "rdb_saves") > 0:
        return ok_finding(
            "persistence",
            "snapshots; what came after the last one is lost by a crash, and played again",
        )
    return warning_finding(
        "persistence",
        f"{'no append-only file, and no snapshot yet' if denied else 'none'}: {lost}",
        fix,
    )


def check_role(information: Information) -> Finding:
    if info_number(information, "cluster_enabled"):
        return failed_finding(
            "role",
            "cluster mode, which neither RQ nor multi-key scripts can use",
            "give the URL of a single server",
        )
    if information.get("role") == "slave" and information.get("slave_read_only", 1) not in (0, "0"):
        return failed_finding("role", "a read-only replica", "give the URL of its master")
    replicas = info_number(information, "connected_slaves")
    return ok_finding(
        "role", "a single server, no cluster" + (f", {replicas:.0f} replicas" if replicas else "")
    )


def check_memory(information: Information) -> Finding:
    used, limit, machine = (
        info_number(information, name)
        for name in ("used_memory", "maxmemory", "total_system_memory")
    )
    ratio = info_number(information, "mem_fragmentation_ratio")
    fragments = f", fragmentation {ratio:.1f}" if used >= FRAGMENTED_FROM and ratio > 0 else ""
    whole = limit if limit > 0 else machine
    if whole <= 0:
        return ok_finding("memory", f"{format_bytes(used)} used{fragments}")
    left = max(0.0, whole - used)
    text = (
        f"{format_bytes(used)} used, {format_bytes(left)} left of its limit"
        if limit > 0
        else f"{format_bytes(used)} used, the machine has {format_bytes(machine)}"
    )
    text += fragments
    if left < LEAST_LEFT_BYTES or left < LEAST_LEFT_FRACTION * whole:
        return warning_finding(
            "memory",
            text,
            (
                "raise maxmemory, or remove what is not needed (es-status lists the runs); when "
                "it is full, writes are refused"
            ),
        )
    return ok_finding("memory", text)


def check_connections(information: Information) -> Finding:
    used, most = (
        info_number(information, "connected_clients"),
        info_number(information, "maxclients"),
    )
    if most <= 0:
        return ok_finding("connections", f"{used:.0f} now")
    room = int(max(0.0, most - used) // CONNECTIONS_PER_WORKER)
    text = f"{used:,.0f} of {most:,.0f}, room for about {room:,} more workers"
    return (
        ok_finding("connections", text)
        if room >= LEAST_WORKERS
        else warning_finding(
            "connections", text, "raise maxclients in redis.conf (a worker has five or six)"
        )
    )


def check_replies(settings: Mapping[str, str], is_private: bool) -> list[Finding]:
    """A warning where one command may take any memory; nothing where CONFIG does not tell.

    is_private: only this host reaches the server.
    """
    words = settings.get("client-output-buffer-limit", "").split()
    if is_private or words[:2] != ["normal", "0"]:
        return []
    text = "no limit on replies: one command that reads a large value many times fills the memory"
    fix = (
        "set client-output-buffer-limit normal 384mb 0 0 in redis.conf (docker/redis.conf does), "
        "and never less than maxmemory-clients"
    )
    return [warning_finding("replies", text, fix)]


def check_network(state: ServerState) -> Finding:
    if state.on_socket:
        return ok_finding("network", "a Unix socket: reachable from this machine alone")
    if state.strangers is None:
        return ok_finding("network", "whether it wants a password could not be told")
    if not state.strangers:
        return ok_finding("network", "clients without a password are refused")
    if not state.on_loopback or is_bound_openly(state.settings):
        fix = (
            "give it users (python -m es_queue.security.acl FOLDER) or a password (requirepass), "
            "or bind Redis to this machine"
        )
        return warning_finding(
            "network",
            (
                "whoever reaches this server can use it without a password, and so run code on "
                "the workers"
            ),
            fix,
        )
    if state.settings:
        return ok_finding("network", "no password, but reachable from this machine alone")
    if has_open_listeners(state.information):
        fix = (
            "give it users (python -m es_queue.security.acl FOLDER) or a password, or bind Redis "
            "to this machine"
        )
        return warning_finding(
            "network",
            (
                "no password, and it listens on other addresses than this machine's own; "
                "whether it lets other machines in is not known "
                f"({state.denied.get('config', 'no CONFIG')})"
            ),
            fix,
        )
    return ok_finding(
        "network",
        (
            "no password; whether other machines reach it is not known "
            f"({state.denied.get('config', 'no CONFIG')})"
        ),
    )


def check_encryption(state: ServerState) -> Finding:
    if state.on_socket or state.on_loopback:
        return ok_finding(
            "encryption",
            "TLS"
            if state.encrypted
            else "none, and none is needed on this machine's own addresses",
        )
    if not state.encrypted:
        return warning_finding(
            "encryption",
            "passwords, parameters and settings cross the network in plain text",
            "use rediss:// (redis.conf: tls-port), a tunnel, or a network that you trust",
        )
    if not state.verified:
        fix = "name the file of the server's authority in the URL: ?ssl_ca_certs=FILE"
        return warning_finding(
            "encryption",
            (
                "TLS, but the server's certificate is not verified (ssl_cert_reqs=none): anybody "
                "on the way can pose as it"
            ),
            fix,
        )
    return ok_finding("encryption", "TLS, and the server's certificate is verified")


def check_clock(clock_offset: float | None, denied: str = "") -> Finding:
    if clock_offset is None:
        return ok_finding("clock", f"not known: {denied}")
    where = (
        "agrees with this host's"
        if abs(clock_offset) < 0.05
        else (
            f"is {abs(clock_offset):,.1f} s {'ahead of' if clock_offset > 0 else 'behind'} this "
            "host's"
        )
    )
    return ok_finding(
        "clock", f"the server's {where}; nothing depends on it but ages that are shown"
    )


def info_number(information: Information, name: str) -> float:
    """A figure of INFO, 0 where there is none."""
    return finite_or_none(information.get(name)) or 0.0


def format_milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:,.0f} ms"


def format_bytes(count: float) -> str:
    """Bytes as people read them."""
    for size, unit in ((1e12, "TB"), (1e9, "GB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e6:.0f} MB" if count >= 1e7 else f"{count / 1e6:.1f} MB"


def parse_settings(answers: Sequence[Mapping[Any, Any]]) -> dict[str, str]:
    """CONFIG GET's answers as text."""
    return {
        to_text(name): to_text(value)
        for answer in answers
        if isinstance(answer, Mapping)
        for name, value in answer.items()
    }
