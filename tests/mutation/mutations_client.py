"""Mistakes in our client: transactions, timer messages, traces."""

from __future__ import annotations

from tests.mutation.table import Mutation

_PRODUCER = "libs/brokerset_client/transaction_producer.py"
_CHECKS = "libs/brokerset_client/transaction_checks.py"
_TIMERS = "libs/brokerset_client/timers.py"
_TRACING = "libs/brokerset_client/tracing.py"
_RECORDS = "libs/brokerset_protocol/bodies/traces.py"
_TRANSACTIONS = "tests/integration/client/test_transaction_producer.py::"
_RECALLS = "tests/integration/client/test_recall.py::"
_TRACES = "tests/integration/client/test_traces.py::"

CLIENT = (
    Mutation(
        name="cancelled-block-rolled-back",
        breaks="A cancelled block takes back the messages of work that may be done.",
        path=_PRODUCER,
        old="return TransactionState.ROLLBACK if isinstance(error, Exception) else TransactionState.UNKNOWN",
        new="return TransactionState.ROLLBACK",
        caught_by=_TRANSACTIONS + "test_a_cancelled_block_decides_nothing",
    ),
    Mutation(
        name="half-without-mark",
        breaks="A half message is sent with the flag of an ordinary one.",
        path=_PRODUCER,
        old="        sending.sys_flag |= SysFlag.TRANSACTION_PREPARED\n",
        new="",
        caught_by=_TRANSACTIONS + "test_a_commit_is_confirmed",
    ),
    Mutation(
        name="weak-half-runs-local-work",
        breaks="Local work runs though its half message may be lost with the master.",
        path=_PRODUCER,
        old="        if half.sent.status is not SendStatus.SEND_OK:\n            return await",
        new="        if False:\n            return await",
        caught_by=_TRANSACTIONS + "test_a_weakly_stored_half_message_is_rolled_back",
    ),
    Mutation(
        name="refusal-after-doubt-is-final",
        breaks="A refusal counts though the attempt before it may have been carried out.",
        path=_PRODUCER,
        old="if answer.code == _LATE or self._in_doubt:",
        new="if answer.code == _LATE:",
        caught_by=_TRANSACTIONS + "test_a_refusal_after_a_lost_answer_decides_nothing",
    ),
    Mutation(
        name="end-stays-with-old-master",
        breaks="An end is refused for good by a broker that was demoted.",
        path=_PRODUCER,
        old="_PERHAPS_DONE | {ResponseCode.SLAVE_NOT_AVAILABLE}",
        new="_PERHAPS_DONE",
        caught_by=_TRANSACTIONS + "test_an_end_goes_to_the_new_master",
    ),
    Mutation(
        name="refused-commit-is-silent",
        breaks="Nobody hears that the message of work that is done will not come.",
        path=_PRODUCER,
        old="if refused and state is TransactionState.COMMIT:",
        new="if False:",
        caught_by=_TRANSACTIONS + "test_a_refused_commit_of_a_block_raises",
    ),
    Mutation(
        name="check-of-running-work-is-asked",
        breaks="The handler decides about work that still runs here.",
        path=_CHECKS,
        old="        if running is not None:\n",
        new="        if False:\n",
        caught_by=_TRANSACTIONS + "test_a_check_of_running_work_waits_for_its_end",
    ),
    Mutation(
        name="old-copy-is-ended",
        breaks="An answer names a copy of the half message that is not the newest.",
        path=_CHECKS,
        old="            known.position = position\n",
        new="            pass\n",
        caught_by=_TRANSACTIONS + "test_repeated_checks_get_one_answer",
    ),
    Mutation(
        name="decision-forgotten",
        breaks="The handler decides again about what was decided here.",
        path=_CHECKS,
        old="            decided, owner = self._decided.get(transaction_id, (None, None))\n",
        new="            decided, owner = None, None\n",
        caught_by=_TRANSACTIONS + "test_a_check_of_a_lost_end_gets_what_was_decided",
    ),
    Mutation(
        name="half-too-many-is-committed",
        breaks="A half message whose answer was lost is committed beside the one that was sent instead.",
        path=_CHECKS,
        old="            elif check.position.is_elsewhere(owner):\n",
        new="            elif False:\n",
        caught_by=_TRANSACTIONS + "test_a_half_message_of_a_lost_answer_at_another_broker_is_taken_back",
    ),
    Mutation(
        name="failed-check-rolls-back",
        breaks="A check handler that fails takes the message back.",
        path=_CHECKS,
        old='        return TransactionState.UNKNOWN, f"check',
        new='        return TransactionState.ROLLBACK, f"check',
        caught_by=_TRANSACTIONS + "test_a_failing_handler_answers_unknown",
    ),
    Mutation(
        name="delay-cut-short",
        breaks="A delay is rounded down, and a message comes early.",
        path=_TIMERS,
        old="delay_ms=math.ceil(round(seconds * 1000, 3))",
        new="delay_ms=int(seconds * 1000)",
        caught_by="tests/unit/client/test_timers.py::test_a_delay_becomes_milliseconds",
    ),
    Mutation(
        name="recall-not-repeated",
        breaks="A recall fails with the master.",
        path=_TIMERS,
        old="return isinstance(error, AnswerTimeout | BrokerUnreachable | NoQueue)",
        new="return False",
        caught_by=_RECALLS + "test_a_recall_finds_the_new_master",
    ),
    Mutation(
        name="traces-unwanted",
        breaks="Traces are written though the broker has turned them off.",
        path=_TRACING,
        old="if result.region_id is None or not result.trace_on:",
        new="if result.region_id is None:",
        caught_by=_TRACES + "test_brokers_decide_about_traces",
    ),
    Mutation(
        name="traces-unbounded",
        breaks="Traces pile up while no broker takes them.",
        path=_TRACING,
        old="if len(self._waiting) >= WAITING_MAX or self._flusher is None:",
        new="if self._flusher is None:",
        caught_by=_TRACES + "test_too_many_traces_are_dropped",
    ),
    Mutation(
        name="traces-lost-at-close",
        breaks="A producer that closes loses the traces of its last seconds.",
        path=_TRACING,
        old="                while self._waiting:\n                    await self._send_some()\n        except",
        new="                pass\n        except",
        caught_by=_TRACES + "test_the_end_of_a_producer_sends_what_waits",
    ),
    Mutation(
        name="empty-last-field",
        breaks="A record ends with an empty field, over which Java's reader fails.",
        path=_RECORDS,
        old='MISSING: Final = "null"',
        new='MISSING: Final = ""',
        caught_by="tests/unit/protocol/test_traces.py::test_records_are_javas",
    ),
)
