"""The way of plain acks through the native core (`native/DESIGN.md`).

Plain is an ACK_MESSAGE as `plain_acks` has it. The core reads all of a chunk, those of one check point
together; the first of which one is not plain ends a call, and is left to `PopAckProcessor`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Final

from brokerset_acl.access_book import AccessBook
from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.core_decisions import CoreDecisions
from brokerset_broker.requests.end_lane import (
    ANSWER_SIZE_MAX,
    LENGTHS_SIZE,
    Answers,
    answer_stored,
    with_code,
)
from brokerset_broker.requests.pop.log import PopLog
from brokerset_broker.requests.pop.plain_acks import PlainAcks, done_pieces
from brokerset_broker.requests.send_refusals import refusal
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_protocol.commands import FRAME_SIZE_MAX
from brokerset_runtime.remoting import Connection

ACK_BEGIN: Final = b'{"code":200051,'
"""How clients begin the header of an ack."""

POP_BEGIN: Final = b'{"code":200'
"""How they begin the header of any request of POP."""


def is_of_pop(data: bytes) -> bool:
    """Whether a request of POP begins a chunk, as clients write it."""
    return data.startswith(POP_BEGIN, LENGTHS_SIZE)


class AckLane:
    """Serves the plain acks at the beginning of a chunk; for `RemotingServer`."""

    def __init__(
        self,
        core: ModuleType,
        *,
        live: LiveSettings,
        log_of_pops: PopLog,
        plain: PlainAcks,
        admission: Admission,
        book: AccessBook | None = None,
    ) -> None:
        """`core` is the native module. With `book` only what is signed by somebody who may ack is served, see
        `allow`."""
        reader = core.AckReader(done_pieces(), FRAME_SIZE_MAX, book is not None)
        self._read = reader.read
        self._decisions = CoreDecisions(book, reader)
        self.allow = self._decisions.allow
        """Serve what a user, who is enabled, acks as a group of what is popped from a topic, from an address,
        as of now."""
        self._live = live
        self._log = log_of_pops
        self._plain = plain
        self._admission = admission
        self.is_open: Callable[[], bool] = lambda: False
        """Whether acks are served now, as the broker's role has it; set when the role is known."""
        self.served = 0
        """Acks that were served this way."""

    def serve(self, connection: Connection, data: bytes) -> int:
        """Serve the plain acks at the beginning of `data`; returns their bytes."""
        count_max = min(connection.in_flight_room, connection.answers_room // ANSWER_SIZE_MAX)
        if not data.startswith(ACK_BEGIN, LENGTHS_SIZE) or count_max <= 0 or not self.is_open():
            return 0
        self._decisions.drop_old()
        log, find = self._log, self._plain.find
        size = served = 0
        for names, distances, end, count, replies in self._read(data, count_max, connection.peer[0]):
            found = find(names, distances)
            if found is None:
                break
            log.ack(*found, partial(self._stored, connection, (replies, count)))
            served += count
            size = end
        connection.in_flight += served
        log.counts.acked += served
        self.served += served
        return size

    def _stored(self, connection: Connection, answers: Answers, result: int | StoreRefused) -> None:
        """The record of some acks is stored, or the store did not take it."""
        if isinstance(result, StoreRefused):
            rejected = refusal(result, self._live.current.max_message_size)
            for reply in with_code(answers[0], rejected.code, rejected.remark):
                connection.answer(reply)
            return
        when_durable = self._admission.when_durable
        if when_durable is None:
            answer_stored(connection, answers, PutStatus.PUT_OK)
        else:
            when_durable(result, partial(answer_stored, connection, answers))
