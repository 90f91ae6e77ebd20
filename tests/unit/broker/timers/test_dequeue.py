"""Reading a slot: order, recalls, rolls, and how little the walk holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from brokerset_broker.timers.dequeue import (
    NOTED_MAX,
    PIECE_UNITS,
    Deliver,
    Drop,
    DropReason,
    EarlierRolls,
    Roll,
    SlotWalk,
)
from brokerset_broker.timers.messages import TimedMessage
from brokerset_broker.timers.progress import Progress, Step
from brokerset_formats.errors import FormatError
from brokerset_formats.timer_files import TimerUnit

SLOT = 1_795_251_847_000
NOTHING_DONE = Progress((Step(10**9, SLOT),))


class Chain:
    """Units of one slot, one behind the other; each has the message of its number."""

    def __init__(self, messages: list[TimedMessage], magics: dict[int, int] | None = None) -> None:
        self.messages = messages
        self.magics = magics or {}

    @property
    def last_position(self) -> int:
        return (len(self.messages) - 1) * 52

    def unit(self, position: int) -> TimerUnit:
        number = position // 52
        magic = self.magics.get(number, 1)
        return TimerUnit(position - 52 if number else -1, magic, SLOT - 5, 5, number, 100, 0)

    def message(self, unit: TimerUnit) -> TimedMessage | None:
        return self.messages[unit.offset]

    def walk(self, progress: Progress = NOTHING_DONE, rolls: EarlierRolls | None = None) -> SlotWalk:
        return SlotWalk(
            SLOT,
            self.last_position,
            unit_at=self.unit,
            message_of=self.message,
            progress=progress,
            earlier_rolls=rolls or EarlierRolls(0, 0),
        )


def message(number: int, key: str = "", recalls: str = "", rolled: int = 0, topic: str = "t") -> TimedMessage:
    return TimedMessage(number, SLOT, SLOT - 9000, topic, 0, key or f"k{number}", recalls, rolled)


def test_messages_come_oldest_first() -> None:
    walk = Chain([message(number) for number in range(3000)]).walk()

    outcomes = list(walk.outcomes())

    assert all(isinstance(outcome, Deliver) for outcome in outcomes)
    assert [outcome.message.queue_offset for outcome in outcomes if outcome.message] == list(range(3000))
    assert walk.held == 0


def test_a_recall_drops_its_message_wherever_it_stands_in_the_slot() -> None:
    """With the topic in its key or without, before its message or after it; recalls give nothing."""
    chain = Chain(
        [message(0), message(1, recalls="k0"), message(2, recalls="t+k3"), message(3), message(4)],
        {1: 5, 2: 5},
    )

    outcomes = list(chain.walk().outcomes())

    assert [(type(outcome), outcome.message) for outcome in outcomes] == [
        (Drop, chain.messages[0]),
        (Drop, chain.messages[3]),
        (Deliver, chain.messages[4]),
    ]
    assert isinstance(outcomes[0], Drop)
    assert outcomes[0].reason is DropReason.RECALLED


def test_a_recall_that_names_another_topic_drops_nothing() -> None:
    """Whether the key of the recall says so, or only the recall itself: the Java client gives a message
    that is sent to two topics one key."""
    for recalls in ("t+k0", "k0"):
        chain = Chain([message(0, topic="other"), message(1, recalls=recalls)], {1: 5})

        assert [type(outcome) for outcome in chain.walk().outcomes()] == [Deliver]


def test_a_recall_that_rolls_is_put_aside_again() -> None:
    chain = Chain([message(0), message(1, recalls="k0")], {0: 3, 1: 7})

    assert [type(outcome) for outcome in chain.walk().outcomes()] == [Roll, Roll]


def test_what_a_slot_has_delivered_is_not_delivered_again() -> None:
    """A master that was lost in the middle of a slot leaves a step in its progress."""
    chain = Chain([message(number) for number in range(5)])
    progress = NOTHING_DONE.delivered(3, SLOT + 1000)

    outcomes = list(chain.walk(progress).outcomes())

    assert [type(outcome) for outcome in outcomes] == [Drop, Drop, Drop, Deliver, Deliver]


def test_what_the_old_master_rolled_is_not_rolled_twice() -> None:
    rolls = EarlierRolls(100, 103)
    rolls.note(message(100, key="k1", rolled=1))
    rolls.note(message(99, key="k2", rolled=1))
    rolls.note(message(103, key="k2", rolled=1))
    rolls.note(message(102, key="k2", rolled=1, topic="other"))
    chain = Chain([message(0), message(1), message(2), message(3, key="k1")], {0: 3, 1: 3, 2: 3, 3: 3})

    outcomes = list(chain.walk(rolls=rolls).outcomes())

    assert [type(outcome) for outcome in outcomes] == [Roll, Drop, Roll, Roll]
    assert len(rolls) == 2
    rolls.forget_before(SLOT)
    assert len(rolls) == 0


def test_a_message_without_a_record_is_dropped() -> None:
    chain = Chain([message(0), message(1)])

    walk = SlotWalk(
        SLOT,
        chain.last_position,
        unit_at=chain.unit,
        message_of=lambda unit: None,
        progress=NOTHING_DONE,
        earlier_rolls=EarlierRolls(0, 0),
        stop_position=0,
    )

    assert list(walk.outcomes()) == [Drop(chain.unit(52), None, DropReason.GONE)]


def test_a_chain_that_leads_out_of_its_slot_is_damaged() -> None:
    chain = Chain([message(0), message(1)])
    walk = SlotWalk(
        SLOT + 1000,
        52,
        unit_at=chain.unit,
        message_of=chain.message,
        progress=NOTHING_DONE,
        earlier_rolls=EarlierRolls(0, 0),
    )

    with pytest.raises(FormatError, match="does not belong to the slot") as caught:
        next(walk.outcomes())
    assert caught.value.position == 52


def held_by(count: int) -> int:
    one = message(0)

    def unit_at(position: int) -> TimerUnit:
        return TimerUnit(position - 52 if position else -1, 1, SLOT, 0, 0, 100, 0)

    walk = SlotWalk(
        SLOT,
        (count - 1) * 52,
        unit_at=unit_at,
        message_of=lambda unit: one,
        progress=NOTHING_DONE,
        earlier_rolls=EarlierRolls(0, 0),
    )
    assert sum(1 for _ in walk.outcomes()) == count
    return walk.held_max


def test_a_walk_holds_a_piece_and_some_positions() -> None:
    assert held_by(20_000) <= PIECE_UNITS + 20_000 // PIECE_UNITS + 1


@pytest.mark.long
def test_a_million_messages_in_one_slot_are_walked_with_two_thousand_positions() -> None:
    """16 KB of positions; the messages stay in log and commit log."""
    assert held_by(1_000_000) <= PIECE_UNITS + NOTED_MAX


def test_pieces_become_longer_before_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerset_broker.timers.dequeue.PIECE_UNITS", 4)
    monkeypatch.setattr("brokerset_broker.timers.dequeue.NOTED_MAX", 4)

    assert held_by(1000) <= 4 + 1000 // 2
    for count in range(1, 80):
        chain = Chain([message(number) for number in range(count)])
        offsets = [outcome.message.queue_offset for outcome in chain.walk().outcomes() if outcome.message]
        assert offsets == list(range(count))


def test_a_slot_whose_chain_is_damaged_is_found_in_the_log() -> None:
    """All units of the log are searched: those of other slots count for nothing, recalls as ever."""
    chain = Chain([message(0), message(1, recalls="k0"), message(2), message(3)], {1: 5})
    other = replace(chain.unit(104), delay_ms=1005)

    def units() -> Iterator[tuple[int, TimerUnit]]:
        for position in (0, 52, 104, 156):
            yield position, chain.unit(position)
        yield 208, other

    outcomes = [outcome for outcome in chain.walk().search(units) if outcome is not None]

    assert [type(outcome) for outcome in outcomes] == [Drop, Deliver, Deliver]
    assert [outcome.message for outcome in outcomes] == [chain.messages[n] for n in (0, 2, 3)]


def test_a_long_walk_pauses_before_its_first_outcome() -> None:
    """So that a slot of a million messages does not hold up the loop."""
    walk = Chain([message(number) for number in range(3000)]).walk()

    first = next(walk.steps())

    assert first is None


def test_units_before_the_begin_of_the_log_are_gone() -> None:
    """Their records were deleted with them; the rest of the slot is delivered."""
    chain = Chain([message(number) for number in range(5)])
    walk = SlotWalk(
        SLOT,
        chain.last_position,
        unit_at=chain.unit,
        message_of=chain.message,
        progress=NOTHING_DONE,
        earlier_rolls=EarlierRolls(0, 0),
        begin_position=2 * 52,
    )

    assert [outcome.message for outcome in walk.outcomes()] == chain.messages[2:]
