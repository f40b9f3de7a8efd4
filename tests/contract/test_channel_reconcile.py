"""Reconcile: what nobody holds is in todo again, and nothing else changes (rule 8)."""

from __future__ import annotations

from es_queue.protocol.channel import ReconcileReport
from tests.cases import each_case
from tests.contract.places import ABOUT, P0, P1, TOKEN, TTL, Place, block, owed, texts, worker_name


def reconcile(place: Place, *ranges: tuple[str, int, int], **more: object) -> ReconcileReport:
    found = place.master().reconcile(TOKEN, owed(*ranges, **more))
    assert found is not None
    return found


def test_owed_is_unanswered_less_todo_less_the_claims_of_the_living(place: Place) -> None:
    place.publish(P0, block(0, 2), block(2, 4))
    place.arrived().claim(0.01)
    found = reconcile(place, ("train", 0, 7))
    assert found == ReconcileReport(
        3, 2, {worker_name(1): (block(0, 2),)}, [], {}, (("train", 4, 7),)
    )
    assert place.todo() == texts(block(4, 7), block(2, 4))
    assert reconcile(place, ("train", 0, 7)).requeued == 0, "what is in todo is owed no more"


def test_a_look_names_what_nobody_holds_and_issues_no_more_of_it_than_it_is_told(
    place: Place,
) -> None:
    place.publish(P0, block(2, 4))
    look = reconcile(place, ("eval", 0, 2), ("train", 0, 9), block_size=2, only=())
    assert look.unclaimed == (("eval", 0, 2), ("train", 0, 2), ("train", 4, 9))
    assert look.requeued == 0 and place.todo() == texts(block(2, 4))
    found = reconcile(
        place,
        ("eval", 1, 2),
        ("train", 0, 9),
        block_size=2,
        only=[("train", 1, 3), ("train", 5, 8), ("eval", 0, 1)],
    )
    assert found.requeued == 4 and place.todo() == texts(
        block(1, 2), block(5, 7), block(7, 8), block(2, 4)
    )
    assert found.unclaimed == (("eval", 1, 2), ("train", 0, 2), ("train", 4, 9))


def test_slots_of_other_kinds_are_other_slots(place: Place) -> None:
    place.publish(P0, block(0, 2))
    found = reconcile(place, ("eval", 0, 2), ("train", 0, 2))
    assert found.requeued == 2
    assert place.todo() == texts(block(0, 2, kind="eval"), block(0, 2))


def test_the_claims_of_the_dead_return_and_the_dead_are_named_once(place: Place) -> None:
    place.publish(P0, block(0, 2), block(2, 4), block(4, 6))
    worker, other = place.arrived(1), place.arrived(2)
    for one in (worker, worker, other):
        one.claim(0.01)
    place.lapse(1)
    found = reconcile(place, ("train", 0, 6), block_size=2)
    assert list(found.dead) == [(worker.worker, (block(0, 2), block(2, 4)))]
    assert found.claims == {other.worker: (block(4, 6),)}
    assert (found.requeued, found.todo, place.todo()) == (4, 2, texts(block(0, 2), block(2, 4)))
    assert place.claims(1) == []
    again = reconcile(place, ("train", 0, 6), block_size=2)
    assert (again.dead, again.requeued) == ([], 0)


def test_a_death_is_noted_for_the_unanswered_slots_of_the_block_in_work(place: Place) -> None:
    place.publish(P0, block(0, 2), block(2, 4))
    worker = place.arrived()
    worker.claim(0.01)
    worker.claim(0.01)
    place.lapse()
    reconcile(place, ("train", 1, 4))
    assert place.attempts() == {"train 1 deaths": 1}
    assert place.master().deaths() == {("train", 1): 1}, "another master can go on counting"
    place.arrived(2)
    place.lapse(2)
    reconcile(place, ("train", 1, 4))
    assert place.attempts() == {"train 1 deaths": 1}, "who held nothing died of nothing of ours"


