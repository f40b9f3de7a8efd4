"""The interleavings that the protocol's fourteen rules are there to stop, and the tests that hold
each of them stopped.

The numbers are those of the list of interleavings behind the rules. Each test named here turns red
when its rule is taken away.

1.1   The reply to a claim is lost, or a dead connection's claim is served: a living worker holds
      a block and does not know.
        contract/test_lost_replies.py::test_a_claim_whose_reply_was_lost_is_not_sent_again_and_the_block_is_found
        unit/workers/test_block_worker.py::test_what_it_holds_already_comes_before_what_waits
        faults/test_interleavings_workers.py::test_a_block_that_my_dead_connection_was_given_is_the_next_that_i_work
1.2   Recovery by causes has windows that no cause covers: a block is in no list and nobody owes it.
        faults/test_interleavings_workers.py::test_whatever_befalls_a_claim_no_unanswered_slot_is_in_no_list
        contract/test_channel_reconcile.py::test_a_worker_that_left_its_list_behind_without_enrolling_holds_nothing
        model/test_schedules.py::test_every_schedule_ends_right_and_every_fault_was_among_them
1.3   A worker's beat has lapsed and nothing says that its claims exist.
        contract/test_channel_reconcile.py::test_the_claims_of_the_dead_return_and_the_dead_are_named_once
1.4   The next seat of an RQ worker has the name of the killed one: its claims look alive for ever.
        faults/test_interleavings_workers.py::test_the_next_seat_of_an_rq_worker_keeps_nobodys_claims_alive
        unit/workers/test_block_worker.py::test_a_worker_id_is_one_whatever_the_host_is_called
1.5   A long episode, a full server or a false suspicion makes a living worker dead, or an
      orphan's hash stay for ever.
        unit/workers/test_heartbeat.py::test_it_beats_with_what_the_worker_says_at_that_moment
        contract/test_redis_keys.py::test_on_a_full_server_the_lease_and_the_beat_go_on
        contract/test_redis_keys.py::test_a_worker_that_slept_through_the_end_of_a_run_leaves_nothing_for_ever
        contract/test_channel_worker.py::test_a_beat_after_a_false_suspicion_enrols_the_worker_again
        contract/test_channel_worker.py::test_an_answer_counts_although_the_claim_was_taken_away
        faults/test_interleavings_workers.py::test_a_worker_is_known_before_its_first_claim
1.6   The server takes the claim away and refuses the answer for want of memory, or a crash comes
      between the two.
        contract/test_redis_keys.py::test_a_full_server_never_drops_a_claim_without_its_answer
        contract/test_lost_replies.py::test_an_answer_whose_reply_was_lost_is_in_the_stream_twice_at_the_most_and_drops_its_claim
1.7   A publish that is sent again wipes out the answers that have come since.
        contract/test_lost_replies.py::test_publish_whose_reply_was_lost_is_one_publication
        contract/test_lost_replies.py::test_publish_sent_again_after_workers_have_answered_keeps_their_answers
1.8   Half a publish stands: scripts do not roll back.
        contract/test_redis_keys.py::test_a_full_server_refuses_publish_before_anything_has_changed
        faults/test_interleavings_masters.py::test_a_publish_that_broke_off_half_way_is_completed_by_the_next
1.9   The token vanishes with the lease, or is lost with Redis and given to two masters.
        contract/test_channel_master.py::test_a_write_with_a_lower_token_or_another_nonce_is_fenced_and_changes_nothing
        contract/test_refused_replies.py::test_the_token_of_a_killed_master_goes_in_a_month_and_still_fences
        faults/test_interleavings_masters.py::test_a_token_that_was_lost_with_redis_is_not_given_to_two_masters
        faults/test_interleavings_takeovers.py::test_a_resumed_master_counts_on_from_the_token_of_its_checkpoint
1.10  The lease is granted and the reply lost: the master refuses itself as the second.
        faults/test_interleavings_masters.py::test_a_master_whose_lease_was_granted_in_a_lost_reply_does_not_refuse_itself
        contract/test_lost_replies.py::test_renew_and_finish_may_be_sent_twice
1.11  A woken master finishes, expires or overwrites the run of the one that took over.
        faults/test_takeover.py::test_a_woken_master_can_write_nothing_at_all
        unit/master/loop/test_generation_loop.py::test_a_second_master_takes_over_and_the_first_writes_nothing_more
        faults/test_interleavings_takeovers.py::test_the_checkpoint_of_a_woken_master_hides_no_newer_one
1.12  The old master publishes between the new one's reading of the checkpoint and its raising of
      the token.
        faults/test_interleavings_takeovers.py::test_what_the_old_master_publishes_until_it_is_fenced_is_taken_over
1.13  Redis is emptied: the blocked master and the blocked workers wait for ever.
        faults/test_interleavings_masters.py::test_a_redis_that_is_emptied_while_the_master_waits_for_answers_is_filled_again
        unit/master/collect/test_collector_losses.py::test_what_redis_lost_is_published_again_without_what_is_answered
        unit/master/loop/test_generation_loop.py::test_a_redis_that_comes_back_empty_costs_nothing_but_time
1.14  The stream begins anew with ids below the master's cursor: its answers are never read.
        faults/test_interleavings_masters.py::test_an_answer_below_the_cursor_is_found
1.15  One generation number stands for two sets of parameters: a reward of the other set is counted.
        faults/test_interleavings_masters.py::test_an_answer_to_other_parameters_of_the_same_number_does_not_count
        unit/workers/test_block_worker.py::test_a_block_of_another_publication_is_dropped
        unit/master/collect/test_ledger.py::test_what_cannot_count_is_refused_with_its_reason
1.16  A failover brings back an older generation's stream, which nobody deletes.
        faults/test_interleavings_masters.py::test_the_stream_that_a_failover_brought_back_goes_with_the_next_publish
        contract/test_channel_master.py::test_publish_removes_what_the_replaced_publication_had
1.17  An empty stream cannot be made, so the first answers of a generation are all late.
        contract/test_channel_master.py::test_publish_opens_everything_at_once
1.18  A flood of refused answers fills the server.
        unit/master/collect/test_collector.py::test_what_was_refused_is_deleted_and_counted
        contract/test_channel_master.py::test_discard_deletes_entries_and_no_others
1.19  Counters are counted twice: in a command sent again, in a stream read again.
        contract/test_channel_master.py::test_renew_shows_progress_and_writes_refusals_as_absolute_counts
        faults/test_interleavings_takeovers.py::test_an_entry_that_is_read_again_is_neither_refused_nor_deleted
1.20  Copies of slow blocks are made too early, again and again, or stay when the answer has come.
        unit/master/collect/test_collector_losses.py::test_an_overdue_block_is_issued_once_more_slot_by_slot
        unit/master/collect/test_collector_losses.py::test_nothing_is_issued_twice_while_nobody_is_idle
        contract/test_channel_reconcile.py::test_what_is_answered_or_foreign_leaves_todo
1.21  Preempted workers make a slot look poisoned, or a poisoned slot begins anew with each
      takeover.
        unit/master/collect/test_ledger.py::test_where_there_are_two_workers_two_must_have_failed
        unit/master/collect/test_ledger.py::test_after_two_deaths_the_slots_of_the_block_in_work_are_suspects_and_ten_end_the_run
        contract/test_channel_reconcile.py::test_a_death_is_noted_for_the_unanswered_slots_of_the_block_in_work
        faults/test_interleavings_takeovers.py::test_a_poisoned_slot_does_not_begin_anew_with_each_takeover
        faults/test_interleavings_takeovers.py::test_deaths_are_counted_on_by_the_master_that_takes_over
1.22  A return that is not finite is refused and played again for ever.
        unit/workers/test_evaluator.py::test_a_return_that_is_not_finite_is_a_failure_and_no_result
        unit/master/collect/test_ledger.py::test_three_failures_by_one_worker_alone_make_a_slot_hopeless
1.23  A slow host's wall limit turns an honest episode into the worst.
        unit/workers/test_heartbeat_limits.py::test_an_episode_that_outlasts_its_limit_is_ended_once
        unit/master/collect/test_ledger.py::test_after_two_deaths_the_slots_of_the_block_in_work_are_suspects_and_ten_end_the_run
1.24  An episode hangs for ever while its worker beats.
        unit/workers/test_heartbeat_limits.py::test_an_episode_that_outlasts_its_limit_is_ended_once
        faults/test_first_faults.py::test_an_episode_that_hangs_is_reported_and_its_process_replaced
1.25  A worker that must refuse returns, takes the next seat at once, and eats the seats of the
      others.
        faults/test_interleavings_workers.py::test_a_worker_that_must_refuse_keeps_its_seat_claims_nothing_and_says_so_once
        unit/workers/test_seat.py::test_the_next_seat_is_opened_while_the_run_is_running
        unit/workers/test_block_worker.py::test_a_worker_that_cannot_read_the_task_takes_no_block_from_the_others
        unit/master/collect/test_collector_workers.py::test_who_refuses_is_named_and_not_counted
1.26  Another team's worker takes the seats and fails each time.
        unit/master/fleet/test_seat_manager.py::test_a_worker_that_cannot_import_us_is_named_once_with_its_host
        unit/master/fleet/test_seat_manager.py::test_the_run_stops_when_nobody_who_comes_can_serve
1.27  An episode is longer than its seat: it is broken off and begun again for ever.
        faults/test_interleavings_takeovers.py::test_rq_does_not_end_a_seat_before_its_lease_and_its_longest_episode_are_over
        faults/test_interleavings_workers.py::test_an_episode_that_outlasts_its_seats_lease_is_answered_all_the_same
1.28  A worker leaves with a block in its hands.
        unit/workers/test_block_worker.py::test_leaving_gives_back_the_block_in_hand_at_the_head
        contract/test_lost_replies.py::test_give_back_whose_reply_was_lost_is_not_sent_again
1.29  Redis was away, and with it every beat and the lease: all are dead, and a standby takes over
      from a healthy master.
        faults/test_interleavings_masters.py::test_after_an_outage_nobody_is_dead_until_there_was_time_to_beat_again
        contract/test_channel_reconcile.py::test_in_grace_nobody_is_dead
        unit/master/run/test_standby.py::test_a_lease_that_lapsed_while_redis_was_away_is_left_to_its_holder_for_a_lease
        unit/workers/test_heartbeat_masterless.py::test_a_lease_that_lapsed_while_redis_was_away_says_nothing_of_the_master
1.30  A killed master's lease still stands when it is resumed: refused as the second master, or
      two at once.
        unit/master/run/test_lease.py::test_waiting_takes_over_from_a_dead_master_once_its_lease_is_over
        unit/master/run/test_lease.py::test_waiting_gives_up_as_soon_as_the_lease_is_renewed
1.31  Late workers and runs that nobody resumes leave keys for ever.
        contract/test_redis_keys.py::test_publish_lets_every_key_expire_in_a_month
        contract/test_redis_keys.py::test_after_finish_every_key_of_the_run_expires
        contract/test_redis_keys.py::test_a_worker_that_outlived_all_keys_of_its_run_leaves_nothing_for_ever
        contract/test_channel_worker.py::test_nothing_is_reported_to_a_run_that_is_gone
        contract/test_refused_replies.py::test_runs_whose_keys_have_gone_are_forgotten
1.32  A killed master leaves its private server and its local workers behind, or a resume starts a
      second server beside them.
        integration/test_left_behind.py::test_what_a_killed_master_leaves_goes_on_for_the_grace_and_then_ends
        integration/test_left_behind.py::test_resume_adopts_server_and_workers_and_ends_with_the_undisturbed_bits
        integration/test_left_behind.py::test_when_master_and_guardian_are_killed_everything_ends_at_once
1.33  The asynchronous schedule counts late answers twice, or not at all.
        not built yet: there is no asynchronous schedule
1.34  The generationless genetic algorithm has no protocol.
        not built yet: there is no generationless genetic algorithm
1.35  What needs a second look inside a generation is done in a way of its own, or forgotten by
      the next master.
        unit/master/collect/test_collector.py::test_more_slots_are_added_to_the_same_publication
        contract/test_channel_master.py::test_extend_is_refused_for_a_publication_that_is_not_stored
        unit/master/collect/test_ledger.py::test_a_slot_that_may_be_wanted_later_is_taken_already
        faults/test_interleavings_takeovers.py::test_a_takeover_in_the_middle_of_an_extension_asks_for_what_is_missing_alone
        faults/test_interleavings_takeovers.py::test_an_open_generation_is_taken_over_under_its_own_name
1.36  Thousands of workers come through one open seat, one after the other.
        unit/master/fleet/test_seat_manager.py::test_as_many_seats_are_open_as_workers_came_up_to_a_bound
1.37  Blocks that come back wait behind the whole list.
        contract/test_channel_reconcile.py::test_owed_is_unanswered_less_todo_less_the_claims_of_the_living
        contract/test_channel_worker.py::test_given_back_blocks_stand_at_the_head_of_todo_in_their_order
        contract/test_channel_worker.py::test_a_claim_moves_the_head_of_todo_to_the_end_of_my_claims
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
COUNT = 37
NOT_BUILT = (33, 34)
ROW = re.compile(r"1\.(\d+) +(\S.*)")
CONTINUED = re.compile(r" {6}\S.*")
NAMED = re.compile(r" {8}((?:\w+/)+\w+\.py)::(test_\w+)")


def rows() -> dict[int, list[tuple[str, str]]]:
    """(file, test) by number; fails for a line of the table that is neither a row nor a test."""
    found: dict[int, list[tuple[str, str]]] = {}
    _, _, table = (__doc__ or "").partition("\n\n1.1 ")
    for line in ("1.1 " + table).rstrip().splitlines():
        row, named = ROW.fullmatch(line), NAMED.fullmatch(line)
        if row is not None:
            assert int(row[1]) not in found, f"1.{row[1]} stands there twice"
            number = int(row[1])
            found[number] = []
        elif named is not None:
            found[number].append((named[1], named[2]))
        elif CONTINUED.fullmatch(line) is not None:
            assert not found[number], f"a row's text goes before its tests: {line!r}"
        else:
            assert line.startswith("        not built yet: ") and number in NOT_BUILT, (
                f"what is this: {line!r}"
            )
    return found


@cache
def functions_of(file: str) -> frozenset[str]:
    """The test functions that pytest would find in a file."""
    tree = ast.parse((TESTS / file).read_text())
    return frozenset(one.name for one in tree.body if isinstance(one, ast.FunctionDef))


def test_the_table_has_every_interleaving_once_and_names_a_test_where_its_rule_is_built() -> None:
    found = rows()
    assert list(found) == list(range(1, COUNT + 1))
    assert tuple(number for number, named in found.items() if not named) == NOT_BUILT


@pytest.mark.parametrize("number", range(1, COUNT + 1))
def test_every_test_that_the_table_names_is_there(number: int) -> None:
    for file, test in rows()[number]:
        assert test in functions_of(file), f"1.{number} names {file}::{test}, which is not there"
