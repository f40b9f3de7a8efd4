"""ES_QUEUE_METRICS_PORT: workers serve their figures to Prometheus, and nothing if it is unset."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from tests.cases import each_case
from tests.faults.servers import free_port
from tests.integration.processes import BIN, WALKER, Master, Processes, Seen, wait_for
from workers.es_worker import main as es_worker
from workers.heartbeat import ADDRESS, PORT

ENDLESS = {**WALKER, "generations": 100_000}
FIGURES = (
    *("episodes_total", "steps_total", "blocks_total", "late_blocks_total", "failures_total"),
    *("busy_seconds_total", "idle_ratio", "memory_bytes"),
)


def scraped(port: int) -> dict[str, float]:
    """Samples by name without prefix, and by each label's value; empty if nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
            text = reply.read().decode()
    except urllib.error.URLError:
        return {}
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    labels = {value: 1.0 for one in samples for value in one.labels.values()}
    return labels | {one.name.removeprefix("es_queue_worker_"): one.value for one in samples}


def work(port: int) -> Callable[[], dict[str, float]]:
    return lambda: figures if (figures := scraped(port)).get("blocks_total", 0) > 3 else {}


def listening(seat_pid: int) -> set[str]:
    """Addresses at which the process listens."""
    inodes = {
        match[1]
        for path in Path(f"/proc/{seat_pid}/fd").iterdir()
        if (match := re.fullmatch(r"socket:\[(\d+)\]", str(path.readlink())))
    }
    rows = [line.split() for line in Path(f"/proc/{seat_pid}/net/tcp").read_text().splitlines()[1:]]
    return {
        socket.inet_ntoa(bytes.fromhex(row[1][:8])[::-1])
        for row in rows
        if row[3] == "0A" and row[9] in inodes
    }


def test_each_worker_of_a_host_serves_its_own_figures_on_a_port_of_its_own(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    seen, first = Seen(redis_client, "measured"), free_port()
    start_master("measured", ENDLESS)
    host = processes.start(
        *(BIN / "es-worker", "--workers", 2, "--redis-url", valkey_url),
        **{PORT: str(first)},
    )
    # Another program may have a port between; the next one is taken then.
    figures = [wait_for(work(first), "figures of one worker")]
    second = wait_for(
        lambda: next((port for port in range(first + 1, first + 9) if scraped(port)), 0), "another"
    )
    figures.append(wait_for(work(second), "figures of the other"))
    workers = seen.workers()
    for each in figures:
        assert set(FIGURES) <= each.keys() and "measured" in each
        assert each["episodes_total"] >= each["blocks_total"] and each["failures_total"] == 0
        assert each["steps_total"] > each["episodes_total"]
        assert each["busy_seconds_total"] > 0 and 0 <= each["idle_ratio"] < 1
        assert 2**24 < each["memory_bytes"] < 2**30
    assert [name for each in figures for name in workers if name in each] != []
    assert f"metrics on 127.0.0.1, ports {first} to {first + 1}" in host.said()


def test_only_loopback_is_served_unless_an_address_is_named(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    seen, first = Seen(redis_client, "closed"), free_port()
    start_master("closed", ENDLESS)
    workers = [
        processes.worker(valkey_url, **environment)
        for environment in ({}, {PORT: str(first)}, {PORT: str(first), ADDRESS: "0.0.0.0"})
    ]
    wait_for(lambda: len(seen.workers()) == 3, "all have joined")
    addresses = [listening(seen.horse(seen.seat_of(worker))) for worker in workers]
    assert addresses == [set(), {"127.0.0.1"}, {"0.0.0.0"}]


@each_case(
    "text",
    [
        "http",
        "65536",
        "9100.5",
    ],
)
def test_es_worker_refuses_a_port_that_is_none(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PORT, text)
    assert es_worker(["--redis-url", "redis://localhost"]) == 2
    assert f"{PORT} is '{text}': use a port from 1 to 65535, or unset it" in capsys.readouterr().err
