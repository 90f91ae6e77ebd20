"""What strangers, old processes, Java peers and stalls do to a group: nothing that lasts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from brokerset_broker.member.ha.leader import NEWER_PROCESS_SECONDS, REPLICAS_KNOWN_MAX
from brokerset_broker.member.ha.links import LinkClosed
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.replica_log import ReplicaLogFailed
from brokerset_protocol.ha_packets import Ack, MasterHandshake, PeerIdentity, SlaveHandshake, TransferHeader
from brokerset_rig.fake_group import answered, group_of
from brokerset_rig.fake_ha import CLUSTER, GROUP, FakeSlaveLink
from brokerset_rig.waiting import until

pytestmark = pytest.mark.virtual


async def test_a_log_that_cannot_be_read_costs_one_connection() -> None:
    """When the log cannot be sent, for instance because no file can be opened, the slave is cut off and comes
    again; the master goes on."""
    async with group_of(2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)
        view, failures = group[1].log.view, 3

        def failing(offset: int, size: int) -> memoryview:
            nonlocal failures
            if failures:
                failures -= 1
                raise ReplicaLogFailed("cannot open the file: too many open files")
            return view(offset, size)

        group[1].log.view = failing  # type: ignore[method-assign]  # the disk fails for a while
        group[1].send("a")

        await until(lambda: group[2].log.max_offset == group[1].log.max_offset)
        await group.in_sync(1, 2)
        assert not failures


async def test_an_older_process_does_not_take_a_replicas_place() -> None:
    """A process that was stopped, replaced by a newer one, and goes on does not count: what it has the newer
    one may lack. Nor does it end the newer one's connection."""
    async with group_of(2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)
        port = group.network.network("x")
        newer = PeerIdentity(CLUSTER, GROUP, 9, "new", 1, 0, 4)
        older = replace(newer, nonce="old", incarnation=3)
        link = await port.connect("1", 1.0)
        await link.shake_hands(SlaveHandshake(9, identity=newer))

        for _ in range(2):
            zombie = await port.connect("1", 1.0)
            with pytest.raises(LinkClosed, match="newer one"):
                await zombie.shake_hands(SlaveHandshake(9, identity=older))
            assert group.network.between("1", "x") or _ == 1
            link.close("it stops")
            await asyncio.sleep(0.01)
        await asyncio.sleep(NEWER_PROCESS_SECONDS)

        last = await port.connect("1", 1.0)
        await last.shake_hands(SlaveHandshake(9, identity=older))


async def test_strangers_with_ever_other_ids_are_forgotten() -> None:
    """Whoever connects with any number of ids makes the master remember a bounded number of them, and the
    members keep what counts of them."""
    async with group_of(2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)
        leader = group[1].replication._leader
        assert leader is not None
        for number in range(3 * REPLICAS_KNOWN_MAX):
            link = await group.network.network("x").connect("1", 1.0)
            await link.shake_hands(SlaveHandshake(1000 + number))
            link.close("enough")

        assert leader.progress.known <= REPLICAS_KNOWN_MAX
        end, answer = group[1].send("a")
        await answered(answer)
        assert leader.progress.acknowledged(2) == end


async def test_nobody_waits_for_a_refused_replica() -> None:
    """A replica that the controllers refuse, as it is fenced, holds up no send, also when it hangs."""
    async with group_of(3) as group:
        group.controllers.takes_same_set = True
        await group.elect(1)
        await group.in_sync(1, 2, 3)
        group.controllers.refuse_joins = {3}
        group.controllers.sync_state_set = frozenset((1, 2))
        group.controllers.set_epoch += 1
        group[1].replication.adopt(frozenset((1, 2)), group.controllers.set_epoch, 1)
        await until(
            lambda: (frozenset((1, 2, 3)), group.controllers.set_epoch) in group.controllers.proposals
        )
        await group.in_sync(1, 2)

        for pair in group.network.between("1", "3"):
            pair.acks_held = True
        before = asyncio.get_running_loop().time()
        _, answer = group[1].send("a")
        await answered(answer)

        assert asyncio.get_running_loop().time() - before < 0.1


async def test_rare_heartbeats_do_not_make_an_idle_replica_lag() -> None:
    """With the heartbeats of RocketMQ's default, each 5 s, an idle group stays in sync all the same."""
    async with group_of(3, ha_send_heartbeat_interval=5_000) as group:
        await group.elect(1)
        await group.in_sync(1, 2, 3)
        proposals = len(group.controllers.proposals)

        await asyncio.sleep(20)

        assert len(group.controllers.proposals) == proposals


