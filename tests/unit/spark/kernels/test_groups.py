"""Kernels over groups of records and over whole records: the compiled ones do what the pure ones do."""

from __future__ import annotations

import numpy as np
import pytest

from brokerset_formats.hosts import Host
from brokerset_formats.records import Record, encode_record, magic_for
from brokerset_rig.both_kernels import COMPILED, PURE, EitherKernels
from brokerset_spark.kernels import GROUP_SUMS, Texts
from brokerset_spark.kernels.contract import Bytes, Heads, Int32s, Int64s

pure, compiled = PURE, COMPILED

HOSTS = (Host.from_text("10.1.2.3", 10911), Host.from_text("fe80::1", 10911))


class Given:
    """Records of many queues, some with a half message, some with a CRC over them; gaps between them."""

    def __init__(self, count: int, topics: list[str], seed: int = 1) -> None:
        dice = np.random.default_rng(seed)
        data, starts, sizes, half, crcs = bytearray(b"gap"), [], [], 0, 0
        for number in range(count):
            named, crc = bool(dice.integers(2)), bool(dice.integers(2))
            topic = topics[int(dice.integers(len(topics)))]
            raw = encode_record(
                Record(
                    magic=magic_for(topic.encode()),
                    topic=topic,
                    queue_id=int(dice.integers(-1, 3)),
                    queue_offset=int(dice.integers(2**40)),
                    offset=number * 1_000,
                    born_timestamp=5,
                    store_timestamp=6,
                    born_host=HOSTS[int(dice.integers(2))],
                    store_host=HOSTS[int(dice.integers(2))],
                    prepared_transaction_offset=number + 1 if named else 0,
                    body=dice.bytes(int(dice.integers(200))),
                    properties=b"x\x01y\x02" * int(dice.integers(3)),
                ),
                property_crc=crc,
            )
            half, crcs = half + named, crcs + crc
            starts.append(len(data))
            sizes.append(len(raw))
            data += raw + bytes(int(dice.integers(50)))
        self.data: Bytes = np.frombuffer(bytes(data), np.uint8)
        self.starts: Int64s = np.array(starts, np.int64)
        self.sizes: Int32s = np.array(sizes, np.int32)
        self.half, self.crcs = half, crcs
        self.heads: Heads = pure.heads(self.data, self.starts)


@pytest.mark.parametrize("seed", range(5))
def test_packed_records_are_the_same(seed: int) -> None:
    """The same bytes and counts; what a migration changes is gone from them, and nothing else."""
    given = Given(200, ["a", "orders", "long-" * 30], seed)
    total = int(given.sizes.sum())
    one, other = np.zeros(total, np.uint8), np.zeros(total, np.uint8)

    assert pure.pack(given.data, given.starts, given.sizes, one, 7) == (total, given.half, given.crcs)
    assert compiled.pack(given.data, given.starts, given.sizes, other, 7) == (total, given.half, given.crcs)

    assert one.tobytes() == other.tobytes()
    position = 0
    for start, size in zip(given.starts.tolist(), given.sizes.tolist(), strict=True):
        before, after = given.data[start : start + size], one[position : position + size]
        changed = np.flatnonzero(before != after)
        assert after[28:36].tobytes() == (7 + position).to_bytes(8, "big")
        last = size - 11 if before[-1] == 2 and b"__CRC32#" in before.tobytes() else size
        assert all(28 <= place < 36 or 76 <= place < 108 or place >= last for place in changed.tolist())
        position += size


@pytest.mark.parametrize("seed", range(3))
def test_records_with_a_crc_over_them_are_found(seed: int) -> None:
    """Those and no others, also where a record is shorter than the mark."""
    given = Given(100, ["a"], seed)

    found = pure.find_crcs(given.data, given.starts, given.sizes)

    assert len(found) == given.crcs
    assert found.tolist() == compiled.find_crcs(given.data, given.starts, given.sizes).tolist()


@pytest.mark.parametrize(("start", "size"), [(-1, 100), (0, -5), (0, 10**6), (2**40, 100), (0, 20)])
def test_no_kernel_leaves_its_buffers(kernels: EitherKernels, start: int, size: int) -> None:
    """Positions and sizes that cannot be are refused."""
    data, out = np.zeros(1_000, np.uint8), np.zeros(1_000, np.uint8)
    starts, sizes = np.array([start], np.int64), np.array([size], np.int32)

    with pytest.raises(ValueError, match="record 0 at position"):
        kernels.pack(data, starts, sizes, out, 0)
    if size == 20:
        assert len(kernels.find_crcs(data, starts, sizes)) == 0
    else:
        with pytest.raises(ValueError, match="record 0 at position"):
            kernels.find_crcs(data, starts, sizes)
    assert not out.any()


def test_groups_and_sums_are_the_same() -> None:
    """Over several chunks, with more queues and longer names than there is room for at first."""
    topics = [f"topic-{number}" * (1 + number % 9) for number in range(150)]
    one, other = pure.new_groups(), compiled.new_groups()
    sums = [np.zeros((1_000, GROUP_SUMS), np.int64) for _ in range(2)]
    both: list[EitherKernels] = [pure, compiled]
    for seed in range(4):
        given = Given(300, topics[: 40 * (seed + 1)], seed)
        heads, wanted = given.heads, np.arange(300) % 3 != 0
        texts = Texts(heads.topic, heads.topic_size)
        numbers = one.number(given.data, texts, heads.queue_id)
        assert other.number(given.data, texts, heads.queue_id).tolist() == numbers.tolist()
        names = [
            given.data[start : start + size].tobytes()
            for start, size in zip(heads.topic.tolist(), heads.topic_size.tolist(), strict=True)
        ]
        for groups in (one, other):
            found = [groups.group(each) for each in numbers.tolist()]
            assert found == list(zip(names, heads.queue_id.tolist(), strict=True))
        for kernels, into in zip(both, sums, strict=True):
            assert kernels.sum_groups(numbers, wanted, given.sizes, heads, into) == 200

    assert len(one) == len(other) > 300
    assert sums[0].tolist() == sums[1].tolist()
    assert sums[0][:, 0].sum() == 800


def test_a_name_outside_of_the_data_is_refused(kernels: EitherKernels) -> None:
    """Instead of bytes of another process's life."""
    data, queues = np.zeros(3, np.uint8), np.zeros(3, np.int32)
    for topic, size in ((-1, 1), (len(data), 1), (0, 2**31 - 1)):
        texts = Texts(np.array([topic] * 3, np.int64), np.array([size] * 3, np.int32))
        with pytest.raises(ValueError, match="text 0 does not fit"):
            kernels.new_groups().number(data, texts, queues)
