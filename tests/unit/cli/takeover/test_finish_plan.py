"""What `adopt --finish` does next, for every state of a set on its way out of Java's cluster."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from brokerset_cli.takeover.adopt_plan import Replica
from brokerset_cli.takeover.finish_plan import (
    CLIENTS,
    LEAVE,
    NAME_SERVERS,
    NO_WAY_BACK,
    OWN,
    WHOLE,
    FinishFacts,
    Owner,
    OwnGroup,
    needs_adopt,
    plan_finish,
    why_not_own,
)
from brokerset_cli.takeover.steps import Step, StepState, current

BOTH = (Replica(3, "o:1", True, True, True), Replica(4, "o:2", True, True, True))
GROUP = OwnGroup("g", 2, BOTH, 3)
DONE, READY, YOURS = StepState.DONE, StepState.READY, StepState.YOURS
WAITING, BLOCKED, LATER = StepState.WAITING, StepState.BLOCKED, StepState.LATER

WHOLE_NOW = FinishFacts(
    owner=Owner.JOINED,
    folder="/ours",
    groups=(GROUP,),
    set_runs=True,
    serving=True,
    java_answers=True,
    java_name_servers="j:9876",
    java_controllers="j:9878",
)
"""Every group is ours, as nobody has noticed yet."""

SEEN = replace(WHOLE_NOW, whole_seen=True)
BESIDE = replace(SEEN, name_servers="o:9876;o:9886")
"""Our name servers run alongside."""

MOVED = replace(BESIDE, clients_moved=True)
"""All is ready for `own`."""

STOPPED = replace(MOVED, own_begun=True, set_runs=False, serving=False)
"""`own` was cut off when our brokers had stopped."""

STARTING = replace(MOVED, owner=Owner.OWN, own_begun=True, serving=False, java_answers=False)
"""Our brokers belong to our controllers."""

UNKNOWN = OwnGroup("g", 2)
KNOWN = OwnGroup("g", 2, BOTH, 3, known=True)
OURS = replace(STARTING, groups=(KNOWN,), controllers_answer=True, serving=True)
LEFT = replace(OURS, owner=Owner.ORDINARY)


def step_of(name: str, state: StepState, detail: str = "") -> Step:
    return Step(name, "A step of adopt.", state, detail)


def now(facts: FinishFacts) -> tuple[str, StepState] | None:
    step = current(plan_finish(facts))
    return None if step is None else (step.name, step.state)


def out_of_sync(group: OwnGroup) -> OwnGroup:
    return replace(group, replicas=(group.replicas[0], replace(group.replicas[1], in_sync=False)))


def dead(group: OwnGroup, place: int) -> OwnGroup:
    replicas = list(group.replicas)
    replicas[place] = replace(replicas[place], alive=False)
    return replace(group, replicas=tuple(replicas))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        # whole
        (WHOLE_NOW, (WHOLE, READY)),
        (replace(WHOLE_NOW, changed=("j:1",)), (WHOLE, YOURS)),
        (replace(WHOLE_NOW, adoption=step_of("retire:g:1", YOURS)), (WHOLE, YOURS)),
        (replace(WHOLE_NOW, adoption=step_of("switch:g", READY)), (WHOLE, YOURS)),
        (replace(WHOLE_NOW, adoption=step_of("catch-up", WAITING)), (WHOLE, WAITING)),
        (replace(WHOLE_NOW, java_answers=False), (WHOLE, BLOCKED)),
        (replace(SEEN, groups=(replace(GROUP, java=("j:1",)),)), (WHOLE, YOURS)),
        (
            replace(SEEN, java_answers=False, groups=(replace(GROUP, java=("j:1",)),)),
            (WHOLE, YOURS),
        ),
        (replace(SEEN, adoption=step_of("catch-up", WAITING)), (WHOLE, WAITING)),
        (replace(SEEN, adoption=step_of("switch:g", READY)), (WHOLE, YOURS)),
        # name-servers
        (SEEN, (NAME_SERVERS, READY)),
        (replace(SEEN, java_answers=False), (NAME_SERVERS, READY)),
        (replace(SEEN, set_runs=False, adoption=step_of("join", READY)), (NAME_SERVERS, READY)),
        (replace(SEEN, set_runs=False, java_answers=False), (NAME_SERVERS, BLOCKED)),
        (replace(BESIDE, missing=("g at o:1",)), (NAME_SERVERS, READY)),
        (replace(BESIDE, missing=("g at o:1",), asked=True), (NAME_SERVERS, WAITING)),
        (replace(BESIDE, order_topics=("t",), asked=True), (NAME_SERVERS, READY)),
        (replace(BESIDE, set_runs=False), (NAME_SERVERS, READY)),
        (replace(MOVED, own_begun=True, stopping=True, missing=("g at o:1",)), (NAME_SERVERS, WAITING)),
        (replace(MOVED, own_begun=True, stopping=True, java_answers=False), (NAME_SERVERS, WAITING)),
        # clients
        (BESIDE, (CLIENTS, YOURS)),
        (replace(BESIDE, java_answers=False), (CLIENTS, YOURS)),
        # own, as guests
        (MOVED, (OWN, READY)),
        (replace(MOVED, java_answers=False), (OWN, READY)),
        (replace(MOVED, groups=(out_of_sync(GROUP),)), (OWN, WAITING)),
        (replace(MOVED, groups=(dead(GROUP, 0),)), (OWN, WAITING)),
        (replace(MOVED, groups=(dead(GROUP, 1),)), (OWN, WAITING)),
        (replace(MOVED, groups=(replace(GROUP, master_id=None),)), (OWN, WAITING)),
        (replace(MOVED, groups=(replace(GROUP, wanted=3),)), (OWN, WAITING)),
        (replace(MOVED, groups=(replace(GROUP, java_in_sync=("j:1",)),)), (OWN, WAITING)),
        (replace(MOVED, groups=()), (OWN, WAITING)),
        (replace(MOVED, own_begun=True), (OWN, READY)),
        # own, once our brokers have stopped for it
        (STOPPED, (OWN, READY)),
        (replace(STOPPED, java_answers=False, groups=(UNKNOWN,)), (OWN, READY)),
        (replace(STOPPED, adoption=step_of("join", READY), groups=(dead(GROUP, 0),)), (OWN, READY)),
        (replace(STOPPED, groups=(replace(GROUP, java=("j:1",)),)), (OWN, BLOCKED)),
        (replace(STOPPED, groups=(replace(GROUP, java_in_sync=("j:1",)),)), (OWN, BLOCKED)),
        # own, under our controllers
        (replace(STARTING, set_runs=False), (OWN, READY)),
        (STARTING, (OWN, WAITING)),
        (replace(STARTING, controllers_answer=True, groups=(UNKNOWN,)), (OWN, WAITING)),
        (
            replace(STARTING, controllers_answer=True, groups=(replace(UNKNOWN, answered=1),)),
            (OWN, WAITING),
        ),
        (
            replace(STARTING, controllers_answer=True, groups=(replace(UNKNOWN, answered=2),)),
            (OWN, READY),
        ),
        (
            replace(STARTING, controllers_answer=True, groups=(KNOWN, replace(UNKNOWN, answered=2))),
            (OWN, READY),
        ),
        (replace(OURS, groups=(replace(KNOWN, master_id=None),)), (OWN, WAITING)),
        (replace(OURS, groups=(out_of_sync(KNOWN),)), (OWN, WAITING)),
        (replace(OURS, groups=(dead(KNOWN, 1),)), (OWN, WAITING)),
        (replace(OURS, serving=False), (OWN, WAITING)),
        # leave
        (OURS, (LEAVE, READY)),
        (LEFT, (LEAVE, READY)),
        (replace(LEFT, set_runs=False), (LEAVE, READY)),
        (replace(LEFT, remembered=False), None),
    ],
)
def test_the_next_step_of_the_end(facts: FinishFacts, expected: tuple[str, StepState] | None) -> None:
    """The first step that the world does not show as done is next, in the state that it allows."""
    assert now(facts) == expected


def every_state() -> list[FinishFacts]:
    """All facts that the plan looks at, combined; groups in every state that matters, one or two of them."""
    groups = [
        (),
        (GROUP,),
        (GROUP, replace(GROUP, name="h")),
        (out_of_sync(GROUP),),
        (GROUP, out_of_sync(replace(GROUP, name="h"))),
        (dead(GROUP, 0),),
        (replace(GROUP, java=("j:1",)),),
        (replace(GROUP, java_in_sync=("j:1",)),),
        (replace(GROUP, master_id=None),),
        (UNKNOWN,),
        (replace(UNKNOWN, answered=2),),
        (KNOWN,),
    ]
    adoptions = (None, step_of("catch-up", WAITING), step_of("switch:g", READY))
    found = []
    for standing, some, adoption in product(Owner, groups, adoptions):
        for runs, java, whole, moved, begun, ours in product((False, True), repeat=6):
            for changed, missing, name_servers in product(((), ("j:1",)), ((), ("g",)), ("", "o:9876")):
                found.append(
                    FinishFacts(
                        owner=standing,
                        folder="/ours",
                        groups=some,
                        set_runs=runs,
                        serving=True,
                        controllers_answer=ours,
                        java_answers=java,
                        adoption=adoption,
                        changed=changed,
                        whole_seen=whole,
                        clients_moved=moved,
                        own_begun=begun,
                        name_servers=name_servers,
                        missing=missing,
                    )
                )
    return found


STATES = every_state()


def test_brokers_are_stopped_only_when_nothing_can_be_lost_and_nobody_is_left_behind() -> None:
    """In no state guests are to stop while one of ours is not in sync, a Java broker runs, clients may use
    other name servers, or settings are to be put back; but for those that have stopped for it already."""
    offered = 0
    for facts in STATES:
        own = next(step for step in plan_finish(facts) if step.name == OWN)
        if facts.owner is not Owner.JOINED or own.state is not READY:
            continue
        offered += 1
        assert not any(group.java or group.java_in_sync for group in facts.groups)
        assert not facts.changed
        assert facts.groups
        if facts.set_runs:
            assert facts.clients_moved
            assert facts.whole_seen
            assert facts.name_servers
            assert not facts.missing
            for group in facts.groups:
                assert all(each.alive and each.in_sync for each in group.replicas)
                assert len(group.replicas) == group.wanted
                assert group.master_id is not None
        else:
            assert facts.own_begun
    assert offered > 0


def test_every_state_has_an_end_or_says_what_is_next() -> None:
    """A step of the person's says how it is done, a blocked one what to change, a waiting one what for."""
    for facts in STATES:
        step = current(plan_finish(facts))
        if step is None:
            assert facts.owner is Owner.ORDINARY
            continue
        assert step.state is not LATER
        if step.state in (YOURS, BLOCKED):
            assert step.hint, facts
        if step.state is WAITING:
            assert step.detail, facts


