"""Deliberate bugs of ordered subjects, to see that the oracle of the world `ordered` notices them."""

from __future__ import annotations

import contextlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from brokerset_broker.requests import ordered_access, ordered_sends
from brokerset_broker.requests.ordered_access import OrderedAccess
from brokerset_broker.requests.ordered_sends import OrderedSends
from brokerset_broker.requests.ordered_subjects import SubjectQueuesProcessor
from brokerset_broker.tables.metadata.records import Change
from brokerset_broker.tables.ordered.claims import PullSession, Standing
from brokerset_broker.tables.ordered.live_producers import LiveQueue
from brokerset_broker.tables.ordered.ordered_tables import OrderedTables
from brokerset_broker.tables.ordered.sequences import Decision, Verdict, decide_send
from brokerset_broker.tables.ordered.values import OrderedQueue, ProducerState
from brokerset_client.ordered.consuming import pull_register, queue_pulls
from brokerset_client.ordered.consuming.consumer import OrderedConsumer
from brokerset_client.ordered.consuming.lanes import Lanes
from brokerset_client.ordered.consuming.ordered_message import OrderedMessage, read_ordered
from brokerset_client.ordered.consuming.partition_handlers import PartitionHandlers
from brokerset_client.ordered.producing.executor import Executor
from brokerset_controller.consumer_heartbeats import ConsumerHeartbeats
from brokerset_controller.ordered import assignment
from brokerset_controller.ordered.events import Released
from brokerset_controller.ordered.permissions import Permissions
from brokerset_controller.ordered.state import Subject
from brokerset_controller.subject_leadership import Leadership
from brokerset_controller.subject_reconciler import SubjectReconciler
from brokerset_protocol.subject_words import PartitionStatus
from brokerset_sim.ordered_oracle import (
    ALONE,
    EFFECTS,
    FENCED,
    KEPT,
    LOG_ORDER,
    PERMISSION,
    POSITION,
    SEALED,
    STORED_ONCE,
    WAITS,
)
from brokerset_sim.ordered_plan import OrderedPlan

Patch = tuple[Any, str, object]
"""Where, which attribute, and what instead."""


