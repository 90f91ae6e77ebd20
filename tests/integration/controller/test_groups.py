"""Controllers over real sockets and real folders: leadership, kept state, elections, members."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from brokerset_controller.app import Controller
from brokerset_controller.node_folder import WrongFolder
from brokerset_protocol.bodies.controllers import ControllerStatus, GroupState, GroupStates, ReplicaState
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import (
    ChangeMembers,
    GetMetaDataResponse,
    GetNextBrokerId,
    GetReplicaInfo,
    TransferLeader,
)
from brokerset_rig.controller_group import (
    CLUSTER,
    GROUP,
    HOST,
    SECONDS_MAX,
    ControllerGroup,
    FakeBroker,
    brokers,
    controllers,
)
from brokerset_rig.stack import free_port
from brokerset_rig.waiting import until
from brokerset_runtime.disk import RealDisk
from brokerset_runtime.remoting import connect

NEXT_ID = GetNextBrokerId(cluster_name=CLUSTER, broker_name=GROUP)


async def status_of(group: ControllerGroup, node_id: int) -> ControllerStatus:
    """21001."""
    answer = await group.ask(node_id, RequestCode.BROKERSET_CONTROLLER_STATUS)
    return ControllerStatus.from_json(answer.body)


async def groups_of(group: ControllerGroup, node_id: int) -> GroupState:
    """21005 of the one broker group."""
    answer = await group.ask(node_id, RequestCode.BROKERSET_GROUP_STATES)
    assert answer.code == 0, answer.remark
    return GroupStates.from_json(answer.body).groups[0]


async def test_one_controller_gives_ids_elects_and_keeps_everything_over_a_restart(tmp_path: Path) -> None:
    """1013, 1003, 904, 1002, 1001, 1004; then the process ends and starts again."""

    async with controllers(tmp_path, 1) as group, brokers(group) as (first, second, third):
        before = await groups_of(group, 0)
        assert (before.master_id, before.sync_state_set) == (1, (1, 2, 3))
        assert (await third.ask_leader(group, 1012, NEXT_ID)).ext["nextBrokerId"] == "4"

        await group.stop(0)
        for broker in (first, second, third):
            await broker.hang_up()
        await group.start(0)
        await group.leader()
        await until(lambda: all(group.running[0].service.view(GROUP).alive(i) for i in (1, 2, 3)))
        after = await groups_of(group, 0)

        assert first.asked >= 1
        assert after.master_id == before.master_id
        assert after.master_epoch == before.master_epoch
        assert after.sync_state_set == before.sync_state_set
        assert [(r.broker_id, r.address, r.check_code) for r in after.replicas] == [
            (r.broker_id, r.address, r.check_code) for r in before.replicas
        ]


async def test_followers_refuse_and_all_name_the_leader(tmp_path: Path) -> None:
    """2007 without header and body; 1005 is answered by everybody."""

    async with controllers(tmp_path, 3) as group:
        leader = await group.leader()
        await until(lambda: all(c.status.leader_id == leader for c in group.running.values()))
        for node_id in range(3):
            metadata = GetMetaDataResponse.from_ext(
                (await group.ask(node_id, RequestCode.CONTROLLER_GET_METADATA_INFO)).ext
            )
            answer = await group.ask(
                node_id, RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfo(broker_name=GROUP)
            )

            assert metadata.controller_leader_id == f"n{leader}"
            assert metadata.controller_leader_address == group.address(leader)
            assert metadata.is_leader == (node_id == leader)
            assert metadata.peers == "".join(f"n{i}:{group.address(i)};" for i in range(3))
            if node_id == leader:
                assert answer.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
            else:
                assert (answer.code, answer.ext, answer.body) == (2007, {}, b"")


async def test_a_new_leader_has_what_the_killed_one_answered(tmp_path: Path) -> None:
    """Master, epochs and in-sync set are the same; nobody is elected for nothing."""

    async with controllers(tmp_path, 3) as group, brokers(group) as found:
        leader = await group.leader()
        before = await groups_of(group, leader)

        await group.stop(leader)
        successor = await group.leader()
        for broker in found:
            await broker.beat(group)
        after = await groups_of(group, successor)

        assert successor != leader
        assert after.master_id == before.master_id
        assert after.master_epoch == before.master_epoch
        assert after.sync_state_set_epoch == before.sync_state_set_epoch
        applied = await found[0].ask_leader(group, 1012, NEXT_ID)
        assert applied.ext["nextBrokerId"] == "4"

        await group.start(leader)
        index = group.running[successor].status.commit_index
        await until(lambda: group.running[leader].status.applied_index >= index)


async def test_an_orderly_end_hands_leadership_over(tmp_path: Path) -> None:
    """The next leader is there before the former has closed its port."""

    async with controllers(tmp_path, 3) as group:
        leader = await group.leader()
        controller = group.running[leader]

        await controller.hand_over()

        assert not controller.status.leading
        assert await group.leader() != leader


async def test_a_killed_master_is_replaced_and_the_others_are_told(tmp_path: Path) -> None:
    """Its connection closes and its port refuses: an election at once, and notices (1008)."""

    async with controllers(tmp_path, 3) as group, brokers(group) as (first, second, third):
        _, before = await first.info(group)
        loop = asyncio.get_running_loop()
        for broker in (first, second, third):
            await broker.beat(group)
            broker.notices.clear()

        since = loop.time()
        await first.kill()
        await until(lambda: second.notices and third.notices)
        took = loop.time() - since

        answer, after = await second.info(group)
        assert answer.ext["masterBrokerId"] in ("2", "3")
        assert second.notices[-1].master_broker_id == int(answer.ext["masterBrokerId"])
        assert after.sync_state_set == {second.notices[-1].master_broker_id}
        assert after.sync_state_set_epoch == before.sync_state_set_epoch + 1
        assert took < 2.0, "the election did not wait for the heartbeat to time out (3 s)"


@pytest.mark.parametrize("ours", [False, True])
async def test_a_master_that_answers_on_its_port_stays_master(tmp_path: Path, ours: bool) -> None:
    """Only its connections were lost."""

    async with controllers(tmp_path, 1) as group, brokers(group, ours=ours) as (first, second, _):
        before = await groups_of(group, 0)
        asked = first.asked

        await first.hang_up()
        await until(lambda: first.asked > asked)
        await until(lambda: group.running[0].service.view(GROUP).alive(1))

        after = await groups_of(group, 0)
        assert (after.master_id, after.master_epoch) == (before.master_id, before.master_epoch)
        assert second.notices[-1].master_broker_id == 1 if second.notices else True


async def test_another_process_on_the_masters_port_is_not_the_master(tmp_path: Path) -> None:
    """It answers with a nonce that was never committed."""

    async with controllers(tmp_path, 1) as group, brokers(group, ours=True) as (first, second, _):
        first.nonce = "someone else"

        await first.hang_up()
        await until(lambda: second.notices and second.notices[-1].master_broker_id != 1)

        assert (await groups_of(group, 0)).master_id in (2, 3)


async def test_the_end_of_a_half_open_connection_means_nothing(tmp_path: Path) -> None:
    """The broker reconnected long ago; only now the old connection's end is noticed."""

    async with controllers(tmp_path, 1) as group, brokers(group) as (first, *_):
        await first.beat(group)
        old = first.connections[group.address(0)]
        await first.beat(group, fresh=True)
        before, asked = await groups_of(group, 0), first.asked

        old.close()
        await old.wait_closed()
        service = group.running[0].service
        await first.info(group)  # the controller has seen the end by now, or sees it before this

        assert service.view(GROUP).alive(1)
        assert (await groups_of(group, 0)).master_epoch == before.master_epoch
        assert first.asked == asked


