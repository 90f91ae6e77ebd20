"""What a migration is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from brokerset_formats.dledger import ENTRY_HEAD_SIZE
from brokerset_formats.errors import FormatError
from brokerset_formats.identity import BrokerIdentity
from brokerset_formats.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from brokerset_formats.queue_units import UNIT_SIZE
from brokerset_formats.records import RECORD_SIZE_MIN
from brokerset_spark.jobs.dispatch import DELAY_LEVELS, parse_delays

Target = Literal["commitlog", "controller", "dledger"]
TARGETS: Final[tuple[Target, ...]] = ("controller", "commitlog", "dledger")
EPOCHS: Final = ("auto", "single", "terms")

METADATA_TOPIC: Final = f"{SYSTEM_TOPIC_PREFIX}BROKERSET_METADATA"
"""Changes of topics and groups in the log of a brokerset broker. Its snapshots hold offsets of the log, so a
rewrite leaves the topic out: the files in `config/` have all of it."""

_FILE_SIZE_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateOptions:
    """What becomes of a store."""

    to: Target = "controller"
    """Layout of the target."""

    rewrite: bool = False
    """To DLedger: entries only, instead of the old files with a DLedger behind them. Else: records are
    rewritten where files could be copied."""

    file_size: int | None = None
    """Bytes of the log's files; None keeps them."""

    queue_file_size: int | None = None
    """Bytes of files of consume queues; None keeps them."""

    from_offset: int | None = None
    """Only records that begin here or behind, in the source's offsets."""

    until_offset: int | None = None
    """Only records that begin before."""

    from_time_ms: int | None = None
    """Only from the first record on that was stored at this time or later."""

    until_time_ms: int | None = None
    """Only records before the first one that was stored at this time or later."""

    keep_topics: tuple[str, ...] = ()
    """Names or patterns (`*`, `?`); none keeps all. Topics of the system, of retries and of dead letters
    stay."""

    drop_topics: tuple[str, ...] = ()
    """Names or patterns of topics that go, of any kind."""

    ledger_id: str = "n0"
    """`dLegerSelfId` of the node that will use the target."""

    term: int = 1
    """Of all entries of a DLedger that is written."""

    take_uncommitted: bool = False
    """Whether entries of a DLedger are taken that are not known to be committed."""

    epochs: str = "auto"
    """For controller mode. `auto`: those of the source, else a single one. `terms`: one for each change of
    a DLedger's term."""

    identity: str | None = None
    """`cluster#broker#id` for a replica that its controllers know; None lets the broker register."""

    index: bool = True
    """Whether the target gets key index files."""

    index_slots: int | None = None
    index_units: int | None = None
    """`maxHashSlotNum` and `maxIndexNum` of the broker; None finds them out from the source's files."""

    drop_timers: bool = False
    """Whether messages that wait in the timer wheel may be lost."""

    accept_queue_faults: bool = False
    """Whether queues may get place holders where no record has a queue offset, and two records the same."""

    delay_levels: str = DELAY_LEVELS
    """`messageDelayLevel` of the broker."""

    def problems(self) -> list[str]:
        """What is wrong with them; each a sentence."""
        found = []
        if self.to not in TARGETS:
            found.append(f"there is no layout {self.to!r}; choose one of {', '.join(TARGETS)}")
        if self.epochs not in EPOCHS:
            found.append(f"epochs={self.epochs!r} must be one of {', '.join(EPOCHS)}")
        smallest = RECORD_SIZE_MIN + ENTRY_HEAD_SIZE + 8
        if self.file_size is not None and not smallest <= self.file_size <= _FILE_SIZE_MAX:
            found.append(f"a file size of {self.file_size} must lie between {smallest} and {_FILE_SIZE_MAX}")
        if self.queue_file_size is not None and (
            self.queue_file_size < UNIT_SIZE or self.queue_file_size % UNIT_SIZE
        ):
            found.append(f"a queue file size of {self.queue_file_size} is no multiple of {UNIT_SIZE}")
        if (self.index_slots is None) != (self.index_units is None):
            found.append("index slots and index units must be given together")
        if min(self.index_slots or 1, (self.index_units or 2) - 1) < 1:
            found.append("an index file needs at least one slot and two units")
        for low, high, what in (
            (self.from_offset, self.until_offset, "offset"),
            (self.from_time_ms, self.until_time_ms, "time"),
        ):
            if min(low or 0, high or 0) < 0 or (low is not None and high is not None and low >= high):
                found.append(f"nothing lies between {what} {low} and {high}")
        if self.term < 0 or "/" in self.ledger_id or not self.ledger_id:
            found.append(f"term {self.term} or DLedger id {self.ledger_id!r} cannot be")
        try:
            if not parse_delays(self.delay_levels):
                found.append("no delay level is given")
            if self.identity is not None:
                BrokerIdentity.decode(self.identity.encode())
        except (ValueError, FormatError) as error:
            found.append(str(error))
        return found

    @property
    def selects(self) -> bool:
        """Whether records may be left out."""
        bounds = (self.from_offset, self.until_offset, self.from_time_ms, self.until_time_ms)
        return any(each is not None for each in bounds) or bool(self.keep_topics or self.drop_topics)

    def to_row(self) -> dict[str, Any]:
        """As JSON values; the same options give the same row."""
        return {**asdict(self), "keep_topics": list(self.keep_topics), "drop_topics": list(self.drop_topics)}


def is_chosen(topic: str, keep: Sequence[str], drop: Sequence[str]) -> bool:
    """Whether a topic stays."""
    if any(fnmatchcase(topic, each) for each in drop):
        return False
    special = topic in SYSTEM_TOPICS or topic.startswith((SYSTEM_TOPIC_PREFIX, RETRY_PREFIX, DLQ_PREFIX))
    return not keep or special or any(fnmatchcase(topic, each) for each in keep)
