"""Engines whose process is stopped for a while, as by SIGSTOP or a frozen host, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from brokerset_protocol.commands import Command
from brokerset_raft.configuration import Configuration, Member
from brokerset_raft.driver import RaftEngine, RaftSettings
from brokerset_raft.engine import NotLeader, OutcomeUnknown
from brokerset_raft.messages import Message
from brokerset_raft.storage import Storage
from brokerset_sim.controller_node import SlowDisk
from brokerset_sim.disk import SimDisk
from brokerset_sim.loop import VirtualLoop, run
from brokerset_sim.network import Network, SimRaftTransport
from brokerset_sim.process import Host, Process

GROUP = Configuration(tuple(Member(i, f"h{i}:1", f"h{i}:2") for i in (1, 2, 3)))
STALL_SECONDS = 30.0


class Blind:
    """Implements `Observer`, and sees nothing."""

    def request_sent(self, client: Process, address: str, request: Command) -> object:
        return None

    def reply_left(self, server: Process, request: Command, reply: Command, token: object) -> None:
        pass

    def reply_arrived(
        self, client: Process, address: str, request: Command, reply: Command, token: object
    ) -> None:
        pass

    def handler_failed(self, server: Process, request: Command, error: Exception) -> None:
        raise error

    def raft_left(self, process: Process, message: Message) -> None:
        pass

    def note(self, kind: str, *what: object) -> None:
        pass


class Words:
    def __init__(self) -> None:
        self.words: list[str] = []

    def apply(self, index: int, data: bytes) -> object:
        self.words.append(data.decode())
        return data.decode()

    def snapshot(self) -> bytes:
        return " ".join(self.words).encode()

    def restore(self, data: bytes) -> None:
        self.words = data.decode().split()


class Node:
    def __init__(self, network: Network, loop: VirtualLoop, node_id: int, seed: int) -> None:
        host = Host(f"h{node_id}")
        network.add_host(host)
        self.machine = Words()
        self.errors: list[BaseException] = []
        self.process = Process(loop, host.name, host, lambda _, error: self.errors.append(error))
        transport = SimRaftTransport(network, self.process)
        self.engine = RaftEngine(
            node_id=node_id,
            initial=GROUP,
            storage=Storage(SimDisk(random.Random(node_id)).handle(lambda: None)),
            state_machine=self.machine,
            transport=transport,
            random_source=random.Random(seed * 10 + node_id),
            settings=RaftSettings(),
            run_blocking=SlowDisk(random.Random(seed)),
        )
        network.listen_raft(f"h{node_id}:1", transport, self.engine.receive)
        self.process.spawn(self.process.call(self._main), vital=True)

    async def _main(self) -> None:
        await self.engine.start()
        await self.engine.run()


class Group:
    def __init__(self, seed: int) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        network = Network(loop, random.Random(seed), Blind())
        self.nodes = [Node(network, loop, i, seed) for i in (1, 2, 3)]

    async def leader(self, among: list[Node] | None = None) -> Node:
        nodes = self.nodes if among is None else among
        async with asyncio.timeout(10):
            while True:
                terms = max(node.engine.status.term for node in nodes)
                for node in nodes:
                    if node.engine.status.leading and node.engine.status.term == terms:
                        return node
                await asyncio.sleep(0.01)

    async def agreed(self) -> list[str]:
        async with asyncio.timeout(10):
            while any(node.machine.words != self.nodes[0].machine.words for node in self.nodes):  # noqa: ASYNC110  # virtual time
                await asyncio.sleep(0.01)
        return self.nodes[0].machine.words

    async def close(self) -> None:
        for node in self.nodes:
            node.process.kill()
            await node.process.ended()
        assert not any(node.errors for node in self.nodes)


def group_of_three(seed: int, test: Callable[[Group], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        group = Group(seed)
        try:
            await test(group)
        finally:
            await group.close()

    run(main())


@pytest.mark.parametrize("number", range(10))
def test_a_leader_that_was_stopped_answers_nothing_stale(number: int) -> None:
    """Its successor leads on undisturbed; a read sees what was written meanwhile or is refused, and a
    proposal never gets another one's result."""

    async def scene(group: Group) -> None:
        old = await group.leader()
        assert await old.engine.propose(b"before") == "before"
        asked_before = asyncio.create_task(old.engine.propose(b"flying"))
        await asyncio.sleep(0.001 * number)
        old.process.pause()
        others = [node for node in group.nodes if node is not old]
        new = await group.leader(others)
        assert await new.engine.propose(b"after", 5) == "after"
        term = new.engine.status.term
        lost = asyncio.create_task(old.engine.propose(b"lost"))
        read = asyncio.create_task(old.engine.read_barrier())
        await asyncio.sleep(STALL_SECONDS)
        assert new.engine.status.term == term
        assert old.engine.status.term < term

        old.process.unpause()

        async with asyncio.timeout(5):
            try:
                await read
                assert "after" in old.machine.words
            except NotLeader:
                pass
            for task, word in ((asked_before, "flying"), (lost, "lost")):
                try:
                    assert await task == word
                    applied = True
                except NotLeader:
                    applied = False
                except OutcomeUnknown:
                    continue
                assert (word in await group.agreed()) is applied
        await asyncio.sleep(2)
        assert (await group.leader()) is new
        assert new.engine.status.term == term
        assert await new.engine.propose(b"last", 5) == "last"
        assert (await group.agreed())[-1] == "last"

    group_of_three(number, scene)


