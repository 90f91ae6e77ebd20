"""The table of waiting requests of POP agrees with a simple model of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.pop.waiting import SLOT_MS, Waiter, WaitingTable

_waits = st.tuples(
    st.just("wait"), st.sampled_from(["t", "u"]), st.sampled_from(["g", "h"]), st.integers(-1, 1),
    st.sampled_from([None, frozenset({1}), frozenset({1, 2})]), st.sampled_from("xy"), st.integers(0, 200),
)  # fmt: skip
_arrivals = st.tuples(
    st.just("arrive"), st.sampled_from(["t", "u", "%g_t", "%h_u"]), st.integers(0, 1),
    st.sampled_from([None, 1, 2, 3]),
)  # fmt: skip
_others = st.one_of(
    st.tuples(st.just("expire"), st.integers(0, 300)),
    st.tuples(st.just("drop"), st.sampled_from("xy")),
)


def wants(waiter: Waiter, code: int | None) -> bool:
    return code is None or waiter.codes is None or code in waiter.codes


def first(waiting: list[Waiter], code: int | None) -> list[Waiter]:
    return [waiter for waiter in waiting if wants(waiter, code)][:1]


@given(st.lists(st.one_of(_waits, _arrivals, _others), max_size=40))
def test_arrivals_deadlines_and_losses_take_whom_a_list_would_give(steps: list[tuple[object, ...]]) -> None:
    """In the order in which they came, each once, and nobody stays behind in an index."""
    table = WaitingTable(lambda topic, group: (f"%{group}_{topic}",))
    model: list[Waiter] = []
    for step in steps:
        match step:
            case ("wait", str(topic), str(group), int(queue_id), codes, owner, int(deadline)):
                waiter = Waiter()
                waiter.topic, waiter.group, waiter.queue_id = topic, group, queue_id
                waiter.codes, waiter.owner = codes, owner  # type: ignore[assignment]  # drawn as such
                waiter.ordered, waiter.deadline_ms, waiter.line = False, deadline, None
                assert table.add(waiter)
                model.append(waiter)
            case ("arrive", str(topic), int(queue_id), code):
                assert code is None or isinstance(code, int)
                expected: list[Waiter] = []
                for group in dict.fromkeys(each.group for each in model):
                    of = [each for each in model if each.group == group]
                    own = [each for each in of if each.topic == topic]
                    for key in (-1, queue_id):
                        expected += first([each for each in own if each.queue_id == key], code)
                    retried = [each for each in of if f"%{group}_{each.topic}" == topic]
                    any_queue = [each for each in retried if each.queue_id == -1]
                    if found := first(any_queue, code):
                        expected += found
                    elif any(wants(each, code) for each in retried):
                        got = table.arrived(topic, queue_id, code)
                        assert len(got) == 1
                        assert got[0] in retried
                        model.remove(got[0])
                        expected = []
                        break
                else:
                    assert set(table.arrived(topic, queue_id, code)) == set(expected)
                model = [each for each in model if each not in expected]
            case ("expire", int(now)):
                due = [each for each in model if each.deadline_ms // SLOT_MS * SLOT_MS <= now]
                assert set(table.expired(now, 1_000)) == set(due)
                model = [each for each in model if each not in due]
            case ("drop", owner):
                table.drop(owner)
                model = [each for each in model if each.owner != owner]
        assert len(table) == len(model)
    assert set(table.drop_all()) == set(model)
    assert table.topics() == []
