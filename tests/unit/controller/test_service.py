"""How the service decides, has decisions agreed on, and answers, on an engine that agrees at once."""

from __future__ import annotations

import asyncio

from brokerset_controller.liveness import ReplicaKey, Standing
from brokerset_controller.replicas.codec import decode_event, encode_event
from brokerset_controller.replicas.events import (
    BrokerIdApplied,
    MasterElected,
    ReplicasCleaned,
    ReplicaStarted,
)
from brokerset_protocol.bodies.replicas import SyncStateSet
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import FLAG_ONEWAY, Command
from brokerset_protocol.headers.controller import (
    CleanControllerBrokerData,
    GetNextBrokerId,
    GetReplicaInfo,
    NotifyBrokerRoleChanged,
)
from brokerset_raft.engine import OutcomeUnknown, Overloaded
from brokerset_rig.controller_bench import (
    CLUSTER,
    GROUP,
    Bench,
    FakeBroker,
    FakeConnection,
    make_bench,
)
from brokerset_runtime.remoting import RequestTimeout

NEXT_ID = GetNextBrokerId(cluster_name=CLUSTER, broker_name=GROUP)


async def three(bench: Bench, *, ours: bool = False) -> None:
    """Three brokers, all alive on connections of their own, 1 is master, all in sync."""
    for broker_id in (1, 2, 3):
        nonce = f"start-{broker_id}" if ours else None
        await bench.join(broker_id, nonce)
        await bench.beat(broker_id, nonce, connection=FakeConnection(broker_id))
    assert (await bench.elect(1)).code == 0
    await bench.in_sync(1, {1, 2, 3})


async def test_who_does_not_lead_answers_2007_without_anything_else() -> None:
    """Followers and leaders that have not applied their own no-op decide nothing."""

    bench = make_bench()
    bench.engine.follow(2)

    for code in (1001, 1002, 1003, 1004, 1006, 1011, 1012, 1013):
        body = SyncStateSet(frozenset({1}), 1).to_json() if code == 1001 else b'["a"]'
        ext = {"brokerName": GROUP, "brokerAddress": "h:1"}
        answer = await bench.ask(code, ext, body)

        assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER, code
        assert (answer.ext, answer.body) == ({}, b"")
        assert "n2" in (answer.remark or "")
    assert bench.engine.barriers == 0


async def test_a_read_is_decided_after_its_barrier() -> None:
    """What was committed while the barrier was under way is in the answer."""

    bench = make_bench()

    async def another_controller() -> None:
        bench.engine.commit(encode_event(BrokerIdApplied(CLUSTER, GROUP, None, 0, 1, "h:1", "h:1;1")))

    bench.engine.before_barrier = another_controller
    answer = await bench.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, NEXT_ID)

    assert answer.ext["nextBrokerId"] == "2"


async def test_a_decision_without_event_is_made_again_after_the_barrier() -> None:
    """A leader that was deposed and leads again does not refuse from the past."""

    bench = make_bench()
    await bench.join(1)

    async def cleaned() -> None:
        event = ReplicasCleaned(GROUP, frozenset({1}), 0, 0)
        bench.engine.commit(encode_event(event))

    bench.engine.before_barrier = cleaned
    answer = await bench.register(1)

    assert answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


async def test_a_deposed_leader_answers_2007_at_the_barrier() -> None:
    """Leadership that ends between the check and the confirmation is noticed."""

    bench = make_bench()

    async def deposed() -> None:
        bench.engine.follow(None)

    bench.engine.before_barrier = deposed
    answer = await bench.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, NEXT_ID)

    assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER


