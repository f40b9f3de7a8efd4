"""The page of es-status and the metrics of workers, asked by those who do not have the token, or
under a stranger's name.
"""

from __future__ import annotations

import http.client
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from es_queue.credentials import TOKEN as TOKEN_VARIABLE
from es_queue.credentials import TOKEN_FILE, token_from_environment
from es_queue.errors import UsageError
from tests.faults.servers import free_port
from tests.integration.processes import BIN
from tests.page_server import TOKEN, served
from workers.heartbeat import EpisodeControl, WorkerMetrics, served_metrics

# --- the page of es-status and the metrics of workers, asked by those who do not have the token


PATHS = ("/", "/index.html", "/app.js", "/api/runs", "/api/runs/walk", "/metrics", "/nothing")
SHOWS = {
    "bearer": ("", {"Authorization": f"Bearer {TOKEN}"}),
    "address": (f"?token={TOKEN}", {}),
}


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/walk/redis").mkdir(parents=True)
    (tmp_path / "runs/walk/config.json").write_text('{"env": "CartPole-v1"}')


@pytest.fixture
def page() -> Iterator[int]:
    with served() as port:
        yield port


def asked(
    port: int | str, path: str, method: str = "GET", **headers: str
) -> tuple[int, http.client.HTTPMessage, str]:
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
    connection.request(method, path, headers={"Host": "localhost", **headers})
    reply = connection.getresponse()
    found = reply.status, reply.headers, reply.read().decode()
    connection.close()
    return found


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nothing_of_the_page_is_shown(page: int, path: str) -> None:
    port = page
    status, headers, text = asked(port, path)
    assert status == 403 and "Set-Cookie" not in headers and "walk" not in text
    assert "this page needs its token" in text and text.count("\n") <= 1 and TOKEN not in text
    assert asked(port, path, "HEAD")[0] == 403


@pytest.mark.parametrize("path", PATHS)
def test_another_pages_cookie_or_a_wrong_token_opens_nothing(page: int, path: str) -> None:
    port = page
    for wrong in ("", "x", TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "%00", "é", "%ED%A0%80"):
        address = wrong if wrong.isascii() else "%C3%A9"
        assert asked(port, f"{path}?token={address}")[0] == 403, wrong
        for header in (f"Bearer {wrong}", f"Basic {wrong}", f"Basic {TOKEN}", TOKEN):
            assert asked(port, path, Authorization=header)[0] == 403, header
        assert asked(port, path, Cookie=f"es-queue-{port}={wrong}")[0] == 403, wrong
        assert asked(port, path, Cookie=wrong if wrong.isascii() else "")[0] == 403, wrong
    assert asked(port, path, Cookie=f"es-queue-1{port}={TOKEN}; x={TOKEN}; {TOKEN}")[0] == 403


def test_the_address_with_the_token_sets_a_cookie_that_opens_the_page(page: int) -> None:
    port = page
    status, headers, _ = asked(port, f"/?x=1&token={TOKEN}")
    assert (status, headers["Location"], headers["Cache-Control"]) == (303, "/", "no-store")
    cookie, *rules = headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} == set(rules)
    # After the page has ended, browsers send it to the next server on the port.
    assert TOKEN not in cookie
    for path in PATHS:
        status, headers, text = asked(port, path, Cookie=f'odd={{"a": 1}}; {cookie}')
        assert status == (404 if path == "/nothing" else 200), (path, text)
        assert "Set-Cookie" not in headers and TOKEN not in text


def test_a_strangers_host_name_is_refused_even_with_the_token(page: int) -> None:
    for path in (f"/?token={TOKEN}", "/healthz"):
        assert asked(page, path, Host="evil.example")[0] == 421


def test_a_probe_needs_no_token_and_learns_nothing(page: int) -> None:
    assert asked(page, "/healthz")[::2] == (200, "the page answers\n")


