"""A worker that lies, or computes otherwise than the others, among honest ones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.abuse.lying import OTHER, REPEAT
from tests.integration.processes import Master, Processes, Seen, Started, quiet_digest, wait_for

ROOT = Path(__file__).resolve().parents[2]
TINY = {
    "env": "CartPole-v1",
    "seed": 5,
    "population": 32,
    "step_limit": 30,
    "eval_every": 3,
    "eval_episodes": 2,
    "eval_step_limit": 30,
    "final_episodes": 4,
    "target_reward": "none",
    "noise_size": 2**18,
}


def lying(processes: Processes, url: str, name: str = "liar", **environment: str) -> Started:
    return processes.worker(
        url, "--name", name, "-w", "tests.abuse.lying.Worker", "--path", ROOT, **environment
    )


def among_three(processes: Processes, url: str, seen: Seen, **environment: str) -> list[Started]:
    """Three honest workers, and then one that is not, all of them with a seat: nobody can be held
    against a worker that is alone.
    """
    crowd = [processes.worker(url, "--name", f"honest-{number}") for number in range(3)]
    for one in crowd:
        seen.joined(one)
    crowd.append(lying(processes, url, **environment))
    seen.joined(crowd[-1])
    return crowd


def quarantined(seen: Seen) -> list[str]:
    return [name for _, name in json.loads(seen.progress().get("quarantined") or "[]")]


@pytest.fixture
def patient(start_master: Callable[..., Master]) -> Callable[..., Master]:
    """Starts masters whose blocks are single slots, so that each worker has some of every
    generation.
    """

    def start(run: str, **values: Any) -> Master:
        return start_master(run, {**TINY, "block": 1, **values})

    return start


@pytest.mark.parametrize("times", [1, 20], ids=["said once", "repeated"])
def test_where_every_slot_is_audited_a_liar_moves_no_bit(
    valkey_url: str,
    redis_client: redis.Redis,
    patient: Callable[..., Master],
    processes: Processes,
    times: int,
) -> None:
    seen = Seen(redis_client, "court")
    run = patient("court", audit=1.0, generations=400)
    among_three(processes, valkey_url, seen, **{REPEAT: str(times)})
    wait_for(lambda: quarantined(seen), "the liar is found")
    assert quarantined(seen) == ["liar"]
    found = seen.generation()
    wait_for(seen.has_reached(found + 5), "learning goes on")
    record = next(one for one in run.heard.records if one["generation"] > found)
    assert record["digest"] == quiet_digest(
        {**TINY, "generations": record["generation"] + 1}, record["generation"]
    )
    told = [one for one in run.heard.notes if "quarantine" in one and "audit:" in one]
    assert (
        len(told) == 1
        and told[0].startswith("audit: liar on ")
        and "are evaluated again" in told[0]
    )
    refusing = wait_for(
        lambda: (
            [
                about
                for about in seen.workers().values()
                if about["rq_name"] == "liar" and "refuses" in about
            ]
            or refusals(seen, "liar")
        ),
        "it keeps its seat and sleeps",
    )
    assert "quarantine" in refusing[0]["refuses"]


def refusals(seen: Seen, name: str) -> list[dict[str, str]]:
    """What workers of a name say of why they do not work; they have not joined."""
    names = [one.decode() for one in seen.client.smembers(seen.keys.workers)]
    abouts = [
        {
            key.decode(): value.decode()
            for key, value in seen.client.hgetall(seen.keys.worker(one)).items()
        }
        for one in names
    ]
    return [about for about in abouts if about.get("rq_name") == name and "refuses" in about]


def test_a_liar_among_four_is_found_as_soon_as_sampling_predicts_and_learning_continues(
    valkey_url: str, redis_client: redis.Redis, patient: Callable[..., Master], processes: Processes
) -> None:
    """16 slots a generation, of which it plays a few; one in ten is played again."""
    fraction, seen = 0.1, Seen(redis_client, "sampled")
    run = patient("sampled", audit=fraction, generations=2000, eval_every=0, eval_episodes=None)
    among_three(processes, valkey_url, seen)
    began = seen.generation()
    wait_for(lambda: quarantined(seen), "the liar is found", 120)
    assert quarantined(seen) == ["liar"]
    # Two slots of a generation are its own at the least, on average; by then all but one in a
    # million are found.
    assert seen.generation() - began <= math.log(1e-6) / (2 * math.log(1 - fraction))
    after = seen.generation()
    wait_for(seen.has_reached(after + 20), "learning goes on")
    later = [one for one in run.heard.records if one["generation"] > after + 1]
    assert later and all(one["return_max"] < 900 for one in later), (
        "none of its answers counts any more"
    )


def test_a_strict_run_does_without_the_worker_that_computes_otherwise(
    valkey_url: str, redis_client: redis.Redis, patient: Callable[..., Master], processes: Processes
) -> None:
    seen = Seen(redis_client, "strict")
    run = patient("strict", strict=True, generations=300)
    honest = [processes.worker(valkey_url, "--name", f"honest-{number}") for number in range(2)]
    for one in honest:
        seen.joined(one)
    wait_for(lambda: seen.progress().get("numerics"), "the run has its fingerprint")
    lying(processes, valkey_url, name="strange", **{OTHER: "1"})
    said = wait_for(lambda: refusals(seen, "strange"), "it says why it does not work")
    assert "--strict" in said[0]["refuses"] and "fingerprint" in said[0]["refuses"]
    assert seen.progress()["state"] == "running" and not any(
        "mixed fleet" in one for one in run.heard.notes
    )


def test_without_strict_other_arithmetic_is_called_a_mixed_fleet_and_is_no_liar(
    valkey_url: str, redis_client: redis.Redis, patient: Callable[..., Master], processes: Processes
) -> None:
    seen = Seen(redis_client, "mixed")
    run = patient("mixed", audit=1.0, generations=400)
    among_three(processes, valkey_url, seen, **{OTHER: "1"})
    wait_for(
        lambda: any("mixed fleet" in one for one in run.heard.notes), "the fleet is called mixed"
    )
    generation = seen.generation()
    wait_for(seen.has_reached(generation + 10), "learning goes on")
    assert quarantined(seen) == [] and seen.progress().get("audit_disputes") == "0"
