"""Brokers as a DLedger group: real sockets and files, three brokers of ours in this process."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.app import Broker
from brokerset_broker.member.dledger import ledger_member
from brokerset_broker.member.dledger.views import LedgerProblem
from brokerset_broker.member.role import Role
from brokerset_formats.message_ids import decode_offset_id
from brokerset_formats.order_stamps import OrderStamp
from brokerset_protocol.bodies.ordered import SubjectQueue, SubjectQueues
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus
from brokerset_rig.ledger_brokers import (
    FILE_BYTES,
    Group,
    client_of,
    group,
    leads,
    ledger_store,
    member,
    patient_config,
)
from brokerset_rig.local_servers import Client, bodies, broker_settings
from brokerset_rig.waiting import until

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause of this process costs a leader."""
    monkeypatch.setattr(ledger_member, "node_config", patient_config)


async def test_a_send_is_answered_when_a_quorum_has_it_and_every_member_dispatches_it(tmp_path: Path) -> None:
    async with group(tmp_path) as members:
        leader = await members.leader()
        async with client_of(leader) as client:
            await client.create_topic("t")
            sent = [await client.send("t", b"%d" % number) for number in range(20)]
            assert [int(reply.ext["queueOffset"]) for reply in sent] == list(range(20))
            assert bodies(await client.pull("t", 0)) == [b"%d" % number for number in range(20)]
        await members.equal()
        offset = decode_offset_id(sent[3].ext["msgId"])[1]
        for broker in members.brokers.values():
            assert broker.store.queue_max("t", 0) == 20
            assert broker.store.unit("t", 0, 3) == (offset, broker.store.unit("t", 0, 3)[1], 0)  # type: ignore[index]
            assert broker.topics.get("t") is not None
        data = {
            file.read_bytes()
            for broker in members.brokers.values()
            for file in ledger_store(broker).ledger.folder.glob("data/*0")
        }
        assert len(data) == 1


async def test_a_follower_passes_sends_on_to_its_leader(tmp_path: Path) -> None:
    async with group(tmp_path) as members:
        leader = await members.leader()
        await until(lambda: all(broker.part.role().master_address for broker in members.followers()))
        async with client_of(members.followers()[0]) as client:
            await client.create_topic("t")
            assert (await client.send("t", b"by way of a follower")).code == 0
        assert leader.store.queue_max("t", 0) == 1


async def test_a_batch_keeps_its_order_and_its_ids(tmp_path: Path) -> None:
    async with group(tmp_path) as members:
        leader = await members.leader()
        async with client_of(leader) as client:
            await client.create_topic("t")
            sent = await client.send_batch("t", [b"a", b"b", b"c"])
            assert bodies(await client.pull("t", 0)) == [b"a", b"b", b"c"]
            offsets = [decode_offset_id(each)[1] for each in sent.ext["msgId"].split(",")]
            assert offsets == [leader.store.unit("t", 0, number)[0] for number in range(3)]  # type: ignore[index]


async def test_topics_groups_offsets_and_messages_are_there_after_the_leader_has_crashed(
    tmp_path: Path,
) -> None:
    async with group(tmp_path) as members:
        first = await members.leader()
        async with client_of(first) as client:
            await client.create_topic("t")
            for number in range(10):
                assert (await client.send("t", b"%d" % number)).code == 0
            await client.heartbeat("cg", "t")
            update: dict[str, Any] = {"consumerGroup": "cg", "topic": "t", "queueId": 0, "commitOffset": 7}
            assert (await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, **update)).code == 0
        number = next(each for each, broker in members.brokers.items() if broker is first)
        await members.crash(number)

        second = await members.leader()
        async with client_of(second) as client:
            query: dict[str, Any] = {"consumerGroup": "cg", "topic": "t", "queueId": 0}
            answer = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, **query)
            assert answer.ext["offset"] == "7"
            assert bodies(await client.pull("t", 0)) == [b"%d" % number for number in range(10)]
            assert (await client.send("t", b"10")).ext["queueOffset"] == "10"

        again = await members.start(number)
        await members.equal()
        assert again.part.role().role is Role.SLAVE
        assert again.store.queue_max("t", 0) == 11


