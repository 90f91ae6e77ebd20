"""Random histories of a subject: correct ones are never accused, and each kind of fault is found."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerset_formats.errors import FormatError
from brokerset_formats.order_keys import Range, logical_partition, overlap, partition_ranges
from brokerset_formats.order_stamps import OrderStamp, decode_stamp
from brokerset_protocol.bodies.ordered import PartitionState, SubjectState
from brokerset_rig.order_audit_stores import (
    SUBJECT,
    TIME_MS,
    Producer,
    Sent,
    changed,
    partition_state,
    subject_state,
    write_order_store,
)
from brokerset_spark.jobs.order import OrderOptions, audit_order
from brokerset_spark.jobs.order.stamps import parse_stamps
from brokerset_spark.jobs.report import Report
from brokerset_spark.jobs.running import LocalRunner

BROKERS = ("broker-a", "broker-b")
RANGE = 4_096
KEYS = ("a", "order-1", "uid:42", "订单1001", "\N{GRINNING FACE}", "polygenelubricants", "k-7", "k-8")


@dataclass
class History:
    """A subject as it was sent: what each broker group stored, in the order of its log."""

    logs: dict[str, list[Sent]] = field(default_factory=lambda: {name: [] for name in BROKERS})
    partitions: list[PartitionState] = field(default_factory=list)

    @property
    def state(self) -> SubjectState:
        """What the controllers agreed on."""
        return subject_state(*self.partitions)


@dataclass(frozen=True)
class _Open:
    number: int
    keys: Range
    broker: str
    queue_id: int


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Producers that start again, keys and none, and scaling: generations are sealed one after the other."""
    made, time = History(), TIME_MS
    counts = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    queues: dict[str, int] = defaultdict(int)
    stored: dict[int, int] = defaultdict(int)
    epoch, number, older = 0, 0, list[_Open]()
    producers: dict[str, Producer] = {}
    for generation, count in enumerate(counts):
        taking = []
        for keys in partition_ranges(count):
            broker = BROKERS[number % 2]
            taking.append(_Open(number, keys, broker, queues[broker]))
            queues[broker] += 1
            number += 1
        for _ in range(draw(st.integers(0, 30))):
            name = draw(st.sampled_from(["p-1", "p-2"]))
            if name not in producers or draw(st.integers(0, 9)) == 0:
                epoch += 1
                producers[name] = Producer(name, epoch)
            key = draw(st.sampled_from([*KEYS, None]))
            logical = logical_partition(key) if key is not None else draw(st.integers(0, 1023))
            place = next(each for each in taking if each.keys[0] <= logical < each.keys[1])
            time += draw(st.integers(0, 5))
            message = producers[name].send(place.number, key, queue_id=place.queue_id, time=time)
            if key is None:
                stamp = decode_stamp(message.stamp or "")._replace(logical_partition=logical)
                message = changed([message], 0, stamp=stamp.encode())[0]
            made.logs[place.broker].append(message)
            stored[place.number] += 1
        is_last = generation == len(counts) - 1
        made.partitions += [
            partition_state(
                each.number, each.keys, generation=generation, queue_id=each.queue_id, broker=each.broker,
                sealed_end=None if is_last else stored[each.number],
                inherits=tuple(before.number for before in older if overlap(before.keys, each.keys)),
            )
            for each in taking
        ]  # fmt: skip
        older = taking
    return made


def audit(history: History, *, state: SubjectState | None = None, expired: int = 0) -> Report:
    options = OrderOptions(subjects=(SUBJECT,), states={SUBJECT: state or history.state}, range_bytes=RANGE)
    with tempfile.TemporaryDirectory() as folder:
        for name, messages in history.logs.items():
            write_order_store(
                Path(folder) / name,
                messages,
                broker=name,
                file_size=RANGE,
                expired=min(expired, len(messages)),
            )
        urls = [str(Path(folder) / name) for name in BROKERS]
        return audit_order(LocalRunner(), urls, options)


def faults(report: Report) -> set[str]:
    """Codes of what is wrong; that a store or a subject is empty is not."""
    return {each.code for each in report.findings if each.code != "order-nothing"}


@settings(max_examples=80)
@given(histories(), st.integers(0, 20))
def test_a_correct_history_is_never_accused(history: History, expired: int) -> None:
    """Whatever was sent, however often it was scaled, wherever ranges are cut, and whatever has expired."""
    report = audit(history, expired=expired)

    assert faults(report) == set()
    assert report.exit_code == 0
    kept = sum(max(0, len(log) - expired) for log in history.logs.values())
    assert report.counters["messages"] == kept


@dataclass(frozen=True)
class _Followed:
    """A message that another of its producer, epoch and queue follows."""

    broker: str
    at: int
    following: int