async def test_an_overtaken_process_learns_of_it_from_its_beat(tmp_path: Path) -> None:
    """2100 from the leader."""

    async with controllers(tmp_path, 1) as group, brokers(group, 1, ours=True) as (first,):
        await first.kill()
        second = FakeBroker(1, "later")
        await second.listen()
        try:
            answer = await second.register(group, last_nonce="start-1")
            assert answer.code == 0, answer.remark

            with pytest.raises(AssertionError, match="another process was registered"):
                await first.beat(group)
        finally:
            await second.kill()


async def test_a_snapshot_cuts_the_log_and_is_enough_to_start_from(tmp_path: Path) -> None:
    """21004, then a restart."""

    async with controllers(tmp_path, 1) as group, brokers(group):
        before = await groups_of(group, 0)

        answer = await group.ask(0, RequestCode.BROKERSET_TAKE_SNAPSHOT)
        index = int(answer.ext["snapshotIndex"])
        assert (await status_of(group, 0)).snapshot_index == index > 0
        await group.stop(0)
        await group.start(0)
        await group.leader()

        after = await groups_of(group, 0)
        assert (after.master_id, after.replicas[0].check_code) == (1, before.replicas[0].check_code)


async def test_controllers_that_all_restart_to_join_are_still_the_members_they_began_as(
    tmp_path: Path,
) -> None:
    """`raftJoin=true` is for a folder without data: who has data forgets neither members nor groups."""

    async with controllers(tmp_path, 3) as group:
        async with brokers(group):
            before = await groups_of(group, await group.leader())
        for node_id in range(3):
            await group.stop(node_id)
        for node_id in range(3):
            await group.start(node_id, raft_join=True)
        after = await groups_of(group, await group.leader())
        assert after.replicas[0].check_code == before.replicas[0].check_code


