"""How many workers one master and one Redis can serve, from the fitted service times: the table of
``docs/scale.md``.

A worker's time beside its episodes is its waiting between two generations, and at the end of one
for the last slot. In the asynchronous schedule it waits for nothing of that, as long as the master
closes within the block that each worker has waiting. The master's and Redis' time is what blocks,
looks and beats take of each second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from es_queue.config.run_config import ASYNC, SYNC
from es_queue.protocol.timing import Clocks
from master.collect.blocks.block_scheduler import BLOCK_SECONDS, SHARES_PER_WORKER
from tools.benchmarks.cluster.services import Services
from tools.benchmarks.cluster.simulation.discrete_events import POLLS_PER_SECOND, WORTH_SHARING

EFFICIENCY = 0.9
#: A server that works a larger share of the time than this makes others queue.
BUSY = 0.7
MOST = 10_000
PARAMETERS, POPULATIONS, EPISODES = (
    (1_000, 166_673, 1_700_000),
    (1_000, 10_000, 100_000),
    (0.02, 0.1, 1.0, 10.0),
)
PER_HOST = 48
NETWORK_BYTES = 1.25e8  # a second, on 1 Gb/s
SHORT, FEW, MASTER, REDIS, CLIENTS = (
    "generation too short",
    "population",
    "master",
    "Redis",
    "connections",
)
REMEDY = {
    SHORT: (
        "a larger population, or fewer workers: the waiting between two generations is too large "
        "a share"
    ),
    FEW: (
        "a larger population: more workers than it has pairs would answer to parameters that are "
        "generations old"
    ),
    MASTER: "larger blocks (--block), a lower --obs-sample, or results joined on each host",
    REDIS: "larger blocks, Redis on a core of its own, and near the master",
    CLIENTS: "raise maxclients: a plain worker has five connections",
}


@dataclass(frozen=True)
class Case:
    """One kind of run. seconds: of an episode."""

    parameters: int
    population: int
    seconds: float

    @property
    def slots(self) -> int:
        return self.population // 2


def playing(case: Case, workers: int) -> float:
    """Seconds of a generation in which its episodes are played."""
    return max(case.population * case.seconds / workers, 2 * case.seconds)


def last_blocks(case: Case, workers: int) -> float:
    """Blocks of a synchronous generation's end, which shrink to one slot: a worker takes its share
    of what is left, halved.
    """
    slot, share = 2 * case.seconds, min(BLOCK_SECONDS, playing(case, workers) / SHARES_PER_WORKER)
    return min(case.slots, workers * SHARES_PER_WORKER * (1 + math.log(max(1.0, share / slot))))


def blocks(case: Case, workers: int, schedule: str) -> float:
    """Blocks of a generation."""
    slot, whole = 2 * case.seconds, playing(case, workers)
    if schedule == ASYNC:
        return case.slots / max(1, int(min(BLOCK_SECONDS, whole / 4) / slot))
    before = (
        workers * max(0.0, whole - SHARES_PER_WORKER * BLOCK_SECONDS) / max(slot, BLOCK_SECONDS)
    )
    return min(case.slots, before + last_blocks(case, workers))


def trips(services: Services) -> float:
    """Seconds of Redis for one block."""
    return services.answer + services.claim + services.entry


def loads(case: Case, workers: int, services: Services, schedule: str = SYNC) -> dict[str, float]:
    """Share of its time that the master and Redis work while the episodes are played."""
    slots, number = (
        case.slots / playing(case, workers),
        blocks(case, workers, schedule) / playing(case, workers),
    )
    poll = min(max(Clocks().leave_poll, workers / POLLS_PER_SECOND), Clocks().beat_ttl / 2)
    beat = min(max(Clocks().beat, 2.5 * poll), Clocks().beat_ttl / 2)
    fixed, answer, slot = services.read
    tick, worker, missing = services.tick
    script, unanswered, claims = services.reconcile
    reads = min(number, 1 / fixed / 10)  # the busier the master, the more answers a read brings
    master = (
        reads * fixed
        + number * answer
        + slots * slot
        + tick
        + worker * workers
        + missing * case.slots / 2
    )
    redis = number * trips(services) + reads * services.claim + workers * services.orders / poll
    redis += (
        workers * (services.alive + services.beat) / beat
        + script
        + unanswered * case.slots / 2
        + claims * workers
    )
    return {MASTER: master, REDIS: redis + asked(case, workers, services) / playing(case, workers)}


def asked(case: Case, workers: int, services: Services) -> float:
    """Seconds of Redis for a generation's header and parameters."""
    size = 4 * case.parameters
    askers = -(-workers // PER_HOST) if size >= WORTH_SHARING else workers
    return askers * (2 * services.task + services.fetched_byte * size)


def gap(case: Case, workers: int, services: Services) -> float:
    """Seconds between a generation's last answer and the next one's first episode on the
    last host.
    """
    return (
        turn(case, workers, services, SYNC)
        + fetch(case, workers, services)
        + workers * services.claim / 2
    )


def turn(case: Case, workers: int, services: Services, schedule: str) -> float:
    """Seconds in which the master learns and publishes."""
    fixed, slot, both = services.close_async if schedule == ASYNC else services.close
    close = fixed + slot * case.slots + both * case.slots * case.parameters
    opened = services.open[0] + services.open[1] * case.slots + services.open[2] * case.parameters
    return (
        close + opened + services.publish[0] + services.publish[1] * blocks(case, workers, schedule)
    )


def fetch(case: Case, workers: int, services: Services) -> float:
    """Seconds until the last worker has the new parameters."""
    size, hosts = 4 * case.parameters, -(-workers // PER_HOST)
    return (
        asked(case, workers, services) + hosts * size / NETWORK_BYTES + services.digest_byte * size
    )


def efficiency(case: Case, workers: int, services: Services, schedule: str = SYNC) -> float:
    """Busy time in that available, for episodes of about equal length: at the end a worker waits
    for half a slot.
    """
    work, whole = case.population * case.seconds / workers, playing(case, workers)
    if schedule == ASYNC:
        waiting = max(2 * case.seconds, min(BLOCK_SECONDS, work / 4))
        idle = (
            max(0.0, turn(case, workers, services, schedule) - waiting)
            + fetch(case, workers, services) / 2
        )
        return work / (work + idle)
    crowded = max(
        0.0,
        last_blocks(case, workers) * trips(services)
        - BUSY * min(whole, SHARES_PER_WORKER * BLOCK_SECONDS),
    )
    return work / (whole + min(case.seconds, whole / 2) + crowded + gap(case, workers, services))


def carried(case: Case, services: Services, schedule: str = SYNC) -> tuple[int, str]:
    """(workers, what limits them): the most at which 90 % of the workers' time goes into episodes
    and nothing is overrun.
    """

    def limit(workers: int) -> str:
        found = loads(case, workers, services, schedule)
        if found[MASTER] > BUSY:
            return MASTER
        if found[REDIS] > BUSY:
            return REDIS
        if schedule == ASYNC and workers > case.slots:
            return FEW
        return SHORT if efficiency(case, workers, services, schedule) < EFFICIENCY else ""

    low, high = 0, MOST
    if not limit(high):
        return high, CLIENTS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if limit(middle) else (middle, high)
    return low, limit(high)


def table(services: Services, schedule: str = SYNC) -> str:
    """Markdown: a row for each number of parameters and population, a column for each length of an
    episode.
    """
    lines = [
        "| parameters | population | "
        + " | ".join(f"{seconds:g} s" for seconds in EPISODES)
        + " |",
        "|---" * (2 + len(EPISODES)) + "|",
    ]
    for parameters in PARAMETERS:
        for population in POPULATIONS:
            cells = [
                carried(Case(parameters, population, seconds), services, schedule)
                for seconds in EPISODES
            ]
            shown = " | ".join(
                f"{workers:,}{'+' if why == CLIENTS else ''} ({why})" for workers, why in cells
            )
            lines.append(f"| {parameters:,} | {population:,} | {shown} |")
    return "\n".join(lines)


def page(services: Services) -> str:
    """The advice as it stands in ``docs/scale.md``."""
    beyond = "\n".join(f"- *{why}*: {what}." for why, what in REMEDY.items())
    return (
        "## How many workers one master and one Redis can serve\n\n"
        "The tables show how many workers are useful, by the length of an episode. Each worker "
        f"spends at least {EFFICIENCY:.0%} of its time on episodes, and the master and Redis are "
        f"busy for at most {BUSY:.0%} of theirs. The first limit is in parentheses. The "
        f"assumptions are mirrored pairs, episodes of about equal length, {PER_HOST} workers "
        "per host, and 1 Gb/s.\n\n"
        "If lengths differ much, the longest slot of a generation bounds the synchronous schedule: "
        "its efficiency is at most a worker's mean work divided by that slot. The asynchronous "
        "schedule has no such bound. With more workers than pairs in the population, its results "
        "only become older.\n\n"
        f"Synchronous:\n\n{table(services)}\n\nAsynchronous:\n\n{table(services, ASYNC)}\n\nTo go "
        f"beyond these limits:\n\n{beyond}\n"
    )
