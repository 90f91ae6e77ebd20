"""Timer messages as the standard clients send them: recognized without decoding their properties.

Everything else takes the long way, which knows what to do with any message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from brokerset_formats.properties import NAME_END, VALUE_END, Property

_KEY: Final = f"{Property.UNIQ_KEY}{NAME_END}"
_WISHES: Final = (Property.TIMER_DELAY_MS, Property.TIMER_DELIVER_MS, Property.TIMER_DELAY_SEC)

_UNUSUAL: Final = (
    "DELAY",
    "TIMER_",
    "TRAN_MSG",
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
)
"""Parts of names of properties that mean more, or that the broker writes itself."""


def plain_timer(properties: str) -> dict[str, str] | None:
    """When a message is to be delivered, if its properties, ended by a separator, say nothing else unusual.

    The property as it would be decoded; None for any other message.
    """
    for name in _WISHES:
        start = properties.find(name)
        if start >= 0:
            break
    else:
        return None
    if start > 0 and properties[start - 1] != VALUE_END:
        return None
    begin = start + len(name) + 1
    end = properties.find(VALUE_END, begin)
    value = properties[begin:end]
    if properties[begin - 1] != NAME_END or not (value.isascii() and value.isdigit()):
        return None
    rest = properties[:start] + properties[end + 1 :]
    if any([part in rest for part in _UNUSUAL]) or not _has_one_key(rest):
        return None
    return {name: value}


def _has_one_key(properties: str) -> bool:
    start = properties.find(_KEY)
    if start < 0 or properties.find(_KEY, start + 1) >= 0:
        return False
    if properties[start + len(_KEY)] == VALUE_END:
        return False
    return start == 0 or properties[start - 1] == VALUE_END


def encoded(changes: Mapping[str, str | None]) -> str:
    """Properties of the broker's own, as a record has them: their values have no separators."""
    return "".join([f"{name}{NAME_END}{value}{VALUE_END}" for name, value in changes.items() if value])