async def test_two_who_apply_for_the_same_id_at_once_get_different_answers() -> None:
    """Both are decided on the same state; the second event is superseded and decided again."""

    bench = make_bench()

    def apply(code: str) -> dict[str, str]:
        return {
            "clusterName": CLUSTER,
            "brokerName": GROUP,
            "appliedBrokerId": "1",
            "registerCheckCode": code,
        }

    answers = await asyncio.gather(
        bench.ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, apply("h:1;1")),
        bench.ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, apply("h:2;1")),
    )

    assert [answer.code for answer in answers] == [0, ResponseCode.CONTROLLER_BROKER_ID_INVALID]
    assert answers[1].ext["nextBrokerId"] == "2"
    assert len(bench.engine.proposed) == 2


async def test_an_election_that_is_always_overtaken_ends() -> None:
    """After `electMasterMaxRetryCount` tries the answer says so instead of trying on."""

    bench = make_bench(elect_master_max_retry_count=2)
    await bench.join(1)
    await bench.beat(1)
    proposed = len(bench.engine.proposed)

    async def overtake() -> None:
        group = bench.machine.groups[GROUP]
        event = MasterElected(
            GROUP, 1, group.master_epoch + 1, group.master_epoch, group.sync_state_set_epoch, False, "x"
        )
        bench.engine.commit(encode_event(event))
        gone = bench.machine.groups[GROUP]
        bench.engine.commit(
            encode_event(
                ReplicaStarted(GROUP, 1, gone.replicas[1].nonce, f"n{gone.master_epoch}", "h:1", False, 0)
            )
        )
        bench.engine.before_propose = overtake

    bench.engine.before_propose = overtake
    answer = await bench.elect(1)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "repeat" in (answer.remark or "")
    assert len(bench.engine.proposed) - proposed == 2


async def test_an_unknown_outcome_and_an_overload_say_so() -> None:
    """Code 1 with the advice to repeat, and code 2."""

    bench = make_bench()

    async def unknown() -> None:
        raise OutcomeUnknown("lost")

    async def overloaded() -> None:
        raise Overloaded("full")

    bench.engine.before_barrier = unknown
    first = await bench.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, NEXT_ID)
    bench.engine.before_barrier = overloaded
    second = await bench.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, NEXT_ID)

    assert (first.code, second.code) == (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY)
    assert "unknown" in (first.remark or "")
    counted = bench.service.measurements.requests
    assert counted["CONTROLLER_GET_NEXT_BROKER_ID", "timeout"] == 1
    assert counted["CONTROLLER_GET_NEXT_BROKER_ID", "failed"] == 1


async def test_a_registration_is_answered_from_the_state_after_its_event() -> None:
    """The incarnation is the new one, and the connection counts as heard."""

    bench = make_bench()
    await bench.join(1, "first")
    bench.net.brokers["10.0.0.1:10911"].nonce = "second"  # the new process has the port already

    answer = await bench.register(1, "second", last_nonce="first", log_epoch=4, log_offset=77)

    assert answer.code == 0, answer.remark
    assert answer.ext["incarnation"] == "2"
    view = bench.service.view(GROUP)
    assert view.alive(1)
    assert (view.lives[1].nonce, view.lives[1].epoch, view.lives[1].max_offset) == ("second", 4, 77)


async def test_a_second_process_is_refused_while_the_first_answers() -> None:
    """The address that was registered is asked before anything is decided."""

    bench = make_bench()
    await bench.join(1, "first")

    answer = await bench.register(1, "copy", last_nonce="first", address="10.9.9.9:1")

    assert answer.code == ResponseCode.BROKERSET_IDENTITY_CONFLICT
    assert bench.machine.groups[GROUP].replicas[1].nonce == "first"


async def test_a_process_takes_over_at_once_when_the_former_host_is_gone() -> None:
    """The former one still counts as alive, for nothing told of its end; the question does."""

    bench = make_bench()
    await bench.join(1, "first")
    await bench.beat(1, "first")
    del bench.net.brokers["10.0.0.1:10911"]

    answer = await bench.register(1, "second", last_nonce="first", address="10.9.9.9:1")

    assert answer.code == 0, answer.remark
    assert bench.machine.groups[GROUP].replicas[1].address == "10.9.9.9:1"


