"""Who lives, and what of them is read again."""

from __future__ import annotations

from collections import Counter

from es_queue.protocol.channel import NO_WORKERS, WorkerInfos
from master.collect.worker_watch import MOST_READ_WHOLE, REFRESH_TURNS, WorkerPoller
from tests.memory_channel import MemoryMasterChannel, MemoryServer, MemoryWorkerChannel


class Counting(MemoryMasterChannel):
    """Counts whose words were read."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.read: Counter[str] = Counter()

    def workers(self, known: WorkerInfos = NO_WORKERS) -> dict[str, dict[str, str]]:
        found = super().workers(known)
        self.read = Counter(set(found) - set(known))
        return found


def fleet(count: int) -> Counting:
    server = MemoryServer()
    for number in range(count):
        MemoryWorkerChannel(server, f"host-{number}-abcdef").arrive(
            {"host": str(number), "numerics": "0"}, 60
        )
    return Counting(server)


def test_a_small_fleet_is_read_whole_each_time() -> None:
    channel, poller = fleet(MOST_READ_WHOLE), WorkerPoller()
    for _ in range(3):
        assert len(poller.poll(channel)) == MOST_READ_WHOLE == channel.read.total()


def test_of_a_large_fleet_everybody_is_read_again_within_so_many_looks_but_few_at_once() -> None:
    channel, poller = fleet(1000), WorkerPoller()
    poller.poll(channel)
    assert channel.read.total() == 1000
    again: Counter[str] = Counter()
    for _ in range(REFRESH_TURNS):
        poller.poll(channel)
        assert channel.read.total() < 3 * 1000 / REFRESH_TURNS
        again += channel.read
    assert set(again.values()) == {1} and len(again) == 1000


def test_a_newcomer_is_read_again_until_it_has_joined() -> None:
    channel, poller = fleet(500), WorkerPoller()
    new = MemoryWorkerChannel(channel.server, "new-1-abcdef")
    new.arrive({"host": "new"}, 60)
    poller.poll(channel)
    new.depart()
    new.arrive({"host": "new", "numerics": "1"}, 60)
    assert poller.poll(channel)["new-1-abcdef"]["numerics"] == "1"


def test_who_comes_goes_or_refuses_in_a_large_fleet_is_seen_at_once() -> None:
    channel, poller = fleet(500), WorkerPoller()
    poller.poll(channel)
    new = MemoryWorkerChannel(channel.server, "new-1-abcdef")
    new.arrive({"refuses": "Refusal: noise"}, 60)
    MemoryWorkerChannel(channel.server, "host-7-abcdef").depart()
    found = poller.poll(channel)
    assert found["new-1-abcdef"]["refuses"] and "host-7-abcdef" not in found and len(found) == 500
    new.depart()
    new.arrive({"host": "new"}, 60)
    assert poller.poll(channel)["new-1-abcdef"] == {"host": "new"}
