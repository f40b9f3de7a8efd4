"""A run whose number of episodes per individual changes: what is played, recorded and published."""

from __future__ import annotations

import json
from typing import Any

import pytest

from es_queue.config.run_config import RunConfig
from es_queue.strategies.wrappers import uncertainty
from tests.integration.test_strategies_ring import SEARCHES
from tests.memory_channel import MemoryServer
from tests.ring import Sink, run_ring
from tests.ring import quick_config as config_of

#: Episodes per individual of its generations.
PLAYED = [1, 1, 2, 3, 4, 3, 3, 4]


class Watching(Sink):
    """Remembers the settings that workers could read in each generation."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__()
        self.server, self.configs = server, list[dict[str, Any]]()

    def generation(self, record: dict[str, Any]) -> None:
        super().generation(record)
        assert self.server.config is not None
        self.configs.append(json.loads(self.server.config))


def uncertain() -> RunConfig:
    return config_of(**SEARCHES["uncertain"])


def test_each_generation_plays_the_number_that_it_records() -> None:
    _, sink = run_ring(uncertain(), 2)
    trained = [record for record in sink.records if record["population"]]
    assert [record["episodes_per_individual"] for record in trained] == PLAYED
    assert [record["episodes_generation"] for record in trained] == [
        number * record["population"] for number, record in zip(PLAYED, trained, strict=True)
    ]


def test_workers_that_join_later_read_the_settings_of_the_run() -> None:
    server = MemoryServer()
    sink = Watching(server)
    run_ring(uncertain(), 2, server=server, sink=sink)
    assert {config["episodes"] for config in sink.configs} == {1}


def test_the_number_can_fall_again(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = iter([1.0, 1.0, 1.0, *[-9.0] * 5])
    monkeypatch.setattr(uncertainty, "rank_change", lambda first, second: next(changes))
    _, sink = run_ring(uncertain(), 2)
    numbers = [record.get("episodes_per_individual") for record in sink.records]
    assert numbers == [1, 1, 2, 3, 3, 2, 2, 2, None]
