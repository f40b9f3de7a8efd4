"""Where the page may be served, and under which names it answers."""

from __future__ import annotations

import socket

import pytest

from es_queue.errors import UsageError
from es_queue.security.web_access import is_host_allowed, is_loopback
from master.services.tcp_access import Address
from master.status.web.server import bind_error, hosts_of, parse_web_address
from tests.cases import each_case


@each_case(
    ("text", "host", "port"),
    [
        ("", "127.0.0.1", 8642),
        (":9000", "127.0.0.1", 9000),
        ("0.0.0.0:80", "0.0.0.0", 80),
        ("[::1]", "::1", 8642),
        ("localhost:1", "localhost", 1),
    ],
)
def test_what_is_left_open_is_loopback_and_our_port(text: str, host: str, port: int) -> None:
    assert parse_web_address(text) == Address(host, port)


@each_case("text", ["8080", "a:b", "host:0", "host:65536", "::1:80", "x" * 5000 + "/"])
def test_what_is_no_address_is_refused_in_a_sentence_that_names_the_flag(text: str) -> None:
    with pytest.raises(UsageError, match=r"^web is '.*: use HOST:PORT"):
        parse_web_address(text)


@each_case(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.evil", False),
    ],
)
def test_loopback_is_told_from_what_others_reach(host: str, local: bool) -> None:
    assert is_loopback(host) == local


@each_case(
    "header",
    [
        "localhost",
        "localhost:8642",
        "LOCALHOST:1",
        "127.0.0.1:8642",
        "[::1]:8642",
        "[::1]",
        "localhost.",
    ],
)
def test_this_hosts_own_names_are_answered(header: str) -> None:
    assert is_host_allowed(header) and is_host_allowed(header, {"node7"})


@each_case(
    "header",
    [
        None,
        "",
        "evil.example",
        "evil.example:8642",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "10.0.0.5:8642",
        "a b",
        "x@localhost",
        "localhost/",
        "localhost:99999999",
        "[evil]",
    ],
)
def test_a_page_on_loopback_is_not_answered_under_a_name_that_a_stranger_may_have_led_here(
    header: str | None,
) -> None:
    assert not is_host_allowed(header)


def test_a_page_answers_under_its_own_address_and_the_names_that_it_was_given() -> None:
    assert hosts_of(Address("0.0.0.0", 80), ["Node7.", "FD00:0::1", "[fd00::2]"]) == {
        "node7",
        "fd00::1",
        "fd00::2",
    }
    assert hosts_of(Address("::", 80), []) == set()
    assert hosts_of(Address("10.0.0.5", 80), []) == {"10.0.0.5"}
    own = hosts_of(Address("10.0.0.5", 80), ["node7.local"])
    for header in ("10.0.0.5:8642", "node7.local", "localhost"):
        assert is_host_allowed(header, own), header
    for header in (
        "10.0.0.6",
        "node7",
        "node8.local",
        "es.default.svc",
        "page.localhost",
        "metadata.internal",
        None,
    ):
        assert not is_host_allowed(header, own), header


def test_a_port_in_use_is_one_sentence_with_a_free_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(OSError) as found:
            socket.create_server(("127.0.0.1", address.port))
        text = str(bind_error(address, found.value))
    assert (
        text.startswith(f"web cannot be served at {address}: another program listens there")
        and "--web 127.0.0.1:" in text
        and "\n" not in text
    )
