"""What `adopt` does next, for every state of a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_cli.takeover.adopt_plan import (
    Facts,
    GroupFacts,
    Replica,
    heir_of,
    plan_adoption,
    plan_return,
    why_not_leave,
    why_not_retire,
)
from brokerset_cli.takeover.steps import Step, StepState, current, until_step


def java(broker_id: int, *, alive: bool = True, in_sync: bool = True, answers: bool | None = None) -> Replica:
    address = f"10.0.0.{broker_id}:10911"
    return Replica(broker_id, address, alive, in_sync, False, alive if answers is None else answers, 100)


def ours(broker_id: int, *, alive: bool = True, in_sync: bool = True, log_end: int | None = 100) -> Replica:
    return Replica(broker_id, f"10.0.1.{broker_id}:10911", alive, in_sync, True, alive, log_end)


def group(*replicas: Replica, master: int | None = 1, needs: int = 1, read_only: str = "") -> GroupFacts:
    return GroupFacts("broker-a", master, replicas, needs, frozenset({1, 2}), read_only)


def facts(*groups: GroupFacts, wanted: int = 2, obstacles: tuple[str, ...] = (), runs: bool = True) -> Facts:
    return Facts(groups, wanted, obstacles, runs, True)


def now(steps: tuple[Step, ...]) -> tuple[str, StepState] | None:
    step = current(steps)
    return None if step is None else (step.name, step.state)


BOTH = (java(1), java(2), ours(3), ours(4))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (facts(group(java(1), java(2)), obstacles=("a reason",)), ("look", StepState.BLOCKED)),
        (facts(group(java(1), java(2)), runs=False), ("join", StepState.READY)),
        (facts(group(java(1), java(2))), ("join", StepState.WAITING)),
        (facts(group(java(1), java(2), ours(3))), ("join", StepState.WAITING)),
        (facts(group(*BOTH), runs=False), ("join", StepState.READY)),
        (
            facts(group(java(1), java(2), ours(3), ours(4, in_sync=False))),
            ("catch-up", StepState.WAITING),
        ),
        (facts(group(*BOTH)), ("switch:broker-a", StepState.READY)),
        (facts(group(*BOTH, master=None)), ("switch:broker-a", StepState.WAITING)),
        (facts(group(*BOTH, master=3, read_only="10.0.0.1:10911")), ("switch:broker-a", StepState.READY)),
        (facts(group(*BOTH, master=3)), ("retire:broker-a:1", StepState.YOURS)),
        (
            facts(group(java(1, alive=False, answers=True), java(2), ours(3), ours(4), master=3)),
            ("retire:broker-a:1", StepState.WAITING),
        ),
        (
            facts(group(java(1, alive=False), java(2), ours(3), ours(4), master=3)),
            ("retire:broker-a:2", StepState.YOURS),
        ),
        (
            facts(group(java(1, alive=False), java(2, alive=False), ours(3), ours(4), master=3)),
            None,
        ),
    ],
)
def test_the_next_step_of_an_adoption(state: Facts, expected: tuple[str, StepState] | None) -> None:
    """The first step that the world does not show as done is next, in the state that it allows."""
    assert now(plan_adoption(state)) == expected


def test_a_command_stops_brokers_instead_of_the_person() -> None:
    """With a command that stops Java's brokers the step is ours; once it ran it is waited for."""
    given = replace(facts(group(*BOTH, master=3)), stop_with=True)
    ran = replace(given, stopped=frozenset({"retire:broker-a:1"}))

    assert now(plan_adoption(given)) == ("retire:broker-a:1", StepState.READY)
    assert now(plan_adoption(ran)) == ("retire:broker-a:1", StepState.WAITING)


