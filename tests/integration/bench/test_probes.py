"""When a group counts as whole again, asked as `bench failover` asks servers of both makes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from brokerset_bench.probes import NoAnswer, Prober
from brokerset_protocol.bodies.queues import KVTable
from brokerset_protocol.bodies.replicas import SyncStateSet
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers import controller as fields
from brokerset_runtime.remoting import Connection, RemotingServer
from brokerset_runtime.remoting.connection import Reply


class FakeGroup:
    """A controller that does not lead, one that does, and two brokers, all in one process."""

    def __init__(self) -> None:
        self.in_sync: tuple[int, ...] = (1, 2)
        self.ends = [100, 100]
        self.ledger: list[dict[str, str]] = [{}, {}]
        """What brokers say as members of a DLedger."""
        self.servers: list[RemotingServer] = []
        self.controllers: list[str] = []
        self.brokers: list[str] = []

    async def open(self) -> None:
        for leads in (False, True):
            self.controllers.append(
                await self._listen(
                    {
                        RequestCode.CONTROLLER_GET_METADATA_INFO: partial(self._meta, leads),
                        RequestCode.CONTROLLER_GET_REPLICA_INFO: self._replicas,
                    }
                )
            )
        for number in range(2):
            self.brokers.append(
                await self._listen({RequestCode.GET_BROKER_RUNTIME_INFO: partial(self._facts, number)})
            )

    async def _listen(self, handlers: dict[int, Callable[[Connection, Command], Reply]]) -> str:
        server = RemotingServer(handlers)
        self.servers.append(server)
        return f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"

    async def close(self) -> None:
        for server in self.servers:
            await server.close(0)

    def _meta(self, leads: bool, _: Connection, command: Command) -> Reply:
        answer = command.reply()
        answer.ext = fields.GetMetaDataResponse(is_leader=leads).to_ext()
        return answer

    def _replicas(self, _: Connection, command: Command) -> Reply:
        answer = command.reply()
        answer.ext = fields.GetReplicaInfoResponse(
            master_broker_id=1, master_address=self.brokers[0], master_epoch=7
        ).to_ext()
        answer.body = SyncStateSet(frozenset(self.in_sync), 3).to_json()
        return answer

    def _facts(self, number: int, _: Connection, command: Command) -> Reply:
        answer = command.reply()
        answer.body = KVTable({"commitLogMaxOffset": str(self.ends[number]), **self.ledger[number]}).to_json()
        return answer


def play(scene: Callable[[FakeGroup, Prober], Awaitable[None]]) -> None:
    async def run() -> None:
        group = FakeGroup()
        await group.open()
        async with Prober() as prober:
            await scene(group, prober)
        await group.close()

    asyncio.run(run())


def test_a_group_is_whole_when_all_are_in_sync_and_have_the_same_log() -> None:
    async def scene(group: FakeGroup, prober: Prober) -> None:
        group.in_sync, group.ends = (1,), [200, 150]
        waiting = asyncio.create_task(prober.until_whole(group.controllers, "g", group.brokers, 10.0))
        await asyncio.sleep(0.12)
        assert not waiting.done()
        group.in_sync = (1, 2)
        await asyncio.sleep(0.12)
        assert not waiting.done()
        group.ends = [200, 200]
        look = await waiting
        assert (look.leader, look.master) == (group.controllers[1], group.brokers[0])
        assert (look.epoch, look.in_sync) == (7, (1, 2))

    play(scene)


def _member(role: str, term: int, in_sync: str = "") -> dict[str, str]:
    return {"brokersetRole": role, "brokersetDLedgerTerm": str(term), "brokersetInSync": in_sync}


def test_members_of_a_dledger_tell_the_group_where_there_are_no_controllers() -> None:
    """One that led an older term, and has not heard of its end, is not the master."""

    async def scene(group: FakeGroup, prober: Prober) -> None:
        group.ledger = [_member("slave", 3), _member("slave", 3)]
        with pytest.raises(NoAnswer, match="no member leads and serves"):
            await prober.group((), "g", group.brokers)
        group.ledger = [_member("master", 3, "1,2"), _member("master", 4, "2")]
        view = await prober.group((), "g", group.brokers)
        assert (view.leader, view.master, view.epoch, view.in_sync) == (*[group.brokers[1]] * 2, 4, (2,))
        group.ledger = [_member("slave", 4), _member("master", 4, "1,2")]
        assert (await prober.until_whole((), "g", group.brokers, 1.0)).in_sync == (1, 2)

    play(scene)


@pytest.mark.parametrize(
    ("in_sync", "ends", "problem"),
    [((2,), [1, 1], r"in sync \(2,\)"), ((1, 2), [1, 2], r"logs end at \[1, 2\]")],
)
def test_what_is_missing_is_told_when_time_is_over(
    in_sync: tuple[int, ...], ends: list[int], problem: str
) -> None:
    async def scene(group: FakeGroup, prober: Prober) -> None:
        group.in_sync, group.ends = in_sync, ends
        with pytest.raises(NoAnswer, match=f"g is not whole after 0.1 s: .*{problem}"):
            await prober.until_whole(group.controllers, "g", group.brokers, 0.1)

    play(scene)


def test_nobody_waits_for_a_process_that_has_ended() -> None:
    async def scene(group: FakeGroup, prober: Prober) -> None:
        group.in_sync = ()
        with pytest.raises(NoAnswer, match="broker-1 has ended"):
            await prober.until_whole(
                group.controllers, "g", group.brokers, 60.0, lambda: "broker-1 has ended"
            )

    play(scene)


def test_those_that_do_not_answer_and_those_that_refuse_are_told_apart() -> None:
    async def scene(group: FakeGroup, prober: Prober) -> None:
        with pytest.raises(NoAnswer) as refused:
            await prober.log_end(group.controllers[0])
        assert refused.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        with pytest.raises(NoAnswer) as silent:
            await prober.log_end("127.0.0.1:1")
        assert silent.value.code is None
        with pytest.raises(NoAnswer, match="no controller leads"):
            await prober.leader(group.controllers[:1])

    play(scene)
