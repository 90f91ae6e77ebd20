"""Mistakes in the raft core and its storage."""

from __future__ import annotations

from tests.mutation.table import Mutation, Seeds

RAFT = (
    Mutation(
        name="commit-own-last-index",
        breaks="A follower commits entries that the leader has not compared.",
        path="libs/brokerset_raft/node.py",
        old="self._commit_to(min(request.commit, last_index))",
        new="self._commit_to(min(request.commit, self.log.last_index))",
        caught_by="tests/scenario/test_raft.py::test_scenario[follower_commits_what_was_compared]",
    ),
    Mutation(
        name="heartbeat-commit-of-leader",
        breaks="A heartbeat commits what the follower may have of another term.",
        path="libs/brokerset_raft/node.py",
        old="commit = min(progress.match_index, self.commit_index)",
        new="commit = self.commit_index",
        caught_by="tests/scenario/test_raft.py::test_scenario[configuration_rolled_back]",
    ),
    Mutation(
        name="any-log-elected",
        breaks="A voter elects a candidate that lacks entries.",
        path="libs/brokerset_raft/node.py",
        old="granted = free and complete",
        new="granted = free",
        caught_by="tests/unit/raft/core/test_node.py::test_vote_needs_a_log_that_is_as_complete[2-1-False]",
    ),
    Mutation(
        name="longer-log-elected",
        breaks="A voter compares lengths of logs instead of terms first.",
        path="libs/brokerset_raft/node.py",
        old="complete = (request.last_term, request.last_index) >= (self.log.last_term, self.log.last_index)",
        new="complete = request.last_index >= self.log.last_index",
        caught_by=Seeds("core", 30),
    ),
    Mutation(
        name="old-term-counted",
        breaks="A leader commits entries of older terms by counting.",
        path="libs/brokerset_raft/node.py",
        old="return self.log.term(index) == self.term",
        new="return self.log.term(index) is not None",
        caught_by="tests/scenario/test_raft.py::test_scenario[figure_8_old_term]",
    ),
    Mutation(
        name="two-votes",
        breaks="A node votes twice in a term.",
        path="libs/brokerset_raft/node.py",
        old=("            self._hard.voted_for == source\n"),
        new=("            True\n"),
        caught_by="tests/unit/raft/core/test_node.py::test_one_vote_a_term_also_after_a_restart",
    ),
    Mutation(
        name="read-in-round-under-way",
        breaks="A read is confirmed by heartbeats that were sent before it.",
        path="libs/brokerset_raft/node.py",
        old="self._reads.add(request_id, self.commit_index, self._round + 1)",
        new="self._reads.add(request_id, self.commit_index, self._round)",
        caught_by=Seeds("core", 30),
    ),
    Mutation(
        name="read-before-own-commit",
        breaks="A new leader answers reads before it knows what is committed.",
        path="libs/brokerset_raft/node.py",
        old=("        if self._has_committed_own():\n            self._start_read(request_id)\n        else"),
        new=("        if True:\n            self._start_read(request_id)\n        else"),
        caught_by=Seeds("core", 30),
    ),
    Mutation(
        name="two-changes-at-once",
        breaks="A second change of the members begins before the first is committed.",
        path="libs/brokerset_raft/node.py",
        old=("if self.log.configuration_index > self.commit_index:\n            raise"),
        new=("if False:\n            raise"),
        caught_by=Seeds("core", 60),
    ),
    Mutation(
        name="change-before-own-commit",
        breaks="A leader changes the members before it has committed in its term.",
        path="libs/brokerset_raft/node.py",
        old=("        if not self._has_committed_own():\n            raise ConfigurationRefused"),
        new=("        if False:\n            raise ConfigurationRefused"),
        caught_by="tests/unit/raft/core/test_node.py::test_membership_changes_wait_for_their_turn",
    ),
    Mutation(
        name="members-not-rolled-back",
        breaks="A follower keeps the members of a change that was cut.",
        path="libs/brokerset_raft/node.py",
        old=(
            "        self.log.append(entries[index - entries[0].index :])\n"
            "        self._adopt_configuration()"
        ),
        new=(
            "        self.log.append(entries[index - entries[0].index :])\n"
            "        if any(entry.kind is EntryKind.CONFIGURATION for entry in entries):\n"
            "            self._adopt_configuration()"
        ),
        caught_by=Seeds("core", 30),
    ),
    Mutation(
        name="persisted-kept-after-cut",
        breaks="A node counts entries as synced that were cut and replaced.",
        path="libs/brokerset_raft/node.py",
        old=("            self._persisted_index = min(self._persisted_index, index - 1)\n"),
        new="",
        caught_by=Seeds("core", 30),
    ),
    Mutation(
        name="withdrawn-acknowledgement-sent",
        breaks="A follower acknowledges entries that were cut before they were synced.",
        path="libs/brokerset_raft/node.py",
        old=("            self._outbox.withdraw_from(index)\n"),
        new="",
        caught_by="tests/unit/raft/core/test_node.py::test_entries_that_are_cut_unsynced_are_not_acknowledged",
    ),
    Mutation(
        name="leader-counts-unsynced",
        breaks="A leader counts its own entries before its disk has them.",
        path="libs/brokerset_raft/node.py",
        old="return self._persisted_index if node_id",
        new="return self.log.last_index if node_id",
        caught_by="tests/unit/raft/test_driver.py::test_a_leader_counts_itself_only_when_it_has_synced",
    ),
    Mutation(
        name="leads-without-majority",
        breaks="A leader that hears no majority goes on.",
        path="libs/brokerset_raft/node.py",
        old="if not self._heard_majority():",
        new="if False:",
        caught_by=Seeds("core", 30),
    ),
    Mutation(
        name="reads-kept-when-deposed",
        breaks="A deposed leader never answers the reads that wait.",
        path="libs/brokerset_raft/node.py",
        old=("        self._reads_refused += self._reads.drop()\n"),
        new="",
        caught_by=Seeds("core", 30),
    ),
    Mutation(
        name="previous-term-unchecked",
        breaks="A follower appends behind an entry of another term.",
        path="libs/brokerset_raft/node.py",
        old="elif self.log.term(request.previous_index) != request.previous_term:",
        new="elif self.log.last_index < request.previous_index:",
        caught_by=Seeds("core", 30),
    ),
    Mutation(
        name="vote-while-leader-is-heard",
        breaks="A follower that hears its leader helps to unseat it.",
        path="libs/brokerset_raft/node.py",
        old="if isinstance(body, VoteRequest) and not body.transfer and self._hears_leader():",
        new="if False:",
        caught_by="tests/unit/raft/core/test_node.py::test_follower_protects_a_leader_that_it_hears",
    ),
    Mutation(
        name="replaced-entries-not-saved",
        breaks="Entries that replace others are not written.",
        path="libs/brokerset_raft/node.py",
        old=("            self._unsaved_index = min(self._unsaved_index, index)\n"),
        new="",
        caught_by="tests/unit/raft/core/test_node.py::test_sync_of_a_replaced_entry_does_not_count",
    ),
    Mutation(
        name="removed-member-not-fed",
        breaks="A member that leaves never learns it.",
        path="libs/brokerset_raft/node.py",
        old="for m in (*self._configuration.members, *replaced)",
        new="for m in self._configuration.members",
        caught_by="tests/scenario/test_raft.py::test_scenario[membership]",
    ),
    Mutation(
        name="majority-is-half",
        breaks="Half of an even group decides.",
        path="libs/brokerset_raft/configuration.py",
        old="return len(self.voters) // 2 + 1",
        new="return (len(self.voters) + 1) // 2",
        caught_by="tests/unit/raft/core/test_node.py::test_removed_leader_does_not_count_itself",
    ),
    Mutation(
        name="promise-before-the-disk",
        breaks="An acknowledgement leaves before its entries are synced.",
        path="libs/brokerset_raft/outbox.py",
        old="_FREE_ONCE_TERM_IS_SYNCED = (AppendRequest, Heartbeat, HeartbeatReply, CampaignNow)",
        new="_FREE_ONCE_TERM_IS_SYNCED = (AppendRequest, AppendReply, Heartbeat, HeartbeatReply, CampaignNow)",
        caught_by="tests/unit/raft/test_driver.py::test_heartbeats_are_answered_while_entries_are_synced",
    ),
    Mutation(
        name="two-nodes-changed-at-once",
        breaks="Two members change in one step.",
        path="libs/brokerset_raft/changes.py",
        old="if len(changed) > 1:",
        new="if len(changed) > 2:",
        caught_by="tests/unit/raft/core/test_node.py::test_membership_changes_wait_for_their_turn",
    ),
    Mutation(
        name="changed-bit-is-torn",
        breaks="A changed bit next to zeros counts as a torn end.",
        path="libs/brokerset_raft/log_records.py",
        old="    if _has_other_length(content, position, sequence) or (",
        new="    if False and (",
        caught_by="tests/unit/raft/test_log_records.py::test_every_flipped_byte_is_found[209]",
    ),
    Mutation(
        name="a-sector-with-one-bit",
        breaks="A save may end in a sector with a single set bit, whose loss looks like a changed bit.",
        path="libs/brokerset_raft/storage.py",
        old="        while log_records.ends_in_one_bit(data, position=self._size):",
        new="        while False:",
        caught_by="tests/unit/raft/test_storage.py::"
        "test_a_vote_across_two_sectors_is_torn_when_one_is_lost_and_damaged_when_a_bit_changed",
    ),
    Mutation(
        name="anything-is-torn",
        breaks="Whatever cannot be read at the end counts as a torn end.",
        path="libs/brokerset_raft/log_records.py",
        old=(
            "    if _has_lost_sector(content, position, end):\n"
            "        return Torn(position, reason)\n"
            "    return Damaged"
        ),
        new=("    if True:\n        return Torn(position, reason)\n    return Damaged"),
        caught_by="tests/unit/raft/test_log_records.py::test_a_tail_of_garbage_is_damaged[tail0]",
    ),
    Mutation(
        name="failed-disk-tried-again",
        breaks="A node writes on after its disk failed.",
        path="libs/brokerset_raft/storage.py",
        old=("            self._failure = error\n            raise"),
        new="            raise",
        caught_by="tests/unit/raft/test_storage.py::test_a_failed_sync_is_final",
    ),
    Mutation(
        name="piece-of-another-snapshot",
        breaks="Pieces of two snapshots are put together.",
        path="libs/brokerset_raft/receiving.py",
        old="self._stored[1] if self._stored is not None and self._stored[0] == meta else 0",
        new="self._stored[1] if self._stored is not None else 0",
        caught_by="tests/unit/raft/core/test_receiving.py",
    ),
)
