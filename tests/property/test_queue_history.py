"""The judge of reads against a search through all orders, and histories whose verdict is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerset_rig.queue_history import Asked, Read, Send, violations


def explained(sends: list[Send], reads: list[Read], log: list[bytes]) -> bool:
    """Whether some order of all requests explains the history: tried one after the other (Wing and Gong)."""
    stored = [next((s for s in sends if s.body == body), None) for body in log]
    if any(send is None for send in stored) or len(set(log)) < len(log):
        return False
    if any(s.ended is not None and (s.body not in log or log.index(s.body) != s.queue_offset) for s in sends):
        return False
    operations: list[Send | Read] = [*(s for s in stored if s is not None), *reads]

    def fits(read: Read, length: int) -> bool:
        match read.asked:
            case Asked.MAX:
                return read.number == length
            case Asked.NOTHING:
                return length <= read.number
            case Asked.FOUND:
                end = read.number + len(read.bodies)
                return end <= length and tuple(log[read.number : end]) == read.bodies

    def search(left: frozenset[int], length: int) -> bool:
        if not left:
            return True
        ends = [ended for i in left if (ended := operations[i].ended) is not None]
        first_end = min(ends, default=float("inf"))
        for number in left:
            operation = operations[number]
            if operation.began > first_end:
                continue  # something else had ended before it began
            if isinstance(operation, Send):
                if operation is stored[length] and search(left - {number}, length + 1):
                    return True
            elif fits(operation, length) and search(left - {number}, length):
                return True
        return False

    return search(frozenset(range(len(operations))), 0)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Send], list[Read], list[bytes]]:
    """Small histories, right and wrong ones; no two moments are the same."""
    bodies = [b"%d" % number for number in range(draw(st.integers(0, 3)))]
    log = [body for body in draw(st.permutations(bodies)) if draw(st.booleans()) or draw(st.booleans())]
    count = len(bodies) + draw(st.integers(0, 3))
    moments = draw(st.permutations(range(2 * count)))
    spans = [sorted(moments[2 * i : 2 * i + 2]) for i in range(count)]
    sends, reads = [], []
    for body, (began, ended) in zip(bodies, spans, strict=False):
        if draw(st.booleans()):
            offset = log.index(body) if body in log and draw(st.integers(0, 9)) else draw(st.integers(0, 2))
            sends.append(Send(body, began, ended, offset))
        else:
            sends.append(Send(body, began))
    for began, ended in spans[len(bodies) :]:
        number = draw(st.integers(0, 3))
        asked = draw(st.sampled_from(list(Asked)))
        if asked is Asked.FOUND:
            end = number + draw(st.integers(1, 2))
            found = tuple(log[number:end]) or (b"x",)
            reads.append(Read(asked, began, ended, number, found))
        else:
            reads.append(Read(asked, began, ended, number))
    return sends, reads, log


@given(histories())
def test_the_judge_agrees_with_a_search_through_all_orders(
    history: tuple[list[Send], list[Read], list[bytes]],
) -> None:
    """A history is explained by the bounds exactly when some order of all requests explains it."""
    sends, reads, log = history

    assert (violations(sends, reads, log) == []) == explained(sends, reads, log)


def test_an_end_from_before_an_acknowledgement_is_found() -> None:
    """Max offset, a pull at the end, and a number that goes back: each is named with its message."""
    sends = [Send(b"a", 0, 1, 0), Send(b"b", 2, 3, 1)]

    for stale in (Read(Asked.MAX, 4, 5, 1), Read(Asked.NOTHING, 4, 5, 1), Read(Asked.MAX, 4, 5, 0)):
        assert any(
            "message" in text and "acknowledged" in text for text in violations(sends, [stale], [b"a", b"b"])
        )
    back = [Read(Asked.MAX, 4, 5, 2), Read(Asked.MAX, 6, 7, 1)]
    assert violations([Send(b"a", 0, 1, 0), Send(b"b", 2)], back, [b"a", b"b"])


def test_what_is_explained_passes() -> None:
    """Requests at the same time may see each other or not; a send without answer may come late or never."""
    sends = [Send(b"a", 0, 1, 0), Send(b"b", 2, 9, 1), Send(b"lost", 2)]
    reads = [
        Read(Asked.MAX, 3, 4, 1),
        Read(Asked.NOTHING, 3, 4, 1),
        Read(Asked.MAX, 5, 6, 2),
        Read(Asked.FOUND, 5, 6, 0, (b"a", b"b")),
        Read(Asked.NOTHING, 7, 8, 2),
    ]

    assert violations(sends, reads, [b"a", b"b"]) == []


def test_lost_doubled_and_moved_messages_are_found() -> None:
    """An acknowledged message that is gone, one stored twice, one under another number, one nobody stored."""
    assert "lost" in violations([Send(b"a", 0, 1, 0)], [], [])[0]
    assert "twice" in violations([Send(b"a", 0, 1, 0)], [], [b"a", b"a"])[0]
    assert "stored as 1" in violations([Send(b"a", 0, 1, 0), Send(b"b", 0, 1, 0)], [], [b"b", b"a"])[0]
    assert violations([Send(b"a", 0, 1, 0)], [Read(Asked.FOUND, 2, 3, 0, (b"b",))], [b"a"])
