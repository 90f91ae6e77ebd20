"""Groups of DLedger members of both makes: they elect, replicate and fail over, and end with the same bytes.

Each mix runs under load while its leader is killed (`kill -9`) again and again and comes back. Afterwards every
acknowledged record must be there once, at its index, and the files of all members must be equal.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from brokerset_formats.dledger import LedgerEntry
from brokerset_protocol.bodies.dledger import (
    AppendRequest,
    AppendResponse,
    DLedgerCode,
    DLedgerRequestCode,
    GetRequest,
    GetResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    MetadataRequest,
    MetadataResponse,
)
from brokerset_protocol.commands import Command
from brokerset_rig.stack import PEERS, Workspace, free_ports
from brokerset_runtime.peer_requests import PoolRequester
from brokerset_runtime.remoting.connection import ConnectionClosed, RequestTimeout
from brokerset_runtime.remoting.pool import ConnectionPool

GROUP = "g"
ASK_SECONDS = 4.0
LEADER_SECONDS_MAX = 60.0
"""Java's followers wait 6 s for their leader, then vote up to a few times."""

EQUAL_SECONDS_MAX = 60.0
POLL_SECONDS = 0.01
"""Between two attempts to find a leader: groups of ours have one again within a few tenths of a second."""

WORKERS = 8

MIXES = {"ours": ("ours",) * 3, "java-1": ("java", "ours", "ours"), "java-2": ("java", "java", "ours")}
"""Who the members of a group are."""

KILLS = {"ours": 12, "java-1": 3, "java-2": 3}

NOT_SERVED = (DLedgerCode.NOT_LEADER, DLedgerCode.LEADER_NOT_READY)

Add = Callable[[str, list[str], float], None]


def java_tls(file: Path | None) -> str:
    """Options of a member of Java; it reads the mode from them alone."""
    if file is None:
        return os.environ.get("JAVA_OPT_EXT", "")
    return f"-Dtls.enable=true -Dtls.server.mode=enforcing -Dtls.config.file={file}"


