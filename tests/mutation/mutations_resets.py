"""Mistakes around resets of offsets and the suspension of consumers."""

from __future__ import annotations

from tests.mutation.table import Mutation

RESETS = (
    Mutation(
        name="old-commit-counts-after-reset",
        breaks="A commit that was on its way takes the group back to where it was before the reset.",
        path="broker/brokerset_broker/tables/offsets.py",
        old="        if self._reset_fences.by_key and self._reset_fences.ignores(key, queue_id, offset):\n            return True\n",
        new="",
        caught_by="tests/unit/broker/tables/test_reset_fences.py::test_an_old_commit_after_the_answer_does_not_take_the_group_back",
    ),
    Mutation(
        name="fence-for-ever",
        breaks="A consumer that never goes where the reset is can never commit again.",
        path="broker/brokerset_broker/tables/reset_fences.py",
        old="        if offset != fence[0] and self._clock.monotonic() < fence[1]:\n",
        new="        if offset != fence[0]:\n",
        caught_by="tests/unit/broker/tables/test_reset_fences.py::test_a_consumer_that_never_moves_is_believed_in_the_end",
    ),
    Mutation(
        name="any-pull-ends-fence",
        breaks="A pull from before the reset lets old commits count.",
        path="broker/brokerset_broker/tables/reset_fences.py",
        old="if fence is not None and (queue_offset == fence[0] or self._clock.monotonic() >= fence[1]):",
        new="if fence is not None:",
        caught_by="tests/unit/broker/tables/test_reset_fences.py::test_a_pull_from_elsewhere_shows_nothing",
    ),
    Mutation(
        name="taken-reset-sent",
        breaks="A consumer that went on already is moved back by a notice.",
        path="broker/brokerset_broker/services/reset_notices.py",
        old="if pending.get(queue) == offset}",
        new="if pending is not None}",
        caught_by="tests/unit/broker/services/test_reset_notices.py::test_what_was_taken_is_not_sent",
    ),
    Mutation(
        name="notices-forgotten-at-failover",
        breaks="A reset that waited at the old master is never sent by the new one.",
        path="broker/brokerset_broker/services/reset_notices.py",
        old="        self.reset(waiting)\n",
        new="",
        caught_by="tests/unit/broker/services/test_reset_notices.py::test_a_new_master_sends_what_waited_at_the_old_one",
    ),
    Mutation(
        name="set-aside-dropped",
        breaks="What a suspended consumer had fetched is lost when it goes on.",
        path="libs/brokerset_client/listening.py",
        old="        self._ready.extend((assigned, messages) for messages in assigned.set_aside)\n",
        new="",
        caught_by="tests/integration/client/test_push_consumer.py::test_a_suspended_consumer_gets_nothing_until_it_is_resumed[False]",
    ),
)
