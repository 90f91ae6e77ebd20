"""Pipelining writers whose acknowledgements are kept by somebody who cannot be killed with the broker, and the comparison."""

from __future__ import annotations

import random
import threading

from brokerset_rig import wire

QUEUES = 4
WINDOW = 16
TOPIC = "crash"
PAUSE_SECONDS = 0.02
"""After an answer that refuses a send."""


class Ledger:
    """What the broker acknowledged, kept by somebody who cannot be killed with it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.acked: list[dict[int, bytes]] = [{} for _ in range(QUEUES)]
        self.keys: list[str] = []
        self.count = 0
        self.refused = 0
        """Answers that did not acknowledge."""
        self.twice: list[str] = []
        """Queue offsets that were given to two messages."""
        self.stop = threading.Event()
        """Ends all writers."""

    def ack(self, queue_id: int, queue_offset: int, body: bytes, key: str) -> None:
        with self.lock:
            known = self.acked[queue_id].setdefault(queue_offset, body)
            if known != body:
                self.twice.append(f"queue {queue_id} offset {queue_offset} was given twice")
            self.keys.append(key)
            self.count += 1


def write(port: int, writer: int, run: int, ledger: Ledger, seed: int) -> None:
    """Pipeline sends until the connection breaks, or the ledger says stop."""
    source = random.Random(seed)
    waiting: dict[int, tuple[bytes, str]] = {}
    try:
        with wire.Client(port) as client:
            opaque = 0
            while not ledger.stop.is_set():
                while len(waiting) < WINDOW:
                    opaque += 1
                    body = f"{run}/{writer}/{opaque}/".encode() + source.randbytes(source.randrange(0, 2000))
                    key = f"K{run}-{writer}-{opaque}"
                    waiting[opaque] = (body, key)
                    ext = wire.send_ext(TOPIC, opaque % QUEUES, f"KEYS\x01{key}\x02WAIT\x01true\x02")
                    client.socket.sendall(wire.frame(wire.SEND_V2, ext, body, opaque))
                answer = client.read()
                body, key = waiting.pop(answer.opaque)
                if answer.code == 0:
                    ledger.ack(int(answer.ext["queueId"]), int(answer.ext["queueOffset"]), body, key)
                else:
                    ledger.refused += 1
                    ledger.stop.wait(PAUSE_SECONDS)
    except OSError:
        return


def verify(port: int, ledger: Ledger, verified: list[int], source: random.Random) -> list[str]:
    """Read what came since the last time and compare; returns what is wrong."""
    problems = list(ledger.twice)
    with wire.Client(port) as client:
        for queue_id in range(QUEUES):
            acked = ledger.acked[queue_id]
            at = verified[queue_id]
            end = int(client.call(wire.MAX_OFFSET, {"topic": TOPIC, "queueId": str(queue_id)}).ext["offset"])
            if acked and max(acked) >= end:
                problems.append(f"queue {queue_id} ends at {end}, but {max(acked)} was acknowledged")
            while at < end:
                answer = client.call(wire.PULL, wire.pull_ext(TOPIC, queue_id, at))
                if answer.code != 0:
                    problems.append(
                        f"queue {queue_id}: pull at {at} of {end} answers {answer.code} {answer.remark}"
                    )
                    break
                try:
                    stored_here = list(wire.records(answer.body))
                except ValueError as error:
                    problems.append(f"queue {queue_id}: pull at {at} of {end}: {error}")
                    break
                for stored in stored_here:
                    if stored.queue_offset != at:
                        problems.append(f"queue {queue_id}: {stored.queue_offset} follows {at - 1}")
                    if not stored.crc_ok:
                        problems.append(f"queue {queue_id} offset {at}: CRC is wrong")
                    if at in acked and acked[at] != stored.body:
                        problems.append(f"queue {queue_id} offset {at}: another body than was acknowledged")
                    at = stored.queue_offset + 1
            verified[queue_id] = at
        for key in source.sample(ledger.keys, min(20, len(ledger.keys))) + ledger.keys[-5:]:
            ext = {
                "topic": TOPIC,
                "key": key,
                "maxNum": "8",
                "beginTimestamp": "0",
                "endTimestamp": str(2**62),
            }
            found = client.call(wire.QUERY_MESSAGE, ext)
            marks = (
                [f"KEYS\x01{key}\x02" in stored.properties for stored in wire.records(found.body)]
                if found.code == 0
                else []
            )
            if not any(marks):
                problems.append(f"the index does not know the key {key} of an acknowledged message")
    return problems


def create_topic(port: int) -> None:
    """Make the topic that everybody writes to."""
    with wire.Client(port) as client:
        ext = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES),
               "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
        assert client.call(wire.CREATE_TOPIC, ext).code == 0