@dataclass
class Member:
    """A process with its folder."""

    member_id: str
    make: str
    folder: Path
    peers: str
    alone: bool
    tls: Path | None = None
    """RocketMQ's keys of TLS, for either make."""

    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return dict(each.split("-", 1) for each in self.peers.split(";"))[self.member_id]

    def start(self) -> None:
        """Start it, or start it again."""
        if self.make == "java":
            command = [
                str(PEERS / "bin" / "ledger"), "server", f"group={GROUP}", f"id={self.member_id}",
                f"peers={self.peers}", f"dir={self.folder}",
            ]  # fmt: skip
        else:
            command = [
                sys.executable, "-m", "brokerset_rig.dledger_node", str(self.folder), self.member_id, self.peers,
                "--group", GROUP, *(["--alone"] if self.alone else []),
                *(["--tls", str(self.tls)] if self.tls is not None else []),
            ]  # fmt: skip
        with (self.folder / f"{self.member_id}.log").open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    "PEERS_RUN": str(self.folder),
                    "CLIENT_HEAP": "256m",
                    "JAVA_OPT_EXT": java_tls(self.tls),
                },
                start_new_session=True,
            )

    def stop(self, number: int = signal.SIGKILL) -> None:
        """End it, at once or in its own way."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)
            self.process = None

    def files(self) -> dict[str, bytes]:
        """The bytes of its log."""
        root = self.folder / f"dledger-{self.member_id}"
        return {
            f"{part}/{file.name}": file.read_bytes()
            for part in ("data", "index")
            for file in sorted((root / part).iterdir())
        }


@dataclass
class LedgerGroup:
    """A group, and a client that appends to whoever leads."""

    members: list[Member]
    requester: PoolRequester
    acknowledged: dict[bytes, int] = field(default_factory=dict[bytes, int])
    """Body -> index."""

    refused: int = 0
    number: int = 0
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    leader: Member | None = None

    async def ask(self, member: Member, code: DLedgerRequestCode, body: bytes) -> bytes:
        """One request. Raises `ConnectionError`, `TimeoutError`."""
        return (await self.requester.ask(member.address, Command(code, body=body), ASK_SECONDS)).body

    async def find_leader(self, *, other_than: Member | None = None) -> Member:
        """The member that most say leads, when it says so itself. Raises `AssertionError` after a minute."""
        deadline = time.monotonic() + LEADER_SECONDS_MAX
        while time.monotonic() < deadline:
            for member in self.members:
                if member.process is None or member is other_than:
                    continue
                request = MetadataRequest(group=GROUP, remote_id=member.member_id)
                try:
                    answer = await self.ask(member, DLedgerRequestCode.METADATA, request.to_json())
                except (ConnectionClosed, RequestTimeout):
                    continue
                if MetadataResponse.from_json(answer).leader_id == member.member_id:
                    return member
            await asyncio.sleep(POLL_SECONDS)
        raise AssertionError("nobody leads within a minute")

    async def wait_for_all(self) -> None:
        """Return when every member knows who leads. Raises `AssertionError` after a minute."""
        deadline = time.monotonic() + LEADER_SECONDS_MAX
        for member in self.members:
            request = MetadataRequest(group=GROUP, remote_id=member.member_id)
            while True:
                try:
                    answer = await self.ask(member, DLedgerRequestCode.METADATA, request.to_json())
                    if MetadataResponse.from_json(answer).leader_id is not None:
                        break
                except (ConnectionClosed, RequestTimeout):
                    pass
                assert time.monotonic() < deadline, f"{member.member_id} follows nobody within a minute"
                await asyncio.sleep(0.1)

    async def append(self, body: bytes) -> AppendResponse | None:
        """Append a record; None if nobody knows whether it was."""
        leader = self.leader or await self.find_leader()
        self.leader = leader
        request = AppendRequest(group=GROUP, remote_id=leader.member_id, body=body)
        try:
            answer = await self.ask(leader, DLedgerRequestCode.APPEND, request.to_json())
        except (ConnectionClosed, RequestTimeout):
            self.leader = None
            return None
        response = AppendResponse.from_json(answer)
        if response.succeeded:
            self.acknowledged[body] = response.index
            self.progress.set()
        else:
            self.refused += 1
            self.leader = None
        return response

    async def load(self, ended: asyncio.Event) -> None:
        """Append until told to end; each record has another body."""
        while not ended.is_set():
            self.number += 1
            body = f"record-{self.number}-".encode() + b"x" * (self.number % 700)
            response = await self.append(body)
            if response is None or not response.succeeded:
                await asyncio.sleep(POLL_SECONDS)

    async def wait_for_more(self, count: int) -> bool:
        """Whether so many records more are acknowledged within a minute."""
        wanted = len(self.acknowledged) + count
        try:
            async with asyncio.timeout(LEADER_SECONDS_MAX):
                while len(self.acknowledged) < wanted:
                    self.progress.clear()
                    await self.progress.wait()
        except TimeoutError:
            return False
        return True

    async def entry(self, index: int) -> LedgerEntry | None:
        """What the leader has at an index; one that does not serve (yet) is asked again."""
        deadline = time.monotonic() + LEADER_SECONDS_MAX
        while True:
            leader = await self.find_leader()
            request = GetRequest(group=GROUP, remote_id=leader.member_id, begin_index=index)
            answer = GetResponse.from_json(await self.ask(leader, DLedgerRequestCode.GET, request.to_json()))
            if answer.code not in NOT_SERVED or time.monotonic() > deadline:
                return answer.entries[0] if answer.entries else None
            await asyncio.sleep(0.1)

    async def lost(self) -> list[str]:
        """Acknowledged records that the leader lacks."""
        missing = []
        for body, index in self.acknowledged.items():
            entry = await self.entry(index)
            if entry is None or entry.body != body:
                missing.append(f"entry {index} is {entry and entry.body[:20]!r} instead of {body[:20]!r}")
        return missing

    async def unequal(self) -> list[str]:
        """Files that differ between members, once all had time to get the same."""
        deadline = time.monotonic() + EQUAL_SECONDS_MAX
        while True:
            contents = [member.files() for member in self.members]
            found = [
                f"{name} of {member.member_id} differs from that of {self.members[0].member_id}"
                for member, content in zip(self.members, contents, strict=True)
                for name in sorted(contents[0].keys() | content.keys())
                if contents[0].get(name) != content.get(name)
            ]
            if not found or time.monotonic() > deadline:
                return found
            await asyncio.sleep(1)


async def _java_client(group: LedgerGroup, peers: str) -> list[str]:
    """The client in DLedger's own jar appends to this group, and reads what it appended."""

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [str(PEERS / "bin" / "ledger"), *arguments, f"group={GROUP}", f"peers={peers}"],
            capture_output=True, text=True, timeout=120,
            env={**os.environ, "PEERS_RUN": str(group.members[0].folder / "client"), "CLIENT_HEAP": "128m"},
        )  # fmt: skip
        return done.stdout.strip()

    appended = await asyncio.to_thread(run, "append", "count=3")
    lines = [line.split() for line in appended.splitlines()]
    if [line[0] for line in lines] != ["200"] * 3:
        return [f"append gave {appended!r}"]
    got = await asyncio.to_thread(run, "get", f"index={lines[1][1]}")
    return [] if got == f"200 {lines[1][1]} java-1" else [f"get gave {got!r}"]


