"""A model of transactions: producers of all kinds, and a log that ends at any record and is led on.

The log is a list of records. Everything that brokers know is made from it, so a crash is a shorter list.
The checker stands outside: it remembers what producers asked for, what was acknowledged to them and what was
reported as given up, and reads the log.
"""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from brokerset_broker.transactions import check_pass, ending, resolved
from brokerset_formats import transactions as formats
from brokerset_formats.hosts import Host
from brokerset_formats.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from brokerset_formats.properties import decode_properties, encode_properties
from brokerset_formats.records import Record, SysFlag
from brokerset_protocol.headers.send import EndTransaction

TARGET: Final = "orders"
PROGRESS: Final = "progress"
"""Topic of the model's records of saved progress, which the metadata log has."""

STEP: Final = 1_000
"""Bytes of each record."""

TIMEOUT_MS: Final = 6_000
HOST: Final = Host(b"\x7f\x00\x00\x01", 10911)
COMMIT: Final = SysFlag.TRANSACTION_COMMIT
ROLLBACK: Final = SysFlag.TRANSACTION_ROLLBACK


class Code(NamedTuple):
    """The modules under test, or mutants of them."""

    resolved: Any
    ending: Any
    check_pass: Any


CODE: Final = Code(resolved, ending, check_pass)


class Broken(Exception):
    """An invariant does not hold."""


def demand(truth: bool, what: str) -> None:
    if not truth:
        raise Broken(what)


@dataclass
class Producer:
    """One transaction, as its producer knows it."""

    number: int
    key: str
    plan: int | None
    """What it answers: always the same; None: whatever comes."""
    places: list[tuple[int, int]] = field(default_factory=list)
    """Queue offset and offset of each copy that it was told of."""
    asked: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    given_up: bool = False
    reported: bool = False
    """Given up, and the topic for that did not take it."""


