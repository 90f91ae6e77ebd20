"""Reading with a filter of properties, against a list of what was stored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerset_broker.filters import compile_filter
from brokerset_broker.store import GetStatus
from brokerset_formats import native
from brokerset_formats.queue_units import tags_code
from brokerset_formats.records import decode_record

Stores = Any  # the class of conftest.py, which cannot be imported by name
COUNT = 60
TAGS = "ABC"
PROPERTIES_MAX = 1 << 20


class Chosen:
    """Matches messages by their number; notes what it was shown."""

    program = None

    def __init__(self, numbers: frozenset[int], units_max: int, properties_max: int = PROPERTIES_MAX) -> None:
        self.numbers = numbers
        self.units_max = self.native_units_max = units_max
        self.properties_max = self.native_properties_max = properties_max
        self.shown: list[int] = []

    def matches(self, properties: bytes) -> bool:
        name, _, number = properties.split(b"\x02")[1].partition(b"\x01")
        assert name == b"n"
        self.shown.append(int(number))
        return int(number) in self.numbers


@pytest.fixture
def store(stores: Stores) -> Any:
    """One queue over several files, of records whose number is in their properties."""
    store = stores.open()
    for number in range(COUNT):
        tags, x = TAGS[number % 3], b"none" if number % 8 == 5 else b"%d" % (number % 7)
        stores.append(
            store, b"%d" % number, b"TAGS\x01%s\x02n\x01%d\x02x\x01%s\x02" % (tags.encode(), number, x),
            tags_code=tags_code(tags),
        )  # fmt: skip
    return store


@given(
    wanted=st.frozensets(st.integers(0, COUNT - 1)),
    units_max=st.integers(1, COUNT + 5),
    messages=st.integers(1, 40),
    size=st.sampled_from([1, 300, 1_000, 1 << 20]),
    tag=st.sampled_from([None, "A", "B"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
def test_a_consumer_gets_each_message_that_matches_once_and_each_read_is_bounded(
    store: Any, wanted: frozenset[int], units_max: int, messages: int, size: int, tag: str | None
) -> None:
    """Tags decide first, from the queue alone; then properties, of `units_max` messages at most."""
    codes = None if tag is None else frozenset({tags_code(tag)})
    tagged = [number for number in range(COUNT) if tag is None or TAGS[number % 3] == tag]
    got: list[int] = []
    queue_offset = 0
    while True:
        chosen = Chosen(wanted, units_max)
        result = store.get("T", 0, queue_offset, messages, size, codes, chosen)
        if result.status is GetStatus.OFFSET_OVERFLOW_ONE:
            break
        passed = range(queue_offset, result.next_queue_offset)
        found = [number for number in passed if number in tagged and number in wanted]
        data = b"".join(result.parts)
        assert result.status is (GetStatus.FOUND if found else GetStatus.NO_MATCHED_MESSAGE)
        assert 0 < len(passed) <= units_max
        assert len(found) == result.message_count <= messages
        assert len(data) == result.size
        assert len(found) == 1 or result.size <= size
        assert set(tagged).intersection(passed) <= set(chosen.shown) <= set(tagged)
        position = 0
        for number in found:
            record = decode_record(data, position, verify_crc=True)
            assert record.body == b"%d" % number
            position += record.size
        got += found
        queue_offset = result.next_queue_offset

    assert got == [number for number in tagged if number in wanted]


def test_long_properties_end_a_read(store: Any) -> None:
    """The message with the last byte that may be examined is the last one, whether it matches or not."""
    size = len(b"TAGS\x01A\x02n\x010\x02x\x010\x02")
    chosen = Chosen(frozenset(), COUNT, properties_max=2 * size)

    result = store.get("T", 0, 0, COUNT, 1 << 20, None, chosen)

    assert (result.status, result.next_queue_offset) == (GetStatus.NO_MATCHED_MESSAGE, 3)
    assert chosen.shown == [0, 1, 2]


@pytest.mark.skipif(native.core is None, reason="there is no native core")
def test_long_properties_end_a_read_of_the_native_core(store: Any) -> None:
    """As they end that of Python; what comes behind them is for the next read."""
    sql = Sql("n > 1000", COUNT)
    sql.native_properties_max = 2 * len(b"TAGS\x01A\x02n\x010\x02x\x010\x02")

    result = store.get("T", 0, 0, COUNT, 1 << 20, None, sql)

    assert (result.status, result.next_queue_offset) == (GetStatus.NO_MATCHED_MESSAGE, 3)


class Sql:
    """An expression, examined by the native core where there is one."""

    def __init__(self, text: str, units_max: int) -> None:
        self._compiled = compile_filter(text)
        self.matches = self._compiled.matches
        self.units_max = units_max
        self.native_units_max = 3 * units_max
        self.properties_max = self.native_properties_max = PROPERTIES_MAX
        self.program = self._compiled.program


@pytest.mark.skipif(native.core is None, reason="there is no native core")
@given(
    text=st.sampled_from(
        ["n > 20", "n = 7 OR n BETWEEN 30 AND 40", "n > 20 AND x > 3", "TAGS = 'A'", "n = x"]
    ),
    units_max=st.integers(1, 30),
    messages=st.integers(1, 40),
    size=st.sampled_from([1, 300, 1_000, 1 << 20]),
    tag=st.sampled_from([None, "A", "B"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
def test_the_native_core_finds_what_python_finds(
    store: Any, text: str, units_max: int, messages: int, size: int, tag: str | None
) -> None:
    """Over the ends of files, and past messages that only Python can examine (`x` is no number in some)."""
    codes = None if tag is None else frozenset({tags_code(tag)})
    sql = Sql(text, units_max)

    def read_all() -> tuple[list[bytes], int]:
        records, reads, queue_offset = b"", 0, 0
        while True:
            result = store.get("T", 0, queue_offset, messages, size, codes, sql)
            if result.status is GetStatus.OFFSET_OVERFLOW_ONE:
                return [records], reads
            assert (result.status is GetStatus.FOUND) is bool(result.message_count)
            assert result.message_count <= messages
            data = b"".join(result.parts)
            assert len(data) == result.size
            assert result.message_count == 1 or result.size <= size
            assert queue_offset < result.next_queue_offset <= queue_offset + 4 * units_max
            records += data
            reads += 1
            queue_offset = result.next_queue_offset

    found, native_reads = read_all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "core", None)
        patch.setattr(sql, "program", None)
        expected, reads = read_all()

    assert found == expected
    assert native_reads <= reads


@pytest.mark.skipif(native.core is None, reason="there is no native core")
@given(
    tags=st.sets(st.sampled_from("ABCD"), min_size=1, max_size=2),
    queue_offset=st.integers(0, COUNT - 1),
    messages=st.integers(1, 40),
    size=st.sampled_from([1, 300, 1_000, 1 << 20]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
def test_the_native_core_finds_the_same_tags(
    store: Any, tags: set[str], queue_offset: int, messages: int, size: int
) -> None:
    """The whole answer is the same."""
    codes = frozenset(map(tags_code, tags))

    def read() -> tuple[Any, ...]:
        result = store.get("T", 0, queue_offset, messages, size, codes)
        return (
            result.status, result.next_queue_offset, result.message_count, result.size, b"".join(result.parts)
        )  # fmt: skip

    found = read()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "core", None)
        expected = read()

    assert found == expected


@pytest.mark.parametrize("others", [[2**40], [-(2**31) - 1], range(5_000)], ids=["large", "small", "many"])
def test_codes_that_a_client_made_up_are_read_past(store: Any, others: list[int]) -> None:
    """They are no hashes, or too many for the native core to search them one by one; Python examines them."""
    own = {tags_code("A")}
    expected = store.get("T", 0, 0, COUNT, 1 << 20, frozenset(own))

    result = store.get("T", 0, 0, COUNT, 1 << 20, frozenset(own | set(others) - {66, 67}))

    assert (result.message_count, result.next_queue_offset) == (
        expected.message_count,
        expected.next_queue_offset,
    )
    assert result.message_count > 0
