"""What the controllers say of a broker: who is master, in which epoch, and who is in sync."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from brokerset_formats.errors import FormatError


@dataclass(frozen=True, slots=True)
class ControllerView:
    """Of one broker."""

    broker_name: str
    master_id: int | None
    master_epoch: int
    in_sync: frozenset[int]


def parse_view(data: bytes, broker_name: str | None) -> ControllerView:
    """Read what `brokerset status --json` wrote, or one object with `masterEpoch` and `syncStateSet`.

    `broker_name` chooses among several groups. FormatError if it is neither, or the broker is not in it.
    """
    try:
        value = orjson.loads(data)
        groups: list[dict[str, Any]] = value.get("groups", [value])
        found = [each for each in groups if broker_name in (None, each.get("brokerName"))]
        if not found and len(groups) == 1 and "brokerName" not in groups[0]:
            found = groups
        if len(found) != 1:
            names = ", ".join(str(each.get("brokerName")) for each in groups)
            raise FormatError(f"{len(found)} groups fit broker {broker_name}; the view has {names or 'none'}")
        group = found[0]
        master = group.get("masterId")
        return ControllerView(
            str(group.get("brokerName") or broker_name or ""),
            None if master is None else int(master),
            int(group["masterEpoch"]),
            frozenset(int(each) for each in group["syncStateSet"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"no view of the controllers: {error!r}") from error