class World:
    """The log, the broker that leads, and all producers."""

    def __init__(self, code: Code = CODE, check_max: int = 3) -> None:
        self.code = code
        self.healed = False
        self.limits = code.check_pass.CheckLimits(
            transaction_timeout_ms=TIMEOUT_MS, check_max=check_max, step_halves_max=40
        )
        self.now = 1_000_000
        self.log: list[Record] = []
        self.counts: dict[str, int] = {}
        self.confirmed = 0
        self.producers: list[Producer] = []
        self.questions: list[tuple[Producer, Record]] = []
        """Checks that reached their producer, and are not answered yet."""
        self.waiting: list[tuple[Producer, int, int]] = []
        """Who is answered what when the log is confirmed up to which record."""
        self.next_turn: list[tuple[Producer, int]] = []
        """Who is answered what when the ops of this turn are confirmed."""
        self.resolved: Any = code.resolved.Resolved()
        self.resolved.loaded()
        self.steps: Generator[Any, Any, Any] | None = None
        self.step: Any = None
        self.java_ops: list[int] = []

    # -- the log ------------------------------------------------------------------------------------------

    def append(self, message: formats.Message) -> Record:
        number = self.counts.get(message.topic, 0)
        self.counts[message.topic] = number + 1
        record = Record(
            queue_id=message.queue_id,
            queue_offset=number,
            offset=STEP * len(self.log),
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_timestamp=self.now,
            store_host=HOST,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
            body=message.body,
            topic=message.topic,
            properties=message.properties,
        )
        self.log.append(record)
        return record

    def lead(self, message: formats.Message) -> Record:
        """Append and feed."""
        record = self.append(message)
        self.feed(self.resolved, record)
        return record

    @staticmethod
    def feed(known: Any, record: Record) -> None:
        if record.topic == HALF_TOPIC:
            known.half_stored(record)
        elif record.topic == OP_HALF_TOPIC:
            superseded = formats.is_superseding(record.properties)
            decode = formats.superseded_offsets if superseded else formats.decode_op_offsets
            known.op_stored(record.queue_offset, decode(record.body), superseded=superseded)
        elif formats.is_final(record.sys_flag):
            known.final_stored(record.prepared_transaction_offset)

    def save_progress(self, half: int, op: int) -> None:
        self.append(self.plain(PROGRESS, json.dumps([half, op]).encode()))

    def plain(self, topic: str, body: bytes, properties: bytes = b"") -> formats.Message:
        return formats.Message(
            topic=topic,
            queue_id=0,
            body=body,
            properties=properties,
            born_timestamp=self.now,
            born_host=HOST,
        )

    # -- producers ----------------------------------------------------------------------------------------

    def send(self, choice: int) -> Producer:
        number = len(self.producers)
        plan = (COMMIT, COMMIT, ROLLBACK, None)[choice % 4]
        done = [each for each in self.producers if each.acked]
        key = done[-1].key if done and choice % 16 == 5 else f"K{number}"  # the same object, sent again
        producer = Producer(number, key, plan)
        properties = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": key}
        if choice // 4 % 8 == 3:
            properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = "60"
        if choice % 16 == 9:  # passed on from another message
            properties["TRAN_PREPARED_QUEUE_OFFSET"] = str(choice % 7)
        message = self.plain(TARGET, b"%d" % number, encode_properties(properties))
        half = self.lead(formats.to_half(replace(message, flag=number, reconsume_times=1)))
        producer.places.append((half.queue_offset, half.offset))
        self.producers.append(producer)
        return producer

    def end(self, producer: Producer, place: tuple[int, int], kind: int, *, check: bool) -> None:
        queue_offset, offset = place
        half = self.log[offset // STEP] if offset // STEP < len(self.log) else None
        if half is not None and half.body != b"%d" % producer.number and self._has_key(half, producer.key):
            return  # the same object, sent again to the place of a lost copy: nothing tells them apart
        producer.asked.add(kind)
        request = EndTransaction(
            producer_group="pg",
            tran_state_table_offset=queue_offset,
            commit_log_offset=offset,
            commit_or_rollback=kind,
            from_transaction_check=check,
            msg_id=producer.key,
        )
        known = newest = None
        if half is not None and half.topic == HALF_TOPIC:
            known = self.resolved.ending_of(half)
            newest = self.resolved.newest_copy(half) if known is None else None
        facts = self.code.ending.HalfFacts(half=half, ending=known, newest_copy=newest or 0)
        decision = self.code.ending.decide_ending(
            request, facts, now_ms=self.now, transaction_timeout_ms=TIMEOUT_MS
        )
        match type(decision).__name__:
            case "Commit":
                self.lead(decision.final)
                self.waiting.append((producer, kind, len(self.log)))
            case "Rollback":
                self.resolved.rolled_back(half)
                self.next_turn.append((producer, kind))
            case "AlreadyDone":
                self.next_turn.append((producer, kind))
            case _:
                pass

    @staticmethod
    def _has_key(half: Record, key: str) -> bool:
        return decode_properties(half.properties).get("UNIQ_KEY") == key

    def end_one(self, choice: int) -> None:
        """A producer ends its transaction: in time, late, or again."""
        if self.producers:
            producer = self.producers[-1 - choice % len(self.producers) // (1 + choice % 3)]
            kind = producer.plan or (COMMIT, ROLLBACK)[choice // 7 % 2]
            self.end(producer, producer.places[choice % len(producer.places)], kind, check=False)

    def answer_one(self, choice: int) -> None:
        """A producer answers a check: as planned, with unknown, or not at all."""
        if self.questions:
            producer, half = self.questions.pop(choice % len(self.questions))
            if choice % 5:
                kind = producer.plan or (COMMIT, ROLLBACK)[choice // 5 % 2]
                self.end(producer, (half.queue_offset, half.offset), kind, check=True)

    # -- what the broker does -----------------------------------------------------------------------------

    def write_ops(self, limit: int = 10**9) -> None:
        """The end of a turn, or as much of it as a broker did before it died."""
        for body in formats.op_bodies(self.resolved.ops_to_write(), 20 if limit % 2 else 4096):
            if limit <= 0:
                return
            limit -= 1
            self.lead(formats.op_message(body, HOST, self.now))
        self.waiting += [(producer, kind, len(self.log)) for producer, kind in self.next_turn]
        self.next_turn = []

    def confirm(self, choice: int) -> None:
        self.confirmed += choice % (len(self.log) - self.confirmed + 1)
        for producer, kind, end in self.waiting:
            if end <= self.confirmed:
                producer.acked.add(kind)
        self.waiting = [each for each in self.waiting if each[2] > self.confirmed]

    def check(self, count: int, failing: int = 0) -> None:
        """So many steps of a pass of checks; one append in `failing` is refused."""
        for _ in range(count):
            if self.steps is None:
                self.steps = self.code.check_pass.check_pass(self.resolved, self.limits, started_ms=self.now)
                answer = None
            else:
                answer = self._carry_out(self.step, failing)
            try:
                self.step = self.steps.send(answer)
            except StopIteration:
                self.steps = None
                return
            if type(self.step).__name__ in ("Append", "SaveProgress"):  # at once
                answer = self._carry_out(self.step, failing)
                self._send(answer)

    def _send(self, answer: Any) -> None:
        assert self.steps is not None
        try:
            self.step = self.steps.send(answer)
        except StopIteration:
            self.steps = None

    def _carry_out(self, step: Any, failing: int) -> Any:
        match type(step).__name__:
            case "ReadHalf":
                return self.halves()[step.queue_offset]
            case "Append":
                if failing and len(self.log) % failing == 0:
                    return self.code.check_pass.NotAppended(len(self.log) % 2 == 0, "refused")
                record = self.lead(step.message)
                if step.supersedes is not None:
                    body = b"%d," % step.supersedes
                    self.lead(formats.op_message(body, HOST, self.now, superseded=True))
                return self.code.check_pass.Place(record.queue_offset, record.offset, record.store_timestamp)
            case "CanAsk":
                return self.healed or len(self.log) % 4 != 1
            case "SendCheck":
                producer = self.producers[int(step.half.body)]
                copies = [half for half in self.halves() if half.body == step.half.body]
                demand(copies[-1] == step.half, "a check names another copy than the newest")
                producer.places.append((step.half.queue_offset, step.half.offset))
                self.questions.append((producer, step.half))
            case "GivenUp":
                producer = self.producers[int(step.half.body)]
                producer.given_up = True
                producer.reported |= "not stored" in step.reason
            case "SaveProgress":
                self.save_progress(step.half_progress, step.op_progress)
            case _:
                pass
        return None

    def halves(self) -> list[Record]:
        return [record for record in self.log if record.topic == HALF_TOPIC]

    # -- crashes ------------------------------------------------------------------------------------------

    def crash(self, choice: int) -> None:
        """The log ends at any record that is not confirmed, and another broker leads, or the same again."""
        end = self.confirmed + choice % (len(self.log) - self.confirmed + 1)
        del self.log[end:]
        self.counts = {}
        for record in self.log:
            self.counts[record.topic] = record.queue_offset + 1
        self.waiting, self.next_turn, self.java_ops = [], [], []
        self.steps = None
        self.resolved = self.replica() if choice % 2 else self.restarted()

    def replica(self) -> Any:
        """What a replica knows that has followed the log from its beginning."""
        known = self.code.resolved.Resolved()
        known.loaded()
        for record in self.log:
            if record.topic == PROGRESS:
                known.follow(json.loads(record.body)[0])
            else:
                self.feed(known, record)
        return known

    def restarted(self) -> Any:
        """What a broker knows that reads its store again."""
        saved = [record for record in self.log if record.topic == PROGRESS]
        half, op = json.loads(saved[-1].body) if saved else (0, 0)
        known = self.code.resolved.Resolved(half, op)
        for record in self.log:
            if record.topic == HALF_TOPIC and record.queue_offset >= half:
                self.feed(known, record)
        for record in self.log:
            if record.topic == OP_HALF_TOPIC and record.queue_offset >= op:
                self.feed(known, record)
        start = known.finals_scan_start()
        for record in self.log:
            if start is not None and record.offset >= start and formats.is_final(record.sys_flag):
                self.feed(known, record)
        known.loaded()
        return known

    # -- Java ---------------------------------------------------------------------------------------------

    def java(self, choice: int) -> None:
        """A Java master does something; it ends a transaction once, and writes ops when it likes."""
        open_ones = [each for each in self.producers if not each.asked]
        match choice % 5:
            case 0 | 1:
                self.send(choice // 5)
            case 2 if open_ones:
                producer = open_ones[choice // 5 % len(open_ones)]
                kind = producer.plan or COMMIT
                producer.asked.add(kind)
                queue_offset, offset = producer.places[-1]
                if kind == COMMIT:
                    self.append(formats.final_of(self.log[offset // STEP], offset))
                self.java_ops.append(queue_offset)
            case 3 if self.java_ops:
                count = 1 + choice // 5 % len(self.java_ops)
                named, self.java_ops = self.java_ops[:count], self.java_ops[count:]
                old = count == 1 and choice % 2
                body = b"%d" % named[0] if old else formats.encode_op_offsets(named)
                self.append(formats.op_message(body, HOST, self.now))
            case 4 if not self.java_ops:
                self._java_checks()
            case _:
                pass

    def _java_checks(self) -> None:
        end = self.counts.get(HALF_TOPIC, 0)
        for producer in self.producers:
            if not producer.asked:
                half = self.log[producer.places[-1][1] // STEP]
                copy = formats.copy_of_half(half, formats.check_times_of(half) + 1)
                properties = decode_properties(copy.properties)
                del properties["TRAN_PREPARED_QUEUE_OFFSET"]  # Java's copy knows no origin
                again = replace(copy, properties=encode_properties(properties), flag=0, reconsume_times=0)
                stored = self.append(again)
                producer.places.append((stored.queue_offset, stored.offset))
        self.save_progress(end, self.counts.get(OP_HALF_TOPIC, 0))

    # -- the checker --------------------------------------------------------------------------------------

    def verify(self) -> None:
        finals: dict[int, int] = {}
        for index, record in enumerate(self.log):
            if record.topic == TARGET:
                number = int(record.body)
                demand(number not in finals, f"transaction {number} is delivered twice")
                finals[number] = index
                demand(COMMIT in self.producers[number].asked, f"{number} is delivered before its commit")
                demand("REAL_TOPIC" not in decode_properties(record.properties), "a final with its target")
        for producer in self.producers:
            number = producer.number
            if COMMIT in producer.acked:
                demand(finals.get(number, len(self.log)) < self.confirmed, f"commit of {number} is lost")
            if ROLLBACK in producer.acked:
                demand(number not in finals, f"{number} is delivered after its rollback")
        self._verify_copies()
        self._verify_progress()

    def _verify_copies(self) -> None:
        """Each copy is one check more, or was made because the last one had been there for long."""
        counted: dict[bytes, tuple[int, int]] = {}
        stay_ms = min(self.limits.stay_ms, self.limits.reserved_ms // 2)
        for half in self.halves():
            if formats.immunity_ms_of(half) is None:
                times = formats.check_times_of(half)
                before, stored = counted.get(half.body, (-1, 0))
                moved = before == times and half.store_timestamp - stored >= stay_ms
                demand(before < times or moved, f"two copies of {half.body!r} for one check")
                ours = formats.origin_of(half) < half.queue_offset
                demand(not ours or times <= self.limits.check_max, f"{half.body!r} is checked too often")
                counted[half.body] = times, half.store_timestamp

    def _verify_progress(self) -> None:
        """Wherever a progress was saved, nothing below it was open."""
        over = {b"%d" % each.number for each in self.producers if each.reported}
        halves: list[bytes] = []
        ops: list[tuple[int, ...]] = []
        for record in self.log:
            if record.topic in (TARGET, CHECK_MAX_TIME_TOPIC):
                over.add(record.body)
            elif record.topic == HALF_TOPIC:
                halves.append(record.body)
            elif record.topic == OP_HALF_TOPIC:
                superseded = formats.is_superseding(record.properties)
                decode = formats.superseded_offsets if superseded else formats.decode_op_offsets
                ops.append(decode(record.body))
                if not superseded:
                    over.update(halves[queue_offset] for queue_offset in ops[-1])
            elif record.topic == PROGRESS:
                half, op = json.loads(record.body)
                carried_on = set(halves[half:])
                passed = {body for body in halves[:half] if body not in over and body not in carried_on}
                demand(not passed, f"progress {half} has passed {passed}, which is open")
                demand(half <= len(halves) and op <= len(ops), "progress beyond the end")
                demand(
                    all(each < half for named in ops[:op] for each in named), f"op progress {op} is too far"
                )

    def heal(self) -> None:
        """No more faults: all producers answer all checks, and everything ends."""
        self.healed = True
        self.write_ops()
        for _ in range(8):
            self.now += 120_000
            self.check(10_000)
            for producer, half in self.questions:
                kind = producer.plan or COMMIT
                self.end(producer, (half.queue_offset, half.offset), kind, check=True)
            self.questions = []
            self.write_ops()
            self.confirm(len(self.log) - self.confirmed)
            self.verify()
        self.check(10_000)
        demand(self.resolved.half_progress == self.counts.get(HALF_TOPIC, 0), "a half stays open")
        demand(self.resolved.op_progress == self.counts.get(OP_HALF_TOPIC, 0), "an op is never done")
        demand(not self.resolved.ops_to_write(), "an op is never written")
        there = {int(record.body) for record in self.halves()}
        final = {int(record.body) for record in self.log if record.topic == TARGET}
        for producer in self.producers:
            if producer.number in there and producer.plan == COMMIT and not producer.given_up:
                demand(producer.number in final, f"{producer.number} is never delivered")


def run(tape: Sequence[int], code: Code = CODE, *, java: int = 0) -> World:
    """Let things happen as the numbers say; the first `java` of them under a Java master."""
    world = World(code)
    for number in tape[:java]:
        world.java(number)
        world.now += 100
        world.verify()
    if java:
        world.confirmed = max(world.confirmed, len(world.log) - tape[0] % 4)
        world.crash(tape[0])
    for number in tape[java:]:
        what, choice = number % 16, number // 16
        match what:
            case 0 | 1 | 2:
                world.send(choice)
            case 3 | 4 | 5:
                world.end_one(choice)
            case 6:
                world.answer_one(choice)
            case 7:
                world.write_ops()
            case 8:
                world.write_ops(1 + choice % 3)
            case 9 | 10:
                world.confirm(choice)
            case 11:
                world.crash(choice)
            case 12:
                world.now += (1_000, 10_000, 100_000)[choice % 3]
            case 13:
                world.check(1 + choice % 6, failing=choice % 4 and 2 + choice % 5)
            case 14:
                world.check(1 + choice % 60)
            case _:
                world.now += 7_000
                world.check(100)
        world.verify()
    world.heal()
    return world


def random_tape(seed: int, size: int = 150) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(2**20) for _ in range(size)]
