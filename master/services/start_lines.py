"""The lines that es-master prints at the start: how to watch the run, and how workers join."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from es_queue.command_line import format_command
from es_queue.credentials import FLAG, PASSWORD_FILE, password_of
from es_queue.protocol.connection import RedisWithPassword, has_secret, redacted_url
from es_queue.run_folder import NamedRun
from es_queue.user_code import ALLOW, INSTALLED
from master.services.private_server import PrivateServer
from master.services.tcp_access import join_instructions

#: With it, rq takes the password from the same variables as es-queue's commands.
CONNECTION_CLASS = f"{RedisWithPassword.__module__}.{RedisWithPassword.__name__}"

#: After a command for a URL with a secret, which belongs in no command.
BY_VARIABLE = "  # RQ_REDIS_URL must hold this server's URL"


def start_lines(
    url: str,
    queue: str,
    run: NamedRun,
    server: PrivateServer | None,
    modules: Sequence[str] = (),
    password_file: str | None = None,
) -> dict[str, str]:
    """Commands by name, for the server at ``url``.

    run:           the run or study to watch
    server:        the private server, None for a named Redis
    modules:       those of the run's own code that a worker must allow by name
    password_file: file with the password of a named Redis, as the command line names it
    """
    allowed, queue_name = allowance(modules), "" if queue == "default" else f" {queue}"
    if server is not None:
        return {
            "watch": f"{format_command('es-status')} {run.word}",
            "join": f"{allowed}{format_command('rq')} worker --url {redacted_url(url)}{queue_name}",
            **join_instructions(server.folder, queue, allowed),
        }
    variables, flag, named = "", f" --url {url}", redis_flags(url, password_file)
    stay = f"{allowed}es-worker{queue_name}{named}"
    if shown := url_without_password(url, password_file):
        path = quote(password_path(password_file))
        variables = f"{PASSWORD_FILE}={path} RQ_CONNECTION_CLASS={CONNECTION_CLASS} "
        flag = f" --url {shown}"
    elif has_secret(url):
        flag, queue_name = "", f"{queue_name}{BY_VARIABLE}"
    return {
        "watch": f"{format_command('es-status')} {run.word}{named}",
        "join": f"{variables}{allowed}rq worker{flag}{queue_name}",
        "stay": stay,
    }


def redis_flags(url: str, password_file: str | None) -> str:
    """The flags by which a command of es-queue finds a named server; a comment if the URL has a
    secret that is in no file.
    """
    if shown := url_without_password(url, password_file):
        return f" --redis-url {shown} {FLAG} {quote(password_path(password_file))}"
    return BY_VARIABLE if has_secret(url) else f" --redis-url {url}"


def url_without_password(url: str, password_file: str | None) -> str:
    """Empty if the password is in no file."""
    if not password_path(password_file) or password_of(url) is None or "?" in url:
        return ""
    return redacted_url(url).replace(":***@", "@", 1).replace("//@", "//")


def password_path(password_file: str | None) -> str:
    """The absolute path that the command line or the environment names, or nothing."""
    file = password_file or os.environ.get(PASSWORD_FILE)
    return str(Path(file).absolute()) if file else ""


def allowance(modules: Sequence[str]) -> str:
    """The variable that allows a run's own code on a worker, or nothing."""
    return f"{ALLOW}={','.join((INSTALLED, *modules))} " if modules else ""
