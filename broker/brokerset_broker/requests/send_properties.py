"""What the sysFlag and the properties of a send say, before anything is decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from brokerset_formats.batches import BatchItem, iterate_batch
from brokerset_formats.errors import FormatError
from brokerset_formats.properties import Property, decode_properties
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected

PLAIN_BITS: Final = 0x0703
"""Bits of sysFlag that a client may set freely: compression and its type, multi-tags."""

HOST_BITS: Final = 0x0030
"""Bits that tell the sizes of the hosts; only the store knows them."""

UNUSUAL_IN_BATCHES: Final = (
    b"DELAY",
    b"TIMER_",
    b"TRAN_MSG",
    b"INNER_MULTI",
    b"__LITE_TOPIC",
)
"""Parts of names of properties for which the messages of a batch are examined."""

_ALONE: Final = (Property.INNER_MULTI_DISPATCH, Property.LITE_TOPIC)
"""Properties that a message of a batch must not have: it would not be put into the queues that they name."""

HANDLE: Final = f"{Property.POP_CK}\x01".encode()
"""How the handle begins of a message that was popped, and is sent on: it is nobody's any more."""

TIMER_PROPERTIES: Final = (Property.TIMER_DELAY_SEC, Property.TIMER_DELAY_MS, Property.TIMER_DELIVER_MS)


def is_unusual(properties: str) -> bool:
    """Whether properties of a send may need more than to be stored."""
    return (
        "DELAY" in properties
        or "TRAN_MSG" in properties
        or "TIMER_" in properties
        or "CLUSTER" in properties
        or "MSG_REGION" in properties
        or "TRACE_ON" in properties
        or "POP_CK" in properties
        or "INNER_" in properties
        or "__LITE_TOPIC" in properties
        or "_SYS_MSG_PRIORITY_" in properties
        or "__CRC32#" in properties
    )


def with_end(properties: str) -> tuple[str, str | None]:
    """Properties of a send with a separator behind the last; their client-made id, if there is one."""
    if properties and properties[-1] != "\x02":
        properties += "\x02"
    start = properties.find("UNIQ_KEY\x01")
    if start == 0 or (start > 0 and properties[start - 1] == "\x02"):
        return properties, properties[start + 9 : properties.find("\x02", start)]
    return properties, None


def waits(properties: str) -> bool:
    """Whether the answer waits for the disk: unless the message has WAIT=false (`isWaitStoreMsgOK`)."""
    return (
        "WAIT\x01false" not in properties
        or decode_properties(properties.encode()).get(Property.WAIT) != "false"
    )


def refuse_unusual(items: Sequence[BatchItem]) -> None:
    """Raise `Rejected` for a batch with a message that must not be delivered at once."""
    for item in items:
        properties = decode_properties(item.properties)
        found = [name for name in (*TIMER_PROPERTIES, *_ALONE) if name in properties]
        if delay_level(properties.get(Property.DELAY)) > 0:
            found.append(Property.DELAY)
        if properties.get(Property.TRAN_MSG, "").lower() == "true":
            found.append(Property.TRAN_MSG)
        if found:
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a batch has plain messages only, not such with {found[0]}: send this one by itself",
            )


def without_handles(items: Sequence[BatchItem]) -> list[BatchItem]:
    """The messages of a batch without `HANDLE`, which consumers would take for that of their own pop."""
    return [
        item._replace(
            properties=b"\x02".join(
                pair for pair in item.properties.split(b"\x02") if not pair.startswith(HANDLE)
            )
        )
        for item in items
    ]


def is_stamped(command: Command, properties: str) -> bool:
    """Whether a message of a request has an order stamp; what cannot be read has none."""
    try:
        if command.ext.get("m") != "true":
            return Property.ORDER_STAMP in decode_properties(properties.encode())
        return any(
            Property.ORDER_STAMP in decode_properties(item.properties) for item in iterate_batch(command.body)
        )
    except FormatError:
        return False


def delay_level(text: str | None) -> int:
    if text is None:
        return 0
    try:
        return int(text)
    except ValueError:
        raise Rejected(ResponseCode.MESSAGE_ILLEGAL, f"delay level {text[:32]!r} is no number") from None
