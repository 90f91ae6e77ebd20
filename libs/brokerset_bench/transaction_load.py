"""A producer of transactions for a failover measurement: half messages at a steady rate, ended or left.

Raw requests, as both makes take them. One in ten is left open, so that the broker has to ask; one in five is
rolled back. No half message is sent twice: one that is not acknowledged in time is given up, and rolled back
if the broker asks about it. An end that is not acknowledged is not repeated either: the broker asks.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from brokerset_bench.event_log import whole_number
from brokerset_bench.history import body_of
from brokerset_bench.master_line import MasterLine, at_rate
from brokerset_bench.transaction_history import TransactionHistory
from brokerset_bench.writer import ANSWER_SECONDS_MAX, IN_FLIGHT_MAX, Route, send_fields
from brokerset_formats.errors import FormatError
from brokerset_formats.message_ids import decode_offset_id
from brokerset_formats.properties import Property
from brokerset_formats.records import SysFlag, decode_record
from brokerset_protocol.bodies.heartbeat import HeartbeatData, ProducerData
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers import CheckTransactionState, EndTransaction
from brokerset_protocol.headers.send import SendResponseKey
from brokerset_runtime.remoting import Connection, ConnectionClosed, Handlers

PRODUCER_GROUP: Final = "brokerset-bench-transactions"
QUEUES: Final = 2
HEARTBEAT_SECONDS: Final = 2.0

COMMIT: Final = SysFlag.TRANSACTION_COMMIT
ROLLBACK: Final = SysFlag.TRANSACTION_ROLLBACK


def is_committed(number: int) -> bool:
    """Whether the producer wants this transaction committed: four of five."""
    return number % 5 != 4


def is_left(number: int) -> bool:
    """Whether its end is left to the broker, which asks: one of ten."""
    return number % 10 == 3


class TransactionLoad:
    """Begins transactions, ends them, and answers brokers that ask. One loop owns all of its state."""

    def __init__(
        self, history: TransactionHistory, route: Route, topic: str, *, rate: int, size: int
    ) -> None:
        self._history = history
        self._topic = topic
        self._rate = rate
        self._size = size
        self._next = 0
        self._waiting: dict[int, float] = {}
        """Half messages without an answer, by when they were sent; in order."""

        handlers: Handlers = {RequestCode.CHECK_TRANSACTION_STATE: self._asked}
        self._line = MasterLine(route, handlers, self._introduce)
        self._loop = asyncio.get_running_loop()

    async def run(self, stop: asyncio.Event, done: asyncio.Event) -> None:
        """Begin transactions until `stop`; end them, and answer who asks, until `done`."""
        following = [asyncio.create_task(self._line.follow()), asyncio.create_task(self._beat())]
        try:
            await at_rate(self._rate, stop, self._begin)
            await done.wait()
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            self._give_up(0.0)
            await self._line.close()

    # -- who asks -----------------------------------------------------------------------------------------

    def _introduce(self, connection: Connection) -> None:
        """A heartbeat: the broker asks whom it knows as a producer of the group."""
        beat = HeartbeatData("brokerset-bench", (ProducerData(PRODUCER_GROUP),))
        connection.notify(Command(RequestCode.HEART_BEAT, {}, beat.to_json()))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            connection = self._line.connection
            if connection is not None and connection.is_open:
                self._introduce(connection)

    def _asked(self, connection: Connection, command: Command) -> None:
        try:
            header = CheckTransactionState.from_ext(command.ext)
            number = whole_number(decode_record(command.body).body)
        except (Rejected, FormatError):
            number = None
        broker = _address(connection)
        if number is None or number not in self._history.wanted:
            self._history.note("askedWrongly", str(dict(command.ext)), broker)
            return
        self._history.asked(number, broker)
        if number in self._waiting:
            return  # its answer is on its way: the broker asks again
        self._end(connection, number, header.tran_state_table_offset, header.commit_log_offset, asked=True)

    # -- transactions -------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._give_up(ANSWER_SECONDS_MAX)
        connection = self._line.connection
        if connection is None or not connection.is_open or len(self._waiting) >= IN_FLIGHT_MAX:
            return
        number, self._next = self._next, self._next + 1
        properties = {
            Property.TRAN_MSG: "true",
            Property.PGROUP: PRODUCER_GROUP,
            Property.UNIQ_KEY: unique_key(number),
            Property.WAIT: "true",
        }
        fields = send_fields(
            PRODUCER_GROUP, self._topic, number % QUEUES, properties, sys_flag=SysFlag.TRANSACTION_PREPARED
        )
        self._history.half(number, self._line.address, commits=is_committed(number))
        command = Command(RequestCode.SEND_MESSAGE_V2, fields, body_of(number, self._size))
        try:
            future = connection.start_call(command)
        except ConnectionClosed as error:
            self._history.given_up(number, str(error))
            return
        self._waiting[number] = self._loop.time()
        future.add_done_callback(partial(self._stored, connection, self._line.address, number))

    def _give_up(self, after: float) -> None:
        oldest = self._loop.time() - after
        for number in [one for one, sent in self._waiting.items() if sent <= oldest]:
            del self._waiting[number]
            self._history.given_up(number, "no answer in time")

    def _stored(
        self, connection: Connection, broker: str, number: int, future: asyncio.Future[Command]
    ) -> None:
        failed = future.cancelled() or future.exception() is not None
        if self._waiting.pop(number, None) is None:
            return  # it was given up
        if failed or future.result().code != ResponseCode.SUCCESS:
            why = "connection closed" if failed else f"code {future.result().code}: {future.result().remark}"
            self._history.given_up(number, why[:100])
            return
        answer = future.result()
        self._history.half_acked(number, broker)
        if not is_left(number):
            _, offset = decode_offset_id(answer.ext[SendResponseKey.MSG_ID])
            self._end(connection, number, int(answer.ext[SendResponseKey.QUEUE_OFFSET]), offset, asked=False)

    def _end(
        self, connection: Connection, number: int, queue_offset: int, log_offset: int, *, asked: bool
    ) -> None:
        commits, broker = self._history.wanted[number], _address(connection)
        header = EndTransaction(
            topic=self._topic,
            producer_group=PRODUCER_GROUP,
            tran_state_table_offset=queue_offset,
            commit_log_offset=log_offset,
            commit_or_rollback=COMMIT if commits else ROLLBACK,
            from_transaction_check=asked,
            msg_id=unique_key(number),
            transaction_id=unique_key(number),
        )
        self._history.ended(number, broker, commits=commits)
        try:
            future = connection.start_call(Command(RequestCode.END_TRANSACTION, header.to_ext()))
        except ConnectionClosed:
            return
        future.add_done_callback(partial(self._ended, broker, number, commits))

    def _ended(self, broker: str, number: int, commits: bool, future: asyncio.Future[Command]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        if future.result().code == ResponseCode.SUCCESS:
            self._history.end_acked(number, broker, commits=commits)


def unique_key(number: int) -> str:
    """The id that the producer gives a message."""
    return f"{number:032X}"


def _address(connection: Connection) -> str:
    return f"{connection.peer[0]}:{connection.peer[1]}"
