"""The two Delta tables of a lake: `messages`, with the offsets that it has, and `control`.

The offset of each queue is an *application transaction* of Delta: a number under a name, which a commit sets
together with the files that it adds. So offsets and messages cannot disagree, checkpoints and compaction keep
them, and of two exports that run at once Delta refuses the second commit. The control rows of a pass are in
the same commit as metadata, and go to their own table afterwards: a pass that dies between the two is
finished by the next one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from brokerset_spark.jobs.lake.commits import (
    CONTROL,
    CONTROL_SCHEMA,
    ONE_AT_A_TIME,
    PARTITIONS,
    Commit,
    control_table,
    missing_columns,
)
from brokerset_spark.jobs.lake.files import MESSAGES, TABLE_SCHEMA, WrittenFile
from brokerset_spark.jobs.lake.ranges import Control, Event, Exported
from brokerset_spark.jobs.lake.storage import Storage, without_secrets
from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.json_values import from_value, to_value
from brokerset_spark.topics.offsets import QueueKey

PASS: Final = "brokerset-export"
"""Transaction that counts passes; in the control table: the last pass whose rows are in it."""

CONTROL_METADATA: Final = "brokerset.control"
PASS_METADATA: Final = "brokerset.pass"
NO_MARK: Final = -1
"""Of a queue whose end has no mark, and had one before: transactions cannot be taken away."""

HISTORY_COMMITS: Final = 100
"""Commits in which the control rows of an interrupted pass are searched."""


class DeltaLake:
    """`LakeTable` in Delta; created by the first pass."""

    def __init__(self, storage: Storage) -> None:
        """Opens the tables. OSError and deltalake's errors if the storage cannot be reached."""
        self._storage = storage
        self._options = storage.options()
        self._messages = self._open(MESSAGES, TABLE_SCHEMA, PARTITIONS)
        self._control = self._open(CONTROL, CONTROL_SCHEMA, [])
        self._finish_control()

    @property
    def passes(self) -> int:
        """See `LakeTable`."""
        return self._messages.transaction_version(PASS) or 0

    def begin(self) -> str:
        """See `LakeTable`; files that no commit names are deleted by `vacuum`."""
        return ""

    def close(self) -> None:
        """See `LakeTable`; there are none."""

    def exported(self, queues: Iterable[QueueKey]) -> dict[QueueKey, Exported]:
        """See `LakeTable`."""
        found = {}
        for queue in queues:
            offset = self._messages.transaction_version(_offset_name(queue))
            if offset is not None:
                mark = self._messages.transaction_version(_mark_name(queue))
                found[queue] = Exported(offset, None if mark == NO_MARK else mark)
        return found

    def known_queues(self) -> set[QueueKey]:
        """See `LakeTable`."""
        rows = self._control.to_pyarrow_table(
            columns=["pass", "event", "topic", "brokerName", "queueId"]
        ).to_pylist()
        known: set[QueueKey] = set()
        for row in sorted(rows, key=lambda each: int(each["pass"])):
            queue = QueueKey(row["topic"], row["brokerName"], row["queueId"])
            if row["event"] == Event.QUEUE_GONE:
                known.discard(queue)
            else:
                known.add(queue)
        return known

    def add_columns(self, columns: Sequence[pa.Field]) -> None:
        """See `LakeTable`."""
        missing = missing_columns(pa.schema(self._messages.schema()), columns)
        if len(missing):
            self._messages.alter.add_columns(list(Schema.from_arrow(missing).fields))
            self._messages.update_incremental()

    def commit(self, made: Commit) -> int:
        """See `LakeTable`."""
        number = self.passes + 1
        transactions = [Transaction(PASS, number)]
        for queue, exported in made.exported.items():
            transactions.append(Transaction(_offset_name(queue), exported.next_offset))
            if exported.mark_ms is not None:
                transactions.append(Transaction(_mark_name(queue), exported.mark_ms))
            elif self._messages.transaction_version(_mark_name(queue)) is not None:
                transactions.append(Transaction(_mark_name(queue), NO_MARK))
        metadata = {
            PASS_METADATA: str(number),
            CONTROL_METADATA: json.dumps([to_value(each) for each in made.control]),
        }
        try:
            self._messages.create_write_transaction(
                [_add_action(each) for each in made.files],
                "append",
                schema=self._messages.schema(),
                partition_by=PARTITIONS,
                commit_properties=CommitProperties(custom_metadata=metadata, app_transactions=transactions),
            )
        except CommitFailedError as error:
            raise JobFailed(
                f"pass {number} was not committed: {without_secrets(error)}", ONE_AT_A_TIME
            ) from error
        self._messages.update_incremental()
        self._write_control(number, made.control)
        return number

    def compact(self, target_bytes: int) -> dict[str, Any]:
        """See `LakeTable`."""
        found: dict[str, Any] = self._messages.optimize.compact(target_size=target_bytes)
        self._messages.create_checkpoint()
        return found

    def vacuum(self, hours: int) -> int:
        """See `LakeTable`."""
        return len(
            self._messages.vacuum(hours, dry_run=False, enforce_retention_duration=hours >= 168, full=True)
        )

    # -- inside -------------------------------------------------------------------------------------------

    def _open(self, name: str, schema: pa.Schema, partitions: list[str]) -> DeltaTable:
        url = self._storage.table_url(name)
        try:
            return DeltaTable(url, storage_options=self._options)
        except TableNotFoundError:
            return DeltaTable.create(
                url,
                schema,
                mode="ignore",
                partition_by=partitions,
                name=f"brokerset {name}",
                storage_options=self._options,
            )

    def _finish_control(self) -> None:
        """Rows of a pass that ended between its two commits."""
        done = self._control.transaction_version(PASS) or 0
        if done >= self.passes:
            return
        for commit in reversed(self._messages.history(HISTORY_COMMITS)):
            number = int(commit.get(PASS_METADATA, 0))
            if number > done:
                rows = [from_value(Control, each) for each in json.loads(commit[CONTROL_METADATA])]
                self._write_control(number, rows)

    def _write_control(self, number: int, rows: Sequence[Control]) -> None:
        try:
            write_deltalake(
                self._control,
                control_table(number, rows),
                mode="append",
                commit_properties=CommitProperties(app_transactions=[Transaction(PASS, number)]),
            )
        except CommitFailedError:
            # An export that began between the two commits of this pass has finished it (`_finish_control`).
            self._control.update_incremental()
            if (self._control.transaction_version(PASS) or 0) < number:
                raise
        self._control.update_incremental()


def _offset_name(queue: QueueKey) -> str:
    return f"offset:{queue.text}"


def _mark_name(queue: QueueKey) -> str:
    return f"mark:{queue.text}"


def _add_action(file: WrittenFile) -> AddAction:
    statistics = {"numRecords": file.rows}
    return AddAction(
        file.path,
        file.size,
        {"topic": file.topic, "day": file.day or None},
        int(datetime.now(UTC).timestamp() * 1000),
        True,
        json.dumps(statistics),
    )
