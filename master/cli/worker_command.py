"""es-worker: workers of this host for a Redis that runs share, restarted when they end."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from es_queue.config.parsing import COMMAND_LINE
from es_queue.errors import EXIT_DONE, EsQueueError, RedisError, UsageError
from es_queue.protocol.connection import ANY_ERROR, redacted_url, tested_client
from es_queue.security.sanitize import sanitize
from es_queue.util.command_parser import (
    PASSWORD_FILE_OPTION,
    CommandParser,
    add_options,
    add_version,
)
from es_queue.util.metrics_endpoint import metrics_endpoint
from master.services.local_workers import LocalWorkers, checked_workers, default_workers
from master.services.redis_url import named_url
from master.services.supervisor import SignalFlags

EPILOG = """examples:
  es-worker --redis-url redis://host:6379             one worker per core, for every run there
  RQ_REDIS_URL="$(cat es-queue-url)" es-worker        a private server that listens (--listen)
  es-worker --redis-url redis://host --workers 2 gpu  two workers of the queue "gpu"

Workers wait while Redis is away, and one that ends is started again. Ctrl-C or SIGTERM ends them in
order: they hand back the work that they have not finished."""
#: How often ended workers are looked for, besides at each signal of an ended child.
LOOK_SECONDS = 1.0


OPTIONS = f"""
queue QUEUE
    RQ queue, as of es-master --queue [default: default]
--redis-url URL
    server of the runs; put a password in RQ_REDIS_URL, not here [default: RQ_REDIS_URL, then
    REDIS_URL]{PASSWORD_FILE_OPTION.format("")}--workers N
    number of workers [default: one per core of this host]
--log-dir PATH
    folder for worker-1.log and so on [default: a temporary folder, removed at the end]
"""


def make_parser() -> CommandParser:
    parser = CommandParser(
        "es-worker", "Run workers on this host, and restart those that end.", epilog=EPILOG
    )
    queue = {"nargs": "?", "default": "default"}
    add_options(parser, OPTIONS, queue=queue, log_dir={"type": Path})
    add_version(parser)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    try:
        work_until_told(make_parser().parse_words(words))
    except EsQueueError as error:
        print(f"es-worker: {sanitize(error, 2000)}", file=sys.stderr)
        return error.exit_code
    return EXIT_DONE


def work_until_told(given: argparse.Namespace) -> None:
    """The command itself. Raises UsageError, RedisError and RunFolderError."""
    count = default_workers()
    if given.workers is not None:
        count = checked_workers(given.workers, COMMAND_LINE)
    if count == 0:
        raise UsageError("--workers is 0, so nothing would be done: use 1 or more")
    metrics = metrics_endpoint()
    url = named_url(given.redis_url, given.redis_password_file, warn)
    if url is None:
        raise UsageError("no Redis is named: give --redis-url or set RQ_REDIS_URL")
    check_access(url)
    with TemporaryDirectory(prefix="es-worker-", ignore_cleanup_errors=True) as temporary:
        logs = given.log_dir or Path(temporary)
        keep_workers(
            LocalWorkers(count, given.queue, url, logs),
            f"{count} worker{'s' * (count > 1)} for {redacted_url(url)}, queue {given.queue}; logs "
            f"in {logs}{describe_metrics(metrics, count)}",
            logs,
            url,
        )


def keep_workers(workers: LocalWorkers, start_line: str, logs: Path, url: str) -> None:
    """Restart workers until a signal ends all. Raises RunFolderError."""
    signals = SignalFlags(workers.kill)
    signal.signal(signal.SIGINT, signals.request_end)
    try:
        workers.start()
        print(f"es-worker: {start_line}", flush=True)
        while not signals.end_requested:
            ended = workers.supervise()
            reason = describe_silence(url) if ended else ""
            for number in ended:
                log = logs / f"worker-{number}.log"
                warn(f"worker {number} ended and was restarted{reason}; {log}")
            signals.wait(LOOK_SECONDS)
    finally:
        signal.signal(signal.SIGINT, signals.kill_and_exit)
        workers.stop()


def check_access(url: str) -> None:
    """Raises RedisError for a server that refuses this client. An unreachable one may return."""
    try:
        tested_client(url).ping()
    except ANY_ERROR:
        warn(f"Redis at {redacted_url(url)} does not answer yet: the workers keep trying")


def describe_silence(url: str) -> str:
    """Why workers end, if the reason is the server; else empty."""
    try:
        tested_client(url).ping()
    except RedisError as error:
        return f": {error}"
    except ANY_ERROR:
        return f": Redis at {redacted_url(url)} does not answer"
    return ""


def describe_metrics(endpoint: tuple[str, int] | None, count: int) -> str:
    """Where the workers' metrics are, empty if they are off."""
    if endpoint is None:
        return ""
    address, port = endpoint
    last = f" to {port + count - 1}" if count > 1 else ""
    return f"; metrics on {address}, ports {port}{last}"


def warn(text: str) -> None:
    print(f"es-worker: WARNING: {sanitize(text, 1000)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