async def test_a_beat_of_an_overtaken_process_is_refused_by_the_leader_only() -> None:
    """A follower may lag behind, and its refusal would end a healthy master."""

    bench = make_bench()
    await bench.join(1, "first")

    refused = await bench.beat(1, "older")
    one_way = await bench.beat(1, "older", flag=FLAG_ONEWAY)
    barriers = bench.engine.barriers
    bench.engine.follow(1)
    ignored = await bench.beat(1, "older")

    assert refused.code == ResponseCode.BROKERSET_IDENTITY_CONFLICT
    assert "stop" in (refused.remark or "")
    assert (one_way.code, ignored.code) == (0, 0)
    assert bench.engine.barriers == barriers
    assert bench.service.measurements.heartbeats_ignored == 3
    assert bench.service.view(GROUP).lives[1].nonce == "first"


async def test_beats_of_unknown_replicas_leave_nothing_behind() -> None:
    """Strangers cannot fill the table."""

    bench = make_bench()

    answer = await bench.beat(7)

    assert answer.code == 0
    assert len(bench.liveness) == 0


async def test_the_first_election_of_a_java_broker_does_not_wait_for_its_beat() -> None:
    """RocketMQ's brokers send 1002 and 904 at the same time, in no order."""

    bench = make_bench()
    await bench.join(1)
    assert not bench.service.view(GROUP).alive(1)

    answer = await bench.elect(1)

    assert (answer.code, answer.ext["masterBrokerId"]) == (0, "1")


async def test_a_closed_connection_is_asked_about_and_a_dead_master_replaced() -> None:
    """The port is refused: a new master at once, and the living brokers are told."""

    bench = make_bench()
    connection = FakeConnection(1)
    async with bench.running():
        await three(bench)
        await bench.beat(1, connection=connection)
        epoch = bench.machine.groups[GROUP].master_epoch
        del bench.net.brokers["10.0.0.1:10911"]
        bench.net.told.clear()

        bench.service.connection_closed(connection)
        await bench.until(lambda: len(bench.net.told) == 2)

    group = bench.machine.groups[GROUP]
    assert group.master_id in (2, 3)
    assert group.master_epoch == epoch + 1
    assert sorted(address for address, _ in bench.net.told) == ["10.0.0.2:10911", "10.0.0.3:10911"]
    notice = bench.net.told[0][1]
    header = NotifyBrokerRoleChanged.from_ext(notice.ext)
    assert notice.code == RequestCode.NOTIFY_BROKER_ROLE_CHANGED
    assert (header.master_broker_id, header.master_epoch) == (group.master_id, group.master_epoch)
    assert SyncStateSet.from_json(notice.body).sync_state_set == {group.master_id}
    assert bench.service.measurements.probes["refused"] >= 1


async def test_a_master_that_answers_as_itself_stays() -> None:
    """Its connection ended, nothing else did."""

    bench = make_bench()
    connection = FakeConnection(1)
    async with bench.running():
        await three(bench, ours=True)
        await bench.beat(1, "start-1", connection=connection)
        before = bench.machine.groups[GROUP]

        bench.service.connection_closed(connection)
        await bench.until(lambda: bench.service.measurements.probes.get("alive", 0) > 0)
        await bench.until(lambda: bench.service.view(GROUP).alive(1))

    assert bench.machine.groups[GROUP] == before


async def test_a_master_whose_port_another_process_has_is_dead() -> None:
    """The answer names another start nonce."""

    bench = make_bench()
    connection = FakeConnection(1)
    async with bench.running():
        await three(bench, ours=True)
        await bench.beat(1, "start-1", connection=connection)
        bench.net.brokers["10.0.0.1:10911"] = FakeBroker(1, "not committed")
        assert "someone_else" not in bench.service.measurements.probes

        bench.service.connection_closed(connection)
        await bench.until(lambda: bench.machine.groups[GROUP].master_id != 1)

    assert bench.service.measurements.probes["someone_else"] == 1


