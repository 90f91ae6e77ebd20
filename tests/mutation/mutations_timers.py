"""Mistakes in timer messages, whose consequences are messages that are lost, early, or come too often."""

from __future__ import annotations

from tests.mutation.table import Mutation

_TIMERS = "broker/brokerset_broker/timers/"
_WORK = "broker/brokerset_broker/services/timers/"
_FAILOVER = "tests/integration/broker/test_timer_failover.py::"
_ALONE = "tests/integration/broker/test_timers.py::"
_REQUESTS = "tests/integration/broker/test_timer_requests.py::"

TIMERS = (
    Mutation(
        name="timers-read-the-slot-of-now",
        breaks="A slot is read before it has ended, so messages are early.",
        path=_TIMERS + "progress.py",
        old="        write_ms = settings.floor(now_ms)\n",
        new="        write_ms = settings.floor(now_ms) + settings.slot_ms\n",
        caught_by="tests/unit/broker/timers/test_progress.py::test_slots_are_passed_only_when_they_have_ended",
    ),
    Mutation(
        name="timers-demoted-keeps-units",
        breaks="A deposed master keeps units of messages that its group does not have.",
        path=_WORK + "work.py",
        old="        if not self.state.must_take_back:\n",
        new="        if True:\n",
        caught_by=_FAILOVER + "test_a_master_that_is_deposed_takes_back_what_its_group_does_not_have",
    ),
    Mutation(
        name="timers-oldest-stays",
        breaks="A master that was deposed passes over what it delivered alone, when it leads again.",
        path=_WORK + "work.py",
        old="        if self.state.progress.read_ms < self._oldest_read_ms:\n",
        new="        if False:\n",
        caught_by=_FAILOVER + "test_what_a_deposed_master_delivered_alone_is_delivered_again",
    ),
    Mutation(
        name="timers-tell-unconfirmed",
        breaks="A Java slave is told of deliveries that may be truncated.",
        path=_WORK + "service.py",
        old="        while self._records and self._records[0][0] <= confirmed:\n",
        new="        while self._records:\n",
        caught_by=_FAILOVER + "test_what_java_slaves_learn_is_confirmed",
    ),
    Mutation(
        name="timers-progress-not-recorded",
        breaks="The group never hears how far its master is.",
        path="broker/brokerset_broker/tables/metadata/metadata_log.py",
        old="        progress = timers.unrecorded()\n        if progress is None:\n",
        new="        progress = timers.unrecorded()\n        if progress is None or True:\n",
        caught_by=_FAILOVER + "test_the_next_master_delivers_what_the_last_one_did_not_tell",
    ),
    Mutation(
        name="timers-stamp-without-progress",
        breaks="A restarted replica does not know what its group had done.",
        path="broker/brokerset_broker/tables/metadata/metadata_log.py",
        old="            if stamp.timers is not None:\n",
        new="            if False and stamp.timers is not None:\n",
        caught_by=_FAILOVER + "test_the_stamp_alone_tells_what_was_done",
    ),
    Mutation(
        name="timers-room-for-delivery",
        breaks="A message is accepted that can never be delivered.",
        path="broker/brokerset_broker/requests/send.py",
        old="                properties_max -= DELIVERY_PROPERTIES_SIZE\n",
        new="                pass\n",
        caught_by=_REQUESTS + "test_a_message_whose_delivery_would_not_fit_is_refused_when_it_is_sent",
    ),
    Mutation(
        name="timers-full-disk-ends-them",
        breaks="After the disk was full once, nothing waits any more.",
        path=_WORK + "service.py",
        old='            log.error("timer messages wait for the disk", error=str(error))\n            pause = RETRY_SECONDS\n',
        new='            log.error("timer messages wait for the disk", error=str(error))\n            pause = None\n',
        caught_by=_ALONE + "test_messages_wait_while_the_disk_is_full_and_come_then",
    ),
    Mutation(
        name="timers-precision-ignored",
        breaks="A wheel of another precision is taken for one of this one.",
        path=_WORK + "files.py",
        old="        return not own or _PRECISION.unpack_from(own)[0] == self._settings.slot_ms\n",
        new="        return True\n",
        caught_by=_ALONE + "test_files_of_another_size_or_precision_are_made_again",
    ),
    Mutation(
        name="timers-recall-any-broker",
        breaks="A handle of another broker recalls messages here.",
        path=_TIMERS + "recall_decision.py",
        old="    if handle.broker_name != broker_name:\n",
        new="    if False:\n",
        caught_by="tests/unit/broker/timers/test_recall_decision.py::"
        "test_everything_else_is_refused_in_javas_words",
    ),
    Mutation(
        name="timers-retention-forgets",
        breaks="Retention deletes what waits.",
        path=_WORK + "work.py",
        old="        needed = NO_OFFSET\n        with suppress",
        new="        return NO_OFFSET\n        with suppress",
        caught_by=_ALONE + "test_retention_keeps_what_waits",
    ),
)
