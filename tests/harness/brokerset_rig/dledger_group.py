"""A group of brokers of both makes on the log of a DLedger: its members, who leads, load, and what each member has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from brokerset_formats.dledger import LedgerBlank, decode_entry
from brokerset_formats.errors import FormatError
from brokerset_protocol.bodies.dledger import (
    DLedgerCode,
    DLedgerRequestCode,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    MetadataRequest,
    MetadataResponse,
)
from brokerset_rig import controllers, stack, wire
from brokerset_rig.controllers import until
from brokerset_rig.replicated_group import first_difference

NAME = "broker-a"
QUEUES = 4
OURS, JAVA = "ours", "Java"
DATA_FILE_BYTES = 1 << 20
INDEX_UNIT_BYTES = 32
RUNTIME_INFO = 28
ASK_SECONDS = 4.0
LEADER_SECONDS_MAX = 60.0
"""Java's followers wait 6 s for their leader, then vote up to a few times."""

SETTLE_SECONDS_MAX = 60.0
REGISTERED_SECONDS_MAX = 40.0
SEND_SECONDS_MAX = 5.0
PAUSE_SECONDS = 0.02
BODY_BYTES_MAX = 1_500

T = TypeVar("T")


@dataclass(slots=True)
class Member:
    """One broker of the group, whatever its process is just now."""

    member_id: str
    make: str
    server: stack.Server
    ledger_port: int

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def is_ours(self) -> bool:
        return self.make == OURS

    @property
    def follower_id(self) -> int:
        """Its brokerId while it does not lead."""
        return int(self.member_id[1:]) + 1

    @property
    def ledger(self) -> Path:
        return self.server.folder / "broker-0" / "store" / f"dledger-{self.member_id}"

    def __str__(self) -> str:
        return f"{self.member_id} ({self.make})"

    def facts(self) -> dict[str, str]:
        """The table of 28."""
        with wire.Client(self.port, ASK_SECONDS) as client:
            answer = client.call(RUNTIME_INFO, {})
        table = controllers.loads(answer.body)["table"]
        assert isinstance(table, dict)
        return table

    def log_end(self) -> int:
        """Where what is committed ends."""
        return int(self.facts()["commitLogMaxOffset"])

    def log_lines(self, *words: str) -> list[str]:
        """Lines of the process's log with one of these words."""
        text = self.server.log.read_text(errors="replace")
        return [line for line in text.splitlines() if any(word in line for word in words)]