async def test_members_from_one_to_three_to_two(tmp_path: Path) -> None:
    """Learners are added, promoted, get everything; then the leader itself leaves."""

    async def promote(group: ControllerGroup, node_id: int) -> None:
        """It is refused until the learner has caught up."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                answer = await group.ask(
                    await group.leader(),
                    RequestCode.BROKERSET_CHANGE_MEMBERS,
                    ChangeMembers(action="promote", node_id=node_id),
                )
                if answer.code == 0:
                    return
                await asyncio.sleep(0.02)

    async with controllers(tmp_path, 1) as group, brokers(group) as (first, *_):
        for _ in range(2):
            node_id = group.add_node()
            await group.start(node_id, raft_join=True)
            added = await group.ask(
                await group.leader(),
                RequestCode.BROKERSET_CHANGE_MEMBERS,
                ChangeMembers(
                    action="add",
                    node_id=node_id,
                    raft_address=f"{HOST}:{group.raft_ports[node_id]}",
                    service_address=group.address(node_id),
                ),
            )
            assert added.code == 0, added.remark
            await promote(group, node_id)
        status = await status_of(group, 0)
        assert [(m.node_id, m.voter) for m in status.members] == [(0, True), (1, True), (2, True)]
        await until(lambda: GROUP in group.running[2].service.machine.groups)

        removed = await group.ask(
            0, RequestCode.BROKERSET_CHANGE_MEMBERS, ChangeMembers(action="remove", node_id=0)
        )
        assert removed.code == 0, removed.remark
        await until(lambda: any(group.running[i].status.leading for i in (1, 2)))
        await group.stop(0)

        status = await status_of(group, await group.leader())
        assert [m.node_id for m in status.members] == [1, 2]
        assert (await first.info(group))[0].ext["masterBrokerId"] == "1"

        last = await group.leader()
        refused = await group.ask(
            last, RequestCode.BROKERSET_CHANGE_MEMBERS, ChangeMembers(action="promote", node_id=9)
        )
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "no member" in (refused.remark or "")


async def test_leadership_is_transferred_on_request(tmp_path: Path) -> None:
    """21003, to a voter only."""

    async with controllers(tmp_path, 3) as group:
        leader = await group.leader()
        target = (leader + 1) % 3

        moved = await group.ask(leader, RequestCode.BROKERSET_TRANSFER_LEADER, TransferLeader(node_id=target))
        await until(lambda: group.running[target].status.leading)
        unknown = await group.ask(target, RequestCode.BROKERSET_TRANSFER_LEADER, TransferLeader(node_id=8))

        assert moved.code == 0, moved.remark
        assert unknown.code == ResponseCode.SYSTEM_ERROR
        assert "n8 is no voting member" in (unknown.remark or "")


async def test_a_lost_group_is_rebuilt_from_what_its_brokers_hold(tmp_path: Path) -> None:
    """21006 only for a group without replicas; the next election takes the best of all."""

    async with controllers(tmp_path, 1) as group:
        broker = FakeBroker(2, "now")
        await broker.listen()
        try:
            state = GroupState(
                cluster_name=CLUSTER, broker_name=GROUP, owner=None, expected_replicas=1,
                next_broker_id=5, master_id=None, master_epoch=7,
                sync_state_set=(), sync_state_set_epoch=0, suspects=(), losses=(),
                replicas=(ReplicaState(2, broker.address, "rebuilt;1", 1, "now", "alive"),),
            )  # fmt: skip
            unknown = await broker.register(group)
            rebuilt = await group.ask(0, RequestCode.BROKERSET_REBUILD_GROUP, None, state.to_json())
            assert unknown.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
            assert rebuilt.code == 0, rebuilt.remark

            await until(lambda: group.running[0].service.machine.groups[GROUP].master_id == 2)
            after = await groups_of(group, 0)
            assert (after.next_broker_id, after.master_epoch) == (5, 8)
        finally:
            await broker.kill()


async def test_a_folder_belongs_to_one_node(tmp_path: Path) -> None:
    """Another node and another group are refused with the reason, and so is data of nobody knows whom."""

    group = ControllerGroup(tmp_path, 1)
    await group.start(0)
    await group.leader()
    group.add_node()
    try:
        with pytest.raises(WrongFolder, match="data of node n0 of group test-controllers, not of n1"):
            await Controller(
                group.settings(1, controller_store_path=tmp_path / "n0", raft_listen_port=free_port())
            ).start()
    finally:
        await group.stop(0)
    with pytest.raises(WrongFolder, match="not of n0 of others"):
        await Controller(group.settings(0, controller_group="others")).start()
    (tmp_path / "n0" / "node").unlink()
    with pytest.raises(WrongFolder, match=r"is missing, but .* holds data"):
        await Controller(group.settings(0)).start()


async def test_a_failing_disk_ends_the_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever cannot keep what it promised must not go on."""

    def broken(disk: RealDisk, name: str) -> None:
        raise OSError("the disk is gone")

    async with controllers(tmp_path, 1) as group:
        controller = group.running[0]
        broker = FakeBroker(1)
        monkeypatch.setattr(RealDisk, "sync", broken)
        try:
            with pytest.raises(AssertionError):
                await asyncio.wait_for(broker.join(group), SECONDS_MAX)
            await until(lambda: not controller.running)
            with pytest.raises(ExceptionGroup) as caught:
                await group.ended(0)
            assert caught.group_contains(OSError, match="the disk is gone")
        finally:
            monkeypatch.undo()
            await broker.kill()


