"""Real engines on loopback with real files: elections, restarts, snapshots, members."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from brokerset_raft.configuration import Configuration, ConfigurationRefused, Member
from brokerset_raft.driver import RaftEngine, RaftSettings
from brokerset_raft.engine import EngineStatus, NotLeader, OutcomeUnknown, Overloaded, Role
from brokerset_raft.log_records import ENTRY_BYTES_MAX
from brokerset_raft.storage import LogDamaged, Storage
from brokerset_raft.transport import TcpTransport
from brokerset_rig.stack import free_port
from brokerset_runtime.disk import DiskThread, RealDisk

TEST_SECONDS_MAX = 30.0
SETTINGS = RaftSettings(tick_seconds=0.03)


class Words:
    """A state machine that keeps a list of words."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.restored = 0

    def apply(self, index: int, data: bytes) -> object:
        self.words.append(data.decode())
        return len(self.words)

    def snapshot(self) -> bytes:
        return orjson.dumps(self.words)

    def restore(self, data: bytes) -> None:
        self.restored += 1
        self.words = orjson.loads(data)


class FailingDisk(RealDisk):
    """A disk whose syncs can be made to fail, or to take their time."""

    fails = False
    pause = 0.0

    def sync(self, name: str) -> None:
        if self.fails:
            raise OSError(5, "Input/output error")
        if self.pause:
            time.sleep(self.pause)
        super().sync(name)


class Running:
    """One node that runs."""

    def __init__(self, node_id: int, folder: Path, initial: Configuration, settings: RaftSettings) -> None:
        self.machine = Words()
        self.disk = FailingDisk(folder)
        self.thread = DiskThread(f"raft-{node_id}")
        self.changes: list[EngineStatus] = []
        self.transport = TcpTransport("words", node_id, lambda message: self.engine.receive(message))
        self.engine = RaftEngine(
            node_id=node_id,
            initial=initial,
            storage=Storage(self.disk, segment_bytes=20_000),
            state_machine=self.machine,
            transport=self.transport,
            random_source=random.Random(node_id),
            settings=settings,
            run_blocking=self.thread,
            on_change=self.changes.append,
        )
        self.task: asyncio.Task[None] | None = None

    async def start(self, port: int) -> None:
        await self.engine.start()
        await self.transport.listen("127.0.0.1", port)
        self.task = asyncio.create_task(self.engine.run())

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await self.task
        await self.transport.close()
        self.thread.close()
        self.disk.close()


