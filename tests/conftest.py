"""Fixtures that all folders share: a private Valkey server for the session, empty at the start of
each test.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest
import redis

from es_queue import private_files
from es_queue.protocol.connection import client_from_url
from master.display.notes import LOGGER, TERMINAL, NoteHandler
from master.services.private_server import PrivateServer
from tests.leaks import leaks_in
from tests.outcomes import record_outcome

#: How long an example takes says nothing on a busy machine. A failure prints what repeats it.
hypothesis.settings.register_profile("busy", deadline=None, print_blob=True)
hypothesis.settings.load_profile("busy")
os.umask(UMASK := os.umask(0))


def pytest_configure() -> None:
    """A shell starts what it puts in the background with SIGINT ignored, and children inherit that;
    tests of Ctrl-C need it heard.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


#: The fast tier: what needs no processes of ours but a server. Elsewhere a test is of the fast tier
#: by its own mark.
FAST_FOLDERS = ("tests/unit/", "tests/contract/", "tests/model/", "tools/")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test is of one tier: that of its mark, else fast by its folder, else full."""
    for item in items:
        if any(item.get_closest_marker(tier) for tier in ("slow", "full", "fast")):
            continue
        item.add_marker("fast" if item.nodeid.startswith(FAST_FOLDERS) else "full")


def pytest_runtest_teardown() -> None:
    """What a command that was called in this process has left must not reach the next test: its
    notes, its umask, and its way to end at Ctrl-C.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(UMASK)
    private_files._first_umask = None
    for logger in (LOGGER, TERMINAL):
        for handler in logger.handlers[:]:
            if isinstance(handler, NoteHandler):
                logger.removeHandler(handler)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    record_outcome(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    record_outcome(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Passwords of tests must stand in nothing that any test has left: logs, run folders, outputs
    of processes, servers' data.
    """
    if hasattr(
        session.config, "workerinput"
    ):  # of xdist: the folders of all its processes lie in that of the first
        return
    factory = getattr(session.config, "_tmp_path_factory", None)
    base = getattr(factory, "_basetemp", None)  # made by the first test that wants one
    if base is None and factory is not None and session.config.pluginmanager.hasplugin("dsession"):
        base = factory.getbasetemp()
    found = [] if base is None else leaks_in(base)
    if found:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"\n{len(found)} files hold a password of the tests:", *found[:20], sep="\n  ")


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that only this pytest process uses (with xdist: each worker process has
    its own).
    """
    server = PrivateServer(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
def valkey_url(valkey_server: str) -> str:
    """The URL of the session's server, which is empty now."""
    with client_from_url(valkey_server) as client:
        client.flushall()
        client.config_set("maxmemory", 0)
    return valkey_server


@pytest.fixture
def redis_client(valkey_url: str) -> Iterator[redis.Redis]:
    """A client of the session's server, built as the product builds its own: explicit time-outs, no
    silent re-sending.
    """
    with client_from_url(valkey_url) as client:
        yield client
