"""Ends of transactions, right and wrong: the same log and answers with the native core and without."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.requests.end_lane import EndLane
from brokerset_broker.store.releases import Releases
from brokerset_formats import native
from brokerset_formats.config import TopicConfig
from brokerset_formats.names import HALF_TOPIC
from brokerset_formats.properties import encode_properties
from brokerset_formats.records import Record, encode_record
from brokerset_formats.transactions import HALF_QUEUE_ID
from brokerset_protocol.commands import FLAG_ONEWAY, Command, decode, encode
from brokerset_protocol.errors import Rejected
from brokerset_rig.transaction_bench import COMMIT, HOST, ROLLBACK, UNKNOWN, TransactionBench
from brokerset_runtime.remoting import DEFERRED

pytestmark = pytest.mark.skipif(native.core is None, reason="there is no native core")

HALVES, ENDS = 24, 60
CHUNKS = 6

BODY_POSITION = 88
"""Of a body in its record, with hosts of IPv4."""


class Peer:
    """The parts of a connection that the lane and the handler use; remembers each answer by its opaque."""

    peer = ("10.0.0.1", 54321)
    in_flight_room = answers_room = 1 << 20
    in_flight = 0

    def __init__(self) -> None:
        self.answers: dict[int, tuple[int, str | None]] = {}

    def answer(self, reply: Command) -> None:
        assert reply.opaque not in self.answers, "each request is answered once"
        self.answers[reply.opaque] = reply.code, reply.remark

    def send(self, frames: bytes) -> None:
        position = 0
        while position < len(frames):
            end = position + 4 + int.from_bytes(frames[position : position + 4], "big")
            self.answer(decode(frames, position + 4, end))
            position = end


def _bench(folder: Path) -> TransactionBench:
    bench = TransactionBench(folder)
    for topic in ("t", "u", "gone"):
        bench.topics.update(TopicConfig(topic, 2, 2))
    bench.lead()
    for topic in ("t", "u"):  # the first commit of each makes its queue, and tells the lane of it
        half = bench.log.send_half(bench.message(topic, b"", _half_properties(f"first-{topic}")))
        assert bench.end(half, f"first-{topic}", COMMIT).code == 0
    return bench


def _lane(bench: TransactionBench) -> EndLane:
    lane = EndLane(
        Releases(native.core, bench.store), log_of_transactions=bench.log,  # type: ignore[arg-type]  # there is one
        topics=bench.topics, ordered=bench.ordered, admission=bench.admission,
    )  # fmt: skip
    lane.is_open = lambda: True
    for topic in ("t", "u", "gone"):
        lane.learn(topic)
    return lane


def _half_properties(key: str, **more: str) -> dict[str, str]:
    return {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": key, **more}


def _halves(bench: TransactionBench, chance: random.Random) -> list[Any]:
    """Halves of which some are unusual; the same for the same numbers."""
    halves = []
    for number in range(HALVES):
        topic = chance.choice(("t", "t", "t", "u", "gone"))
        more = {"TAGS": chance.choice(("", "a")), "KEYS": chance.choice(("", "k1 k2"))}
        if chance.random() < 0.2:
            more |= chance.choice(
                ({"CHECK_IMMUNITY_TIME_IN_SECONDS": "7"}, {"A": "#"}, {"PGROUP": "other"}, {"X": "REAL_QID"})
            )
        body = chance.randbytes(chance.randrange(1, 200))
        halves.append(bench.log.send_half(bench.message(topic, body, _half_properties(f"k{number}", **more))))
    bench.topics.delete("gone")
    return halves


def _end(halves: list[Any], chance: random.Random, opaque: int) -> Command:
    """An end as a client writes it, or one with something wrong."""
    number = chance.randrange(HALVES)
    half, key = halves[number], f"k{number}"
    fields = {
        "producerGroup": "pg", "tranStateTableOffset": str(half.queue_offset),
        "commitLogOffset": str(half.offset),
        "commitOrRollback": str(chance.choice((COMMIT, COMMIT, ROLLBACK))),
        "fromTransactionCheck": chance.choice(("false", "true")), "msgId": key, "transactionId": key,
    }  # fmt: skip
    pick = chance.random()
    if pick < 0.35:
        other = halves[chance.randrange(HALVES)]
        fields |= chance.choice(
            (
                {"producerGroup": "no"}, {"tranStateTableOffset": str(other.queue_offset)},
                {"commitLogOffset": str(other.offset)}, {"commitLogOffset": str(half.offset + 1)},
                {"commitLogOffset": "-1"}, {"commitLogOffset": str(1 << 62)},
                {"msgId": "no", "transactionId": "no"},
                {"msgId": f"{half.offset:032X}", "transactionId": ""}, {"msgId": "no"},
                {"commitOrRollback": str(UNKNOWN)}, {"commitOrRollback": "4"}, {"note": "more"},
            )
        )  # fmt: skip
    return Command(37, fields, opaque=opaque, flag=FLAG_ONEWAY if chance.random() < 0.2 else 0)


def _one(bench: TransactionBench, peer: Peer, command: Command) -> None:
    """Serve one request without the core."""
    try:
        reply = bench.processor.end(peer, command)  # type: ignore[arg-type]  # the part of it that ends use
    except Rejected as refused:
        reply = command.reply(refused.code, refused.remark)
    if reply is not None and reply is not DEFERRED and not command.flag & FLAG_ONEWAY:
        assert isinstance(reply, Command)
        peer.answer(reply)


def _trace(bench: TransactionBench) -> tuple[object, ...]:
    store, resolved = bench.store, bench.log.resolved
    assert store.index is not None
    assert store.index.table is not None
    assert resolved is not None
    data = b"".join(bytes(f.view[: store.log.max_offset - f.start]) for f in store.log.files.files)
    queues = {
        key: [queue.unit(number) for number in range(queue.next_offset)]
        for key, queue in store.queues_table.table.items()
    }
    counts = {
        name: (each.open, each.committed, each.rolled_back, each.latencies)
        for name, each in bench.log.counts.topics.items()
    }
    return data, queues, bytes(memoryview(store.index.table.buffer)), sorted(resolved.open_halves()), counts


@pytest.mark.parametrize("seed", range(25))
async def test_drawn_ends_leave_the_same_trace_on_both_paths(tmp_path: Path, seed: int) -> None:
    """Chunks of ends with all kinds of mistakes; what the core declines goes the other way, in that order."""
    ours, theirs = _bench(tmp_path / "native"), _bench(tmp_path / "python")
    lane = _lane(ours)
    halves = [_halves(bench, random.Random(seed)) for bench in (ours, theirs)]
    assert [each.offset for each in halves[0]] == [each.offset for each in halves[1]]
    chance, peers = random.Random(-seed - 1), (Peer(), Peer())

    for chunk in range(CHUNKS):
        commands = [_end(halves[0], chance, chunk * ENDS + number) for number in range(ENDS // CHUNKS)]
        frames = [encode(command) for command in commands]
        while frames:
            size = lane.serve(peers[0], b"".join(frames))  # type: ignore[arg-type]  # the part of it that lanes use
            served = 0
            while size > 0:
                size -= len(frames[served])
                served += 1
            assert size == 0, "whole frames are served"
            if not served:
                _one(ours, peers[0], commands[0])
                served = 1
            del frames[:served], commands[:served]
        ours.log.write_ops()
    chance = random.Random(-seed - 1)
    for chunk in range(CHUNKS):
        for number in range(ENDS // CHUNKS):
            _one(theirs, peers[1], _end(halves[1], chance, chunk * ENDS + number))
        theirs.log.write_ops()

    try:
        assert _trace(ours) == _trace(theirs)
        assert peers[0].answers == peers[1].answers
        assert peers[0].in_flight == 0
        assert lane.served > 0
    finally:
        ours.close()
        theirs.close()


async def test_a_body_that_looks_like_a_half_is_none(tmp_path: Path) -> None:
    """Its offset is in no unit of the half topic, whatever it says: the transaction stays open."""
    bench = _bench(tmp_path)
    lane = _lane(bench)
    real = bench.log.send_half(bench.message("t", b"real", _half_properties("k")))
    offset = bench.store.max_offset + BODY_POSITION
    forged = encode_record(
        Record(
            queue_id=HALF_QUEUE_ID, queue_offset=real.queue_offset, offset=offset, born_timestamp=1,
            born_host=HOST, store_timestamp=2, store_host=HOST, body=b"forged", topic=HALF_TOPIC,
            properties=encode_properties(_half_properties("k", REAL_TOPIC="u", REAL_QID="0")),
        )
    )  # fmt: skip
    bench.log.send_half(bench.message("t", forged, _half_properties("carrier")))
    assert bytes(bench.store.read(offset, len(forged)) or b"") == forged
    fields = {
        "producerGroup": "pg", "tranStateTableOffset": str(real.queue_offset), "commitLogOffset": str(offset),
        "commitOrRollback": str(COMMIT), "msgId": "k",
    }  # fmt: skip

    served = lane.serve(Peer(), encode(Command(37, fields)))  # type: ignore[arg-type]  # the part of it that lanes use

    assert served == 0
    assert bench.log.resolved is not None
    assert real.queue_offset in bench.log.resolved.open_halves()
    bench.close()
