"""The page of es-status: runs and their curves in a browser, and /metrics. It only reads.

waitress serves ``Page``, a WSGI application of a few fixed paths. Every answer needs the token and
a Host that the operator named.
"""

from __future__ import annotations

import argparse
import errno
import gzip
import json
import logging
import re
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, lru_cache
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import waitress

from es_queue.command_line import format_command
from es_queue.credentials import (
    HOST,
    TOKEN,
    TOKEN_FILE,
    has_token,
    has_token_in_address,
    is_host_allowed,
    is_loopback,
    listening_hosts,
    plain_host,
    token_from_environment,
)
from es_queue.errors import EsQueueError, NoRunError, UsageError
from es_queue.protocol.keys import RUN_ID, checked_run_id
from es_queue.run_folder import checkpoint_path, find_run
from es_queue.text import sanitize
from master.display.log_view import SafeStream, recipe_points
from master.services.tcp_access import Address, is_address, parse_address
from master.status.curve import AXES, FIGURE_NAME, Curve, file_stamp
from master.status.figures import FIGURES, drawable_or_none, finite_or_none
from master.status.keyspace import to_plain_json
from master.status.snapshot import HEALTHY, is_default, written_settings
from master.status.sources import Sources, find_sources
from master.status.texts import make_errors_page, shown_texts, signals_as_interrupts

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from prometheus_client import Metric

LOOPBACK, DEFAULT_PORT = "127.0.0.1", 8642
#: waitress closes silent connections after channel_timeout seconds. Browsers send 1 KB of headers.
WAITRESS: dict[str, Any] = {
    "threads": 8,
    "connection_limit": 500,
    "channel_timeout": 10,
    "cleanup_interval": 1,
    "max_request_header_size": 16 * 1024,
    "max_request_body_size": 1,
    "asyncore_use_poll": True,
    "log_socket_errors": False,
    "ident": "es-status",
}
#: Only what comes from here runs, and no other page may put this one into a frame.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
RUN_PATH = re.compile(rf"/api/runs/(?P<run>{RUN_ID.pattern})(?:/(?P<part>errors|archive))?")
#: Whether the page answers, for probes of containers. It needs no token and shows nothing else.
HEALTH_PATH = "/healthz"
FORBIDDEN = (
    "this page needs its token: open the address that es-status printed, with ?token=, or send "
    "the header Authorization: Bearer TOKEN"
)
MISDIRECTED = (
    "this page is not served under that name: use the address that es-status printed, or start "
    "it with --web-host NAME"
)
EXPOSED = (
    "es-status: WARNING: the page at {place} has no encryption: anyone who can read its network "
    "traffic sees the token and the page, with names and settings of runs, hosts, and tracebacks. "
    "To keep it private, leave the address out and use  ssh -L {port}:127.0.0.1:{port} THIS-HOST\n"
    "es-status: the page answers as {names}; name other hosts with --web-host NAME"
)

#: Status, media type, body, and further headers.
Reply = tuple[int, str, bytes, dict[str, str]]


def serve(given: argparse.Namespace, out: SafeStream, err: SafeStream) -> int:
    """Serve until Ctrl-C or a signal, which is raised as KeyboardInterrupt.

    Raises UsageError if it cannot listen, and the errors of the first query.
    """
    address = parse_address(given.web, "web")
    address = Address(address.host or LOOPBACK, address.port or DEFAULT_PORT)
    hosts = hosts_of(address, given.web_host or ())
    chosen = token_from_environment(lambda text: err.write_line(f"es-status: WARNING: {text}"))
    token = chosen or secrets.token_urlsafe(32)
    looks = Looks(given, given.every)
    if given.run is None:
        looks.runs()
    else:
        looks.run(given.run)
    with signals_as_interrupts(), closing(make_server(address, looks, token, hosts)) as server:
        if not is_loopback(address.host):
            names = ", ".join(sorted({"localhost", *hosts}))
            err.write_line(EXPOSED.format(place=address, port=address.port, names=names))
        # Not with the name localhost: another user's server on its other address could get the
        # token. A token that the user has chosen stays out of the logs of a service.
        shown = {"0.0.0.0": LOOPBACK, "localhost": LOOPBACK, "::": "::1"}
        url = f"http://{Address(shown.get(address.host, address.host), address.port)}/"
        query = "" if chosen else f"?token={token}"
        anchor = "" if given.run is None else f"#run={checked_run_id(given.run)}"
        hint = f"with ?token= and the token of {TOKEN} or {TOKEN_FILE}; " if chosen else ""
        out.write_line(f"{url}{query}{anchor}  ({hint}Ctrl-C stops the page; runs continue)")
        server.run()
    raise KeyboardInterrupt


