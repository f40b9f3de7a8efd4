"""The doctor's checks of a Redis server, each a pure function of what the server said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from es_queue.protocol.connection import OLDEST
from master.doctor.finding import Finding, failed, ok, unknown, warning
from master.named_redis import bound_openly, open_listeners
from master.wording import finite, printable

LEAST_LEFT_BYTES = 64 * 2**20
LEAST_LEFT = 0.10
CONNECTIONS_A_WORKER = 6
LEAST_WORKERS = 20
#: Fragmentation of a small server says nothing.
FRAGMENTED_FROM = 64 * 2**20
ASK_INFO = "let an administrator grant it: +info"

Information = Mapping[str, Any]


@dataclass(frozen=True)
class ServerLook:
    """What was asked of one server. information: INFO's fields; settings: those of CONFIG that it tells.

    ping: seconds; ahead: seconds of its clock before ours, None where it did not tell; strangers: whether it serves
    clients without a password; denied: what was not told, and why, by question
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


def check_server(look: ServerLook) -> list[Finding]:
    """All checks of the server but that of the user's rights."""
    found = [ok("redis", f"{look.name} answers a PING in {milliseconds(look.ping)}")]
    if "info" in look.denied:
        found.append(unknown("server", f"{look.denied['info']} (version, policy, persistence, role, memory, connections)", ASK_INFO))
    else:
        checks = (check_version, check_role, check_memory, check_connections)
        found += [check(look.information) for check in checks]
        found.insert(2, check_eviction(look.information, look.on_socket or look.on_loopback))
        found.insert(3, check_persistence(look.information, look.settings, look.denied.get("config", "")))
    found += check_replies(look.settings, look.on_socket or look.on_loopback)
    return [*found, check_network(look), check_encryption(look), check_clock(look.ahead, look.denied.get("time", ""))]


def check_version(information: Information) -> Finding:
    valkey = information.get("valkey_version")
    shown = printable(valkey or information.get("redis_version", "unknown"), 20)
    kind = "Valkey" if valkey else "Redis"
    version = tuple(int(part) for part in shown.split(".")[:2] if part.isascii() and part.isdigit())
    if version < OLDEST:
        return failed("version", f"{kind} {shown} is too old", "use Redis 6.2 or later, or Valkey")
    return ok("version", f"{kind} {shown}" + ("" if valkey or version >= (7,) else "; rights by key (ACL files with selectors) need 7"))


def check_eviction(information: Information, own: bool) -> Finding:
    """own: only this host reaches the server."""
    policy, limit = printable(information.get("maxmemory_policy", "noeviction"), 40), number(information, "maxmemory")
    if limit <= 0 and own:
        return ok("eviction", f"no memory limit, so nothing is evicted (policy {policy})")
    if limit <= 0:
        fix = (
            "set maxmemory in redis.conf to at most half of what its container or machine has, "
            "with maxmemory-policy noeviction (docker/redis.conf does)"
        )
        text = "no memory limit: a client that fills the memory gets the server killed"
        return warning("eviction", text, fix)
    if policy != "noeviction":
        fix = "set maxmemory-policy noeviction in redis.conf, and have an administrator set it now by\nredis-cli CONFIG SET maxmemory-policy noeviction"
        return failed("eviction", f"maxmemory {megabytes(limit)} with maxmemory-policy {policy} silently drops parameters and claims", fix)
    return ok("eviction", f"noeviction under a limit of {megabytes(limit)}")


def check_persistence(information: Information, settings: Mapping[str, str], denied: str = "") -> Finding:
    """denied: why CONFIG was not told; INFO alone does not say whether snapshots are asked for."""
    if number(information, "loading"):
        return warning("persistence", "the server is still loading its data", "wait until it has")
    for name, what in (("aof_last_write_status", "its append-only file"), ("rdb_last_bgsave_status", "a snapshot")):
        if information.get(name, "ok") != "ok":
            return failed("persistence", f"the server could not write {what}, and may refuse writes for it", "look into the server's log and at its disk")
    if number(information, "aof_enabled"):
        return ok("persistence", "append-only file")
    if settings.get("save"):
        return ok("persistence", f"snapshots (save {printable(settings['save'], 60)}); what came after the last one is lost by a crash, and played again")
    lost = "a restart of Redis loses the open generation, the run goes on from its checkpoint"
    fix = "set appendonly yes in redis.conf, and have an administrator set it now by\nredis-cli CONFIG SET appendonly yes"
    if denied and number(information, "rdb_saves") > 0:
        return ok("persistence", "snapshots; what came after the last one is lost by a crash, and played again")
    return warning("persistence", f"{'no append-only file, and no snapshot yet' if denied else 'none'}: {lost}", fix)


def check_role(information: Information) -> Finding:
    if number(information, "cluster_enabled"):
        return failed("role", "cluster mode, which neither RQ nor multi-key scripts can use", "give the URL of a single server")
    if information.get("role") == "slave" and information.get("slave_read_only", 1) not in (0, "0"):
        return failed("role", "a read-only replica", "give the URL of its master")
    replicas = number(information, "connected_slaves")
    return ok("role", "a single server, no cluster" + (f", {replicas:.0f} replicas" if replicas else ""))