async def _transfer(group: LedgerGroup) -> list[str]:
    """LEADERSHIP_TRANSFER (51005) makes another member the leader: one of ours, if the leader is not the only one."""
    leader = await group.find_leader()
    others = [member for member in group.members if member is not leader]
    wanted = min(others, key=lambda member: member.make != "ours")
    term = AppendResponse(term=-1)
    for _ in range(20):
        response = await group.append(f"before-transfer-{time.monotonic_ns()}".encode())
        if response is not None and response.succeeded:
            term = response
            break
    request = LeadershipTransferRequest(
        group=GROUP, remote_id=leader.member_id, term=term.term,
        transfer_id=leader.member_id, transferee_id=wanted.member_id,
    )  # fmt: skip
    answer = await group.ask(leader, DLedgerRequestCode.LEADERSHIP_TRANSFER, request.to_json())
    done = LeadershipTransferResponse.from_json(answer)
    if not done.succeeded:
        return [f"{leader.member_id} ({leader.make}) answers {done.code}"]
    group.leader = None
    now = await group.find_leader()
    return [] if now is wanted else [f"{now.member_id} leads instead of {wanted.member_id}"]


async def run_mix(name: str, kills: int, add: Add) -> None:
    """One group from its start to the comparison of its files; `add` takes what was seen."""
    with Workspace("dledger") as folder:
        makes = MIXES[name]
        ports = free_ports(len(makes))
        peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
        members = [
            Member(f"n{number}", make, folder, peers, alone=set(makes) == {"ours"})
            for number, make in enumerate(makes)
        ]
        pool = ConnectionPool()
        group = LedgerGroup(members, PoolRequester(pool))
        try:
            await _run(name, group, peers, kills, add)
        finally:
            await pool.close()
            for member in members:
                member.stop()


async def _run(name: str, group: LedgerGroup, peers: str, kills: int, add: Add) -> None:
    begun = time.monotonic()
    for member in group.members:
        member.start()
    leader = await group.find_leader()
    await group.wait_for_all()
    add(
        f"({name}) the members elect a leader: {leader.member_id}, {leader.make}",
        [],
        time.monotonic() - begun,
    )

    begun = time.monotonic()
    add(
        f"({name}) DLedger's own client appends and gets",
        await _java_client(group, peers),
        time.monotonic() - begun,
    )

    ended = asyncio.Event()
    load = [asyncio.create_task(group.load(ended)) for _ in range(WORKERS)]
    for _ in range(kills):
        leader = await group.find_leader()
        await group.wait_for_more(50)
        leader.stop()
        killed = time.monotonic()
        group.leader = None
        successor = await group.find_leader(other_than=leader)
        problems = [] if await group.wait_for_more(1) else ["nothing is acknowledged any more"]
        add(
            f"({name}) the leader {leader.member_id} ({leader.make}) is killed: "
            f"{successor.member_id} ({successor.make}) takes over",
            problems,
            time.monotonic() - killed,
        )
        leader.start()
    ended.set()
    await asyncio.gather(*load)
    await group.wait_for_all()

    for number in ("one", "two"):
        begun = time.monotonic()
        problems = await _transfer(group)
        add(f"({name}) leadership is transferred, {number} of two", problems, time.monotonic() - begun)
    begun = time.monotonic()
    lost = await group.lost()
    add(
        f"({name}) all {len(group.acknowledged)} acknowledged records are there",
        lost[:5],
        time.monotonic() - begun,
    )
    begun = time.monotonic()
    add(f"({name}) data and index of all members are equal", await group.unequal(), time.monotonic() - begun)


def run(add: Add, *, mixes: tuple[str, ...] = tuple(MIXES), kills: int | None = None) -> None:
    """All mixes; `add` takes what was looked at, what was wrong, and the seconds it took."""
    for name in mixes:
        asyncio.run(run_mix(name, KILLS[name] if kills is None else kills, add))
