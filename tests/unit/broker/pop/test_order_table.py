"""The file of locks of ordered pops, of which only what has changed is encoded again."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.tables.pop.order_lock import OrderLock, locks_of_file
from brokerset_broker.tables.pop.order_table import FILE_NAME, OrderTable

NAMES = st.sampled_from(["t", "u", "v"])
LOCKS = st.builds(lambda number: OrderLock(None, number, 60_000, (number, number + 2), 1), st.integers(0, 99))
CHANGES = st.one_of(
    st.tuples(st.just("put"), NAMES, st.integers(0, 2), st.none() | LOCKS),
    st.tuples(st.just("forget"), NAMES, st.just(0), st.none()),
    st.tuples(st.just("take over"), NAMES, st.integers(0, 2), LOCKS),
    st.tuples(st.just("give up a write"), NAMES, st.just(0), st.none()),
    st.tuples(st.just("write"), NAMES, st.just(0), st.none()),
)


@given(st.lists(CHANGES, max_size=30))
def test_a_write_has_all_locks(changes: list[tuple[str, str, int, OrderLock | None]]) -> None:
    """Whatever was put, forgotten or taken over before, and also after writes that were given up."""
    table = OrderTable(Path("/nowhere"))
    for what, topic, queue_id, lock in [*changes, ("write", "t", 0, None)]:
        if what == "put":
            table.put(topic, "g", queue_id, lock)
        elif what == "forget":
            table.forget_topic(topic)
        elif what == "take over" and lock is not None:
            table.take_over({f"{topic}@g": {queue_id: lock}})
        elif what == "give up a write":
            table.snapshot()
        elif what == "write":
            assert locks_of_file(table.snapshot()()) == table.copy()


async def test_what_was_loaded_is_written_again(tmp_path: Path) -> None:
    """A broker that starts and changes one lock loses none of the others."""
    before = OrderTable(tmp_path)
    for number in range(3):
        before.put(f"t{number}", "g", 0, OrderLock(None, 5, 60_000, (7,)))
    await before.saved()
    after = OrderTable(tmp_path)
    after.load()
    after.put("t1", "g", 0, None)
    await after.saved()

    found = locks_of_file((tmp_path / FILE_NAME).read_bytes())

    assert found == after.copy()
    assert list(found) == ["t0@g", "t2@g"]
