"""What the facts mean together: gaps, queues, marks and the ledger's small files."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from brokerset_formats.dledger import CurrentTerm, LedgerCheckpoint
from brokerset_formats.errors import FormatError
from brokerset_spark.jobs.report import Level
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.jobs.verify.ending import Witness
from brokerset_spark.jobs.verify.findings import finding
from brokerset_spark.jobs.verify.gathered import Gathered
from brokerset_spark.jobs.verify.joining import Claims, Queue, code_of
from brokerset_spark.jobs.verify.light_queues import PREFIX as LIGHT_PREFIX
from brokerset_spark.jobs.verify.plan import Target, log_of
from brokerset_spark.jobs.verify.topic_settings import known_topics
from brokerset_spark.jobs.verify.units import Bad, UnitReader
from brokerset_spark.stores.folder import StoreFolder, read_all
from brokerset_spark.stores.layout import DLEDGER_PREFIX
from brokerset_spark.stores.opening import open_folder

_LOST_MAX = 3
"""Witnesses that a finding names."""


def _weaker(found: Result, *, milder: bool) -> Result:
    return Result({**found.row, "level": Level.WARNING}) if milder else found


def judge_gaps(target: Target, gathered: Gathered) -> tuple[int, list[list[int]]]:
    """Say which stretches are damaged or lost; the log's real end, and the damaged ranges, sorted."""
    whole = target.ending.whole
    damage: list[list[int]] = []
    read_end = max((last for _, last, _ in gathered.sections.covered()), default=target.begin)
    end = read_end if target.options.partial or target.live else max(min(whole, target.end), read_end)
    for row in sorted(gathered.gaps, key=lambda row: int(row["offset"])):
        if target.live and not target.exact and row["empty"] and row["end"] >= target.end:
            continue  # the record that is being written
        tail = row["offset"] >= whole and not target.live
        if tail:
            known = _supporters(target, gathered, row["offset"])
            if not known:
                continue
            if row["empty"] or target.crash:
                said = ", ".join(each.who for each in known[:_LOST_MAX])
                text = f"the log ends here; {said} knows of records up to {row['end']}"
                row = {**row, "code": "tail-missing", "text": text}
        gathered.say(_weaker(Result(row), milder=tail and target.repairs))
        damage.append([row["offset"], row["end"]])
        if row["code"] != "tail-missing":
            end = max(end, row["end"])
    outside = (
        []
        if target.options.partial
        else _supporters(
            target, gathered, max(target.end, target.facts.commit_log.end, target.facts.ledger.end)
        )
    )
    if outside:
        log, _ = log_of(target.facts, target.end)
        lost_end = max(each.end for each in outside)
        said = ", ".join(each.who for each in outside[:_LOST_MAX])
        text = f"the last file ends at {log.end}; {said} knows of records up to {lost_end}: files are missing"
        found = finding("tail-missing", text, log.files[-1].path, log.end, lost_end)
        gathered.say(_weaker(found, milder=target.repairs))
        damage.append([log.end, lost_end])
    for log in (target.facts.commit_log, target.facts.ledger):
        for before, after in pairwise(log.files):
            if before.end < after.base:  # a file is missing or short, which was said
                damage.append([before.end, after.base])
    _judge_blanks(target, gathered, end)
    return end, sorted(damage)


def _supporters(target: Target, gathered: Gathered, offset: int) -> list[Witness]:
    """Witnesses for records behind `offset` whom the log itself does not prove wrong."""
    found = []
    for each in target.ending.claims:
        if each.end <= offset:
            continue
        if each.queue is not None:
            claims = gathered.claims.get(each.queue[:2])
            if claims and any(first <= each.queue[2] < last for first, last in claims.claimed()):
                continue  # the message is elsewhere: the unit is wrong, which is a finding of its own
            batches = gathered.batches.get(each.queue[:2])
            if batches and batches.has_elsewhere(each.queue[2]):
                continue
        found.append(each)
    return found


def _judge_blanks(target: Target, gathered: Gathered, end: int) -> None:
    """Files that are full to their last byte lack the blank record that readers need to go on."""
    ends = set(gathered.sections.blanks.values())
    damaged = {row["end"] for row in gathered.gaps}
    for log in (target.facts.commit_log, target.facts.ledger):
        for file in log.files:
            if target.begin <= file.base and file.end < end and file.end not in ends | damaged:
                text = "records fill the file, and no blank record closes it: readers stop here"
                gathered.say(finding("blank-missing", text, file.path, file.end))


def judge_queues(target: Target, gathered: Gathered, end: int) -> None:
    """Differences between records and units, and units and queue offsets that nobody has."""
    folder = open_folder(target.facts.url)
    try:
        _Queues(target, gathered, UnitReader(folder), known_topics(folder)).judge()
    finally:
        folder.close()


