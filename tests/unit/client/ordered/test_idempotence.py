"""Effects that happen once although messages come again."""

from __future__ import annotations

import sqlite3

import pytest

from brokerset_client.messages import MessageView
from brokerset_client.ordered.consuming.handling import HandlingContext
from brokerset_client.ordered.consuming.idempotence import (
    CREATE_TABLE,
    MemoryFilter,
    once,
    record_handled,
)
from brokerset_client.ordered.consuming.ordered_message import OrderedMessage, read_ordered
from brokerset_client.ordered.consuming.permission import Permission
from brokerset_rig.fake_subject import FakeSubject
from brokerset_rig.ordered_consumers import LoopClock

pytestmark = pytest.mark.virtual


class Crash(BaseException):
    """The process ends here."""


def message(number: int) -> OrderedMessage:
    subject = FakeSubject()
    for each in range(number + 1):
        subject.send("a", b"%d" % each)
    record = subject.queue(subject.name, 0).records[number]
    assert record is not None
    return read_ordered(MessageView(record), subject.name, 0)


async def test_a_completed_message_is_skipped() -> None:
    """What was completed is not handled again, what failed is (statement 51)."""
    calls: list[bytes] = []

    async def handle(message: OrderedMessage, context: HandlingContext) -> None:
        calls.append(message.body)
        if len(calls) == 1:
            raise RuntimeError("it fails")

    handler = once(handle, MemoryFilter())
    context = HandlingContext(
        epoch=1, attempt=1, clock=LoopClock(), permission=Permission, handling_seconds=1
    )
    with pytest.raises(RuntimeError):
        await handler(message(0), context)
    for number in (0, 0, 1, 0):
        await handler(message(number), context)

    assert calls == [b"0", b"0", b"1"]


async def test_a_filter_in_memory_is_bounded() -> None:
    """It forgets the oldest."""
    handled = MemoryFilter(kept_max=2)

    for number in range(3):
        await handled.handled(str(number))

    assert [await handled.was_handled(str(number)) for number in range(3)] == [False, True, True]


@pytest.mark.parametrize("crash_at", ["before", "between", "before commit", "after commit", "never"])
def test_effects_in_a_transaction_happen_once_wherever_it_crashes(crash_at: str) -> None:
    """The note and the effect are committed together: a repetition does what is missing, and nothing twice
    (statement 51)."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute(CREATE_TABLE)
    connection.execute("CREATE TABLE effects (body)")

    def handle(crash: str) -> None:
        def step(name: str) -> None:
            if name == crash:
                raise Crash

        try:
            connection.execute("BEGIN")
            step("before")
            if record_handled(connection, "billing", message(0)):
                step("between")
                connection.execute("INSERT INTO effects VALUES (?)", (message(0).body,))
            step("before commit")
            connection.execute("COMMIT")
            step("after commit")
        except Crash:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    handle(crash_at)
    handle("never")
    handle("never")

    assert connection.execute("SELECT body FROM effects").fetchall() == [(b"0",)]
    connection.close()
