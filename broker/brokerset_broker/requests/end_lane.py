"""The way of plain ends of transactions through the native core (`native/DESIGN.md`).

A plain end commits or rolls back a transaction that is open, of a half message without a copy and without an
immunity, for a topic that an earlier end was for. What a half is, is known by `Resolved` alone; whether the
request names it rightly, and whether who signed it may send to its topic, the core compares with its record.
Whatever is not plain is left to `TransactionProcessor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import orjson

from brokerset_acl.access_book import AccessBook
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.core_decisions import CoreDecisions
from brokerset_broker.requests.send_refusals import CODES
from brokerset_broker.requests.transaction_log import OPS_NOT_STORED, TransactionLog
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.releases import ANY_QUEUE, Releases, Targets
from brokerset_broker.tables.ordered.ordered_tables import OrderedTables
from brokerset_broker.tables.topics import TopicManager
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import FLAG_RESPONSE, Command
from brokerset_runtime.remoting import Connection

END_BEGIN: Final = b'{"code":37,'
"""How clients begin the header of an end."""

LENGTHS_SIZE: Final = 8
"""Of a frame and its header, before it."""

ANSWER_SIZE_MAX: Final = 200
"""Bytes of an answer that says that all is well."""

Answers = tuple[bytes, int]
"""Frames that say that all is well, and how many."""


def begins_with_end(data: bytes, position: int = 0) -> bool:
    """Whether the end of a transaction begins there in a chunk, as clients write it."""
    return data.startswith(END_BEGIN, position + LENGTHS_SIZE)


class EndLane:
    """Serves the plain ends at the beginning of a chunk; for `RemotingServer`."""

    def __init__(
        self,
        releases: Releases,
        *,
        log_of_transactions: TransactionLog,
        topics: TopicManager,
        ordered: OrderedTables,
        admission: Admission,
        book: AccessBook | None = None,
    ) -> None:
        """With `book` only what is signed by somebody who may end it is served, see `allow`; `releases` was
        made for that."""
        self._releases = releases
        self._decisions = CoreDecisions(book, releases)
        self.allow = self._decisions.allow
        """Serve ends of a user, who is enabled, of transactions of a topic from an address, as of now."""
        self._log = log_of_transactions
        self._topics = topics
        self._ordered = ordered
        self._admission = admission
        self._targets = Targets(self._queues_of)
        self.is_open: Callable[[], bool] = lambda: False
        """Whether ends are served now, as the broker's role has it; set when the role is known."""
        self.served = 0
        """Ends that were served this way."""

    def learn(self, topic: str) -> None:
        """A transaction of this topic was ended by `TransactionProcessor`."""
        self._targets.learn(topic)

    def _queues_of(self, topic: str) -> int | None:
        """How many queues final records may go to; None if one needs another look (`_deliverable`)."""
        config = self._topics.get(topic)
        if config is None or topic in self._topics.going or self._ordered.is_subject(topic):
            return None
        return config.read_queue_nums or ANY_QUEUE

    def serve(self, connection: Connection, data: bytes) -> int:
        """Serve the plain ends at the beginning of `data`; returns their bytes."""
        transactions = self._log
        resolved = transactions.resolved
        count_max = min(connection.in_flight_room, connection.answers_room // ANSWER_SIZE_MAX)
        if resolved is None or count_max <= 0 or self._admission.refuses_writes or not self.is_open():
            return 0
        self._decisions.drop_old()
        ends = self._releases.read_ends(data, count_max, connection.peer[0])
        count = resolved.plainly_open(ends)
        if not count:
            return 0
        transactions.write_ops_soon()
        found = self._releases.serve_ends(count, ends[0][0], self._targets.current())
        if found is None:
            return 0
        self.served += found.ends
        transactions.ended(ends[: found.ends], found)
        self._answer(connection, found.commits, found.log_end)
        if found.rollbacks[1]:
            connection.in_flight += found.rollbacks[1]
            transactions.when_ops_stored(partial(self._ops_stored, connection, found.rollbacks))
        return found.size

    def _answer(self, connection: Connection, answers: Answers, end: int) -> None:
        """Answer, when the log is safe up to there."""
        frames, count = answers
        when_durable = self._admission.when_durable
        if not count:
            return
        if when_durable is None:
            connection.send(frames)
        else:
            connection.in_flight += count
            when_durable(end, partial(answer_stored, connection, answers))

    def _ops_stored(self, connection: Connection, answers: Answers, end: int | None) -> None:
        """The op records of rollbacks are stored, or the store did not take them."""
        if end is None:
            for reply in with_code(answers[0], ResponseCode.SYSTEM_ERROR, OPS_NOT_STORED):
                connection.answer(reply)
            return
        connection.in_flight -= answers[1]
        self._answer(connection, answers, end)


def answer_stored(connection: Connection, answers: Answers, status: PutStatus) -> None:
    """Send the answers, or the same with what the store says if records are not as safe as was asked for.

    So do sends, too; Java answers 0 whatever became of an end.
    """
    frames, count = answers
    code = CODES.get(status, ResponseCode.SYSTEM_ERROR)
    if code != ResponseCode.SUCCESS:
        for reply in with_code(frames, code, status.value):
            connection.answer(reply)
        return
    connection.in_flight -= count
    connection.send(frames)


def with_code(frames: bytes, code: int, remark: str) -> Iterator[Command]:
    """The same answers with bad news."""
    position = 0
    while position < len(frames):
        end = position + 4 + int.from_bytes(frames[position : position + 4], "big")
        opaque = orjson.loads(frames[position + LENGTHS_SIZE : end])["opaque"]
        yield Command(code, {}, opaque=opaque, flag=FLAG_RESPONSE, remark=remark)
        position = end