@pytest.mark.parametrize("number", range(10))
def test_a_follower_that_was_stopped_disturbs_nobody(number: int) -> None:
    """It has not heard its leader for long when it goes on, and starts no election for that."""

    async def scene(group: Group) -> None:
        leader = await group.leader()
        await leader.engine.propose(b"before")
        term = leader.engine.status.term
        stopped = next(node for node in group.nodes if node is not leader)
        stopped.process.pause()
        await asyncio.sleep(STALL_SECONDS + number / 100)
        await leader.engine.propose(b"after", 5)

        stopped.process.unpause()

        assert await group.agreed() == ["before", "after"]
        await asyncio.sleep(2)
        assert leader.engine.status.leading
        assert {node.engine.status.term for node in group.nodes} == {term}

    group_of_three(number, scene)


@pytest.mark.parametrize("number", range(10))
def test_all_are_stopped_and_go_on(number: int) -> None:
    """One after the other, with elections in between: the group works again within a few elections."""

    async def scene(group: Group) -> None:
        leader = await group.leader()
        await leader.engine.propose(b"before")
        for node in group.nodes:
            node.process.pause()
            await asyncio.sleep(number / 100)
        await asyncio.sleep(STALL_SECONDS)

        for node in group.nodes:
            node.process.unpause()

        await asyncio.sleep(0.05)
        async with asyncio.timeout(10):
            while True:
                try:
                    assert await (await group.leader()).engine.propose(b"after", 2) == "after"
                    break
                except (NotLeader, OutcomeUnknown):
                    await asyncio.sleep(0.05)
        assert "after" in await group.agreed()

    group_of_three(number, scene)


@pytest.mark.parametrize("number", range(10))
def test_all_are_stopped_at_once_and_keep_their_leader(number: int) -> None:
    """The ticks that nobody lived through are not made up for, so no time-out passes in them."""

    async def scene(group: Group) -> None:
        leader = await group.leader()
        await leader.engine.propose(b"before")
        await group.agreed()
        term = leader.engine.status.term
        for node in group.nodes:
            node.process.pause()
        await asyncio.sleep(STALL_SECONDS + number / 100)

        for node in group.nodes:
            node.process.unpause()

        await asyncio.sleep(2)
        assert leader.engine.status.leading
        assert {node.engine.status.term for node in group.nodes} == {term}

    group_of_three(number, scene)
