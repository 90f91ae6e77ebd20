"""What `brokerset upgrade` does next, and what it refuses, in every state of the world."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_cli.takeover.steps import StepState
from brokerset_cli.takeover.upgrade_facts import (
    Comparison,
    Likeness,
    Prepare,
    Presence,
    PutAside,
    StartBroker,
    TakeNote,
    TruncateLog,
)
from brokerset_cli.takeover.upgrade_plan import Plan, logs_wanted, plan_upgrade
from brokerset_formats.identity import BrokerIdentity
from brokerset_rig.upgrade_worlds import (
    M_ADDRESS,
    MASTER,
    PREFIX,
    S_ADDRESS,
    SLAVE,
    group,
    note,
    now,
    prepared,
    running,
    store,
    words,
    world,
)


@pytest.mark.parametrize("seen", [Presence.OLD, Presence.UNKNOWN])
def test_old_controllers_come_first_and_are_stopped_by_people(seen: Presence) -> None:
    """While an old controller answers, or may, nothing else is done: brokers must not switch any more."""
    plan = plan_upgrade(world(old_controllers=seen, old_data=("/c",), brokers=running()))

    assert now(plan) == ("old-controllers", StepState.YOURS)
    assert plan.act is None
    assert "leave the brokers running" in words(plan) or "cannot be seen" in words(plan)


def test_the_old_controllers_data_is_renamed_once_they_are_gone() -> None:
    """It is moved, by us, one folder after the other."""
    assert plan_upgrade(world(old_data=("/c", "/d"))).act == PutAside("/c")


def test_new_controllers_are_wanted_next() -> None:
    """Nobody is stopped before there is something to go to."""
    plan = plan_upgrade(world(controllers_problem="10.0.0.9:9878 is of before 5.1.1", brokers=running()))

    assert now(plan) == ("controllers", StepState.YOURS)
    assert "of before 5.1.1" in words(plan)


def test_controllers_that_know_the_group_already_are_refused() -> None:
    """Ids that others were given there would mix with ours."""
    plan = plan_upgrade(world(replicas=group()))

    assert now(plan) == ("controllers", StepState.BLOCKED)
    assert "they know broker-a with 1 at 10.0.0.1:10911" in words(plan)


def test_a_broker_that_asked_for_its_id_is_known_to_the_controllers_before_it_has_it() -> None:
    """It may have been killed in between; the group is this one then, and nobody has to clean it."""
    leader, slave = prepared()
    asked = world(stores=(replace(leader, claims_id=True), slave), replicas=group(), comparisons={})

    assert now(plan_upgrade(asked)) != ("controllers", StepState.BLOCKED)


def test_who_is_master_is_written_down_while_brokers_run() -> None:
    """It cannot be seen later; a changed answer is written down again."""
    stores = (store(MASTER, locked=7), store(SLAVE, locked=8, note=note()))
    first = plan_upgrade(world(stores=stores, brokers=running(), comparisons={}))
    both = (replace(stores[0], note=note()), stores[1])
    changed = plan_upgrade(world(stores=both, brokers=running(), comparisons={}))

    assert first.act == TakeNote(MASTER, M_ADDRESS, True, 2)
    assert changed.act == TakeNote(MASTER, M_ADDRESS, True, 2)


def test_brokers_of_other_hosts_with_the_same_path_are_not_taken_for_the_one_here() -> None:
    """Each host keeps its store under one path: the broker with an address of this machine is meant."""
    stores = (store(MASTER, locked=7),)
    here, far = (replace(each, store=MASTER) for each in running())
    found = plan_upgrade(world(stores=stores, brokers=(here, replace(far, local=False)), comparisons={}))
    neither = tuple(replace(each, local=False) for each in (here, far))
    unknown = plan_upgrade(world(stores=stores, brokers=neither, comparisons={}))

    assert found.act == TakeNote(MASTER, M_ADDRESS, True, 2)
    assert unknown.act is None


def test_slaves_stop_before_their_master() -> None:
    """A master that goes first would have its slaves wait, or elect; an open port counts as running."""
    both = (store(MASTER, locked=7, note=note(master=True)), store(SLAVE, locked=8, note=note()))
    port = (both[0], store(SLAVE, note=note(), port_open=True))
    last = (both[0], store(SLAVE, note=note()))

    assert words(plan_upgrade(world(stores=both))).startswith("/data/b (locked by process 8)")
    assert words(plan_upgrade(world(stores=port))).startswith(f"/data/b ({S_ADDRESS} is open)")
    assert now(plan_upgrade(world(stores=last))) == ("master-stopped", StepState.YOURS)


def test_a_broker_that_ran_when_facts_were_written_is_said_to_have_run_then() -> None:
    """It may be stopped by now: new facts are asked for."""
    far = store("other:/data/b", locked=8, note=note(), here=False)
    plan = plan_upgrade(world(stores=(store(MASTER, locked=7, note=note(master=True)), far)))

    assert now(plan) == ("slaves-stopped", StepState.YOURS)
    assert "other:/data/b (locked by process 8, when its facts were written)" in words(plan)
    assert "write the facts of other hosts again" in words(plan)


def test_logs_are_read_only_while_nobody_writes_them() -> None:
    """A log that grows is not compared, but that of the new master, which only appends."""
    running_old = world(stores=(store(MASTER, locked=7, note=note(master=True)), store(SLAVE, note=note())))
    leader = store(
        MASTER, locked=7, epochs=((0, 0), (1, 500)), broker_id=1, note=note(master=True, prepared=True)
    )

    assert logs_wanted(world())
    assert not logs_wanted(running_old)
    assert logs_wanted(world(stores=(leader, store(SLAVE, note=note()))))
    assert not logs_wanted(world(stores=(leader, prepared()[1])))


def test_an_unknown_master_is_asked_for() -> None:
    """The longest log decides when nobody saw the master; equal ones are not guessed."""
    equal = world(stores=(store(MASTER), store(SLAVE)), comparisons={})
    longer = world(
        stores=(store(MASTER, end=400), store(SLAVE)), comparisons={MASTER: Comparison(Likeness.PREFIX)}
    )

    assert now(plan_upgrade(equal)) == ("logs", StepState.BLOCKED)
    assert "2 logs are equally long" in words(plan_upgrade(equal))
    assert plan_upgrade(longer).leader == SLAVE


@pytest.mark.parametrize(
    ("likeness", "word"), [(Likeness.APART, "differs from"), (Likeness.LONGER, "has more than")]
)
def test_a_log_that_is_no_beginning_of_the_masters_is_refused(likeness: Likeness, word: str) -> None:
    """It is said what would be cut, from where, how many messages; the way that loses none comes first."""
    found = {SLAVE: Comparison(likeness, 300, 2, 200)}
    plan = plan_upgrade(world(comparisons=found))

    assert now(plan) == ("logs", StepState.BLOCKED)
    assert (
        f"/data/b {word} /data/a; would be cut from offset 300 on: 2 messages, 200 bytes,"
        " which /data/a does not have"
    ) in words(plan)
    way = "--master /data/b, which loses no message: all of /data/a, from 0 to 300, was compared byte by byte"
    assert (way in words(plan)) == (likeness is Likeness.LONGER)
    assert plan_upgrade(world(comparisons=found, accept_cut=frozenset({SLAVE}))).act == TruncateLog(
        SLAVE, 300
    )


def test_that_nothing_is_lost_is_said_only_of_what_was_compared() -> None:
    """Of a log that was compared in blocks, or that begins later than the other, other things are said."""
    blocks = world(comparisons={SLAVE: Comparison(Likeness.LONGER, 256, cut_bytes=244, exact=False)})
    later = world(
        stores=(store(MASTER, note=note(master=True)), store(SLAVE, begin=100, note=note())),
        comparisons={SLAVE: Comparison(Likeness.LONGER, 300, 2, 200)},
    )

    for plan in map(plan_upgrade, (blocks, later)):
        assert now(plan) == ("logs", StepState.BLOCKED)
        assert "loses no" not in words(plan)
    assert "from offset 256 on: 244 bytes, of which /data/a may have a part" in words(plan_upgrade(blocks))
    assert "compares all of /data/a with it before anything is changed" in words(plan_upgrade(blocks))
    assert "has all that /data/a has from 100 to 300" in words(plan_upgrade(later))
    assert "but not what /data/a has before that" in words(plan_upgrade(later))


def test_what_was_compared_is_said() -> None:
    """From where to where each log is the same; while brokers run, when it was compared."""
    stores = (store(MASTER, note=note(master=True)), store(SLAVE, begin=100, end=400, note=note()))
    aligned = plan_upgrade(world(stores=stores))
    empty = plan_upgrade(world(stores=(stores[0], store(SLAVE, end=0, note=note()))))
    settled = plan_upgrade(world(stores=prepared(locked=7), comparisons={}))

    def detail(plan: Plan) -> str:
        return next(each.detail for each in plan.steps if each.name == "logs")

    assert detail(aligned) == "/data/a leads; /data/b is the same from 100 to 400, its end"
    assert detail(empty) == "/data/a leads; /data/b is empty"
    assert detail(settled) == "brokers run now; compared before the epochs were written"


@pytest.mark.parametrize("likeness", [Likeness.NOTHING, Likeness.UNKNOWN])
def test_what_cannot_be_compared_is_never_taken(likeness: Likeness) -> None:
    """Not even with --accept-cut."""
    found = {SLAVE: Comparison(likeness)}
    plan = plan_upgrade(world(comparisons=found, accept_cut=frozenset({SLAVE})))

    assert now(plan) == ("logs", StepState.BLOCKED)
    assert plan.act is None


@pytest.mark.parametrize("found", [Comparison(Likeness.NOTHING), Comparison(Likeness.APART, 0, 5, 500)])
def test_a_store_that_has_to_be_emptied_stays_a_store(found: Comparison) -> None:
    """Without config it would be none, and without its manifest nobody knew its broker."""
    plan = plan_upgrade(world(comparisons={SLAVE: found}))

    assert "move all but config and upgrade-backup out of /data/b" in words(plan)


def test_a_missing_store_is_missed() -> None:
    """Three brokers were seen: two stores are not enough, unless the person says so."""
    stores = (store(MASTER, note=note(master=True, members=3)), store(SLAVE, note=note()))
    plan = plan_upgrade(world(stores=stores))

    assert "broker-a has 3 brokers, and 2 of their stores can be seen" in words(plan)
    assert plan_upgrade(world(stores=stores, members=2)).act == Prepare(MASTER, False, MASTER)


def test_a_single_store_is_the_whole_group_only_when_somebody_says_so() -> None:
    """Nobody saw the brokers run: it may be a slave's, and the master may have more."""
    alone = (store(SLAVE),)
    plan = plan_upgrade(world(stores=alone, comparisons={}))

    assert now(plan) == ("logs", StepState.BLOCKED)
    assert "--members" in words(plan)
    assert now(plan_upgrade(world(stores=alone, comparisons={}, members=1))) == ("epochs", StepState.READY)


