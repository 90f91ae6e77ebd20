"""Reading queues: which messages a consumer gets, and what it is told otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from brokerset_broker.store import Boundary, GetResult, GetStatus, MessageStore, mapping
from brokerset_formats.queue_units import UNIT_SIZE, tags_code
from brokerset_formats.records import decode_record

Stores = Any  # the class of conftest.py, which cannot be imported by name


def bodies(result: GetResult) -> list[bytes]:
    data = b"".join(result.parts)
    assert len(data) == result.size
    found, position = [], 0
    while position < len(data):
        record = decode_record(data, position, verify_crc=True)
        found.append(record.body)
        position += record.size
    assert len(found) == result.message_count
    return found


def fill(stores: Stores, store: MessageStore, count: int = 25) -> None:
    """Messages of two queues in turn, with tags A, B, C in turn, ten milliseconds apart."""
    for number in range(count):
        tags = b"TAGS\x01" + b"ABC"[number % 3 : number % 3 + 1] + b"\x02"
        stores.append(store, b"a%d" % number, tags)
        stores.append(store, b"other", queue_id=1)
        stores.clock.advance(10)


def test_messages_come_in_order(stores: Stores) -> None:
    """A consumer that goes on where it was told gets every message once, over queue files of ten units."""
    store = stores.open()
    fill(stores, store)

    got: list[bytes] = []
    queue_offset = 0
    while (result := store.get("T", 0, queue_offset, 4, 100_000)).status is GetStatus.FOUND:
        got += bodies(result)
        queue_offset = result.next_queue_offset

    assert got == [b"a%d" % number for number in range(25)]
    assert result.status is GetStatus.OFFSET_OVERFLOW_ONE
    assert (result.min_queue_offset, result.max_queue_offset, queue_offset) == (0, 25, 25)


def test_what_is_not_unread_has_nothing_to_get(stores: Stores) -> None:
    """`unread` passes over places only where `get` finds nothing and stays; what it counts is there."""
    store = stores.open()
    fill(stores, store)
    places = [(queue_id, offset) for queue_id in (0, 1, 2) for offset in range(28)]

    unread = dict(
        zip(places, ([left for _, left in store.unread("T", [place])] for place in places), strict=True)
    )

    for (queue_id, offset), left in unread.items():
        result = store.get("T", queue_id, offset, 100, 1 << 20)
        if not left:
            found = result.message_count, result.next_queue_offset, result.max_queue_offset
            assert found == (0, offset, offset)
        elif left != [0]:
            assert left == [result.max_queue_offset - offset]
            assert result.status is GetStatus.FOUND
    assert unread[0, 3] == [22]
    assert store.unread("T", [(1, 25), (0, None), (1, 24)]) == [(0, None), (1, 1)]


def test_a_consumer_has_units_read_ahead_once_in_a_while_and_none_behind_the_end(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 10,000 units, read 100 at a time, each is asked for before it is read, with four requests."""
    store = stores.open(mapped_file_size_commit_log=1 << 24, mapped_file_size_consume_queue=400_000)
    for _ in range(10_000):
        stores.append(store)
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(mapping, "will_read", lambda mapped, begin, end: asked.append((begin, end)))

    for queue_offset in range(0, 10_000, 100):
        assert store.get("T", 0, queue_offset, 100, 1 << 20).message_count == 100
        assert asked[-1][0] <= queue_offset * UNIT_SIZE < (queue_offset + 100) * UNIT_SIZE <= asked[-1][1]

    assert len(asked) == 4
    assert asked[-1][1] == 10_000 * UNIT_SIZE


def test_neighbours_are_one_part(stores: Stores) -> None:
    """Records that follow each other in the log leave in one piece."""
    store = stores.open()
    for number in range(5):
        stores.append(store, b"%d" % number)
    stores.append(store, queue_id=1)
    stores.append(store, b"5")

    result = store.get("T", 0, 0, 32, 100_000)
    filtered = store.get("T", 0, 0, 32, 100_000, frozenset({0}))

    assert bodies(result) == bodies(filtered) == [b"%d" % number for number in range(6)]
    assert [len(part) for part in filtered.parts] == [store.unit("T", 0, 0)[1] * 5, store.unit("T", 0, 5)[1]]


