"""Look: who holds what (rule 8). The master computes what is owed from this."""

from __future__ import annotations

from es_queue.protocol.keys import GIVE_WAY
from tests.contract.places import (
    ABOUT,
    P0,
    P1,
    TTL,
    Place,
    block,
    look,
    results,
    texts,
    worker_name,
)


def test_a_look_shows_what_waits_and_who_holds_what_and_changes_none_of_it(place: Place) -> None:
    master = place.publish(P0, block(0, 2), block(2, 4), block(4, 6))
    place.arrived(1).claim(0.01)
    place.arrived(2)
    for _ in range(2):
        seen = look(master)
        assert seen.publication == P0
        assert seen.todo == (block(2, 4), block(4, 6))
        assert seen.claims == {worker_name(1): (block(0, 2),), worker_name(2): ()}
        assert list(seen.dead) == [] and seen.lost == []
    assert place.todo() == texts(block(2, 4), block(4, 6)) and place.claims() == texts(block(0, 2))


def test_the_dead_are_named_once_with_all_that_they_held(place: Place) -> None:
    place.publish(P0, block(0, 2), block(2, 4), block(4, 6))
    worker, other = place.arrived(1), place.arrived(2)
    for one in (worker, worker, other):
        one.claim(0.01)
    place.lapse(1)
    seen = place.look()
    assert list(seen.dead) == [(block(0, 2), block(2, 4))]
    assert seen.claims == {other.worker: (block(4, 6),)}
    assert place.claims(1) == [] and place.has_joined() == {other.worker}
    assert list(place.look().dead) == []


def test_in_grace_nobody_is_dead(place: Place) -> None:
    place.publish(P0, block(0, 4))
    worker = place.arrived()
    worker.claim(0.01)
    place.lapse()
    seen = place.look(grace=True)
    assert (list(seen.dead), dict(seen.claims)) == ([], {worker.worker: (block(0, 4),)})
    assert list(place.look().dead) == [(block(0, 4),)]


def test_a_worker_that_left_its_list_behind_without_enrolling_holds_nothing(place: Place) -> None:
    place.publish(P0, block(0, 4))
    place.worker().claim(0.01)
    seen = place.look()
    assert (seen.todo, dict(seen.claims), list(seen.dead)) == ((), {}, [])


def test_a_worker_that_was_taken_for_dead_is_seen_again_with_its_next_beat(place: Place) -> None:
    master = place.publish(P0, block(0, 4), block(4, 8))
    worker = place.arrived()
    taken = worker.claim(0.01)
    place.lapse()
    assert len(look(master).dead) == 1 and worker.held_blocks() == []
    worker.beat(ABOUT, TTL)
    worker.claim(0.01)
    assert look(master).claims == {worker.worker: (block(4, 8),)}
    assert taken is not None and worker.answer(taken, results(1), b""), "its result counts"
    assert place.given() == [1]


def test_blocks_of_older_publications_are_seen_with_their_names(place: Place) -> None:
    place.publish(P0, block(0, 4))
    place.arrived().claim(0.01)
    master = place.publish(P1, block(0, 2, P1), keep=(P0,))
    seen = look(master)
    assert seen.todo == (block(0, 2, P1),) and seen.claims == {worker_name(1): (block(0, 4),)}
    place.lapse()
    assert list(look(master).dead) == [(block(0, 4),)]


def test_a_look_can_empty_todo_for_a_pause(place: Place) -> None:
    place.publish(P0, block(0, 4), block(4, 8))
    place.arrived().claim(0.01)
    seen = place.look(clear=True)
    assert seen.todo == () and place.todo() == []
    assert seen.claims == {worker_name(1): (block(0, 4),)}


def test_a_look_asks_workers_to_give_way_until_the_next_does_not(place: Place) -> None:
    place.publish(P0)
    worker, other = place.arrived(1), place.arrived(2)
    place.look(leaving=[worker.worker])
    assert (worker.poll_flags().leave, other.poll_flags().leave) == (GIVE_WAY, "")
    place.look()
    assert not worker.poll_flags().leave
