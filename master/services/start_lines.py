"""The lines that es-master prints at the start: how to watch the run, and how workers join."""

from __future__ import annotations

from collections.abc import Sequence

from es_queue.protocol.connection import has_secret
from es_queue.security.user_code import ALLOW, INSTALLED, disallowed_modules
from es_queue.util.command_path import format_command
from es_queue.util.run_folder import NamedRun
from master.services.private_server import PrivateServer
from master.services.tcp_access import join_instructions


def start_lines(
    url: str,
    queue: str,
    run: NamedRun,
    server: PrivateServer | None,
    modules: Sequence[str] = (),
) -> dict[str, str]:
    """Commands by name, for the server at ``url``.

    run:     the run or study to watch
    server:  the private server, None for a named Redis
    modules: the run's own code; a worker must allow those that are loose files
    """
    where = redis_flag(url, "--redis-url") if server is None else ""
    rq = "rq" if server is None else format_command("rq")
    queue_name = "" if queue == "default" else f" {queue}"
    lines = {
        "watch": f"{format_command('es-status')} {run.word}{where}",
        "join": f"{allowance(modules)}{rq} worker{redis_flag(url, '--url')}{queue_name}",
    }
    if server is not None:
        lines |= join_instructions(server.folder, server.socket_path, queue, allowance(modules))
    return lines


def allowance(modules: Sequence[str]) -> str:
    """The variable with which a worker may import a run's own code; empty if it needs none."""
    loose = disallowed_modules(modules, INSTALLED)
    return f"{ALLOW}={','.join((INSTALLED, *loose))} " if loose else ""


def redis_flag(url: str, flag: str) -> str:
    """The flag by which a command finds the server. A URL with a secret has none: it belongs in
    RQ_REDIS_URL.
    """
    if has_secret(url):
        return " (RQ_REDIS_URL must hold this server's URL there)"
    return f" {flag} {url}"
