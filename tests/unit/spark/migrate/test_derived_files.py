"""Queues, index, keys, timers and settings of a new store, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from brokerset_formats.fastjson import loads
from brokerset_formats.hashing import index_hash
from brokerset_formats.hosts import Host
from brokerset_formats.index_file import IndexTable, file_size
from brokerset_formats.records import MAGIC_V2, Record, SysFlag, encode_record
from brokerset_rig.store_reading import read_queue
from brokerset_spark.jobs.dispatch import index_keys
from brokerset_spark.jobs.migrate import MigrateOptions
from brokerset_spark.jobs.migrate.checking import KEY
from brokerset_spark.jobs.migrate.config_files import ConfigChange, unread
from brokerset_spark.jobs.migrate.indexes import cut_slices, find_sizes, index_arrays, index_name
from brokerset_spark.jobs.migrate.options import is_chosen
from brokerset_spark.jobs.migrate.queues import (
    BLANKS_MAX,
    Faults,
    describe_faults,
    lay_out,
    read_end,
    split_files,
)
from brokerset_spark.jobs.migrate.selecting import ContentDigest, renew_property_crcs
from brokerset_spark.jobs.migrate.tallies import Groups
from brokerset_spark.kernels import KERNELS
from brokerset_spark.stores.folder import LocalFolder
from brokerset_spark.stores.layout import look
from brokerset_spark.stores.units import QUEUE

V4, V6 = Host.from_text("10.0.0.1", 1234), Host.from_text("::1", 1234)


def record(offset: int = 0, **given: object) -> Record:
    values: dict[str, object] = {
        "queue_id": 1,
        "queue_offset": 2,
        "offset": offset,
        "born_timestamp": 3,
        "born_host": V4,
        "store_timestamp": 4,
        "store_host": V6,
        "body": b"body",
        "topic": "t",
        **given,
    }
    return Record(**values)  # type: ignore[arg-type]


def units(*offsets: int) -> np.ndarray:
    return np.array([(offset, 100, 7) for offset in offsets], QUEUE.dtype)


def lay(*queue_offsets: int, floor: int = 0):  # type: ignore[no-untyped-def]
    given = units(*(5000 + 100 * number for number in range(len(queue_offsets))))
    return lay_out(given, np.array(queue_offsets, np.int64), floor=floor)


def test_a_queue_whose_beginning_is_gone_keeps_its_numbers() -> None:
    """It begins with the first message that is left."""
    laid = lay(7, 8, 9)

    assert (laid.first, laid.units["offset"].tolist(), laid.faults) == (7, [5000, 5100, 5200], None)


def test_missing_numbers_become_blank_units() -> None:
    """So every message stays at its queue offset."""
    laid = lay(3, 5)

    assert laid.units["size"].tolist() == [100, 0x7FFFFFFF, 100]
    assert (laid.messages, laid.faults) == (2, Faults(missing=(4, 4, 1)))


def test_a_topic_that_was_made_again_begins_anew() -> None:
    """What its queue held before its deletion is in no queue any more."""
    laid = lay(0, 1, 2, 0, 1)

    assert (laid.first, laid.units["offset"].tolist(), laid.replaced) == (0, [5300, 5400], 3)
    assert laid.faults is None


def test_a_queue_offset_that_was_given_twice_has_the_later_message() -> None:
    """And it is a fault: no broker gives one twice unless the topic was made again."""
    laid = lay(4, 5, 6, 5, 6, 7)

    assert (laid.first, laid.units["offset"].tolist()) == (4, [5000, 5300, 5400, 5500])
    assert (laid.faults, laid.replaced) == (Faults(doubled=(5, 2)), 0)


@pytest.mark.parametrize("far", [2**40, 2**62, -1, 4 + BLANKS_MAX + 2])
def test_a_queue_offset_far_away_makes_no_queue_of_its_length(far: int) -> None:
    """One wrong bit of it would ask for terabytes of place holders."""
    laid = lay(3, 4, far)

    assert (len(laid.units), laid.faults is not None and laid.faults.can_lay) == (0, False)


def test_faults_of_queues_are_described_by_the_worst_one_and_their_number() -> None:
    """Whoever reads it learns where to look, and how much there is."""
    one, two = Faults(missing=(16, 143, 128), doubled=(3, 1)), Faults(misplaced=-7)

    assert describe_faults({}) == ""
    assert describe_faults({"t/1": one}) == (
        "queue t/1: no record has queue offset 16 to 143 (all queues: 128 missing, 1 doubled)"
    )
    assert describe_faults({"t/1": one, "u/0": two}).startswith("queue u/0: a record says queue offset -7 (")
    assert "several records have queue offset 5 (" in describe_faults({"t/1": Faults(doubled=(5, 2))})


def test_an_empty_queue_goes_on_where_it_was(tmp_path: Path) -> None:
    """Its last unit points before the log, and readers of queues find the end behind it."""
    laid = lay(floor=1_003)
    folder = tmp_path / "store" / "consumequeue" / "t" / "0"
    folder.mkdir(parents=True)
    for base, part in split_files(laid.first, laid.units, 1000):
        (folder / f"{base * 20:020d}").write_bytes(part.tobytes().ljust(20_000, b"\0"))

    assert [path.name for path in folder.iterdir()] == [f"{20_000:020d}"]
    assert read_queue(folder)[0] == 1_003
    opened = LocalFolder(tmp_path / "store")
    assert read_end(opened, look(opened).queues[0]).end == 1_003


def test_queue_files_are_cut_at_their_size_and_the_first_is_filled_up() -> None:
    """Names are multiples of the size; blank units stand before the first message."""
    files = list(split_files(5, units(1, 2, 3, 4), 4))

    assert [(base, part["size"].tolist()) for base, part in files] == [
        (4, [0x7FFFFFFF, 100, 100, 100]),
        (8, [100]),
    ]


def test_an_index_file_is_what_single_puts_make_of_the_same_keys() -> None:
    """Header, slots, chains: the same bytes as `IndexTable` writes one key after the other."""
    random = np.random.default_rng(5)
    keys = np.zeros(300, KEY)
    keys["hash"] = random.integers(0, 40, 300)
    keys["offset"] = np.cumsum(random.integers(1, 500, 300))
    keys["stored"] = 1_700_000_000_000 + np.cumsum(random.integers(0, 900, 300))
    buffer = bytearray(file_size(16, 400))
    table = IndexTable(buffer, 16, 400)
    for key in keys.tolist():
        table.put(*key)
    table.write_header()

    header, slots, entries = index_arrays(keys, 16)

    made = header.encode() + slots.tobytes() + bytes(20) + entries.tobytes()
    assert made.ljust(len(buffer), b"\0") == bytes(buffer)


def test_index_files_are_filled_one_after_the_other() -> None:
    """Slices go over files of keys, in order; names are times and differ."""
    assert cut_slices([("a", 5), ("b", 0), ("c", 4)], 4) == [
        [["a", 0, 4]],
        [["a", 4, 1], ["c", 0, 3]],
        [["c", 3, 1]],
    ]
    assert find_sizes([]) == (5_000_000, 20_000_000)
    assert find_sizes([84_040]) == (1_000, 4_000)
    assert find_sizes([84_041]) is None
    assert index_name(1_700_000_000_123, 0) < index_name(1_700_000_000_123, 1)
    assert len(index_name(1_700_000_000_123, 0)) == 17


def test_keys_are_hashed_as_java_hashes_topic_and_key() -> None:
    """Unique id, words of the keys, tags: in this order, also with letters beyond ASCII and beyond 16
    bits."""
    properties = [
        "UNIQ_KEY\x01U1\x02KEYS\x01one\x02TAGS\x01TagA\x02",
        "KEYS\x01 zwei  dr\u00e9i \x02TAGS\x01\u4e2d\x02",
        "UNIQ_KEY\x01\U0001f600\x02",
        "",
        "UNIQ_KEY\x01gone\x02",
    ]
    rows = [
        record(
            topic="t\u00f6pic" if number else "plain",
            properties=text.encode(),
            sys_flag=SysFlag.TRANSACTION_ROLLBACK if number == 4 else 0,
        )
        for number, text in enumerate(properties)
    ]
    raw = [encode_record(row) for row in rows]
    data = np.frombuffer(b"".join(raw), np.uint8)
    starts = np.cumsum([0, *map(len, raw[:-1])])
    heads = KERNELS.heads(data, starts)

    groups = Groups()
    topics = np.array(groups.number(data, heads))
    keys = index_keys(data, heads, [topic.encode() for topic, _ in groups.queues], topics)

    wanted = [
        (0, "plain#U1"), (0, "plain#one"), (0, "plain#T#TagA"),
        (1, "t\u00f6pic#zwei"), (1, "t\u00f6pic#dr\u00e9i"), (1, "t\u00f6pic#T#\u4e2d"),
        (2, "t\u00f6pic#\U0001f600"),
    ]  # fmt: skip
    assert list(zip(keys.rows.tolist(), keys.hashes.tolist(), strict=True)) == [
        (row, index_hash(key)) for row, key in wanted
    ]


def test_a_crc_over_the_record_is_made_again_for_its_new_offset() -> None:
    """`__CRC32#` covers the offset; other records stay as they are."""
    first = encode_record(record(properties=b"K\x01v\x02"), property_crc=True)
    plain = encode_record(record(magic=MAGIC_V2, properties=b"K\x01v\x02"))
    moved = encode_record(record(4096, properties=b"K\x01v\x02"), property_crc=True)
    out = np.frombuffer(moved[:28] + (4096).to_bytes(8, "big") + first[36:] + plain, np.uint8).copy()

    count = renew_property_crcs(out, np.array([0, len(first)]), np.array([len(first), len(plain)], np.int32))

    assert count == 1
    assert out.tobytes() == moved + plain


def digest(*pieces: list[Record], property_crc: bool = False) -> str:
    found = ContentDigest()
    for piece in pieces:
        raw = [encode_record(each, property_crc=property_crc) for each in piece]
        starts = np.cumsum([0, *map(len, raw[:-1])]).astype(np.int64)
        found.add(np.frombuffer(b"".join(raw), np.uint8), starts, np.array(list(map(len, raw)), np.int32))
    return found.hexdigest()


def test_content_is_the_same_wherever_it_lies() -> None:
    """Neither offsets nor the cut into pieces count; every other byte does."""
    one = [record(0, prepared_transaction_offset=5), record(100, body=b"other")]
    moved = [record(7, prepared_transaction_offset=9), record(200, body=b"other")]

    assert digest(one) == digest(moved) == digest(moved[:1], moved[1:])
    assert digest(one, property_crc=True) == digest(moved, property_crc=True)
    for changed in (
        {"topic": "u"},
        {"properties": b"a\x01b\x02"},
        {"flag": 1},
        {"queue_offset": 3},
        {"sys_flag": 1},
    ):
        assert digest([record(0, prepared_transaction_offset=5, **changed), one[1]]) != digest(one)


@pytest.mark.parametrize(
    ("topic", "keep", "drop", "stays"),
    [
        ("a", (), (), True),
        ("a", ("b*",), (), False),
        ("b1", ("b*",), (), True),
        ("b1", ("b*",), ("b1",), False),
        ("%RETRY%g", ("b*",), (), True),
        ("SCHEDULE_TOPIC_XXXX", ("b*",), (), True),
        ("SCHEDULE_TOPIC_XXXX", (), ("SCH*",), False),
    ],
)
def test_which_topics_stay(topic: str, keep: tuple[str, ...], drop: tuple[str, ...], stays: bool) -> None:
    """Kept by pattern, but for those of the system; dropped by pattern whatever they are."""
    assert is_chosen(topic, keep, drop) is stays


def test_progress_follows_the_cut() -> None:
    """Offsets of dropped topics go, those behind an end are lowered, everything else stays byte for byte."""
    change = ConfigChange(lambda topic: topic != "gone", {("t", 0): 5, ("SCHEDULE_TOPIC_XXXX", 2): 1})
    offsets = b'{"offsetTable":{"t@g":{0:9,1:3},"gone@g":{0:1}}}'
    untouched = b'{"offsetTable":{"u@g":{0:9}}}'

    assert loads(change.change("consumerOffset.json", offsets)) == {"offsetTable": {"t@g": {"0": 5, "1": 3}}}
    assert change.change("consumerOffset.json", untouched) is untouched
    assert loads(change.change("delayOffset.json", b'{"offsetTable":{3:4,1:9}}')) == {
        "offsetTable": {"3": 1, "1": 9}
    }
    assert (change.offsets_lowered, change.offsets_dropped) == (2, 1)
    assert unread({"t@g": {"0": 4, "1": 9}}, {("t", 0): 5, ("t", 1): 9}) == 1


def test_the_stamp_of_our_own_brokers_names_the_new_end() -> None:
    """With the checksum that the broker compares."""
    from brokerset_broker.tables.metadata.stamp import Stamp

    old = Stamp(1_000, 7, {"t@g": {0: 3}})

    new = ConfigChange(lambda _: True, {}, 5_000).change("brokersetMetadata.json", old.encode())

    assert Stamp.decode(new) == Stamp(5_000, 7, {"t@g": {0: 3}})


def test_options_that_contradict_each_other_are_named() -> None:
    """All of them at once."""
    options = MigrateOptions(
        to="tape",  # type: ignore[arg-type]
        file_size=10,
        queue_file_size=30,
        index_slots=4,
        from_time_ms=5,
        until_time_ms=5,
        delay_levels="1x",
        epochs="many",
    )

    assert len(options.problems()) == 7
    assert MigrateOptions().problems() == []