def test_the_person_is_told_what_to_do() -> None:
    """A step of the person's says what to stop, and where it is."""
    step = current(plan_adoption(facts(group(*BOTH, master=3))))

    assert step is not None
    assert "10.0.0.1:10911" in step.hint


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (
            facts(group(java(1, alive=False), java(2, alive=False), ours(3), ours(4), master=3)),
            ("return:broker-a:1", StepState.YOURS),
        ),
        (
            facts(group(java(1, in_sync=False), java(2), ours(3), ours(4), master=3)),
            ("return:broker-a:1", StepState.WAITING),
        ),
        (facts(group(*BOTH, master=3)), ("switch:broker-a", StepState.READY)),
        (facts(group(*BOTH, master=None)), ("switch:broker-a", StepState.WAITING)),
        (facts(group(*BOTH, master=1, read_only="10.0.0.1:10911")), ("switch:broker-a", StepState.READY)),
        (facts(group(*BOTH, master=1)), ("leave", StepState.READY)),
        (facts(), ("leave", StepState.WAITING)),
        (facts(group(master=None)), ("switch:broker-a", StepState.WAITING)),
    ],
)
def test_the_next_step_of_giving_back(state: Facts, expected: tuple[str, StepState]) -> None:
    """The way back goes through Java's brokers in sync and Java's master before ours may leave."""
    assert now(plan_return(state)) == expected


def test_java_brokers_that_wait_for_ours_are_not_waited_for() -> None:
    """Ours were stopped, perhaps by `adopt --finish`, and have what Java's lack: the person starts them."""
    lonely = group(java(1, in_sync=False), ours(3, alive=False), ours(4, alive=False), master=None)
    step = current(plan_return(facts(lonely, runs=False)))

    assert step is not None
    assert (step.name, step.state) == ("return:broker-a:1", StepState.YOURS)
    assert "`brokerset up --detach`" in step.hint
    assert now(plan_return(facts(lonely))) == ("return:broker-a:1", StepState.WAITING)


def test_nothing_is_left_to_give_back_without_a_folder() -> None:
    """When the folder is gone, the way back has no steps."""
    assert plan_return(replace(facts(group(*BOTH)), folder=False)) == ()


def test_ours_never_leave_a_group_that_the_controllers_do_not_know() -> None:
    """Our copies may be the only ones: a group without a Java master that lives keeps them."""
    assert why_not_leave(facts(group(master=None)))
    assert why_not_leave(facts())
    assert why_not_leave(facts(group(java(1), java(2, in_sync=False), ours(3), master=1)))
    assert not why_not_leave(facts(group(java(1), java(2), ours(3), master=1)))


def test_a_broker_that_the_group_needs_is_not_retired() -> None:
    """A Java broker stays while fewer would be in sync than sends need, or ours are not whole."""
    assert why_not_retire(group(java(1), ours(3), master=3, needs=2), java(1), 1)
    assert why_not_retire(group(java(1), ours(3), ours(4, in_sync=False), master=3), java(1), 2)
    assert why_not_retire(group(*BOTH, master=1), java(1), 2)
    assert why_not_retire(group(*BOTH, master=3, read_only="10.0.0.1:10911"), java(1), 2)
    assert not why_not_retire(group(*BOTH, master=3, needs=2), java(1), 2)


def test_the_master_is_asked_for_last() -> None:
    """Java's brokers are listed in the order in which they can go."""
    assert [each.broker_id for each in group(*BOTH, master=1).theirs] == [2, 1]


def test_brokers_that_were_dead_before_are_no_part_of_it() -> None:
    """A replica that did not live when the adoption began is neither retired nor asked back."""
    assert [each.broker_id for each in group(java(1), java(7, alive=False)).theirs] == [1]


def test_the_heir_has_most_of_the_log() -> None:
    """Of those in sync the one with the longest log is made master; others never are."""
    behind = ours(3, log_end=90)

    assert heir_of(group(java(1), behind, ours(4)), ours=True) == ours(4)
    assert heir_of(group(java(1), ours(3, in_sync=False), ours(4, alive=False)), ours=True) is None


def test_to_stops_behind_the_last_step_of_a_kind() -> None:
    """`--to switch` means the switches of all groups; an unknown step is an error."""
    steps = plan_adoption(facts(group(*BOTH), replace(group(*BOTH), name="broker-b")))

    names = [step.name for step in until_step(steps, "switch")]

    assert names == ["look", "join", "catch-up", "switch:broker-a", "switch:broker-b"]
    with pytest.raises(KeyError):
        until_step(steps, "swich")


def test_to_stops_behind_the_last_step_of_a_group() -> None:
    """`--to retire:broker-a` means all brokers of that group."""
    steps = [
        Step(name, "", StepState.LATER, "") for name in ("look", "retire:a:1", "retire:a:2", "retire:b:1")
    ]

    assert [step.name for step in until_step(steps, "retire:a")] == ["look", "retire:a:1", "retire:a:2"]