async def test_a_leader_that_ends_in_order_hands_over_before(tmp_path: Path) -> None:
    async with group(tmp_path) as members:
        first = await members.leader()
        term = member(first).driver.term
        number = next(each for each, broker in members.brokers.items() if broker is first)
        async with client_of(members.followers()[0]) as client:
            await client.create_topic("t")
            closing = asyncio.create_task(members.stop(number))
            replies = [await client.send("t", b"%d" % each) for each in range(50)]
            await closing
        assert [reply.code for reply in replies] == [0] * 50
        second = await members.leader()
        assert member(second).driver.term == term + 1
        assert second.store.queue_max("t", 0) == 50


async def delete_old_files(broker: Broker) -> None:
    """What is needed by nobody goes, as if its time were over."""
    store = ledger_store(broker)
    for file in store.ledger.files.files:
        os.utime(file.path, (0, 0))
    store.retention.request()
    assert await store.retention.check() >= 1


async def test_a_queue_that_retention_has_emptied_goes_on_with_its_number_on_a_new_disk(
    tmp_path: Path,
) -> None:
    """Its messages are nowhere any more, and the member that leads then has never seen one."""
    async with group(tmp_path, file_reserved_time=1, delete_commit_log_files_interval=1) as members:
        first = await members.leader()
        async with client_of(first) as client:
            await client.create_topic("rest")
            await client.create_topic("busy")
            for _ in range(3):
                assert (await client.send("rest", b"of a day long past")).code == 0
            for _ in range(30):
                assert (await client.send("busy", b"x" * 90_000)).code == 0
            assert await member(first).metadata.write_snapshot()
            assert (await client.send("busy", b"behind the snapshot")).code == 0
            await members.equal()
            for broker in members.brokers.values():
                await until(lambda: member(broker).metadata.keep_from() > FILE_BYTES)  # noqa: B023
                await delete_old_files(broker)
            replaced = next(number for number, each in members.brokers.items() if each is not first)
            await members.stop(replaced)
            shutil.rmtree(members.store(replaced))
            again = await members.start(replaced)
            await members.equal()
            await until(lambda: again.store.queue_max("rest", 0) == 3)
            replicas = member(first).replicas
            await until(lambda: again.part.broker_id() in {r.broker_id for r in replicas() if r.in_sync})
            answer = await client.call(
                RequestCode.BROKERSET_SWITCH_OVER,
                brokerName=first.settings.broker_name,
                toBrokerId=again.part.broker_id(),
            )
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert await members.leader() is again
        async with client_of(again) as client:
            reply = await client.send("rest", b"today")

        assert (reply.code, reply.ext["queueOffset"]) == (0, "3")


async def test_a_switchover_loses_no_send(tmp_path: Path) -> None:
    async with group(tmp_path) as members:
        first = await members.leader()
        wanted = members.followers()[0]
        async with client_of(first) as client, client_of(first) as administrator:
            await client.create_topic("t")
            sends = [asyncio.create_task(client.send("t", b"%d" % number)) for number in range(100)]
            answer = await administrator.call(
                RequestCode.BROKERSET_SWITCH_OVER,
                brokerName=first.settings.broker_name,
                toBrokerId=wanted.part.broker_id(),
            )
            sends += [asyncio.create_task(client.send("t", b"%d" % number)) for number in range(100, 150)]
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            replies = [await each for each in sends]
            assert {(reply.code, reply.remark) for reply in replies} == {(0, None)}
        assert await members.leader() is wanted
        assert wanted.store.queue_max("t", 0) == 150
        assert int(answer.ext["masterBrokerId"]) == wanted.part.broker_id()


