"""A worker's side of the store: arrive, beat, orders, claim, give, drop, give back, report."""

from __future__ import annotations

import threading
from collections import Counter

from es_queue.protocol.store import WorkerFlags
from tests.cases import each_case
from tests.contract.places import (
    ABOUT,
    P0,
    P1,
    RUNNING,
    TOKEN,
    TTL,
    Place,
    block,
    moments,
    read,
    results,
    texts,
    wait_until,
)


def test_a_claim_moves_the_head_of_todo_to_the_end_of_my_claims(place: Place) -> None:
    place.publish(P0, block(0, 4), block(4, 8), block(8, 9))
    worker = place.arrived()
    assert worker.claim(0.01) == block(0, 4)
    assert worker.claim(0.01) == block(4, 8)
    assert place.todo() == texts(block(8, 9))
    assert place.claims() == texts(block(0, 4), block(4, 8))
    assert worker.held_blocks() == [block(0, 4), block(4, 8)]
    assert place.worker(2).held_blocks() == []


def test_a_claim_waits_for_a_block_and_gives_up(place: Place) -> None:
    master = place.publish(P0)
    worker = place.arrived()
    assert worker.claim(0.01) is None
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(worker.claim(4.0)))
    thread.start()
    master.issue(TOKEN, P0, [block(0, 4)])
    thread.join(15)
    assert found == [block(0, 4)]


def test_a_claim_that_may_not_wait_returns_at_once(place: Place) -> None:
    place.publish(P0)
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(place.arrived().claim(0.0)), daemon=True)
    thread.start()
    thread.join(3)
    assert found == [None]


def test_many_workers_never_share_a_block(place: Place) -> None:
    blocks = [block(slot, slot + 1) for slot in range(60)]
    place.publish(P0, *blocks)
    taken: list[str] = []

    def work(number: int) -> None:
        worker = place.arrived(number)
        while (found := worker.claim(0.01)) is not None:
            taken.append(str(found))
            worker.answer(found, results(found.start), b"")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert Counter(taken) == Counter(texts(*blocks))
    assert Counter(place.given()) == Counter(range(60))


@each_case(
    "garbage",
    ["", "nonsense", f"{P0} train 4 4", f"{P0} train 0 5000", f"{P0} other 0 1", "é" * 10],
)
def test_what_is_no_block_is_dropped_from_claims_and_by_a_claim(place: Place, garbage: str) -> None:
    place.flush()
    place.publish(P0)
    worker = place.arrived()
    place.add_claim(garbage)
    place.add_claim(str(block(0, 4)))
    assert worker.held_blocks() == [block(0, 4)]
    place.add_todo(garbage)
    assert worker.claim(0.01) is None
    assert place.todo() == []
    assert place.claims() == texts(block(0, 4)), "garbage that stayed would be found again for ever"


def test_results_are_appended_and_the_claim_dropped(place: Place) -> None:
    master = place.publish(P0, block(0, 4), block(4, 8))
    worker = place.arrived()
    first, second = worker.claim(0.01), worker.claim(0.01)
    assert first is not None and worker.answer(first, results(1, 2), moments(1))
    assert read(master) == {P0: ([1, 2], [1])}
    assert worker.held_blocks() == [second]


def test_a_late_result_is_told_so_and_does_not_open_its_publication_again(place: Place) -> None:
    place.publish(P0, block(0, 4))
    worker = place.arrived()
    taken = worker.claim(0.01)
    place.publish(P1, block(0, 4, P1))
    assert taken is not None and not worker.answer(taken, results(1), moments(1))
    assert place.open_ones() == {P1} and place.given(P1) == []
    assert worker.held_blocks() == [], "the claim goes all the same"


def test_dropping_a_block_takes_it_from_my_claims_alone(place: Place) -> None:
    place.publish(P0, block(0, 4), block(4, 8))
    worker, other = place.arrived(1), place.arrived(2)
    worker.claim(0.01)
    other.claim(0.01)
    worker.drop(block(0, 4))
    worker.drop(block(4, 8))
    assert (worker.held_blocks(), other.held_blocks(), place.todo()) == ([], [block(4, 8)], [])


