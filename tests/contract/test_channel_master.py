"""The master's verbs: the fence, publish, extend, renew, finish, collect."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from es_queue.errors import FencedError
from es_queue.protocol.channel import (
    RUNNING,
    MasterChannel,
    PublishRequest,
    PublishResult,
    RenewResult,
)
from tests.cases import each_case
from tests.contract.places import (
    ABOUT,
    HIGHER,
    LOWER,
    P0,
    P1,
    SAME_NUMBER,
    TOKEN,
    TTL,
    Place,
    block,
    owed,
    texts,
    wait_until,
)

WRITES: dict[str, Callable[[MasterChannel, str], object]] = {
    "publish": lambda master, token: master.publish(
        token, PublishRequest(P1, b"t", [block(0, 1, P1)], "{}", {"state": RUNNING})
    ),
    "extend": lambda master, token: master.extend(token, P0, [block(4, 8)]),
    "reconcile": lambda master, token: master.reconcile(token, owed(("train", 0, 4))),
    "renew": lambda master, token: master.renew(token, "me", 9.0, {"state": "mine"}, {"late": 1}),
    "finish": lambda master, token: master.finish(token, {"state": "mine"}, 60, b"checkpoint"),
}
each_write = each_case("write", WRITES)


def contents(place: Place) -> object:
    return (
        place.todo(),
        place.progress(),
        place.refused(),
        place.streams(),
        place.history(),
        place.master().stored_run(),
        place.master().epoch(),
        place.master().lease_holder()[0],
    )


@each_write
@each_case("token", [LOWER, SAME_NUMBER])
def test_a_write_with_a_lower_token_or_another_nonce_is_fenced_and_changes_nothing(
    place: Place, write: str, token: str
) -> None:
    place.flush()
    master = place.publish(P0, block(0, 4))
    master.stage(P1, b"12345678")
    before = contents(place)
    with pytest.raises(FencedError):
        WRITES[write](master, token)
    assert contents(place) == before


@each_write
@each_case("token", [HIGHER, TOKEN])
def test_a_write_with_a_higher_or_the_same_token_is_accepted_and_the_token_stored(
    place: Place, write: str, token: str
) -> None:
    place.flush()
    master = place.publish(P0, block(0, 4))
    master.stage(P1, b"12345678")
    WRITES[write](master, token)
    assert master.epoch() == token


@each_write
def test_a_write_is_accepted_where_no_token_is_stored(place: Place, write: str) -> None:
    place.flush()
    master = place.master()
    master.stage(P1, b"12345678")
    assert master.epoch() is None
    WRITES[write](master, LOWER)
    assert master.epoch() == LOWER


def test_tokens_are_compared_as_numbers_not_as_texts(place: Place) -> None:
    master = place.publish(P0, token="9-0000000a")
    master.renew("10-0000000a", "me", 9.0, {}, {})
    with pytest.raises(FencedError):
        master.renew("9-0000000a", "me", 9.0, {}, {})


def test_publish_opens_everything_at_once(place: Place) -> None:
    master = place.publish(
        P0,
        block(0, 4),
        block(4, 8),
        checkpoint=b"saved",
        history={"generation": "0"},
        config='{"env": "x"}',
    )
    assert place.todo() == texts(block(0, 4), block(4, 8))
    assert (place.streams(), place.parameters()) == ({P0}, {P0})
    assert master.stored_run() == (b'{"env": "x"}', b"task", b"saved")
    assert place.progress()["publication"] == P0 and place.progress()["state"] == RUNNING
    assert place.history() == [{"generation": "0"}]
    assert [entry.payload for entry in master.collect(P0, "0", 10, 0.001)] == [b""], (
        "the stream begins with its header"
    )


def test_publish_says_what_was_stored_before(place: Place) -> None:
    def publish(publication: str) -> PublishResult:
        place.master().stage(publication, b"12345678")
        return place.master().publish(
            TOKEN, PublishRequest(publication, b"task", (), "{}", {"state": RUNNING})
        )

    assert publish(P0) == PublishResult(None)
    assert publish(P0) == publish(P1) == PublishResult(P0), "sent again, it is stored already"
    place.flush()
    assert publish(P1) == PublishResult(None)


def test_publish_without_its_parameters_opens_nothing(place: Place) -> None:
    master = place.publish(P0, block(0, 4))
    assert master.publish(
        TOKEN, PublishRequest(P1, b"new", (), "{}", {"state": RUNNING})
    ) == PublishResult(P0, succeeded=False)
    assert master.renew(TOKEN, "me", 9.0, {}, {}) == RenewResult(
        P0, True
    ) and place.todo() == texts(block(0, 4))


def test_publishing_again_does_nothing(place: Place) -> None:
    place.publish(P0, block(0, 4), history={"generation": "0"})
    worker = place.arrived()
    taken = worker.claim(0.01)
    assert taken is not None and worker.answer(taken, b"answer")
    place.publish(P0, block(0, 4), history={"generation": "0"})
    assert place.answers() == [b"answer"]
    assert place.todo() == []
    assert len(place.history()) == 1


def test_publish_removes_what_the_replaced_publication_had(place: Place) -> None:
    place.publish(P0, block(0, 4))
    place.arrived().claim(0.01)
    place.lapse()
    place.master().reconcile(TOKEN, owed(("train", 0, 4)))
    assert place.attempts() == {f"train {slot} deaths": 1 for slot in range(4)}
    place.publish(P1, block(0, 2, P1))
    assert (place.streams(), place.parameters()) == ({P1}, {P1})
    assert place.todo() == texts(block(0, 2, P1))
    assert place.attempts() == {}


def test_publish_without_a_checkpoint_keeps_the_former_one(place: Place) -> None:
    place.publish(P0, checkpoint=b"old")
    assert place.publish(P1).stored_run()[2] == b"old"


def test_publish_after_a_flush_brings_back_what_is_asked_for(place: Place) -> None:
    place.publish(P0, block(0, 4), block(4, 8))
    place.flush()
    master = place.publish(P0, block(4, 8))
    assert place.todo() == texts(block(4, 8))
    assert master.renew(TOKEN, "me", 9.0, {}, {}) == RenewResult(P0, True)


@each_case("lost", ["task", "results"])
def test_publish_mends_a_publication_of_which_a_part_was_lost(place: Place, lost: str) -> None:
    place.flush()
    master = place.publish(P0, block(0, 4))
    place.lose(lost, P0)
    assert master.renew(TOKEN, "me", 9.0, {}, {}) == RenewResult(P0, False)
    place.publish(P0, block(0, 2))
    assert master.renew(TOKEN, "me", 9.0, {}, {}) == RenewResult(P0, True)
    assert place.todo() == texts(block(0, 2))


def test_staging_again_mends_lost_parameters_and_publish_touches_nothing_else(place: Place) -> None:
    master = place.publish(P0, block(0, 4), block(4, 8))
    place.arrived().claim(0.01)
    place.lose("parameters", P0)
    assert master.renew(TOKEN, "me", 9.0, {}, {}) == RenewResult(P0, False)
    place.publish(P0, block(0, 4), block(4, 8))
    assert master.renew(TOKEN, "me", 9.0, {}, {}) == RenewResult(P0, True)
    assert place.todo() == texts(block(4, 8))


def test_staged_parameters_can_be_read_before_they_are_published_and_the_open_ones_stay(
    place: Place,
) -> None:
    master = place.publish(P0, parameters=b"old12345")
    master.stage(P1, b"new12345")
    assert place.worker().parameters(P0, 8) == b"old12345"
    assert place.worker().parameters(P1, 8) == b"new12345"


def test_extend_appends_at_the_tail(place: Place) -> None:
    master = place.publish(P0, block(0, 4))
    assert master.extend(TOKEN, P0, [block(4, 6), block(6, 8)])
    assert place.todo() == texts(block(0, 4), block(4, 6), block(6, 8))


def test_extend_adds_what_waits_already_only_where_it_is_told_that_all_is_new(place: Place) -> None:
    master = place.publish(P0, block(0, 4))
    master.extend(TOKEN, P0, [block(0, 4), block(4, 6)])
    assert place.todo() == texts(block(0, 4), block(4, 6))
    master.extend(TOKEN, P0, [block(4, 6)], new=True)
    assert place.todo() == texts(block(0, 4), block(4, 6), block(4, 6))


def test_extend_is_refused_for_a_publication_that_is_not_stored(place: Place) -> None:
    master = place.publish(P0, block(0, 4))
    assert not master.extend(TOKEN, P1, [block(0, 4, P1)])
    place.flush()
    assert not master.extend(TOKEN, P0, [block(4, 8)])
    assert place.todo() == []


def test_extend_takes_more_blocks_than_one_command_may_have(place: Place) -> None:
    master = place.publish(P0)
    blocks = [block(slot, slot + 1) for slot in range(2500)]
    assert master.extend(TOKEN, P0, blocks)
    assert place.todo() == texts(*blocks)


def test_renew_says_what_is_stored_and_so_tells_of_every_loss(place: Place) -> None:
    master = place.master()
    assert master.renew(TOKEN, "me", 9.0, {}, {}) == RenewResult(None, False)
    place.publish(P0)
    assert master.renew(TOKEN, "me", 9.0, {}, {}) == RenewResult(P0, True)
    place.publish(P1)
    assert master.renew(TOKEN, "me", 9.0, {}, {}) == RenewResult(P1, True)
    place.flush()
    assert master.renew(TOKEN, "me", 9.0, {"state": RUNNING}, {"late": 1}) == RenewResult(
        None, False
    )
    assert place.progress() == {}, "nothing of a run that is not there may be left behind"


def test_renew_shows_progress_and_writes_refusals_as_absolute_counts(place: Place) -> None:
    master = place.publish(P0)
    for _ in range(2):
        master.renew(TOKEN, "me", 9.0, {"answered": "1/4"}, {"duplicate": 3})
    assert place.progress()["answered"] == "1/4" and place.progress()["state"] == RUNNING
    assert place.refused() == {"duplicate": 3}


def test_the_lease_has_a_holder_until_it_lapses(place: Place) -> None:
    master = place.master()
    assert master.lease_holder() == (None, 0.0)
    master.renew(TOKEN, "me", 9.0, {}, {})
    holder, left = master.lease_holder()
    assert holder == "me" and 0 < left <= 9.0
    master.renew(TOKEN, "me", 0.01, {}, {})
    wait_until(lambda: master.lease_holder() == (None, 0.0))


def test_each_renewal_prolongs_the_lease(place: Place) -> None:
    master = place.master()
    for seconds in (9.0, 99.0, 999.0):
        master.renew(TOKEN, "me", seconds, {}, {})
        assert seconds - 8 < master.lease_holder()[1] <= seconds


def test_the_lease_goes_to_whoever_raises_the_token(place: Place) -> None:
    master = place.master()
    master.renew(TOKEN, "me", 9.0, {}, {})
    master.renew(HIGHER, "you", 9.0, {}, {})
    assert master.lease_holder()[0] == "you"
    with pytest.raises(FencedError):
        master.renew(TOKEN, "me", 9.0, {}, {})
    assert master.lease_holder()[0] == "you"


def test_finish_closes_the_publication_and_keeps_what_resume_needs(place: Place) -> None:
    master = place.publish(P0, block(0, 4), block(4, 8), checkpoint=b"open")
    worker = place.arrived()
    taken = worker.claim(0.01)
    assert taken is not None
    master.renew(TOKEN, "me", 9.0, {}, {})
    master.finish(TOKEN, {"state": "finished"}, 60, b"last")
    assert (place.todo(), place.claims(), place.streams(), place.parameters()) == (
        [],
        [],
        set(),
        set(),
    )
    assert place.progress()["state"] == "finished" and "publication" not in place.progress()
    assert master.stored_run() == (b"{}", b"task", b"last")
    assert master.lease_holder() == (None, 0.0)
    assert not worker.answer(taken, b"late")
    assert worker.claim(0.01) is None
    assert worker.poll_flags().state == "finished"


def test_finish_writes_the_results_refused_since_the_last_renewal(place: Place) -> None:
    master = place.publish(P0)
    master.renew(TOKEN, "me", 9.0, {}, {"duplicate": 1, "late": 2})
    master.finish(TOKEN, {"state": "finished"}, 60, None, {"duplicate": 3, "refuted": 4})
    assert place.refused() == {"duplicate": 3, "late": 2, "refuted": 4}


def test_finish_without_a_checkpoint_keeps_the_former_one(place: Place) -> None:
    master = place.publish(P0, checkpoint=b"open")
    master.finish(TOKEN, {"state": "stopped"}, 60, None)
    assert master.stored_run()[2] == b"open"


def test_a_finished_run_can_be_published_again(place: Place) -> None:
    master = place.publish(P0)
    master.finish(TOKEN, {"state": "stopped"}, 60, None)
    place.publish(P1, block(0, 1, P1), token=HIGHER)
    assert place.todo() == texts(block(0, 1, P1))
    assert master.renew(HIGHER, "me", 9.0, {}, {}) == RenewResult(P1, True)


def test_collect_gives_what_is_after_the_cursor_in_order_and_all_from_zero(place: Place) -> None:
    master = place.publish(P0, *(block(slot, slot + 1) for slot in range(5)))
    worker = place.worker()
    for slot in range(5):
        assert worker.answer(block(slot, slot + 1), b"%d" % slot)
    first = master.collect(P0, "0", 3, 0.001)
    assert [entry.payload for entry in first] == [b"", b"0", b"1"]
    rest = master.collect(P0, first[-1].id, 100, 0.001)
    assert [entry.payload for entry in rest] == [b"2", b"3", b"4"]
    assert master.collect(P0, rest[-1].id, 100, 0.001) == []
    assert len(master.collect(P0, "0", 100, 0.001)) == 6
    assert master.collect(P1, "0", 100, 0.001) == [], "another publication has no answers"


def test_collect_wakes_up_for_an_answer(place: Place) -> None:
    master = place.publish(P0, block(0, 1))
    cursor = master.collect(P0, "0", 10, 0.001)[-1].id
    found: list[bytes] = []
    thread = threading.Thread(
        target=lambda: found.extend(entry.payload for entry in master.collect(P0, cursor, 10, 20.0))
    )
    thread.start()
    place.worker().answer(block(0, 1), b"answer")
    thread.join(15)
    assert found == [b"answer"]


def test_discard_deletes_entries_and_no_others(place: Place) -> None:
    master = place.publish(P0)
    for payload in (b"good", b"bad", b"worse"):
        place.worker().answer(block(0, 1), payload)
    ids = [
        entry.id
        for entry in master.collect(P0, "0", 10, 0.001)
        if entry.payload in (b"bad", b"worse")
    ]
    master.discard(P0, ids)
    master.discard(P0, [])
    assert place.answers() == [b"good"]


def test_the_master_sees_living_workers_and_their_reports(place: Place) -> None:
    master = place.publish(P0)
    assert (master.workers(), master.errors()) == ({}, [])
    place.arrived(1)
    place.arrived(2)
    assert master.workers() == dict.fromkeys(
        (place.worker(1).worker, place.worker(2).worker), ABOUT
    )
    one, two = place.worker(1).worker, place.worker(2).worker
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
    assert master.errors() == [f"trouble {number}" for number in range(5, 25)], (
        "the newest twenty, newest last"
    )
    assert master.other_workers("nobody") is None
