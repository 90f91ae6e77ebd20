"""Members of a DLedger group with real sockets and files, in one process."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from brokerset_broker.store.ledger import FileLedger
from brokerset_dledger import driver as driver_module
from brokerset_dledger.driver import Driver, MemberStatus
from brokerset_dledger.ledger import LedgerRefused
from brokerset_dledger.node import Role
from brokerset_formats.dledger import ENTRY_HEAD_SIZE, CurrentTerm, LedgerRun
from brokerset_protocol.bodies.dledger import (
    AppendRequest,
    AppendResponse,
    DLedgerCode,
    DLedgerRequestCode,
    GetRequest,
    GetResponse,
    MetadataRequest,
    MetadataResponse,
    PushResponse,
    PushRunRequest,
    VoteRequest,
    VoteResponse,
)
from brokerset_protocol.commands import Command
from brokerset_rig.dledger_node import config_of
from brokerset_rig.stack import free_ports
from brokerset_rig.waiting import until
from brokerset_runtime.clock import SystemClock
from brokerset_runtime.peer_requests import PoolRequester
from brokerset_runtime.remoting.pool import ConnectionPool
from brokerset_runtime.remoting.server import RemotingServer

SECONDS_MAX = 30.0

_T = TypeVar("_T")


class Running:
    """One member that runs in this process."""

    def __init__(self, folder: Path, member_id: str, peers: str, **settings: Any) -> None:
        self.member_id = member_id
        self.failure: BaseException | None = None
        self.changes: list[MemberStatus] = []
        self.commits: list[int] = []
        config, self.addresses = config_of(member_id, peers, alone=True)
        for name in ("sync_before_ack", "heartbeats_missed_max"):
            if name in settings:
                config = replace(config, **{name: settings.pop(name)})
        self.ledger = FileLedger(
            folder / f"dledger-{member_id}",
            data_file_bytes=4096,
            index_file_bytes=64 * 32,
            record_of_term=lambda: b"term",
        )
        self._pool = ConnectionPool()
        self.requester = PoolRequester(self._pool)
        self.driver = Driver(
            config,
            self.addresses,
            self.ledger,
            self.ledger.open(),
            requester=self.requester,
            clock=SystemClock(),
            run_blocking=_run_blocking,
            random_source=random.Random(1),
            own_address=f"{member_id}.example:10911",
            on_change=self.changes.append,
            on_commit=lambda: self.commits.append(self.ledger.committed_index),
            **settings,
        )
        self._server = RemotingServer(self.driver.handlers)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen and take part."""
        host, port = self.addresses[self.member_id].rsplit(":", 1)
        await self._server.listen(host, int(port))
        self._task = asyncio.create_task(self.driver.run())

    async def stop(self) -> None:
        """End as a killed process does: nothing is written any more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await self._task
            self._task = None
            await self._server.close(0)
            await self._pool.close()

    async def ended(self) -> BaseException | None:
        """What ended it."""
        assert self._task is not None, "it was started"
        await asyncio.wait([self._task])
        return self._task.exception()


async def _run_blocking(work: Callable[[], _T]) -> _T:
    return await asyncio.to_thread(work)


@contextlib.asynccontextmanager
async def group(folder: Path, size: int = 3, **settings: Any) -> AsyncIterator[dict[str, Running]]:
    """A group that has a leader, and ends with the test."""
    peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(free_ports(size)))
    members = {f"n{number}": Running(folder, f"n{number}", peers, **settings) for number in range(size)}
    for member in members.values():
        await member.start()
    try:
        await leader_of(members)
        yield members
    finally:
        for member in members.values():
            await member.stop()


async def leader_of(members: dict[str, Running]) -> Running:
    """The member that serves."""
    await until(lambda: any(member.driver.status.serves for member in members.values()))
    return next(member for member in members.values() if member.driver.status.serves)


async def ask(member: Running, code: int, body: bytes) -> bytes:
    """A client's request over the network."""
    pool = ConnectionPool()
    try:
        command = Command(code, body=body)
        return (await PoolRequester(pool).ask(member.addresses[member.member_id], command, 5.0)).body
    finally:
        await pool.close()