async def test_health_readiness_and_metrics(tmp_path: Path) -> None:
    """A controller alone of three is healthy and not ready, and says why."""

    def get(port: int, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=SECONDS_MAX) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    group = ControllerGroup(tmp_path, 3)
    try:
        port = free_port()
        await group.start(0, http_port=port)
        assert await asyncio.to_thread(get, port, "/healthz") == (200, "ok\n")
        code, text = await asyncio.to_thread(get, port, "/readyz")
        assert (code, "no leader is known" in text) == (503, True)

        await group.start(1)
        await group.leader()
        await until(lambda: group.running[0].status.leader_id is not None)
        await until(lambda: group.running[0].status.applied_index == group.running[0].status.commit_index > 0)
        assert await asyncio.to_thread(get, port, "/readyz") == (200, "ok\n")
        assert "brokerset_controller_term" in (await asyncio.to_thread(get, port, "/metrics"))[1]
    finally:
        for node_id in list(group.running):
            await group.stop(node_id)


async def test_a_name_server_runs_in_the_same_process(tmp_path: Path) -> None:
    """On a port of its own, with its own answers."""

    async with controllers(
        tmp_path,
        1,
        enable_name_server=True,
        namesrv_listen_port=0,
        kv_config_path=tmp_path / "kvConfig.json",
    ) as group:
        connection = await connect(f"{HOST}:{group.running[0].namesrv_port}")
        try:
            answer = await connection.call(Command(RequestCode.GET_BROKER_CLUSTER_INFO), SECONDS_MAX)
            assert answer.code == 0, answer.remark
        finally:
            connection.close()
            await connection.wait_closed()
