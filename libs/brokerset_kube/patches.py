"""How two states of an object differ. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import orjson

_FACTORS: Final[Mapping[str, Decimal]] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{
        unit: Decimal(10) ** (3 * power) for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), start=1)
    },
    **{
        unit: Decimal(2) ** (10 * power) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
    },
}

_QUANTITY: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(n|u|m|k|[KMGTPE]i|[MGTPE])?")


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7386) that makes `old` into `new`; empty when they are equal."""
    patch: dict[str, Any] = {}
    for key in sorted(old.keys() - new.keys()):
        patch[key] = None
    for key, value in new.items():
        before = old.get(key)
        if value is None:
            if before is not None:
                patch[key] = None
        elif isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := merge_patch(before, value):
                patch[key] = inner
        elif key not in old or before != value:
            patch[key] = value
    return patch


def digest(value: Any) -> str:
    """A short text that is the same for the same JSON value, whatever the order of its keys."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def covers(live: Any, wanted: Any) -> bool:
    """Whether an object has every field that is wanted, with the same value; it may have more.

    Lists must be as long as wanted: what a list gained may be somebody else's; applying tells.
    """
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return not wanted and live is None
        return all(covers(live.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list | tuple):
        if not isinstance(live, list):
            return not wanted and live is None
        return len(live) == len(wanted) and all(map(covers, live, wanted))
    if live is None or wanted is None:
        return live is wanted or (live is None and wanted in ("", 0, False))
    if type(live) is type(wanted) and live == wanted:
        return True
    return same_quantity(live, wanted)


def same_quantity(one: Any, other: Any) -> bool:
    """Whether two values are the same amount: `1` and `1000m`, `1Gi` and `1024Mi`."""
    if isinstance(one, bool) or isinstance(other, bool):
        return False
    first, second = quantity(one), quantity(other)
    return first is not None and first == second


def quantity(value: Any) -> Decimal | None:
    """The amount that a quantity of Kubernetes stands for; None for what is none."""
    if isinstance(value, int):
        return Decimal(value)
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    return Decimal(match[1]) * _FACTORS[match[2] or ""] if match else None


def substance(live: Mapping[str, Any]) -> dict[str, Any]:
    """An object without what changes by itself: status, versions, who manages which field."""
    metadata = {
        key: value
        for key, value in live["metadata"].items()
        if key not in ("managedFields", "resourceVersion", "generation")
    }
    return {key: value for key, value in live.items() if key != "status"} | {"metadata": metadata}