def test_steps_behind_own_never_lead_back() -> None:
    """Once our brokers have stopped for `own`, nobody asks for what came before, whatever answers."""
    for facts in STATES:
        if not facts.past_joined:
            continue
        step = current(plan_finish(facts))
        assert step is None or step.name in (OWN, LEAVE)
        assert not needs_adopt(facts)


def test_the_step_without_a_way_back_says_so() -> None:
    """It is the only one before the end; the others say how they are undone."""
    steps = {step.name: step for step in plan_finish(MOVED)}

    assert NO_WAY_BACK in steps[OWN].title
    assert steps[OWN].back == ""
    assert all(steps[name].back for name in (WHOLE, NAME_SERVERS, CLIENTS))
    assert not any(step.back for step in plan_finish(STARTING))


def test_the_hint_for_clients_can_be_pasted() -> None:
    """It has our name servers as clients take them, and the command that says that all of them have moved."""
    step = current(plan_finish(BESIDE))

    assert step is not None
    assert "namesrvAddr=o:9876;o:9886 " in step.hint
    assert "`brokerset adopt --data /ours --finish --clients-moved`" in step.hint


def test_what_adopt_has_to_do_first_is_left_to_it() -> None:
    """What it only waits for is waited for here; what it would do or ask for, it is named for."""
    assert needs_adopt(replace(SEEN, adoption=step_of("switch:g", READY)))
    assert needs_adopt(replace(SEEN, adoption=step_of("retire:g:1", YOURS)))
    assert not needs_adopt(replace(SEEN, adoption=step_of("catch-up", WAITING)))
    assert not needs_adopt(replace(SEEN, adoption=step_of("join", READY), set_runs=False))
    assert needs_adopt(replace(WHOLE_NOW, adoption=step_of("join", READY), set_runs=False))
    back = replace(SEEN, adoption=step_of("join", READY), set_runs=False)
    back = replace(back, groups=(replace(GROUP, java=("j:1",)),))
    assert needs_adopt(back), "a Java broker that came back while ours were down may be master by now"

    step = current(plan_finish(replace(SEEN, adoption=step_of("switch:g", READY, "master g/1"))))

    assert step is not None
    assert step.detail == "switch:g: master g/1"
    assert "`brokerset adopt --data /ours`" in step.hint


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (replace(MOVED, groups=(out_of_sync(GROUP),)), "g: 1 of our 2 brokers are in sync"),
        (replace(MOVED, groups=(replace(GROUP, master_id=None),)), "g has no master of ours"),
        (replace(MOVED, groups=(replace(GROUP, java=("j:1", "j:2")),)), "j:1, j:2"),
        (replace(BESIDE), "clients"),
        (replace(MOVED, missing=("g at o:1",)), "g at o:1"),
        (replace(STOPPED, groups=(replace(GROUP, java_in_sync=("j:1",)),)), "j:1 counts as in sync"),
        (MOVED, ""),
    ],
)
def test_why_brokers_must_not_stop_is_said(facts: FinishFacts, said: str) -> None:
    """The reason names the group, the measurements, or the address."""
    found = why_not_own(facts)

    assert said in found
    assert bool(found) is bool(said)
