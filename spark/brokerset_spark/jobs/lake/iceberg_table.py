"""A lake of two Iceberg tables in a catalog, committed by pyiceberg: `NAME` with the messages,
`NAME_control`.

The snapshot that adds the files of a pass has the ends of all queues in its summary, so offsets and messages
cannot disagree: who rolls the table back has its offsets back as well. Snapshots of others (compaction,
deletes of single rows) have no such properties; the newest ancestor that has them counts. The same ends are a
property of the table, for the day when that ancestor has expired.

A commit that meets one of somebody else's is tried again on top of it, unless that was a pass: then nothing
of this one counts.
"""

from __future__ import annotations

import base64
import contextlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import orjson
import pyarrow as pa
from pyarrow import fs
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from brokerset_spark.jobs.lake.catalog import CatalogOptions
from brokerset_spark.jobs.lake.commits import (
    CONTROL_SCHEMA,
    ONE_AT_A_TIME,
    PARTITIONS,
    Commit,
    QueueEnds,
    control_table,
    missing_columns,
    plain_type,
)
from brokerset_spark.jobs.lake.files import MESSAGES, TABLE_SCHEMA, Layout
from brokerset_spark.jobs.lake.merging import Piece, groups_of, merged
from brokerset_spark.jobs.lake.ranges import Control, Exported
from brokerset_spark.jobs.lake.storage import Storage, without_secrets
from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.json_values import from_value, to_value
from brokerset_spark.topics.offsets import QueueKey

