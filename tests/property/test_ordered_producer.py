"""Whatever brokers, controllers and the network do: what a producer of an ordered subject stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_client.messages import Message
from brokerset_client.ordered.producing import subject as subject_module
from brokerset_client.ordered.producing.breaker import Breakers
from brokerset_client.ordered.producing.encoding import prepare, request
from brokerset_client.ordered.producing.errors import MessageRefused, OrderedSendFailed
from brokerset_client.ordered.producing.executor import Executor, Settled
from brokerset_client.ordered.producing.outcomes import Illegal, Outcome, Sealed, Unclear, classify
from brokerset_client.ordered.producing.outgoing import Attempt, Failed, Outgoing
from brokerset_client.ordered.producing.settings import ProducerSettings
from brokerset_client.ordered.producing.subject import SubjectSender
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus
from brokerset_sim.ordered_send_model import ModelSubject

KEYS = ("a", "b", "order-1", "uid:42", "订单1001", "", "order-10001", "z")
PRODUCER = "p-1"
SETTLING_STEPS_MAX = 2_000
BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT)

KINDS = (
    *("accept",) * 8,
    "illegal",
    *("answer",) * 6,
    "lose request",
    "lose answer",
    "delay",
    "store a part",
    "busy",
    "late",
    "scale",
    *("seal",) * 2,
    *("report",) * 2,
    *("inform",) * 2,
    *("route",) * 3,
    "old route",
    *("epoch",) * 2,
    *("time",) * 4,
)
Step = tuple[str, int]
steps = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 1_000)), max_size=90)


class World:
    """A producer's state machine, its subject, and everything that travels between them."""

    def __init__(self, order: OrderStrategy = OrderStrategy.STRICT, seed: int = 1) -> None:
        roll = Random(seed).random
        self.settings = ProducerSettings(batch_messages_max=4)
        self.model = ModelSubject("orders", order, ("broker-a", "broker-b"))
        self.model.scale(2)
        self.sender = SubjectSender("orders", self.settings, Breakers(self.settings), roll)
        self.now = 0.0
        self.routes = [self.model.route()]
        self.sent: dict[str, list[str]] = {key: [] for key in KEYS}
        self.illegal: set[int] = set()
        self.answered: dict[int, str] = {}
        self.errors: list[Exception] = []
        self.running: list[Attempt] = []
        self.late: list[tuple[str, Command]] = []
        self.epoch_wanted = False

    def run(self, planned: Sequence[Step]) -> None:
        """Take the steps, then let everything end well."""
        for kind, number in planned:
            self._step(kind, number)
            self._watch()
        self._settle()
        while self.late:
            self._step("late", 0)
        self._check()

    # -- steps --------------------------------------------------------------------------------------------

    def _step(self, kind: str, number: int) -> None:
        model = self.model
        queues = list(model.queues.values())
        sealing = [
            queue
            for queue in queues
            if queue.state == PartitionStatus.SEALING and queue.serves != PartitionStatus.SEALED
        ]
        attempt = self.running[number % len(self.running)] if self.running else None
        match kind:
            case "accept" | "illegal":
                self._accept(KEYS[number % len(KEYS)], kind == "illegal")
            case "answer" if attempt is not None:
                self._end(attempt, classify(self._deliver(attempt)))
            case "lose request" if attempt is not None:
                self._end(attempt, Unclear("lost"))
            case "lose answer" if attempt is not None:
                self._deliver(attempt)
                self._end(attempt, Unclear("lost"))
            case "delay" if attempt is not None:
                self.late.append((attempt.key.broker_group, self._request(attempt)))
                self._end(attempt, Unclear("late"))
            case "store a part" if attempt is not None:
                self._deliver(attempt, keep=number % len(attempt.batch.messages))
                self._end(attempt, Unclear("lost"))
            case "busy" if attempt is not None:
                self._end(attempt, classify(Command(BUSY[number % len(BUSY)])))
            case "late" if self.late:
                model.send(*self.late.pop(number % len(self.late)))
            case "scale" if all(
                queue.state in (PartitionStatus.OPEN, PartitionStatus.SEALED) for queue in queues
            ):
                model.scale(number % 5 + 1)
            case "seal" if sealing:
                model.seal(sealing[number % len(sealing)].partition_id)
            case "report":
                model.report()
            case "inform":
                model.inform_brokers()
            case "route":
                self.routes.append(model.route())
                self.sender.take_route(self.routes[-1], self.now)
            case "old route":
                self.sender.take_route(self.routes[number % len(self.routes)], self.now)
            case "epoch" if self.epoch_wanted:
                self.epoch_wanted = False
                self.sender.take_epoch(model.start_producer(), self.now)
            case "time":
                self.now += number / 300
        self._take()

    def _accept(self, key: str, illegal: bool) -> None:
        number = sum(len(sent) for sent in self.sent.values()) + len(self.illegal)
        body = f"{number}:{key}"
        outgoing = prepare(
            Message(topic="orders", body=body.encode()),
            key,
            number=number,
            logical=None,
            message_id=f"id-{number}",
            now=self.now,
            settings=self.settings,
        )
        if illegal:
            self.illegal.add(number)
            self.model.illegal.add(body.encode())
        else:
            self.sent[key].append(body)
        self.sender.accept(outgoing, self.now)

    def _request(self, attempt: Attempt) -> Command:
        return request(attempt, PRODUCER, 0)

    def _deliver(self, attempt: Attempt, keep: int | None = None) -> Command:
        return self.model.send(attempt.key.broker_group, self._request(attempt), keep)

    def _end(self, attempt: Attempt, outcome: Outcome) -> None:
        self.running.remove(attempt)
        self.sender.take_outcome(attempt, outcome, self.now)

    def _take(self) -> None:
        effects = self.sender.take_effects(self.now)
        self.running += effects.attempts
        self.epoch_wanted |= effects.epoch_wanted
        assert effects.fenced is None
        for stored in effects.stored:
            for message in stored.messages:
                assert self.answered.setdefault(message.number, "stored") == "stored"
        for failed in effects.failed:
            assert failed.message.number not in self.answered, "a message was answered twice"
            self.answered[failed.message.number] = "failed"
            self.errors.append(failed.error)

    def _settle(self) -> None:
        for _ in range(SETTLING_STEPS_MAX):
            if self.sender.idle:
                return
            for kind in ("seal", "report", "inform", "route", "epoch"):
                self._step(kind, 0)
            while self.running:
                self._step("answer", 0)
            self._step("time", 300)
            self._watch()
        raise AssertionError("the producer does not come to an end")

    # -- what must be so ----------------------------------------------------------------------------------

    def _watch(self) -> None:
        """After every step: one request at most for each partition, no logical partition in two executors."""
        places = [attempt.key for attempt in self.running]
        assert len(places) == len(set(places)), "two requests of one partition at the same time"
        owners: dict[int, Executor] = {}
        for executor in self.sender.executors:
            for message in _messages(executor):
                if not (message.finished or message.strayed):
                    owner = owners.setdefault(message.logical, executor)
                    assert owner is executor, "a logical partition in two executors"

    def _check(self) -> None:
        logged = self.model.logged()
        for key, sent in self.sent.items():
            stored = [each.body.decode() for each in logged if each.body.decode().split(":", 1)[1] == key]
            assert stored == sent, f"key {key!r}"
        total = sum(len(sent) for sent in self.sent.values()) + len(self.illegal)
        assert set(self.answered) == set(range(total))
        assert {number for number, how in self.answered.items() if how == "failed"} == self.illegal
        assert all(isinstance(error, MessageRefused) for error in self.errors)


