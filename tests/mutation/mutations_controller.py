"""Mistakes in the rules of the controllers."""

from __future__ import annotations

from tests.mutation.table import Mutation

CONTROLLER = (
    Mutation(
        name="id-given-twice",
        breaks="An id that was given is given again.",
        path="controller/brokerset_controller/replicas/apply.py",
        old=("    if event.broker_id != next_id:\n        return group, Superseded"),
        new=("    if False:\n        return group, Superseded"),
        caught_by="tests/unit/controller/replicas/test_apply.py::test_a_guard_that_does_not_hold_changes_nothing[event0]",
    ),
    Mutation(
        name="start-of-anybody",
        breaks="A start takes effect although another one was committed meanwhile.",
        path="controller/brokerset_controller/replicas/apply.py",
        old=("    if known.nonce != event.expected_nonce:\n        return group"),
        new=("    if False:\n        return group"),
        caught_by="tests/unit/controller/replicas/test_apply.py::test_a_guard_that_does_not_hold_changes_nothing[event5]",
    ),
    Mutation(
        name="restarted-master-stays",
        breaks="A master that was restarted goes on in its old epoch.",
        path="controller/brokerset_controller/replicas/apply.py",
        old=(
            "    if group.master_id == event.broker_id:\n"
            "        group = replace(group, master_id=None, master_epoch=group.master_epoch + 1)\n"
            "    elif"
        ),
        new=("    if group.master_id == event.broker_id:\n        pass\n    elif"),
        caught_by="tests/unit/controller/replicas/test_apply.py::test_a_masters_start_ends_its_mastership",
    ),
    Mutation(
        name="lost-cache-trusted",
        breaks="A replica that lost its page cache stays as good as the others.",
        path="controller/brokerset_controller/replicas/apply.py",
        old="group = replace(group, suspects=group.suspects | {event.broker_id})",
        new="pass",
        caught_by="tests/unit/controller/replicas/test_apply.py::test_a_lost_page_cache_costs_the_place_in_the_set_but_not_the_last_one",
    ),
    Mutation(
        name="alter-with-old-set-epoch",
        breaks="A set takes effect that was decided on an older one.",
        path="controller/brokerset_controller/replicas/apply.py",
        old=("    if group.sync_state_set_epoch != event.sync_state_set_epoch:\n        return group"),
        new=("    if False:\n        return group"),
        caught_by="tests/unit/controller/replicas/test_apply.py::test_a_guard_that_does_not_hold_changes_nothing[event10]",
    ),
    Mutation(
        name="alter-by-old-master",
        breaks="A master of an older epoch changes the in-sync set.",
        path="controller/brokerset_controller/replicas/apply.py",
        old=(
            "    if group.master_id != event.master_id or group.master_epoch != event.master_epoch:\n"
            '        return group, Superseded(f"{event.master_id} is not the master'
        ),
        new=(
            "    if group.master_id != event.master_id:\n"
            '        return group, Superseded(f"{event.master_id} is not the master'
        ),
        caught_by="tests/unit/controller/replicas/test_apply.py::test_a_guard_that_does_not_hold_changes_nothing[event9]",
    ),
    Mutation(
        name="election-on-old-state",
        breaks="Two masters get one epoch.",
        path="controller/brokerset_controller/replicas/apply.py",
        old=("    if event.new_epoch <= group.master_epoch:\n"),
        new=("    if event.new_epoch < group.master_epoch:\n"),
        caught_by="tests/unit/controller/replicas/test_apply.py::test_a_guard_that_does_not_hold_changes_nothing[event15]",
    ),
    Mutation(
        name="elected-process-unchecked",
        breaks="A process is elected that another one has replaced.",
        path="controller/brokerset_controller/replicas/apply.py",
        old=("    if group.replicas[event.master_id].nonce != event.expected_nonce:\n"),
        new=("    if False:\n"),
        caught_by="tests/unit/controller/replicas/test_apply.py::test_a_guard_that_does_not_hold_changes_nothing[event18]",
    ),
    Mutation(
        name="elected-from-outside",
        breaks="A replica that is not in sync becomes master without an administrator.",
        path="controller/brokerset_controller/replicas/apply.py",
        old=("    if not event.unclean and not electable:\n"),
        new=("    if False:\n"),
        caught_by="tests/unit/controller/replicas/test_apply.py::test_a_guard_that_does_not_hold_changes_nothing[event16]",
    ),
    Mutation(
        name="fenced-elected",
        breaks="A fenced replica becomes master.",
        path="controller/brokerset_controller/replicas/apply.py",
        old=(
            "    if event.master_id in group.fenced:\n"
            '        return group, Superseded(f"{event.master_id} is fenced")\n'
        ),
        new="",
        caught_by="tests/unit/controller/replicas/test_fencing.py::test_events_that_would_serve_a_fenced_replica_change_nothing",
    ),
    Mutation(
        name="last-in-sync-cleaned",
        breaks="The last replica that has everything is removed.",
        path="controller/brokerset_controller/replicas/apply.py",
        old=("    if left and not in_sync and not group.virgin:\n"),
        new=("    if False:\n"),
        caught_by="tests/unit/controller/replicas/test_apply.py::test_a_guard_that_does_not_hold_changes_nothing[event20]",
    ),
    Mutation(
        name="epoch-kept-when-master-cleaned",
        breaks="The epoch stays when the master is removed.",
        path="controller/brokerset_controller/replicas/apply.py",
        old="master_epoch=group.master_epoch + 1 if mastership_goes else group.master_epoch",
        new="master_epoch=group.master_epoch",
        caught_by="tests/unit/controller/replicas/test_cleaning.py::test_a_cleaned_master_is_no_master",
    ),
    Mutation(
        name="suspects-counted-in-sync",
        breaks="A replica that lost its page cache is elected while a better one may live.",
        path="controller/brokerset_controller/replicas/election.py",
        old=("    sound = group.sync_state_set - group.suspects\n"),
        new=("    sound = group.sync_state_set\n"),
        caught_by="tests/unit/controller/replicas/test_election.py::test_when_all_are_suspects_the_best_of_all_wins_once_all_have_reported",
    ),
    Mutation(
        name="living-master-replaced",
        breaks="A master that may live is replaced.",
        path="controller/brokerset_controller/replicas/election.py",
        old=(
            "        case Standing.UNKNOWN:\n"
            "            return NoChoice(\n"
            '                f"it is not known yet whether the master'
        ),
        new=(
            "        case Standing.UNKNOWN if False:\n"
            "            return NoChoice(\n"
            '                f"it is not known yet whether the master'
        ),
        caught_by="tests/unit/controller/replicas/test_election.py::test_nobody_is_elected_past_a_living_or_unknown_master",
    ),
    Mutation(
        name="shortest-log-elected",
        breaks="The shortest log wins.",
        path="controller/brokerset_controller/replicas/election.py",
        old="return -epoch, -offset, priority, broker_id",
        new="return -epoch, offset, priority, broker_id",
        caught_by="tests/unit/controller/replicas/test_election.py::test_the_longest_log_wins[logs0-3]",
    ),
    Mutation(
        name="epoch-below-brokers",
        breaks="A new epoch is not above what brokers know.",
        path="controller/brokerset_controller/replicas/election.py",
        old="return max(group.master_epoch, *last_known, 0) + 1",
        new="return max(group.master_epoch, 0) + 1",
        caught_by="tests/unit/controller/replicas/test_election.py::test_the_new_epoch_is_above_everything_that_was_reported",
    ),
    Mutation(
        name="lease-not-waited-for",
        breaks="An unclean election does not wait for the old lease.",
        path="controller/brokerset_controller/replicas/election.py",
        old=("    if not may_have_one:\n        return None"),
        new=("    if True:\n        return None"),
        caught_by="tests/unit/controller/replicas/test_election_waits.py::test_where_the_master_alone_acknowledges_elections_wait_for_the_lease",
    ),
    Mutation(
        name="dead-replica-joins",
        breaks="A dead replica gets into the in-sync set.",
        path="controller/brokerset_controller/replicas/decide_sync_set.py",
        old="if not view.alive(broker_id) and not (is_ours and broker_id in group.sync_state_set):",
        new="if False:",
        caught_by="tests/unit/controller/replicas/test_sync_set.py::test_the_first_check_that_fails_gives_the_code[group9-1-4-6-wanted9-2006]",
    ),
    Mutation(
        name="other-process-joins",
        breaks="A replica joins by what an earlier process of it acknowledged.",
        path="controller/brokerset_controller/replicas/decide_sync_set.py",
        old="if replica.nonce is not None and nonces[broker_id] != replica.nonce:",
        new="if False:",
        caught_by="tests/unit/controller/replicas/test_sync_set.py::test_a_process_that_was_replaced_brings_nobody_into_the_set",
    ),
    Mutation(
        name="set-of-old-epoch",
        breaks="A deposed master of the same id alters the set.",
        path="controller/brokerset_controller/replicas/decide_sync_set.py",
        old=("    if header.master_epoch != group.master_epoch:\n"),
        new=("    if False:\n"),
        caught_by="tests/unit/controller/replicas/test_sync_set.py::test_the_first_check_that_fails_gives_the_code[group6-1-9-9-wanted6-2000]",
    ),
)
