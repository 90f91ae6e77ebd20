"""Groups that a set had: controllers keep them, because their volumes stay. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def retired_groups(status: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of groups whose brokers have gone, or go because nobody has anything left to read.

    A group counts as soon as it is seen empty, a minute before its brokers end: alerts are to know it first.
    """
    workflow = status.get("workflow")
    groups = workflow.get("groups") if isinstance(workflow, Mapping) else None
    return frozenset(
        str(one.get("name"))
        for one in (groups if isinstance(groups, list) else ())
        if isinstance(one, Mapping) and (one.get("replicas") == 0 or one.get("emptySince") is not None)
    )
