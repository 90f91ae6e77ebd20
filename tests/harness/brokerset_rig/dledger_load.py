"""Threads that send to whoever leads a DLedger group and remember each answer, and what members have of it in the end."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from dataclasses import dataclass, field

from brokerset_rig import controllers, stack, wire
from brokerset_rig.controllers import until
from brokerset_rig.dledger_group import LEADER_SECONDS_MAX, QUEUES, Group, Member

TOPIC = "ledger-load"
LATER_TOPIC = "ledger-later"
DELAY_LEVEL = 2
DELAY_SECONDS = 5.0
"""Of `DELAY_LEVEL`."""

SEND_SECONDS_MAX = 5.0
PAUSE_SECONDS = 0.02
BODY_BYTES = 400
SHOWN = 3
"""So many examples of what is wrong."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message is, as the answer to its send says."""

    queue_id: int
    queue_offset: int
    offset: int
    """Of the record in the log: the end of the message id."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as a member gives it."""

    place: Place
    body: bytes


def send(port: int, topic: str, queue_id: int, body: bytes, properties: str = "WAIT\x01true\x02") -> Place:
    """Send a message. Raises `Refused`."""
    with wire.Client(port, SEND_SECONDS_MAX) as client:
        answer = client.call(wire.SEND_V2, wire.send_ext(topic, queue_id, properties), body)
    if answer.code:
        raise controllers.Refused(wire.SEND_V2, answer)
    return place_of(answer)


def place_of(answer: wire.Answer) -> Place:
    ext = answer.ext
    return Place(int(ext["queueId"]), int(ext["queueOffset"]), int(ext["msgId"][-16:], 16))


@dataclass
class Load:
    """A context manager: sends in the block, each body once."""

    target: Group
    threads: int = 2
    acked: dict[bytes, Place] = field(default_factory=dict[bytes, Place])
    refused: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(self.threads)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Send no more."""
        self._ending.set()
        for thread in self._threads:
            thread.join(30)

    def wait_more(self, messages: int) -> None:
        """Until so many more are acknowledged."""
        goal = len(self.acked) + messages
        until(
            f"{messages} more acknowledged messages (refused: {dict(self.refused)})",
            lambda: len(self.acked) >= goal,
            LEADER_SECONDS_MAX,
        )

    def _run(self, number: int) -> None:
        numbers = itertools.count()
        while not self._ending.wait(PAUSE_SECONDS):
            try:
                leader = self.target.find_leader()
                if leader is not None:
                    self._send(leader.port, number, numbers)
            except (OSError, ValueError) as error:
                self.refused[type(error).__name__] += 1

    def _send(self, port: int, number: int, numbers: itertools.count[int]) -> None:
        """Until one is refused."""
        with wire.Client(port, SEND_SECONDS_MAX) as client:
            while not self._ending.wait(PAUSE_SECONDS / 4):
                count = next(numbers)
                body = (b"load %d %d " % (number, count)).ljust(BODY_BYTES + count % BODY_BYTES, b"x")
                ext = wire.send_ext(TOPIC, count % QUEUES, "WAIT\x01true\x02")
                answer = client.call(wire.SEND_V2, ext, body)
                if answer.code:
                    self.refused[f"{answer.code} {(answer.remark or '')[:60]}"] += 1
                    return
                self.acked[body] = place_of(answer)

    def problems(self, member: Member) -> list[str]:
        """What of the acknowledged messages is not where it was said to be, or twice, at a member."""
        return place_problems(member, TOPIC, self.acked)


def place_problems(member: Member, topic: str, acked: dict[bytes, Place]) -> list[str]:
    """See `Load.problems`; the queues must be dense as well."""
    there = stored(member.port, topic)
    places: dict[bytes, list[Place]] = {}
    for each in there:
        places.setdefault(each.body, []).append(each.place)
    wrong = [
        f"{body[:20]!r} at {places.get(body)}, acknowledged at {place}"
        for body, place in acked.items()
        if places.get(body) != [place]
    ]
    problems = [f"{len(wrong)} of {len(acked)}: {wrong[:SHOWN]}"] if wrong else []
    twice = [body[:20] for body, each in places.items() if len(each) > 1]
    problems += [f"{len(twice)} are there twice: {twice[:SHOWN]}"] if twice else []
    return [f"{member}: {problem}" for problem in problems + gaps(there)]


def gaps(there: list[Stored]) -> list[str]:
    """Queues whose offsets are not dense from 0 on."""
    queues: dict[int, list[int]] = {}
    for each in there:
        queues.setdefault(each.place.queue_id, []).append(each.place.queue_offset)
    return [
        f"queue {queue}: {len(offsets)} messages, the last is {offsets[-1]}"
        for queue, offsets in queues.items()
        if offsets != list(range(len(offsets)))
    ]


def stored(port: int, topic: str) -> list[Stored]:
    """All messages of a topic, queue by queue. Raises `StackError` if the broker does not give what it has."""
    found: list[Stored] = []
    with wire.Client(port, 10.0) as client:
        for queue in range(QUEUES):
            at = 0
            asked = {"topic": topic, "queueId": str(queue)}
            end = int(client.call(wire.MAX_OFFSET, asked).ext["offset"])
            while at < end:
                answer = client.call(wire.PULL, wire.pull_ext(topic, queue, at))
                if answer.code:
                    raise stack.StackError(
                        f"pull at {at} of {end} of queue {queue}: {answer.code} {answer.remark}"
                    )
                try:
                    records = list(wire.records(answer.body))
                except ValueError as error:
                    raise stack.StackError(
                        f"pull at {at} of {end} of queue {queue}, {len(answer.body)} bytes: {error}"
                    ) from None
                for each in records:
                    found.append(Stored(Place(queue, each.queue_offset, each.offset), each.body))
                    at = each.queue_offset + 1
    return found


class Later:
    """Delay messages that were acknowledged, and how often each is delivered."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, leader: Member, count: int) -> None:
        """Send some. Raises `Refused`."""
        for _ in range(count):
            body = b"later %d" % len(self.sent)
            send(leader.port, LATER_TOPIC, 0, body, f"DELAY\x01{DELAY_LEVEL}\x02WAIT\x01true\x02")
            self.sent.append(body)

    def delivered(self, port: int) -> Counter[bytes]:
        """What a broker has delivered."""
        return Counter(each.body for each in stored(port, LATER_TOPIC))

    def missing(self, port: int) -> list[bytes]:
        """What was not delivered yet."""
        delivered = self.delivered(port)
        return [body for body in self.sent if body not in delivered]