def _messages(executor: Executor) -> list[Outgoing]:
    assigned = [message for batch in executor.assigned for message in batch.messages]
    return [*assigned, *executor.waiting]


@given(steps)
def test_strict_stores_each_message_once_in_the_order_of_its_key(planned: list[Step]) -> None:
    """Lost, late and partial requests, seals, old routes: the log has what was sent (statements 23, 25)."""
    World().run(planned)


class BestTriedWorld(World):
    """Order may be lost; a message whose outcome was unknown may be twice in the log."""

    def __init__(self) -> None:
        super().__init__(OrderStrategy.BEST_TRIED)

    def _check(self) -> None:
        stored = {each.body.decode() for each in self.model.logged()}
        sent = {body for bodies in self.sent.values() for body in bodies}
        confirmed = {number for number, how in self.answered.items() if how == "stored"}
        assert stored <= sent
        assert {body for body in sent if int(body.split(":")[0]) in confirmed} <= stored
        assert set(self.answered) == set(range(len(sent) + len(self.illegal)))
        assert all(isinstance(error, OrderedSendFailed) for error in self.errors)


@given(steps)
def test_best_tried_answers_each_message_once(planned: list[Step]) -> None:
    """Each message is confirmed and stored, or fails exactly once (statement 29)."""
    BestTriedWorld().run(planned)


