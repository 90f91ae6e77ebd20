"""`append_to_delta` on a path and on an S3 server. Tasks run in this process, so no Java is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema

from brokerset_rig.object_storage import ObjectStorage, object_storage
from brokerset_spark.jobs.lake.micro_batches import append_to_delta
from brokerset_spark.jobs.lake.storage import Storage


class Frame:
    """The calls of a DataFrame that the sink makes; each part is a task."""

    def __init__(self, parts: Sequence[pa.RecordBatch]) -> None:
        self.schema = from_arrow_schema(parts[0].schema, prefer_timestamp_ntz=False)
        self._parts = parts

    def select(self, *names: str) -> Frame:
        return Frame([part.select(list(names)) for part in self._parts])

    def mapInArrow(self, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str) -> Any:
        rows = [row for part in self._parts for batch in task(iter([part])) for row in batch.to_pylist()]
        return SimpleNamespace(collect=lambda: [SimpleNamespace(**row) for row in rows])


def part(*ids: int) -> pa.RecordBatch:
    """Rows as Spark hands them to a task: times in the session's zone."""
    kinds = [
        pa.int64(),
        pa.timestamp("us", tz="Europe/Berlin"),
        pa.map_(pa.string(), pa.string()),
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    ]
    columns = [
        list(ids),
        [datetime(2026, 1, 2, 3, 4, number, tzinfo=UTC) for number in ids],
        [[("n", str(number))] for number in ids],
        [[{"key": "h", "value": b"\0"}] for _ in ids],
    ]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["id", "at", "properties", "headers"])


@pytest.fixture(scope="module")
def storage() -> Iterator[ObjectStorage]:
    with object_storage() as found:
        yield found


@pytest.mark.parametrize("on_s3", [False, True])
def test_batches_are_appended_once(storage: ObjectStorage, tmp_path: Path, on_s3: bool) -> None:
    """Each number once, with all kinds of columns, times in UTC; what has no rows leaves nothing."""
    target = storage.url("micro/orders").replace("s3://", "s3a://") if on_s3 else str(tmp_path / "a table")
    append = append_to_delta(target, application="query")

    for number, parts in ((0, [part(1, 2), part(), part(3)]), (1, [part(4)]), (1, [part(4)]), (2, [part()])):
        append(cast(Any, Frame(parts)), number)

    place = Storage(target)
    table = DeltaTable(place.table_url("").rstrip("/"), storage_options=place.options())
    rows = sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: int(row["id"]))
    assert [row["id"] for row in rows] == [1, 2, 3, 4]
    assert rows[2]["at"] == datetime(2026, 1, 2, 3, 4, 3, tzinfo=UTC)
    assert (dict(rows[2]["properties"]), rows[2]["headers"]) == ({"n": "3"}, [{"key": "h", "value": b"\0"}])
    assert len(table.file_uris()) == 3
    assert table.transaction_version("query") == 1
