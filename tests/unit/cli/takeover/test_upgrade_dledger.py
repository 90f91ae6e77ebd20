"""What `brokerset upgrade dledger` does next, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_cli.takeover.steps import StepState
from brokerset_cli.takeover.upgrade_facts import (
    BrokerSeen,
    Comparison,
    Exchange,
    Likeness,
    Note,
    Origin,
    Prepare,
    StartBroker,
    StoreSeen,
    TakeNote,
    World,
)
from brokerset_cli.takeover.upgrade_plan import choose_leader, plan_upgrade
from brokerset_rig.upgrade_worlds import M_ADDRESS, MASTER, SLAVE, group, note, now, store, words, world

THIRD = "/data/c"
LEVELS = "1s 5s"
SAME = Comparison(Likeness.PREFIX, 500)


def member(
    path: str,
    *,
    last: tuple[int, int] | None = (2, 9),
    end: int = 500,
    committed: int = 500,
    exchange: str = "",
    chosen: tuple[int, int] | None = None,
    leads: bool = False,
    **more: int | None,
) -> StoreSeen:
    """A store of a group of three, noted while its broker ran."""
    known = note(master=leads, flow="dledger", members=3, exchange=exchange, chosen=chosen)
    seen = store(path, epochs=None, end=end, note=known, **more)  # type: ignore[arg-type]  # of a store
    ledger = "" if exchange == "done" else "dledger-n0"
    return replace(seen, store=replace(seen.store, ledger=ledger, last=last, committed=committed))


def three(*stores: StoreSeen, found: Comparison = SAME, **changes: object) -> World:
    """All members are stopped and noted; the first one led."""
    every = {each.name: each for each in (member(MASTER, leads=True), member(SLAVE), member(THIRD))}
    every |= {each.name: each for each in stores}
    comparisons = dict.fromkeys((SLAVE, THIRD, MASTER), found)
    return world(Origin.DLEDGER, stores=tuple(every.values()), comparisons=comparisons, **changes)


def test_the_steps_are_those_of_other_flows_but_for_one() -> None:
    """Sends are not turned away: what was acknowledged is on a quorum, whatever stops in which order."""
    steps = [each.name for each in plan_upgrade(three()).steps]

    assert steps == [
        "stores", "controllers", "notes", "slaves-stopped", "master-stopped", "logs", "exchange", "epochs",
        "start-master", "start-slaves", "in-sync",
    ]  # fmt: skip


def test_all_members_count_also_those_that_do_not_run() -> None:
    """`dLegerPeers` names them; and the delay levels by which messages were stored are kept."""
    seen = BrokerSeen(M_ADDRESS, True, store=MASTER, members=3, delay_levels=LEVELS)
    first = store(MASTER, epochs=None, locked=7)
    first = replace(first, store=replace(first.store, ledger="dledger-n0"))

    plan = plan_upgrade(world(Origin.DLEDGER, stores=(first,), brokers=(seen,)))

    assert plan.act == TakeNote(MASTER, M_ADDRESS, True, 3, LEVELS)


def test_the_leader_stops_last_and_the_newest_entry_decides_afterwards() -> None:
    """By term, then by index, then who led: a deposed leader with a longer log does not count."""
    running = three(
        *(member(path, last=None, locked=7, leads=path == SLAVE) for path in (MASTER, SLAVE, THIRD))
    )

    assert now(plan_upgrade(running)) == ("slaves-stopped", StepState.YOURS)
    assert SLAVE not in words(plan_upgrade(running))
    for stores, wanted in (
        ((), MASTER),
        ((member(THIRD, last=(2, 10)),), THIRD),
        (
            (
                member(MASTER, last=(1, 30), leads=True),
                member(SLAVE, last=(2, 8)),
                member(THIRD, last=(2, 7)),
            ),
            SLAVE,
        ),
    ):
        found, _ = choose_leader(three(*stores))
        assert found is not None
        assert found.name == wanted


def test_stores_of_other_kinds_are_sent_to_the_flow_that_takes_them() -> None:
    """A DLedger to this one, a commit log to `classic`; files of one size are wanted by both."""
    plain = three(store(SLAVE, epochs=None, note=note(flow="dledger")))
    small = three(replace(member(SLAVE), store=replace(member(SLAVE).store, file_size=4096)))
    classic = world(Origin.CLASSIC, stores=(member(MASTER),))

    assert "`brokerset upgrade classic` takes such stores" in words(plan_upgrade(plain))
    assert "take `brokerset upgrade dledger`" in words(plan_upgrade(classic))
    assert "different sizes" in words(plan_upgrade(small))


def test_fewer_stores_than_a_quorum_are_refused() -> None:
    """Others may have been told to be stored what these lack, whatever --members says."""
    one = three(members=1)
    one = replace(one, stores=one.stores[:1])

    assert now(plan_upgrade(one)) == ("logs", StepState.BLOCKED)
    assert "1 of 3 members are no quorum" in words(plan_upgrade(one))
    assert "has 3 brokers, and 1 of their stores" in words(plan_upgrade(replace(one, members=0)))


@pytest.mark.parametrize(
    ("stores", "found", "text"),
    [
        ((member(MASTER, committed=600, leads=True),), SAME, "can be read to 500, and is committed to 600"),
        ((), Comparison(Likeness.UNKNOWN), "could not be compared"),
        ((), Comparison(Likeness.NOTHING), "no byte in common"),
        (
            (),
            Comparison(Likeness.APART, 300, 4, 200),
            "from 300 on, and calls what lies before 500 committed",
        ),
    ],
)
def test_what_would_lose_something_committed_stops_it(
    stores: tuple[StoreSeen, ...], found: Comparison, text: str
) -> None:
    """Nothing is changed; what a member alone has is given up only when the person says so."""
    it = three(*stores, found=found)

    assert now(plan_upgrade(it)) == ("logs", StepState.BLOCKED)
    assert text in words(plan_upgrade(it))
    accepted = plan_upgrade(replace(it, accept_cut=frozenset({SLAVE, THIRD})))
    assert (now(accepted)[0] == "exchange") == (not stores)


def test_another_master_than_the_newest_is_refused() -> None:
    """--master says who led, not what is lost."""
    it = three(member(SLAVE, last=(2, 12)), wanted_master=MASTER)

    assert "ends with entry 9 of term 2, /data/b with entry 12 of term 2" in words(plan_upgrade(it))


@pytest.mark.parametrize(
    ("ends", "committed", "until"),
    [
        ((500, 500), 500, None),
        ((500, 300), 0, None),
        ((400, 300), 0, 400),
        ((400, 300), 450, 450),
        ((0, 0), 0, None),
    ],
)
def test_what_no_quorum_has_is_left_out(ends: tuple[int, int], committed: int, until: int | None) -> None:
    """Nobody was told that it is stored; but what a checkpoint calls committed stays, whatever was lost."""
    stores = [member(path, committed=committed, leads=path == MASTER) for path in (MASTER, SLAVE, THIRD)]
    it = three(*stores)
    found = {path: Comparison(Likeness.PREFIX, end) for path, end in zip((SLAVE, THIRD), ends, strict=True)}

    plan = plan_upgrade(replace(it, comparisons=found))

    assert plan.act == Exchange(MASTER, (2, 9), until)


def test_a_store_that_is_not_seen_may_have_all_of_it() -> None:
    """Then more is kept than was acknowledged, and never less."""
    it = three(member(MASTER, committed=0, leads=True), members=2)
    it = replace(it, stores=it.stores[:2], comparisons={SLAVE: Comparison(Likeness.PREFIX, 400)})

    assert plan_upgrade(it).act == Exchange(MASTER, (2, 9), None)


def test_the_chosen_store_comes_first_then_the_others_then_epochs() -> None:
    """Until its messages were read back, every other DLedger stays where it is."""
    chosen = member(MASTER, exchange="done", chosen=(2, 9), leads=True, last=None)
    begun = replace(chosen, note=replace(chosen.note or Note("", ""), exchange="begun"))
    empty = [member(path, exchange="done", end=0, last=None) for path in (SLAVE, THIRD)]

    assert plan_upgrade(three(begun)).act == Exchange(MASTER, (2, 9), None)
    assert plan_upgrade(three(chosen)).act == Exchange(SLAVE, None)
    assert plan_upgrade(three(chosen, empty[0])).act == Exchange(THIRD, None)
    assert plan_upgrade(three(chosen, *empty)).act == Prepare(MASTER, False, MASTER)


def test_members_that_ran_since_the_store_was_chosen_are_not_emptied() -> None:
    """They are a quorum without it, and may have taken messages."""
    chosen = member(MASTER, exchange="done", chosen=(2, 9), leads=True, last=None)
    it = three(chosen, member(SLAVE, last=(3, 11)))

    assert now(plan_upgrade(it)) == ("exchange", StepState.BLOCKED)
    assert "old brokers have run since" in words(plan_upgrade(it))
    assert plan_upgrade(replace(it, accept_cut=frozenset({SLAVE}))).act == Exchange(SLAVE, None)


def test_an_old_broker_on_an_exchanged_store_is_seen() -> None:
    """It has made a DLedger of its own there."""
    chosen = member(MASTER, exchange="done", chosen=(2, 9), leads=True)
    chosen = replace(chosen, store=replace(chosen.store, ledger="dledger-n0"))

    assert "has dledger-n0 again" in words(plan_upgrade(three(chosen)))


def test_stores_of_another_host_wait_for_the_chosen_one_there() -> None:
    """Its facts tell when its messages are safe in their new place."""
    chosen = replace(member(MASTER, last=(2, 12), leads=True), here=False)
    it = three(chosen)
    late = three(replace(member(MASTER, exchange="done", chosen=(2, 12), leads=True, last=None), here=False))

    assert now(plan_upgrade(it)) == ("exchange", StepState.YOURS)
    assert "is on another host" in words(plan_upgrade(it))
    assert plan_upgrade(late).act == Exchange(SLAVE, None)


def test_from_the_epochs_on_it_is_as_in_other_flows() -> None:
    """The chosen store's broker first; all are in sync in the end."""
    first = member(MASTER, exchange="done", chosen=(2, 9), leads=True, last=None)
    stores = [first, *(member(path, exchange="done", end=0, last=None) for path in (SLAVE, THIRD))]
    ready = [replace(each, note=replace(each.note or Note("", ""), prepared=True)) for each in stores]

    plan = plan_upgrade(three(*ready, can_start=True))

    assert plan.act == StartBroker(MASTER)
    assert plan_upgrade(three(*ready, replicas=group())).steps[-1].name == "in-sync"
