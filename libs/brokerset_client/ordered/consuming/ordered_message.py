"""A message of an ordered subject as handlers get it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brokerset_client.errors import MessageUnreadable
from brokerset_client.messages import MessageView
from brokerset_client.ordered.consuming.lanes import COMMON_LANE
from brokerset_formats.errors import FormatError
from brokerset_formats.order_keys import logical_partition
from brokerset_formats.order_stamps import OrderStamp, decode_stamp
from brokerset_formats.properties import Property


@dataclass(frozen=True, slots=True)
class OrderedMessage:
    """One message, and where it stands among those of its key."""

    view: MessageView
    """The stored message."""

    subject: str
    partition_id: int
    """Of the partition that it was consumed from."""

    queue_offset: int
    key: str | None
    """Its order key; None if it has none, or the empty one."""

    stamp: OrderStamp | None
    """What its producer gave it; None if it has none that can be read."""

    lane: int
    """Its logical partition; -1 if neither a stamp nor a key says one."""

    @property
    def logical_partition(self) -> int | None:
        """What its key belongs to."""
        return None if self.lane == COMMON_LANE else self.lane

    @property
    def sequence(self) -> int | None:
        """Its number among those of the producer's epoch in the partition: it grows within a key."""
        return None if self.stamp is None else self.stamp.sequence

    @property
    def body(self) -> bytes:
        """The body as the producer gave it. Raises `MessageUnreadable`."""
        return self.view.body

    @property
    def tags(self) -> str | None:
        """What consumers filter by."""
        return self.view.tags

    @property
    def keys(self) -> tuple[str, ...]:
        """Business keys."""
        return self.view.keys

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, the system's among them. Raises `MessageUnreadable`."""
        return self.view.properties

    @property
    def message_id(self) -> str:
        """The producer's id, the same in every redelivery."""
        return self.view.message_id

    @property
    def reconsume_times(self) -> int:
        """Copies for retry before this one."""
        return self.view.reconsume_times


def read_ordered(view: MessageView, subject: str, partition_id: int) -> OrderedMessage:
    """A pulled message with its lane.

    What no ordered producer sent goes by its key; without one, or if the record cannot be read, into one
    common lane, so that it keeps its order at least.
    """
    key: str | None = None
    stamp: OrderStamp | None = None
    lane = COMMON_LANE
    try:
        key = view.property_text(Property.SHARDING_KEY)
        text = view.property_text(Property.ORDER_STAMP)
        if text is not None:
            stamp = decode_stamp(text)
    except (MessageUnreadable, FormatError):
        pass
    if stamp is not None:
        lane = stamp.logical_partition
    elif key is not None:
        lane = logical_partition(key)
    return OrderedMessage(view, subject, partition_id, view.queue_offset, key, stamp, lane)
