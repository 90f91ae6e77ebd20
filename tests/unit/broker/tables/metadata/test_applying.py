"""What a record does to the tables, which snapshots count, and what a stamp is worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from brokerset_broker.tables.metadata import records
from brokerset_broker.tables.metadata.applier import Applier, Target
from brokerset_broker.tables.metadata.records import OffsetsPut, SnapshotEnd, TopicsPut
from brokerset_broker.tables.metadata.stamp import Stamp
from brokerset_formats.config import TopicConfig
from brokerset_formats.errors import FormatError
from brokerset_formats.hashing import java_hash
from brokerset_rig.metadata_parts import Replica


def test_a_topic_created_on_demand_leaves_the_one_that_exists_alone(tmp_path: Path) -> None:
    """An administrator may have made it with other settings."""
    replica = Replica(tmp_path)
    made = TopicConfig("t", 16, 16)
    replica.tables.apply(TopicsPut((made,)), 0)

    replica.tables.apply(TopicsPut((TopicConfig("t", 4, 4),), if_absent=True), 10)
    assert replica.topics.get("t") == made

    replica.tables.apply(TopicsPut((TopicConfig("t", 8, 8),)), 20)
    assert replica.topics.get("t") == TopicConfig("t", 8, 8)


def test_offsets_are_held_only_until_their_record_is_applied(tmp_path: Path) -> None:
    """Commits that a record will overwrite are ignored; once it is applied consumers go on."""
    replica = Replica(tmp_path)
    change = OffsetsPut({"t@g": {0: 5}})
    replica.tables.hold(change)
    assert replica.offsets.is_held("g", "t")

    replica.tables.apply(change, 0)

    assert not replica.offsets.is_held("g", "t")
    assert replica.offsets.query("g", "t", 0) == 5


class OneEnd:
    """A queue whose only record is the end of a snapshot, at number 7 and offset 700."""

    min_offset = 500
    queue_min = 7
    queue_max = 8

    def __init__(self, end: SnapshotEnd) -> None:
        ((kind, self._body),) = records.encode(end)
        self._code = java_hash(records.tag(kind))

    def units(self, queue_offset: int, count: int) -> Sequence[tuple[int, int, int]]:
        return ((700, 50, self._code),) if queue_offset <= 7 < queue_offset + count else ()

    def read(self, offset: int, size: int) -> bytes | None:
        return self._body


@pytest.mark.parametrize(
    ("begin", "replay_from", "counts"), [(7, 500, True), (6, 500, False), (7, 499, False)]
)
def test_a_snapshot_whose_beginning_was_deleted_does_not_count(
    begin: int, replay_from: int, counts: bool
) -> None:
    """Its first pieces, or the changes next to it, are gone with old files of the log."""
    source = OneEnd(SnapshotEnd(begin, replay_from, 1, 1, 0))
    applier = Applier(source, cast(Target, None))

    assert (applier.find_snapshot(1000) is not None) is counts


def test_a_changed_stamp_is_worth_nothing() -> None:
    """What the files have is then asked of the log."""
    data = Stamp(4711, 3).encode()
    assert Stamp.decode(data) == Stamp(4711, 3)

    with pytest.raises(FormatError, match="checksum"):
        Stamp.decode(data.replace(b"4711", b"4712"))