async def test_an_empty_java_masters_heartbeats_are_signs_of_life() -> None:
    """Java's master with an empty log sends heartbeats with -1 for the offset: the connection stays, and is
    used as soon as there is something."""
    async with group_of(1) as group:
        accepted: list[FakeSlaveLink] = []
        group.network.network("8").on_slave(accepted.append)  # type: ignore[arg-type]  # it is that one
        group[1].group.is_ours = False
        change = replace(group.controllers.elect(8), master_address="8")
        await group[1].obey(change)
        await until(lambda: bool(accepted))
        link, log = accepted[0], group[1].log
        acks: list[int] = []
        await link.handshake()
        link.on_ack(lambda ack: acks.append(ack.offset))
        await link.send_handshake(MasterHandshake(0, 1, ((1, 0),)))

        for _ in range(3):
            await link.send(TransferHeader(-1, 1, 0, -1, 0), log)
            await asyncio.sleep(5)
        record = (8).to_bytes(4, "big") + b"abcd"
        await asyncio.sleep(0.1)
        link.pair.slave_end.sent.append((TransferHeader(0, 1, 0, 0, 8), record))
        link.pair.slave_end.arrive()

        await until(lambda: acks[-1:] == [8])
        assert acks[0] == 0
        assert len(acks) >= 3
        assert len(accepted) == 1
        assert group[1].epochs.history.last_epoch == 1


async def test_a_synchronous_slave_goes_on_where_its_log_ends() -> None:
    """With synchronous flush a connection begins when the disk has all that was received: the first
    acknowledgement tells the master where to go on."""
    async with group_of(2, flush_disk_type="SYNC_FLUSH") as group:
        await group.elect(1)
        await until(lambda: len(group.network.between("1", "2")) == 1)
        group[1].send("a")
        await until(lambda: group[2].log.max_offset == group[1].log.max_offset)
        first = group.network.between("1", "2")[0]
        first.close("lost")
        await until(lambda: bool(group.network.between("1", "2")))
        second = group.network.between("1", "2")[0]
        await asyncio.sleep(1)
        silent = list(second.slave_end.acks)

        group[2].log.flush()
        await until(lambda: bool(second.slave_end.acks))

        assert silent == []
        assert second.slave_end.acks == [group[2].log.received_end]
        group[1].send("b")
        await until(lambda: group[2].log.max_offset == group[1].log.max_offset)
        assert second.reason is None


async def test_a_held_up_master_hears_before_it_judges() -> None:
    """A master whose process stood still reads what waits for it before it drops anybody."""
    async with group_of(2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)
        proposals = len(group.controllers.proposals)
        leader = group[1].replication._leader
        assert leader is not None
        progress = leader.progress
        await asyncio.sleep(1)
        loop = asyncio.get_running_loop()
        stood_still = {"seconds": 0.0}
        time = loop.time
        loop.time = lambda: time() + stood_still["seconds"]  # type: ignore[method-assign]  # a jump ahead

        stood_still["seconds"] = 5.0
        await asyncio.sleep(1)

        assert progress.known == 1
        assert len(group.controllers.proposals) == proposals


async def test_a_wrong_acknowledgement_harms_nobody_else() -> None:
    """A stranger that acknowledges nonsense is cut off; sends are answered as before."""
    async with group_of(2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)
        for nonsense in (1 << 62, 7):
            link = await group.network.network("x").connect("1", 1.0)
            await link.shake_hands(SlaveHandshake(77))
            link.send_ack(Ack(nonsense))
            await link.closed()

        _, answer = group[1].send("a")
        await answered(answer)
        assert group.controllers.sync_state_set == {1, 2}


async def test_an_append_is_on_its_way_when_its_turn_ends() -> None:
    """A slave that waits for nothing but messages is sent one in the turn that appends it, by no task."""
    async with group_of(2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)
        (pair,) = [pair for pair in group.network.between("1", "2") if pair.reason is None]
        await until(lambda: not pair.slave_end.sent)
        sent = list[bytes]()
        group[1].log.on_appended(lambda end: sent.extend(body for _, body in pair.slave_end.sent if body))

        begin = group[1].log.max_offset
        end, answer = group[1].send("a")

        assert await answered(answer) is PutStatus.PUT_OK
        assert sent == [bytes(group[1].log.data[begin:end])]