def test_in_grace_nobody_is_dead(place: Place) -> None:
    place.publish(P0, block(0, 4))
    worker = place.arrived()
    worker.claim(0.01)
    place.lapse()
    found = reconcile(place, ("train", 0, 4), grace=True)
    assert (found.requeued, found.dead, found.claims) == (0, [], {worker.worker: (block(0, 4),)})
    assert reconcile(place, ("train", 0, 4)).requeued == 4


def test_a_worker_that_left_its_list_behind_without_enrolling_holds_nothing(place: Place) -> None:
    place.publish(P0, block(0, 4))
    place.worker().claim(0.01)
    assert reconcile(place, ("train", 0, 4)).requeued == 4


def test_blocks_that_come_back_have_at_most_the_given_size(place: Place) -> None:
    place.publish(P0)
    found = reconcile(place, ("train", 0, 5), ("train", 6, 9), block_size=2)
    assert (found.requeued, found.todo) == (8, 5)
    assert place.todo() == texts(block(0, 2), block(2, 4), block(4, 5), block(6, 8), block(8, 9))


def test_a_block_never_spans_a_slot_that_somebody_holds(place: Place) -> None:
    place.publish(P0, block(2, 3))
    place.arrived().claim(0.01)
    reconcile(place, ("train", 0, 6), block_size=10)
    assert place.todo() == texts(block(0, 2), block(3, 6))


def test_suspects_are_issued_singly(place: Place) -> None:
    place.publish(P0)
    suspect = frozenset({("train", 2), ("train", 4), ("eval", 0)})
    reconcile(place, ("train", 0, 7), block_size=4, suspects=suspect)
    assert place.todo() == texts(block(0, 2), block(2, 3), block(3, 4), block(4, 5), block(5, 7))


def test_what_is_answered_or_foreign_leaves_todo(place: Place) -> None:
    place.publish(P0, block(0, 2), block(2, 4), block(4, 6))
    strangers = [str(block(0, 2, P1)), "nonsense", str(block(0, 2, kind="eval")), str(block(4, 6))]
    for text in strangers:
        place.add_todo(text)
    found = reconcile(place, ("train", 3, 6))
    assert place.todo() == texts(block(2, 4), block(4, 6), block(4, 6))
    assert (found.requeued, found.todo) == (0, 3)


def test_claims_of_another_publication_or_of_no_sense_hold_nothing(place: Place) -> None:
    place.publish(P0)
    place.arrived()
    for text in ("nonsense", str(block(0, 4, P1)), f"{P0} train 0 9999"):
        place.add_claim(text)
    found = reconcile(place, ("train", 0, 4))
    assert found.requeued == 4
    assert found.claims == {worker_name(1): (block(0, 4, P1),)}


def test_nothing_is_done_for_a_publication_that_is_not_stored(place: Place) -> None:
    master = place.publish(P0, block(0, 4))
    assert master.reconcile(TOKEN, owed(("train", 0, 4), publication=P1)) is None
    place.flush()
    assert master.reconcile(TOKEN, owed(("train", 0, 4))) is None
    assert place.todo() == []


def test_late_answers_are_told_of_each_that_lives(place: Place) -> None:
    place.publish(P0)
    for number, late in ((1, "2"), (2, "3"), (3, "4")):
        place.worker(number).arrive({**ABOUT, "late": late}, TTL)
    place.lapse(3)
    assert reconcile(place).late == {place.worker(1).worker: 2, place.worker(2).worker: 3}


@each_case("late", ["", "many", "1.5", "-3"])
def test_a_worker_that_counts_badly_cannot_hurt_the_master(place: Place, late: str) -> None:
    place.flush()
    place.publish(P0)
    place.worker().arrive({**ABOUT, "late": late}, TTL)
    assert reconcile(place).late == {}


def test_many_owed_slots_come_back_in_order(place: Place) -> None:
    place.publish(P0, block(5000, 5001))
    found = reconcile(place, ("train", 0, 5001), block_size=1)
    assert (found.requeued, found.todo) == (5000, 5001)
    assert place.todo() == texts(*(block(slot, slot + 1) for slot in range(5001)))
