"""A page that everyone can reach answers only under the names that its operator gave: no stranger's
name may lead to it."""

from __future__ import annotations

import http.client

import pytest

from es_queue.errors import UsageError
from master.status.command import main
from tests.page_server import TOKEN, served

OWN = (
    "localhost",
    "LOCALHOST.",
    "localhost:8080",
    "127.0.0.1:8080",
    "127.9.9.9",
    "[::1]",
    "[0:0:0:0:0:0:0:1]:80",
)
STRANGE = (
    "node7",
    "es",
    "metadata.internal",
    "evil.localhost",
    "10.0.0.5:8080",
    "[fd00::1]",
    "169.254.169.254",
    "0.0.0.0:8080",
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "2130706433",
    "0x7f000001",
)


def asked(port: int, name: str, to: str = "127.0.0.1") -> tuple[int, str]:
    connection = http.client.HTTPConnection(to, port, timeout=20)
    connection.request("GET", "/", headers={"Host": name, "Authorization": f"Bearer {TOKEN}"})
    reply = connection.getresponse()
    status, text = reply.status, reply.read().decode("utf-8", "replace")
    connection.close()
    return status, text


def test_a_page_on_all_addresses_answers_as_loopback_only() -> None:
    with served("0.0.0.0") as page:
        assert {name: asked(page, name)[0] for name in STRANGE} == dict.fromkeys(STRANGE, 421)
        assert {name: asked(page, name)[0] for name in OWN} == dict.fromkeys(OWN, 200)


def test_the_refusal_is_one_sentence_that_names_the_flag_and_repeats_nothing() -> None:
    with served("0.0.0.0") as page:
        status, text = asked(page, "evil.example")
    assert (
        status == 421 and text.count("\n") == 1 and "--web-host NAME" in text and "evil" not in text
    )


def test_hosts_that_the_operator_names_are_answered_whatever_their_spelling() -> None:
    with served("0.0.0.0", ["Node7.Example", "10.0.0.5", "fd00::1"]) as page:
        for name in (
            "node7.example",
            "NODE7.example.:9",
            "10.0.0.5:80",
            "[fd00::1]",
            "[FD00:0::1]:80",
        ):
            assert asked(page, name)[0] == 200, name
        for name in ("node7", "x.node7.example", "10.0.0.50", "[fd00::2]"):
            assert asked(page, name)[0] == 421, name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "http://node7",
        "node7:80",
        "*",
        "[::1]:80",
        "x" * 5000 + "/",
    ],
)
def test_what_is_no_host_is_refused_with_its_value_and_the_fix(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(UsageError, match=r"--web-host is '.*: give the name or address"),
        served("127.0.0.1", [name]),
    ):
        pass
    assert main(["--web", "127.0.0.1:1", "--web-host", name]) == 2
    assert "--web-host is" in capsys.readouterr().err
