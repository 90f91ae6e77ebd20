"""The pure parts of the producer: routes, breakers, back-off, what is given up."""

from __future__ import annotations

from random import Random

import pytest

from brokerset_client.messages import Message
from brokerset_client.ordered.producing.breaker import Breakers
from brokerset_client.ordered.producing.encoding import prepare
from brokerset_client.ordered.producing.errors import OutcomeLost, TriesExhausted
from brokerset_client.ordered.producing.outcomes import (
    Confirmed,
    Fenced,
    Gap,
    Illegal,
    NotOpen,
    Outcome,
    Sealed,
    Unclear,
    UnknownProducer,
    classify,
)
from brokerset_client.ordered.producing.outgoing import Attempt, Failed, Outgoing
from brokerset_client.ordered.producing.routing import RouteIndex
from brokerset_client.ordered.producing.settings import ProducerSettings
from brokerset_client.ordered.producing.subject import Effects, SubjectSender
from brokerset_formats.order_keys import LOGICAL_PARTITIONS
from brokerset_protocol.bodies.ordered import PartitionRoute, SubjectRoute
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus

OPEN, SEALING, SEALED, PREPARED = (
    PartitionStatus.OPEN,
    PartitionStatus.SEALING,
    PartitionStatus.SEALED,
    PartitionStatus.PREPARED,
)
SETTINGS = ProducerSettings(tries_max=3, breaker_failures=4, breaker_successes=2)


def route(
    version: int, *partitions: tuple[int, int, int, str, PartitionStatus], order: OrderStrategy
) -> SubjectRoute:
    return SubjectRoute(
        "orders",
        order,
        version,
        0,
        tuple(
            PartitionRoute(number, first, end, group, number, status)
            for number, first, end, group, status in partitions
        ),
    )


HALVES = ((0, 0, 512, "a", OPEN), (1, 512, 1024, "b", OPEN))


class Bench:
    """A subject's state machine, and short words for its inputs."""

    def __init__(
        self, order: OrderStrategy = OrderStrategy.STRICT, settings: ProducerSettings = SETTINGS
    ) -> None:
        self.order = order
        self.settings = settings
        self.breakers = Breakers(settings)
        self.sender = SubjectSender("orders", settings, self.breakers, Random(5).random)
        self.now = 100.0
        self.accepted = 0
        self.sender.take_route(route(1, *HALVES, order=order), self.now)
        self.sender.take_epoch(7, self.now)

    def accept(self, text: str, key: str | None = "a", logical: int | None = None) -> Outgoing:
        self.accepted += 1
        outgoing = prepare(
            Message(topic="orders", body=text.encode()),
            key,
            number=self.accepted,
            logical=logical,
            message_id=text,
            now=self.now,
            settings=self.settings,
        )
        self.sender.accept(outgoing, self.now)
        return outgoing

    def take(self) -> Effects:
        return self.sender.take_effects(self.now)

    def attempt(self) -> Attempt:
        """The one attempt that is made, however long it takes."""
        effects = self.take()
        if not effects.attempts:
            assert effects.wake_at is not None
            assert effects.wake_at > self.now
            self.now = effects.wake_at
            effects = self.take()
        (attempt,) = effects.attempts
        return attempt

    def end(self, attempt: Attempt, outcome: Outcome) -> None:
        self.sender.take_outcome(attempt, outcome, self.now)


def texts(attempt: Attempt) -> list[str]:
    return [message.message_id for message in attempt.batch.messages]


def test_a_logical_partition_goes_to_who_is_open_or_sealing() -> None:
    """The route's partition for each logical one; prepared and sealed ones take nothing (statement 3)."""
    index = RouteIndex(
        route(
            3,
            (0, 0, 512, "a", SEALED),
            (1, 512, 1024, "b", SEALING),
            (2, 0, 512, "b", OPEN),
            (3, 512, 1024, "a", PREPARED),
            order=OrderStrategy.STRICT,
        )
    )

    found = [index.partition_of(logical) for logical in range(LOGICAL_PARTITIONS)]

    assert [each.partition_id for each in found if each is not None] == [2] * 512 + [1] * 512


def test_a_range_between_two_partitions_has_none() -> None:
    """Sealed and not open yet: nobody takes these keys, and others are not concerned (statement 31)."""
    index = RouteIndex(
        route(3, (0, 0, 512, "a", SEALED), (1, 512, 1024, "b", OPEN), order=OrderStrategy.STRICT)
    )

    assert index.partition_of(511) is None
    assert index.partition_of(512) is not None