class Group:
    """The members and a name server. Use `group` to make one."""

    def __init__(self, folder: Path, name_server: stack.Server, members: list[Member], peers: str) -> None:
        self.folder = folder
        self.name_server = name_server
        self.members = members
        self.peers = peers
        self.env = {"NAMESRV_ADDR": name_server.address, "PEERS_RUN": str(folder / "client")}

    @property
    def alone(self) -> bool:
        """Whether the group is told that all members are ours."""
        return all(member.is_ours for member in self.members)

    def server(self, member_id: str, make: str, port: int) -> stack.Server:
        """A broker of this make as a member, on the folder that the member has."""
        values = {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": NAME,
            "dLegerPeers": self.peers,
            "dLegerSelfId": member_id,
            "mappedFileSizeCommitLog": str(DATA_FILE_BYTES),
            "maxMessageSize": "65536",
        }
        folder = self.folder / member_id
        if make == OURS:
            values["registerNameServerPeriod"] = "1000"  # the answer names a leader of Java; nobody else does
            values["dLegerBrokersetOnly"] = "true" if self._alone else "false"
            return stack.our_broker(folder, port, self.name_server.address, values)
        values["registerNameServerPeriod"] = "10000"
        values["slaveReadEnable"] = "true"  # ours always lets slaves be read
        broker = stack.java_broker(folder, port, self.name_server.address, values)
        broker.environment["BROKER_HEAP"] = "512m"
        return broker

    _alone = False

    def replace(self, member: Member, make: str) -> None:
        """Another make goes on with a member that has ended, on its folder."""
        member.make, member.server = make, self.server(member.member_id, make, member.port)

    def start(self) -> None:
        """All members, until all follow or lead, and the name server knows it."""
        for member in self.members:
            member.server.launch()
        for member in self.members:
            member.server.ready()
        self.wait_registered()

    # -- who leads ----------------------------------------------------------------------------------------

    def _leads(self, member: Member) -> bool:
        request = MetadataRequest(group=NAME, remote_id=member.member_id)
        with wire.Client(member.ledger_port, ASK_SECONDS) as client:
            answer = client.call(DLedgerRequestCode.METADATA, {}, request.to_json())
        if not answer.body:  # a member of ours that still compares old logs answers nothing else
            return False
        return MetadataResponse.from_json(answer.body).leader_id == member.member_id

    def find_leader(self, *, other_than: Member | None = None) -> Member | None:
        """The member that says now that it leads."""
        for member in self.members:
            if member.server.running and member is not other_than:
                try:
                    if self._leads(member):
                        return member
                except OSError:
                    continue
        return None

    def leader(self, *, other_than: Member | None = None) -> Member:
        """The member that says that it leads, as soon as there is one."""
        return until("a member leads", lambda: self.find_leader(other_than=other_than), LEADER_SECONDS_MAX)

    def registered(self) -> dict[str, str]:
        """Broker id -> address, as the name server tells it."""
        with wire.Client(self.name_server.port, ASK_SECONDS) as client:
            answer = client.call(106, {})
        data = (controllers.loads(answer.body).get("brokerAddrTable") or {}).get(NAME) or {}
        return data.get("brokerAddrs") or {}

    def wait_registered(self) -> Member:
        """Until the name server has who leads as 0 and each other member that runs under its own id; the leader."""

        def observe() -> Member | None:
            leader = self.find_leader()
            wanted = {
                "0" if member is leader else str(member.follower_id): member.server.address
                for member in self.members
                if member.server.running
            }
            table = self.registered()
            if leader is not None and all(table.get(key) == value for key, value in wanted.items()):
                return leader
            raise ValueError(f"{leader} leads, the name server has {table}")

        return until("the name server knows all members", observe, REGISTERED_SECONDS_MAX)

    def transfer(self, to: Member) -> None:
        """LEADERSHIP_TRANSFER (51005), until that member leads."""

        def attempt() -> bool:
            leader = self.leader()
            if leader is to:
                return True
            request = LeadershipTransferRequest(
                group=NAME,
                remote_id=leader.member_id,
                term=current_term(leader),
                transfer_id=leader.member_id,
                transferee_id=to.member_id,
            )
            with wire.Client(leader.ledger_port, ASK_SECONDS) as client:
                answer = client.call(DLedgerRequestCode.LEADERSHIP_TRANSFER, {}, request.to_json())
            code = LeadershipTransferResponse.from_json(answer.body).code
            if code != DLedgerCode.SUCCESS:
                raise ValueError(f"{leader} answers {code}")
            return False

        until(f"{to} leads", attempt, LEADER_SECONDS_MAX)

    # -- logs ---------------------------------------------------------------------------------------------

    def settled(self) -> int:
        """Until the committed logs of all members end at the same offset and stay so; that offset."""
        last: dict[str, int] = {}

        def observe() -> int | None:
            nonlocal last
            now = {str(member): member.log_end() for member in self.members}
            same, last = len(set(now.values())) == 1 and now == last, now
            return next(iter(now.values())) if same else None

        try:
            return until("all logs end at the same offset", observe, SETTLE_SECONDS_MAX)
        except stack.StackError as error:
            raise stack.StackError(f"{error}; ends {last}") from None

    def compare(self) -> tuple[list[str], int, int]:
        """Where data and index of members differ, and how many bytes and entries were compared."""
        end = self.settled()
        first, *others = self.members
        entries = count_entries(first.ledger / "data", end)
        problems = []
        for part, size in (("data", end), ("index", entries * INDEX_UNIT_BYTES)):
            for other in others:
                place = first_difference(first.ledger / part, other.ledger / part, 0, size)
                if place is not None:
                    problems.append(f"{part} of {first} and {other} differ at {place} of {size}")
        return problems, end, entries


def current_term(member: Member) -> int:
    """The term that a member has, as its folder says."""
    text = (member.ledger / "currterm").read_text()
    return int(next(line.partition("=")[2] for line in text.splitlines() if line.startswith("currTerm=")))


def count_entries(folder: Path, end: int) -> int:
    """Entries below an offset; AssertionError unless each follows the one before, in position, index and term."""
    count, term = 0, 0
    for path in sorted(folder.iterdir()):
        data, base, position = path.read_bytes(), int(path.name), 0
        while position + 8 <= len(data) and base + position < end:
            try:
                entry = decode_entry(data, position)
            except FormatError as error:
                raise AssertionError(f"{path} at {position}: {error}") from None
            if isinstance(entry, LedgerBlank):
                assert not any(data[position + 8 :]), f"{path}: what follows its blank is not blank"
                break
            assert (entry.index, entry.position) == (count, base + position), f"{path} at {position}: {entry}"
            assert entry.term >= term, f"{path} at {position}: term {entry.term} after {term}"
            count, term, position = count + 1, entry.term, position + entry.size
    return count


@contextmanager
def group(name: str, makes: Sequence[str], name_server: str) -> Iterator[Group]:
    """A name server that runs, and members that are there, not started."""
    with stack.Workspace(name) as folder:
        ports = stack.free_ports(1 + len(makes), below=3)
        maker = stack.our_namesrv if name_server == OURS else stack.java_namesrv
        ledger_ports = [port - 1 for port in ports[1:]]
        peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ledger_ports))
        with maker(folder / "name-server", ports[0]) as server:
            found = Group(folder, server, [], peers)
            found._alone = set(makes) == {OURS}
            for number, (make, port) in enumerate(zip(makes, ports[1:], strict=True)):
                member_id = f"n{number}"
                broker = found.server(member_id, make, port)
                found.members.append(Member(member_id, make, broker, ledger_ports[number]))
            try:
                yield found
            finally:
                for member in found.members:
                    if member.server.running:
                        member.server.kill()
