"""Mistakes in DLedger mode: its store, and the roles of its brokers. Those of its core are in the simulation's
`test_dledger_broken` and in `tests/scenario/dledger`, some of whole brokers in `test_dledger_brokers_broken`."""

from __future__ import annotations

from tests.mutation.table import Mutation

STORE = "tests/unit/broker/store/test_ledger_store.py"
OLD_LOG = "tests/unit/broker/store/test_old_log.py"
MEMBER = "tests/unit/broker/member/dledger"

DLEDGER = (
    Mutation(
        name="dispatches-uncommitted",
        breaks="What no quorum has is in queues and index.",
        path="broker/brokerset_broker/store/ledger_store.py",
        old="        step = self._entries.step(self.ledger.committed_position)\n",
        new="        step = self._entries.step(self.ledger.write_position)\n",
        caught_by=f"{STORE}::test_numbers_in_a_queue_go_on_before_anything_is_committed",
    ),
    Mutation(
        name="acknowledges-for-another-leader",
        breaks="A send is acknowledged whose place another leader's entry has taken.",
        path="broker/brokerset_broker/store/ledger_store.py",
        old="        while waiting and waiting[0].term != term:\n",
        new="        while waiting and term is None:\n",
        caught_by=f"{STORE}::test_no_send_is_acknowledged_for_the_entry_of_another_leader",
    ),
    Mutation(
        name="numbers-of-lost-messages-stay",
        breaks="A new leader numbers messages behind those that were truncated.",
        path="broker/brokerset_broker/store/ledger_store.py",
        old="        self._tails.clear()\n",
        new="",
        caught_by=f"{STORE}::test_a_truncated_entry_never_was_in_a_queue_and_its_number_is_given_again",
    ),
    Mutation(
        name="offset-of-the-entry",
        breaks="Queues and clients are told where the entry begins, not its record.",
        path="broker/brokerset_broker/store/ledger_log.py",
        old="        return position + ENTRY_HEAD_SIZE\n",
        new="        return position\n",
        caught_by=f"{STORE}::test_a_record_stands_48_bytes_behind_its_entry_and_says_so",
    ),
    Mutation(
        name="damage-is-no-message",
        breaks="A committed record that is damaged is passed over.",
        path="broker/brokerset_broker/store/receiving.py",
        old="        if holds_record(file.view[record : position + size]):\n            self._put_record(file, record, position + size)\n",
        new="        if False:\n            pass\n",
        caught_by=f"{STORE}::test_a_damaged_record_that_was_committed_stops_the_store",
    ),
    Mutation(
        name="torn-record-is-whole",
        breaks="A record whose first page is lost is taken up after a power failure.",
        path="broker/brokerset_broker/store/ledger_store.py",
        old="        return any(body[4:8]) or len(body) < ENTRY_HEAD_SIZE\n",
        new="        return True\n",
        caught_by=f"{STORE}::test_a_record_whose_first_page_is_lost_is_not_whole",
    ),
    Mutation(
        name="truncated-units-stay",
        breaks="What a leader of Java truncates stays in the queues.",
        path="broker/brokerset_broker/store/ledger_store.py",
        old="        self.log.begin_at(offset, self.log.store_timestamp)\n        self.queues_table.truncate(offset)\n",
        new="        self.log.begin_at(offset, self.log.store_timestamp)\n",
        caught_by=f"{STORE}::test_what_a_leader_of_java_truncates_goes_from_queues_and_index",
    ),
    Mutation(
        name="delete-guard-missing",
        breaks="Files of the DLedger are deleted while old ones are there.",
        path="broker/brokerset_broker/store/ledger_log.py",
        old="        old = None if self._joined is None else self._joined.detach_old()\n",
        new="        old = None\n",
        caught_by=f"{OLD_LOG}::test_old_files_go_before_any_of_the_dledger",
    ),
    Mutation(
        name="old-logs-may-differ",
        breaks="Members whose old logs differ form a group.",
        path="broker/brokerset_broker/store/old_log.py",
        old="            if here != there:\n",
        new="            if False:\n",
        caught_by=f"{OLD_LOG}::test_the_first_difference_between_old_logs_is_named",
    ),
    Mutation(
        name="votes-before-comparing",
        breaks="A member votes before a quorum is known to have its old log.",
        path="broker/brokerset_broker/member/dledger/old_logs.py",
        old="        if len(self._equal) + 1 >= self._quorum:\n",
        new="        if True:\n",
        caught_by=f"{MEMBER}/test_old_logs.py::test_who_differs_from_all_that_answer_waits_and_says_where",
    ),
    Mutation(
        name="serves-before-dispatch",
        breaks="A leader serves before its log is committed and dispatched.",
        path="broker/brokerset_broker/member/dledger/ledger_replication.py",
        old="        while self._epoch is not None and not self._store.is_dispatched:\n",
        new="        while False:\n",
        caught_by=f"{MEMBER}/test_ledger_replication.py::test_a_leader_waits_until_all_of_its_log_is_dispatched",
    ),
    Mutation(
        name="leads-on",
        breaks="A broker whose leadership has ended takes appends until the change of role.",
        path="broker/brokerset_broker/member/dledger/ledger_replication.py",
        old="        if self._led is None or self._leads(self._led):\n",
        new="        if True:\n",
        caught_by=f"{MEMBER}/test_ledger_replication.py::test_a_lost_leadership_refuses_appends_and_answers_at_once",
    ),
    Mutation(
        name="lease-of-another-term",
        breaks="A leader reads with the lease of another term.",
        path="broker/brokerset_broker/member/dledger/news.py",
        old="        return epoch == self.epoch and self.may_serve()\n",
        new="        return self.may_serve()\n",
        caught_by=f"{MEMBER}/test_news.py::test_a_lease_counts_for_the_term_that_it_was_won_in",
    ),
    Mutation(
        name="old-log-goes-with-the-first-entry",
        breaks="A member whose first entry is replaced deletes the messages from before DLedger mode.",
        path="broker/brokerset_broker/store/ledger_store.py",
        old="                if not start == self.log.divide > 0:\n",
        new="                if True:\n",
        caught_by=f"{OLD_LOG}::test_the_old_log_stays_when_the_leaders_first_entry_takes_the_place_of_another",
    ),
    Mutation(
        name="failed-truncation-goes-unseen",
        breaks="A follower whose log is synced and whose truncation failed takes no entry any more, and runs on.",
        path="broker/brokerset_broker/store/ledger.py",
        old="        return self.synced_index < self.end_index or self._failure is not None\n",
        new="        return self.synced_index < self.end_index\n",
        caught_by=f"{STORE}::test_a_truncation_that_the_disk_did_not_take_ends_the_log",
    ),
    Mutation(
        name="truncates-again-after-a-failure",
        breaks="A second try finds zeros in the page cache, syncs nothing, and stale entries stay on the disk.",
        path="broker/brokerset_broker/store/ledger.py",
        old="        self._require_disk()\n        try:\n            known =",
        new="        try:\n            known =",
        caught_by=f"{STORE}::test_a_truncation_that_the_disk_did_not_take_ends_the_log",
    ),
)
