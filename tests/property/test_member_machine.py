"""The member machine under any order of inputs: what must hold after each of them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.member.core import (
    OWN_STEPS,
    Action,
    CarryOut,
    Circumstances,
    Member,
    RoleTaken,
    Serve,
    Step,
    SwitchEnded,
)
from brokerset_broker.member.role import GroupNews, Role
from brokerset_broker.member.service_mode import ModeKind
from brokerset_rig.examples import examples

OWN = 1
MEMBERS = frozenset((1, 2, 3))

news = st.builds(
    lambda epoch, master, set_epoch: GroupNews(
        epoch, master, None if master is None else f"{master}:1", set_epoch, MEMBERS
    ),
    st.integers(1, 9),
    st.sampled_from([OWN, OWN, 2, 3, None]),
    st.integers(0, 9),
)
inputs = st.one_of(
    st.tuples(st.just("news"), news, st.booleans()),
    st.tuples(st.just("step"), st.booleans()),
    st.tuples(st.just("steps"), st.integers(1, 20)),
    st.tuples(st.just("time"), st.sampled_from([0.0, 0.3, 1.2, 3.0])),
    st.tuples(st.just("lease"), st.integers(1, 9), st.sampled_from([500, 2_000])),
    st.tuples(st.just("epoch"), st.integers(1, 9)),
    st.tuples(st.just("give up"), st.booleans()),
    st.tuples(st.just("in sync"), st.booleans(), st.booleans()),
    st.tuples(st.just("fence"), st.booleans()),
    st.tuples(st.just("hand over"), st.booleans()),
    st.tuples(st.just("lost")),
    st.tuples(st.just("registered"), st.integers(0, 9)),
)


class Watched:
    """A machine, a shell that carries out nothing, and what was seen so far."""

    def __init__(self) -> None:
        self.member = Member("nonce", poll_seconds=1.0, heartbeat_seconds=0.5)
        self.now = 100.0
        self.open: CarryOut | None = None
        self.serves = False
        self.services = False
        self.replicas = False
        self.follows = False
        self.epoch = 0
        self.may_append = False

    def give(self, what: tuple[Any, ...]) -> None:
        if what[0] == "steps":
            for _ in range(what[1]):
                self.give(("step", False))
            return
        member = self.member
        member.observe(self.now, Circumstances())
        match what:
            case ("news", told, may_elect):
                member.received(told, may_elect=may_elect)
            case ("step", fails):
                if self.open is None:
                    return
                done, self.open = self.open, None
                if done.step is Step.STOP_SERVICES:
                    fails = False  # `RoleServices.stop` reports what fails, and goes on
                if not fails:
                    self.done(done.step)
                member.step_ended("it cannot be done" if fails else "")
            case ("time", seconds):
                self.now += seconds
                member.observe(self.now, Circumstances())
                member.tick()
            case ("lease", epoch, length):
                member.lease_granted(self.now, length, epoch)
            case ("epoch", epoch):
                member.epoch_known(epoch)
            case ("give up", asking):
                member.give_up_lease(asking=asking)
            case ("in sync", enough, confirmed):
                member.in_sync_changed(enough=enough, epoch_confirmed=confirmed)
            case ("fence", on):
                member.fence(on)
            case ("hand over", on):
                member.hand_over(on)
            case ("lost",):
                member.lost_identity()
            case ("registered", group_epoch):
                member.registered(OWN, group_epoch)
        for action in member.take_actions():
            self.see(action)
        self.check()

    def done(self, step: Step) -> None:
        """What a step that was carried out has changed in the world."""
        match step:
            case Step.START_SERVICES:
                assert not self.services
                self.services = True
            case Step.STOP_SERVICES:
                self.services = False
            case Step.ACCEPT_REPLICAS:
                self.replicas = True
            case Step.CLOSE_REPLICAS:
                self.replicas = False
            case Step.FOLLOW:
                assert not self.replicas, "the controller's master does not follow"
                self.follows = True
            case Step.STOP_FOLLOWING:
                self.follows = False
            case Step.BEGIN_EPOCH:
                assert not self.follows, "bytes of an older epoch may still come"
                assert not self.serves, "a send may be appended in no epoch"

    def see(self, action: Action) -> None:
        match action:
            case CarryOut(step):
                assert self.open is None, "one step at a time"
                assert step not in OWN_STEPS
                self.open = action
            case Serve(modes):
                self.serves = modes.writes.kind is ModeKind.SERVE
                assert self.serves is (action.refusal is None)
                if self.serves:
                    assert self.member.role.role is Role.MASTER
                    assert not self.member.holds_writes
            case RoleTaken(_, after):
                assert after.epoch >= self.epoch, "epochs only grow"
                self.epoch = after.epoch
                if after.role is not Role.MASTER:
                    assert not self.services
            case SwitchEnded():
                pass

    def check(self) -> None:
        member = self.member
        assert member.switching is (self.open is not None), "a change without a step stands still"
        if self.services:
            assert member.role.role is Role.MASTER
        if not member.switching:
            assert not member.holds_writes, "nobody would let the sends go"
            assert self.services is (member.role.role is Role.MASTER)


@examples(400)
@given(st.lists(inputs, max_size=60))
def test_any_order_of_inputs_keeps_the_order_of_a_change(given_inputs: list[tuple[Any, ...]]) -> None:
    """One step at a time, services only where the broker leads, nothing appended between two epochs, and
    every change comes to its end."""
    watched = Watched()
    watched.give(("registered", 0))

    for each in given_inputs:
        watched.give(each)
    for _ in range(200):
        watched.give(("step", False))

    assert not watched.member.switching
