"""The master's side of the store: the fence, open, issue, read, the lease, finish."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from es_queue.errors import FencedError
from es_queue.protocol.store import MasterStore
from tests.cases import each_case
from tests.contract.places import (
    ABOUT,
    HIGHER,
    LOWER,
    P0,
    P1,
    P2,
    RUNNING,
    SAME_NUMBER,
    TOKEN,
    TTL,
    Place,
    block,
    look,
    moments,
    read,
    reasons,
    results,
    texts,
    wait_until,
)

WRITES: dict[str, Callable[[Place, MasterStore, str], object]] = {
    "open": lambda place, master, token: place.open(master, P1, token),
    "issue": lambda place, master, token: master.issue(token, P0, [block(4, 8)], b"grown"),
    "look": lambda place, master, token: master.look(token, "me", 9.0, {"state": "x"}, {"late": 1}),
    "renew": lambda place, master, token: master.renew(token, "me", 9.0),
    "finish": lambda place, master, token: master.finish(token, {"state": "x"}, 60, b"checkpoint"),
}
each_write = each_case("write", WRITES)


def contents(place: Place) -> object:
    master = place.master()
    return (
        place.todo(),
        place.progress(),
        place.refused(),
        place.open_ones(),
        place.history(),
        master.config(),
        master.task(),
        master.checkpoint(),
        master.epoch(),
        master.lease_holder()[0],
    )


@each_write
@each_case("token", [LOWER, SAME_NUMBER])
def test_a_write_with_a_lower_token_or_another_nonce_is_fenced_and_changes_nothing(
    place: Place, write: str, token: str
) -> None:
    place.flush()
    master = place.publish(P0, block(0, 4))
    before = contents(place)
    with pytest.raises(FencedError):
        WRITES[write](place, master, token)
    assert contents(place) == before


@each_write
@each_case("token", [HIGHER, TOKEN])
def test_a_write_with_a_higher_or_the_same_token_is_accepted_and_the_token_stored(
    place: Place, write: str, token: str
) -> None:
    place.flush()
    master = place.publish(P0, block(0, 4))
    WRITES[write](place, master, token)
    assert master.epoch() == token


@each_write
def test_a_write_is_accepted_where_no_token_is_stored(place: Place, write: str) -> None:
    place.flush()
    master = place.master()
    assert master.epoch() is None
    WRITES[write](place, master, LOWER)
    assert master.epoch() == LOWER


def test_tokens_are_compared_as_numbers_not_as_texts(place: Place) -> None:
    master = place.publish(P0, token="9-0000000a")
    master.renew("10-0000000a", "me", 9.0)
    with pytest.raises(FencedError):
        master.renew("9-0000000a", "me", 9.0)


# --- open


def test_a_publication_opens_with_all_that_it_has_and_nothing_to_claim(place: Place) -> None:
    place.publish(P0, block(0, 4))
    master = place.master()
    more: dict[str, Any] = {"config": '{"env": "x"}', "history": {"generation": "0"}}
    assert place.open(master, P1, checkpoint=b"saved", task=b"new", **more) == P0
    assert (place.todo(), place.open_ones(), place.parameters()) == ([], {P1}, {P1})
    assert (master.config(), master.task(), master.checkpoint()) == (
        b'{"env": "x"}',
        b"new",
        b"saved",
    )
    assert place.progress()["publication"] == P1 and place.progress()["state"] == RUNNING
    assert place.history() == [{"generation": "0"}]
    assert look(master).publication == P1 and read(master, P1) == {}


def test_open_returns_what_was_stored_before(place: Place) -> None:
    master = place.master()
    assert place.open(master, P0) is None
    assert place.open(master, P0) == place.open(master, P1) == P0, "sent again, it is there already"
    place.flush()
    assert place.open(master, P1) is None


def test_opening_again_changes_nothing(place: Place) -> None:
    place.publish(P0, block(0, 4), block(4, 8), history={"generation": "0"})
    worker = place.arrived()
    taken = worker.claim(0.01)
    assert taken is not None and worker.answer(taken, results(1), b"")
    place.open(place.master(), P0, history={"generation": "0"}, task=b"other")
    assert (place.given(), place.todo(), len(place.history())) == ([1], texts(block(4, 8)), 1)
    assert place.master().task() == b"task"


def test_open_without_a_checkpoint_keeps_the_former_one(place: Place) -> None:
    place.publish(P0, checkpoint=b"old")
    assert place.publish(P1).checkpoint() == b"old"


@each_case("lost", ["task", "results", "parameters"])
def test_a_publication_that_has_lost_a_part_is_not_whole_until_it_is_opened_again(
    place: Place, lost: str
) -> None:
    place.flush()
    master = place.publish(P0, block(0, 4))
    place.lose(lost, P0)
    assert look(master).publication == ""
    place.open(master, P0)
    assert look(master).publication == P0


def test_after_a_flush_all_is_there_again(place: Place) -> None:
    place.publish(P0, block(0, 4))
    place.flush()
    master = place.publish(P0, block(4, 8))
    assert place.todo() == texts(block(4, 8)) and look(master).publication == P0


# --- older publications that stay open (--schedule async)


def two_open(place: Place) -> MasterStore:
    """P1 is the newest, P0 open still; worker 1 holds a block of P0."""
    place.publish(P0, block(0, 4), block(4, 8))
    place.arrived().claim(0.01)
    return place.publish(P1, block(0, 2, P1), keep=(P0,))


def test_an_older_publication_that_is_kept_takes_results_and_its_blocks_leave_todo(
    place: Place,
) -> None:
    master, worker = two_open(place), place.worker()
    assert place.todo() == texts(block(0, 2, P1)) and place.claims() == texts(block(0, 4))
    assert (place.open_ones(), place.parameters()) == ({P0, P1}, {P0, P1})
    assert worker.parameters(P0, 8) == b"12345678" and not worker.poll_flags(P0).closed
    assert worker.answer(block(0, 4), results(1), b"") and place.claims() == []
    assert worker.answer(block(0, 2, P1), results(2), b"")
    assert read(master, P0, P1) == {P0: ([1], []), P1: ([2], [])}


def test_open_closes_all_that_is_not_kept(place: Place) -> None:
    two_open(place)
    place.publish(P2, keep=(P1,))
    assert (place.open_ones(), place.parameters()) == ({P1, P2}, {P1, P2})
    assert place.worker().poll_flags(P0).closed
    assert not place.worker().answer(block(0, 4), results(1), b"")
    place.publish("3" + P0[1:])
    assert place.open_ones() == place.parameters() == {"3" + P0[1:]}


def test_opening_again_closes_none_of_the_kept(place: Place) -> None:
    two_open(place)
    place.worker().answer(block(0, 4), results(1), b"")
    place.open(place.master(), P1)
    assert place.open_ones() == {P0, P1} and place.given() == [1]


def test_what_is_kept_and_has_gone_does_not_come_back(place: Place) -> None:
    two_open(place)
    place.flush()
    place.publish(P1, keep=(P0,))
    assert (place.open_ones(), place.parameters()) == ({P1}, {P1})
    assert not place.worker().answer(block(0, 4), results(1), b"")


# --- issue


def test_blocks_are_issued_at_the_tail_or_in_front_in_their_order(place: Place) -> None:
    master = place.publish(P0, block(4, 6))
    master.issue(TOKEN, P0, [block(6, 7), block(7, 8)])
    master.issue(TOKEN, P0, [block(0, 2), block(2, 4)], front=True)
    starts = [(0, 2), (2, 4), (4, 6), (6, 7), (7, 8)]
    assert place.todo() == texts(*(block(*each) for each in starts))


def test_a_header_that_has_grown_is_stored_with_the_blocks_or_without_any(place: Place) -> None:
    master, worker = place.publish(P0), place.worker()
    master.issue(TOKEN, P0, [block(0, 4)])
    assert worker.task() == b"task"
    master.issue(TOKEN, P0, [block(4, 8)], b"grown")
    assert worker.task() == b"grown" and len(place.todo()) == 2
    master.issue(TOKEN, P0, [], b"grown again")
    assert worker.task() == b"grown again" and len(place.todo()) == 2


def test_nothing_is_issued_for_a_publication_that_is_not_stored(place: Place) -> None:
    master = place.publish(P0, block(0, 4))
    master.issue(TOKEN, P1, [block(0, 4, P1)], b"other")
    assert place.todo() == texts(block(0, 4)) and place.worker().task() == b"task"
    place.flush()
    master.issue(TOKEN, P0, [block(4, 8)], b"other")
    assert place.todo() == [] and place.worker().task() is None


@each_case("front", [False, True])
def test_more_blocks_are_issued_than_one_script_takes(place: Place, front: bool) -> None:
    place.flush()
    master = place.publish(P0)
    blocks = [block(row, row + 1) for row in range(20_000)]
    master.issue(TOKEN, P0, blocks, front=front)
    assert place.todo() == texts(*blocks)


# --- read


def test_each_result_is_read_once_in_order_with_its_moments_and_all_from_the_beginning_again(
    place: Place,
) -> None:
    master, worker = place.publish(P0), place.worker()
    assert read(master) == {}
    worker.answer(block(0, 2), results(1, 2), moments(1, 1, 2))
    worker.answer(block(2, 3), results(3), b"")
    assert read(master) == {P0: ([1, 2, 3], [1, 1, 2])}
    worker.answer(block(3, 4), results(4), moments(4))
    assert read(master) == {P0: ([4], [4])} and read(master) == {}
    assert read(master, P1) == {}, "another publication has no results"
    master.read_again([P0])
    assert read(master) == {P0: ([1, 2, 3, 4], [1, 1, 2, 4])} == read(place.master())


def test_waiting_ends_with_a_result(place: Place) -> None:
    master, found = place.publish(P0), dict[str, Any]()

    def wait() -> None:
        while not found:
            master.wait(20.0)
            found.update(read(master))

    read(master)
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    place.worker().answer(block(0, 1), results(1), b"")
    thread.join(15)
    assert found == {P0: ([1], [])}


def test_results_that_redis_has_lost_are_noticed_and_then_read_from_the_beginning(
    place: Place,
) -> None:
    master, worker = place.publish(P0), place.worker()
    for row in (0, 1):
        worker.answer(block(row, row + 1), results(row), b"")
    assert read(master) == {P0: ([0, 1], [])} and look(master).lost == []
    place.lose("results", P0)
    place.open(place.master(), P0)
    worker.answer(block(2, 3), results(3), b"")
    assert look(master).lost == [P0]
    master.read_again([P0])
    assert read(master) == {P0: ([3], [])} and look(master).lost == []


# --- the lease


def test_a_look_shows_every_loss(place: Place) -> None:
    master = place.master()
    assert look(master).publication == ""
    for name in (P0, P1):
        place.publish(name)
        assert look(master).publication == name
    place.flush()
    assert master.look(TOKEN, "me", 9.0, {"state": RUNNING}, {"late": 1}).publication == ""
    assert place.progress() == {}, "nothing of a run that is not there may be left behind"


def test_progress_is_shown_and_refusals_are_absolute_counts(place: Place) -> None:
    place.flush()
    master = place.publish(P0)
    for _ in range(2):
        master.look(TOKEN, "me", 9.0, {"answered": "1/4"}, {"duplicate": 3})
    assert place.progress()["answered"] == "1/4" and place.progress()["state"] == RUNNING
    assert place.refused() == {"duplicate": 3}


@each_case("verb", ["renew", "look"])
def test_each_renewal_prolongs_the_lease_until_it_lapses(place: Place, verb: str) -> None:
    place.flush()
    master = place.publish(P0)
    assert master.lease_holder() == (None, 0.0)
    renew = {"renew": master.renew, "look": partial(master.look, progress={})}[verb]
    for seconds in (9.0, 99.0, 999.0):
        renew(TOKEN, "me", seconds)
        holder, left = master.lease_holder()
        assert holder == "me" and seconds - 8 < left <= seconds
    renew(TOKEN, "me", 0.01)
    wait_until(lambda: master.lease_holder() == (None, 0.0))


def test_the_lease_goes_to_the_master_that_raises_the_token(place: Place) -> None:
    master = place.master()
    master.renew(TOKEN, "me", 9.0)
    master.renew(HIGHER, "you", 9.0)
    with pytest.raises(FencedError):
        master.renew(TOKEN, "me", 9.0)
    assert master.lease_holder()[0] == "you"


# --- finish


def test_finish_closes_all_and_keeps_what_resume_needs(place: Place) -> None:
    place.publish(P0, block(0, 4), block(4, 8), checkpoint=b"open")
    worker = place.arrived()
    taken = worker.claim(0.01)
    assert taken is not None
    master = place.publish(P1, block(0, 1, P1), keep=(P0,))
    master.look(TOKEN, "me", 9.0, {}, {"duplicate": 1, "late": 2})
    master.finish(TOKEN, {"state": "finished"}, 60, b"last", {"duplicate": 3})
    assert (place.todo(), place.claims()) == ([], [])
    assert place.open_ones() == place.parameters() == set()
    assert place.progress()["state"] == "finished" and "publication" not in place.progress()
    assert place.refused() == {"duplicate": 3, "late": 2}
    assert (master.config(), master.task(), master.checkpoint()) == (b"{}", b"task", b"last")
    assert master.lease_holder() == (None, 0.0)
    assert not worker.answer(taken, results(1), b"") and worker.claim(0.01) is None
    assert worker.poll_flags().state == "finished"


def test_a_finished_run_keeps_its_former_checkpoint_and_can_be_opened_again(place: Place) -> None:
    master = place.publish(P0, checkpoint=b"open")
    master.finish(TOKEN, {"state": "stopped"}, 60, None)
    assert master.checkpoint() == b"open"
    master = place.publish(P1, block(0, 1, P1), token=HIGHER)
    assert place.todo() == texts(block(0, 1, P1)) and look(master, HIGHER).publication == P1


# --- workers


def test_the_master_sees_living_workers_and_their_reports(place: Place) -> None:
    master = place.publish(P0)
    assert (master.workers(), master.errors()) == ({}, [])
    one, two = place.arrived(1).worker, place.arrived(2).worker
    assert master.workers() == dict.fromkeys((one, two), ABOUT)
    assert master.workers({one: {"as": "known"}, "gone-1-abcdef": {"as": "known"}}) == {
        one: {"as": "known"},
        two: ABOUT,
    }
    place.lapse(1)
    assert list(master.workers()) == list(master.workers({one: ABOUT, two: ABOUT})) == [two]
    place.worker(2).depart()
    assert master.workers() == {}
    place.worker(2).beat(ABOUT, TTL)
    for number in range(25):
        place.worker(2).report(f"trouble {number}")
    newest = [f"trouble {number}" for number in range(5, 25)]
    assert reasons(master) == newest, "the newest twenty, newest last"
