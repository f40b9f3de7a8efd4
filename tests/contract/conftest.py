"""Each test of the contract runs against every implementation of the channel."""

from __future__ import annotations

import pytest

from tests.contract.places import MemoryPlace, Place, RedisPlace


@pytest.fixture(params=["memory", "redis"])
def place(request: pytest.FixtureRequest) -> Place:
    """An empty server of one kind."""
    if request.param == "memory":
        return MemoryPlace()
    return RedisPlace(request.getfixturevalue("redis_client"))


@pytest.fixture
def redis_place(request: pytest.FixtureRequest) -> RedisPlace:
    """An empty Redis server, for what only Redis has."""
    return RedisPlace(request.getfixturevalue("redis_client"))
