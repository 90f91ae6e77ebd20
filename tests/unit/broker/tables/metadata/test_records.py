"""Metadata records as bytes, and snapshots put together again."""

from __future__ import annotations

import pytest

from brokerset_broker.tables.metadata import records
from brokerset_broker.tables.metadata.records import (
    Change,
    DelayPut,
    ForbiddenPut,
    GroupsDeleted,
    GroupsPut,
    Kind,
    OffsetsPut,
    OffsetsRemoved,
    ResetsPut,
    Skipped,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
    TopicsDeleted,
    TopicsPut,
)
from brokerset_broker.tables.metadata.snapshot import Assembly, ChunkPacker, MetadataState
from brokerset_formats.config import SubscriptionGroupConfig, TopicConfig
from brokerset_formats.errors import FormatError

CHANGES: tuple[Change | SnapshotBegin | SnapshotEnd, ...] = (
    TopicsPut((TopicConfig("t", 4, 8, order=True, attributes={"a": "b"}),)),
    TopicsPut((TopicConfig("%RETRY%g", 1, 1),), if_absent=True),
    TopicsDeleted(("t", "u")),
    GroupsPut((SubscriptionGroupConfig("g", retry_max_times=3),)),
    GroupsPut((SubscriptionGroupConfig("g"),), if_absent=True),
    GroupsDeleted(("g",)),
    ForbiddenPut({"g": {"t": 4}, "h": {}}),
    OffsetsPut({"t@g": {0: 5, 7: 2**62}}),
    ResetsPut({"t@g": {3: 0}}),
    OffsetsRemoved(("g",)),
    DelayPut({1: 7, 18: 3}),
    SnapshotBegin(3, -1),
    SnapshotEnd(7, 4096, 2, 900, 123456, True),
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_what_is_written_is_read(change: Change | SnapshotBegin | SnapshotEnd) -> None:
    """Each kind of record says what it was made of."""
    encoded = records.encode(change)

    assert len(encoded) == 1
    assert records.decode(encoded[0][1]) == change
    assert records.properties(encoded[0][0]).startswith(b"TAGS\x01")


def test_the_bytes_are_those_of_the_document() -> None:
    """Magic, version, kind, two zeros, length, JSON."""
    [(kind, body)] = records.encode(DelayPut({3: 12}))

    assert kind is Kind.DELAY
    assert body == b"BSM1\x01\x09\x00\x00\x00\x00\x00\x15" + b'{"levels":{"3":12}}' + b"" or body[:8] == (
        b"BSM1\x01\x09\x00\x00"
    )
    assert body[12:] == b'{"levels":{"3":12}}'
    assert int.from_bytes(body[8:12], "big") == len(body) - 12


def test_large_changes_become_several_records() -> None:
    """None is larger than the limit, and together they say the same."""
    offsets = {f"topic-{number}@group": {0: number, 1: number} for number in range(20_000)}
    offsets["wide@group"] = {queue: queue for queue in range(5_000)}
    taken = {f"topic-{number}@group": (0, 1) for number in range(10)}
    before, after = MetadataState(), MetadataState()

    encoded = records.encode(OffsetsPut(offsets, taken))
    for _, body in encoded:
        entry = records.decode(body)
        assert isinstance(entry, OffsetsPut)
        after.apply(entry)
    before.apply(OffsetsPut(offsets, taken))

    assert len(encoded) > 3
    assert max(len(body) for _, body in encoded) <= records.RECORD_BYTES_MAX + 1_000
    assert after == before


def test_unknown_kinds_and_strangers_are_skipped() -> None:
    """A newer program's record of a new kind, and what is no record of ours, say why they are passed over."""
    unknown = records.HEAD.pack(b"BSM1", 1, 99, 0, 2) + b"{}"

    assert records.decode(unknown) == Skipped("its kind 99 is not known")
    assert isinstance(records.decode(b"hello"), Skipped)


@pytest.mark.parametrize(
    "body",
    [
        records.HEAD.pack(b"BSM1", 2, 1, 0, 2) + b"{}",
        records.HEAD.pack(b"BSM1", 1, 1, 0, 9) + b"{}",
        records.HEAD.pack(b"BSM1", 1, 1, 0, 2) + b"{]",
        records.HEAD.pack(b"BSM1", 1, 6, 0, 15) + b'{"offsets":"x"}',
        records.HEAD.pack(b"BSM1", 1, 17, 0, 2) + b"{}",
        records.HEAD.pack(b"BSM1", 1, 18, 0, 2) + b"{}",
    ],
)
def test_what_cannot_be_understood_is_an_error(body: bytes) -> None:
    """Another version, another length, no JSON, wrong types: nothing is guessed."""
    with pytest.raises(FormatError):
        records.decode(body)


def test_a_snapshot_is_put_together_again() -> None:
    """Chunks of bounded size hold everything, and the end mark matches them alone."""
    packer = ChunkPacker()
    chunks: list[bytes] = []
    for number in range(1_200):
        chunks += filter(None, [packer.add_item("topics", TopicConfig(f"t{number}").to_json())])
        chunks += filter(None, [packer.add_key("offsets", f"t{number}@g", {0: number})])
    chunks += filter(None, [packer.take()])
    assembly = Assembly(5)
    for chunk in chunks:
        entry = records.decode(records.encode_chunk(5, chunk)[1])
        assert isinstance(entry, SnapshotChunk)
        assembly.add(entry)
        assembly.add(SnapshotChunk(6, b"of another snapshot"))
    end = SnapshotEnd(5, 0, packer.chunks, packer.entries, packer.checksum)

    assert packer.chunks == len(chunks) > 1
    assert packer.entries == 2_400
    assert assembly.problem(end) is None
    assert len(assembly.state.topics) == 1_200
    assert assembly.state.offsets["t7@g"] == {0: 7}
    assert Assembly(5).problem(end) is not None
    assert assembly.problem(SnapshotEnd(5, 0, packer.chunks, packer.entries, 1)) is not None