def test_epochs_are_replaced_only_when_logs_are_aligned() -> None:
    """One store after the other; an empty log has no first epoch."""
    one = (prepared()[0], store(SLAVE, note=note(), end=0))

    assert plan_upgrade(world()).act == Prepare(MASTER, False, MASTER)
    assert plan_upgrade(world(stores=one)).act == Prepare(SLAVE, True, MASTER)


def test_the_master_starts_first() -> None:
    """By us when we know how; by the person, who is told to leave the others, otherwise."""
    person = plan_upgrade(world(stores=prepared()))

    assert now(person) == ("start-master", StepState.YOURS)
    assert "leave the others stopped" in words(person)
    assert plan_upgrade(world(stores=prepared(), can_start=True)).act == StartBroker(MASTER)


def test_who_leads_is_kept_from_the_time_when_the_logs_could_be_read() -> None:
    """Later neither the lengths of logs tell it, nor another --master: the decided one has everything."""
    leader, slave = prepared(locked=7)
    decided = replace(leader, note=note(prepared=True, leader=MASTER))
    known = replace(
        decided, store=replace(decided.store, identity=BrokerIdentity("c", "broker-a", 1), end=None)
    )
    late = replace(slave, note=note(prepared=True), store=replace(slave.store, end=None))
    elected = world(stores=(known, late), replicas=group(two=False), comparisons={}, can_start=True)
    not_yet = world(stores=(replace(decided, store=replace(decided.store, end=None)), late), comparisons={})

    assert plan_upgrade(elected).act == StartBroker(SLAVE)
    assert plan_upgrade(replace(elected, wanted_master=SLAVE)).leader == MASTER
    assert plan_upgrade(not_yet).leader == MASTER