def make_server(address: Address, looks: Looks, token: str, hosts: Collection[str]) -> Any:
    """waitress with the page, listening; ``run`` serves it. Raises UsageError."""
    is_six = ":" in address.host
    try:
        listening = socket.create_server(
            (address.host, address.port),
            family=socket.AF_INET6 if is_six else socket.AF_INET,
            dualstack_ipv6=is_six and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        why = (
            f"{error.strerror or error}; give an address of this host, or only a port "
            f"(:{DEFAULT_PORT}); RUN comes before --web"
        )
        if error.errno == errno.EADDRINUSE:
            free = Address(address.host, min(address.port + 1, 65535))
            why = f"another program listens there; give another port, such as --web {free}"
        if error.errno == errno.EACCES:
            why = "this user may not listen there; use a port from 1024 on"
        raise UsageError(f"web cannot be served at {address}: {why}") from None
    # waitress reports what clients do wrong, which would fill the terminal.
    logging.getLogger("waitress").setLevel(logging.CRITICAL + 1)
    page = Page(looks, hosts, token, listening.getsockname()[1])
    return waitress.create_server(page, sockets=[listening], **WAITRESS)


def hosts_of(address: Address, names: Iterable[str]) -> frozenset[str]:
    """The hosts, in addition to loopback's, under which a page at this address answers.

    Raises UsageError for a value of --web-host that is neither a name nor an address.
    """
    hosts = set(listening_hosts(address.host))
    for name in names:
        match = HOST.fullmatch(f"[{name}]" if ":" in name and not name.startswith("[") else name)
        if match is None or match["port"] or (match["six"] and not is_address(match["six"])):
            raise UsageError(
                f"--web-host is {sanitize(name, 80)!r}: give the name or address by which a "
                "browser reaches the page, without http:// and port, such as node7.example; "
                "repeat the flag for more"
            )
        hosts.add(plain_host(match))
    return frozenset(hosts)


class Page:
    """The WSGI application. It answers GET and HEAD under loopback names and ``hosts``, to requests
    with the token. The address with the token sets a cookie, so that no further address contains
    it.
    """

    def __init__(self, looks: Looks, hosts: Collection[str], token: str, port: int) -> None:
        self._looks, self._hosts, self._token = looks, hosts, token
        # Browsers send a cookie to all ports of a host, so each page has a name of its own. Its
        # value is not the token, because the port can be another user's once this process has
        # ended.
        self._cookie = f"es-queue-{port}={secrets.token_urlsafe(32)}"

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        try:
            status, kind, body, more = self._reply(environ)
        except EsQueueError as error:
            status = 404 if isinstance(error, (UsageError, NoRunError)) else 503
            status, kind, body, more = json_reply({"trouble": sanitize(error)}, status)
        except Exception:
            logging.getLogger(__name__).exception("es-status: the page failed")
            status, kind, body, more = text(500, "the page failed: es-status printed the reason")
        if len(body) > 1400 and "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            body = gzip.compress(body, 1, mtime=0)
            more = {**more, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        content = {"Content-Type": kind, "Content-Length": str(len(body))}
        headers = list((HEADERS | more | content).items())
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _reply(self, environ: WSGIEnvironment) -> Reply:
        """Raises UsageError or NoRunError for what is not there, other EsQueueErrors if it cannot
        be read.
        """
        path, looks = environ["PATH_INFO"], self._looks
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return text(405, "this page is read-only: use GET, HEAD", Allow="GET, HEAD")
        if not is_host_allowed(environ.get("HTTP_HOST"), self._hosts):
            return text(421, MISDIRECTED)
        if path == HEALTH_PATH:
            return text(200, "the page answers")
        if not has_token(environ, self._token, self._cookie):
            # The page's script reads what is wrong from JSON.
            is_data = path.startswith("/api/")
            return json_reply({"trouble": FORBIDDEN}, 403) if is_data else text(403, FORBIDDEN)
        if path == "/" and has_token_in_address(environ, self._token):
            cookie = f"{self._cookie}; Path=/; HttpOnly; SameSite=Strict"
            moved = "the page is at / without the token"
            return text(303, moved, **{"Location": "/", "Set-Cookie": cookie})
        if path in static_files():
            return 200, *static_files()[path], {}
        if path == "/metrics":
            return 200, METRICS_TYPE, format_metrics(looks.figures()), {}
        if path == "/api/runs":
            return json_reply(looks.runs())
        match = RUN_PATH.fullmatch(path)
        if match is None:
            return text(404, "there is no such page")
        if match["part"] == "errors":
            return json_reply(looks.errors(match["run"]))
        if match["part"] == "archive":
            return json_reply(looks.archive(match["run"]))
        figure = environ.get("QUERY_STRING", "").partition("figure=")[2]
        return json_reply(looks.run(match["run"], figure if FIGURE_NAME.fullmatch(figure) else ""))


def text(status: int, sentence: str, **headers: str) -> Reply:
    return status, "text/plain; charset=utf-8", f"{sentence}\n".encode(), headers


def json_reply(data: object, status: int = 200) -> Reply:
    return status, "application/json", json.dumps(data, allow_nan=False).encode(), {}


@cache
def static_files() -> dict[str, tuple[str, bytes]]:
    """The media type and content of the page's files by path. The paths are fixed, so none leads
    out of the folder.
    """
    files = {
        f"/{entry.name}": (TYPES[entry.name.rpartition(".")[2]], entry.read_bytes())
        for entry in resources.files("master.status").joinpath("static").iterdir()
    }
    return {**files, "/": files["/index.html"]}


# --- Prometheus


def format_metrics(data: Mapping[str, Any]) -> bytes:
    """runs: as es-status --json, some with details; trouble: why Redis could not be read."""
    # start-up: prometheus_client takes 0.1 s and 8 MB, and only /metrics needs it
    from prometheus_client import Metric, generate_latest

    metrics: dict[str, Metric] = {}

    def add(name: str, text: str, value: float, **labels: str) -> None:
        name = f"es_queue_{name}"
        kind = "counter" if name.endswith("_total") else "gauge"
        metric = metrics.setdefault(name, Metric(name.removesuffix("_total"), text, kind))
        metric.add_sample(name, labels, float(value))

    class Collected:
        def collect(self) -> Iterable[Metric]:
            return metrics.values()

    up = "1 if these values were just read, 0 if Redis could not be read"
    add("up", up, not data.get("trouble"))
    for run in data.get("runs", ()):
        name = str(run["run"])
        about = {key: str(run.get(key) or "") for key in ("env", "strategy", "state", "health")}
        add("run_info", "A run, its environment, strategy, state and health", 1, run=name, **about)
        healthy = "1 while a run trains or is paused on request, 0 otherwise"
        add("run_healthy", healthy, run["health"] == HEALTHY, run=name)
        for figure in FIGURES.values():
            value = finite_or_none(run.get(figure.name)) if figure.metric else None
            if value is not None:
                unit = f" [{figure.unit}]" if figure.unit else ""
                add(figure.metric, f"{figure.sentence}{unit}", value, run=name)
        for kind in ("info", "eval_info"):
            for part in str(run.get(kind) or "").split(", "):
                key, _, words = part.rpartition(" ")
                if (value := finite_or_none(words)) is not None:
                    add(kind, FIGURES[kind].sentence, value, run=name, key=key)
        if "living" in run:
            add(
                "living_workers",
                "Workers whose heartbeat is in Redis",
                len(run["living"]),
                run=name,
            )
        for reason, count in run.get("refused", {}).items():
            refused = "Results that the master refused, by reason"
            add("refused_total", refused, count, run=name, reason=sanitize(reason, 100))
    return generate_latest(Collected())


# --- looks, shared by all browsers

Data = dict[str, Any]
#: So many results are cached; the one that nobody asked for the longest goes first.
MOST_CACHED = 100
#: Runs whose workers and refusals go to Prometheus.
MOST_DETAILED = 20
#: The most numbers of behaviours that are sent.
MOST_NUMBERS = 200_000


@dataclass
class Look:
    """A query's newest result. tried, succeeded: when, in monotonic seconds, 0 for never"""

    curve: Curve
    lock: threading.Lock = field(default_factory=threading.Lock)
    data: Data = field(default_factory=dict)
    error: EsQueueError | None = None
    tried: float = 0.0
    succeeded: float = 0.0


class Looks:
    """All that the page shows. given: es-status's command line, which names the runs' place; every:
    seconds. Every method raises EsQueueError.
    """

    def __init__(self, given: argparse.Namespace, every: float) -> None:
        self._given, self._every = given, every
        self._lock, self._cache = threading.Lock(), OrderedDict[str, Look]()

    def runs(self) -> Data:
        """Every run, newest first."""

        def query(sources: Sources, _: Curve) -> Data:
            runs = sources.list_runs()
            return {"runs": [{**run.to_json(), "shown": shown_texts(run)} for run in runs]}

        return {**self._result("", query), "every": self._every}

    def run(self, name: str, figure: str = "") -> Data:
        """``es-status RUN --json``, with settings (``own``: those that differ from the default),
        curves, also of ``figure``, and expectations.
        """

        def query(sources: Sources, curve: Curve) -> Data:
            run = sources.find_run(name)
            run.source.read_details(run, curve)
            sentences = {one.name: one.sentence for one in FIGURES.values()}
            return {
                **run.to_json(),
                "shown": shown_texts(run),
                "config": to_plain_json(run.config),
                "settings": written_settings(run.config),
                "own": [name for name, value in run.config.items() if not is_default(name, value)],
                "recorded": [
                    (name, sentences.get(name, "")) for name in curve.recorded if name not in AXES
                ],
                "curves": curve.to_json(),
                "expect": [
                    {"env_steps": point.steps, "reward": point.reward, "note": point.note}
                    for point in recipe_points(run.config)
                ],
            }

        return self._result(f"run {name} {figure}", query, figure)

    def errors(self, name: str) -> Data:
        return self._result(
            f"errors {name}",
            lambda sources, _: dict(make_errors_page(sources.find_run(name)).data),
        )

    def archive(self, name: str) -> Data:
        """The elites of map_elites with their places on the map, from the newest checkpoint in the
        run's folder.
        """

        def query(sources: Sources, _: Curve) -> Data:
            run = sources.find_run(name).folder or find_run(name, self._given.runs_dir)
            if not run.folder.is_dir():
                raise UsageError(
                    f"the archive of {name} is in its folder, which is not on this host"
                )
            path = checkpoint_path(run.folder, "last")
            command = f"{format_command('es-play')} {run.word} --cell="
            return {**_read_archive(path, file_stamp(path)), "command": command}

        return self._result(f"archive {name}", query)

    def figures(self) -> Data:
        """For Prometheus: every run; of living ones also refusals and workers. Only ``trouble`` if
        it has never succeeded.
        """

        def query(sources: Sources, _: Curve) -> Data:
            runs = sources.list_runs()
            for run in [run for run in runs if run.leased][:MOST_DETAILED]:
                run.source.read_details(run)
            return {"runs": [run.to_json() for run in runs]}

        try:
            return self._result("figures", query)
        except EsQueueError as error:
            return {"trouble": str(error)}

    def _result(self, name: str, query: Callable[[Sources, Curve], Data], figure: str = "") -> Data:
        """A query runs at most once in half of ``every`` seconds, for all callers, and keeps its
        curve. If it failed: the last result, with ``trouble`` and its ``age`` in seconds. Raises
        EsQueueError if it has never succeeded, or if the run is gone.
        """
        with self._lock:
            look = self._cache.setdefault(name, Look(Curve(figure=figure)))
            self._cache.move_to_end(name)
            if len(self._cache) > MOST_CACHED:
                self._cache.popitem(last=False)
        with look.lock:
            if not look.tried or time.monotonic() - look.tried >= self._every / 2:
                try:
                    with find_sources(self._given) as sources:
                        look.data, look.error = query(sources, look.curve), None
                    look.succeeded = time.monotonic()
                except EsQueueError as error:
                    look.error = error
                finally:  # a long query is not repeated at once
                    look.tried = time.monotonic()
            if look.error is None:
                return {**look.data, "trouble": None, "age": 0.0}
            if not look.data or isinstance(look.error, NoRunError):
                raise look.error
            age = round(time.monotonic() - look.succeeded, 1)
            return {**look.data, "trouble": sanitize(look.error), "age": age}


@lru_cache(maxsize=4)
def _read_archive(path: Path, _: object) -> Data:
    # start-up: numpy and the strategy, for runs of map_elites
    import numpy as np

    from es_queue.strategies.map_elites_archive import read_archive

    archive, config = read_archive(path)
    cells = archive.cells
    if cells is None or not len(archive):
        raise UsageError("the archive has no elite yet")
    if archive.behaviour.size > MOST_NUMBERS:
        raise UsageError("the archive is too large for the page: draw it with es-plot --archive")
    is_grid = cells.units is None and len(cells.shape) <= 2  # a map shows two numbers
    # es-play finds an elite by any behaviour in its cell, such as the middle. Nine digits are
    # enough for float32.
    behaviour, place = (
        [[float(f"{value:.9g}") for value in row] for row in np.asarray(values).tolist()]
        for values in (
            archive.behaviour,
            cells.centroids[archive.cell] if is_grid else archive.behaviour,
        )
    )
    return {
        "low": cells.low.tolist(),
        "high": cells.high.tolist(),
        "shape": list(cells.shape) if is_grid else None,
        "count": cells.count,
        "coverage": archive.coverage,
        "qd_score": drawable_or_none(archive.qd_score(config.qd_offset)),
        "cell": archive.cell.tolist(),
        "fitness": [drawable_or_none(value) for value in archive.fitness.tolist()],
        "behaviour": behaviour,
        "place": place,
    }