async def test_what_is_acknowledged_is_on_a_quorum_and_survives_the_leader(tmp_path: Path) -> None:
    """The leader ends without a word; another has everything, and the old one comes back as its follower."""
    async with group(tmp_path) as members:
        first = await leader_of(members)
        entries = await first.driver.append([b"a" * 900, b"b"])
        await first.stop()
        rest = {name: member for name, member in members.items() if member is not first}

        second = await leader_of(rest)
        assert [second.ledger.entry(each.index) for each in entries] == entries

        more = await second.driver.append([b"c"])
        peers = ";".join(f"{name}-{address}" for name, address in first.addresses.items())
        members[first.member_id] = again = Running(tmp_path, first.member_id, peers)
        await again.start()
        await until(lambda: again.ledger.committed_index >= more[-1].index)
        assert again.driver.status.role is Role.FOLLOWER
        assert again.ledger.entry(more[-1].index) == more[-1]


async def test_store_puts_entries_and_hears_of_their_commit(tmp_path: Path) -> None:
    """What it puts into the log in one turn of the loop goes out as one push."""
    async with group(tmp_path) as members:
        leader = await leader_of(members)
        before = leader.ledger.committed_index
        for body in (b"one", b"two", b"three"):
            leader.driver.require_appendable()
            file, position = leader.ledger.prepare(len(body))
            begin = position - file.start + ENTRY_HEAD_SIZE
            file.map[begin : begin + len(body)] = body
            leader.ledger.complete(leader.driver.term, position, len(body))
            leader.driver.appended()

        await until(lambda: all(member.ledger.committed_index == before + 3 for member in members.values()))

        assert before + 3 in leader.commits
        assert leader.commits == sorted(set(leader.commits))
        for member in members.values():
            assert member.commits[-1] == before + 3


async def test_refused_at_a_follower_and_after_the_end(tmp_path: Path) -> None:
    """Nothing may be put into a log that this member does not lead."""
    async with group(tmp_path) as members:
        leader = await leader_of(members)
        follower = next(member for member in members.values() if member is not leader)
        with pytest.raises(LedgerRefused, match="leads g"):
            follower.driver.require_appendable()

        await leader.stop()

        with pytest.raises(LedgerRefused, match="has ended"):
            leader.driver.require_appendable()
        leader.driver.appended()


async def test_everybody_knows_where_clients_find_the_leader(tmp_path: Path) -> None:
    """The leader says it with its heartbeats."""
    async with group(tmp_path) as members:
        leader = await leader_of(members)
        address = f"{leader.member_id}.example:10911"

        await until(lambda: all(each.driver.status.leader_address == address for each in members.values()))

        assert all(each.changes[-1].leader_address == address for each in members.values())


async def test_end_of_a_lease_is_reported_when_nothing_else_happens(tmp_path: Path) -> None:
    """The leader has lost everybody: it ends to serve before it ends to lead."""
    async with group(tmp_path) as members:
        leader = await leader_of(members)
        assert leader.driver.may_serve()
        assert SystemClock().monotonic() < leader.driver.serves_until() < SystemClock().monotonic() + 0.3

        for member in members.values():
            if member is not leader:
                await member.stop()
        await until(lambda: leader.changes[-1].role is not Role.LEADER)

        last, end = leader.changes[-3:-1]
        assert (last.role, last.serves, end.role, end.serves) == (Role.LEADER, True, Role.LEADER, False)
        assert leader.driver.serves_until() == 0.0


async def test_end_of_the_leaders_connection_begins_the_election(tmp_path: Path) -> None:
    """Followers that would wait an hour for their leader have another one once their promises are over."""
    async with group(tmp_path, heartbeats_missed_max=100_000) as members:
        first = await leader_of(members)
        rest = {name: member for name, member in members.items() if member is not first}
        await until(lambda: all(each.driver.status.role is Role.FOLLOWER for each in rest.values()))

        await first.stop()

        second = await leader_of(rest)
        assert second.driver.term > first.driver.term


async def test_leader_of_one_serves_without_end(tmp_path: Path) -> None:
    """Nobody else can be elected."""
    async with group(tmp_path, 1) as members:
        assert members["n0"].driver.serves_until() == math.inf


async def test_asynchronous_flushing_lets_entries_wait_for_the_disk(tmp_path: Path) -> None:
    """They are committed before they are synced, and synced once in a while."""
    async with group(tmp_path, sync_before_ack=False, sync_seconds=1.0) as members:
        leader = await leader_of(members)

        (entry,) = await leader.driver.append([b"x"])
        assert leader.ledger.synced_index < entry.index

        await until(lambda: all(each.ledger.synced_index == entry.index for each in members.values()))