@dataclass(frozen=True, slots=True)
class OrderedVariant:
    """A bug, what it must be caught by, and runs in which it shows soon."""

    name: str
    patches: Callable[[], list[Patch]]
    caught_by: tuple[str, ...]
    plan: OrderedPlan
    seeds_max: int = 60
    """It must be caught within so many seeds."""

    first: int = 0
    """The first of these seeds: the one that is known to show a bug that shows rarely."""

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Production code with the bug in it."""
        with contextlib.ExitStack() as stack:
            for where, name, value in self.patches():
                stack.enter_context(mock.patch.object(where, name, value))
            yield


def rewritten(function: Any, *changes: tuple[str, str]) -> Any:
    """A function of production code with some of its text replaced; each text must be there."""
    text = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        assert old in text, f"{function.__qualname__} does not say {old!r} any more"
        text = text.replace(old, new)
    made: dict[str, Any] = {}
    exec(compile(text, f"<{function.__qualname__}>", "exec"), vars(sys.modules[function.__module__]), made)
    return made[function.__name__]


# -- the broker --------------------------------------------------------------------------------------------


def _epoch_unchecked(request: str) -> list[Patch]:
    checked = OrderedAccess.owner

    def owner(self: OrderedAccess, key: Any, epoch: int, session: str, what: str) -> Any:
        if what != request:
            return checked(self, key, epoch, session, what)
        fence = self.ordered.fence(key)
        if fence is None or epoch >= fence.epoch:
            return checked(self, key, epoch, session, what)
        return self.ordered.claims.session(key, session) or PullSession(epoch, session, 1 << 40)

    def admits(fence: Any, pulls: Any, epoch: int, session: str) -> Standing:
        return Standing.OWNER

    patches: list[Patch] = [(OrderedAccess, "owner", owner)]
    return patches if request == "ack" else [*patches, (ordered_access, "standing", admits)]


def _seal_answered_at_once() -> list[Patch]:
    async def hasty(self: SubjectQueuesProcessor, command: Any, wanted: Any) -> Any:
        changes: Sequence[Change] = self._decide(wanted)
        if changes:
            self._changes._write_answered_later(changes)  # type: ignore[attr-defined]  # of the log
        coming = self._ordered._coming.get(wanted.subject)
        subject = coming[-1] if coming else self._ordered.state.subjects[wanted.subject]
        return command.reply(body=sys.modules[type(self).__module__]._body(wanted, subject).to_json())

    return [(SubjectQueuesProcessor, "_put", hasty)]


def _open_until_the_seal_is_confirmed() -> list[Patch]:
    def confirmed(self: OrderedTables, topic: str, queue_id: int) -> OrderedQueue | None:
        subject = self.state.subjects.get(topic)
        return None if subject is None else subject.queues.get(queue_id)

    return [(OrderedTables, "queue", confirmed)]


def _dedupe_forgotten_at_a_failover() -> list[Patch]:
    async def forget(self: OrderedSends, topic: str, queue_id: int) -> None:
        end = self._store.tail(topic, queue_id)[0]
        self._ordered.live.put(topic, queue_id, LiveQueue(None, end))

    def trusting(queue: OrderedQueue | None, known: ProducerState | None, stamps: Any) -> Decision:
        decided = decide_send(queue, known, stamps)
        return Decision(Verdict.STORE) if decided.verdict is Verdict.UNKNOWN else decided

    return [(OrderedSends, "count_producers", forget), (ordered_sends, "decide_send", trusting)]


def _older_producers_not_fenced() -> list[Patch]:
    def kind(queue: OrderedQueue | None, known: ProducerState | None, stamps: Any) -> Decision:
        decided = decide_send(queue, known, stamps)
        return Decision(Verdict.STORE) if decided.verdict is Verdict.FENCED else decided

    return [(ordered_sends, "decide_send", kind)]


# -- the controllers ---------------------------------------------------------------------------------------


def _assignable_before_ancestors_are_drained() -> list[Patch]:
    def soon(self: Subject, group: Any) -> frozenset[int]:
        return frozenset(
            each.partition_id
            for each in self.partitions.values()
            if each.status is not PartitionStatus.PREPARED and each.partition_id not in group.drained
        )

    return [(Subject, "assignable", soon)]


def _granted_without_a_release() -> list[Patch]:
    async def hasty(self: SubjectReconciler, name: str, group_name: str) -> None:
        subject = self._machine.subjects.get(name)
        group = None if subject is None else subject.groups.get(group_name)
        if subject is None or group is None or self._leadership.current is None:
            return
        event = assignment.plan(subject, group)
        if event is None:
            return
        await self._propose(event)
        for number in sorted(event.revoked):
            await self._propose(Released(name, group_name, number, group.ownerships[number].epoch))

    return [(SubjectReconciler, "_assign_group", hasty)]


def _new_leader_waits_for_nobody() -> list[Patch]:
    return [(Leadership, "leads", rewritten(Leadership.leads, ("seconds_of(member), now", "-1e6, now")))]


def _departure_ignored() -> list[Patch]:
    async def at_once(self: Leadership, key: Any, deadline: float) -> None:
        return

    give = rewritten(ConsumerHeartbeats._give, (" or key in term.departing", ""))
    return [(ConsumerHeartbeats, "_give", give), (Leadership, "departure_over", at_once)]


def _no_margin() -> list[Patch]:
    make = Permissions.__init__

    def careless(self: Permissions, margin: float) -> None:
        make(self, 0.0)

    return [(Permissions, "__init__", careless)]


# -- the producer ------------------------------------------------------------------------------------------


def _moved_before_it_is_settled() -> list[Patch]:
    return [(Executor, "settled", property(lambda self: True))]


def _new_sequences_for_what_is_unknown() -> list[Patch]:
    def unassign(self: Executor) -> None:
        for batch in reversed(self.assigned):
            self.waiting.extendleft(reversed(batch.messages))
        self.assigned.clear()

    answered = rewritten(
        Executor.answered,
        ("batch.unknown = True\n            self._back_off", "_unassigned(self)\n            self._back_off"),
    )
    answered.__globals__["_unassigned"] = unassign
    return [(Executor, "answered", answered)]


# -- the consumer ------------------------------------------------------------------------------------------


def released_before_handlers_end() -> list[Patch]:
    async def at_once(self: PartitionHandlers) -> None:
        return

    def only_forget(self: PartitionHandlers) -> None:
        self.stop()
        self._dropped = True

    return [(PartitionHandlers, "quiet", at_once), (PartitionHandlers, "drop", only_forget)]


def _lane_runs_two() -> list[Patch]:
    def alone(view: Any, subject: str, partition_id: int) -> OrderedMessage:
        found = read_ordered(view, subject, partition_id)
        return replace(found, lane=found.queue_offset)

    return [(queue_pulls, "read_ordered", alone)]


def _acks_pass_what_runs() -> list[Patch]:
    return [
        (Lanes, "handled_to", property(lambda self: self.pulled_to)),
        (Lanes, "acknowledged", lambda self, position: setattr(self, "position", position)),
    ]


def _permission_by_the_wall() -> list[Patch]:
    make = OrderedConsumer.__init__

    class Wall:
        def __init__(self, clock: Any) -> None:
            self._clock = clock
            self.now_ms = clock.now_ms

        def monotonic(self) -> float:
            return float(self._clock.now_ms()) / 1000

    def careless(self: OrderedConsumer, transport: Any, **options: Any) -> None:
        make(self, transport, **{**options, "clock": Wall(options["clock"])})

    return [(OrderedConsumer, "__init__", careless)]


def _permission_from_the_answer() -> list[Patch]:
    tasks = pull_register.SubscriptionTasks
    late = ("sent_at, granted.permission_ms", "registration.clock.monotonic(), granted.permission_ms")
    return [(tasks, "_heartbeat", rewritten(tasks._heartbeat, late))]


SCALING = OrderedPlan(
    seconds=12.0,
    faults=("scale",),
    pause=0.7,
    send_pause=0.08,
    handler_seconds=0.1,
    hold=1.0,
    fails=0.0,
    consumers=2,
    producers=2,
)
MOVES = OrderedPlan(
    seconds=12.0,
    faults=("restart consumer", "storm", "scale"),
    pause=0.8,
    send_pause=0.08,
    handler_seconds=0.3,
    hold=1.5,
    fails=0.0,
    consumers=3,
)
FAILOVERS = OrderedPlan(
    seconds=15.0,
    faults=("kill master", "switch over", "pause master", "cut off master", "slow replication"),
    pause=0.8,
    send_pause=0.05,
    hold=2.0,
    lost=0.05,
    reset=0.05,
    producers=3,
)
PAUSES = OrderedPlan(
    seconds=16.0,
    faults=("pause consumer", "cut off consumer", "handlers are slow", "slow replication"),
    pause=1.0,
    send_pause=0.2,
    handler_seconds=0.2,
    permission=3.0,
    heartbeat=0.5,
    hold=3.0,
    consumers=2,
    partitions=2,
    keys=3,
)
STALE = replace(
    PAUSES,
    faults=("storm", "restart consumer", "kill consumer"),
    pause=1.5,
    repeated=0.3,
    handler_seconds=0.02,
    consumers=3,
)
LEADERS = OrderedPlan(
    seconds=15.0,
    faults=("elect", "kill controller", "pause controller leader", "cut consumer from controllers"),
    pause=0.7,
    send_pause=0.2,
    permission=4.0,
    heartbeat=0.7,
    hold=3.0,
)
DEPARTURES = OrderedPlan(
    seconds=40.0,
    faults=("slow agreement", "cut consumer from controllers", "pause consumer", "elect"),
    pause=0.8,
    send_pause=0.4,
    permission=4.0,
    heartbeat=0.7,
    hold=6.0,
    consumers=4,
)
CLOCKS = OrderedPlan(
    seconds=16.0,
    faults=("wall jump", "cut consumer from controllers", "handlers are slow"),
    pause=0.4,
    send_pause=0.15,
    handler_seconds=0.4,
    permission=4.0,
    heartbeat=0.7,
    hold=8.0,
    consumers=2,
    keys=6,
)
LATE = OrderedPlan(
    seconds=20.0,
    faults=("cut consumer from controllers", "weather"),
    pause=1.2,
    send_pause=0.05,
    handler_seconds=0.8,
    permission=4.0,
    heartbeat=0.7,
    hold=9.0,
    late=0.5,
    late_max=2.8,
    fails=0.0,
    producers=3,
    consumers=2,
    keys=3,
)
DRIFT = replace(DEPARTURES, faults=("cut consumer from controllers",), slow_consumers=0.08, drift=0.02)
REPLACED = OrderedPlan(
    seconds=12.0,
    faults=("replace producer", "kill producer", "cut producer from brokers"),
    pause=0.6,
    send_pause=0.03,
    hold=2.0,
    late=0.1,
)
VARIANTS = (
    OrderedVariant("epoch not checked on ack", lambda: _epoch_unchecked("ack"), (FENCED,), STALE),
    OrderedVariant("epoch not checked on pull", lambda: _epoch_unchecked("pull"), (FENCED,), STALE),
    OrderedVariant("seal answered before it is confirmed", _seal_answered_at_once, (SEALED,), SCALING),
    OrderedVariant(
        "open until the seal is confirmed",
        _open_until_the_seal_is_confirmed,
        (SEALED, LOG_ORDER, WAITS),
        replace(SCALING, send_pause=0.03, handler_seconds=0.0, faults=("scale", "slow replication")),
    ),
    OrderedVariant(
        "sequences forgotten at a failover",
        _dedupe_forgotten_at_a_failover,
        (STORED_ONCE, LOG_ORDER),
        FAILOVERS,
    ),
    OrderedVariant(
        "older producers not fenced",
        _older_producers_not_fenced,
        (LOG_ORDER, STORED_ONCE, WAITS, KEPT),
        REPLACED,
    ),
    OrderedVariant(
        "assignable before ancestors are drained",
        _assignable_before_ancestors_are_drained,
        (WAITS, ALONE),
        SCALING,
    ),
    OrderedVariant("granted without a release", _granted_without_a_release, (PERMISSION, ALONE), MOVES),
    OrderedVariant(
        "a new leader waits for nobody", _new_leader_waits_for_nobody, (PERMISSION, ALONE), LEADERS
    ),
    OrderedVariant(
        "departure ignored by a heartbeat", _departure_ignored, (PERMISSION,), DEPARTURES, first=12
    ),
    OrderedVariant("no margin for clocks", _no_margin, (PERMISSION,), DRIFT),
    OrderedVariant(
        "moved before it is settled", _moved_before_it_is_settled, (STORED_ONCE, LOG_ORDER, WAITS), SCALING
    ),
    OrderedVariant(
        "new sequences for what is unknown",
        _new_sequences_for_what_is_unknown,
        (STORED_ONCE, LOG_ORDER),
        FAILOVERS,
    ),
    OrderedVariant("released before handlers end", released_before_handlers_end, (ALONE, WAITS), MOVES),
    OrderedVariant("a lane runs two", _lane_runs_two, (ALONE, WAITS), MOVES),
    OrderedVariant("acks pass what runs", _acks_pass_what_runs, (POSITION,), MOVES),
    OrderedVariant("permission by the wall clock", _permission_by_the_wall, (ALONE, WAITS, EFFECTS), CLOCKS),
    OrderedVariant(
        "permission from the answer", _permission_from_the_answer, (ALONE, WAITS), LATE, first=215
    ),
)
