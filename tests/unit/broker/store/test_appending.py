"""Appending: what is in the files afterwards, and what is refused."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.store import Appended, MessageStore, PutStatus, StoreRefused
from brokerset_broker.store.dispatch import derived
from brokerset_broker.store.message_store import PlainMessage
from brokerset_broker.store.segments import MappedFile
from brokerset_formats.batches import BatchItem
from brokerset_formats.hosts import Host
from brokerset_formats.names import SCHEDULE_TOPIC
from brokerset_formats.properties import PROPERTIES_SIZE_MAX, decode_properties
from brokerset_formats.queue_units import tags_code
from brokerset_formats.records import (
    BLANK,
    MAGIC_BLANK,
    MAGIC_V2,
    Record,
    SysFlag,
    decode_record,
    encode_record,
    ends_with_property_crc,
    without_property_crc,
)

BORN_HOST_V4 = Host.from_text("10.0.0.1", 54321).encode()
BORN_HOST_V6 = Host.from_text("fd00::1", 54321).encode()

Stores = Any  # the class of conftest.py, which cannot be imported by name


@pytest.mark.parametrize("crc", [False, True])
def test_a_record_in_the_log_is_what_the_codec_writes(stores: Stores, crc: bool) -> None:
    """The fast writer and `encode_record` agree byte for byte, for both kinds of hosts and both versions,
    with a property CRC and without."""
    for topic in ("T", "t" * 200):
        for born in ("10.0.0.1", "fd00::1"):
            for broker in ("127.0.0.1", "fd00::2"):
                store = stores.open(broker_ip1=broker, enabled_append_prop_crc=crc)
                born_host, store_host = Host.from_text(born, 54321), Host.from_text(broker, 10911)
                appended = store.append(
                    topic,
                    3,
                    b"Hello",
                    b"TAGS\x01A\x02",
                    flag=5,
                    sys_flag=2,
                    born_timestamp=1_600_000_000_000,
                    born_host=born_host.encode(),
                    reconsume_times=7,
                    prepared_transaction_offset=8,
                )
                record = Record(
                    magic=MAGIC_V2 if len(topic) > 127 else 0xDAA320A7,
                    queue_id=3,
                    flag=5,
                    queue_offset=appended.queue_offset,
                    offset=appended.offset,
                    sys_flag=2,
                    born_timestamp=1_600_000_000_000,
                    born_host=born_host,
                    store_timestamp=stores.clock.now_ms(),
                    store_host=store_host,
                    reconsume_times=7,
                    prepared_transaction_offset=8,
                    body=b"Hello",
                    topic=topic,
                    properties=b"TAGS\x01A\x02",
                )
                assert bytes(store.read(appended.offset)) == encode_record(record, property_crc=crc)
                assert store.unit(topic, 3, appended.queue_offset) == (
                    appended.offset,
                    appended.size,
                    tags_code("A"),
                )
                stores.abandon_all()


STALE = b"__CRC32#\x010123456789\x02"
MODES = pytest.mark.parametrize("crc", [False, True])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"enable_controller_mode": True}, True),
        ({"enable_controller_mode": True, "enabled_append_prop_crc": False}, False),
        ({"enabled_append_prop_crc": True}, True),
    ],
)
def test_groups_write_property_crcs(stores: Stores, changes: dict[str, Any], expected: bool) -> None:
    """In controller mode, unless the setting says otherwise; a broker without a group only if it does."""
    store = stores.open(**changes)

    record = decode_record(store.read(stores.append(store, properties=b"K\x01v\x02").offset), verify_crc=True)

    assert ends_with_property_crc(record.properties) is expected
    assert without_property_crc(record.properties) == b"K\x01v\x02"


@MODES
@pytest.mark.parametrize("after", [b"", b"K\x01v"])
@pytest.mark.parametrize("before", [b"", b"K\x01v\x02"])
@pytest.mark.parametrize("end", [b"", b"\x02"])
def test_a_property_crc_that_was_sent_is_never_stored(
    stores: Stores, crc: bool, before: bytes, after: bytes, end: bytes
) -> None:
    """A client's own, or one that was copied with a stored message: alone, last, first, without an end; in a
    message and in a batch. So the start after a crash takes none of them for a damage."""
    sent = before + (STALE + after if after else STALE[:-1]) + end
    store = stores.open(enabled_append_prop_crc=crc)
    single = stores.append(store, properties=sent)
    batch = store.append_batch(
        "T", 0, [BatchItem(0, b"b", sent)] * 3, sys_flag=0, born_timestamp=0, born_host=bytes(8)
    )

    for offset in (single.offset, *batch.offsets):
        properties = decode_record(store.read(offset), verify_crc=True).properties
        assert b"0123456789" not in properties
        assert properties.count(b"__CRC32#") == ends_with_property_crc(properties) == crc
        assert decode_properties(without_property_crc(properties)) == ({"K": "v"} if b"K" in sent else {})

    log_end = store.max_offset
    stores.abandon_all()
    assert stores.open(enabled_append_prop_crc=crc).max_offset == log_end


def test_properties_leave_room_for_the_crc(stores: Stores) -> None:
    """32,767 bytes with the CRC; what is stored again and was longer before there were CRCs gets none."""
    store = stores.open(enabled_append_prop_crc=True)
    assert store.properties_size_max == 32_747
    longest = b"K\x01" + b"v" * 32_744 + b"\x02"

    for properties, size in (
        (longest, 32_767),
        (longest[:-1], 32_767),
        (longest[:-1] + b"w", 32_747),
        (longest + STALE, 32_767),
        (b"K\x01" + b"v" * 32_764 + b"\x02", 32_767),
    ):
        record = decode_record(
            store.read(stores.append(store, properties=properties).offset), verify_crc=True
        )
        assert len(record.properties) == size
        assert decode_properties(record.properties)["K"] == decode_properties(properties)["K"]

    for properties in (b"K\x01" + b"v" * 32_766, longest + STALE + b"X\x01" + b"v" * 20):
        with pytest.raises(StoreRefused) as refused:
            stores.append(store, properties=properties)
        assert refused.value.status is PutStatus.PROPERTIES_SIZE_EXCEEDED
    item = BatchItem(0, b"b", longest[:-1] + b"v\x02")
    with pytest.raises(StoreRefused) as refused:
        store.append_batch("T", 0, [item], sys_flag=0, born_timestamp=0, born_host=bytes(8))
    assert refused.value.status is PutStatus.PROPERTIES_SIZE_EXCEEDED


@MODES
def test_a_batch_is_the_same_as_its_messages(stores: Stores, crc: bool) -> None:
    """Each message of a batch becomes an ordinary record; they follow each other in log and queue."""
    store = stores.open(enabled_append_prop_crc=crc)
    stores.append(store, b"before")
    items = [BatchItem(i, b"b%d" % i, b"TAGS\x01tag-%d\x02UNIQ_KEY\x01id-%d\x02" % (i, i)) for i in range(25)]

    batch = store.append_batch(
        "T", 0, items, sys_flag=0, born_timestamp=1_600_000_000_000, born_host=bytes(8)
    )

    assert (batch.queue_offset, batch.count, batch.end) == (1, 25, store.max_offset)
    for number, (item, offset) in enumerate(zip(items, batch.offsets, strict=True)):
        record = decode_record(store.read(offset), verify_crc=True)
        assert ends_with_property_crc(record.properties) is crc
        assert (record.body, without_property_crc(record.properties), record.flag) == (
            item.body,
            item.properties,
            item.flag,
        )
        assert (record.offset, record.queue_offset) == (offset, number + 1)
        assert store.unit("T", 0, number + 1) == (offset, record.size, tags_code(f"tag-{number}"))
        assert [bytes(found) for found in store.query("T", f"id-{number}", 8, 0, 2**62).records] == [
            bytes(store.read(offset))
        ]


def _message(topic: str, queue_id: int, body: bytes, properties: bytes = b"", *numbers: int) -> PlainMessage:
    """Flag, sysFlag, born time and reconsume times are `numbers`."""
    flag, sys_flag, born, times = numbers or (0, 0, 0, 0)
    return topic, queue_id, body, properties, derived(properties), flag, sys_flag, born, times


RUN = [
    _message("T", 0, b"first", b"UNIQ_KEY\x01id-0\x02", 5, 0, 1_600_000_000_000, 0),
    _message("T" * 200, 1, b"", b"KEYS\x01a b\x02TAGS\x01x\x02", -1, SysFlag.COMPRESSED, 0, 3),
    _message("T", 0, b"third" * 500, b"UNIQ_KEY\x01id-2\x02TAGS\x01y\x02", 0, 0, 1, 0),
]
"""Messages of two queues."""


@MODES
@pytest.mark.parametrize("born_host", [BORN_HOST_V4, BORN_HOST_V6])
def test_a_run_is_the_same_as_its_messages(stores: Stores, crc: bool, born_host: bytes) -> None:
    """Stored by one call, messages of several queues leave the bytes that they leave one after the other."""
    contents = []
    for as_run in (True, False):
        store = stores.open(enabled_append_prop_crc=crc, store_path_root_dir=stores.root / str(as_run))
        for topic, queue_id, *_ in RUN:
            stores.append(store, topic=topic, queue_id=queue_id)

        if as_run:
            placed = store.append_run(RUN, born_host)
        else:
            placed = [
                (found.offset, found.size, found.queue_offset)
                for found in (_append(store, message, born_host) for message in RUN)
            ]

        ends = [store.tail(topic, queue_id) for topic, queue_id, *_ in RUN]
        units = [store.unit("T", 0, number) for number in range(4)]
        log = bytes(store.read(0, store.max_offset))
        keys = [store.query(*key, 8, 0, 2**62).records for key in (("T", "id-2"), ("T" * 200, "b"))]
        contents.append((placed, ends, units, log, [[bytes(each) for each in found] for found in keys]))
        assert [placed[0][2], placed[1][2], placed[2][2]] == [2, 1, 3]
    assert contents[0] == contents[1]


def _append(store: MessageStore, message: PlainMessage, born_host: bytes) -> Appended:
    topic, queue_id, body, properties, _, flag, sys_flag, born_timestamp, reconsume_times = message
    return store.append(
        topic,
        queue_id,
        body,
        properties,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=born_host,
        reconsume_times=reconsume_times,
    )


@pytest.mark.parametrize("lacking", ["queue", "unit", "record", "body", "properties", "refusal"])
def test_a_run_that_needs_more_than_to_be_written_changes_nothing(stores: Stores, lacking: str) -> None:
    """A new queue, a full file of a queue or the log, what is too large, a refusal: nothing is stored."""
    store = stores.open()
    stores.append(store, b"x" * 10_000)
    run = [_message("T", 0, b"body")] * 2
    match lacking:
        case "queue":
            run = [*run, _message("T", 1, b"body")]
        case "unit":
            run *= 5
        case "record":
            run = [_message("T", 0, b"x" * 12_000)] * 3
        case "body":
            run = [*run, _message("T", 0, b"x" * 20_001)]
        case "properties":
            run = [*run, _message("T", 0, b"body", b"k\x01" + b"v" * PROPERTIES_SIZE_MAX)]
        case "refusal":
            store.follow("a master sends what is to be stored")
    before = (store.max_offset, store.tail("T", 0))

    placed = store.append_run(run, BORN_HOST_V4)

    assert placed is None
    assert (store.max_offset, store.tail("T", 0), store.tail("T", 1)) == (*before, (0, 0))


@pytest.mark.parametrize("how", ["message", "batch", "run"])
def test_a_disk_that_does_not_take_the_log_stops_the_store(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Blocks were taken, but writing to them fails: nothing of the call is stored, and nothing is later."""
    store = stores.open()
    stores.append(store, b"before")
    before = (store.max_offset, store.tail("T", 0))
    real = os.pwrite

    def half(descriptor: int, data: bytes, position: int) -> int:
        if "commitlog" not in os.readlink(f"/proc/self/fd/{descriptor}"):
            return real(descriptor, data, position)
        if len(data) < 200:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, data[:-100], position)

    def store_more() -> None:
        body = b"x" * 200
        match how:
            case "message":
                stores.append(store, body)
            case "batch":
                store.append_batch(
                    "T", 0, [BatchItem(0, body, b"")] * 3, sys_flag=0, born_timestamp=0, born_host=bytes(8)
                )
            case "run":
                store.append_run([_message("T", 0, body)] * 3, bytes(8))

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(StoreRefused) as refused:
        store_more()
    monkeypatch.undo()

    assert refused.value.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "the disk does not take the commit log: [Errno 5]" in refused.value.reason
    assert store.stopped is not None
    assert (stores.root / "abort").read_text().split("\n")[1] == ""
    assert (store.max_offset, store.tail("T", 0)) == before
    with pytest.raises(StoreRefused):
        stores.append(store)