def test_an_old_broker_that_comes_back_among_half_prepared_stores_is_to_be_stopped() -> None:
    """While one store is not prepared, whatever runs on a prepared one without an id is an old broker."""
    leader = prepared(locked=7)[0]
    plan = plan_upgrade(world(stores=(leader, store(SLAVE, note=note())), comparisons={}))

    assert now(plan) == ("master-stopped", StepState.YOURS)


def test_a_slave_that_runs_early_stops_everything() -> None:
    """It could be elected, and the others would be cut to its log."""
    leader, slave = prepared()
    early = replace(slave, store=replace(slave.store, locked_by=9))
    elected = replace(
        slave, store=replace(slave.store, locked_by=9, identity=BrokerIdentity("c", "broker-a", 1))
    )
    plan = plan_upgrade(world(stores=(leader, early), can_start=True, comparisons={}))
    wrong = plan_upgrade(world(stores=(leader, elected), replicas=group(two=False), comparisons={}))

    assert now(plan) == ("start-master", StepState.BLOCKED)
    assert now(wrong) == ("start-master", StepState.BLOCKED)
    assert "/data/b was elected" in words(wrong)


def test_an_elected_master_that_dies_while_slaves_copy_is_started_again_and_stops_nobody() -> None:
    """It alone is in sync, so nobody else can be elected meanwhile."""
    leader, slave = prepared()
    known = replace(leader, store=replace(leader.store, identity=BrokerIdentity("c", "broker-a", 1)))
    copies = replace(slave, store=replace(slave.store, locked_by=9))
    dead = group(master=None, two=False, alive=False)
    ours = world(stores=(known, copies), replicas=dead, comparisons={}, can_start=True)

    assert plan_upgrade(ours).act == StartBroker(MASTER)
    assert now(plan_upgrade(replace(ours, can_start=False))) == ("start-master", StepState.YOURS)


