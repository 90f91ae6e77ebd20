"""Random stores through random migrations, judged by a reader that shares no code with the job."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerset_formats.hosts import Host
from brokerset_formats.records import BLANK, MAGIC_BLANK, Record, SysFlag, encode_record, magic_for
from brokerset_rig.store_reading import Stored, queue_problems, read_queue, read_store
from brokerset_spark.jobs.migrate import MigrateOptions, migrate
from brokerset_spark.jobs.running import LocalRunner

FILE_SIZE = 2_048
HOSTS = (Host.from_text("10.1.2.3", 10911), Host.from_text("fe80::1", 10911))
TOPICS = ("a", "orders", "größe", "long-" * 30)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00\x01\x02"), min_size=1, max_size=8)


@st.composite
def messages(draw: st.DrawFn) -> list[dict[str, object]]:
    """Messages without offsets: what they are about, in the order of the log."""
    found = []
    for _ in range(draw(st.integers(1, 40))):
        properties = draw(
            st.dictionaries(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "x"]), TEXT, max_size=3)
        )
        found.append(
            {
                "topic": draw(st.sampled_from(TOPICS)),
                "queue_id": draw(st.integers(0, 2)),
                "flag": draw(st.integers(-(2**31), 2**31 - 1)),
                "sys_flag": draw(st.sampled_from([0, SysFlag.COMPRESSED, SysFlag.TRANSACTION_COMMIT])),
                "born_host": draw(st.sampled_from(HOSTS)),
                "store_host": draw(st.sampled_from(HOSTS)),
                "body": draw(st.binary(max_size=300)),
                "properties": "".join(f"{k}\x01{v}\x02" for k, v in properties.items()).encode(),
                "names_a_half": draw(st.booleans()),
                "crc": draw(st.booleans()),
                "later_ms": draw(st.integers(0, 2_000)),
            }
        )
    return found


def build(root: Path, given: list[dict[str, object]], first_file: int, first_queue_offset: int) -> None:
    """A commit log with these messages, as a broker would have written it; no queues, no index."""
    folder = root / "commitlog"
    folder.mkdir(parents=True)
    base, data, stored = first_file * FILE_SIZE, bytearray(), 1_700_000_000_000
    numbers: dict[tuple[object, object], int] = defaultdict(lambda: first_queue_offset)
    last = base
    for message in given:
        each = dict(message)
        stored += each.pop("later_ms")  # type: ignore[operator]
        names_a_half, crc = each.pop("names_a_half"), each.pop("crc")
        queue = (each["topic"], each["queue_id"])

        def encoded(offset: int) -> bytes:
            record = Record(
                magic=magic_for(str(each["topic"]).encode()),  # noqa: B023
                offset=offset,
                queue_offset=numbers[queue],  # noqa: B023
                born_timestamp=5,
                store_timestamp=stored,  # noqa: B023
                prepared_transaction_offset=last if names_a_half else 0,  # noqa: B023
                **each,  # type: ignore[arg-type]  # noqa: B023
            )
            return encode_record(record, property_crc=bool(crc))  # noqa: B023

        raw = encoded(base + len(data))
        if len(data) + len(raw) + 8 > FILE_SIZE:
            data += BLANK.pack(FILE_SIZE - len(data), MAGIC_BLANK)
            (folder / f"{base:020d}").write_bytes(data.ljust(FILE_SIZE, b"\xab"))  # filler means nothing
            base += FILE_SIZE
            data = bytearray()
            raw = encoded(base)
        last = base + len(data)
        data += raw
        numbers[queue] += 1
    (folder / f"{base:020d}").write_bytes(data.ljust(FILE_SIZE, b"\0"))


def run(source: Path, target: Path, options: MigrateOptions) -> list[Stored]:
    migrate(LocalRunner(), str(source), str(target), options)
    return read_store(target)


def same(one: Stored, other: Stored) -> bool:
    """Equal but for offsets, and for the CRC that covers them, which must be right."""
    if b"__CRC32#" not in one.record.properties:
        return one.content == other.content
    raw = encode_record(other.record)
    plain = Record(
        **{name: getattr(other.record, name) for name in FIELDS}
        | {"properties": other.record.properties[:-20]}
    )
    return one.content[:-11] == other.content[:-11] and encode_record(plain, property_crc=True) == raw


FIELDS = tuple(Record.__dataclass_fields__)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    given_messages=messages(),
    first_file=st.sampled_from([0, 3]),
    first_queue_offset=st.sampled_from([0, 5, 1_000]),
    file_size=st.integers(1_100, 5_000),
    cut=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    dropped=st.sets(st.sampled_from(TOPICS), max_size=2),
)
def test_what_is_chosen_arrives_and_nothing_else(
    given_messages: list[dict[str, object]],
    first_file: int,
    first_queue_offset: int,
    file_size: int,
    cut: tuple[float, float],
    dropped: set[str],
) -> None:
    """CommitLog → DLedger → CommitLog: every chosen record once, in order, equal; queues dense; halves found.

    A cut and dropped topics in the first step, other file sizes in both.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        build(root / "source", given_messages, first_file, first_queue_offset)
        before = read_store(root / "source")
        assert len(before) == len(given_messages)
        ends = sorted(int(part * len(before)) for part in cut)
        start = before[ends[0]].offset if ends[0] < len(before) else 0
        until = before[ends[1]].offset + 1 if ends[0] < ends[1] < len(before) else None
        chosen = [
            each
            for each in before
            if each.record.topic not in dropped
            and start <= each.offset
            and (until is None or each.offset < until)
        ]
        if not chosen:
            return
        selecting = MigrateOptions(
            to="dledger", rewrite=True, file_size=file_size, from_offset=start, until_offset=until,
            drop_topics=tuple(dropped), queue_file_size=200, index_slots=8, index_units=16,
        )  # fmt: skip

        ledger = run(root / "source", root / "ledger", selecting)
        back = run(
            root / "ledger", root / "back", MigrateOptions(to="commitlog", index_slots=8, index_units=16)
        )

        for after, target in ((ledger, root / "ledger"), (back, root / "back")):
            assert len(after) == len(chosen)
            assert all(same(one, other) for one, other in zip(chosen, after, strict=True))
            assert queue_problems(target) == []
            moved = {one.offset: other.offset for one, other in zip(chosen, after, strict=True)}
            halves = [(one.record.prepared_transaction_offset, other.record.prepared_transaction_offset)
                      for one, other in zip(chosen, after, strict=True)]  # fmt: skip
            assert all(new == (moved.get(old, 0) if old else 0) for old, new in halves)
        last = {(str(each.record.topic), each.record.queue_id): each.record.queue_offset for each in chosen}
        for (topic, queue_id), number in last.items():
            assert read_queue(root / "back" / "consumequeue" / topic / str(queue_id))[0] == number + 1