@pytest.mark.parametrize("lacking", ["descriptor", "mapping", "native descriptor"])
def test_a_roll_that_fails_half_way_refuses_messages_and_is_made_again(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    """The process has no descriptor or mapping left for a moment: nothing has changed, and all goes on."""
    store = stores.open()
    store.log.use_calls()
    bodies = [bytes([number]) * 18_000 for number in range(6)]
    for body in bodies[:3]:
        stores.append(store, body)
    before = (store.max_offset, store.log.map_start, store.tail("T", 0))

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    match lacking:
        case "descriptor":
            monkeypatch.setattr(MappedFile, "begin_writing", fail)
        case "mapping":
            monkeypatch.setattr(MappedFile, "map", property(fail))
        case _:
            monkeypatch.setattr(type(store.log), "write_to", fail)
    for _ in range(2):
        with pytest.raises(StoreRefused) as refused:
            stores.append(store, bodies[3])
        assert refused.value.status is PutStatus.SERVICE_NOT_AVAILABLE
    monkeypatch.undo()

    assert (store.max_offset, store.log.map_start, store.tail("T", 0)) == before
    assert store.stopped is None
    for body in bodies[3:]:
        stores.append(store, body)
    found = store.get("T", 0, 0, 32, 1 << 20)
    records = b"".join(found.parts)
    rest = store.get("T", 0, found.next_queue_offset, 32, 1 << 20)
    assert _bodies(records + b"".join(rest.parts)) == bodies
    assert [file.path.stat().st_size for file in store.log.files.files] == [65_536, 65_536]


def test_a_closed_store_has_no_file_open(stores: Stores) -> None:
    """Nor does one that lets go of its folder without an order."""
    store = stores.open()
    stores.append(store)
    assert _open_files(stores.root / "commitlog") != []

    store.abandon()

    assert _open_files(stores.root / "commitlog") == []


def test_no_descriptor_of_the_log_is_kept_but_the_last(stores: Stores) -> None:
    """The file that is written is open; those before it are not, nor is it when the log follows a master."""
    store = stores.open()
    for _ in range(8):
        stores.append(store, b"x" * 18_000)

    assert _open_files(stores.root / "commitlog") == [store.log.files.files[-1].path]

    store.log.begin_at(store.log.max_offset, store.log.store_timestamp)

    assert _open_files(stores.root / "commitlog") == []


def _bodies(data: bytes) -> list[bytes]:
    found, position = [], 0
    while position < len(data):
        record = decode_record(data, position)
        found.append(record.body)
        position += record.size
    return found


def _open_files(folder: Path) -> list[Path]:
    """Files that this process has open to write only: a mapping has a descriptor of its own, for both."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            path = entry.readlink()
            if (
                path.parent == folder
                and fcntl.fcntl(int(entry.name), fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
            ):
                found.append(path)
    return found


def test_a_file_ends_with_a_blank_record(stores: Stores) -> None:
    """A record that leaves exactly eight bytes still fits; the next one begins the next file."""
    store = stores.open(max_message_size=40_000)
    first = stores.append(store, b"x" * 20_000)
    stores.append(store, b"x" * 20_000)
    overhead = first.size - 20_000
    stores.append(store, b"x" * (65_536 - 8 - store.max_offset - overhead))
    assert store.max_offset == 65_536 - 8

    following = stores.append(store, b"next")

    assert following.offset == 65_536
    assert bytes(store.read(65_536 - 8, 8)) == BLANK.pack(8, MAGIC_BLANK)
    assert sorted(path.name for path in (stores.root / "commitlog").iterdir())[:2] == [
        "00000000000000000000",
        "00000000000000065536",
    ]


def test_a_record_that_leaves_seven_bytes_goes_to_the_next_file(stores: Stores) -> None:
    """The blank record tells how many bytes of the file are free."""
    store = stores.open(max_message_size=40_000)
    overhead = stores.append(store, b"x" * 20_000).size - 20_000
    stores.append(store, b"x" * 20_000)
    free = 65_536 - store.max_offset

    following = stores.append(store, b"x" * (free - 7 - overhead))

    assert following.offset == 65_536
    assert bytes(store.read(65_536 - free, 8)) == BLANK.pack(free, MAGIC_BLANK)


def test_a_batch_is_never_in_two_files(stores: Stores) -> None:
    """A batch that does not fit into the rest of a file goes to the next one as a whole."""
    store = stores.open()
    for _ in range(3):
        stores.append(store, b"x" * 20_000)
    items = [BatchItem(0, b"y" * 3_000, b"") for _ in range(5)]

    batch = store.append_batch("T", 0, items, sys_flag=0, born_timestamp=0, born_host=bytes(8))

    assert batch.offsets[0] == 65_536


def test_store_times_never_decrease(stores: Stores) -> None:
    """When the clock is set back, the log goes on with the last time."""
    store = stores.open()
    first = stores.append(store)
    stores.clock.jump(-60_000)

    second = stores.append(store)
    batch = store.append_batch(
        "T", 0, [BatchItem(0, b"", b"")], sys_flag=0, born_timestamp=0, born_host=bytes(8)
    )
    stores.clock.jump(60_001)

    assert first.store_timestamp == second.store_timestamp == batch.store_timestamp
    assert stores.append(store).store_timestamp == first.store_timestamp + 1


def test_tags_codes(stores: Stores) -> None:
    """The unit has the hash of the tags, what the caller says, or in the delay topic the time of delivery."""
    store = stores.open()
    stores.append(store, properties=b"A\x01TAGS\x02TAGS\x01TagA\x02")
    stores.append(store, properties=b"XTAGS\x01TagB\x02")
    stores.append(store, tags_code=42)
    stores.append(store, properties=b"DELAY\x013\x02", topic=SCHEDULE_TOPIC)
    stores.append(store, properties=b"DELAY\x0199\x02", topic=SCHEDULE_TOPIC)

    codes = [store.unit("T", 0, number)[2] for number in range(3)]

    assert codes == [tags_code("TagA"), 0, 42]
    assert store.unit(SCHEDULE_TOPIC, 0, 0)[2] == stores.clock.now_ms() + 10_000
    assert store.unit(SCHEDULE_TOPIC, 0, 1)[2] == stores.clock.now_ms() + 7_200_000


def test_prepared_messages_have_no_unit(stores: Stores) -> None:
    """Half messages of old brokers are in the log only, with queue offset 0."""
    store = stores.open()
    stores.append(store)
    stores.append(store, sys_flag=0x4)
    stores.append(store, sys_flag=0xC)

    committed = stores.append(store, sys_flag=0x8)

    assert committed.queue_offset == 1
    assert store.queue_max("T", 0) == 2


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ({"body": bytes(20_001)}, PutStatus.MESSAGE_ILLEGAL),
        ({"properties": bytes(32_768)}, PutStatus.PROPERTIES_SIZE_EXCEEDED),
        ({"topic": ""}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "../x"}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": ".."}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "t" * 256}, PutStatus.MESSAGE_ILLEGAL),
        ({"queue_id": -1}, PutStatus.MESSAGE_ILLEGAL),
    ],
)
def test_what_cannot_be_stored_is_refused(
    stores: Stores, arguments: dict[str, Any], status: PutStatus
) -> None:
    """Nothing changes, and the reason is told."""
    store = stores.open()

    with pytest.raises(StoreRefused) as refused:
        stores.append(store, **arguments)

    assert refused.value.status is status
    assert store.max_offset == 0


def test_batches_that_cannot_be_stored(stores: Stores) -> None:
    """An empty batch, a too large one, and too long properties are refused as a whole."""
    store = stores.open()
    for items in (
        [],
        [BatchItem(0, bytes(20_000), b"")] * 5,
        [BatchItem(0, b"", b""), BatchItem(0, b"", bytes(32_768))],
    ):
        with pytest.raises(StoreRefused):
            store.append_batch("T", 0, items, sys_flag=0, born_timestamp=0, born_host=bytes(8))
    assert store.max_offset == 0


def test_a_store_that_is_not_open_refuses(stores: Stores) -> None:
    """Before load nothing is taken."""
    with pytest.raises(StoreRefused, match="not loaded"):
        stores.append(stores.make())


def test_host_bits_of_the_caller_do_not_count(stores: Stores) -> None:
    """A message stored again, maybe under another address of the broker, gets the bits of its hosts."""
    store = stores.open()
    wrong = SysFlag.STORE_HOST_V6 | SysFlag.BORN_HOST_V6

    offset = stores.append(store, b"again", b"TAGS\x01a\x02", sys_flag=wrong | 1).offset

    record = decode_record(store.read(offset) or b"", verify_crc=True)
    assert (record.sys_flag, record.body, record.topic) == (1, b"again", "T")


def test_the_index_catches_up_behind_deleted_files(stores: Stores) -> None:
    """Messages whose files are gone meanwhile do not keep the later ones out of the index."""
    store = stores.open()
    first = stores.append(store, b"x" * 1000, b"KEYS\x01first\x02").offset
    store.dispatcher.index_missing_from = first
    while len(store.log.files.files) < 2:
        last = stores.append(store, b"x" * 10_000, b"KEYS\x01last\x02").offset
    store.log.files.remove_first(1)

    assert store.catch_up_index()

    assert [decode_record(raw).offset for raw in store.query("T", "last", 9, 0, 2**62).records] == [last]


class FullDisk:
    """`posix_fallocate` on a disk without a free block."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        real = os.posix_fallocate

        def fallocate(descriptor: int, offset: int, length: int) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(descriptor, offset, length)

        monkeypatch.setattr(os, "posix_fallocate", fallocate)


def test_a_full_disk_refuses_and_recovers(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without blocks for the next file, sends are refused as unavailable; with space again they are taken."""
    disk = FullDisk(monkeypatch)
    store = stores.open(message_index_enable=False)
    for _ in range(3):
        stores.append(store, b"x" * 20_000)
    store.log.files.forget_prepared()
    end, names = store.max_offset, sorted(os.listdir(stores.root / "commitlog"))

    disk.full = True
    for _ in range(2):
        with pytest.raises(StoreRefused, match="No space left") as refused:
            stores.append(store, b"x" * 20_000)
        assert refused.value.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.max_offset == end
    assert sorted(os.listdir(stores.root / "commitlog")) == names
    stores.append(store, b"small", topic="T")

    disk.full = False
    assert stores.append(store, b"x" * 20_000).offset == 65_536


def test_a_full_disk_stops_new_queues(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message whose queue has no room is not in the log either."""
    disk = FullDisk(monkeypatch)
    store = stores.open()
    stores.append(store)
    end = store.max_offset

    disk.full = True
    with pytest.raises(StoreRefused, match="consume queue"):
        stores.append(store, topic="new")
    disk.full = False

    assert store.max_offset == end
    assert stores.append(store, topic="new").queue_offset == 0


def test_an_index_without_room_catches_up(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are stored though the index cannot take them; it gets them when there is room again."""
    disk = FullDisk(monkeypatch)
    store = stores.open()
    stores.append(store)
    for number in range(3):
        disk.full = True
        stores.append(store, properties=b"KEYS\x01k%d\x02" % number)
        assert store.query("T", f"k{number}", 8, 0, 2**62).records == []
        assert not store.catch_up_index()
        disk.full = False
        if number:
            break

    assert store.catch_up_index()

    for number in range(2):
        assert len(store.query("T", f"k{number}", 8, 0, 2**62).records) == 1
