"""The page over HTTP, against browsers that mean no good: paths, methods, names, slow clients, and
many of them.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from master.services.tcp_access import Address
from master.status.command import main
from master.status.web import server as module
from master.status.web.pages import WebRoutes
from master.status.web.queries import DashboardQueries
from master.status.web.server import WebServer
from tests.cases import each_case

TOKEN = "a-token-of-the-tests"
LOCAL = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RQ_REDIS_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    made = Path("runs/walker-1")
    (made / "redis").mkdir(parents=True)
    (made / "config.json").write_text(
        json.dumps({"env": HOSTILE, "strategy": "pgpe", "seed": 5, HOSTILE: HOSTILE})
    )
    (made / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"generation": one, "env_steps": one, "return_mean": 1.0, "eval_mean": 2.0})
            + "\n"
            for one in range(200)
        )
    )
    (made / "checkpoints").mkdir()


def looks() -> DashboardQueries:
    return DashboardQueries(
        argparse.Namespace(
            run=None,
            run_folder=None,
            redis_url=None,
            run_dir=None,
            runs_dir=None,
            redis_password_file=None,
        ),
        0.2,
    )


@contextmanager
def served(host: str = "127.0.0.1", names: Sequence[str] = ()) -> Iterator[WebServer]:
    """A page on a free port, as es-status serves it."""
    server = WebServer(Address(host, 0), WebRoutes(looks()), TOKEN, names)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        connections = list(server.active_channels.values())
        server.trigger.pull_trigger(server._map.clear)  # ends its loop
        thread.join(20)
        server.task_dispatcher.shutdown()
        for connection in connections:
            connection.close()
        server.close()


@pytest.fixture
def page() -> Iterator[WebServer]:
    with served() as server:
        yield server


def asked(
    server: WebServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, Mapping[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.effective_port, timeout=20)
    connection.request(
        method,
        path,
        headers={
            "Host": "localhost",
            "Authorization": f"Bearer {TOKEN}",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        },
    )
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read()
    connection.close()
    return found


def raw(server: WebServer, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.effective_port), timeout=20) as client:
        client.sendall(data)
        with suppress(OSError):  # it may have hung up already
            client.shutdown(
                socket.SHUT_WR
            )  # nothing more comes: the server need not wait for the rest of a line
        found = b""
        while piece := client.recv(65536):
            found += piece
    return found


def test_the_page_and_all_that_it_loads_are_there_and_come_from_here_alone(page: WebServer) -> None:
    status, headers, body = asked(page, "/")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Content-Security-Policy"].startswith(
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"
    )
    assert (
        "unsafe" not in headers["Content-Security-Policy"]
        and headers["X-Content-Type-Options"] == "nosniff"
    )
    assert (
        b"style=" not in body
        and b"onclick" not in body
        and b"http" not in body.replace(b"http-equiv", b"")
    )
    for name in ("app.js", "chart.js", "detail.js", "dom.js", "words.js", "style.css", "icon.svg"):
        status, headers, body = asked(page, f"/{name}")
        assert (
            status == 200
            and body
            and b"innerHTML" not in body
            and b"eval(" not in body
            and headers["Cache-Control"] == "no-cache"
        )
        assert asked(page, f"/{name}", If_None_Match=headers["ETag"])[0::2] == (304, b"")


def test_a_run_is_told_with_its_settings_and_whole_curves(page: WebServer) -> None:
    listed = json.loads(asked(page, "/api/runs")[2])
    assert [one["run"] for one in listed["runs"]] == ["walker-1"] and listed["trouble"] is None
    status, headers, body = asked(page, "/api/runs/walker-1", Accept_Encoding="gzip, br")
    assert (
        status == 200
        and headers["Content-Encoding"] == "gzip"
        and headers["Cache-Control"] == "no-store"
    )
    run = json.loads(gzip.decompress(body))
    assert (
        run["curves"]["evaluation"]["generation"] == list(range(200)) and run["config"]["seed"] == 5
    )
    assert "seed" in run["own"] and "population" not in run["own"]
    assert asked(page, "/api/runs?x=1")[0] == 200


@each_case(
    "path",
    [
        "/nothing",
        "/../../etc/passwd",
        "/%2e%2e/pages.py",
        "//etc/passwd",
        "/static/app.js",
        "/api/runs/",
        "/api/runs/../x",
        "/api/runs/UPPER",
        "/api/runs/no-such",
        "/api/runs/walker-1/other",
        "/api/runs/" + "a" * 9000,
        "/app.js/",
        "/\x00",
    ],
)
def test_what_is_not_there_is_404_and_leads_nowhere(page: WebServer, path: str) -> None:
    answer = raw(page, b"GET " + path.encode() + b" HTTP/1.1\r\n" + LOCAL + b"\r\n")
    assert answer.split(b" ")[1] in (b"404", b"400"), answer[:200]
    assert b"root:" not in answer and b"def " not in answer


@each_case("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_sent(page: WebServer, method: str) -> None:
    status, headers, _ = asked(page, "/api/runs", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_requests_beyond_those_that_may_wait_are_closed_and_the_rest_is_answered(
    page: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 3)
    goes_on = threading.Event()

    def wait(*_: object) -> dict[str, Any]:
        assert goes_on.wait(60)
        return {"runs": []}

    monkeypatch.setattr(DashboardQueries, "runs", wait)
    clients = [
        socket.create_connection(("127.0.0.1", page.effective_port), timeout=20) for _ in range(20)
    ]
    try:
        for client in clients:
            client.sendall(b"GET /api/runs HTTP/1.1\r\n" + LOCAL + b"\r\n")
        closed, _, _ = select.select(clients, [], [], 20)
        assert closed and all(client.recv(100) == b"" for client in closed)
        goes_on.set()
        served = [client.recv(15) for client in clients if client not in closed]
        assert b"HTTP/1.1 200 OK" in served
    finally:
        goes_on.set()
        for client in clients:
            client.close()


@each_case("name", ["evil.example", "localhost.evil.example", "10.1.2.3:80"])
def test_strangers_names_for_this_host_are_not_answered(page: WebServer, name: str) -> None:
    assert asked(page, "/api/runs", Host=name)[0] == 421


@each_case(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\xff",
        b"GET /\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"G" * 70_000 + b"\r\n\r\n",
        b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 500 + b"\r\n",
        b"GET <script> HTTP/1.1\r\n\r\n",
        b"GET http://[<b> HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n <b>: c\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 9000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: <b>\r\n\r\n",
    ],
)
def test_what_is_no_request_gets_a_plain_sentence_and_repeats_nothing(
    page: WebServer, data: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        answer = raw(page, data)
    except ConnectionError:
        answer = b""  # it had not sent all when it was refused
    assert b"<" not in answer and b"Traceback" not in answer and b"200 OK" not in answer
    assert asked(page, "/")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_a_client_that_sends_slowly_has_only_so_many_seconds(
    page: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", page.effective_port), timeout=20) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nX: ")
        deadline = time.monotonic() + 20
        with suppress(ConnectionError):
            while time.monotonic() < deadline:  # a byte now and then: it is never silent
                slow.sendall(b"x")
                if select.select([slow], [], [], 0.05)[0]:
                    assert slow.recv(65536) == b"", "closed before the request was whole"
                    break
        assert time.monotonic() < deadline


def test_a_port_in_use_ends_the_command_with_2_and_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["--web", f"127.0.0.1:{taken.getsockname()[1]}"]) == 2
    told = capsys.readouterr()
    assert (
        told.out == "" and told.err.count("\n") == 1 and "another program listens there" in told.err
    )