# -- what the property must be able to see ----------------------------------------------------------------


class SecondBatch(Executor):
    """Lets a batch go while another is in flight."""

    def offer(self, now: float) -> Attempt | None:
        if self.outstanding and self.waiting:
            self._assign()
            self.assigned.rotate(1)
            self.outstanding = False
        return super().offer(now)


class MovedBeforeResolved(Executor):
    """Gives its messages away although some may be stored."""

    @property
    def settled(self) -> bool:
        return True


class ChangedOnRepetition(Executor):
    """Repeats messages under new sequences."""

    def answered(self, outcome: Outcome, now: float, roll: Callable[[], float]) -> Settled:
        settled = super().answered(outcome, now, roll)
        if isinstance(outcome, Unclear):
            following = self.next_sequence
            self._unassign()
            self.next_sequence = following
        return settled


class GrownOnRepetition(Executor):
    """Takes further messages into a batch that is repeated, under the sequences of the first ones."""

    def answered(self, outcome: Outcome, now: float, roll: Callable[[], float]) -> Settled:
        settled = super().answered(outcome, now, roll)
        if isinstance(outcome, Unclear):
            self.waiting.rotate(1)
            self._unassign()
        return settled


class SealedIsLost(Executor):
    """Forgets what a sealed partition refused."""

    def drain(self) -> list[Outgoing]:
        self.assigned.clear()
        return super().drain()


class SealedStoresNothing(Executor):
    """Believes that nothing of a batch is in a sealed partition, though a part of it is."""

    def answered(self, outcome: Outcome, now: float, roll: Callable[[], float]) -> Settled:
        return super().answered(Sealed(None) if isinstance(outcome, Sealed) else outcome, now, roll)


class ReusedSequences(Executor):
    """Uses the sequence of an illegal message again although an earlier attempt had no answer."""

    def answered(self, outcome: Outcome, now: float, roll: Callable[[], float]) -> Settled:
        batch = self.assigned[0]
        if isinstance(outcome, Illegal):
            self.outstanding = False
            for other in self.assigned:
                other.unknown = False
            rest = batch.messages[1:]
            self.assigned.popleft()
            self._unassign()
            self.waiting.extendleft(reversed(rest))
            self.next_sequence = batch.first_sequence
            (first, *_) = batch.messages
            failed = Failed(first, MessageRefused("illegal", maybe_stored=False))
            return Settled(failed=(failed,))
        return super().answered(outcome, now, roll)


class NewestFirst(Executor):
    """Puts messages that come from a sealed partition into the wrong order."""

    def drain(self) -> list[Outgoing]:
        return super().drain()[::-1]


class WithoutLanes(SubjectSender):
    """Sends by the route alone, also while older messages of the key are elsewhere."""

    def accept(self, message: Outgoing, now: float) -> None:
        lane = self._lanes.get(message.logical)
        partition = self._partition_of(message.logical)
        if lane is not None and partition is not None:
            lane.executor = self._executor_of(partition)
        super().accept(message, now)


def _caught(variant: type[Executor] | None, sender: type[SubjectSender] | None) -> bool:
    """Whether one of many random runs fails."""
    for seed in range(600):
        random = Random(seed)
        planned = [(random.choice(KINDS), random.randrange(1_000)) for _ in range(90)]
        world = World()
        if sender is not None:
            world.sender = sender("orders", world.settings, Breakers(world.settings), Random(1).random)
        try:
            world.run(planned)
        except (AssertionError, KeyError):
            return True
    return False


@pytest.mark.parametrize(
    "variant",
    [
        SecondBatch,
        MovedBeforeResolved,
        ChangedOnRepetition,
        GrownOnRepetition,
        SealedIsLost,
        SealedStoresNothing,
        ReusedSequences,
        NewestFirst,
    ],
)
def test_a_broken_executor_is_caught(variant: type[Executor], monkeypatch: pytest.MonkeyPatch) -> None:
    """The property fails for an executor that breaks one of its rules."""
    monkeypatch.setattr(subject_module, "Executor", variant)

    assert _caught(variant, None)


def test_a_sender_without_lanes_is_caught() -> None:
    """The property fails if a key may be in two executors."""
    assert _caught(None, WithoutLanes)


def test_the_right_one_is_not_caught() -> None:
    """The random runs that catch broken variants find nothing wrong with the real one."""
    assert not _caught(None, None)
