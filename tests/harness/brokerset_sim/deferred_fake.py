"""A model of a broker with transactions and timer messages, to test producers and checkers alone.

It has no store and no group. `Faults` names the mistakes that it makes when a test wants them.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Final, cast

from brokerset_formats.hosts import Host as RecordHost
from brokerset_formats.properties import encode_properties
from brokerset_formats.records import Record, encode_record
from brokerset_protocol import headers
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_sim.deferred_checker import DeferredChecker
from brokerset_sim.deferred_clients import Decision, TimerProducer, TransactionProducer
from brokerset_sim.deferred_plan import (
    CHECK_INTERVAL_MS,
    CHECK_MAX,
    CHECK_TIMEOUT_MS,
    PRECISION_MS,
    DeferredPlan,
)
from brokerset_sim.deferred_world import DeferredWorld
from brokerset_sim.history import Violation
from brokerset_sim.ledger_node import PORT, DriftingClock, LedgerNode
from brokerset_sim.log_records import COMMIT, GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC, WHEEL_TOPIC, LogRecord
from brokerset_sim.loop import VirtualLoop, run
from brokerset_sim.network import Endpoint, Network, SimConnection, Weather
from brokerset_sim.process import Host, Process

SECONDS: Final = 3.0
SETTLING_SECONDS: Final = 8.0
TIMES: Final = "TRANSACTION_CHECK_TIMES"


@dataclass(frozen=True, slots=True)
class Faults:
    """What the model does wrong."""

    visible_halves: bool = False
    commits_again: bool = False
    op_first: bool = False
    no_op: bool = False
    ends_anything: bool = False
    checks_uncounted: bool = False
    checks_at_once: bool = False
    never_checks: bool = False
    commit_not_stored: bool = False
    early_ms: int = 0
    delivers_twice: bool = False
    forgets_timers: bool = False
    ignores_recalls: bool = False


@dataclass(slots=True)
class _Half:
    record: LogRecord
    """Its newest copy."""

    ended: int = 0
    times: int = 0


class FakeBroker:
    """Answers what producers ask for; the log goes to the oracles as it is written."""

    member = None
    broker = None
    leads = True
    up = True

    def __init__(self, world: FakeWorld, faults: Faults) -> None:
        self.world = world
        self.faults = faults
        self.name = "n0"
        self.host = Host("10.0.0.1")
        world.network.add_host(self.host)
        self.address = f"{self.host.name}:{PORT}"
        self.clock = DriftingClock(world.loop, self.host, 1.0, 0.0)
        self.process = Process(world.loop, "broker", self.host, world.process_died)
        self.process.node = self
        self._halves: dict[str, _Half] = {}
        self._recalled: dict[str, None] = {}
        self._ends: Counter[str] = Counter()
        self._offset = 0
        self._connections: dict[str, dict[SimConnection, None]] = {}
        handlers = {
            RequestCode.HEART_BEAT: self._beat,
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.END_TRANSACTION: self._end,
            RequestCode.RECALL_MESSAGE: self._recall,
        }
        world.network.listen(Endpoint(self.process, self.address, handlers))  # type: ignore[arg-type]  # as handlers

    def _store(self, record: LogRecord) -> LogRecord:
        queue_offset = self._ends[record.topic]
        self._ends[record.topic] += 1
        self._offset += 1_000
        stored = replace(record, queue_offset=queue_offset, offset=self._offset, store_ms=self.clock.now_ms())
        try:
            self.world.checker.timers.record(stored)
            self.world.checker.transactions.record(stored)
        except Violation as violation:
            self.world.fail(violation)
        return stored

    def _beat(self, connection: SimConnection, command: Command) -> Command:
        group = command.body.decode().partition('"groupName":"')[2].partition('"')[0]
        self._connections.setdefault(group, {})[connection] = None
        return command.reply()

    def _send(self, connection: SimConnection, command: Command) -> Command:
        ext = command.ext
        properties = dict(pair.split("\x01") for pair in ext["i"].split("\x02") if pair)
        record = LogRecord(ext["b"], int(ext["e"]), 0, 0, command.body, properties)
        handle = {}
        if "TRAN_MSG" in properties:
            half = self._store(replace(record, topic=HALF_TOPIC, queue_id=0))
            self._halves[half.key] = _Half(half)
            if self.faults.visible_halves:
                self._store(replace(record, sys_flag=COMMIT))
            self._check_later(half.key)
            stored = half
        else:
            now_ms = self.clock.now_ms()
            due_ms = int(properties.get("TIMER_DELIVER_MS", "0")) or now_ms + (
                int(properties.get("TIMER_DELAY_MS", "0"))
                or 1_000 * int(properties.get("TIMER_DELAY_SEC", "0"))
            )
            stored = self._store(replace(record, topic=WHEEL_TOPIC, queue_id=0))
            handle = {"recallHandle": stored.key}
            wait_ms = -(-due_ms // PRECISION_MS) * PRECISION_MS - now_ms - self.faults.early_ms
            if not self.faults.forgets_timers:
                self.process.call(self.world.loop.call_later, max(0, wait_ms) / 1_000, self._deliver, record)
        ext = {"queueId": "0", "queueOffset": str(stored.queue_offset), "msgId": f"{stored.offset:032X}"}
        return command.reply(ext=ext | handle)

    def _deliver(self, record: LogRecord) -> None:
        if record.key not in self._recalled or self.faults.ignores_recalls:
            for _ in range(1 + self.faults.delivers_twice):
                self._store(record)

    def _recall(self, connection: SimConnection, command: Command) -> Command:
        key = command.ext["recallHandle"]
        self._recalled[key] = None
        return command.reply(ext={"msgId": key})

    def _end(self, connection: SimConnection, command: Command) -> Command | None:
        header, faults = headers.EndTransaction.from_ext(command.ext), self.faults
        half = self._halves.get(header.msg_id)
        if not header.commit_or_rollback:
            return None
        if faults.ends_anything and half is None:
            return command.reply()
        if half is None or (half.ended and not faults.commits_again):
            done = half is not None and half.ended == header.commit_or_rollback
            return command.reply(ResponseCode.SUCCESS if done else ResponseCode.SYSTEM_ERROR)
        half.ended = header.commit_or_rollback
        op = LogRecord(OP_TOPIC, 0, 0, 0, b"%d," % half.record.queue_offset, {"TAGS": "d"})
        if faults.op_first:
            self._store(op)
        transaction = self.world.checker.transactions.transactions[header.msg_id]
        if half.ended == COMMIT and not faults.commit_not_stored:
            final = LogRecord(transaction.topic, transaction.queue_id, 0, 0, transaction.body)
            final = replace(final, properties={"UNIQ_KEY": header.msg_id}, sys_flag=COMMIT)
            self._store(replace(final, prepared_offset=half.record.offset))
        if not faults.op_first and not faults.no_op:
            self._store(op)
        return command.reply()

    def _check_later(self, key: str) -> None:
        immune_ms = self.world.checker.transactions.transactions[key].immune_ms
        seconds = 0.0 if self.faults.checks_at_once else max(CHECK_TIMEOUT_MS, immune_ms) / 1_000
        if not self.faults.never_checks:
            self.process.call(self.world.loop.call_later, seconds + 0.01, self._check, key)

    def _check(self, key: str) -> None:
        half = self._halves[key]
        if half.ended:
            return
        if half.times >= CHECK_MAX and not self.faults.checks_uncounted:
            half.ended = -1
            self._store(replace(half.record, topic=GIVEN_UP_TOPIC))
            return
        half.times += not self.faults.checks_uncounted or not half.times
        properties = half.record.properties | {TIMES: str(half.times)}
        half.record = self._store(replace(half.record, properties=properties))
        group = self.world.checker.transactions.transactions[key].group
        connections = [each for each in self._connections.get(group, ()) if each.is_open]
        if connections:
            header = headers.CheckTransactionState(
                tran_state_table_offset=half.record.queue_offset, commit_log_offset=half.record.offset
            )
            body = encode_record(_record(half.record))
            command = Command(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), body)
            self.world.dice.choice(connections).notify(command)
        self.process.call(self.world.loop.call_later, CHECK_INTERVAL_MS / 1_000, self._check, key)


def _record(half: LogRecord) -> Record:
    host = RecordHost.from_text("10.0.0.1", PORT)
    return Record(
        queue_id=0,
        queue_offset=half.queue_offset,
        offset=half.offset,
        flag=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=host,
        store_timestamp=half.store_ms,
        store_host=host,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=half.body,
        topic="t",
        properties=encode_properties(half.properties),
    )


class FakeChecker(DeferredChecker):
    """The oracles alone."""

    def reply_left(self, server: Process, request: Command, reply: Command, token: object) -> None:
        """A handler answered."""
        self.answered(server, request, reply)


class FakeWorld:
    """One model of a broker, and producers. Await `run`; what was violated is in `failure`."""

    def __init__(self, seed: int, loop: VirtualLoop, faults: Faults) -> None:
        self.seed = seed
        self.loop = loop
        self.dice = self.random_for("world")
        self.failure: Violation | None = None
        self.counts: Counter[str] = Counter()
        self.quiet = self.healing = False
        self.clients_made = 0
        self.decisions: dict[str, Decision] = {}
        self.deferred = DeferredPlan(delay_ms_max=1_500)
        whole = cast("DeferredWorld", self)
        self.checker = FakeChecker(whole, self.deferred)
        self.network = Network(loop, self.random_for("network"), self.checker)
        self.network.weather = Weather(delay_max=0.004, lost=0.02)
        self.nodes = [cast("LedgerNode", FakeBroker(self, faults))]
        self.clients = [
            kind(whole, f"{kind.__name__}-{number}")
            for kind in (TransactionProducer, TimerProducer)
            for number in range(3)
        ]

    def random_for(self, label: str) -> random.Random:
        """Dice of one part."""
        return random.Random(f"{self.seed}/fake/{label}")

    def note(self, kind: str, *what: object) -> None:
        """Nobody reads a trace."""

    def fail(self, violation: Violation) -> None:
        """Something that must never happen did."""
        self.failure = self.failure or violation

    def process_died(self, process: Process, error: BaseException) -> None:
        """A process ended by itself."""
        self.fail(error if isinstance(error, Violation) else Violation("processes live", repr(error)))

    async def run(self) -> None:
        """Send for a while, and wait until all has ended."""
        for client in self.clients:
            client.start()
        await asyncio.sleep(SECONDS)
        self.healing = self.quiet = True
        await asyncio.sleep(SETTLING_SECONDS)
        try:
            self.checker.transactions.settled()
            self.checker.timers.settled()
        except Violation as violation:
            self.fail(violation)
        for process in (*(client.process for client in self.clients), self.nodes[0].process):
            assert process is not None
            process.kill()
            await process.ended()


def simulate_fake(seed: int, faults: Faults = Faults()) -> FakeWorld:
    """Run one seed with one model of a broker."""

    async def main() -> FakeWorld:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        world = FakeWorld(seed, loop, faults)
        await world.run()
        return world

    return run(main())
