"""Which of several StoreExports of a namespace writes a table: one only, two would be in each other's way.

Both would read everything, and each commit could be the one that the other one has to repeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from posixpath import normpath
from typing import Any, Final

from brokerset_operator.plan.objects import part

SPELLINGS: Final = {"s3a": "s3", "abfs": "abfss"}
"""Schemes of addresses that lead to the same place as another one."""


def writer_of_target(own: Mapping[str, Any], there: Iterable[Mapping[str, Any]]) -> str | None:
    """Name of another StoreExport that has the target of this one; None when it is this one's.

    It is that of the oldest, and of two as old that of the first by name. An older one waits all the same
    until the run of a younger one has ended: a manifest may have been changed.
    `there` are the StoreExports of the namespace, this one may be among them.
    """
    places = _places(own)
    same = [each for each in there if _name(each) != _name(own) and places & _places(each)]
    older = sorted(_age(each) for each in same if _age(each) < _age(own) and not _is_going(each))
    running = sorted(_age(each) for each in same if part(each, "status").get("phase") == "Running")
    return next((name for _, name in (*older, *running)), None)


def _places(export: Mapping[str, Any]) -> set[str]:
    """The tables of a manifest, which may be invalid: its address, and its name in a catalog."""
    target = part(part(export, "spec"), "target")
    url, claim, catalog = target.get("url"), target.get("claimName"), part(target, "catalog")
    found = set()
    if isinstance(url, str):
        scheme, _, rest = url.partition("://")
        found.add(f"{SPELLINGS.get(scheme, scheme)}://{normpath(rest)}")
    elif isinstance(claim, str):
        found.add(f"{claim}:{normpath(str(target.get('path', 'lake')))}")
    if catalog:
        # Where its address is a secret its name is all that is known.
        where = [catalog.get(name, "") for name in ("type", "uri", "warehouse")]
        known = where if catalog.get("uri") else [catalog.get("name", "lake")]
        found.add(" ".join(map(str, ["catalog", *known, catalog.get("table", "brokerset.messages")])))
    return found


def _name(export: Mapping[str, Any]) -> str:
    return str(export["metadata"]["name"])


def _age(export: Mapping[str, Any]) -> tuple[str, str]:
    """The older, the smaller."""
    return str(export["metadata"].get("creationTimestamp") or ""), _name(export)


def _is_going(export: Mapping[str, Any]) -> bool:
    return bool(export["metadata"].get("deletionTimestamp"))
