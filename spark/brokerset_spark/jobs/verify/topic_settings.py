"""What the broker's settings say about topics: which there are, and which have batch queues."""

from __future__ import annotations

from typing import Any, Final

from brokerset_formats import fastjson
from brokerset_formats.errors import FormatError
from brokerset_spark.stores.folder import StoreFolder, read_all
from brokerset_spark.stores.units import BATCH

_QUEUE_TYPE: Final = ("queue.type", "BatchCQ")
"""The attribute of a topic whose queues are batch queues."""


def known_topics(folder: StoreFolder) -> frozenset[str]:
    """The topics of the settings; none if they cannot be read."""
    return frozenset(_table(folder))


def batched_topics(folder: StoreFolder) -> tuple[str, ...]:
    """Topics with batch queues: those that say so, and those that have some."""
    found = set(folder.folders(BATCH.folder))
    for topic, settings in _table(folder).items():
        attributes = settings.get("attributes") if isinstance(settings, dict) else None
        if isinstance(attributes, dict) and attributes.get(_QUEUE_TYPE[0]) == _QUEUE_TYPE[1]:
            found.add(topic)
    return tuple(sorted(found))


def _table(folder: StoreFolder) -> dict[str, Any]:
    data = read_all(folder, "config/topics.json") or read_all(folder, "config/topics.json.bak")
    if data is None:
        return {}
    try:
        table = fastjson.loads(data).get("topicConfigTable", {})
    except (FormatError, AttributeError):
        return {}
    return table if isinstance(table, dict) else {}