@pytest.mark.parametrize("handed_over", [False, True], ids=["while it leads", "after a switchover"])
async def test_behind_a_service_a_leader_that_ends_passes_sends_on_until_it_leads_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handed_over: bool
) -> None:
    """Clients keep the Service's address, and for a moment it still leads here: no send fails."""
    monkeypatch.setattr(ledger_member, "PASS_ON_SECONDS", 0.5)
    async with group(tmp_path, master_endpoint_slice="shop/orders-0-master") as members:
        first = await members.leader()
        number = next(n for n, broker in members.brokers.items() if broker is first)
        async with client_of(first) as client:
            await client.create_topic("t")
            if handed_over:
                await member(first).switch_over.hand_over(1.5)
                await until(lambda: member(first).core.role.role is Role.SLAVE)

            ending = asyncio.create_task(members.stop(number))
            await members.leader(other_than=first)
            assert (await client.send("t")).code == ResponseCode.SUCCESS
            async with client_of(first) as newcomer:
                assert (await newcomer.send("t")).code == ResponseCode.SUCCESS
            assert not ending.done()
            await ending


async def test_a_member_that_copies_the_log_is_not_ready_before_it_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `readyOnlyInSync`, on Kubernetes; so that nobody evicts another member meanwhile."""
    monkeypatch.setattr(ledger_member, "LACK_SECONDS", 0.05)
    monkeypatch.setattr(ledger_member, "IN_SYNC_BYTES", 50_000)
    async with group(tmp_path, ready_only_in_sync=True) as members:
        leader = await members.leader()
        number = next(n for n, broker in members.brokers.items() if broker is not leader)
        await until(lambda: not any(member(broker).problems() for broker in members.brokers.values()))
        await members.stop(number)
        async with client_of(leader) as client:
            await client.create_topic("t")
            for _ in range(20):
                assert (await client.send("t", b"x" * 20_000)).code == ResponseCode.SUCCESS
        told: list[str] = []
        back = await members.start(number)
        part = member(back)

        def ready() -> bool:
            told.extend(part.problems())
            return not part.problems()

        await until(ready)
        lacking = [text for text in told if "bytes of the log" in text or "has not told yet" in text]
        assert lacking, told
        end = ledger_store(leader).ledger.write_position
        assert end - ledger_store(back).ledger.write_position <= 50_000


async def test_a_delayed_message_is_delivered_by_the_next_leader(tmp_path: Path) -> None:
    async with group(tmp_path) as members:
        first = await members.leader()
        async with client_of(first) as client:
            await client.create_topic("t")
            assert (await client.send("t", b"later", properties={"DELAY": "1"})).code == 0
        number = next(each for each, broker in members.brokers.items() if broker is first)
        await members.crash(number)
        async with client_of(await members.leader()) as client:
            assert [record.body for record in await client.wait_for("t", 0)] == [b"later"]


async def test_timer_messages_are_delivered_by_the_next_leader(tmp_path: Path) -> None:
    """Those that roll, too; one that was recalled by neither leader; what was delivered before comes once."""
    changes = {"timer_roll_window_slot": 4, "recall_message_enable": True}
    async with group(tmp_path, **changes) as members:
        old = await members.leader()
        async with client_of(old) as client:
            await client.create_topic("t", 1)
            sent = [
                await client.send("t", b"%d" % n, properties={"TIMER_DELAY_SEC": str(1 + n)})
                for n in range(10)
            ]
            assert all(reply.code == 0 for reply in sent)
            handle = sent[9].ext["recallHandle"]
            assert (await client.call(370, producerGroup="g", topic="t", recallHandle=handle)).code == 0
            assert (await client.wait_for("t", 0))[0].body == b"0"
            await until(lambda: old.timers.unrecorded() is None)
        await members.equal()
        number = next(number for number, broker in members.brokers.items() if broker is old)
        await members.crash(number)
        new = await members.leader(other_than=old)
        async with client_of(new) as client:
            found: list[bytes] = []
            while b"8" not in found:
                found += [record.body for record in await client.wait_for("t", len(found))]
            await until(lambda: new.timers.work is not None and not new.timers.work.waits)
            assert set(found) == {b"%d" % n for n in range(9)}
            assert (await client.pull("t", len(found))).code == ResponseCode.PULL_NOT_FOUND
        assert len(found) <= 11


async def test_without_a_quorum_nothing_is_acknowledged_and_only_the_committed_read(
    tmp_path: Path,
) -> None:
    """Who led reads on as a follower does, once its leadership has ended."""
    async with group(tmp_path, sync_flush_timeout=300) as members:
        leader = await members.leader()
        async with client_of(leader) as client:
            await client.create_topic("t")
            assert (await client.send("t", b"with a quorum")).code == 0
            for number in [each for each, broker in members.brokers.items() if broker is not leader]:
                await members.crash(number)
            assert (await client.send("t", b"without")).code != 0
            await until(lambda: not member(leader).shell.may_serve())
            await until(lambda: not leads(leader))
            assert bodies(await client.pull("t", 0)) == [b"with a quorum"]


async def test_classic_stores_go_on_as_a_group_in_place(tmp_path: Path) -> None:
    """A master and its copies, with a delayed message under way."""
    members = Group(tmp_path)
    await fill_classic(members.store(0), 300)
    for number in (1, 2):
        shutil.copytree(members.store(0), members.store(number))
    for number in range(3):
        await members.start(number)
    try:
        leader = await members.leader()
        async with client_of(leader) as client:
            assert (await client.send("t", b"new")).code == 0
            found: list[bytes] = []
            while len(found) < 302:
                found += [record.body for record in await client.wait_for("t", len(found))]
            assert set(found[300:]) == {b"new", b"later"}
            assert found[:300] == [b"%d" % number + b"x" * 5_000 for number in range(300)]
        await members.equal()
    finally:
        for number in list(members.brokers):
            await members.stop(number)


async def test_a_member_with_another_old_log_does_not_vote_and_says_why(tmp_path: Path) -> None:
    members = Group(tmp_path)
    await fill_classic(members.store(0), 300)
    shutil.copytree(members.store(0), members.store(1))
    await fill_classic(members.store(2), 290)
    for number in range(3):
        await members.start(number)
    try:
        await members.leader()
        other = members.brokers[2]
        await until(lambda: "old log" in member(other).problem())
        assert other.part.role().role is Role.NONE
        assert member(other).problem_kind() is LedgerProblem.OLD_LOG
        assert all(member(each).problem_kind() is None for each in list(members.brokers.values())[:2])
        assert "copy of the folder commitlog" in other.part.problems()[0]

        await give_old_log(members, source=1, target=2)

        for number in (1, 2):
            await members.start(number)
        await until(lambda: member(members.brokers[2]).problem_kind() is None)
        await members.equal()
        async with client_of(members.brokers[2]) as client:
            found: list[bytes] = []
            while len(found) < 300:
                found += [record.body for record in await client.wait_for("t", len(found))]
        assert found[:300] == [b"%d" % number + b"x" * 5_000 for number in range(300)]
    finally:
        for number in list(members.brokers):
            await members.stop(number)


async def give_old_log(members: Group, *, source: int, target: int) -> None:
    """As the runbook BrokersetDLedgerOldLogDiffers says: both are ended, and stay so."""
    for number in (source, target):
        await members.stop(number)
    store = members.store(target)
    for name in ("commitlog", "consumequeue", "index", f"dledger-n{target}"):
        shutil.rmtree(store / name, ignore_errors=True)
    (store / "checkpoint").unlink(missing_ok=True)
    shutil.copytree(members.store(source) / "commitlog", store / "commitlog")


async def fill_classic(folder: Path, count: int) -> None:
    """A store of a broker without controllers: messages in one queue, and one that waits for its delay."""
    broker = Broker(broker_settings(folder, mapped_file_size_commit_log=FILE_BYTES, max_message_size=100_000))
    await broker.start()
    running = asyncio.create_task(broker.run())
    try:
        async with client_of(broker) as client:
            await client.create_topic("t")
            for number in range(count):
                reply = await client.send("t", b"%d" % number + b"x" * 5_000)
                assert reply.code == 0
            assert (await client.send("t", b"later", properties={"DELAY": "1"})).code == 0
    finally:
        await broker.close()
        await running


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"dledger_self_id": "n7"}, "dLegerSelfId"),
        ({"dledger_peers": "n0-127.0.0.1"}, "dLegerPeers"),
        ({"enable_controller_mode": True, "controller_addr": "127.0.0.1:1"}, "enableDLegerCommitLog"),
        ({"store_stream_enable": True, "http_port": 1}, "storeStreamEnable"),
        ({"enabled_append_prop_crc": True}, "enabledAppendPropCRC"),
        ({"preferred_leader_id": "n9"}, "preferredLeaderId"),
    ],
)
def test_settings_that_cannot_be_combined_are_named(
    tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    values: dict[str, Any] = {
        "enable_dledger_commit_log": True,
        "dledger_peers": "n0-127.0.0.1:1;n1-127.0.0.1:2",
        "dledger_self_id": "n0",
    }
    assert broker_settings(tmp_path, **values).problems() == []
    assert any(
        problem.startswith(text) for problem in broker_settings(tmp_path, **(values | changes)).problems()
    )


async def test_ordered_subjects_survive_a_leader_that_crashes(tmp_path: Path) -> None:
    """In a DLedger a seal, a fence, an ack and each message are what they were for the next leader,
    also when the first one crashes between append and commit (statements 25, 54, 65, 74)."""
    async with group(tmp_path) as members:
        first = await members.leader()
        key: dict[str, Any] = {"topic": "orders", "consumerGroup": "cg", "queueId": 0}
        async with client_of(first) as client:
            made = await client.call(21_031, _queues((0, 1, "Open"), (1, 2, "Open"), version=1))
            assert made.code == 0, made.remark
            for sequence in range(3):
                sent = await client.send("orders", b"%d" % sequence, properties=_stamp(1, sequence))
                assert sent.code == 0, sent.remark
            claimed = await client.call(21_032, **key, epoch=7, session="s", pulledTo=-1)
            assert claimed.ext["position"] == "0"
            pulled = await client.pull("orders", 0, brokersetEpoch=7, brokersetSession="s")
            assert bodies(pulled) == [b"0", b"1", b"2"]
            acked = await client.call(21_033, **key, epoch=7, session="s", first=0, last=1)
            assert (acked.code, acked.ext["position"]) == (0, "2")
            sealed = await client.call(21_031, _queues((0, 1, "Open"), (1, 2, "Sealed"), version=2))
            assert sealed.code == 0, sealed.remark
            unclear = asyncio.ensure_future(client.send("orders", b"3", properties=_stamp(1, 3)))
            await asyncio.sleep(0)
            for number, broker in list(members.brokers.items()):
                if broker is first:
                    await members.crash(number)
            await asyncio.gather(unclear, return_exceptions=True)
        second = await members.leader(other_than=first)
        async with client_of(second) as client:
            for sequence in (3, 3, 4):
                sent = await client.send("orders", b"%d" % sequence, properties=_stamp(1, sequence))
                assert sent.code == 0, sent.remark
            closed = await client.send("orders", b"x", queue_id=1, properties=_stamp(2, 0))
            assert closed.code == ResponseCode.BROKERSET_QUEUE_SEALED
            stale = await client.call(21_032, **key, epoch=6, session="t", pulledTo=-1)
            assert stale.code == ResponseCode.BROKERSET_STALE_EPOCH
            again = await client.call(21_032, **key, epoch=7, session="s", pulledTo=3)
            assert (again.code, again.ext["position"]) == (0, "2")
            pulled = await client.pull("orders", 2, brokersetEpoch=7, brokersetSession="s")
            assert bodies(pulled) == [b"2", b"3", b"4"]


async def test_a_shared_group_survives_a_leader_that_crashes(tmp_path: Path) -> None:
    """What a session of a Shared group has acknowledged with an answer comes to nobody at the next leader;
    all else does. A session that waits gets what another one releases (statements 54, 61, 74)."""
    key: dict[str, Any] = {"topic": "orders", "consumerGroup": "cg", "queueId": 0, "epoch": 7}

    async def claim(client: Client, session: str) -> int:
        claimed = await client.call(21_032, **key, session=session, pulledTo=-1, shared="true")
        assert claimed.code == 0, claimed.remark
        return int(claimed.ext["position"])

    async def pull(
        client: Client, session: str, sequence: int, count: int, suspend_ms: int = 0
    ) -> list[bytes]:
        fields: dict[str, Any] = {"brokersetEpoch": 7, "brokersetSession": session, "maxMsgNums": count}
        return bodies(await client.pull("orders", sequence, suspend_ms=suspend_ms, **fields))

    async with group(tmp_path) as members:
        first = await members.leader()
        async with client_of(first) as client:
            made = await client.call(21_031, _queues((0, 1, "Open"), version=1))
            assert made.code == 0, made.remark
            for sequence in range(6):
                sent = await client.send("orders", b"%d" % sequence, properties=_stamp(1, sequence))
                assert sent.code == 0, sent.remark
            starts = {session: await claim(client, session) for session in ("s1", "s2", "s3")}
            got = [await pull(client, session, starts[session], 2) for session in ("s1", "s2", "s3")]
            waiting = asyncio.ensure_future(pull(client, "s3", starts["s3"] + 2, 2, 10_000))
            acked = await client.call(21_033, **key, session="s2", first=starts["s2"], last=starts["s2"] + 1)
            released = await client.call(21_034, **key, session="s1")
            left = await waiting
            for number, broker in list(members.brokers.items()):
                if broker is first:
                    await members.crash(number)
        second = await members.leader(other_than=first)
        async with client_of(second) as client:
            again = await pull(client, "s3", await claim(client, "s3"), 32)

    assert got == [[b"0", b"1"], [b"2", b"3"], [b"4", b"5"]]
    assert (acked.code, acked.ext["groupPosition"], released.ext["released"]) == (0, "0", "true")
    assert left == [b"0", b"1"]
    assert again == [b"0", b"1", b"4", b"5"]


def _queues(*queues: tuple[int, int, str], version: int) -> bytes:
    listed = tuple(
        SubjectQueue(queue, partition, PartitionStatus(state)) for queue, partition, state in queues
    )
    body: bytes = SubjectQueues("orders", OrderStrategy.STRICT, version, False, listed).to_json()
    return body


def _stamp(partition: int, sequence: int) -> dict[str, str]:
    return {"ORDER_STAMP": OrderStamp(partition, 7, "p", 1, sequence).encode()}


async def test_light_queues_go_on_with_their_numbers_after_the_leader_has_crashed(tmp_path: Path) -> None:
    """Every member dispatches to them what is committed; an expired lite topic begins again everywhere."""
    light: dict[str, Any] = {"enable_lmq": True, "enable_multi_dispatch": True}
    async with group(tmp_path, **light) as members:
        first = await members.leader()
        async with client_of(first) as client:
            await client.create_topic("t", attributes="+message.type=LITE")
            for number in range(9):
                named = "%LMQ%a" if number % 3 else "%LMQ%a,%LMQ%b"
                assert (
                    await client.send("t", b"%d" % number, properties={"INNER_MULTI_DISPATCH": named})
                ).code == 0
            assert (await client.send("t", b"lite", properties={"__LITE_TOPIC": "x"})).code == 0
        await members.equal()
        await members.crash(next(each for each, broker in members.brokers.items() if broker is first))

        second = await members.leader()
        async with client_of(second) as client:
            assert bodies(await client.pull("%LMQ%a", 0)) == [b"%d" % number for number in range(9)]
            await client.send("t", b"9", properties={"INNER_MULTI_DISPATCH": "%LMQ%b"})
            in_b = await client.pull("%LMQ%b", 0)
            assert bodies(in_b) == [b"0", b"3", b"6", b"9"]
            assert b"INNER_MULTI_QUEUE_OFFSET\x013\x02" in in_b.body
            assert (await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="%LMQ%$t$x")).code == 0
            assert (await client.send("t", b"again", properties={"__LITE_TOPIC": "x"})).code == 0
            assert bodies(await client.pull("t", 0, liteTopic="x")) == [b"again"]
        await members.equal()
        for broker in members.brokers.values():
            assert [broker.store.queue_max(name, 0) for name in ("%LMQ%a", "%LMQ%b", "%LMQ%$t$x")] == [
                9,
                4,
                1,
            ]
