"""Events and snapshots as bytes."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from types import MappingProxyType

import orjson
import pytest

from brokerset_controller.machine import Change, ReplicasMachine
from brokerset_controller.replicas.codec import decode_event, decode_groups, encode_event, encode_groups
from brokerset_controller.replicas.events import (
    Applied,
    BrokerIdApplied,
    FencingChanged,
    GroupRebuilt,
    ReplicaMoved,
    ReplicaStarted,
    Superseded,
)
from brokerset_controller.replicas.state import GROUPS_MAX, Group, PossibleLoss, Replica
from brokerset_sim.replica_groups import CLUSTER, NAME, group_of

GROUP = replace(
    group_of(1, 2, 3, master=1, epoch=4, in_sync=(1, 2), set_epoch=6, suspects=(3,), owner="uid", next_id=9),
    losses=(PossibleLoss(3, 1, -1, "why"),),
    unclaimed=frozenset((5, 7)),
)
FENCED = replace(GROUP, fenced=frozenset((3,)))
UNPROVEN = replace(GROUP, unproven=frozenset((3,)))
FIRST = BrokerIdApplied(CLUSTER, NAME, "uid", 3, 1, "h1:1", "h1:1;5")


def test_the_format_does_not_change_by_accident() -> None:
    """Bytes that are in logs and snapshots already must stay readable: a change needs another version."""
    assert encode_event(FIRST) == b'[1,"BrokerIdApplied","demo","a","uid",3,1,"h1:1","h1:1;5"]'
    assert encode_groups([GROUP]) == (
        b'[1,[["demo","a","uid",0,9,[[1,"h1:1","h1:1;1","n1",1],[2,"h2:1","h2:1;2","n2",1],'
        b'[3,"h3:1","h3:1;3","n3",1]],1,4,[1,2],6,[3],[[3,1,-1,"why"]],[5,7]]]]'
    )
    assert decode_groups(encode_groups([GROUP])) == {NAME: GROUP}


def test_fences_are_written_in_the_second_format() -> None:
    """Only what is new is: controllers of the first version go on until somebody fences a replica."""
    event = FencingChanged(NAME, 3, True, 4, 6)

    assert encode_event(event) == b'[2,"FencingChanged","a",3,true,4,6]'
    assert decode_event(encode_event(event)) == event
    assert encode_groups([FENCED]).startswith(b'[2,[["demo","a",')
    assert encode_groups([FENCED]).endswith(b"[5,7],[3]]]]")
    assert decode_groups(encode_groups([FENCED])) == {NAME: FENCED}
    assert decode_event(encode_event(GroupRebuilt(FENCED))) == GroupRebuilt(FENCED)


def test_unclean_stops_are_written_in_the_third_format() -> None:
    """Starts and groups without them are written as ever, and read, whoever wrote them."""
    event = ReplicaStarted(NAME, 3, "n3", "next", "h3:1", False, 0, "uid")
    unclean = replace(event, unclean=True)

    assert encode_event(event) == b'[1,"ReplicaStarted","a",3,"n3","next","h3:1",false,0,"uid"]'
    assert encode_event(unclean) == b'[3,"ReplicaStarted","a",3,"n3","next","h3:1",false,0,"uid",true]'
    assert [decode_event(encode_event(each)) for each in (event, unclean)] == [event, unclean]
    assert encode_groups([UNPROVEN]).startswith(b'[3,[["demo","a",')
    assert encode_groups([UNPROVEN]).endswith(b"[5,7],[],[3]]]]")
    both = [replace(FENCED, broker_name="b"), UNPROVEN]
    assert decode_groups(encode_groups(both)) == {each.broker_name: each for each in both}


def test_every_field_of_a_group_is_written() -> None:
    """A field that were forgotten would differ between a restored controller and the others."""
    default, full = Group("", ""), replace(FENCED, unproven=frozenset((3,)))
    changed = [
        field.name for field in fields(Group) if getattr(full, field.name) != getattr(default, field.name)
    ]

    assert set(changed) == {field.name for field in fields(Group)} - {"expected_replicas"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"[1]",
        b"[true]",
        b'[4,"ReplicaMoved","a",1,"h:1"]',
        b'[1,"ReplicaStarted","a",3,"n3","next","h3:1",false,0]',
        b'[0,"ReplicaMoved","a",1,"h:1"]',
        b'[1,"Nothing"]',
        b"[1,7]",
        b'[1,"ReplicaMoved","a",1]',
        b'[1,"ReplicaMoved","a",1,"h:1",0]',
        b'[1,"ReplicaMoved","a","1","h:1"]',
        b'[1,"ReplicaMoved","a",-1,"h:1"]',
        b'[1,"ReplicaMoved","a",true,"h:1"]',
        b'[1,"ReplicaMoved",null,1,"h:1"]',
        b'[1,"ReplicasCleaned","a",[1,1],0,0]',
        b'[1,"ReplicasCleaned","a",{},0,0]',
        b'[1,"GroupRebuilt",[]]',
        b"\xff\x00",
    ],
)
def test_garbage_is_no_event(data: bytes) -> None:
    """A `ValueError` says what is wrong; nothing else is raised."""
    with pytest.raises(ValueError, match=r"."):
        decode_event(data)


@pytest.mark.parametrize(
    "group",
    [
        replace(GROUP, master_id=9),
        replace(GROUP, sync_state_set=frozenset((1, 9))),
        replace(GROUP, suspects=frozenset((9,))),
        replace(GROUP, fenced=frozenset((9,))),
        replace(GROUP, unproven=frozenset((2,))),
        replace(GROUP, next_broker_id=3),
    ],
)
def test_a_snapshot_whose_parts_disagree_is_refused(group: Group) -> None:
    """Damage that JSON does not show."""
    with pytest.raises(ValueError, match="the group 'a'"):
        decode_groups(encode_groups([group]))


@pytest.mark.parametrize("data", [b"[1]", b"[1,[],0]", b"[1,[[]]]", b"[1,{}]", b"[9,[]]"])
def test_garbage_is_no_snapshot(data: bytes) -> None:
    """Neither is a newer format."""
    with pytest.raises(ValueError, match=r"."):
        decode_groups(data)
    with pytest.raises(ValueError, match="twice"):
        decode_groups(orjson.dumps([1, [orjson.loads(encode_groups([GROUP]))[1][0]] * 2]))


def test_a_thousand_groups_take_little_time() -> None:
    """A snapshot is written and read on the loop that answers brokers: well below 100 ms."""
    groups = {
        f"broker-{i}": replace(
            GROUP,
            broker_name=f"broker-{i}",
            replicas=MappingProxyType(
                {j: Replica(j, f"10.0.0.{j}:10911", f"c;{i}", f"n{i}", i) for j in (1, 2, 3)}
            ),
        )
        for i in range(1_000)
    }
    best = min(_timed(groups) for _ in range(3))

    assert best < 0.1


def _timed(groups: dict[str, Group]) -> float:
    start = time.process_time()
    assert decode_groups(encode_groups(groups.values())) == dict(sorted(groups.items()))
    return time.process_time() - start


def test_the_machine_applies_restores_and_tells() -> None:
    """Listeners see what was before and after, also of events that changed nothing."""
    machine, copy = ReplicasMachine(), ReplicasMachine()
    changes: list[Change] = []
    machine.listeners.append(changes.append)

    assert machine.apply(1, encode_event(FIRST)) == Applied()
    assert machine.apply(2, encode_event(FIRST)) == Applied()
    assert isinstance(machine.apply(3, encode_event(ReplicaMoved("none", 1, "h:1"))), Superseded)
    copy.restore(machine.snapshot())

    assert [(change.index, change.before is change.after) for change in changes] == [
        (1, False),
        (2, True),
        (3, True),
    ]
    assert copy.groups == machine.groups
    assert list(machine.groups) == [NAME]
    assert machine.group(None) is None
    with pytest.raises(ValueError, match="no JSON"):
        machine.apply(4, b"\x00")


def test_the_number_of_groups_is_limited() -> None:
    """One group more than the limit is refused by every controller alike."""
    machine = ReplicasMachine()
    machine.groups = {f"g{i}": Group("c", f"g{i}") for i in range(GROUPS_MAX)}

    outcome = machine.apply(1, encode_event(FIRST))

    assert isinstance(outcome, Superseded)
    assert len(machine.groups) == GROUPS_MAX
