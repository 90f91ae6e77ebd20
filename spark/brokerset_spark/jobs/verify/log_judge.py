"""What the facts mean together for the log: gaps, its end, epochs, checkpoints and terms."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from brokerset_formats.dledger import CurrentTerm, LedgerCheckpoint
from brokerset_formats.errors import FormatError
from brokerset_spark.jobs.report import Level
from brokerset_spark.jobs.running import Result
from brokerset_spark.jobs.verify.ending import Witness
from brokerset_spark.jobs.verify.findings import finding
from brokerset_spark.jobs.verify.gathered import Gathered
from brokerset_spark.jobs.verify.plan import Target, log_of
from brokerset_spark.stores.folder import StoreFolder, read_all
from brokerset_spark.stores.layout import DLEDGER_PREFIX

_LOST_MAX = 3
"""Witnesses that a finding names."""


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
        gathered.say(Result(row), Level.WARNING if tail and target.repairs else None)
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
        gathered.say(found, Level.WARNING if target.repairs else None)
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


def judge_checkpoints(target: Target, gathered: Gathered, end: int) -> None:
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
    newest = max((each["newest"] for each in gathered.sections.sections), default=0)
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
    entries: list[Any] = [each["mostEntry"] for each in gathered.sections.sections if each["mostEntry"]]
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
