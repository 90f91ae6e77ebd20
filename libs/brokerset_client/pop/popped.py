"""Popped messages: what a POP answer gives out, with the handle by which each is acknowledged.

Source: `MQClientAPIImpl.processPopResponse`.
"""

from __future__ import annotations

from typing import Final

from brokerset_client.errors import MessageUnreadable
from brokerset_client.messages import MessageView, record_positions
from brokerset_formats.errors import FormatError
from brokerset_formats.pop import offset_infos
from brokerset_formats.pop.handles import Handle, parse_handle
from brokerset_formats.pop.names import NORMAL, RETRY_V1, RETRY_V2, pop_retry_topic, real_topic
from brokerset_formats.properties import Property
from brokerset_protocol.headers.pop import PopMessageResponse

TIME_SIZE_MAX: Final = 19
"""Digits of a time in a property, which may be its producer's."""


class PoppedMessage(MessageView):
    """A message that this consumer has for a limited time: until it acknowledges it, or `expires_at`."""

    __slots__ = ("_popped_topic", "_times_before", "expires_at", "handle", "lost", "reported")

    def __init__(
        self,
        buffer: bytes,
        position: int,
        broker_name: str,
        group: str,
        *,
        topic: str,
        handle: Handle,
        expires_at: float,
        times_before: int = 0,
    ) -> None:
        super().__init__(buffer, position, broker_name, group)
        self._popped_topic = topic
        self._times_before = times_before
        self.handle = handle
        """What the broker knows this delivery by; another one after the invisible time was changed."""
        self.expires_at = expires_at
        """When the invisible time ends, in seconds of the event loop's clock; others may get it then."""
        self.lost = False
        """Whether it is not ours any more: its time was over, or a broker said so."""
        self.reported = False
        """Whether the application has heard that it is lost."""

    @property
    def topic(self) -> str:
        """The topic that the producer sent to, also when the message comes from a retry topic."""
        return self._popped_topic

    @property
    def source(self) -> str:
        """The topic whose queue this delivery is of: `topic`, or the group's retry topic for it."""
        return real_topic(self.group, self._popped_topic, self.handle.retry_flag)

    @property
    def reconsume_times(self) -> int:
        """How often the group got it before without an acknowledgement."""
        return max(super().reconsume_times, self._times_before)

    @property
    def first_popped_ms(self) -> int:
        """When the group got it first, in milliseconds of the broker's clock."""
        text = self.property_text(Property.FIRST_POP_TIME)
        is_time = text is not None and len(text) <= TIME_SIZE_MAX and text.isdecimal()
        return int(text) if text is not None and is_time else self.handle.pop_time


def popped_messages(
    body: bytes,
    header: PopMessageResponse,
    *,
    topic: str,
    group: str,
    broker: str,
    ordered: bool,
    now: float,
) -> list[PoppedMessage]:
    """The messages of an answer that came at `now` (the loop's clock). Raises `MessageUnreadable`.

    A record of a retry topic carries its handle; those of the topic itself get theirs from the header.
    """
    try:
        starts = offset_infos.parse_start_offsets(header.start_offset_info)
        by_offset, by_queue = offset_infos.parse_order_counts(header.order_count_info if ordered else None)
    except FormatError as error:
        raise MessageUnreadable(f"offsets of a pop answer from {broker} cannot be read: {error}") from error
    expires_at = now + header.invisible_time / 1000
    found = []
    for position in record_positions(body, broker):
        view = MessageView(body, position, broker, group)
        queue_id, queue_offset = view.queue_id, view.queue_offset
        handle = _carried(view, header)
        retry_flag = _retry_flag(view.stored_topic, topic, group)
        try:
            if handle is None:
                handle = Handle(
                    start_offset=starts[retry_flag, queue_id] if starts else queue_offset,
                    pop_time=header.pop_time,
                    invisible_time=header.invisible_time,
                    revive_queue=header.revive_qid,
                    retry_flag=retry_flag,
                    broker=broker,
                    queue_id=queue_id,
                    queue_offset=queue_offset,
                )
        except (FormatError, KeyError) as error:
            raise MessageUnreadable(f"{view!r} from {broker} has no readable handle: {error!r}") from error
        times = by_offset.get((retry_flag, queue_id, queue_offset), by_queue.get((retry_flag, queue_id), 0))
        found.append(
            PoppedMessage(
                body,
                position,
                broker,
                group,
                topic=topic,
                handle=handle,
                expires_at=expires_at,
                times_before=times,
            )
        )
    return found


def _carried(view: MessageView, header: PopMessageResponse) -> Handle | None:
    """The handle that the broker wrote into a record; None where it is none of this pop and message.

    Batches keep what their producers wrote there: by that an ack would name another message.
    """
    text = view.property_text(Property.POP_CK)
    try:
        handle = None if text is None else parse_handle(text)
    except FormatError:
        return None
    if handle is None or handle.pop_time != header.pop_time:
        return None
    is_of_record = (handle.queue_id, handle.queue_offset) == (view.queue_id, view.queue_offset)
    return handle if is_of_record else None


def _retry_flag(stored_topic: str, topic: str, group: str) -> int:
    """Which retry topic a record without a handle is of; brokers can be set to leave these as they are."""
    for flag in (RETRY_V1, RETRY_V2):
        if stored_topic == pop_retry_topic(group, topic, flag):
            return flag
    return NORMAL