PASS: Final = "brokerset.pass"
OFFSETS: Final = "brokerset.offsets"
CONTROL_ROWS: Final = "brokerset.control"
PROPERTIES: Final = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Of a new table: a commit each minute leaves neither manifests nor versions of the metadata without end."""

_SCHEME: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(//(?=/)|//)?")

PLAIN_BYTES_MAX: Final = 4096
"""Values that are longer are compressed: each snapshot keeps its own."""


class IcebergLake:
    """`LakeTable` in Iceberg; created by the first pass."""

    def __init__(self, storage: Storage, options: CatalogOptions) -> None:
        """Opens the tables. JobFailed for a table that lies elsewhere; OSError and pyiceberg's errors if
        catalog or storage cannot be reached."""
        self._storage = storage
        self._files, self._folder = storage.files(MESSAGES)
        self._catalog = load_catalog(options.name, **storage.file_settings(), **options.properties)
        try:
            self._open_tables(storage, options.table)
        except BaseException:
            self._catalog.close()
            raise

    @property
    def passes(self) -> int:
        """See `LakeTable`."""
        return _last_pass(self._messages)[0]

    def begin(self) -> str:
        """See `LakeTable`; files that no snapshot names are deleted by `vacuum`."""
        return ""

    def close(self) -> None:
        """See `LakeTable`."""
        self._catalog.close()

    def exported(self, queues: Iterable[QueueKey]) -> dict[QueueKey, Exported]:
        """See `LakeTable`."""
        there = self._ends().exported
        return {queue: there[queue] for queue in queues if queue in there}

    def known_queues(self) -> set[QueueKey]:
        """See `LakeTable`."""
        return self._ends().known

    def add_columns(self, columns: Sequence[pa.Field]) -> None:
        """See `LakeTable`."""
        missing = missing_columns(_arrow_schema(self._messages), columns)
        if len(missing):
            with self._messages.update_schema() as update:
                update.union_by_name(missing)

    def commit(self, made: Commit) -> int:
        """See `LakeTable`."""
        number, properties = _last_pass(self._messages)
        ends = _text(_ends_of(properties).after(made.exported, made.control).rows())
        rows = _text([to_value(each) for each in made.control])
        summary = {PASS: str(number + 1), OFFSETS: ends, CONTROL_ROWS: rows}
        paths = [f"{self._url}/{each.path}" for each in made.files]
        with self._committing(f"pass {number + 1}", number) as transaction:
            transaction.set_properties({PASS: str(number + 1), OFFSETS: ends})
            transaction.add_files(paths, summary, check_duplicate_files=False)
        self._write_control(number + 1, made.control)
        return number + 1

    def compact(self, target_bytes: int) -> dict[str, Any]:
        """See `LakeTable`. One snapshot, of the kind `overwrite`: pyiceberg has none of the kind
        `replace`."""
        there = {
            task.file.file_path: task.file
            for task in self._messages.scan().plan_files()
            if not task.delete_files
        }
        pieces = [
            Piece(path, each.file_size_in_bytes, each.partition[0], _day(each.partition[1]))
            for path, each in there.items()
        ]
        groups = groups_of(pieces, target_bytes)
        if not groups:
            return {}
        schema = _arrow_schema(self._messages)
        made = []
        for group in groups:
            layout = Layout(self._files, self._folder, group[0].topic, schema)
            made.append(merged(layout, self._files, [self._path(each.path) for each in group], group[0].day))
        with self._committing("the compaction", self.passes) as transaction:
            update = transaction.update_snapshot().overwrite()
            for group in groups:
                for each in group:
                    update.delete_data_file(there[each.path])
            for file in made:
                update.append_data_file(
                    parquet_file_to_data_file(
                        self._messages.io, transaction.table_metadata, f"{self._url}/{file.path}"
                    )
                )
            update.commit()
        return {"filesAdded": len(made), "filesRemoved": sum(map(len, groups))}

    def vacuum(self, hours: int) -> int:
        """See `LakeTable`: old snapshots expire, and files that no snapshot names are deleted."""
        before = datetime.now(UTC) - timedelta(hours=hours)
        self._messages.maintenance.expire_snapshots().older_than(before.replace(tzinfo=None)).commit()
        self._messages.refresh()
        there = {self._path(path) for path in self._messages.inspect.all_files()["file_path"].to_pylist()}
        count = 0
        for each in self._files.get_file_info(fs.FileSelector(self._folder, recursive=True)):
            is_data = each.path.endswith(".parquet") and "/day=" in each.path
            if is_data and each.path not in there and each.mtime is not None and each.mtime < before:
                self._files.delete_file(each.path)
                count += 1
        return count

    # -- inside -------------------------------------------------------------------------------------------

    def _open_tables(self, storage: Storage, name: str) -> None:
        self._url = storage.table_url(MESSAGES)
        if storage.is_local and "://" not in self._url:
            self._url = f"file://{self._url}"
        self._messages = self._open(name, TABLE_SCHEMA, self._url, PARTITIONS)
        self._control = self._open(
            f"{name}_control",
            CONTROL_SCHEMA,
            f"{self._url.rpartition('/')[0]}/control",
            (),
        )
        if self._messages.location().rstrip("/") != self._url:
            raise JobFailed(
                f"table {name} lies in {self._messages.location()}, not in {self._url}",
                "give the target that it was made with, or another --table",
            )
        self._finish_control()

    def _open(self, name: str, schema: pa.Schema, location: str, partitions: Sequence[str]) -> Table:
        with contextlib.suppress(NoSuchTableError):
            return self._catalog.load_table(name)
        with contextlib.suppress(NamespaceAlreadyExistsError):
            self._catalog.create_namespace(name.rpartition(".")[0])
        try:
            made = self._catalog.create_table_transaction(
                name, schema, location=location, properties=PROPERTIES
            )
            with made, made.update_spec() as spec:
                for each in partitions:
                    spec.add_identity(each)
        except (TableAlreadyExistsError, CommitFailedException):
            pass  # another export was faster
        return self._catalog.load_table(name)

    def _ends(self) -> QueueEnds:
        return _ends_of(_last_pass(self._messages)[1])

    def _path(self, location: str) -> str:
        """As the file system knows it. Engines write the scheme of a place in several ways."""
        return f"{self._folder}/{_SCHEME.sub('', location).removeprefix(_SCHEME.sub('', self._url) + '/')}"

    @contextlib.contextmanager
    def _committing(self, what: str, number: int) -> Iterator[Transaction]:
        """A transaction that is committed at the end if no pass after `number` is there.

        JobFailed if it is not committed, or if nobody knows.
        """
        transaction = _Exact(self._messages, number)
        try:
            yield transaction
            transaction.commit_transaction()
        except (CommitFailedException, PassedBy) as error:
            raise JobFailed(f"{what} was not committed: {without_secrets(error)}", ONE_AT_A_TIME) from error
        except CommitStateUnknownException as error:
            raise JobFailed(
                f"the catalog did not say whether {what} was committed: {without_secrets(error)}",
                "run the export again: it reads in the table whether it was",
            ) from error
        finally:
            self._messages.refresh()

    def _finish_control(self) -> None:
        """Rows of a pass that ended between its two commits."""
        number, properties = _last_pass(self._messages)
        if number > _last_pass(self._control)[0]:
            rows = [from_value(Control, each) for each in _value(properties.get(CONTROL_ROWS, "[]"))]
            self._write_control(number, rows)

    def _write_control(self, number: int, rows: Sequence[Control]) -> None:
        if not rows:
            return
        transaction = _Exact(self._control, _last_pass(self._control)[0])
        try:
            transaction.set_properties({PASS: str(number)})
            transaction.append(control_table(number, rows), {PASS: str(number)})
            transaction.commit_transaction()
        except (CommitFailedException, PassedBy):
            # An export that began between the two commits of this pass has finished it.
            self._control.refresh()
            if _last_pass(self._control)[0] < number:
                raise
        self._control.refresh()


class PassedBy(Exception):
    """Another export has committed a pass."""


class _Exact(Transaction):
    """Is tried again on top of commits of others, but never on top of another pass.

    pyiceberg would take two appends for independent of each other.
    """

    def __init__(self, table: Table, number: int) -> None:
        self._made: tuple[object, object, TableMetadata] | None = None
        super().__init__(table)
        self._number = number

    @property
    def table_metadata(self) -> TableMetadata:
        """The table with what is staged; made once for each change, since all snapshots are copied for it."""
        base, updates = self._table.metadata, self._updates
        if self._made is None or self._made[0] is not base or self._made[1] is not updates:
            self._made = base, updates, super().table_metadata
        return self._made[2]

    def _rebuild_snapshot_updates(self) -> None:
        found = _last_pass(self._table)[0]
        if found != self._number:
            raise PassedBy(f"pass {found} is there")
        super()._rebuild_snapshot_updates()


def _day(value: Any) -> str:
    """A partition's value; pyiceberg keeps days as numbers or dates."""
    if value is None:
        return ""
    return (date(1970, 1, 1) + timedelta(days=value) if isinstance(value, int) else value).isoformat()


