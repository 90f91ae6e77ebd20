"""Sizes and names of subjects: refused before they are proposed, and again where the state would grow."""

from __future__ import annotations

import pytest

from brokerset_controller.ordered import limits
from brokerset_controller.ordered.apply import GuardFailed
from brokerset_controller.ordered.events import Event, GenerationPrepared, MemberJoined, SubjectCreated
from brokerset_controller.ordered.machine import SubjectsMachine
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy

MANY = tuple(f"g{number}" for number in range(limits.BROKER_GROUPS_MAX + 1))


def machine() -> SubjectsMachine:
    """With a subject of one partition."""
    found = SubjectsMachine()
    found.apply(1, SubjectCreated("orders", OrderStrategy.STRICT, ("a",), 1))
    return found


def joining(
    group: str = "g", session: str = "s", client_id: str = "c", permission_ms: int = 30_000
) -> MemberJoined:
    return MemberJoined("orders", group, ConsumeStrategy.EXCLUSIVE, session, client_id, permission_ms)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (SubjectCreated("x" * 101, OrderStrategy.STRICT, ("a",), 1), "1 to 100 characters"),
        (SubjectCreated("a%b", OrderStrategy.STRICT, ("a",), 1), "no name of a subject"),
        (SubjectCreated("new", OrderStrategy.STRICT, (), 1), "no broker group"),
        (SubjectCreated("new", OrderStrategy.STRICT, ("a", "a"), 1), "twice"),
        (SubjectCreated("new", OrderStrategy.STRICT, ("x" * 256,), 1), "1 to 255 bytes"),
        (SubjectCreated("new", OrderStrategy.STRICT, ("\ud800",), 1), "can be printed"),
        (SubjectCreated("new", OrderStrategy.STRICT, MANY, 1), "it can have 256"),
        (SubjectCreated("new", OrderStrategy.STRICT, ("a",), 1_025), "1 to 1024"),
        (GenerationPrepared("orders", 0, 0, ("a",)), "1 to 1024"),
        (GenerationPrepared("orders", 0, 1, MANY[:-1]), "it can have 256"),
        (joining(group="x" * 121), "1 to 120 characters"),
        (joining(group="a/b"), "no name of a group"),
        (joining(session=""), "1 to 64 characters"),
        (joining(session="x" * 65), "1 to 64 characters"),
        (joining(session="a\n"), "can be printed"),
        (joining(session="ü"), "ASCII"),
        (joining(client_id="x" * 256), "255 bytes"),
        (joining(client_id="ü" * 128), "255 bytes"),
        (joining(client_id="\ud800"), "can be printed"),
        (joining(permission_ms=0), "1 to 600000"),
        (joining(permission_ms=600_001), "1 to 600000"),
    ],
)
def test_what_is_too_large_or_no_name_is_not_applied(event: Event, text: str) -> None:
    """Whoever wrote it: the state stays as it is, and the subject is named."""
    found = machine()
    before = dict(found.subjects)

    with pytest.raises(GuardFailed, match=text) as failed:
        found.check(event)
    found.apply(2, event)

    assert str(failed.value).startswith(f"{event.subject}: ")
    assert found.subjects == before


def test_the_longest_that_are_allowed_are_applied() -> None:
    """The bounds themselves."""
    found = machine()
    event = joining("g" * 120, "s" * 64, "c" * 255, limits.PERMISSION_MS_MAX)

    found.apply(2, event)
    found.apply(3, SubjectCreated("x" * 100, OrderStrategy.STRICT, MANY[:-1], 1_024))

    assert list(found.subjects["orders"].groups["g" * 120].members) == ["s" * 64]
    assert len(found.subjects["x" * 100].partitions) == 1_024


def test_queues_that_a_broker_cannot_have_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their ids only grow; other broker groups have room."""
    monkeypatch.setattr(limits, "QUEUES_MAX", 3)
    found = machine()

    with pytest.raises(GuardFailed, match="has had 3 queues on a"):
        found.check(GenerationPrepared("orders", 0, 3, ("a",)))

    assert found.check(GenerationPrepared("orders", 0, 2, ("a",)))
    assert found.check(GenerationPrepared("orders", 0, 3, ("a", "b")))


def test_parts_bound_what_groups_may_come_to_keep() -> None:
    """So that no release or drain can be refused for lack of room."""
    found = machine()
    assert found.parts == limits.parts(found.subjects["orders"]) == 3

    found.apply(2, joining("g"))
    found.apply(3, joining("h"))

    assert found.parts == 1 * (1 + 2) + 2 + 2 + 1 + 1


@pytest.mark.parametrize("producer_id", ["p", "p-4f2a", "a.b_c-D9", "x" * 64])
def test_a_producer_id_can_stand_in_a_stamp(producer_id: str) -> None:
    """Letters, digits, `_`, `-` and `.`."""
    assert limits.producer_id_problem(producer_id) is None