class Cluster:
    """Nodes 1 to n, and more that are added later."""

    def __init__(self, folder: Path, count: int, settings: RaftSettings) -> None:
        self.folder = folder
        self.settings = settings
        self.members: dict[int, Member] = {}
        self.nodes: dict[int, Running] = {}
        for node_id in range(1, count + 1):
            self.member(node_id)
        self.initial = Configuration(tuple(self.members.values()))

    def member(self, node_id: int) -> Member:
        if node_id not in self.members:
            port = free_port()
            self.members[node_id] = Member(node_id, f"127.0.0.1:{port}", f"127.0.0.1:{port + 300}")
        return self.members[node_id]

    async def start(self, node_id: int, initial: Configuration | None = None) -> Running:
        port = int(self.member(node_id).raft_address.rpartition(":")[2])
        folder = self.folder / str(node_id)
        first = self.initial if initial is None else initial
        node = self.nodes[node_id] = Running(node_id, folder, first, self.settings)
        await node.start(port)
        return node

    async def kill(self, node_id: int) -> None:
        await self.nodes.pop(node_id).stop()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Look often, under a time-out: the conditions lie in several nodes, and none tells."""
        try:
            async with asyncio.timeout(10):
                while not condition():  # noqa: ASYNC110  # see above
                    await asyncio.sleep(0.005)
        except TimeoutError:
            states = [node.engine.status for node in self.nodes.values()]
            raise AssertionError(f"{what}: {states}") from None

    async def leader(self) -> Running:
        def leading() -> list[Running]:
            found = [node for node in self.nodes.values() if node.engine.status.leading]
            return [n for n in found if all(n.engine.status.term >= o.engine.status.term for o in found)]

        await self.until(lambda: bool(leading()), "no leader")
        return leading()[0]

    async def propose(self, word: str) -> object:
        """As a client does: ask who leads until it works."""
        async with asyncio.timeout(10):
            while True:
                leader = await self.leader()
                try:
                    return await leader.engine.propose(word.encode(), 5)
                except NotLeader:
                    await asyncio.sleep(0.01)

    async def promote(self, node_id: int) -> None:
        """It is refused until the learner has confirmed that it follows."""
        async with asyncio.timeout(10):
            while True:
                leader = await self.leader()
                try:
                    return await leader.engine.promote(node_id)
                except ConfigurationRefused:
                    await asyncio.sleep(0.01)

    async def agreed(self, words: list[str]) -> None:
        await self.until(
            lambda: all(node.machine.words == words for node in self.nodes.values()), "different words"
        )


@asynccontextmanager
async def cluster_of(folder: Path, count: int, settings: RaftSettings = SETTINGS) -> AsyncIterator[Cluster]:
    cluster = Cluster(folder, count, settings)
    try:
        for node_id in range(1, count + 1):
            await cluster.start(node_id)
        yield cluster
    finally:
        for node in list(cluster.nodes.values()):
            await node.stop()


async def test_one_node_is_a_group(tmp_path: Path) -> None:
    """A group of one elects itself, commits, answers reads, and has everything again after a restart."""

    async with cluster_of(tmp_path, 1) as cluster:
        assert [await cluster.propose(f"w{n}") for n in range(5)] == [1, 2, 3, 4, 5]
        await cluster.nodes[1].engine.read_barrier(5)
        await cluster.kill(1)

        node = await cluster.start(1)
        await cluster.leader()

        assert node.machine.words == ["w0", "w1", "w2", "w3", "w4"]


async def test_three_nodes_agree(tmp_path: Path) -> None:
    """What the leader acknowledges is applied everywhere; followers say who leads and take nothing."""

    async with cluster_of(tmp_path, 3) as cluster:
        for n in range(20):
            assert await cluster.propose(f"w{n}") == n + 1
        await cluster.agreed([f"w{n}" for n in range(20)])

        leader = await cluster.leader()
        leader_id = leader.engine.status.node_id
        follower = next(n for i, n in cluster.nodes.items() if i != leader_id)

        with pytest.raises(NotLeader) as caught:
            await follower.engine.propose(b"no", 5)
        assert caught.value.leader_id == leader_id
        with pytest.raises(NotLeader):
            await follower.engine.read_barrier(5)
        assert leader.changes[-1].leading
        assert set(leader.engine.status.match_indexes) == {1, 2, 3}


async def test_many_proposals_and_reads_share_syncs_and_rounds(tmp_path: Path) -> None:
    """Concurrent proposals are committed in batches, and each of them gets its own result."""

    async with cluster_of(tmp_path, 3) as cluster:
        leader = await cluster.leader()
        begun = asyncio.get_running_loop().time()

        results = await asyncio.gather(*(leader.engine.propose(b"w%d" % n, 10) for n in range(2000)))
        await asyncio.gather(*(leader.engine.read_barrier(10) for _ in range(2000)))

        took = asyncio.get_running_loop().time() - begun
        assert results == list(range(1, 2001))
        assert took < 10, f"{took:.1f} s for 2000 proposals and 2000 reads at once"


async def test_the_leader_dies(tmp_path: Path) -> None:
    """Another node leads with everything that was acknowledged; the old one comes back and catches up."""

    async with cluster_of(tmp_path, 3) as cluster:
        for n in range(5):
            await cluster.propose(f"w{n}")
        dead = (await cluster.leader()).engine.status.node_id
        await cluster.kill(dead)

        assert await cluster.propose("w5") == 6
        await cluster.start(dead)

        await cluster.agreed([f"w{n}" for n in range(6)])


async def test_a_minority_acknowledges_nothing(tmp_path: Path) -> None:
    """A leader without a majority steps down; its proposal's outcome is unknown, its reads are refused."""

    async with cluster_of(tmp_path, 3) as cluster:
        await cluster.propose("w0")
        leader = await cluster.leader()
        for node_id in [i for i, node in cluster.nodes.items() if node is not leader]:
            await cluster.kill(node_id)

        with pytest.raises(OutcomeUnknown):
            await leader.engine.propose(b"w1")
        await cluster.until(lambda: leader.engine.status.role is not Role.LEADER, "still leads")
        with pytest.raises(NotLeader):
            await leader.engine.read_barrier(5)
        with pytest.raises(NotLeader):
            await leader.engine.propose(b"w2", 5)