async def test_the_end_of_a_replaced_connection_means_nothing() -> None:
    """The record follows the newest connection on which a beat came."""

    bench = make_bench()
    old, new = FakeConnection(1), FakeConnection(2)
    async with bench.running():
        await three(bench)
        await bench.beat(1, connection=old)
        await bench.beat(1, connection=new)

        bench.service.connection_closed(old)

        assert bench.service.view(GROUP).alive(1)
        assert bench.net.brokers["10.0.0.1:10911"].asked == 0


async def test_silence_is_asked_about() -> None:
    """A master that hangs neither closes its connection nor answers."""

    bench = make_bench()
    async with bench.running():
        await three(bench)
        bench.net.brokers["10.0.0.1:10911"].silent = True
        bench.clock.advance(2_000)
        await bench.beat(2)
        await bench.beat(3)
        bench.clock.advance(1_500)

        await bench.until(lambda: bench.machine.groups[GROUP].master_id != 1)

    assert bench.service.measurements.probes["silent"] >= 1


async def test_a_new_leader_asks_everybody_it_has_not_heard_before_it_judges() -> None:
    """A living master that has not sent a beat to this controller yet stays master."""

    bench = make_bench()
    await three(bench)
    before = bench.machine.groups[GROUP]
    for broker_id in (1, 2, 3):
        bench.liveness.forget(ReplicaKey(GROUP, broker_id))
    leading = bench.engine.status
    bench.engine.follow(None)

    async with bench.running():
        await asyncio.sleep(0)
        assert not bench.net.brokers["10.0.0.1:10911"].asked
        bench.engine.status = leading
        bench.service.engine_changed(leading)
        await bench.until(lambda: all(bench.service.view(GROUP).alive(i) for i in (1, 2, 3)))

    assert bench.machine.groups[GROUP] == before


async def test_a_new_leader_replaces_a_master_that_died_meanwhile() -> None:
    """Nobody told it, so it asks: refused."""

    bench = make_bench()
    await three(bench)
    for broker_id in (1, 2, 3):
        bench.liveness.forget(ReplicaKey(GROUP, broker_id))
    del bench.net.brokers["10.0.0.1:10911"]

    async with bench.running():
        await bench.until(lambda: bench.machine.groups[GROUP].master_id in (2, 3))

    assert bench.service.view(GROUP).standing(1) is Standing.DEAD


async def test_a_controller_that_just_started_gives_brokers_time_to_be_heard() -> None:
    """A master behind an address out of reach sends heartbeats; silence counts when those had their time."""

    bench = make_bench()
    await three(bench)
    master = bench.net.brokers["10.0.0.1:10911"]
    master.silent = True
    bench.liveness.forget(ReplicaKey(GROUP, 1))

    async with bench.running():
        await bench.until(lambda: master.asked > 3)
        assert (await bench.elect(2)).code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        assert bench.machine.groups[GROUP].master_id == 1
        assert bench.service.view(GROUP).standing(1) is Standing.UNKNOWN

        bench.clock.advance(2_500)
        await bench.until(lambda: bench.machine.groups[GROUP].master_id != 1)


async def test_a_question_that_was_held_up_here_is_asked_again() -> None:
    """After an overload or a SIGSTOP of the controller the time has run out, whatever the broker did."""

    bench = make_bench()
    await three(bench)
    before = bench.machine.groups[GROUP]
    master, ask, held_up = bench.net.brokers["10.0.0.1:10911"], bench.net.ask, [True]

    async def stopped_once(address: str, command: Command, timeout: float) -> Command:
        if held_up and address == "10.0.0.1:10911":
            held_up.clear()
            bench.clock.advance(1_000)
            raise RequestTimeout("no answer")
        return await ask(address, command, timeout)

    connection = FakeConnection(7)
    await bench.beat(1, connection=connection)
    bench.net.ask = stopped_once  # type: ignore[method-assign]  # the network of this one scene
    async with bench.running():
        bench.service.connection_closed(connection)
        await bench.until(lambda: master.asked == 1 and bench.service.view(GROUP).alive(1))

    assert bench.machine.groups[GROUP] == before


