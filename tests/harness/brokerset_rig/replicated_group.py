"""A group of brokers of both makes that replicate: its members, ways to change its master, load, and its logs byte for byte."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from brokerset_rig import controller_parts, controllers, stack, wire
from brokerset_rig.controllers import CLUSTER, Panel, until

NAME = controller_parts.NAME
TOPIC = controller_parts.TOPIC
RUNTIME_INFO, SWITCH_OVER = 28, 21_011
COMPARED_BYTES = 1 << 20
QUEUES = 4
BODY_BYTES = 300
SEND_SECONDS_MAX = 5.0
SYNC_SECONDS_MAX = 90.0
SWITCH_SECONDS_MAX = 40.0
SETTLE_SECONDS_MAX = 60.0


@dataclass(slots=True)
class Member:
    """One broker of the group, whatever its process is just now."""

    make: str
    """`ours` or `Java`."""
    server: stack.Server
    broker_id: int = 0
    """The id that the controllers gave; 0 before."""

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def is_ours(self) -> bool:
        return self.make == "ours"

    @property
    def commit_log(self) -> Path:
        return self.server.folder / "broker-0" / "store" / "commitlog"

    def __str__(self) -> str:
        return f"{self.make} {self.broker_id}"

    def facts(self) -> dict[str, str]:
        """The table of 28."""
        with wire.Client(self.port, 5.0) as client:
            answer = client.call(RUNTIME_INFO, {})
        table = controllers.loads(answer.body)["table"]
        assert isinstance(table, dict)
        return table

    def log_end(self) -> int:
        return int(self.facts()["commitLogMaxOffset"])

    def epochs(self) -> list[tuple[int, int]]:
        """Epoch and start offset, as 1007 tells them."""
        with wire.Client(self.port, 5.0) as client:
            answer = client.call(controllers.EPOCHS, {})
        return [(e["epoch"], e["startOffset"]) for e in controllers.loads(answer.body)["epochList"]]

    def log_lines(self, *words: str) -> list[str]:
        """Lines of the process's log with one of these words."""
        text = self.server.log.read_text(errors="replace")
        return [line for line in text.splitlines() if any(word in line for word in words)]


