"""Joining a run: what a worker must agree on before its first claim."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

import es_queue
from es_queue.config.run_config import RunConfig
from es_queue.errors import EnvironmentFailure
from es_queue.numerics.noise_table import NoiseTable
from tests.cases import each_case
from tests.memory_channel import MemoryServer, MemoryWorkerChannel
from tests.parts import TABLE, task_of
from tests.ring import quick_config
from tests.tiny import MOODY, QUAD
from workers import join as join_module
from workers.episode import EpisodeControl
from workers.join import (
    JoinResult,
    Refusal,
    join,
    load_config,
    refusal_delay,
    validate_admission,
    validate_noise,
    wait_or_leave,
)


def joined(config: RunConfig) -> JoinResult:
    return join(config, EpisodeControl(), table=TABLE)


def moody(fault: str, **values: Any) -> RunConfig:
    return quick_config(env=MOODY, env_arg=(("fault", fault),), **values)


def test_a_worker_that_joins_is_ready_and_says_what_it_computes() -> None:
    one, other = joined(quick_config()), joined(quick_config())
    assert one.numerics == other.numerics and len(one.numerics) == 32
    assert one.noise_digest == TABLE.digest
    assert joined(quick_config(seed=4)).numerics != one.numerics
    assert joined(quick_config(env=QUAD)).numerics != one.numerics


@each_case("fault", ["never", "carry"])
def test_an_environment_that_does_not_repeat_itself_is_refused(fault: str) -> None:
    """Be it of its own accord, or because the episode before shows."""
    with pytest.raises(
        EnvironmentFailure, match=r"does not repeat itself.*--allow-nondeterministic"
    ):
        joined(moody(fault))


def test_an_environment_that_does_not_repeat_itself_may_be_allowed() -> None:
    assert joined(moody("never", allow_nondeterministic=True)).numerics


def test_an_environment_that_raises_is_joined_for_its_failures_are_counted_by_slot() -> None:
    """Refused here, nobody would ever tell the master that the run cannot go on."""
    assert (
        joined(moody("all")).numerics == joined(moody("all")).numerics != joined(moody("")).numerics
    )


def test_an_unknown_environment_is_refused() -> None:
    with pytest.raises(EnvironmentFailure, match="NoSuch"):
        joined(quick_config(env="NoSuch-v0"))


def test_another_noise_table_is_refused_by_both_digests() -> None:
    task, _ = task_of(2, 2)
    validate_noise(task.encode(), TABLE.digest)
    other = NoiseTable.in_memory(2**14, seed=5).digest
    with pytest.raises(Refusal, match=f"{other}.*{TABLE.digest}"):
        validate_noise(task.encode(), other)
    with pytest.raises(Refusal):
        validate_noise(replace(task, noise="0" * 32).encode(), TABLE.digest)


def test_a_host_on_which_two_back_ends_differ_that_should_be_equal_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = quick_config(env="CartPole-v1", backend="lean")
    assert joined(config).backend == "lean"
    prints = iter("ab")
    monkeypatch.setattr(join_module, "fingerprint", lambda *_: next(prints))
    with pytest.raises(Refusal, match="lean and stock play different episodes of CartPole-v1 here"):
        joined(config)


def test_a_run_without_a_task_refuses_nobody() -> None:
    validate_noise(None, TABLE.digest)


@each_case("raw", [b"", b"garbage"])
def test_a_task_that_this_version_cannot_read_is_refused_by_its_name(raw: bytes) -> None:
    with pytest.raises(
        Refusal, match=f"es-queue {es_queue.__version__} here cannot read the run's task"
    ):
        validate_noise(raw, TABLE.digest)


def test_settings_that_this_version_cannot_read_are_refused_by_its_name() -> None:
    config = quick_config()
    assert load_config(config.to_json().encode()) == (config, "")
    why = load_config(b'{"env": "CartPole-v1", "time_machine": 1}')[1]
    assert f"es-queue {es_queue.__version__} here" in why and "time_machine" in why


def test_who_is_refused_asks_ever_less_often() -> None:
    assert [refusal_delay(count) for count in (0, 1, 5, 6, 7, 10**6)] == [1, 2, 32, 60, 60, 60]


def test_waiting_ends_when_the_worker_is_told_to_leave() -> None:
    watch = EpisodeControl()
    watch.leave_reason = "asked"
    began = time.monotonic()
    wait_or_leave(watch, 60, 0.01)
    assert time.monotonic() - began < 5
    wait_or_leave(EpisodeControl(), 0.02, 60)
    assert time.monotonic() - began < 5


def test_a_worker_of_other_arithmetic_refuses_to_join_a_strict_run() -> None:
    server = MemoryServer()
    channel, strict = MemoryWorkerChannel(server, "host-1-abcdef"), quick_config(strict=True)
    validate_admission(channel, strict, "1" * 32)
    server.progress["numerics"] = "2" * 32
    with pytest.raises(Refusal, match=r"numerics: .*11111111.*22222222.*--strict"):
        validate_admission(channel, strict, "1" * 32)
    validate_admission(channel, quick_config(), "1" * 32)
    validate_admission(channel, strict, "2" * 32)