def test_given_back_blocks_stand_at_the_head_of_todo_in_their_order(place: Place) -> None:
    place.publish(P0, block(0, 2), block(2, 4), block(4, 6))
    worker = place.arrived()
    held = [worker.claim(0.01), worker.claim(0.01)]
    worker.release(worker.held_blocks())
    assert held == [block(0, 2), block(2, 4)]
    assert place.todo() == texts(block(0, 2), block(2, 4), block(4, 6))
    assert worker.held_blocks() == []
    worker.release([])
    assert len(place.todo()) == 3


def test_a_task_config_and_parameters_are_read_as_they_were_published(place: Place) -> None:
    worker = place.worker()
    assert (worker.config(), worker.task(), worker.parameters(P0, 8)) == (None, None, None)
    large = bytes(range(256)) * 10_000  # more than two pieces
    place.publish(P0, parameters=large, task=b"header", config="{}")
    assert (worker.config(), worker.task()) == (b"{}", b"header")
    assert worker.parameters(P0, len(large)) == large
    assert worker.parameters(P0, len(large) + 1) is None, "another length is not what was published"
    place.publish(P1)
    assert worker.parameters(P0, len(large)) is None, "its publication has closed"


def test_a_worker_lives_while_it_beats(place: Place) -> None:
    master = place.publish(P0)
    worker = place.worker()
    worker.arrive(ABOUT, 0.02)
    wait_until(lambda: not master.workers())
    worker.beat({**ABOUT, "numerics": "0a0b"}, TTL)
    assert master.workers() == {worker.worker: {**ABOUT, "numerics": "0a0b"}}
    worker.beat({**ABOUT, "block": ""}, 0.02)
    wait_until(lambda: not master.workers())


def test_orders_tell_the_state_of_the_run(place: Place) -> None:
    worker = place.arrived()
    assert worker.poll_flags() == WorkerFlags(None, has_master=False)
    master = place.publish(P0)
    assert worker.poll_flags() == WorkerFlags(RUNNING, has_master=False)
    master.look(TOKEN, "me", 9.0, {"state": "paused"})
    assert worker.poll_flags().state == "paused"


def test_orders_tell_whether_a_master_holds_the_lease(place: Place) -> None:
    master, worker = place.publish(P0), place.arrived()
    assert not worker.poll_flags().has_master
    master.renew(TOKEN, "me", 9.0)
    assert worker.poll_flags().has_master
    master.renew(TOKEN, "me", 0.02)
    wait_until(lambda: not worker.poll_flags().has_master)


def test_orders_tell_when_a_publication_has_made_room_for_another(place: Place) -> None:
    worker = place.arrived()
    assert not worker.poll_flags(P0).closed  # of a run that has published nothing
    place.publish(P0)
    assert not worker.poll_flags(P0).closed and not worker.poll_flags().closed
    place.publish(P1)
    assert worker.poll_flags(P0).closed and not worker.poll_flags(P1).closed


def test_a_publication_that_redis_has_lost_has_not_closed(place: Place) -> None:
    worker = place.arrived()
    place.publish(P0)
    place.flush()
    assert not worker.poll_flags(P0).closed


def test_nothing_is_reported_to_a_run_that_is_gone(place: Place) -> None:
    place.worker().report("trouble")
    assert place.master().errors() == []


def test_a_worker_reads_what_the_master_shows_of_the_run(place: Place) -> None:
    master = place.publish(P0)
    assert place.worker().progress_field("digest") is None
    master.look(TOKEN, "me", 10, {"digest": "00ff", "numerics": ""})
    assert place.worker().progress_field("digest") == "00ff"
    assert place.worker().progress_field("numerics") is None, "an empty text says nothing"
