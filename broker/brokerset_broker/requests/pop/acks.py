"""ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151), CHANGE_MESSAGE_INVISIBLETIME (200053).

Checks and codes are Java's; what becomes of a handle is `pop.fates`'s. Other than in Java 0 says that the ack
is as safe as a message, and a handle that is nobody's any more is answered with MESSAGE_ILLEGAL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.pop.fates import Claim, Early, Fate, NotYours, Out, decide_fate
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.pop.log import PopLog
from brokerset_broker.requests.pop.plain_acks import JoinedAcks, PlainAcks
from brokerset_broker.requests.send_refusals import CODES, no_topic, refusal
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.errors import FormatError
from brokerset_formats.pop.handles import Handle, parse_handle
from brokerset_formats.pop.names import ORDER_REVIVE_QUEUE, real_topic
from brokerset_formats.pop.records import CheckPoint
from brokerset_protocol.bodies.pop import BatchAck, BatchAckMessages
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import FLAG_ONEWAY, Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.pop import AckMessage, ChangeInvisibleTime, ChangeInvisibleTimeResponse
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import DEFERRED, Connection, Handler
from brokerset_runtime.remoting.connection import Reply

INVISIBLE_MS_MAX: Final = 10 * 366 * 24 * 3_600_000
"""Longest invisible time; a longer one is refused with INVALID_PARAMETER."""


BATCH_MAX: Final = 16_384
"""Messages of a batch of acks, a part that names none counts as one; some 20 ms. A batch of more is
refused as a whole with INVALID_PARAMETER."""


class OrderedAcks(Protocol):
    """Acks and changes of messages of ordered pops, which have no check points."""

    def ack(self, connection: Connection, command: Command, header: AckMessage, handle: Handle) -> Reply:
        """Answer ACK_MESSAGE."""

    def ack_batch(
        self,
        ack: BatchAck,
        topic: str,
        offsets: Sequence[int],
        on_stored: Callable[[int | StoreRefused], None],
    ) -> Sequence[Rejected]:
        """Ack messages of a batch; why some are not the caller's. `on_stored` is called in a later turn."""

    def change(
        self, connection: Connection, command: Command, header: ChangeInvisibleTime, handle: Handle
    ) -> Reply:
        """Answer CHANGE_MESSAGE_INVISIBLETIME."""