class _Queues:
    def __init__(self, target: Target, gathered: Gathered, reader: UnitReader, known: frozenset[str]) -> None:
        self._target, self._gathered, self._reader, self._known = target, gathered, reader, known
        self._stray = {  # single units without a record, by the offset that they point to
            row["offset"]: row
            for row in gathered.unclaimed
            if row["end"] - row["first"] == 1 and row["why"] == "dangling"
        }
        self._false: set[int] = set()  # records whose own queue or queue offset is wrong
        self._explained: dict[Queue, list[tuple[int, int]]] = {}

    def judge(self) -> None:
        for queue, claims in sorted(self._gathered.claims.items()):
            self._judge_records(queue, claims)
        for row in self._gathered.unclaimed:
            self._explained.setdefault((row["topic"], row["queue"]), []).append((row["first"], row["end"]))
            if row["why"] in ("dangling", "beyond", "blank") and not row.get("joined"):
                self._say_unclaimed(row)
        if not self._target.options.partial:
            for queue, claims in sorted(self._gathered.claims.items()):
                if not claims.absent or not self._target.facts.queues:
                    self._judge_holes(queue, claims)

    def _say(self, found: Result, *, milder: bool = False) -> None:
        self._gathered.say(_weaker(found, milder=milder))

    def _joined(self, offset: int, said: str) -> bool:
        """Whether a unit elsewhere has the record: then the record's own fields are wrong."""
        row = self._stray.pop(offset, None)
        if row is None:
            return False
        row["joined"] = True
        self._false.add(offset)
        log, _entries = log_of(self._target.facts, offset)
        file = log.at(offset)
        text = (
            f"the record says {said}, but unit {row['first']} of {row['topic']}/{row['queue']} points to it"
        )
        self._say(finding("record-queue", text, file.path if file else "", offset))
        return True

    def _judge_records(self, queue: Queue, claims: Claims) -> None:
        topic, queue_id = queue
        name = f"{topic}/{queue_id}"
        if claims.absent:
            self._judge_absent(queue, claims)
            return
        if claims.restart >= 0:
            text = (
                f"queue {name} begins again at 0 with the record at {claims.restart}: its topic was made anew"
            )
            log, _ = log_of(self._target.facts, claims.restart)
            file = log.at(claims.restart)
            self._say(finding("queue-restart", text, file.path if file else "", claims.restart))
        claimed = claims.claimed()
        tail = claimed[-1][1] if claimed else 0
        for kind, first, count, offset, unit_offset, unit_size in _merged(claims.differences()):
            if count == 1 and self._joined(offset, f"queue {name}, queue offset {first}"):
                continue
            path = self._reader.file_of(topic, queue_id, first)
            at_end = kind == Bad.MISSING and first + count >= tail
            if at_end and self._target.live:
                self._gathered.count("queue.behind", count)
                continue
            what = {
                Bad.MISSING: "there is no unit",
                Bad.BLANK: "there is a place holder",
                Bad.OFFSET: f"the unit points to {unit_offset}",
                Bad.SIZE: f"the unit says {unit_size} bytes",
                Bad.TAGS: "the unit has another tag",
                Bad.DELIVER_TIME: (
                    "the unit has another time of delivery; if the broker has "
                    "messageDelayLevel set, give --delay-levels"
                ),
            }[Bad(kind)]
            many = f" and {count - 1} behind it" if count > 1 else ""
            text = f"for the record at offset {offset}{many} of queue {name} {what}"
            end = first + count if count > 1 else None
            self._say(finding(code_of(kind), text, path, first, end), milder=at_end and self._target.crash)
        if claims.dropped:
            self._gathered.count("queue.differences.dropped", claims.dropped)

    def _judge_absent(self, queue: Queue, claims: Claims) -> None:
        topic, queue_id = queue
        if claims.records == 1 and self._joined(claims.runs[0].begin, f"queue {topic}/{queue_id}"):
            return
        run = min(claims.runs, key=lambda each: each.begin)
        folder = f"consumequeue/{topic}/{queue_id}"
        if topic.startswith(LIGHT_PREFIX):
            text = f"{claims.records} records name {topic}, which is no queue; the first is at {run.begin}"
            self._say(finding("lmq-missing", text, folder, run.first))
            return
        if topic in self._known:
            text = (
                f"{claims.records} records of {topic}/{queue_id} are in no queue; the "
                f"first is at offset {run.begin}"
            )
            self._say(finding("queue-missing", text, folder, run.first), milder=self._target.crash)
            return
        text = f"{claims.records} records of {topic}/{queue_id} from offset {run.begin} on: the topic is gone"
        self._say(finding("topic-deleted", text, folder, run.first))

    def _say_unclaimed(self, row: Row) -> None:
        count = row["end"] - row["first"]
        many = f" and {count - 1} behind it" if count > 1 else ""
        end = row["end"] if count > 1 else None
        if row["why"] == "blank":
            text = f"a place holder{many} behind units of messages"
            self._say(finding("cq-blank", text, row["file"], row["first"], end))
            return
        where = (
            "behind the end of the log"
            if row["why"] == "beyond"
            else "where no record of this queue offset begins"
        )
        text = f"the unit{many} points to {row['offset']}, {where}"
        self._say(
            finding("cq-dangling", text, row["file"], row["first"], end),
            milder=row["why"] == "beyond" and self._target.crash,
        )

    def _judge_holes(self, queue: Queue, claims: Claims) -> None:
        claimed = claims.claimed(self._false)
        explained = sorted(self._explained.get(queue, []))
        for before, after in pairwise(claimed):
            at = before[1]
            for first, end in explained:
                if first <= at < end:
                    at = end
            if at < after[0]:
                topic, queue_id = queue
                text = f"no record has the queue offsets {at} to {after[0] - 1} of {topic}/{queue_id}"
                self._say(finding("queue-gap", text, self._reader.file_of(topic, queue_id, at), at, after[0]))


