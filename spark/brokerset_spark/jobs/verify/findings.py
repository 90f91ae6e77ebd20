"""What `verify` can find: the stable codes, how bad each is, and what it means (`docs/spark.md` has the
same)."""

from __future__ import annotations

from typing import Final

from brokerset_spark.jobs.report import Level
from brokerset_spark.jobs.running import Result
from brokerset_spark.kernels import Stop

_E, _W, _I = Level.ERROR, Level.WARNING, Level.INFO

CODES: Final[dict[str, tuple[Level, str]]] = {
    "file-foreign": (_E, "A file that does not belong into this folder; Java refuses to start with it."),
    "file-size": (_E, "A file of another size than the others; Java refuses to start with it."),
    "file-missing": (_E, "Between two files of a log there are bytes that no file has."),
    "file-overlap": (_E, "Two files of a log claim the same bytes."),
    "file-unreadable": (_E, "A file disappeared or could not be read while the job ran."),
    "record-magic": (_E, "What should be a record does not begin as one."),
    "record-size": (_E, "A record does not fit where it lies, or is shorter than its fixed part."),
    "record-lengths": (_E, "The lengths inside a record do not add up to its size."),
    "record-offset": (
        _E,
        "A record says that it belongs elsewhere: misplaced, or a file has another's name.",
    ),
    "crc-mismatch": (_E, "The body of a record does not match its CRC."),
    "property-crc": (_E, "A record does not match the CRC in its property `__CRC32#`."),
    "chain-gap": (_E, "Zeros where records should be."),
    "chain-overlap": (_E, "Two ranges of the log both own the same bytes: a record holds a copy of others."),
    "blank-size": (_E, "The blank record at the end of a file gives it another length."),
    "blank-missing": (_E, "A file that others follow does not end with a blank record."),
    "tail-missing": (
        _E,
        "Queues or marks know of records behind the last one of the log. A warning if a crash explains it.",
    ),
    "time-back": (_W, "A record was stored earlier than the one before it."),
    "record-queue": (_E, "Topic, queue or queue offset of a record differ from where its queue unit is."),
    "queue-gap": (_E, "Queue offsets that no record has, between others of the same queue."),
    "queue-restart": (_I, "A queue begins again at 0: its topic was deleted and made again."),
    "topic-deleted": (_I, "Records of a topic that has neither queues nor settings: it was deleted."),
    "queue-missing": (_E, "Records of a known topic whose queue has no folder. After a crash: a warning."),
    "cq-missing": (_E, "A record has no unit in its queue. At the end of a queue after a crash: a warning."),
    "cq-blank": (_E, "A place holder where a record's unit should be, or between units."),
    "cq-offset": (_E, "The unit of a record points elsewhere."),
    "cq-size": (_E, "The unit of a record gives it another size."),
    "cq-tags": (_E, "The unit of a record has another hash of its tags."),
    "cq-deliver-time": (_E, "The unit of a delayed record has another time of delivery."),
    "cq-dangling": (_E, "A unit points to no record. Behind the end of the log after a crash: a warning."),
    "index-header": (_E, "The header of an index file cannot be, or does not fit its units."),
    "index-chain": (
        _E,
        "A slot or unit of an index file does not lead to the unit before it: keys are not found.",
    ),
    "index-order": (_E, "A unit of an index file is out of the order of the log."),
    "index-missing": (_E, "A key of a record is not in the index file that should have it."),
    "index-dangling": (_E, "An index unit points to no record, or to one that has no such key."),
    "index-time": (_E, "An index unit has another time than its record."),
    "index-uncovered": (_W, "Records with keys that no index file covers: they are not found by key."),
    "index-layout": (
        _W,
        "The number of slots of an index file cannot be told from its content; not checked.",
    ),
    "entry-index": (_E, "The index of a DLedger entry does not follow on the one before."),
    "entry-term": (_E, "The term of a DLedger entry is lower than that of the one before."),
    "ledger-unit": (_E, "The index file of a DLedger does not agree with an entry."),
    "ledger-term": (_E, "`currterm` is missing, unreadable, or older than the last entry."),
    "ledger-checkpoint": (_E, "The `checkpoint` of a DLedger is unreadable, or ahead of its entries."),
    "epoch-file": (_E, "The epoch file, or its copy, cannot be read or is out of order."),
    "epoch-start": (_E, "An epoch begins where no record begins."),
    "epoch-ahead": (_E, "An epoch begins behind the end of the log."),
    "checkpoint": (_E, "The `checkpoint` cannot be read, or has impossible values."),
    "checkpoint-ahead": (_W, "The `checkpoint` tells of later messages than the log has."),
    "checkpoint-missing": (_W, "There is no `checkpoint`: a start reads the whole log."),
    "identity": (_E, "`brokerIdentity` cannot be read."),
    "archive-manifest": (_E, "The manifest of an archive cannot be read."),
    "archive-missing": (_E, "A file that the manifest of an archive names is not there."),
    "archive-differs": (_E, "A file of an archive has another size or SHA-256 than its manifest says."),
    "config": (_E, "A file of settings cannot be read. Of a `.bak` file: a warning."),
    "lmq-property": (
        _E,
        "The properties of a record that name its light queues (`%LMQ%`) and their queue offsets do not fit.",
    ),
    "lmq-missing": (
        _W,
        "Records name a light queue that has no folder: it was removed, as brokers do, or is lost.",
    ),
    "batch-property": (_E, "An inner batch does not say how many messages it has, or where it begins."),
    "batch-missing": (
        _E,
        "A record has no unit in its batch queue. At the end of a queue after a crash: a warning.",
    ),
    "batch-unit": (_E, "A unit of a batch queue does not agree with its record."),
    "batch-dangling": (
        _E,
        "A unit of a batch queue points to no record. Behind the end of the log after a crash: a warning.",
    ),
    "batch-gap": (_E, "Queue offsets between two units of a batch queue that no unit has."),
    "ext-missing": (_E, "The extended unit that a queue unit points to is in no file."),
    "ext-unit": (_E, "An extended unit does not agree with its record."),
}
"""Code to level and meaning."""

OF_STOP: Final = {
    Stop.BAD_MAGIC: "record-magic",
    Stop.BAD_SIZE: "record-size",
    Stop.SHORT: "record-size",
    Stop.BAD_LENGTHS: "record-lengths",
    Stop.BAD_OFFSET: "record-offset",
    Stop.BAD_CRC: "crc-mismatch",
    Stop.BAD_INDEX: "entry-index",
    Stop.EMPTY: "chain-gap",
    Stop.BLANK: "blank-size",
    Stop.RANGE_END: "record-size",
}
"""What a stop of the kernels means where a record must be."""


def finding(code: str, text: str, file: str, offset: int | None = None, end: int | None = None) -> Result:
    """A finding of `CODES` on its way from a task to the driver, as a row."""
    return Result({"kind": "finding", "code": code, "text": text, "file": file, "offset": offset, "end": end})