def started(host: str = "127.0.0.1", **environment: str) -> tuple[str, str, int]:
    """es-status --web until it has answered: what it printed, its command line, and its port."""
    port = free_port()
    with subprocess.Popen(
        [BIN / "es-status", "--web", f"{host}:{port}"],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        token = environment.get(TOKEN_VARIABLE) or first.split()[0].partition("?token=")[2]
        assert asked(port, f"/?token={token}")[0] == 303, first
        assert asked(port, "/metrics", Authorization=f"Bearer {token}")[0] == 200
        assert asked(port, f"/metrics?token={token}x")[0] == 403
        words = Path(f"/proc/{process.pid}/cmdline").read_text()
        process.terminate()
        rest = process.stdout.read()
    assert token not in rest + words
    return first, rest, port


def test_a_random_token_is_printed_once_in_the_address_and_differs_at_each_start() -> None:
    found = [started()[0] for _ in range(2)]
    tokens = [re.fullmatch(r"http://127.0.0.1:\d+/\?token=(\S{40,})  \(.*\n", one) for one in found]
    assert tokens[0] and tokens[1] and tokens[0][1] != tokens[1][1]


def test_a_chosen_token_is_not_printed_and_no_request_is_logged() -> None:
    first, rest, port = started(**{TOKEN_VARIABLE: "chosen-by-the-user"})
    assert first.startswith(f"http://127.0.0.1:{port}/  (with ?token= ") and rest == ""
    assert "chosen-by" not in first and TOKEN_FILE in first


def test_a_token_comes_from_a_file_that_only_its_user_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, said = tmp_path / "token", list[str]()
    file.write_text("from-a-file-of-mine\n")
    file.chmod(0o600)
    monkeypatch.setenv(TOKEN_FILE, str(file))
    assert token_from_environment(said.append) == "from-a-file-of-mine" and said == []
    file.chmod(0o644)
    assert token_from_environment(said.append) == "from-a-file-of-mine"
    assert len(said) == 1 and "chmod 600" in said[0] and "token" in said[0]
    monkeypatch.setenv(TOKEN_VARIABLE, "another-token-of-mine")
    with pytest.raises(UsageError, match="two different tokens"):
        token_from_environment()


@pytest.mark.parametrize("token", [None, TOKEN])
def test_the_metrics_of_a_worker_check_host_and_token(
    token: str | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if token:
        monkeypatch.setenv(TOKEN_VARIABLE, token)
    metrics = WorkerMetrics({"run": "walk"}, EpisodeControl())
    with served_metrics(metrics, "127.0.0.1", free_port()) as port:
        for path in ("/metrics", "/", "/favicon.ico"):
            for host in ("evil.example", "10.0.0.5:9100", ""):
                bearer = {"Authorization": f"Bearer {TOKEN}"}
                assert asked(port, path, Host=host, **bearer)[0] == 421, host
            expected = 403 if token else 200
            assert asked(port, path)[0] == expected
            assert asked(port, path, Authorization=f"Bearer {TOKEN}x")[0] == expected
        for query, headers in SHOWS.values():
            status, _, text = asked(port, f"/metrics{query}", **headers)
            assert status == 200 and "es_queue_worker_blocks_total" in text
    assert capfd.readouterr() == ("", "")


# --- a page that everyone can reach answers only under the names that its operator gave: no
# stranger's name may lead to it


OWN = (
    "localhost",
    "LOCALHOST.",
    "localhost:8080",
    "127.0.0.1:8080",
    "[::1]",
)
STRANGE = (
    "node7",
    "evil.localhost",
    "10.0.0.5:8080",
    "169.254.169.254",
    "0.0.0.0:8080",
    "localhost.evil.example",
    "2130706433",
)


def asked_as(port: int, name: str, to: str = "127.0.0.1") -> tuple[int, str]:
    connection = http.client.HTTPConnection(to, port, timeout=20)
    connection.request("GET", "/", headers={"Host": name, "Authorization": f"Bearer {TOKEN}"})
    reply = connection.getresponse()
    status, text = reply.status, reply.read().decode("utf-8", "replace")
    connection.close()
    return status, text


def test_a_page_on_all_addresses_answers_as_loopback_only() -> None:
    with served("0.0.0.0") as page:
        assert {name: asked_as(page, name)[0] for name in STRANGE} == dict.fromkeys(STRANGE, 421)
        assert {name: asked_as(page, name)[0] for name in OWN} == dict.fromkeys(OWN, 200)


def test_hosts_that_the_operator_names_are_answered_whatever_their_spelling() -> None:
    with served("0.0.0.0", ["Node7.Example", "10.0.0.5", "fd00::1"]) as page:
        for name in (
            "node7.example",
            "NODE7.example.:9",
            "10.0.0.5:80",
            "[fd00::1]",
            "[FD00:0::1]:80",
        ):
            assert asked_as(page, name)[0] == 200, name
        for name in ("node7", "x.node7.example", "10.0.0.50", "[fd00::2]"):
            assert asked_as(page, name)[0] == 421, name