def test_an_older_route_changes_nothing() -> None:
    """A route that arrives late is ignored, also after several newer ones (statement 18)."""
    bench = Bench()
    newer = ((0, 0, 512, "a", SEALED), (1, 512, 1024, "b", SEALED), (2, 0, 1024, "b", OPEN))
    bench.sender.take_route(route(5, *newer, order=bench.order), bench.now)
    bench.sender.take_route(route(4, *HALVES, order=bench.order), bench.now)
    bench.accept("x")

    assert bench.attempt().key.partition_id == 2


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Command(0, {"queueOffset": "12"}), Confirmed(12)),
        (Command(0, {"queueOffset": "-1"}), Confirmed(None)),
        (Command(0), Confirmed(None)),
        (Command(ResponseCode.BROKERSET_QUEUE_SEALED, {"nextSequence": "4"}), Sealed(4)),
        (Command(ResponseCode.BROKERSET_QUEUE_SEALED), Sealed(None)),
        (Command(ResponseCode.BROKERSET_QUEUE_NOT_OPEN), NotOpen()),
        (Command(ResponseCode.MESSAGE_ILLEGAL, remark="why"), Illegal("why")),
        (Command(ResponseCode.BROKERSET_PRODUCER_FENCED, remark="who"), Fenced("who")),
        (Command(ResponseCode.BROKERSET_SEQUENCE_GAP, {"nextSequence": "3"}), Gap(3)),
        (Command(ResponseCode.BROKERSET_SEQUENCE_GAP, {"nextSequence": "x"}), Gap(None)),
        (Command(ResponseCode.BROKERSET_PRODUCER_UNKNOWN), UnknownProducer()),
        (Command(ResponseCode.FLUSH_SLAVE_TIMEOUT), Unclear("answer 12: ", stale_route=False)),
        (Command(ResponseCode.TOPIC_NOT_EXIST), Unclear("answer 17: ", gone=True)),
        (Command(9999, remark="new"), Unclear("answer 9999: new", stale_route=False)),
    ],
)
def test_answers_mean_what_the_protocol_says(answer: Command, expected: Outcome) -> None:
    """A code that the protocol does not name says nothing about the outcome (statement 28)."""
    assert classify(answer) == expected


def test_a_repetition_is_the_same_request() -> None:
    """Messages that come meanwhile wait: the batch keeps its messages and sequences (statement 25)."""
    bench = Bench()
    bench.accept("0")
    bench.accept("1")
    first = bench.attempt()
    bench.accept("2")
    bench.end(first, Unclear("lost"))
    again = bench.attempt()

    assert (texts(again), again.batch.first_sequence, again.batch.epoch) == (["0", "1"], 0, 7)
    bench.end(again, Confirmed(0))
    (following,) = bench.take().attempts
    assert (texts(following), following.batch.first_sequence) == (["2"], 2)


def test_waits_grow_and_are_spread() -> None:
    """Waits double up to their bound, and no two producers wait alike (statement 32)."""
    bench = Bench()
    bench.accept("0")
    waits = []
    for _ in range(12):
        attempt = bench.attempt()
        before = bench.now
        bench.end(attempt, Unclear("down"))
        wake_at = bench.take().wake_at
        assert wake_at is not None
        waits.append((wake_at - before) * 1000)

    bounds = [min(2_000, 20 * 2**failures) for failures in range(12)]
    assert all(bound / 2 <= wait <= bound + 0.001 for wait, bound in zip(waits, bounds, strict=True))
    assert len({round(wait / bound, 3) for wait, bound in zip(waits, bounds, strict=True)}) > 6


def test_a_partition_that_opens_soon_is_asked_soon() -> None:
    """Not open: again after 10 to 50 ms, with a wish for the route, however often."""
    bench = Bench()
    bench.accept("0")
    for _ in range(20):
        attempt = bench.attempt()
        before = bench.now
        bench.end(attempt, NotOpen())
        effects = bench.take()
        assert effects.route_wanted
        assert effects.wake_at is not None
        assert 0.0099 <= effects.wake_at - before <= 0.0501


def test_an_unknown_outcome_is_settled_before_a_move() -> None:
    """The route names another partition: what may be stored in the old one is asked there first."""
    bench = Bench()
    bench.accept("0")
    first = bench.attempt()
    bench.sender.take_route(
        route(2, (0, 0, 512, "a", SEALED), (2, 0, 512, "b", OPEN), order=bench.order), bench.now
    )
    bench.accept("1")
    assert bench.take().attempts == ()
    bench.end(first, Unclear("lost"))
    again = bench.attempt()
    assert again.key.partition_id == 0
    bench.end(again, Sealed(0))
    moved = bench.attempt()

    assert (moved.key.partition_id, texts(moved), moved.batch.first_sequence) == (2, ["0", "1"], 0)


def test_what_is_surely_not_stored_moves_at_once() -> None:
    """Every attempt was refused with nothing stored: a new route is enough to move."""
    bench = Bench()
    bench.accept("0")
    bench.end(bench.attempt(), NotOpen())
    bench.sender.take_route(
        route(2, (0, 0, 512, "a", SEALED), (2, 0, 512, "b", OPEN), order=bench.order), bench.now
    )

    assert bench.attempt().key.partition_id == 2


