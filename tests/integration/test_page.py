"""The page over HTTP, against hostile clients: paths, methods, names, and malformed requests."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from master.status.command import main
from tests.cases import each_case
from tests.page_server import TOKEN, asked, served

LOCAL = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


@pytest.fixture
def page() -> Iterator[int]:
    with served() as port:
        yield port


def raw(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(data)
        with suppress(OSError):  # it may have hung up already
            client.shutdown(
                socket.SHUT_WR
            )  # nothing more comes: the server need not wait for the rest of a line
        found = b""
        while piece := client.recv(65536):
            found += piece
    return found


def test_the_page_and_all_that_it_loads_are_there_and_come_from_here_alone(page: int) -> None:
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
            and headers["Cache-Control"] == "no-store"
        )


def test_a_run_is_told_with_its_settings_and_whole_curves(page: int) -> None:
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
        "/../../etc/passwd",
        "/%2e%2e/pages.py",
        "/static/app.js",
        "/api/runs/../x",
        "/api/runs/no-such",
        "/api/runs/" + "a" * 9000,
        "/\x00",
    ],
)
def test_what_is_not_there_is_404_and_leads_nowhere(page: int, path: str) -> None:
    answer = raw(page, b"GET " + path.encode() + b" HTTP/1.1\r\n" + LOCAL + b"\r\n")
    assert answer.split(b" ")[1] in (b"404", b"400"), answer[:200]
    assert b"root:" not in answer and b"def " not in answer


@each_case("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_sent(page: int, method: str) -> None:
    status, headers, _ = asked(page, "/api/runs", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


@each_case(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\xff",
        b"GET / HTTP/9.9\r\n\r\n",
        b"G" * 70_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 500 + b"\r\n",
        b"GET <script> HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 9000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: <b>\r\n\r\n",
    ],
)
def test_a_malformed_request_gets_a_plain_sentence_or_nothing_and_the_page_answers_on(
    page: int, data: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        answer = raw(page, data)
    except ConnectionError:
        answer = b""  # it had not sent all when it was refused
    assert b"text/html" not in answer and b"Traceback" not in answer and b"200 OK" not in answer
    assert not answer or b"Content-Type: text/plain" in answer
    assert asked(page, "/")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_a_port_in_use_ends_the_command_with_2_and_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["--web", f"127.0.0.1:{taken.getsockname()[1]}"]) == 2
    told = capsys.readouterr()
    assert (
        told.out == "" and told.err.count("\n") == 1 and "another program listens there" in told.err
    )
