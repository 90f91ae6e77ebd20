"""What is asked for Subjects against the decisions of controllers: random wishes, brokers, lost answers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerset_controller.ordered.apply import apply
from brokerset_controller.ordered.describe import describe_subject
from brokerset_controller.ordered.events import PartitionSealed
from brokerset_controller.ordered.scaling import SubjectRefused, decide_creation, decide_scaling, retirable
from brokerset_controller.ordered.state import Subject as Agreed
from brokerset_operator.model.verdict import Verdict
from brokerset_operator.ordered_subjects import plan
from brokerset_operator.ordered_subjects.observed import Create, Observed, Request, newest
from brokerset_protocol.bodies.ordered import SubjectState
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus
from brokerset_spec.subject_manifest import read_subject

GROUPS: Final = ("orders-0", "orders-1", "orders-2")
FOREIGN: Final = ("bills-0", "bills-1")
STEPS_MAX: Final = 12
"""Reconciles in which a subject must come to what is wanted once nothing disturbs it."""

Decide = Callable[[Observed], Request | None]


@dataclass
class World:
    """Controllers, brokers and one manifest."""

    shared: bool
    spec: dict[str, object] = field(default_factory=dict)
    agreed: Agreed | None = None
    refused: list[str] = field(default_factory=list)
    source: random.Random = field(default_factory=lambda: random.Random(3))

    @property
    def state(self) -> SubjectState | None:
        """As 21024 tells it."""
        return None if self.agreed is None else describe_subject(self.agreed, lambda _group, _session: None)

    def observed(self) -> Observed:
        """What a reconcile knows."""
        wanted = read_subject(
            {
                "apiVersion": "brokerset.io/v1alpha1",
                "kind": "Subject",
                "metadata": {"name": "events"},
                "spec": {"brokerSetRef": {"name": "orders"}, **self.spec},
            }
        )
        return Observed(
            wanted=wanted,
            set_groups=GROUPS,
            with_master=frozenset(GROUPS),
            foreign_groups=frozenset(FOREIGN if self.shared else ()),
            state=self.state,
        )

    def ask(self, request: Request) -> None:
        """What controllers do about a request."""
        everywhere = dict.fromkeys((*GROUPS, *(FOREIGN if self.shared else ())), 0)
        try:
            if isinstance(request, Create):
                event = decide_creation(
                    self.agreed,
                    request.subject,
                    request.order,
                    request.partitions,
                    request.route,
                    everywhere,
                    self.source,
                )
                if event is not None:
                    self._apply(event)
            else:
                scaled = decide_scaling(
                    self.agreed, request.subject, request.partitions, request.route, everywhere
                )
                if scaled is not None:
                    self._apply(scaled)
        except SubjectRefused as error:
            self.refused.append(str(error))

    def seal(self, broker_group: str) -> None:
        """A broker closes what it is to close; old partitions that nobody reads go."""
        if self.agreed is None:
            return
        for number, each in sorted(self.agreed.partitions.items()):
            if each.status is PartitionStatus.SEALING and each.broker_group == broker_group:
                self._apply(PartitionSealed("events", number, 0, 1))
        for event in retirable(self.agreed):
            self._apply(event)

    def _apply(self, event: object) -> None:
        after = apply(self.agreed, event)  # type: ignore[arg-type]  # events of two kinds of decisions
        assert isinstance(after, Agreed)
        self.agreed = after

    def reconcile(self, decide: Decide = plan.decide_request) -> Verdict:
        """One reconcile whose answers arrive."""
        observed = self.observed()
        request = decide(observed)
        if request is not None:
            self.ask(request)
        return plan.judge(self.observed(), self.refused[-1] if self.refused else None)

    def reconcile_deaf(self) -> None:
        """One whose answer is lost."""
        request = plan.decide_request(self.observed())
        if request is not None:
            self.ask(request)


COUNTS = st.none() | st.integers(1, 9) | st.sampled_from([64, 1024])
ROUTES = st.lists(st.sampled_from(GROUPS), unique=True, max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.tuples(COUNTS, ROUTES)),
        st.tuples(st.just("seal"), st.sampled_from(GROUPS)),
        st.tuples(st.just("reconcile"), st.booleans()),
    ),
    max_size=30,
)


def want(world: World, partitions: int | None, route: list[str]) -> None:
    """Somebody edits the manifest."""
    world.spec = {"route": route} | ({} if partitions is None else {"partitions": partitions})


def run(world: World, steps: list[tuple[str, object]], decide: Decide = plan.decide_request) -> None:
    """Let it all happen; then nothing disturbs any more, and the subject must come to what is wanted."""
    for what, how in steps:
        if what == "want":
            assert isinstance(how, tuple)
            want(world, *how)
        elif what == "seal":
            world.seal(str(how))
        elif how:
            world.reconcile(decide)
        else:
            world.reconcile_deaf()
    for _ in range(STEPS_MAX):
        if world.reconcile(decide).ready:
            break
        for broker_group in GROUPS:
            world.seal(broker_group)


def check(world: World, decide: Decide = plan.decide_request) -> None:
    """What holds at the end."""
    assert world.refused == [], "nothing is asked that controllers must refuse"
    state, observed = world.state, world.observed()
    assert state is not None
    verdict = plan.judge(observed)
    assert verdict.ready, verdict.message
    assert decide(observed) is None, "what is as wanted is left alone"
    partitions = newest(state)
    assert all(each.status is PartitionStatus.OPEN for each in partitions)
    assert observed.wanted.spec.partitions in (None, len(partitions))
    assert set(state.route) <= set(GROUPS), "never on another set's groups"
    if observed.wanted.spec.route:
        assert set(state.route) == set(observed.wanted.spec.route)
    before = state.generation
    world.reconcile(decide)
    assert world.state is not None
    assert world.state.generation == before


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, shared=st.booleans())
def test_a_subject_comes_to_what_is_wanted_and_nothing_is_asked_in_vain(
    steps: list[tuple[str, object]], shared: bool
) -> None:
    """Whatever people want in between, whichever brokers answer when, and whichever answers are lost."""
    world = World(shared)

    run(world, steps)

    check(world)


def impatient(observed: Observed) -> Request | None:
    """A broken variant: asks while partitions are on their way."""
    if observed.state is None:
        return plan.decide_request(observed)
    return plan._missing(observed, observed.state)


def careless(observed: Observed) -> Request | None:
    """A broken variant: lets controllers choose among the groups of all sets."""
    request = plan.decide_request(observed)
    if isinstance(request, Create) and not observed.wanted.spec.route:
        return Create(request.subject, request.order, request.partitions, ())
    return request


@pytest.mark.parametrize("decide", [impatient, careless])
def test_the_checker_catches_a_broken_plan(decide: Decide) -> None:
    """A plan that is broken on purpose is found out."""
    caught = 0
    for seed in range(20):
        world = World(shared=True, source=random.Random(seed))
        world.spec = {"partitions": 2}
        try:
            run(
                world,
                [("reconcile", True), ("want", (4, [])), ("reconcile", True), ("want", (3, []))],
                decide,
            )
            check(world, decide)
        except AssertionError:
            caught += 1

    assert caught > 0


def test_the_order_of_a_subject_is_that_of_the_manifest() -> None:
    """Both words reach the controllers."""
    for order in OrderStrategy:
        world = World(shared=False)
        world.spec = {"orderStrategy": order.value}
        world.reconcile()
        assert world.state is not None
        assert world.state.order_strategy is order