async def test_an_emptied_follower_gets_a_snapshot(tmp_path: Path) -> None:
    """A learner that has nothing, while the log is compacted, gets the snapshot and then follows."""

    settings = RaftSettings(tick_seconds=0.03, snapshot_entries=1500)

    async with cluster_of(tmp_path, 1, settings) as cluster:
        leader = await cluster.leader()
        words = [f"w{n}-" + "x" * 500 for n in range(4000)]
        await asyncio.gather(*(leader.engine.propose(word.encode(), 20) for word in words))
        await cluster.until(lambda: leader.engine.status.snapshot_index >= 1500, "no snapshot")
        await leader.engine.take_snapshot()
        await leader.engine.propose(b"after", 5)

        await leader.engine.add_learner(cluster.member(2))
        node = await cluster.start(2, Configuration())
        await cluster.agreed([*words, "after"])

        assert node.machine.restored == 1
        assert node.engine.status.role is Role.LEARNER
        await cluster.kill(2)
        again = await cluster.start(2, Configuration())
        assert again.machine.restored == 1
        await cluster.agreed([*words, "after"])
        segments = [name for name in leader.disk.names() if name.startswith("log-")]
        assert len(segments) < 40, "old segments stay"


async def test_members_come_and_go(tmp_path: Path) -> None:
    """From one to three members and to two, with a refusal that says why and a removed node that is quiet."""

    async with cluster_of(tmp_path, 1) as cluster:
        await cluster.propose("w0")
        leader = await cluster.leader()
        for node_id in (2, 3):
            await cluster.start(node_id, Configuration())
            await leader.engine.add_learner(cluster.member(node_id))
            await leader.engine.add_learner(cluster.member(node_id))
            match = leader.engine.status
            assert node_id in match.configuration.learners
            await cluster.agreed(["w0"])
            await cluster.promote(node_id)
        assert leader.engine.status.configuration.voters == (1, 2, 3)
        with pytest.raises(ConfigurationRefused, match="no member"):
            await leader.engine.promote(4)
        with pytest.raises(ConfigurationRefused, match="no vote"):
            await leader.engine.transfer(4)
        await cluster.propose("w1")
        await cluster.agreed(["w0", "w1"])

        await leader.engine.remove(3)

        removed = cluster.nodes[3]
        await cluster.until(lambda: removed.engine.status.role is Role.LEARNER, "the removed node votes")
        await cluster.kill(2)
        with pytest.raises(OutcomeUnknown):
            await leader.engine.propose(b"w2", 0.3)
        await cluster.start(2, Configuration())
        assert (await cluster.leader()).engine.status.configuration.voters == (1, 2)


async def test_a_leader_removes_itself(tmp_path: Path) -> None:
    """The change is committed first; then another node leads."""

    async with cluster_of(tmp_path, 3) as cluster:
        await cluster.propose("w0")
        leader = await cluster.leader()
        gone = leader.engine.status.node_id

        await leader.engine.remove(gone)

        await cluster.until(lambda: not leader.engine.status.leading, "the removed node leads")
        await cluster.kill(gone)
        assert await cluster.propose("w1") == 2


async def test_a_lagging_learner_gets_no_vote(tmp_path: Path) -> None:
    """The refusal tells how far it is behind."""

    async with cluster_of(tmp_path, 1) as cluster:
        leader = await cluster.leader()
        await asyncio.gather(*(leader.engine.propose(b"w", 10) for _ in range(200)))
        await leader.engine.add_learner(cluster.member(2))

        with pytest.raises(ConfigurationRefused, match=r"lags by 20\d entries"):
            await leader.engine.promote(2)


async def test_leadership_is_handed_over(tmp_path: Path) -> None:
    """`transfer` returns when another node takes over; to a dead node it fails and the leader stays."""

    async with cluster_of(tmp_path, 3) as cluster:
        await cluster.propose("w0")
        await cluster.agreed(["w0"])
        leader = await cluster.leader()
        first, second, third = sorted(cluster.nodes, key=lambda i: cluster.nodes[i] is not leader)

        await leader.engine.transfer(second)

        await cluster.until(lambda: cluster.nodes[second].engine.status.leading, "did not take over")
        await cluster.nodes[second].engine.transfer(second)
        await cluster.kill(third)
        with pytest.raises((OutcomeUnknown, Overloaded)):
            await cluster.nodes[second].engine.transfer(third)
        assert await cluster.propose("w1") == 2
        assert first in cluster.nodes