def _last_pass(table: Table) -> tuple[int, Mapping[str, str]]:
    """Number and properties of the last pass that the table's current snapshot goes back to."""
    snapshot: Snapshot | None = table.current_snapshot()
    if snapshot is None:
        return 0, {}
    for each in ancestors_of(snapshot, table.metadata):
        properties = each.summary.additional_properties if each.summary is not None else {}
        if PASS in properties:
            return int(properties[PASS]), properties
    return int(table.properties.get(PASS, 0)), table.properties


def _ends_of(properties: Mapping[str, str]) -> QueueEnds:
    return QueueEnds.of(_value(properties.get(OFFSETS, "[]")))


def _text(value: Any) -> str:
    """JSON; long ones compressed, in Base64."""
    found: bytes = orjson.dumps(value)
    return (found if len(found) <= PLAIN_BYTES_MAX else base64.b64encode(zlib.compress(found))).decode()


def _value(text: str) -> Any:
    """The reverse; Base64 has no brackets."""
    return orjson.loads(text if text.startswith("[") else zlib.decompress(base64.b64decode(text)))


def _arrow_schema(table: Table) -> pa.Schema:
    """As files of the table are written."""
    found = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return pa.schema([pa.field(each.name, plain_type(each.type)) for each in found])


def live_files(storage: Storage, options: CatalogOptions, suffix: str) -> tuple[list[str], pa.Schema]:
    """Locations of the files that a table is made of now, and its columns; `_control` is the control
    table."""
    catalog = load_catalog(options.name, **storage.file_settings(), **options.properties)
    with contextlib.closing(catalog):
        table = catalog.load_table(options.table + suffix)
        return [task.file.file_path for task in table.scan().plan_files()], _arrow_schema(table)
