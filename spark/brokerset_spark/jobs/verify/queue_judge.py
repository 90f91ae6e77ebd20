"""What both directions mean together for the queues of a store: differences between records and units, and
units and queue offsets that nobody has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from brokerset_formats.queue_units import BATCH_UNIT_SIZE
from brokerset_spark.jobs.report import Level
from brokerset_spark.jobs.running import Row
from brokerset_spark.jobs.verify.batch_queues import place_of
from brokerset_spark.jobs.verify.claims import BatchClaims, Claims, Queue
from brokerset_spark.jobs.verify.consume_queues import CODE_OF, Bad
from brokerset_spark.jobs.verify.findings import finding
from brokerset_spark.jobs.verify.gathered import Gathered
from brokerset_spark.jobs.verify.light_queues import PREFIX as LIGHT_PREFIX
from brokerset_spark.jobs.verify.plan import Target, log_of
from brokerset_spark.jobs.verify.topic_settings import known_topics
from brokerset_spark.jobs.verify.unclaimed import RUNS_MAX
from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.units import BATCH, QUEUE, QueueReader, UnitKind

MISSING_MAX: Final = 64
"""Runs of records without a batch unit whose place is searched; the rest is counted with the last of them."""


@dataclass(frozen=True, slots=True)
class _Words:
    """How findings speak of the queues of a kind."""

    kind: UnitKind
    missing: str
    dangling: str
    others: str
    nowhere: str
    first: str
    scale: int
    """Of the number of a unit, for its place in a finding."""


_PLAIN: Final = _Words(
    QUEUE, "cq-missing", "cq-dangling", "behind it", "where no record of this queue offset begins",
    "the first is at offset", 1,
)  # fmt: skip
_BATCH: Final = _Words(
    BATCH, "batch-missing", "batch-dangling", "others", "where no record of the queue begins",
    "the first is at", BATCH_UNIT_SIZE,
)  # fmt: skip

_WHAT: Final = {
    Bad.MISSING: "there is no unit",
    Bad.BLANK: "there is a place holder",
    Bad.OFFSET: "the unit points to {offset}",
    Bad.SIZE: "the unit says {size} bytes",
    Bad.TAGS: "the unit has another tag",
    Bad.DELIVER_TIME: (
        "the unit has another time of delivery; if the broker has messageDelayLevel set, give --delay-levels"
    ),
}


def judge_queues(folder: StoreFolder, target: Target, gathered: Gathered) -> None:
    """Say what is wrong with plain and light queues, then with batch queues."""
    _PlainJudge(folder, target, gathered).judge()
    _BatchJudge(folder, target, gathered).judge()


class _Judge:
    words: _Words

    def __init__(self, folder: StoreFolder, target: Target, gathered: Gathered) -> None:
        self._target, self._gathered, self._known = target, gathered, known_topics(folder)
        self._reader = QueueReader(folder, self.words.kind)

    def _say(
        self, code: str, text: str, queue: Queue, number: int, end: int | None = None, *, weaker: bool = False
    ) -> None:
        """About a unit, or where one must be."""
        found = finding(code, text, self._reader.of(*queue).path_of(number), number * self.words.scale, end)
        self._gathered.say(found, Level.WARNING if weaker else None)

    def _say_missing(
        self, code: str, what: str, queue: Queue, number: int, count: int, offset: int, *, at_end: bool
    ) -> bool:
        """Of records without their unit; not of the newest ones of a store that is being written."""
        if at_end and self._target.live:
            self._gathered.count("queue.behind", count)
            return False
        many = f" and {count - 1} {self.words.others}" if count > 1 else ""
        text = f"for the record at offset {offset}{many} of {self.words.kind.name} {_name(queue)} {what}"
        end = number + count if count > 1 and self.words.scale == 1 else None
        self._say(code, text, queue, number, end, weaker=at_end and self._target.crash)
        return True

    def _say_absent(self, queue: Queue, count: int, begin: int, number: int) -> None:
        """Of records whose queue has no files."""
        kind, weaker, code = self.words.kind, False, "topic-deleted"
        text = f"{count} records of {_name(queue)} from offset {begin} on: the topic is gone"
        if self.words is _PLAIN and queue[0].startswith(LIGHT_PREFIX):
            text = f"{count} records name {queue[0]}, which is no queue; the first is at {begin}"
            code = "lmq-missing"
        elif queue[0] in self._known:
            text = f"{count} records of {_name(queue)} are in no {kind.name}; {self.words.first} {begin}"
            code, weaker = "queue-missing", self._target.crash
        self._say(code, text, queue, number, weaker=weaker)

    def _say_unclaimed(self, row: Row) -> None:
        count, blank, beyond = row["end"] - row["first"], row["why"] == "blank", row["why"] == "beyond"
        many = f" and {count - 1} {self.words.others}" if count > 1 else ""
        where = "behind the end of the log" if beyond else self.words.nowhere
        text = f"the unit{many} points to {row['offset']}, {where}"
        if blank:
            text = f"a place holder{many} behind units of messages"
        end = row["end"] if count > 1 and self.words.scale == 1 else None
        code, queue = "cq-blank" if blank else self.words.dangling, (row["topic"], row["queue"])
        self._say(code, text, queue, row["first"], end, weaker=beyond and self._target.crash)


class _PlainJudge(_Judge):
    words = _PLAIN

    def __init__(self, folder: StoreFolder, target: Target, gathered: Gathered) -> None:
        super().__init__(folder, target, gathered)
        self._stray = {row["offset"]: row for row in _single(gathered.unclaimed) if row["why"] == "dangling"}
        self._false: set[int] = set()  # records whose own queue or queue offset is wrong
        self._explained: dict[Queue, list[tuple[int, int]]] = {}

    def judge(self) -> None:
        for queue, claims in sorted(self._gathered.claims.items()):
            self._judge_records(queue, claims)
        for row in self._gathered.unclaimed:
            self._explained.setdefault((row["topic"], row["queue"]), []).append((row["first"], row["end"]))
            if row["why"] != "damaged" and not row.get("joined"):
                self._say_unclaimed(row)
        if not self._target.options.partial:
            for queue, claims in sorted(self._gathered.claims.items()):
                if not claims.absent or not self._target.facts.queues:
                    self._judge_holes(queue, claims)

    def _joined(self, offset: int, said: str) -> bool:
        """Whether a unit elsewhere has the record: then the record's own fields are wrong."""
        row = self._stray.pop(offset, None)
        if row is None:
            return False
        row["joined"] = True
        self._false.add(offset)
        place = f"unit {row['first']} of {row['topic']}/{row['queue']}"
        self._say_of_record("record-queue", f"the record says {said}, but {place} points to it", offset)
        return True

    def _say_of_record(self, code: str, text: str, offset: int) -> None:
        file = log_of(self._target.facts, offset)[0].at(offset)
        self._gathered.say(finding(code, text, file.path if file else "", offset))

    def _judge_records(self, queue: Queue, claims: Claims) -> None:
        name = _name(queue)
        if claims.absent:
            if claims.records > 1 or not self._joined(claims.runs[0].begin, f"queue {name}"):
                run = min(claims.runs, key=lambda each: each.begin)
                self._say_absent(queue, claims.records, run.begin, run.first)
            return
        if claims.restart >= 0:
            place = f"the record at {claims.restart}"
            text = f"queue {name} begins again at 0 with {place}: its topic was made again"
            self._say_of_record("queue-restart", text, claims.restart)
        claimed = claims.claimed()
        tail = claimed[-1][1] if claimed else 0
        for kind, first, count, offset, unit_offset, unit_size in _merged(claims.differences()):
            if count == 1 and self._joined(offset, f"queue {name}, queue offset {first}"):
                continue
            what = _WHAT[Bad(kind)].format(offset=unit_offset, size=unit_size)
            at_end = kind == Bad.MISSING and first + count >= tail
            self._say_missing(CODE_OF[Bad(kind)], what, queue, first, count, offset, at_end=at_end)
        if claims.dropped:
            self._gathered.count("queue.differences.dropped", claims.dropped)

    def _judge_holes(self, queue: Queue, claims: Claims) -> None:
        explained = sorted(self._explained.get(queue, []))
        for before, after in pairwise(claims.claimed(self._false)):
            at = before[1]
            for first, end in explained:
                if first <= at < end:
                    at = end
            if at < after[0]:
                text = f"no record has the queue offsets {at} to {after[0] - 1} of {_name(queue)}"
                self._say("queue-gap", text, queue, at, after[0])