def _followed(history: History) -> list[_Followed]:
    found = []
    for broker, log in history.logs.items():
        last: dict[tuple[int, str, int], int] = {}
        for at, message in enumerate(log):
            stamp = decode_stamp(message.stamp or "")
            stream = message.queue_id, stamp.producer_id, stamp.producer_epoch
            if stream in last:
                found.append(_Followed(broker, last[stream], at))
            last[stream] = at
    return found


@settings(max_examples=120)
@given(histories(), st.data())
def test_each_kind_of_fault_is_found(history: History, data: st.DataObject) -> None:
    """One message that is lost, stored twice, late, without a stamp, or with one that is not its own."""
    places = _followed(history)
    if not places:
        return
    place = data.draw(st.sampled_from(places))
    log, at, following = history.logs[place.broker], place.at, place.following
    stamp = decode_stamp(log[at].stamp or "")
    kind = data.draw(
        st.sampled_from(["lost", "twice", "late", "bare", "unreadable", "elsewhere", "key", "fenced"])
    )
    expected = "order-gap"
    match kind:
        case "lost":
            del log[at]
        case "twice":
            log.insert(following + 1, log[at])
            expected = "order-repeat"
        case "late":
            log.insert(following, log.pop(at))
            expected = "order-disorder"
        case "bare" | "unreadable":
            log[:] = changed(log, at, stamp=None if kind == "bare" else "3:115:p")
            expected = "order-stamp"
        case "elsewhere":
            log[:] = changed(log, following, stamp=stamp._replace(partition_id=99).encode())
            expected = "order-partition"
        case "key":
            other = data.draw(st.sampled_from([each for each in KEYS if each != log[at].key]))
            if logical_partition(other) == stamp.logical_partition:
                return
            log[:] = changed(log, at, key=other)
            expected = "order-key"
        case "fenced":
            newer = OrderStamp(stamp.partition_id, stamp.logical_partition, stamp.producer_id, 10_000, 0)
            log.insert(at + 1, changed([log[at]], 0, stamp=newer.encode())[0])
            expected = "order-fenced"

    report = audit(history)

    assert expected in faults(report), kind
    assert report.exit_code == 1


@settings(max_examples=60)
@given(histories(), st.data())
def test_faults_between_generations_are_found(history: History, data: st.DataObject) -> None:
    """A message behind a sealed end, fewer than one says, and one outside of its partition's range."""
    sealed = [each for each in history.partitions if each.sealed_end]
    if not sealed:
        return
    chosen = data.draw(st.sampled_from(sealed))
    wrong = data.draw(st.sampled_from(["behind", "short", "range"]))
    assert chosen.sealed_end is not None
    keys, end = (chosen.first, chosen.end), chosen.sealed_end
    if wrong == "range":
        mine = [each for each in history.logs[chosen.broker_group] if each.queue_id == chosen.queue_id]
        logical = decode_stamp(mine[0].stamp or "").logical_partition
        keys = (logical + 1, chosen.end) if logical < 1023 else (0, logical)
    else:
        end += -1 if wrong == "behind" else 1
    changed_state = subject_state(
        *(
            partition_state(
                each.partition_id, keys if each is chosen else (each.first, each.end),
                generation=each.generation, queue_id=each.queue_id, broker=each.broker_group,
                sealed_end=end if each is chosen else each.sealed_end, inherits=each.inherits,
            )
            for each in history.partitions
        )
    )  # fmt: skip

    report = audit(history, state=changed_state)

    assert {"behind": "order-seal", "short": "order-seal-short", "range": "order-range"}[wrong] in faults(
        report
    )


STAMPS = st.builds(
    OrderStamp, st.integers(0, 2**63 - 1), st.integers(0, 1023),
    st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True), st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
).map(OrderStamp.encode)  # fmt: skip
PIECES = st.lists(st.sampled_from(["0", "1", "12", ":", "p", "-", "é", "01", "9" * 19, " "]), max_size=12)


@settings(max_examples=300)
@given(st.lists(st.one_of(STAMPS, PIECES.map("".join), st.text(":0123456789p", max_size=20)), max_size=8))
def test_stamps_of_arrays_are_those_of_single_texts(texts: list[str]) -> None:
    """Whatever stands before and behind."""
    raw = [text.encode() for text in texts]
    flat = b"".join(raw)
    found = parse_stamps(np.frombuffer(flat, np.uint8), np.cumsum([0, *map(len, raw)], dtype=np.int32))

    for row, text in enumerate(texts):
        try:
            stamp = decode_stamp(text)
        except FormatError:
            assert not found.readable[row]
            continue
        start, size = int(found.producer.starts[row]), int(found.producer.sizes[row])
        numbers = [int(each[row]) for each in (found.partition, found.logical, found.epoch, found.sequence)]
        producer = flat[start : start + size].decode()
        assert found.readable[row]
        assert stamp == OrderStamp(numbers[0], numbers[1], producer, numbers[2], numbers[3])