def test_an_outcome_that_nobody_can_tell_any_more_is_lost_and_not_repeated() -> None:
    """A partition that was removed while an answer was missing: the message fails, later ones go on."""
    bench = Bench()
    bench.accept("0")
    bench.end(bench.attempt(), Unclear("lost"))
    bench.accept("1")
    bench.sender.take_route(route(2, (2, 0, 1024, "b", OPEN), order=bench.order), bench.now)
    bench.end(bench.attempt(), NotOpen())
    effects = bench.take()

    (failed,) = effects.failed
    assert failed.message.message_id == "0"
    assert isinstance(failed.error, OutcomeLost)
    assert failed.error.maybe_stored
    (attempt,) = effects.attempts
    assert (attempt.key.partition_id, texts(attempt)) == (2, ["1"])


def test_a_breaker_opens_after_failures_in_a_row_and_closes_after_successes() -> None:
    """Closed, open, half open, closed; a failure while half open opens it again."""
    breakers = Breakers(SETTINGS)
    for _ in range(3):
        breakers.failed("a", 0.0)
    breakers.succeeded("a")
    for _ in range(3):
        breakers.failed("a", 0.0)
    assert breakers.allows("a", 0.0)
    breakers.failed("a", 0.0)

    assert not breakers.allows("a", 4.9)
    assert breakers.allows("a", 5.0)
    breakers.failed("a", 5.0)
    assert not breakers.allows("a", 9.9)
    breakers.succeeded("a")
    breakers.succeeded("a")
    for _ in range(3):
        breakers.failed("a", 20.0)
    assert breakers.allows("a", 20.0)
    assert breakers.allows("b", 0.0)


def test_best_tried_avoids_a_broken_group_without_a_try() -> None:
    """A group whose breaker is open gets nothing that another group can take (statement 29)."""
    bench = Bench(OrderStrategy.BEST_TRIED)
    for _ in range(4):
        bench.breakers.failed("a", bench.now)
    outgoing = bench.accept("0")
    attempt = bench.attempt()

    assert attempt.key.broker_group == "b"
    assert outgoing.tries == 1


def test_best_tried_draws_another_logical_partition_for_each_try_without_a_key() -> None:
    """A message without a key is drawn again when it goes elsewhere; one with a key is not (statement 4)."""
    bench = Bench(OrderStrategy.BEST_TRIED)
    without = bench.accept("0", key=None, logical=3)
    keyed = bench.accept("1", key="a")
    bench.end(bench.attempt(), Unclear("down"))
    (attempt,) = bench.take().attempts

    assert texts(attempt) == ["0", "1"]
    assert attempt.key.partition_id == 1
    assert without.logical >= 512
    assert keyed.logical == 97


def test_best_tried_fails_what_has_no_time_left() -> None:
    """A message whose partition never opens fails once, when its time is over (statement 29)."""
    bench = Bench(OrderStrategy.BEST_TRIED)
    nothing_open = ((0, 0, 512, "a", SEALED), (1, 512, 1024, "b", SEALED))
    bench.sender.take_route(route(2, *nothing_open, order=bench.order), bench.now)
    bench.accept("0")
    failed: list[Failed] = []
    for _ in range(300):
        effects = bench.take()
        failed += effects.failed
        if effects.wake_at is None:
            break
        bench.now = effects.wake_at

    assert [type(each.error) for each in failed] == [TriesExhausted]
    assert bench.now == pytest.approx(160.0, abs=1.0)
    assert bench.sender.idle


def test_settings_name_every_problem() -> None:
    """All problems of the settings are found at once."""
    settings = ProducerSettings(messages_max=0, not_open_max_ms=1, route_wait_ms=20_000)

    assert len(settings.problems()) == 3


def test_best_tried_keeps_its_time_without_a_new_epoch() -> None:
    """Controllers that give no epoch do not keep a message beyond its time (statement 29)."""
    bench = Bench(OrderStrategy.BEST_TRIED)
    first = bench.accept("0")
    bench.end(bench.attempt(), UnknownProducer())
    bench.now += 30.0
    second = bench.accept("1")
    failed: dict[int, float] = {}
    for _ in range(300):
        effects = bench.take()
        assert effects.attempts == ()
        assert effects.epoch_wanted or not effects.failed
        failed |= {each.message.number: bench.now for each in effects.failed}
        assert all(isinstance(each.error, TriesExhausted) for each in effects.failed)
        if effects.wake_at is None:
            break
        bench.now = effects.wake_at

    assert failed == {
        first.number: pytest.approx(160.0, abs=1.0),
        second.number: pytest.approx(190.0, abs=1.0),
    }
    assert bench.sender.idle
