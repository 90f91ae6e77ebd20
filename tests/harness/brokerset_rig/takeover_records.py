"""What clients wrote while a store went from one mode to another, and the comparison with what a broker has in the end."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from brokerset_formats.batches import BatchItem, encode_batch
from brokerset_rig import controllers, stack, wire
from brokerset_rig.controller_parts import create_topic
from brokerset_rig.controllers import until
from brokerset_rig.replication_checks import ALL_OFFSETS, ALL_TOPICS, CREATE_GROUP, GROUP_CONFIGS

TOPIC, LATER_TOPIC, CONSUMERS = "takeover", "takeover-later", "takeover-consumers"
QUEUES = 4
SEND_BATCH = 320
BATCH, SMALL_BATCH, WINDOW = 200, 10, 4
BODY_BYTES, BODY_BYTES_MORE = 100, 200
"""A body has the first number of bytes at least, and fewer than the second more."""

ASK_SECONDS = 30.0
FILL_SECONDS_MAX = 60.0
PULLED = 1024
"""Messages in one answer; the broker must be allowed to give so many."""

KEYS_ASKED = 40
DELAY_SECONDS = {2: 5, 3: 10, 4: 30, 5: 60, 6: 120, 7: 180, 8: 240, 9: 300}
"""Level -> seconds, as brokers have it without a setting."""

SHOWN = 3
RETRIES = 7
RETRY_SECONDS = 0.1


def body_of(number: int) -> bytes:
    """The body of a message, which its number says."""
    return (b"%d:" % number).ljust(BODY_BYTES + number % BODY_BYTES_MORE, b"x")


class Records:
    """Everything that was acknowledged, kept outside of the brokers."""

    def __init__(self) -> None:
        self.acked: list[dict[int, int]] = [{} for _ in range(QUEUES)]
        """Of each queue: queue offset -> number of the message."""
        self.number = 0
        self.unclear = 0
        """Messages whose sends were not answered, or refused."""
        self.later: dict[bytes, float] = {}
        """Delay messages, and when each is due, in seconds since 1970."""
        self.committed: dict[int, int] = {}
        """The consumers' offset of each queue."""
        self.names: list[str] = []
        """Topics and groups of these names."""

    @property
    def count(self) -> int:
        """Acknowledged messages without a delay."""
        return sum(map(len, self.acked))

    # -- writing ------------------------------------------------------------------------------------------

    def prepare(self, port: int) -> None:
        """Make the topics, and the consumers' group."""
        for topic in (TOPIC, LATER_TOPIC):
            create_topic(port, topic)
        self._make_group(port, CONSUMERS)

    def _batch(self, size: int) -> tuple[int, int, bytes]:
        """Queue, first number and body of a batch."""
        first, self.number = self.number, self.number + size
        items = [
            BatchItem(0, body_of(number), b"KEYS\x01k%d\x02" % number)
            for number in range(first, first + size)
        ]
        return first // size % QUEUES, first, encode_batch(items)

    def _answered(self, answer: wire.Answer, queue: int, first: int, size: int) -> bool:
        if answer.code:
            self.unclear += size
            return False
        offset = int(answer.ext["queueOffset"])
        self.acked[queue].update(zip(range(offset, offset + size), range(first, first + size), strict=True))
        return True

    def fill(self, port: Callable[[], int], count: int) -> None:
        """Send until so many more are acknowledged, pipelined, to whoever leads. StackError if nobody does."""
        wanted = self.count + count

        def attempt() -> bool:
            before = self.count
            self._pipeline(port(), wanted - before)
            return self.count > before

        while self.count < wanted:
            until("messages are acknowledged", attempt, FILL_SECONDS_MAX)

    def _pipeline(self, port: int, count: int) -> None:
        """Send about so many, until one is refused. Raises OSError."""
        size = min(BATCH, max(1, count // (4 * QUEUES)))
        waiting: dict[int, tuple[int, int]] = {}
        goes_on = True
        try:
            with wire.Client(port, ASK_SECONDS) as client:
                for opaque in range(1, -(-count // size) + 1):
                    queue, first, body = self._batch(size)
                    ext = wire.send_ext(TOPIC, queue, "WAIT\x01true\x02", batch=True)
                    waiting[opaque] = queue, first
                    client.socket.sendall(wire.frame(SEND_BATCH, ext, body, opaque))
                    if len(waiting) >= WINDOW:
                        goes_on = self._take(client, waiting, size)
                    if not goes_on:
                        break
                while waiting:
                    self._take(client, waiting, size)
        finally:
            self.unclear += size * len(waiting)

    def _take(self, client: wire.Client, waiting: dict[int, tuple[int, int]], size: int) -> bool:
        answer = client.read()
        return self._answered(answer, *waiting.pop(answer.opaque), size)

    def send_one(self, port: int) -> bool:
        """Send a small batch; whether it was acknowledged."""
        queue, first, body = self._batch(SMALL_BATCH)
        ext = wire.send_ext(TOPIC, queue, "WAIT\x01true\x02", batch=True)
        try:
            with wire.Client(port, ASK_SECONDS) as client:
                return self._answered(client.call(SEND_BATCH, ext, body), queue, first, SMALL_BATCH)
        except OSError:
            self.unclear += SMALL_BATCH
            return False

    def load(self, leader_port: Callable[[], int | None], ended: threading.Event) -> None:
        """Send until told to end, to whoever leads; for a thread."""
        while not ended.is_set():
            port = leader_port()
            if port is None or not self.send_one(port):
                ended.wait(RETRY_SECONDS)

    def send_later(self, port: int, levels: Sequence[int], each: int) -> None:
        """Delay messages of these levels. Raises `Refused`."""
        with wire.Client(port, ASK_SECONDS) as client:
            for level in levels:
                for _ in range(each):
                    body = b"later %d" % len(self.later)
                    ext = wire.send_ext(LATER_TOPIC, 0, f"DELAY\x01{level}\x02WAIT\x01true\x02")
                    answer = client.call(wire.SEND_V2, ext, body)
                    if answer.code:
                        raise controllers.Refused(wire.SEND_V2, answer)
                    self.later[body] = time.time() + DELAY_SECONDS[level]

    def consume_to(self, port: int, part: float) -> None:
        """Commit for the consumers what a part of each queue is. Raises `Refused`."""
        with wire.Client(port, ASK_SECONDS) as client:
            for queue in range(QUEUES):
                offset = int(len(self.acked[queue]) * part)
                ext = {
                    "consumerGroup": CONSUMERS,
                    "topic": TOPIC,
                    "queueId": str(queue),
                    "commitOffset": str(offset),
                }
                answer = client.call(wire.UPDATE_CONSUMER_OFFSET, ext)
                if answer.code:
                    raise controllers.Refused(wire.UPDATE_CONSUMER_OFFSET, answer)
                self.committed[queue] = offset

    def make_names(self, port: int, name: str) -> None:
        """A topic and a group of this name. Raises `Refused`."""
        create_topic(port, name)
        self._make_group(port, name)
        self.names.append(name)

    def _make_group(self, port: int, name: str) -> None:
        group = {"groupName": name, "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": RETRIES}
        with wire.Client(port, ASK_SECONDS) as client:
            answer = client.call(CREATE_GROUP, {}, json.dumps(group).encode())
            if answer.code:
                raise controllers.Refused(CREATE_GROUP, answer)

    # -- comparing ----------------------------------------------------------------------------------------

    def problems(self, port: int) -> list[str]:
        """What is not as it was acknowledged; delay messages are compared by `wait_later`."""
        with wire.Client(port, ASK_SECONDS) as client:
            found = [problem for queue in range(QUEUES) for problem in self._queue_problems(client, queue)]
            found += self._key_problems(client)
        return found + self.metadata_problems(port)

    def _queue_problems(self, client: wire.Client, queue: int) -> list[str]:
        acked = self.acked[queue]
        end = int(client.call(wire.MAX_OFFSET, {"topic": TOPIC, "queueId": str(queue)}).ext["offset"])
        wrong: list[str] = []
        if acked and max(acked) >= end:
            wrong.append(f"queue {queue} ends at {end}, and {max(acked)} was acknowledged")
        at = 0
        while at < end:
            answer = client.call(wire.PULL, wire.pull_ext(TOPIC, queue, at, count=PULLED))
            if answer.code:
                return [*wrong, f"queue {queue}: pull at {at} of {end}: {answer.code} {answer.remark}"]
            for each in wire.records(answer.body):
                if each.queue_offset != at:
                    wrong.append(f"queue {queue}: {each.queue_offset} follows on {at - 1}")
                number = acked.get(each.queue_offset)
                if not each.crc_ok or (number is not None and each.body != body_of(number)):
                    wrong.append(
                        f"queue {queue}: {each.queue_offset} is {each.body[:20]!r} instead of {number}"
                    )
                at = each.queue_offset + 1
        return wrong if len(wrong) <= SHOWN else [*wrong[:SHOWN], f"{len(wrong)} problems of queue {queue}"]

    def _key_problems(self, client: wire.Client) -> list[str]:
        acked = self.acked[1]
        lost = []
        for number in list(acked.values())[:: max(1, len(acked) // KEYS_ASKED)]:
            ext = {
                "topic": TOPIC,
                "key": f"k{number}",
                "maxNum": "8",
                "beginTimestamp": "0",
                "endTimestamp": str(2**62),
            }
            answer = client.call(wire.QUERY_MESSAGE, ext)
            bodies = [each.body for each in wire.records(answer.body)] if answer.code == 0 else []
            if body_of(number) not in bodies:
                lost.append(number)
        return [f"keys do not find {len(lost)} messages, such as {lost[:SHOWN]}"] if lost else []

    def metadata_problems(self, port: int) -> list[str]:
        """Topics, groups and offsets that a broker lacks."""
        with wire.Client(port, ASK_SECONDS) as client:
            topics = controllers.loads(client.call(ALL_TOPICS, {}).body).get("topicConfigTable", {})
            groups = controllers.loads(client.call(GROUP_CONFIGS, {}).body).get("subscriptionGroupTable", {})
            offsets = controllers.loads(client.call(ALL_OFFSETS, {}).body).get("offsetTable", {})
        found = [f"no topic {name}" for name in (TOPIC, LATER_TOPIC, *self.names) if name not in topics]
        found += [
            f"no group {name}" for name in self.names if groups.get(name, {}).get("retryMaxTimes") != RETRIES
        ]
        known = {int(queue): at for queue, at in offsets.get(f"{TOPIC}@{CONSUMERS}", {}).items()}
        return found + (
            [f"consumers are at {known}, not {self.committed}"] if known != self.committed else []
        )

    def delivered_twice(self, port: int) -> int:
        """Delay messages that came more than once so far."""
        return sum(count > 1 for count in _bodies(port, LATER_TOPIC).values())

    def wait_later(self, port: int, seconds_more: float) -> list[str]:
        """Delay messages that do not come until the last is due and a while longer."""
        counts: Counter[bytes] = Counter()

        def all_came() -> bool:
            nonlocal counts
            counts = _bodies(port, LATER_TOPIC)
            return counts.keys() >= self.later.keys()

        left = max(self.later.values(), default=0.0) - time.time()
        try:
            until("all delay messages are delivered", all_came, max(0.0, left) + seconds_more)
        except stack.StackError:
            missing = [body for body in self.later if body not in counts]
            return [f"{len(missing)} of {len(self.later)} delay messages are missing: {missing[:SHOWN]}"]
        return []


def _bodies(port: int, topic: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    with wire.Client(port, ASK_SECONDS) as client:
        for queue in range(QUEUES):
            end = int(client.call(wire.MAX_OFFSET, {"topic": topic, "queueId": str(queue)}).ext["offset"])
            at = 0
            while at < end:
                answer = client.call(wire.PULL, wire.pull_ext(topic, queue, at))
                if answer.code:
                    raise ValueError(f"pull at {at} of {end}: {answer.code} {answer.remark}")
                for each in wire.records(answer.body):
                    found[each.body] += 1
                    at = each.queue_offset + 1
    return found