async def test_clients_append_and_get_as_from_java(tmp_path: Path) -> None:
    """Index and position are answered; who asks a follower hears who leads."""
    async with group(tmp_path) as members:
        leader = await leader_of(members)
        follower = next(member for member in members.values() if member is not leader)

        asked = AppendRequest(group="g", remote_id=leader.member_id, body=b"hello")
        done = AppendResponse.from_json(await ask(leader, DLedgerRequestCode.APPEND, asked.to_json()))
        assert (done.code, done.index) == (DLedgerCode.SUCCESS, leader.ledger.end_index)

        wanted = GetRequest(group="g", remote_id=leader.member_id, begin_index=done.index)
        got = GetResponse.from_json(await ask(leader, DLedgerRequestCode.GET, wanted.to_json()))
        assert [(each.body, each.position) for each in got.entries] == [(b"hello", done.position)]

        asked = AppendRequest(group="g", remote_id=follower.member_id, body=b"hello")
        refused = AppendResponse.from_json(await ask(follower, DLedgerRequestCode.APPEND, asked.to_json()))
        assert (refused.code, refused.leader_id) == (DLedgerCode.NOT_LEADER, leader.member_id)

        question = MetadataRequest(group="g", remote_id=follower.member_id)
        answer = MetadataResponse.from_json(
            await ask(follower, DLedgerRequestCode.METADATA, question.to_json())
        )
        assert (answer.leader_id, answer.peers) == (leader.member_id, leader.addresses)


async def test_a_batch_is_acknowledged_with_its_last_entry(tmp_path: Path) -> None:
    """The position of each is answered."""
    async with group(tmp_path, 1) as members:
        leader = await leader_of(members)
        asked = AppendRequest(group="g", remote_id="n0", batch_msgs=(b"1", b"22", b"333"))

        done = AppendResponse.from_json(await ask(leader, DLedgerRequestCode.APPEND, asked.to_json()))

        assert done.positions == tuple(
            leader.ledger.entry(index).position for index in range(done.index - 2, done.index + 1)
        )


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (AppendRequest(group="other", remote_id="n0", body=b"x"), DLedgerCode.UNKNOWN_GROUP),
        (AppendRequest(group="g", remote_id="n7", body=b"x"), DLedgerCode.UNKNOWN_MEMBER),
        (AppendRequest(group="g", remote_id="n0"), DLedgerCode.REQUEST_WITH_EMPTY_BODYS),
        (AppendRequest(group="g", remote_id="n0", body=b"x" * 5000), DLedgerCode.UNEXPECTED_ARGUMENT),
    ],
)
async def test_what_is_not_for_it_is_refused_by_name(
    tmp_path: Path, asked: AppendRequest, code: DLedgerCode
) -> None:
    """With the codes of Java; the member goes on."""
    async with group(tmp_path, 1) as members:
        answer = AppendResponse.from_json(
            await ask(members["n0"], DLedgerRequestCode.APPEND, asked.to_json())
        )

        assert answer.code == code
        assert await members["n0"].driver.append([b"goes on"])


async def test_a_member_of_another_make_is_not_heard_in_a_group_of_ours(tmp_path: Path) -> None:
    """A vote request without our mark is refused, whatever its term: the group was said to be ours alone."""
    async with group(tmp_path) as members:
        leader = await leader_of(members)
        term = leader.driver.status.term
        request = VoteRequest(
            group="g",
            remote_id=leader.member_id,
            local_id="n9",
            leader_id="n1",
            term=99,
            ledger_end_index=1 << 40,
        )

        answer = VoteResponse.from_json(await ask(leader, DLedgerRequestCode.VOTE, request.to_json()))

        assert answer.code == DLedgerCode.UNEXPECTED_ARGUMENT
        assert leader.driver.status.term == term