def _merged(differences: list[list[int]]) -> list[list[int]]:
    """Missing and blank ones that follow each other as one."""
    found: list[list[int]] = []
    for each in sorted(differences, key=lambda one: (one[1], one[3])):
        if (
            found
            and each[0] in (Bad.MISSING, Bad.BLANK)
            and found[-1][0] == each[0]
            and found[-1][1] + found[-1][2] == each[1]
        ):
            found[-1][2] += each[2]
        else:
            found.append(list(each))
    return found


def judge_marks(target: Target, gathered: Gathered, end: int) -> None:
    """Epochs and checkpoint against the log."""
    facts = target.facts
    if facts.epochs is not None:
        damaged = [(row["offset"], row["end"]) for row in gathered.gaps]
        for entry in facts.epochs.entries:
            start = entry.start_offset
            if start > end and not target.live and not target.options.partial:
                text = f"epoch {entry.epoch} begins at {start}, the log ends at {end}"
                gathered.say(finding("epoch-ahead", text, "epochFileCheckpoint", start))
            elif target.begin <= start < min(end, target.end) and start not in gathered.epochs:
                if start in gathered.sections.blanks or any(first <= start < last for first, last in damaged):
                    continue
                if any(file.base == start for file in (*facts.commit_log.files, *facts.ledger.files)):
                    continue
                text = f"epoch {entry.epoch} begins at {start}, where no record begins"
                gathered.say(finding("epoch-start", text, "epochFileCheckpoint", start))
    if facts.checkpoint is None or target.options.partial or target.live:
        return
    if any(row["end"] >= end for row in gathered.gaps):
        return  # the newest records are damaged or lost, which was said
    newest = max((pair[1] for each in gathered.sections.sections for pair in each["lastTimes"]), default=0)
    times = {0: facts.checkpoint.physic_msg_timestamp, 8: facts.checkpoint.logics_msg_timestamp}
    for place, value in times.items():
        if value > newest:
            text = f"it tells of messages of {value}, the newest in the log is of {newest}"
            gathered.say(finding("checkpoint-ahead", text, "checkpoint", place))
    if facts.checkpoint.confirm_phy_offset > end:
        text = f"it says that {facts.checkpoint.confirm_phy_offset} is confirmed, the log ends at {end}"
        gathered.say(finding("checkpoint-ahead", text, "checkpoint", 32))


def judge_ledger(folder: StoreFolder, target: Target, gathered: Gathered) -> None:
    """`currterm` and `checkpoint` of a DLedger."""
    ledger = f"{DLEDGER_PREFIX}{target.facts.ledger_id}"
    entries: list[Any] = [each["lastEntry"] for each in gathered.sections.sections if each["lastEntry"]]
    last_index, last_term = max(entries, default=[-1, -1])
    for name, code in (("currterm", "ledger-term"), ("checkpoint", "ledger-checkpoint")):
        path = f"{ledger}/{name}"
        data = read_all(folder, path)
        if data is None:
            if name == "currterm":
                gathered.say(finding(code, "there is none: the node may vote twice in one term", path))
            continue
        try:
            if name == "currterm":
                term = CurrentTerm.decode(data).term
                if term < last_term:
                    gathered.say(finding(code, f"it says term {term}, the last entry has {last_term}", path))
            else:
                said = LedgerCheckpoint.decode(data)
                if said.committed_index > last_index and not target.live and not target.options.partial:
                    text = (
                        f"it says that entry {said.committed_index} is committed, the last one "
                        f"is {last_index}"
                    )
                    gathered.say(finding(code, text, path))
        except FormatError as error:
            gathered.say(finding(code, str(error), path))
