"""What a signed ack of POP and a signed end of a transaction cost a broker: the handlers' way and the native core's.

`python -m tests.bench.signed_requests [--count 20000]`: one broker in this process that checks users and policies. A
connection without a socket gets the requests, 32 in a chunk, as the acks of one pop come. In alternation the native
core may serve acks and ends, or the handlers have to; `--count` is of messages and of transactions, each way. Prints a
Markdown table: microseconds of CPU of all threads, as medians of passes, and the ratios of neighbouring passes: their
median, the least and the most. Raises `AssertionError` if an answer has an error, or if requests went the other way.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvloop
from tests.bench.machine import snapshot, usage
from tests.bench.ratios import paired_ratio

from brokerset_acl.policies import Acl, Action, Decision, Entry, resource_of
from brokerset_acl.signatures import Credentials
from brokerset_acl.users import User, subject_of
from brokerset_broker.app import Broker
from brokerset_broker.command_line import GC_THRESHOLDS
from brokerset_broker.requests.end_lane import EndLane
from brokerset_broker.requests.pop.ack_lane import AckLane
from brokerset_formats import native
from brokerset_formats.config import SubscriptionGroupConfig, TopicConfig
from brokerset_formats.hosts import Host
from brokerset_formats.pop.handles import Handle
from brokerset_formats.properties import encode_properties
from brokerset_formats.transactions import Message
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command, CommandReader, encode
from brokerset_rig import pop_requests
from brokerset_rig.local_servers import running_broker
from brokerset_rig.measuring import markdown
from brokerset_rig.send_side import FakeTransport, memory_folder, silent
from brokerset_rig.transaction_client import COMMIT
from brokerset_rig.waiting import until

CHUNK: Final = 32
"""Requests that come together, and messages of a pop."""

PASSES: Final = 20
"""Each way, after one that is not measured."""

READY_SECONDS_MAX: Final = 60.0
ANSWERED_SECONDS_MAX: Final = 60.0

BODY: Final = b"x" * 1024
QUEUES: Final = 8
POPPED, SENT, GROUP = "popped", "sent", "g"
"""Topics of the pops and of the transactions, and who pops."""

USER: Final = Credentials("bench", "bench-password")
SOURCE: Final = ("10.0.0.1", 54321)
HOST: Final = Host.from_text(*SOURCE)

SETTINGS: Final[dict[str, Any]] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps({"username": "root", "password": "root-password"}),
    "mapped_file_size_commit_log": 1 << 28,
    "mapped_file_size_consume_queue": 6_000_000,
    "max_hash_slot_num": 5_000_000,
    "max_index_num": 20_000_000,
}
"""Files of queues and of the index are as large as by default."""

HANDLERS, NATIVE = "handlers", "native core"
POPPED_AND_ACKED, ACK, END = "message popped and acknowledged", "… the ack", "end of a transaction"

Costs = dict[tuple[str, str], list[float]]
"""Microseconds of CPU by what was done and which way, one value for each pass."""


class SignedClient:
    """A connection of the user to a broker of this process."""

    def __init__(self, broker: Broker) -> None:
        assert broker._server is not None, "the broker runs"
        self._connection = broker._server._new_connection()
        self._transport = FakeTransport(self._connection, SOURCE)
        self._connection.connection_made(self._transport)

    async def call(self, commands: Sequence[Command], chunk: int = CHUNK) -> tuple[list[Command], float]:
        """Sign and send requests, so many in a chunk: the answers, and microseconds of CPU for each."""
        for number, command in enumerate(commands):
            command.opaque = number
            USER.sign(command)
        frames = iter([encode(command) for command in commands])
        chunks = [b"".join(some) for some in iter(lambda: list(itertools.islice(frames, chunk)), [])]
        async with asyncio.timeout(ANSWERED_SECONDS_MAX):
            begun = time.process_time()
            for data in chunks:
                self._connection.data_received(data)
                await asyncio.sleep(0)
            while self._connection.in_flight or self._connection.unsent_bytes:  # noqa: ASYNC110  # as a loop has it
                await asyncio.sleep(0)
            seconds = time.process_time() - begun
        answers = CommandReader().feed(bytes(self._transport.written))
        self._transport.written.clear()
        assert {answer.opaque for answer in answers} == set(range(len(commands))), "each is answered"
        refused = [(answer.code, answer.remark) for answer in answers if answer.code]
        assert not refused, refused[:3]
        return answers, seconds / len(commands) * 1e6


class Measurement:
    """Passes over one broker."""

    def __init__(self, broker: Broker) -> None:
        assert broker._ack_lane is not None, "there is a native core"
        assert broker._end_lane is not None, "there is a native core"
        self._broker = broker
        self._lanes: tuple[AckLane | EndLane, ...] = broker._ack_lane, broker._end_lane
        self._client = SignedClient(broker)
        self._numbers = itertools.count()

    async def prepare(self) -> None:
        """Have the topics, the group, and the user who may do what is measured; wait until the broker serves it."""
        broker = self._broker
        subject = subject_of(USER.access_key)
        user = User(USER.access_key, USER.secret_key)
        broker.access.put({USER.access_key: user}, {subject: Acl(subject, _entries())})
        for topic in (POPPED, SENT):
            broker.topics.put(TopicConfig(topic, QUEUES, QUEUES, 6))
        broker.groups.put(SubscriptionGroupConfig(GROUP))
        await until(lambda: broker.pop_log.is_known and broker.transaction_log.resolved, READY_SECONDS_MAX)

    async def one_pass(self, way: str, count: int) -> dict[str, float]:
        """Microseconds of CPU by what was done, each so many times; `count` is a multiple of `CHUNK`."""
        pops, pop_us = await self._client.call(self._pops(count), 1)
        acks = [_ack(handle) for pop in pops for handle in pop_requests.handles(pop)]
        assert len(acks) == count, "all messages were popped"
        ends = self._ends(count)
        with self._served_by(way, count):
            _, ack_us = await self._client.call(acks)
            _, end_us = await self._client.call(ends)
        return {POPPED_AND_ACKED: pop_us / CHUNK + ack_us, ACK: ack_us, END: end_us}

    @contextmanager
    def _served_by(self, way: str, count: int) -> Iterator[None]:
        """So many acks, and as many ends, go this way: but for the chunk that needs a new file of the log, which the
        native core leaves to the handlers."""
        gates = [lane.is_open for lane in self._lanes]
        before = [lane.served for lane in self._lanes]
        if way == HANDLERS:
            for lane in self._lanes:
                lane.is_open = lambda: False
        yield
        for lane, is_open in zip(self._lanes, gates, strict=True):
            lane.is_open = is_open
        served = [lane.served - so_far for lane, so_far in zip(self._lanes, before, strict=True)]
        least, most = (count - CHUNK, count) if way == NATIVE else (0, 0)
        assert all(least <= each <= most for each in served), (
            f"{served} acks and ends went by the native core"
        )

    def _new_key(self) -> str:
        return f"{next(self._numbers):032X}"

    def _pops(self, count: int) -> list[Command]:
        """Requests for as many messages as are stored now."""
        for number in range(count):
            self._broker.store.append(
                POPPED, number % QUEUES, BODY, encode_properties({"UNIQ_KEY": self._new_key()}),
                flag=0, sys_flag=0, born_timestamp=1, born_host=HOST.encode(),
            )  # fmt: skip
        fields = {
            "consumerGroup": GROUP, "topic": POPPED, "queueId": "-1", "maxMsgNums": str(CHUNK), "invisibleTime": "60000",
            "pollTime": "0", "bornTime": "0", "initMode": "0", "exp": "*", "expType": "TAG", "order": "false",
        }  # fmt: skip
        return [Command(RequestCode.POP_MESSAGE, dict(fields)) for _ in range(count // CHUNK)]

    def _ends(self, count: int) -> list[Command]:
        """Commits of as many transactions as are begun now."""
        commands = []
        for number in range(count):
            key = self._new_key()
            properties = encode_properties({"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": key})
            message = Message(
                topic=SENT, queue_id=number % QUEUES, body=BODY, properties=properties,
                born_timestamp=1, born_host=HOST,
            )  # fmt: skip
            half = self._broker.transaction_log.send_half(message)
            fields = {
                "producerGroup": "pg", "topic": SENT, "tranStateTableOffset": str(half.queue_offset),
                "commitLogOffset": str(half.offset), "commitOrRollback": str(COMMIT),
                "fromTransactionCheck": "false", "msgId": key, "transactionId": key,
            }  # fmt: skip
            commands.append(Command(RequestCode.END_TRANSACTION, fields))
        return commands


def _entries() -> tuple[Entry, ...]:
    """Who has these may do what is measured."""
    entries = []
    for name, action in (
        (f"Topic:{SENT}", Action.PUB),
        (f"Topic:{POPPED}", Action.SUB),
        (f"Group:{GROUP}", Action.SUB),
    ):
        resource = resource_of(name)
        assert resource is not None, name
        entries.append(Entry(resource, (action,), Decision.ALLOW, ()))
    return tuple(entries)


def _ack(handle: Handle) -> Command:
    fields = {
        "consumerGroup": GROUP, "topic": POPPED, "queueId": str(handle.queue_id), "extraInfo": handle.encode(),
        "offset": str(handle.queue_offset),
    }  # fmt: skip
    return Command(RequestCode.ACK_MESSAGE, fields)


async def measure(folder: Path, count: int, passes: int = PASSES) -> Costs:
    """What so many messages and transactions, or a few more, cost each way. From a first pass, which is not measured,
    the native core learns whose requests were let through."""
    costs: Costs = defaultdict(list)
    size = max(1, -(-count // passes // CHUNK)) * CHUNK
    async with running_broker(folder, **SETTINGS) as broker:
        measurement = Measurement(broker)
        await measurement.prepare()
        for number in range(passes + 1):
            for way in (NATIVE, HANDLERS) if number % 2 else (HANDLERS, NATIVE):
                found = await measurement.one_pass(way, size)
                if number:
                    for what, cost in found.items():
                        costs[what, way].append(cost)
    return costs


def table(costs: Costs) -> str:
    """In Markdown."""
    rows = []
    for what in (POPPED_AND_ACKED, ACK, END):
        ours, theirs = costs[what, NATIVE], costs[what, HANDLERS]
        ratio = paired_ratio(ours, theirs)
        assert ratio is not None, "there was a pass"
        middles = (f"{statistics.median(each):.1f}" for each in (theirs, ours))
        rows.append((what, *middles, f"{ratio.median:.3f} × ({ratio.least:.3f}–{ratio.most:.3f})"))
    return markdown(("what", "handlers, µs", "native core, µs", "native core / handlers"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="of messages and of transactions, each way")
    options = parser.parse_args()
    if native.core is None:
        raise SystemExit("no native core: make it with `make setup` and cargo, and unset BROKERSET_NATIVE")
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    before = snapshot()
    with silent(), memory_folder() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        costs = runner.run(measure(folder, options.count))
    use = usage(before, snapshot())
    print(table(costs))
    print(f"\nother programs used {use.others:.2f} cores, the host took {use.stolen:.2f}")


if __name__ == "__main__":
    main()