async def test_bytes_that_are_no_request_harm_nobody(tmp_path: Path) -> None:
    """They get an error that says what is wrong."""
    async with group(tmp_path, 1) as members:
        for code in DLedgerRequestCode:
            if code is not DLedgerRequestCode.PULL:
                pool = ConnectionPool()
                command = Command(code, body=b"\xff{nonsense")
                answer = await PoolRequester(pool).ask(members["n0"].addresses["n0"], command, 5.0)
                await pool.close()
                assert answer.code != DLedgerCode.SUCCESS
                assert re.search("cannot be read|is missing", answer.remark or "")
        assert await members["n0"].driver.append([b"goes on"])


async def test_a_disk_that_cannot_keep_a_vote_ends_the_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers nothing that it could forget."""

    def fail(ledger: FileLedger, term: CurrentTerm) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(FileLedger, "write_term", fail)
    member = Running(tmp_path, "n0", f"n0-127.0.0.1:{free_ports(1)[0]}")
    await member.start()

    assert isinstance(await member.ended(), OSError)
    with pytest.raises(LedgerRefused):
        await member.driver.append([b"x"])
    await member.stop()


async def test_a_disk_that_takes_no_checkpoint_ends_the_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No failure of the disk goes by unseen."""

    def fail(ledger: FileLedger) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(FileLedger, "write_checkpoint", fail)
    monkeypatch.setattr(driver_module, "CHECKPOINT_SECONDS", 0.01)
    member = Running(tmp_path, "n0", f"n0-127.0.0.1:{free_ports(1)[0]}")
    await member.start()

    assert isinstance(await member.ended(), OSError)
    await member.stop()


async def test_a_truncation_that_the_disk_did_not_take_ends_the_member_and_the_next_start_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower whose log is synced as a whole has nothing else to sync, where it would show."""
    async with group(tmp_path) as members:
        leader = await leader_of(members)
        heir, stale = (member for member in members.values() if member is not leader)
        (before,) = await leader.driver.append([b"before"])
        await until(lambda: stale.ledger.committed_index == before.index)
        await stale.stop()
        for number in range(3):
            stale.ledger.append_body(leader.driver.term, b"nobody else has %d" % number)
        stale.ledger.close()
        await leader.driver.transfer(heir.member_id)
        await until(lambda: heir.driver.status.serves)
        (after,) = await heir.driver.append([b"after"])
        peers = ";".join(f"{name}-{address}" for name, address in stale.addresses.items())
        members[stale.member_id] = failing = Running(tmp_path, stale.member_id, peers)
        cut_files = FileLedger._cut_files

        def fail_once(ledger: FileLedger, position: int, index: int) -> None:
            monkeypatch.undo()
            cut_files(ledger, position, index)
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(FileLedger, "_cut_files", fail_once)
        await failing.start()
        async with asyncio.timeout(SECONDS_MAX):
            assert isinstance(await failing.ended(), OSError)
        await failing.stop()

        members[stale.member_id] = again = Running(tmp_path, stale.member_id, peers)
        await again.start()
        await until(lambda: again.ledger.committed_index >= after.index)
        assert [again.ledger.entry(each.index) for each in (before, after)] == [before, after]


async def test_a_run_of_nonsense_harms_nobody(tmp_path: Path) -> None:
    """Wrong heads are refused with 411 by a follower, whose log stays as it is; the group goes on."""
    async with group(tmp_path) as members:
        leader = await leader_of(members)
        (entry,) = await leader.driver.append([b"x"])
        follower = next(member for member in members.values() if member is not leader)
        await until(lambda: follower.ledger.committed_index == entry.index)
        position = follower.ledger.write_position
        run = LedgerRun(entry.index + 1, 1, position, b"\xff" * 60)
        request = PushRunRequest(
            group="g",
            remote_id=follower.member_id,
            leader_id=leader.member_id,
            term=leader.driver.term,
            run=run,
        )
        pool = ConnectionPool()
        asker, address = PoolRequester(pool), follower.addresses[follower.member_id]

        answer = PushResponse.from_run_answer(await asker.ask(address, request.to_command(), 5.0))
        stranger = replace(request.to_command(), ext=request.to_command().ext | {"brokerset": "9"})
        refused = PushResponse.from_run_answer(await asker.ask(address, stranger, 5.0))
        await pool.close()

        assert answer.code == refused.code == DLedgerCode.UNEXPECTED_ARGUMENT
        assert follower.ledger.end_index == entry.index
        (more,) = await leader.driver.append([b"goes on"])
        await until(lambda: follower.ledger.committed_index == more.index)