async def test_a_torn_end_is_cut(tmp_path: Path) -> None:
    """A node whose last write was torn by a power failure starts with all that it had synced."""

    async with cluster_of(tmp_path, 1) as cluster:
        await cluster.propose("w0")
        await cluster.kill(1)
        last = sorted((tmp_path / "1").glob("log-*"))[-1]
        with last.open("ab") as stream:
            stream.write(b"\0\0\0\x40 torn")

        node = await cluster.start(1)

        await cluster.propose("w1")
        assert node.machine.words == ["w0", "w1"]


async def test_a_damaged_log_stops_the_node(tmp_path: Path) -> None:
    """A changed byte in what was synced is not passed over; the error says where and what to do."""

    async with cluster_of(tmp_path, 1) as cluster:
        for n in range(10):
            await cluster.propose(f"w{n}")
        await cluster.kill(1)
        last = sorted((tmp_path / "1").glob("log-*"))[-1]
        content = bytearray(last.read_bytes())
        content[len(content) // 2] ^= 1
        last.write_bytes(content)

        with pytest.raises(LogDamaged, match=r"log-0+1 is damaged at byte \d+.*remove it from the group"):
            await cluster.start(1)
        assert last.read_bytes() == content, "the evidence was changed"


async def test_a_failed_sync_ends_the_node(tmp_path: Path) -> None:
    """`run` raises the disk's error; waiting proposals are told, and later ones are refused."""

    async with cluster_of(tmp_path, 1) as cluster:
        node = await cluster.leader()
        node.disk.fails = True

        with pytest.raises(OutcomeUnknown):
            await node.engine.propose(b"w0", 5)

        assert node.task is not None
        with pytest.raises(OSError, match="Input/output"):
            await node.task
        with pytest.raises(NotLeader):
            await node.engine.propose(b"w1", 5)


async def test_a_slow_disk_does_not_cost_the_leadership(tmp_path: Path) -> None:
    """Heartbeats go on while a sync takes longer than an election, and the majority commits without it."""

    async with cluster_of(tmp_path, 3) as cluster:
        await cluster.propose("w0")
        await cluster.agreed(["w0"])
        leader = await cluster.leader()
        term = leader.engine.status.term
        leader.disk.pause = 1.5

        begun = asyncio.get_running_loop().time()
        await leader.engine.propose(b"w1", 5)
        took = asyncio.get_running_loop().time() - begun
        leader.disk.pause = 0
        await leader.engine.propose(b"w2", 5)

        assert took < 1.4
        assert (leader.engine.status.term, leader.engine.status.leading) == (term, True)


async def test_waiting_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    """Cancelled proposals and reads keep no memory and disturb nobody."""

    async with cluster_of(tmp_path, 1, RaftSettings(tick_seconds=0.03, proposals_max=50)) as cluster:
        leader = await cluster.leader()
        for _ in range(10):
            tasks = [asyncio.create_task(leader.engine.propose(b"w")) for _ in range(40)]
            tasks += [asyncio.create_task(leader.engine.read_barrier()) for _ in range(40)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await leader.engine.read_barrier(5)

        more = [asyncio.create_task(leader.engine.propose(b"w", 5)) for _ in range(60)]
        results = await asyncio.gather(*more, return_exceptions=True)

        assert sum(isinstance(result, Overloaded) for result in results) == 10
        with pytest.raises(ValueError, match="bytes"):
            await leader.engine.propose(bytes(ENTRY_BYTES_MAX + 1))


async def test_nothing_is_acknowledged_before_a_majority_has_synced(tmp_path: Path) -> None:
    """With slow disks on two of three nodes a proposal takes as long as the faster of them."""

    async with cluster_of(tmp_path, 3) as cluster:
        await cluster.propose("w0")
        await cluster.agreed(["w0"])
        leader = await cluster.leader()
        for node in cluster.nodes.values():
            node.disk.pause = 0.0 if node is leader else 0.4

        begun = time.monotonic()  # disks pause on real time, in threads
        await leader.engine.propose(b"w1", 5)
        took = time.monotonic() - begun

        assert took >= 0.4