def test_slaves_start_when_the_master_was_elected() -> None:
    """1006 shows it; until then the master is waited for."""
    leader, slave = prepared(locked=7)
    waiting = plan_upgrade(world(stores=(leader, slave), can_start=True, comparisons={}))
    known = replace(leader, store=replace(leader.store, identity=BrokerIdentity("c", "broker-a", 1)))
    elected = plan_upgrade(
        world(stores=(known, slave), can_start=True, replicas=group(two=False), comparisons={})
    )
    dead = plan_upgrade(
        world(stores=(known, slave), can_start=True, replicas=group(two=False, alive=False), comparisons={})
    )

    assert now(waiting) == ("start-master", StepState.WAITING)
    assert elected.act == StartBroker(SLAVE)
    assert dead.act is None


def test_the_end_is_when_all_are_in_sync() -> None:
    """Whoever leads by then: a later switch does not open the steps again."""
    stores = tuple(
        replace(
            each, store=replace(each.store, locked_by=7, identity=BrokerIdentity("c", "broker-a", number))
        )
        for number, each in enumerate(prepared(), 1)
    )
    late = plan_upgrade(world(stores=stores, replicas=group(in_sync=False), comparisons={}))

    assert now(late) == ("in-sync", StepState.WAITING)
    assert plan_upgrade(world(stores=stores, replicas=group(), comparisons={})).done
    assert plan_upgrade(world(stores=stores, replicas=group(master=2), comparisons={})).done


def test_a_store_that_has_old_epochs_again_is_prepared_again() -> None:
    """Somebody put them back, or `--back` was cut off: no new broker is started on them.

    A broker with an id, whose first files are gone, has thrown the first epoch away itself.
    """
    old = (prepared()[0], store(SLAVE, note=note(prepared=True)))
    grown = store(SLAVE, epochs=((3, 400),), broker_id=2, note=note(prepared=True))

    assert plan_upgrade(world(stores=old, can_start=True)).act == Prepare(SLAVE, False, MASTER)
    assert grown.prepared


def test_stores_that_need_no_upgrade_or_cannot_be_taken_are_refused_first() -> None:
    """A persistent id, a DLedger, another group, other file sizes: each is named."""
    new = world(stores=(store(MASTER, broker_id=4), store(SLAVE)))
    ledger = world(stores=(store(MASTER, problem="/data/a has the log of a DLedger"), store(SLAVE)))
    other = world(group="broker-b")
    sized = store(SLAVE)
    sizes = world(stores=(store(MASTER), replace(sized, store=replace(sized.store, file_size=2048))))

    assert "has the persistent id 4 already" in words(plan_upgrade(new))
    assert "has the log of a DLedger" in words(plan_upgrade(ledger))
    assert "belongs to the group broker-a, not to broker-b" in words(plan_upgrade(other))
    assert "different sizes ([1024, 2048])" in words(plan_upgrade(sizes))


def test_a_store_on_another_host_is_compared_there_and_started_there() -> None:
    """Here we wait for what that host says; our own slaves are prepared by us."""
    there = store("other:/data/a", note=note(master=True), here=False)
    mine = store(SLAVE, note=note())
    unknown = plan_upgrade(world(stores=(mine, there), comparisons={}))
    aligned = plan_upgrade(world(stores=(mine, there), comparisons=PREFIX))
    ready = plan_upgrade(world(stores=(prepared()[1], there), comparisons=PREFIX))
    joined = plan_upgrade(
        world(stores=(prepared()[1], there), comparisons=PREFIX, replicas=group(two=False), can_start=True)
    )

    assert "--write-facts" in words(unknown)
    assert aligned.act == Prepare(SLAVE, False, "other:/data/a")
    assert now(ready) == ("start-master", StepState.YOURS)
    assert "run this command there" in words(ready)
    assert joined.act == StartBroker(SLAVE)
