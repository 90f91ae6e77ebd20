"""The native core chooses messages as Python's filters do, or leaves them to Python."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.filters import FilterError, SqlFilter, compile_filter
from brokerset_formats import native
from brokerset_formats.hosts import Host
from brokerset_formats.queue_units import UNIT
from brokerset_formats.records import Record, encode_record, magic_for

core = native.core
pytestmark = pytest.mark.skipif(
    core is None or not hasattr(core, "select_units"), reason="there is no native core that filters"
)

START = 1 << 30
HOSTS = (Host(bytes([10, 0, 0, 1]), 1), Host(bytes(15) + b"\1", 1))
ATOMS = [
    "a = 5", "a < 5", "a <= 5", "a > 5", "a >= 5", "a BETWEEN 5 AND 6", "a BETWEEN 4 AND 5",
    "a <> 5", "5 = a", "a = '5'", "'x' = b", "b <> 'x'", "a > 4", "4 > a", "a >= 5.5", "a <= -1",
    "a < 2147483648", "a = -5", "a = 5.0", "a BETWEEN 1 AND 7", "a NOT BETWEEN 2.5 AND 5", "b IN ('x', 'yy')",
    "b NOT IN ('x')", "b CONTAINS 'y'", "b NOT STARTSWITH 'x'", "b ENDSWITH 'y'", "b CONTAINS ''",
    "a IS NULL",
    "never IS NOT NULL", "never = 1", "TRUE", "FALSE", "b", "a = b", "a > b", "b = '组'", "a = TRUE",
]  # fmt: skip
CONDITIONS = st.recursive(
    st.sampled_from(ATOMS),
    lambda below: st.one_of(
        st.tuples(below, st.sampled_from(["AND", "OR"]), below).map(lambda three: f"({' '.join(three)})"),
        below.map(lambda one: f"(NOT ({one}))"),
    ),
    max_leaves=8,
)
TEXTS = ["5", "0", "7", "-3", "+5", " 5", "5.0", "123456789", "1234567890", "x", "yy", "xy", "", "组", "true"]
VALUES = st.sampled_from(TEXTS)
PROPERTIES = st.lists(st.tuples(st.sampled_from(["a", "b", "ab", "never "]), VALUES), max_size=5).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
) | st.binary(max_size=40)


def record(properties: bytes, *, v6: bool = False, topic: str = "T") -> bytes:
    host = HOSTS[v6]
    return encode_record(
        Record(
            queue_id=0, queue_offset=0, offset=0, born_timestamp=0, born_host=host, store_timestamp=0,
            store_host=host, body=b"b" * 7, topic=topic, properties=properties,
            sys_flag=0x30 if v6 else 0, magic=magic_for(topic.encode()),
        )
    )  # fmt: skip


@given(text=CONDITIONS, properties=PROPERTIES, v6=st.booleans(), topic=st.sampled_from(["T", "t" * 200]))
def test_an_expression_matches_the_same_messages_in_both(
    text: str, properties: bytes, v6: bool, topic: str
) -> None:
    """Where the core examines a message at all; of what it leaves nothing is said."""
    assert core is not None
    try:
        compiled = compile_filter(text)
    except FilterError:
        return
    if compiled.program is None:
        return
    data = record(properties, v6=v6, topic=topic)
    unit = memoryview(UNIT.pack(START, len(data), 0))

    found = core.select_units(
        unit, 0, 1, memoryview(data), START, START + len(data), None, compiled.program, 32, 1 << 20, 1 << 20
    )

    assert found is not None
    examined, messages, size, full, runs = found
    assert not full
    if examined:
        assert bool(messages) is compiled.matches(properties)
    assert (size, runs) == ((len(data), [(START, START + len(data))]) if messages else (0, []))


def examined(compiled: SqlFilter, data: bytes) -> tuple[int, int]:
    """How many of this one message were examined, and how many matched."""
    assert core is not None
    found = core.select_units(
        memoryview(UNIT.pack(START, len(data), 0)), 0, 1, memoryview(data), START, START + len(data), None,
        compiled.program, 32, 1 << 20, 1 << 20,
    )  # fmt: skip
    assert found is not None
    return found[0], found[1]


@pytest.mark.parametrize("text", ATOMS)
def test_each_comparison_is_the_same_with_every_value(text: str) -> None:
    """What random expressions rarely meet: both sides of each limit, and each kind of text."""
    compiled = compile_filter(text)
    if compiled.program is None:
        return
    for a in (None, *TEXTS):
        for b in (None, *TEXTS):
            pairs = [f"{name}\x01{value}\x02" for name, value in (("a", a), ("b", b)) if value is not None]
            properties = "".join(pairs).encode()
            count, matched = examined(compiled, record(properties))
            if count:
                assert bool(matched) is compiled.matches(properties), (a, b)


def test_what_most_expressions_consist_of_has_a_program_and_is_examined() -> None:
    """Otherwise the test above would compare nothing."""
    assert core is not None
    data = record(b"a\x015\x02b\x01xy\x02")
    unit = memoryview(UNIT.pack(START, len(data), 0))
    examined = []
    for text in ATOMS:
        program = compile_filter(text).program
        if program is not None:
            found = core.select_units(
                unit, 0, 1, memoryview(data), START, START + len(data), None, program, 32, 1 << 20, 1 << 20
            )
            assert found is not None
            examined.append(found[0])

    assert len(examined) >= len(ATOMS) - 6
    assert sum(examined) >= len(examined) - 2


@given(code=st.binary(max_size=60))
def test_bytes_that_are_no_program_are_refused(code: bytes) -> None:
    """Nothing but `ValueError` comes out of it."""
    assert core is not None
    try:
        program = core.FilterProgram(code)
    except ValueError:
        return
    data = record(b"a\x015\x02")
    core.select_units(
        memoryview(UNIT.pack(START, len(data), 0)), 0, 1, memoryview(data), START, START + len(data), None,
        program, 32, 1 << 20, 1 << 20,
    )  # fmt: skip


@given(seed=st.integers(0, 1 << 32), units=st.binary(max_size=80), end=st.integers(-5, 200))
def test_damaged_units_and_records_are_left_to_python(seed: int, units: bytes, end: int) -> None:
    """Nothing outside of the file is read, and nothing is found in what is no whole record."""
    assert core is not None
    program = compile_filter("a IS NULL OR a = 5").program
    log = memoryview(random.Random(seed).randbytes(150))

    found = core.select_units(
        memoryview(units), 0, len(units) // UNIT.size, log, 0, end, None, program, 32, 1 << 20, 1 << 20
    )

    assert found is not None
    assert found[2] <= max(0, end)
