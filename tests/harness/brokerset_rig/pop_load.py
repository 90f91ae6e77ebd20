"""Groups of real processes of ours whose master is killed, and poppers at work on them; the ledger is kept outside."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from brokerset_protocol.codes import ResponseCode
from brokerset_rig import dledger_group, replicated_group, wire
from brokerset_rig.controllers import until
from brokerset_rig.pop_client import PopClient, PopRefused
from brokerset_rig.stack import StackError

TOPIC, GROUP = "popped", "poppers"
QUEUES = 2
PAUSE_S = 0.05
"""After a refusal or a broken connection."""
SERVES_S = 40.0


@dataclass(frozen=True, slots=True)
class KillableGroup:
    """What a test needs of a group, whoever elects its master."""

    port: Callable[[], int]
    """Where the master listens. Raises `StackError` while there is none."""
    kill: Callable[[], None]
    """`kill -9` to the master; returns when another one leads."""
    revive: Callable[[], None]
    """Start the one that was killed last, until it follows."""


Groups: TypeAlias = Callable[[], AbstractContextManager[KillableGroup]]


@contextmanager
def controlled() -> Iterator[KillableGroup]:
    """Three controllers and two brokers."""
    with replicated_group.group("pop-failover", 2) as found:
        for _ in range(2):
            found.add("ours")
        found.wait_in_sync()
        killed: list[replicated_group.Member] = []

        def kill() -> None:
            _, epoch = found.master()
            killed.append(found.kill_master())
            found.wait_master_after(epoch)

        def revive() -> None:
            found.start(killed.pop())
            found.wait_in_sync()

        yield KillableGroup(lambda: found.master(1.0)[0].port, kill, revive)


@contextmanager
def dledger() -> Iterator[KillableGroup]:
    """Three brokers that elect their leader."""
    with dledger_group.group("pop-failover", [dledger_group.OURS] * 3, dledger_group.OURS) as found:
        found.start()
        killed: list[dledger_group.Member] = []

        def port() -> int:
            leader = found.find_leader()
            if leader is None:
                raise StackError("nobody leads")
            return leader.port

        def kill() -> None:
            killed.append(found.leader())
            killed[-1].server.kill()
            found.leader(other_than=killed[-1])

        def revive() -> None:
            killed.pop().server.start()
            found.wait_registered()

        yield KillableGroup(port, kill, revive)


class MasterClient(PopClient):
    """Asks whoever is master, as clients do: one that is none any more says so, and the next one is asked.

    A busy machine costs a master its lease between any two requests. A send that comes at that moment may be
    stored twice.
    """

    def __init__(self, group: KillableGroup, topic: str) -> None:
        """Raises `StackError` while nobody leads."""
        super().__init__(group.port(), topic, GROUP)
        self._master = group

    def call(self, code: int, ext: dict[str, str], body: bytes = b"") -> wire.Answer:
        answer = super().call(code, ext, body)
        if answer.code != ResponseCode.SERVICE_NOT_AVAILABLE:
            return answer
        return until("a master serves", lambda: self._call_next(code, ext, body), SERVES_S)

    def _call_next(self, code: int, ext: dict[str, str], body: bytes) -> wire.Answer | None:
        try:
            port = self._master.port()
        except StackError:  # nobody leads
            return None
        self.connect(port)
        answer = super().call(code, ext, body)
        return None if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE else answer


def client(group: KillableGroup, topic: str = TOPIC) -> MasterClient:
    """Connected to the master once it makes the topic, so it serves."""
    found: list[MasterClient] = []

    def serves() -> bool:
        try:
            one = MasterClient(group, topic)
        except StackError:  # nobody leads
            return False
        try:
            one.create_topic(QUEUES)
        except (OSError, ValueError):
            one.socket.close()
            raise
        found.append(one)
        return True

    until("a master serves", serves, SERVES_S)
    return found[0]


class PopLoad:
    """A sender and poppers that ack most of what they get. A context manager: ends its threads."""

    def __init__(self, group: KillableGroup, *, poppers: int = 3, invisible_s: float = 4.0) -> None:
        self._group = group
        self._invisible_s = invisible_s
        self._stop = threading.Event()
        self._quiet = threading.Event()
        self._lock = threading.Lock()
        self.sent: set[str] = set()
        """Bodies whose send was acknowledged."""
        self.given: Counter[str] = Counter()
        self.acked: dict[str, float] = {}
        """When the first answer 0 to an ack came, by body; on the monotonic clock."""
        self.maybe_acked: set[str] = set()
        """Bodies with an ack whose answer says nothing, or never came."""
        self.after_ack: list[str] = []
        """Given by a pop that began after the ack was answered, though it had been given once only."""
        self.codes: Counter[int] = Counter()
        """Answers to acks."""
        self._threads = [threading.Thread(target=self._send)]
        self._threads += [threading.Thread(target=self._pop, args=(number,)) for number in range(poppers)]

    def __enter__(self) -> PopLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_more(self, acks: int) -> None:
        """Until so many more are acked."""
        goal = len(self.acked) + acks
        until(f"{acks} more are acked", lambda: len(self.acked) >= goal, SERVES_S)

    def lost(self) -> set[str]:
        """What was sent, and nobody has acked."""
        return self.sent - self.acked.keys() - self.maybe_acked

    def drain(self) -> None:
        """Send no more, until all that was sent is acked, and nothing has come for a while."""
        self._quiet.set()
        self._threads[0].join()
        until("all is acked", lambda: not self.lost(), SERVES_S)
        total, since = sum(self.given.values()), time.monotonic()
        while time.monotonic() - since < 2 * self._invisible_s:
            self._stop.wait(PAUSE_S)
            if sum(self.given.values()) != total:
                total, since = sum(self.given.values()), time.monotonic()

    def _connected(self, work: Callable[[PopClient], None], done: threading.Event) -> None:
        """Do something with the master again and again, wherever it is."""
        while not done.is_set():
            try:
                with PopClient(self._group.port(), TOPIC, GROUP, timeout=5.0) as one:
                    while not done.is_set():
                        work(one)
            except (OSError, PopRefused, StackError):
                done.wait(PAUSE_S)

    def _send(self) -> None:
        number = 0

        def work(one: PopClient) -> None:
            nonlocal number
            number += 1
            one.send(f"m{number}", number % QUEUES)
            self.sent.add(f"m{number}")
            self._quiet.wait(0.005)

        self._connected(work, self._quiet)

    def _pop(self, popper: int) -> None:
        passed: dict[str, int] = defaultdict(int)

        def work(one: PopClient) -> None:
            began = time.monotonic()
            for given in one.pop(self._invisible_s, count=8, poll_s=1.0):
                with self._lock:
                    acked = self.acked.get(given.body)
                    if acked is not None and acked < began and self.given[given.body] == 1:
                        self.after_ack.append(given.body)
                    self.given[given.body] += 1
                passed[given.body] += 1
                if passed[given.body] == 1 and int(given.body[1:]) % 10 == popper:
                    continue  # this popper forgets it
                self.maybe_acked.add(given.body)
                code = one.ack(given)
                with self._lock:
                    self.codes[code] += 1
                    if code == 0:
                        self.acked.setdefault(given.body, time.monotonic())
                    if code == ResponseCode.MESSAGE_ILLEGAL:
                        self.maybe_acked.discard(given.body)

        self._connected(work, self._stop)