def test_limits(stores: Stores) -> None:
    """Counts and bytes limit an answer, but the first message always comes."""
    store = stores.open()
    for _ in range(10):
        stores.append(store, b"x" * 1000)
    size = store.unit("T", 0, 0)[1]

    assert store.get("T", 0, 0, 3, 10**6).message_count == 3
    assert store.get("T", 0, 0, 32, 3 * size).message_count == 3
    assert store.get("T", 0, 0, 32, 3 * size - 1).message_count == 2
    assert store.get("T", 0, 0, 32, 1).message_count == 1
    assert store.get("T", 0, 0, 0, 0).message_count == 1


def test_tags_are_filtered(stores: Stores) -> None:
    """Only messages with a wanted tags code come; the others are passed over."""
    store = stores.open()
    fill(stores, store)
    codes = frozenset({tags_code("A"), tags_code("C")})

    result = store.get("T", 0, 0, 5, 100_000, codes)
    nothing = store.get("T", 0, 0, 5, 100_000, frozenset({tags_code("Z")}))

    assert bodies(result) == [b"a0", b"a2", b"a3", b"a5", b"a6"]
    assert result.next_queue_offset == 7
    assert (nothing.status, nothing.next_queue_offset) == (GetStatus.NO_MATCHED_MESSAGE, 10)


@pytest.mark.parametrize(
    ("queue_offset", "status", "following"),
    [
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (25, GetStatus.OFFSET_OVERFLOW_ONE, 25),
        (26, GetStatus.OFFSET_OVERFLOW_BADLY, 25),
    ],
)
def test_offsets_outside_the_queue(
    stores: Stores, queue_offset: int, status: GetStatus, following: int
) -> None:
    """The consumer is told where to go on."""
    store = stores.open()
    fill(stores, store)

    result = store.get("T", 0, queue_offset, 32, 100_000)

    assert (result.status, result.next_queue_offset, result.parts) == (status, following, [])


def test_queues_without_messages(stores: Stores) -> None:
    """An unknown queue and an empty one are different answers."""
    store = stores.open()
    store.queues_table.open("T", 5)

    assert store.get("T", 0, 0, 32, 1000).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert store.get("T", 5, 0, 32, 1000).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert store.queue_max("T", 0) == store.queue_min("T", 0) == 0


def test_messages_over_two_log_files(stores: Stores) -> None:
    """An answer may come from two files of the log."""
    store = stores.open()
    for number in range(8):
        stores.append(store, b"%d" % number * 15_000)

    result = store.get("T", 0, 0, 32, 10**6)

    assert [body[:1] for body in bodies(result)] == [b"%d" % number for number in range(8)]
    assert len(result.parts) == 2


def test_deleted_messages_are_passed_over(stores: Stores) -> None:
    """When the log has lost its oldest file, a consumer below the minimum is told so, and reading goes on."""
    store = stores.open()
    for number in range(8):
        stores.append(store, b"%d" % number * 15_000)
    old = store.get("T", 0, 0, 1, 10**6)
    store.log.files.remove_first(1)

    removing = store.get("T", 0, 0, 1, 10**6)
    reading_on = store.get("T", 0, 0, 32, 10**6)
    store.queues_table.correct_min_offsets(store.min_offset)

    assert bodies(old)[0][:1] == b"0"  # what was handed out stays readable
    assert (removing.status, removing.next_queue_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 1)
    assert bodies(reading_on)[0][:1] == b"4"
    assert store.queue_min("T", 0) == 4
    assert store.get("T", 0, 0, 32, 10**6).status is GetStatus.OFFSET_TOO_SMALL
    assert store.get("T", 0, 0, 32, 10**6).next_queue_offset == 4
    assert store.read(0) is None