class Group:
    """Controllers, and brokers that are added one by one. Use `group` to make one."""

    def __init__(
        self, folder: Path, servers: stack.Controllers, ports: list[int], access: wire.Access | None = None
    ) -> None:
        self.folder = folder
        self.servers = servers
        self.panel = Panel(servers.ports, access)
        self.members: list[Member] = []
        self._ports = ports
        self.env = {"NAMESRV_ADDR": servers.name_servers, "PEERS_RUN": str(folder / "client")}

    def add(self, make: str, settings: Mapping[str, str] | None = None, *, start: bool = True) -> Member:
        """A new broker with an empty store."""
        port = self._ports.pop(0)
        values = {
            **controller_parts.BROKER_SETTINGS,
            "controllerAddr": self.servers.addresses,
            "allAckInSyncStateSet": "true",
            **(settings or {}),
        }
        maker = stack.our_broker if make == "ours" else controller_parts.small_java_broker
        server = maker(self.folder / f"{make}-{len(self.members)}", port, self.servers.name_servers, values)
        member = Member(make, server)
        self.members.append(member)
        if start:
            self.start(member)
        return member

    def start(self, member: Member) -> None:
        """Run the broker until it is registered."""
        member.server.start()
        self.registered(member)

    def registered(self, member: Member) -> None:
        """Wait until a broker that runs is registered, and remember its id."""
        member.broker_id = until(
            f"the broker at {member.port} is registered",
            lambda: next(
                (
                    i
                    for i, replica in self.panel.replicas(NAME).items()
                    if replica["alive"] and replica["brokerAddress"].endswith(f":{member.port}")
                ),
                None,
            ),
            SYNC_SECONDS_MAX,
        )

    def by_id(self, broker_id: int) -> Member:
        return next(member for member in self.members if member.broker_id == broker_id)

    def master(self, seconds: float = SWITCH_SECONDS_MAX) -> tuple[Member, int]:
        """The master that the controllers name and that says of itself that it leads, and its epoch."""

        def look() -> tuple[Member, int] | None:
            found = self.panel.master(NAME)
            if found is None:
                return None
            with wire.Client(found[1], 2.0) as client:
                answer = client.call(controllers.EPOCHS, {})
            return (
                (self.by_id(found[0]), found[2]) if controllers.loads(answer.body)["brokerId"] == 0 else None
            )

        return until("a master that leads", look, seconds)

    def in_sync(self) -> set[int]:
        return {
            i for i, replica in self.panel.replicas(NAME).items() if replica["inSync"] and replica["alive"]
        }

    def wait_in_sync(self, *members: Member, seconds: float = SYNC_SECONDS_MAX) -> float:
        """Until these (or all that run) are in sync; the seconds it took."""
        wanted = {m.broker_id for m in members or [m for m in self.members if m.server.running]}
        before = time.monotonic()
        until(f"{sorted(wanted)} are in sync", lambda: wanted <= self.in_sync(), seconds)
        return time.monotonic() - before

    # -- other masters ------------------------------------------------------------------------------------

    def elect(self, to: Member) -> None:
        """Name the successor at the controllers (1002), while the master lives."""
        ext = {"clusterName": CLUSTER, "brokerName": NAME, "brokerId": str(to.broker_id), "designateElect": "true",
               "invokeTime": str(time.time_ns() // 1_000_000)}  # fmt: skip
        self.panel.sure(controllers.ELECT, ext)

    def switch_over(self, to: Member) -> None:
        """Have the master, one of ours, hand over."""
        master, _ = self.master()
        ext = {"brokerName": NAME, "toBrokerId": str(to.broker_id)}
        with wire.Client(master.port, 15.0) as client:
            answer = client.call(SWITCH_OVER, ext)
        if answer.code:
            raise controllers.Refused(SWITCH_OVER, answer)

    def kill_master(self) -> Member:
        """`kill -9`; returns who was master."""
        master, _ = self.master()
        master.server.kill()
        return master

    def wait_master_after(self, epoch: int) -> tuple[Member, int]:
        """The first master above this epoch that leads."""

        def look() -> tuple[Member, int] | None:
            found = self.master(2.0)
            return found if found[1] > epoch else None

        deadline = time.monotonic() + SWITCH_SECONDS_MAX
        while True:
            try:
                return until(f"a master above epoch {epoch}", look, 5.0)
            except stack.StackError:
                if time.monotonic() > deadline:
                    raise

    # -- logs ---------------------------------------------------------------------------------------------

    def settled(self, members: Sequence[Member] = ()) -> int:
        """Until all logs end at the same offset and stay so; that offset. Nobody may write meanwhile."""
        watched = list(members) or [m for m in self.members if m.server.running]
        last: dict[str, int] = {}

        def look() -> int | None:
            nonlocal last
            now = {str(m): m.log_end() for m in watched}
            same, last = len(set(now.values())) == 1 and now == last, now
            return next(iter(now.values())) if same else None

        try:
            return until("all logs end at the same offset", look, SETTLE_SECONDS_MAX)
        except stack.StackError as error:
            raise stack.StackError(f"{error}; ends {last}") from None

    def compare(self, members: Sequence[Member] = ()) -> tuple[list[str], int]:
        """Where logs and epochs of the members that run differ from the longest log's, and how many bytes were compared."""
        watched = list(members) or [m for m in self.members if m.server.running]
        end = self.settled(watched)
        watched.sort(key=lambda member: first_offset(member.commit_log))
        whole, *others = watched
        problems, size = [], 0
        for other in others:
            begin = first_offset(other.commit_log)
            place = first_difference(whole.commit_log, other.commit_log, begin, end)
            if place is not None:
                problems.append(f"the logs of {whole} and {other} differ at {place} of {begin} to {end}")
            size = max(size, end - begin)
            # an epoch without bytes may not be known yet to a slave that was sent none
            epochs = [[e for e in member.epochs() if e[1] < end] for member in (whole, other)]
            few = min(map(len, epochs))  # who began with the last file may know the last ones only
            if few == 0 or epochs[0][-few:] != epochs[1][-few:]:
                problems.append(f"{whole} has the epochs {epochs[0]}, {other} {epochs[1]}")
        return problems, size


@contextmanager
def group(
    name: str,
    brokers: int,
    make: controller_parts.MakeControllers = stack.our_controllers,
    access: wire.Access | None = None,
) -> Iterator[Group]:
    """Three controllers, which `access` administers if they check that, and ports for so many brokers."""
    with stack.Workspace(name) as folder, ExitStack() as running:
        ports = stack.free_ports(6 + brokers, below=2)
        servers = running.enter_context(make(folder, ports[:3], ports[3:6]))
        found = Group(folder, servers, ports[6:], access)

        def end() -> None:
            for member in found.members:
                controller_parts.kill_running(member.server)

        running.callback(end)
        yield found


def first_offset(folder: Path) -> int:
    """Where a commit log begins."""
    return min(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def first_difference(one: Path, other: Path, begin: int, end: int) -> int | None:
    """The first offset at which two commit logs differ."""
    files = sorted(int(path.name) for path in one.iterdir() if path.name.isdigit())
    ends = [*files[1:], end]
    for start, stop in zip(files, ends, strict=True):
        name = f"{start:020d}"
        if start >= end or stop <= begin:
            continue
        if not (other / name).exists():
            return start
        with (one / name).open("rb") as left, (other / name).open("rb") as right:
            at = max(begin, start)
            left.seek(at - start)
            right.seek(at - start)
            while at < min(stop, end):
                size = min(COMPARED_BYTES, min(stop, end) - at)
                a, b = left.read(size), right.read(size)
                if a != b or len(a) != size:
                    return at + next(
                        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
                    )
                at += size
    return None


_LOADS = itertools.count()
"""So that the messages of one load are not those of another."""


@dataclass
class _Sent:
    acked: dict[bytes, float] = field(default_factory=dict)
    """Body and when it was acknowledged, on the monotonic clock."""
    took: dict[bytes, float] = field(default_factory=dict)
    """Body and the seconds from its send to the answer."""
    refused: dict[str, int] = field(default_factory=dict)


class Load:
    """Threads that send to whoever is master, each to a queue of its own, and remember what was acknowledged."""

    def __init__(self, target: Group, threads: int = 3, pause: float = 0.002, topic: str = TOPIC) -> None:
        self._target = target
        self._topic = topic
        self._pause = pause
        self._name = b"load-%d" % next(_LOADS)
        self._excused: list[tuple[float, float]] = []
        self.excused_lost: list[tuple[float, float]] = []
        """Messages that `problems` found lost, in a time that `excuse` named: seconds from the begin of that time to
        the acknowledgement, and from the send."""
        self._ending = threading.Event()
        self._sent = [_Sent() for _ in range(threads)]
        self._threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(threads)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(30)

    @property
    def count(self) -> int:
        return sum(len(sent.acked) for sent in self._sent)

    @property
    def acknowledged(self) -> list[bytes]:
        return [body for sent in self._sent for body in list(sent.acked)]

    @property
    def refused(self) -> dict[str, int]:
        """Codes and remarks of sends that failed, and how often."""
        found: dict[str, int] = {}
        for sent in self._sent:
            for key, times in list(sent.refused.items()):
                found[key] = found.get(key, 0) + times
        return found

    def wait_more(self, messages: int, seconds: float = SWITCH_SECONDS_MAX) -> None:
        """Until so many more are acknowledged."""
        count = self.count
        until(
            f"{messages} more acknowledged messages (refused: {self.refused})",
            lambda: self.count >= count + messages,
            seconds,
        )

    def pause_since(self, moment: float) -> float:
        """The longest time without an acknowledgement, of those that ended after a moment (monotonic)."""
        times = sorted(t for sent in self._sent for t in list(sent.acked.values()))
        return max((b - a for a, b in itertools.pairwise(times) if b > moment), default=0.0)

    def excuse(self, begin: float, end: float) -> None:
        """What was acknowledged between these moments may be lost: a living Java master lost its role.

        It acknowledges alone from the end of its slaves' connections until it hears of the election.
        """
        self._excused.append((begin, end))

    def _run(self, number: int) -> None:
        panel, sent = Panel(self._target.panel.ports), self._sent[number]
        count = 0
        while not self._ending.is_set():
            try:
                master = panel.master(NAME)
                if master is None:
                    self._ending.wait(0.02)
                    continue
                with wire.Client(master[1], SEND_SECONDS_MAX) as client:
                    while not self._ending.wait(self._pause):
                        count += 1
                        body = b"%b %d %d " % (self._name, number, count)
                        body = body.ljust(BODY_BYTES, b"x")
                        began = time.monotonic()
                        answer = client.call(
                            wire.SEND_V2, wire.send_ext(self._topic, number, "WAIT\x01true\x02"), body
                        )
                        if answer.code:
                            key = f"{answer.code} {(answer.remark or '')[:60]}"
                            sent.refused[key] = sent.refused.get(key, 0) + 1
                            break
                        now = time.monotonic()
                        sent.acked[body], sent.took[body] = now, now - began
            except (OSError, stack.StackError) as error:
                key = type(error).__name__
                sent.refused[key] = sent.refused.get(key, 0) + 1
                self._ending.wait(0.02)

    def problems(self, port: int) -> list[str]:
        """What is missing, twice or out of order at the broker there."""
        problems = []
        for number, sent in enumerate(self._sent):
            prefix = self._name + b" "
            stored = [b for b in controller_parts.bodies(port, self._topic, number) if b.startswith(prefix)]
            found = set(stored)
            gone = {body: at for body, at in sent.acked.items() if body not in found}
            lost = [
                body
                for body, at in gone.items()
                if not any(begin <= at <= end for begin, end in self._excused)
            ]
            self.excused_lost += [
                (round(at - begin, 3), round(sent.took[body], 3))
                for body, at in gone.items()
                for begin, end in self._excused
                if begin <= at <= end
            ]
            if lost:
                problems.append(
                    f"queue {number}: {len(lost)} of {len(sent.acked)} acknowledged messages are gone,"
                    f" first {lost[0][:20]!r}, last {lost[-1][:20]!r}"
                )
            if len(found) != len(stored):
                problems.append(f"queue {number}: {len(stored) - len(found)} messages are there twice")
            places = [int(body.split()[2]) for body in stored]
            if places != sorted(places):
                problems.append(f"queue {number}: the messages are out of order")
        return problems


def ready_topic(target: Group, topic: str = TOPIC) -> None:
    """Make the topic at the master, as soon as it takes it."""

    def make() -> bool:
        try:
            controller_parts.create_topic(target.master()[0].port, topic)
        except stack.StackError:
            return False
        return True

    until("the topic is made", make, SWITCH_SECONDS_MAX)