def check_memory(information: Information) -> Finding:
    used, limit, machine = (number(information, name) for name in ("used_memory", "maxmemory", "total_system_memory"))
    ratio = number(information, "mem_fragmentation_ratio")
    fragments = f", fragmentation {ratio:.1f}" if used >= FRAGMENTED_FROM and ratio > 0 else ""
    whole = limit if limit > 0 else machine
    if whole <= 0:
        return ok("memory", f"{megabytes(used)} used{fragments}")
    left = max(0.0, whole - used)
    text = f"{megabytes(used)} used, {megabytes(left)} left of its limit" if limit > 0 else f"{megabytes(used)} used, the machine has {megabytes(machine)}"
    text += fragments
    if left < LEAST_LEFT_BYTES or left < LEAST_LEFT * whole:
        return warning("memory", text, "raise maxmemory, or remove what is not needed (es-status lists the runs); when it is full, writes are refused")
    return ok("memory", text)


def check_connections(information: Information) -> Finding:
    used, most = number(information, "connected_clients"), number(information, "maxclients")
    if most <= 0:
        return ok("connections", f"{used:.0f} now")
    room = int(max(0.0, most - used) // CONNECTIONS_A_WORKER)
    text = f"{used:,.0f} of {most:,.0f}, room for about {room:,} more workers"
    return ok("connections", text) if room >= LEAST_WORKERS else warning("connections", text, "raise maxclients in redis.conf (a worker has five or six)")


def check_replies(settings: Mapping[str, str], own: bool) -> list[Finding]:
    """A warning where one command may take any memory; nothing where CONFIG does not tell.

    own: only this host reaches the server.
    """
    words = settings.get("client-output-buffer-limit", "").split()
    if own or words[:2] != ["normal", "0"]:
        return []
    text = "no limit on replies: one command that reads a large value many times fills the memory"
    fix = (
        "set client-output-buffer-limit normal 384mb 0 0 in redis.conf (docker/redis.conf does), "
        "and never less than maxmemory-clients"
    )
    return [warning("replies", text, fix)]


def check_network(look: ServerLook) -> Finding:
    if look.on_socket:
        return ok("network", "a Unix socket: reachable from this machine alone")
    if look.strangers is None:
        return ok("network", "whether it wants a password could not be told")
    if not look.strangers:
        return ok("network", "clients without a password are refused")
    if not look.on_loopback or bound_openly(look.settings):
        fix = "give it users (python -m es_queue.acl FOLDER) or a password (requirepass), or bind Redis to this machine"
        return warning("network", "whoever reaches this server can use it without a password, and so run code on the workers", fix)
    if look.settings:
        return ok("network", "no password, but reachable from this machine alone")
    if open_listeners(look.information):
        fix = "give it users (python -m es_queue.acl FOLDER) or a password, or bind Redis to this machine"
        return warning("network", f"no password, and it listens on other addresses than this machine's own; whether it lets other machines in is not known ({look.denied.get('config', 'no CONFIG')})", fix)
    return ok("network", f"no password; whether other machines reach it is not known ({look.denied.get('config', 'no CONFIG')})")


def check_encryption(look: ServerLook) -> Finding:
    if look.on_socket or look.on_loopback:
        return ok("encryption", "TLS" if look.encrypted else "none, and none is needed on this machine's own addresses")
    if not look.encrypted:
        return warning("encryption", "passwords, parameters and settings cross the network in plain text", "use rediss:// (redis.conf: tls-port), a tunnel, or a network that you trust")
    if not look.verified:
        fix = "name the file of the server's authority in the URL: ?ssl_ca_certs=FILE"
        return warning("encryption", "TLS, but the server's certificate is not verified (ssl_cert_reqs=none): anybody on the way can pose as it", fix)
    return ok("encryption", "TLS, and the server's certificate is verified")


def check_clock(ahead: float | None, denied: str = "") -> Finding:
    if ahead is None:
        return ok("clock", f"not known: {denied}")
    where = "agrees with this host's" if abs(ahead) < 0.05 else f"is {abs(ahead):,.1f} s {'ahead of' if ahead > 0 else 'behind'} this host's"
    return ok("clock", f"the server's {where}; nothing depends on it but ages that are shown")


def number(information: Information, name: str) -> float:
    """A figure of INFO, 0 where there is none."""
    return finite(information.get(name)) or 0.0


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:,.0f} ms"


def megabytes(count: float) -> str:
    """Bytes as people read them."""
    for size, unit in ((1e12, "TB"), (1e9, "GB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e6:.0f} MB" if count >= 1e7 else f"{count / 1e6:.1f} MB"


def settings_of(answers: Sequence[Mapping[Any, Any]]) -> dict[str, str]:
    """CONFIG GET's answers as text."""
    return {as_text(name): as_text(value) for one in answers if isinstance(one, Mapping) for name, value in one.items()}


def as_text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
