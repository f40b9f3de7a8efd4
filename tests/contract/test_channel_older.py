"""Older publications that stay open beside the newest one (--schedule async): publish, collect,
extend, reconcile, finish.
"""

from __future__ import annotations

import threading

from es_queue.protocol.channel import RUNNING, PublishRequest, PublishResult, RenewResult
from tests.contract.places import P0, P1, P2, TOKEN, Place, block, name_of, owed, texts

P3 = name_of(3)


def two_open(place: Place) -> Place:
    """P1 is the newest, P0 open still; worker 1 holds a block of P0."""
    place.publish(P0, block(0, 4), block(4, 8))
    place.arrived().claim(0.01)
    place.publish(P1, block(0, 2, P1), keep=(P0,))
    return place


def test_publish_keeps_the_older_publications_that_it_is_told_to(place: Place) -> None:
    two_open(place)
    assert (place.streams(), place.parameters()) == ({P0, P1}, {P0, P1})
    assert place.progress()["open"] == P0 and place.progress()["publication"] == P1


def test_blocks_of_an_older_publication_leave_todo_and_stay_claimed(place: Place) -> None:
    two_open(place)
    assert place.todo() == texts(block(0, 2, P1))
    assert place.claims() == texts(block(0, 4))


def test_an_older_publication_is_answered_and_read_while_it_is_open(place: Place) -> None:
    worker = two_open(place).worker()
    assert not worker.poll_flags(P0).closed
    assert worker.parameters(P0, 8) == b"12345678"
    assert worker.answer(block(0, 4), b"late but not too late")
    assert place.answers(P0) == [b"late but not too late"] and place.claims() == []


def test_publish_closes_all_that_it_is_not_told_to_keep(place: Place) -> None:
    two_open(place)
    place.publish(P2, keep=(P1,))
    assert (place.streams(), place.parameters()) == ({P1, P2}, {P1, P2})
    assert place.worker().poll_flags(P0).closed
    assert not place.worker().answer(block(0, 4), b"too late")
    place.publish(P3)
    assert (place.streams(), place.parameters()) == ({P3}, {P3})
    assert place.progress().get("open", "") == ""


def test_publishing_again_closes_nothing_and_opens_nothing(place: Place) -> None:
    two_open(place)
    place.worker().answer(block(0, 4), b"answer")
    place.publish(P1, block(0, 9, P1))
    assert place.streams() == {P0, P1} and place.answers(P0) == [b"answer"]
    assert place.todo() == texts(block(0, 2, P1))


def test_what_is_to_be_kept_and_is_gone_does_not_come_back(place: Place) -> None:
    two_open(place)
    place.flush()
    place.publish(P1, block(0, 2, P1), keep=(P0,))
    assert (place.streams(), place.parameters()) == ({P1}, {P1})
    assert not place.worker().answer(block(0, 4), b"of parameters that are gone")
    assert place.master().renew(TOKEN, "me", 9.0, {}, {}) == RenewResult(P1, True)


def test_publish_without_its_parameters_closes_nothing(place: Place) -> None:
    master = two_open(place).master()
    assert master.publish(
        TOKEN, PublishRequest(P2, b"new", (), "{}", {"state": RUNNING})
    ) == PublishResult(P1, succeeded=False)
    assert place.streams() == {P0, P1} == place.parameters()


def test_finish_closes_them_all(place: Place) -> None:
    two_open(place).master().finish(TOKEN, {"state": "finished"}, 60, None)
    assert (place.streams(), place.parameters()) == (set(), set())
    assert "open" not in place.progress()


def test_collect_each_reads_several_streams_from_their_own_cursors(place: Place) -> None:
    master, worker = two_open(place).master(), place.worker()
    for number in range(3):
        worker.answer(block(0, 4), b"%d" % number)
    worker.answer(block(0, 2, P1), b"new")
    found = master.collect_each({P0: "0", P1: "0"}, 10, 0.001)
    assert {name: [entry.payload for entry in entries] for name, entries in found.items()} == {
        P0: [b"", b"0", b"1", b"2"],
        P1: [b"", b"new"],
    }
    again = master.collect_each({P0: found[P0][1].id, P1: found[P1][-1].id}, 1, 0.001)
    assert {name: [entry.payload for entry in entries] for name, entries in again.items()} == {
        P0: [b"1"]
    }, "at most one of each, and none of those without any"
    assert master.collect_each({P2: "0"}, 10, 0.001) == {}


def test_collect_each_wakes_up_for_an_answer_of_any_of_them(place: Place) -> None:
    master = two_open(place).master()
    cursors = {
        name: entries[-1].id
        for name, entries in master.collect_each({P0: "0", P1: "0"}, 10, 0.001).items()
    }
    found: list[bytes] = []
    thread = threading.Thread(
        target=lambda: found.extend(
            entry.payload for entry in place.master().collect_each(cursors, 10, 20.0)[P0]
        )
    )
    thread.start()
    place.worker().answer(block(0, 4), b"answer")
    thread.join(15)
    assert found == [b"answer"]


def test_reconcile_names_who_holds_an_older_block_and_puts_none_of_it_into_todo(
    place: Place,
) -> None:
    master = two_open(place).master()
    seen = master.reconcile(TOKEN, owed(("train", 0, 4), publication=P1))
    assert seen is not None and seen.claims == {place.worker().worker: (block(0, 4),)}
    assert seen.requeued == 2, "slots 2 and 3 of the newest"
    place.lapse()
    seen = master.reconcile(TOKEN, owed(("train", 0, 4), publication=P1))
    assert (
        seen is not None
        and seen.dead == [(place.worker().worker, (block(0, 4),))]
        and seen.requeued == 0
    )
    assert all(entry.startswith(P1) for entry in place.todo()) and place.attempts() == {}


def test_an_older_block_that_is_given_back_does_not_stay_in_todo(place: Place) -> None:
    worker = two_open(place).worker()
    worker.give_back(worker.held_blocks())
    assert place.todo()[0] == str(block(0, 4))
    place.master().reconcile(TOKEN, owed(("train", 0, 2), publication=P1))
    assert place.todo() == texts(block(0, 2, P1))