def test_records_by_offset(stores: Stores) -> None:
    """A record is read by its offset; nothing outside the log is."""
    store = stores.open()
    appended = stores.append(store, b"body")

    assert decode_record(store.read(appended.offset)).body == b"body"
    assert bytes(store.read(4, 4)).hex() == "daa320a7"
    assert store.read(store.max_offset) is None
    assert store.read(-1) is None
    assert store.read(0, store.max_offset + 1) is None


def by_time(store: MessageStore, timestamp_ms: int) -> tuple[int, int]:
    return (
        store.queue_offset_by_time("T", 0, timestamp_ms, Boundary.LOWER),
        store.queue_offset_by_time("T", 0, timestamp_ms, Boundary.UPPER),
    )


def test_search_by_time(stores: Stores) -> None:
    """The first message at or after a time, or the last at or before it; several may have the same time."""
    store = stores.open()
    start = stores.clock.now_ms()
    for pause in (0, 10, 0, 0, 10):
        stores.clock.advance(pause)
        stores.append(store)
    # times: 0, 10, 10, 10, 20

    assert by_time(store, start + 10) == (1, 3)
    assert by_time(store, start + 5) == (1, 0)
    assert by_time(store, start + 15) == (4, 3)
    assert by_time(store, start - 1) == (0, 0)
    assert by_time(store, start + 21) == (5, 4)
    assert store.queue_offset_by_time("unknown", 0, start) == 0
    assert store.store_time_at("T", 0, 4) == start + 20
    assert store.store_time_at("T", 0, 5) is None
    assert store.earliest_store_time("T", 0) == start
    assert store.earliest_store_time("unknown", 0) is None


def test_search_by_time_stays_in_the_queue(stores: Stores) -> None:
    """Messages that were deleted are not found."""
    store = stores.open()
    start = stores.clock.now_ms()
    for number in range(8):
        stores.append(store, b"%d" % number * 15_000)
        stores.clock.advance(10)
    store.log.files.remove_first(1)
    store.queues_table.correct_min_offsets(store.min_offset)

    assert by_time(store, start) == (4, 4)
    assert by_time(store, start + 50) == (5, 5)


def test_queries_by_key(stores: Stores) -> None:
    """Each key and the client's id find a message, within a span of time, oldest first."""
    store = stores.open()
    start = stores.clock.now_ms()
    for number in range(4):
        stores.append(store, b"%d" % number, b"KEYS\x01all k%d\x02UNIQ_KEY\x01id%d\x02" % (number, number))
        stores.clock.advance(5_000)

    def found(key: str, **changes: int) -> list[bytes]:
        arguments = {"max_count": 32, "begin_ms": 0, "end_ms": 2**62} | changes
        return [decode_record(record).body for record in store.query("T", key, **arguments).records]

    assert found("all") == [b"0", b"1", b"2", b"3"]
    assert found("k2") == found("id2") == [b"2"]
    assert found("all", max_count=2) == [b"2", b"3"]
    assert found("all", begin_ms=start + 5_000, end_ms=start + 10_000) == [b"1", b"2"]
    assert found("none") == []
    answer = store.query("T", "all", 1, 0, 2**62)
    assert (answer.index_timestamp, answer.index_offset) == (start + 15_000, store.unit("T", 0, 3)[0])
    assert answer.size == len(answer.records[0])


def test_without_an_index_nothing_is_found(stores: Stores) -> None:
    """`messageIndexEnable=false` makes no index files."""
    store = stores.open(message_index_enable=False)
    stores.append(store, properties=b"KEYS\x01k\x02")

    assert store.query("T", "k", 1, 0, 2**62).records == []
    assert not (stores.root / "index").exists()


def test_topics_are_deleted(stores: Stores) -> None:
    """All queues of the topic go with their files; others stay."""
    store = stores.open()
    stores.append(store, queue_id=0)
    stores.append(store, queue_id=1)
    stores.append(store, topic="U", queue_id=2)
    assert store.queues() == {"T": [0, 1], "U": [2]}

    store.delete_topic("T")
    store.delete_topic("unknown")

    assert store.queues() == {"U": [2]}
    assert [path.name for path in (stores.root / "consumequeue").iterdir()] == ["U"]
    assert stores.append(store).queue_offset == 0
