"""Mistakes in replication, store and metadata of the brokers."""

from __future__ import annotations

from tests.mutation.table import Mutation

BROKER = (
    Mutation(
        name="largest-acknowledgement-confirms",
        breaks="The fastest replica decides what is confirmed.",
        path="broker/brokerset_broker/member/ha/progress.py",
        old=("                if acknowledged < reached:\n"),
        new=("                if acknowledged > reached:\n"),
        caught_by="tests/unit/broker/member/ha/test_progress.py::test_confirmed_is_what_all_members_have",
    ),
    Mutation(
        name="learner-counts",
        breaks="A learner counts for an acknowledgement.",
        path="broker/brokerset_broker/member/ha/progress.py",
        old="if replica is not None and broker_id != self.own_id and not replica.learner:",
        new="if replica is not None and broker_id != self.own_id:",
        caught_by="tests/unit/broker/member/ha/test_progress.py::test_a_number_of_members",
    ),
    Mutation(
        name="joins-without-confirmed",
        breaks="A replica gets in sync without what is confirmed.",
        path="broker/brokerset_broker/member/ha/progress.py",
        old="may_join=self._keeps_up(replica, now) and replica.acknowledged >= confirmed",
        new="may_join=self._keeps_up(replica, now)",
        caught_by="tests/unit/broker/member/ha/test_progress.py::test_who_may_join",
    ),
    Mutation(
        name="joins-below-epoch-start",
        breaks="A replica gets in sync without what the master began with.",
        path="broker/brokerset_broker/member/ha/progress.py",
        old=("            and replica.acknowledged >= self.epoch_start\n"),
        new="",
        caught_by="tests/unit/broker/member/ha/test_progress.py::test_a_replica_that_comes_back_with_less_does_not_join",
    ),
    Mutation(
        name="confirmed-inside-a-turn",
        breaks="The confirmed offset lies inside a record.",
        path="broker/brokerset_broker/member/ha/progress.py",
        old="rounded = log_end if reached >= log_end else -1",
        new="rounded = reached",
        caught_by="tests/unit/broker/member/ha/test_progress.py::test_confirmed_is_what_all_members_have",
    ),
    Mutation(
        name="pending-set-forgotten",
        breaks="A set that may be in force is not waited for.",
        path="broker/brokerset_broker/member/ha/in_sync.py",
        old="return self.committed.union(*self.pending) if self.pending else self.committed",
        new="return self.committed",
        caught_by="tests/unit/broker/member/ha/test_in_sync.py::test_a_proposal_is_pending_until_a_higher_set_epoch_is_known",
    ),
    Mutation(
        name="same-set-epoch-settles",
        breaks="An old answer settles a proposal that is on its way.",
        path="broker/brokerset_broker/member/ha/in_sync.py",
        old=(
            "        if set_epoch == self.set_epoch:\n"
            "            if self.known:\n"
            "                return False\n"
        ),
        new=("        if set_epoch == self.set_epoch:\n"),
        caught_by="tests/unit/broker/member/ha/test_in_sync.py::test_a_proposal_is_pending_until_a_higher_set_epoch_is_known",
    ),
    Mutation(
        name="lease-from-answer-of-other-epoch",
        breaks="A lease of another epoch counts.",
        path="broker/brokerset_broker/member/lease.py",
        old="return not self._given_up and epoch == self._epoch and now < self.ends_at",
        new="return not self._given_up and now < self.ends_at",
        caught_by="tests/unit/broker/member/test_lease.py::test_a_lease_is_for_one_epoch",
    ),
    Mutation(
        name="lease-never-ends",
        breaks="A lease does not end.",
        path="broker/brokerset_broker/member/lease.py",
        old="return not self._given_up and epoch == self._epoch and now < self.ends_at",
        new="return not self._given_up and epoch == self._epoch",
        caught_by="tests/unit/broker/member/test_lease.py::test_a_lease_runs_from_the_sending",
    ),
    Mutation(
        name="chunk-across-epochs",
        breaks="A piece carries bytes of two epochs under one label.",
        path="broker/brokerset_broker/member/ha/transfer.py",
        old="size = min(log_end, epoch_end, file_end, offset + min(size_max, BODY_SIZE_MAX)) - offset",
        new="size = min(log_end, file_end, offset + min(size_max, BODY_SIZE_MAX)) - offset",
        caught_by="tests/unit/broker/member/ha/test_transfer.py::test_a_chunk_ends_with_the_epoch",
    ),
    Mutation(
        name="cut-of-confirmed-without-proof",
        breaks="A slave cuts what was confirmed without asking.",
        path="broker/brokerset_broker/member/ha/following.py",
        old="return Truncate(point, own.history.truncate_from_epoch(common.epoch + 1), point < own.confirmed)",
        new="return Truncate(point, own.history.truncate_from_epoch(common.epoch + 1), False)",
        caught_by="tests/unit/broker/member/ha/test_following.py::test_what_the_master_does_not_have_is_cut",
    ),
    Mutation(
        name="any-word-proves-absence",
        breaks="Word about another epoch proves that a replica is not in sync.",
        path="broker/brokerset_broker/member/ha/following.py",
        old="return known_epoch == epoch and bool(known_set) and own_id not in known_set",
        new="return bool(known_set) and own_id not in known_set",
        caught_by="tests/unit/broker/member/ha/test_following.py::test_proof_is_the_controllers_word_in_this_epoch",
    ),
    Mutation(
        name="epochs-of-later-bytes-taken",
        breaks="A slave writes down epochs of bytes that it does not have.",
        path="broker/brokerset_broker/member/ha/following.py",
        old="e.epoch > last and e.start_offset <= offset",
        new="e.epoch > last",
        caught_by="tests/unit/broker/member/ha/test_following.py::test_epochs_are_due_before_their_first_byte",
    ),
    Mutation(
        name="waiters-told-too-early",
        breaks="A sender is told that its message is on the disk before it is.",
        path="broker/brokerset_broker/store/flush.py",
        old=("        while waiting and waiting[0][0] <= end:\n"),
        new=("        while waiting:\n"),
        caught_by="tests/unit/broker/store/test_flushing.py::test_one_flush_answers_many",
    ),
    Mutation(
        name="failed-flush-tried-again",
        breaks="A disk that failed is trusted again.",
        path="broker/brokerset_broker/store/flush.py",
        old=("        self.failed = True\n"),
        new="",
        caught_by="tests/unit/broker/store/test_flushing.py::test_a_failed_flush_is_final",
    ),
    Mutation(
        name="cut-keeps-waiters",
        breaks="Who waits for cut messages is not told.",
        path="broker/brokerset_broker/store/flush.py",
        old=("            if entry[0] <= offset:\n"),
        new=("            if True:\n"),
        caught_by="tests/unit/broker/store/test_truncation.py::test_who_waits_for_what_was_truncated_is_told_at_once",
    ),
    Mutation(
        name="flushed-offset-after-cut",
        breaks="The flushed offset lies behind the end of a cut log.",
        path="broker/brokerset_broker/store/flush.py",
        old=("        self._log.flushed_offset = min(self._log.flushed_offset, offset)\n"),
        new="",
        caught_by="tests/unit/broker/store/test_truncation.py::test_what_was_truncated_is_flushed_no_more",
    ),
    Mutation(
        name="confirmed-behind-the-end",
        breaks="What the log does not have counts as confirmed.",
        path="broker/brokerset_broker/store/confirmation.py",
        old="self._offset = max(self._offset, min(self._target, end))",
        new="self._offset = max(self._offset, self._target)",
        caught_by="tests/unit/broker/member/ha/test_replica_log.py::test_a_confirmed_offset_behind_the_end_counts_as_records_come",
    ),
    Mutation(
        name="cut-keeps-confirmed",
        breaks="The confirmed offset lies behind a cut.",
        path="broker/brokerset_broker/store/confirmation.py",
        old=("        self._offset = min(max(self._offset, self._log.min_offset), offset)\n"),
        new="",
        caught_by="tests/unit/broker/member/ha/test_replica_log.py::test_a_cut_removes_records_queues_and_index_for_good[True]",
    ),
    Mutation(
        name="loaded-confirmed-behind-the-end",
        breaks="A checkpoint confirms what the log has lost.",
        path="broker/brokerset_broker/store/confirmation.py",
        old="min(max(offset, self._log.min_offset), self._log.max_offset)",
        new="max(offset, self._log.min_offset)",
        caught_by="tests/unit/broker/store/test_truncation.py::test_a_checkpoint_confirms_only_what_the_log_has",
    ),
    Mutation(
        name="last-segment-deleted",
        breaks="The file that is written is deleted.",
        path="broker/brokerset_broker/store/retention.py",
        old=("    for segment in segments[:-1]:\n"),
        new=("    for segment in segments:\n"),
        caught_by="tests/unit/broker/store/test_retention.py::test_the_last_segment_never_goes",
    ),
    Mutation(
        name="unexpired-deleted",
        breaks="Files go before their time although that is not allowed.",
        path="broker/brokerset_broker/store/retention.py",
        old="if not (forced and rules.force) and segment.modified_ms > expired_before_ms:",
        new="if not forced and segment.modified_ms > expired_before_ms:",
        caught_by="tests/unit/broker/store/test_retention.py::test_force_can_be_forbidden",
    ),
    Mutation(
        name="queue-file-with-messages-deleted",
        breaks="A queue loses the file of a message that is still there.",
        path="broker/brokerset_broker/store/retention.py",
        old=("        if last_offset >= min_offset:\n"),
        new=("        if last_offset > min_offset:\n"),
        caught_by="tests/unit/broker/store/test_retention.py::test_queue_files",
    ),
    Mutation(
        name="queue-skips-numbers",
        breaks="Queue offsets are given twice.",
        path="broker/brokerset_broker/store/consume_queue.py",
        old=("        self.next_offset += len(units) // UNIT_SIZE\n"),
        new=("        self.next_offset += 1\n"),
        caught_by="tests/unit/broker/store/test_appending.py::test_a_batch_is_the_same_as_its_messages",
    ),
    Mutation(
        name="snapshot-not-whole",
        breaks="A snapshot is used whose first pieces are gone.",
        path="broker/brokerset_broker/tables/metadata/applier.py",
        old="return end.begin >= self._source.queue_min and end.replay_from >= self._source.min_offset",
        new="return True",
        caught_by="tests/unit/broker/tables/metadata/test_applying.py::test_a_snapshot_whose_beginning_was_deleted_does_not_count",
    ),
    Mutation(
        name="changes-next-to-a-snapshot-lost",
        breaks="Changes that were made while a snapshot was written are lost.",
        path="broker/brokerset_broker/tables/metadata/applier.py",
        old=(
            "        for _, change in later:\n            assembly.state.apply(change)\n            yield 0\n"
        ),
        new="",
        caught_by="tests/unit/broker/tables/metadata/test_metadata_log.py::test_a_snapshot_lets_others_go_on_and_loses_nothing",
    ),
    Mutation(
        name="snapshot-check-skipped",
        breaks="A snapshot with missing pieces is taken.",
        path="broker/brokerset_broker/tables/metadata/applier.py",
        old=(
            "        if problem is not None:\n"
            '            log.warning("a snapshot is ignored: it is not whole"'
        ),
        new=('        if False:\n            log.warning("a snapshot is ignored: it is not whole"'),
        caught_by="tests/unit/broker/tables/metadata/test_metadata_log.py::test_a_snapshot_that_is_not_whole_counts_for_nothing[lost chunk]",
    ),
    Mutation(
        name="applied-beyond-limit",
        breaks="Changes take effect that are not confirmed.",
        path="broker/brokerset_broker/tables/metadata/applier.py",
        old=(
            "        if offset + size > limit:\n"
            "            return None\n"
            "        if self.position in self.own:"
        ),
        new="        if self.position in self.own:",
        caught_by="tests/unit/broker/tables/metadata/test_metadata_log.py::test_a_told_change_is_applied_when_confirmed",
    ),
    Mutation(
        name="topic-overwritten",
        breaks="A topic that is created on demand replaces the one that exists.",
        path="broker/brokerset_broker/tables/metadata/tables.py",
        old="if not (change.if_absent and topics.get(topic.topic_name) is not None):",
        new="if True:",
        caught_by="tests/unit/broker/tables/metadata/test_applying.py::test_a_topic_created_on_demand_leaves_the_one_that_exists_alone",
    ),
    Mutation(
        name="offsets-of-deleted-topic-stay",
        breaks="A topic that is made again starts with old offsets.",
        path="broker/brokerset_broker/tables/metadata/tables.py",
        old=("                    offsets.forget_topic(name)\n"),
        new="",
        caught_by="tests/unit/broker/tables/metadata/test_metadata_log.py::test_quiet_changes_stand_before_a_told_one",
    ),
    Mutation(
        name="offsets-not-released",
        breaks="An offset that was committed can never be changed again.",
        path="broker/brokerset_broker/tables/metadata/tables.py",
        old=(
            "            case OffsetsPut():\n"
            "                self.release(change)\n"
            "                offsets.drop_resets"
        ),
        new=("            case OffsetsPut():\n                offsets.drop_resets"),
        caught_by="tests/unit/broker/tables/metadata/test_applying.py::test_offsets_are_held_only_until_their_record_is_applied",
    ),
    Mutation(
        name="stamp-unchecked",
        breaks="A damaged stamp is believed.",
        path="broker/brokerset_broker/tables/metadata/stamp.py",
        old=(
            '        if fields.as_integer(found.get("crc"), "crc") != stamp._crc():\n'
            '            raise FormatError("the checksum does not match")\n'
        ),
        new="",
        caught_by="tests/unit/broker/tables/metadata/test_applying.py::test_a_changed_stamp_is_worth_nothing",
    ),
    Mutation(
        name="light-offset-not-counted",
        breaks="In DLedger mode all messages of a turn get the same number in a light queue.",
        path="broker/brokerset_broker/store/message_store.py",
        old="                light.next_offset += 1\n",
        new="",
        caught_by="tests/integration/broker/test_dledger_group.py::test_light_queues_go_on_with_their_numbers_after_the_leader_has_crashed",
    ),
    Mutation(
        name="light-unit-not-recovered",
        breaks="A light queue lacks what was in the log before a crash.",
        path="broker/brokerset_broker/store/dispatch.py",
        old="for name, number in dispatched_queues(head.topic, head.properties)",
        new="for name, number in ()",
        caught_by="tests/property/test_light_queues.py",
    ),
    Mutation(
        name="light-run-not-received",
        breaks="A replica puts messages into their topic's queue only.",
        path="broker/brokerset_broker/store/receiving.py",
        old="                    lights = found\n",
        new="",
        caught_by="tests/property/test_light_queues.py::test_a_replica_has_the_light_queues_of_its_master",
    ),
    Mutation(
        name="forged-light-offset-stays",
        breaks="A client says which number its message has in a light queue.",
        path="libs/brokerset_formats/light_queues.py",
        old="gone = (OFFSETS,) if value == named or not queues else (OFFSETS, DISPATCH)",
        new="gone = () if value == named or not queues else (DISPATCH, DISPATCH)",
        caught_by="tests/property/test_light_queues.py",
    ),
    Mutation(
        name="light-queue-expires-with-a-new-message",
        breaks="A lite topic is deleted although a message came after the search.",
        path="broker/brokerset_broker/services/light_queue_expiry.py",
        old="gone = tuple(name for name in names if self._has_expired(name))",
        new="gone = tuple(names)",
        caught_by="tests/unit/broker/services/test_light_queue_expiry.py::test_a_message_between_search_and_decision_saves_the_lite_topic",
    ),
)
