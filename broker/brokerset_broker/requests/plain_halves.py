"""Half messages as the standard clients send them: recognized without decoding their properties.

Everything else takes the long way, which knows what to do with any message.
"""

from __future__ import annotations

from typing import Final

from brokerset_formats.properties import NAME_END, VALUE_END, Property

PREPARED_BITS: Final = 0x0707
"""Bits of sysFlag that a half message may have: those of a plain message, and that it is prepared."""

_HALF: Final = f"{Property.TRAN_MSG}{NAME_END}true{VALUE_END}"
_GROUP: Final = f"{Property.PGROUP}{NAME_END}"

_KEY: Final = f"{Property.UNIQ_KEY}{NAME_END}"

_UNUSUAL: Final = (
    "DELAY",
    "TIMER_",
    "CLUSTER",
    "MSG_REGION",
    "TRACE_ON",
    "POP_CK",
    "INNER_",
    "REPLY_TO_CLIENT",
    "__LITE_TOPIC",
    "__CRC32#",
    "_SYS_MSG_PRIORITY_",
    "REAL_",
    "TRAN_P",
    "TRANSACTION_",
    Property.TRANSACTION_ID,
)
"""Parts of names of properties that mean more, or that the broker writes itself."""


def is_plain_half(properties: str, sys_flag: int) -> bool:
    """Whether properties of a send, ended by a separator, are a half message's, with one id of a client."""
    if sys_flag & ~PREPARED_BITS or not _has(properties, _HALF) or not _has(properties, _KEY):
        return False
    start = properties.find(_GROUP)
    end = start + len(_GROUP)
    if start < 0 or not _has(properties, _GROUP) or properties[end : end + 1] in ("", VALUE_END):
        return False
    return not any([part in properties for part in _UNUSUAL])


def _has(properties: str, pair: str) -> bool:
    """Whether a property begins like this: exactly once, and not inside of another."""
    start = properties.find(pair)
    if start < 0 or properties.find(pair, start + 1) >= 0:
        return False
    return start == 0 or properties[start - 1] == VALUE_END


def half_properties(unique_id: str, topic: str, queue_id: int) -> str:
    """What the half record has besides the properties of its message (`to_half`)."""
    return (
        f"{Property.TRANSACTION_ID}{NAME_END}{unique_id}{VALUE_END}"
        f"{Property.REAL_TOPIC}{NAME_END}{topic}{VALUE_END}"
        f"{Property.REAL_QID}{NAME_END}{queue_id}{VALUE_END}"
    )