async def test_a_volume_that_ends_before_what_its_last_process_told_leaves_the_set() -> None:
    """It was restored from a backup that has the right nonces, but not all acknowledged messages."""

    bench = make_bench()
    await three(bench, ours=True)  # beats told of epoch 1 and offset 100
    del bench.net.brokers["10.0.0.2:10911"], bench.net.brokers["10.0.0.3:10911"]

    short = await bench.register(2, "x", last_nonce="start-2", log_epoch=1, log_offset=99)
    whole = await bench.register(3, "y", last_nonce="start-3", log_epoch=1, log_offset=100)

    assert (short.code, whole.code) == (0, 0)
    assert bench.machine.groups[GROUP].sync_state_set == {1, 3}


async def test_without_a_candidate_nothing_changes_until_one_comes_back() -> None:
    """No epoch is used up while everybody is dead; a beat of an in-sync replica ends it."""

    bench = make_bench()
    connections = {broker_id: FakeConnection(broker_id) for broker_id in (1, 2, 3)}
    async with bench.running():
        await three(bench)
        before = bench.machine.groups[GROUP]
        bench.net.brokers.clear()
        for broker_id, connection in connections.items():
            await bench.beat(broker_id, connection=connection)
        for connection in connections.values():
            bench.service.connection_closed(connection)
        await bench.until(lambda: bench.service.masterless_groups == 1)
        await asyncio.sleep(0.05)
        assert bench.machine.groups[GROUP] == before

        await bench.beat(2)
        await bench.until(lambda: bench.machine.groups[GROUP].master_id == 2)

    assert bench.machine.groups[GROUP].master_epoch == before.master_epoch + 1
    assert bench.service.masterless_groups == 0


async def test_a_restarted_master_is_elected_again_with_another_epoch() -> None:
    """Its registration ends its mastership; the controller elects without being asked."""

    bench = make_bench()
    async with bench.running():
        await three(bench, ours=True)
        epoch = bench.machine.groups[GROUP].master_epoch
        bench.net.brokers["10.0.0.1:10911"].nonce = "again"

        answer = await bench.register(1, "again", last_nonce="start-1")
        await bench.until(lambda: bench.machine.groups[GROUP].master_id is not None)

    assert answer.code == 0, answer.remark
    assert bench.machine.groups[GROUP].master_epoch > epoch + 1


async def test_cleaning_asks_first_and_forgets_what_it_cleaned() -> None:
    """An id that was given and never used can be cleaned although nobody was heard of it."""

    bench = make_bench()
    await three(bench)
    await bench.ask(
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        {
            "clusterName": CLUSTER,
            "brokerName": GROUP,
            "appliedBrokerId": "4",
            "registerCheckCode": "10.0.0.4:10911;1",
        },
    )
    header = CleanControllerBrokerData(
        cluster_name=CLUSTER, broker_name=GROUP, broker_controller_ids_to_clean="4"
    )

    answer = await bench.ask(RequestCode.CLEAN_BROKER_DATA, header)

    assert answer.code == 0, answer.remark
    assert 4 not in bench.machine.groups[GROUP].replicas
    assert 4 not in bench.service.view(GROUP).lives


async def test_notices_can_be_switched_off() -> None:
    """`notifyBrokerRoleChanged=false`: brokers find out by asking."""

    bench = make_bench(notify_broker_role_changed=False)
    async with bench.running():
        await three(bench)

    assert bench.net.told == []
    info = await bench.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfo(broker_name=GROUP))
    assert info.ext["masterBrokerId"] == "1"


async def test_events_are_what_is_proposed() -> None:
    """An election is one event."""

    bench = make_bench()
    await bench.join(1)
    before = len(bench.engine.proposed)

    await bench.elect(1)

    events = [decode_event(data) for data in bench.engine.proposed[before:]]
    assert [type(event) for event in events] == [MasterElected]