class _BatchJudge(_Judge):
    words = _BATCH

    def judge(self) -> None:
        for queue, claims in sorted(self._gathered.batches.items()):
            self._judge_queue(queue, claims)

    def _judge_queue(self, queue: Queue, claims: BatchClaims) -> None:
        missing = sorted(claims.missing, key=lambda row: int(row["offset"]))
        if missing and missing[0]["absent"]:
            self._say_absent(queue, sum(int(row["count"]) for row in missing), missing[0]["offset"], 0)
            return
        lost = set(claims.wrong)  # numbers of units of which something was said
        files = self._reader.of(*queue)
        single = _single(claims.unclaimed) if missing else []
        strays = {int(files.read(row["first"], 1)[0]["base"]): row for row in single}
        rest = []
        for row in missing:
            stray = strays.pop(row["base"], None) if row["count"] == 1 else None
            if stray is None:
                rest.append(row)
                continue
            stray["joined"] = True  # the unit of the record is there, and only points elsewhere
            lost.add(stray["first"])
            text = (
                f"the unit of the record at offset {row['offset']} of {_name(queue)} has offset "
                f"{stray['offset']} instead of {row['offset']}"
            )
            self._say("batch-unit", text, queue, stray["first"])
        for number, row, count in self._by_place(queue, rest, lost):
            self._judge_missing(queue, number, row, count, lost)
        for row in claims.unclaimed:
            if not row.get("joined"):
                lost.update(range(row["first"], min(row["end"], row["first"] + RUNS_MAX)))
                self._say_unclaimed(row)
        for row in claims.gaps:
            if lost.isdisjoint(range(row["before"], row["number"] + 1)):
                text = (
                    f"a unit of {_name(queue)} begins with queue offset {row['to']}, "
                    f"the one before ends at {row['from']}"
                )
                self._say("batch-gap", text, queue, row["number"])

    def _by_place(self, queue: Queue, missing: list[Row], lost: set[int]) -> list[tuple[int, Row, int]]:
        """Missing ones, those that follow each other as one: the number that the first unit should have, the
        first row, and how many records."""
        found: list[tuple[int, Row, int]] = []
        for at, row in enumerate(missing):
            number = place_of(self._reader.of(*queue), int(row["offset"]), lost) if at < MISSING_MAX else -1
            if found and number in (found[-1][0], -1):
                found[-1] = (*found[-1][:2], found[-1][2] + int(row["count"]))
            else:
                found.append((number, row, int(row["count"])))
        return found

    def _judge_missing(self, queue: Queue, number: int, row: Row, count: int, lost: set[int]) -> None:
        files = self._reader.of(*queue)
        first, last = files.first_written(), files.last_written()
        if first is not None and first[1]["base"] == 0 and row["last"] < first[1]["offset"]:
            text = (
                f"queue {_name(queue)} begins again at 0 behind the record at {row['last']}: "
                "its topic was made again"
            )
            self._say("queue-restart", text, queue, first[0])
            return
        at_end = last is None or row["offset"] > last[1]["offset"]
        what = "there is no unit"
        if self._say_missing("batch-missing", what, queue, number, count, row["offset"], at_end=at_end):
            lost.add(number)


def _name(queue: Queue) -> str:
    return f"{queue[0]}/{queue[1]}"


def _single(rows: Iterable[Row]) -> list[Row]:
    """Those that are about one unit."""
    return [row for row in rows if row["end"] - row["first"] == 1]


def _merged(differences: list[list[int]]) -> list[list[int]]:
    """Missing and blank ones that follow each other as one."""
    found: list[list[int]] = []
    for each in sorted(differences, key=lambda one: (one[1], one[3])):
        before = found[-1] if found and each[0] in (Bad.MISSING, Bad.BLANK) else None
        if before and before[0] == each[0] and before[1] + before[2] == each[1]:
            before[2] += each[2]
        else:
            found.append(list(each))
    return found