class PopAckProcessor:
    """Serves acks and changes of the invisible time."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        log_of_pops: PopLog,
        store: MessageStore,
        topics: TopicManager,
        admission: Admission,
        clock: Clock,
    ) -> None:
        self._live = live
        self._log = log_of_pops
        self._store = store
        self._topics = topics
        self._admission = admission
        self._clock = clock
        self.ordered: OrderedAcks | None = None
        """Who serves ordered pops."""
        self.plain = PlainAcks(
            live=live, log_of_pops=log_of_pops, store=store, topics=topics, admission=admission
        )
        """What is usual; for the native way, too."""

    def handlers(self) -> dict[int, Handler]:
        """The request codes that are served here."""
        return {
            RequestCode.ACK_MESSAGE: self.ack,
            RequestCode.BATCH_ACK_MESSAGE: self.ack_batch,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change,
        }

    def ack(self, connection: Connection, command: Command) -> Reply:
        """A consumer is done with a message."""
        if self.plain.take(connection, command):
            self._log.counts.acked += 1
            return DEFERRED
        header = AckMessage.from_ext(command.ext)
        self._admission.check_writes()
        self._check_place(header)
        first, end = self._bounds(header.topic, header.queue_id)
        if not first <= header.offset <= end:
            text = f"{header.topic}@{header.queue_id}, commit:{header.offset}, store:{first}~{end}"
            return command.reply(ResponseCode.NO_MESSAGE, f"offset is illegal, key:{text}")
        handle = _handle(header.extra_info)
        if not self._log.is_known:
            self._log.wait_for_known(partial(connection.serve_deferred, [command]))
            return DEFERRED
        if handle.is_ordered:
            return self._ordered().ack(connection, command, header, handle)
        claim = _claim(header, handle)
        answer = self._answer(connection, command)
        problem = self._ack_one(claim, handle.revive_queue, handle.broker, answer)
        if problem is not None:
            return command.reply(ResponseCode.MESSAGE_ILLEGAL, problem.value)
        return self._deferred(command, answer)

    def ack_batch(self, connection: Connection, command: Command) -> Reply:
        """A consumer is done with messages of several check points."""
        if self.plain.take_batch(connection, command):
            return DEFERRED
        self._admission.check_writes()
        body = BatchAckMessages.from_json(bytes(command.body)) if command.body else None
        if body is None or not body.acks:
            return command.reply(ResponseCode.NO_MESSAGE, "the batch names no messages")
        if not self._log.is_known:
            self._log.wait_for_known(partial(connection.serve_deferred, [command]))
            return DEFERRED
        named, count = [], 0
        for ack in body.acks:  # all can be read before any is recorded
            named.append((ack, offsets := ack.offsets()))
            count += len(offsets) or 1
            if count > BATCH_MAX:
                raise Rejected(ResponseCode.INVALID_PARAMETER, f"a batch may name {BATCH_MAX} messages")
        broker = body.broker_name or self._live.current.broker_name
        refused: list[Rejected] = []
        answer = self._answer(connection, command, refused)
        for ack, offsets in named:
            topic = real_topic(ack.consumer_group, ack.topic, ack.retry_flag)
            first, end = self._bounds(topic, ack.queue_id)
            if ack.revive_queue_id == ORDER_REVIVE_QUEUE:
                try:
                    refused += self._ordered().ack_batch(ack, topic, offsets, answer.stored)
                except Rejected as rejected:
                    refused.append(rejected)
                else:
                    answer.waits_for += 1
                continue
            visible = ack.pop_time + ack.invisible_time
            if self._ack_all(ack, topic, offsets, (first, end), answer):
                continue
            for offset in offsets:
                if not first <= offset <= end:
                    text = f"offset {offset} of {topic}@{ack.queue_id} is not in {first}~{end}"
                    refused.append(Rejected(ResponseCode.MESSAGE_ILLEGAL, text))
                    continue
                claim = Claim(
                    topic, ack.consumer_group, ack.queue_id, ack.start_offset, ack.pop_time, visible, offset
                )
                try:
                    problem = self._ack_one(claim, ack.revive_queue_id, broker, answer)
                except Rejected as rejected:
                    refused.append(rejected)
                else:
                    if problem is not None:
                        refused.append(Rejected(ResponseCode.MESSAGE_ILLEGAL, problem.value))
        if refused:
            # One that can be sent again says so for the batch: what is acked already is answered with 0 then.
            worst = max(refused, key=lambda each: each.code != ResponseCode.MESSAGE_ILLEGAL)
            remark = f"{len(refused)} of {count} messages are not acked, for example: {worst.remark}"
            refused[:] = [Rejected(worst.code, remark)]
        return self._deferred(command, answer, refused)

    def _ack_all(
        self, ack: BatchAck, topic: str, offsets: Sequence[int], bounds: tuple[int, int], answer: JoinedAcks
    ) -> bool:
        """Ack messages that are all out of one open check point; False, and nothing is done, if not."""
        points = self._log.points
        source = points.sources.get((topic, ack.consumer_group, ack.queue_id))
        point = points.find(source, ack.start_offset, ack.pop_time) if source is not None else None
        if point is None or not offsets or offsets[0] < bounds[0] or offsets[-1] > bounds[1]:
            return False
        bits = 0
        for offset in offsets:
            bits |= point.bit_of(offset)
        if bits.bit_count() != len(offsets) or bits & ~point.left:
            return False
        answer.waits_for += 1
        self._log.ack(point, bits, answer.stored)
        self._log.counts.acked += len(offsets)
        return True

    def _ack_one(self, claim: Claim, revive_queue: int, broker: str, answer: JoinedAcks) -> NotYours | None:
        """Ack a message; why it is not the caller's, or None."""
        fate = self._fate(claim)
        match fate:
            case Out():
                answer.waits_for += 1
                self._log.ack(fate.point, fate.bit, answer.stored)
            case Early():
                self._ack_early(claim, revive_queue, broker, answer)
                answer.waits_for += 1
            case NotYours():
                self._log.counts.refused_acks[fate.name.lower()] += 1
                return fate
            case _:  # acked before, but maybe its record is not safe yet
                answer.waits_for += 1
                self._log.answer_soon(partial(answer.stored, self._log.end))
                return None
        self._log.counts.acked += 1
        return None

    def _ack_early(self, claim: Claim, revive_queue: int, broker: str, answer: JoinedAcks) -> None:
        self._check_revive_queue(revive_queue)
        try:
            end = self._log.ack_early(claim, (claim.offset,), revive_queue, broker)
        except StoreRefused as refused:
            raise refusal(refused, self._live.current.max_message_size) from None
        self._log.answer_soon(partial(answer.stored, end))

    def change(self, connection: Connection, command: Command) -> Reply:
        """A consumer wants a message for longer, or gives it back."""
        header = ChangeInvisibleTime.from_ext(command.ext)
        self._admission.check_writes()
        self._check_place(header)
        first, end = self._bounds(header.topic, header.queue_id)
        if not first <= header.offset < end:
            return command.reply(ResponseCode.NO_MESSAGE, f"offset {header.offset} is not in {first}~{end}")
        if not 0 <= header.invisible_time <= INVISIBLE_MS_MAX:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime {header.invisible_time} must be 0 to {INVISIBLE_MS_MAX}",
            )
        handle = _handle(header.extra_info)
        if not self._log.is_known:
            self._log.wait_for_known(partial(connection.serve_deferred, [command]))
            return DEFERRED
        if handle.is_ordered:
            return self._ordered().change(connection, command, header, handle)
        self._log.write_acks()
        claim = _claim(header, handle)
        fate = self._fate(claim)
        if not isinstance(fate, Out | Early):
            self._log.counts.refused_acks[fate.name.lower()] += 1
            return command.reply(ResponseCode.MESSAGE_ILLEGAL, fate.value)
        pop_time = max(self._clock.now_ms(), handle.pop_time + 1)  # both name check points
        record = CheckPoint(
            topic=header.topic, group=header.consumer_group, queue_id=header.queue_id,
            start_offset=header.offset, pop_time=pop_time, invisible_time=header.invisible_time,
            broker=handle.broker, count=1, distances=(0,), suspend=header.suspend,
        )  # fmt: skip
        try:
            if isinstance(fate, Out):
                revive_queue = fate.point.revive_queue
                stored = self._log.change(record, revive_queue, (fate.point, fate.bit))
            else:
                revive_queue = handle.revive_queue
                self._check_revive_queue(revive_queue)
                self._log.change(record, revive_queue, None)
                stored = self._log.ack_early(claim, (claim.offset,), revive_queue, handle.broker)
        except StoreRefused as refused:
            raise refusal(refused, self._live.current.max_message_size) from None
        response = ChangeInvisibleTimeResponse(
            pop_time=pop_time, invisible_time=header.invisible_time, revive_qid=revive_queue
        )
        when_durable = self._admission.when_durable
        if when_durable is None or command.flag & FLAG_ONEWAY:
            return command.reply(ext=response.to_ext())

        def finish(status: PutStatus) -> None:
            code = CODES.get(status, ResponseCode.SYSTEM_ERROR)
            remark = None if code == ResponseCode.SUCCESS else status.value
            connection.answer(command.reply(code, remark, ext=response.to_ext()))

        when_durable(stored, finish)
        return DEFERRED

    # -- inside -------------------------------------------------------------------------------------------

    def _fate(self, claim: Claim) -> Fate:
        fate = self._decide(claim)
        if fate is NotYours.NEVER_POPPED and self._log.learn_position(
            claim.topic, claim.group, claim.queue_id
        ):
            return self._decide(claim)
        return fate

    def _decide(self, claim: Claim) -> Fate:
        return decide_fate(
            self._log.points, claim, now_ms=self._clock.now_ms(), leads_since_ms=self._log.leads_since_ms
        )

    def _bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        return self._store.queue_min(topic, queue_id), self._store.queue_end(topic, queue_id)

    def _check_place(self, header: AckMessage | ChangeInvisibleTime) -> None:
        """Other than in Java, what is out of a queue can be acked that the topic has no more."""
        topic, queue_id = header.topic, header.queue_id
        if header.lite_topic:
            raise Rejected(ResponseCode.NO_PERMISSION, "pops of lite topics are not supported")
        config = self._topics.get(topic)
        if config is None:
            raise no_topic(topic)
        if not 0 <= queue_id < config.read_queue_nums and not self._log.in_flight(
            topic, header.consumer_group, queue_id
        ):
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{config.read_queue_nums}]",
            )

    def _check_revive_queue(self, revive_queue: int) -> None:
        config = self._topics.get(self._log.topic)
        if config is None or not 0 <= revive_queue < config.write_queue_nums:
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL, f"the handle names revive queue {revive_queue}, which is none"
            )

    def _ordered(self) -> OrderedAcks:
        if self.ordered is None:
            raise Rejected(ResponseCode.NO_PERMISSION, "ordered pops are not supported")
        return self.ordered

    def _answer(
        self, connection: Connection, command: Command, refused: Sequence[Rejected] = ()
    ) -> JoinedAcks:
        """Answers when all is safe; if some was refused by then, that is said instead."""

        def finish(result: int | StoreRefused) -> None:
            if command.flag & FLAG_ONEWAY:
                return
            if isinstance(result, StoreRefused):
                rejected = refusal(result, self._live.current.max_message_size)
                connection.answer(command.reply(rejected.code, rejected.remark))
                return
            when_durable = self._admission.when_durable
            if when_durable is None:
                connection.answer(_done(command, refused))
            else:
                when_durable(result, partial(_finish, connection, command, refused))

        return JoinedAcks(finish)

    @staticmethod
    def _deferred(command: Command, answer: JoinedAcks, refused: Sequence[Rejected] = ()) -> Reply:
        if answer.waits_for:
            return DEFERRED
        return None if command.flag & FLAG_ONEWAY else _done(command, refused)


def _finish(connection: Connection, command: Command, refused: Sequence[Rejected], status: PutStatus) -> None:
    code = CODES.get(status, ResponseCode.SYSTEM_ERROR)
    if code == ResponseCode.SUCCESS:
        connection.answer(_done(command, refused))
    else:
        connection.answer(command.reply(code, status.value))


def _done(command: Command, refused: Sequence[Rejected]) -> Command:
    return command.reply(refused[0].code, refused[0].remark) if refused else command.reply()


def _handle(text: str) -> Handle:
    try:
        return parse_handle(text)
    except FormatError as error:
        raise Rejected(ResponseCode.MESSAGE_ILLEGAL, f"extraInfo is no handle: {error}") from None


def _claim(header: AckMessage | ChangeInvisibleTime, handle: Handle) -> Claim:
    return Claim(
        header.topic, header.consumer_group, header.queue_id, handle.start_offset, handle.pop_time,
        handle.visible_time, header.offset,
    )  # fmt: skip
