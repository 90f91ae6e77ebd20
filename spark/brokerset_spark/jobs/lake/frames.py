"""The tables of a lake as DataFrames, for sessions without a connector for Delta or Iceberg."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pyarrow as pa

from brokerset_spark.jobs.lake.catalog import CatalogOptions
from brokerset_spark.jobs.lake.commits import CONTROL, CONTROL_SCHEMA
from brokerset_spark.jobs.lake.files import MESSAGES, TABLE_SCHEMA
from brokerset_spark.jobs.lake.micro_batches import table_place
from brokerset_spark.jobs.lake.storage import Storage

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession


def read_messages(
    spark: SparkSession,
    target: str,
    *,
    format: str = "delta",
    version: int | None = None,
    catalog: CatalogOptions | None = None,
) -> DataFrame:
    """The messages of the newest version, or of a given one of Delta, read by Spark's own Parquet reader.

    No connector of Delta or Iceberg loads in Spark 4.3: their libraries, or our log of commits, say which
    files the version has, so files that no commit names are not among them. `s3://` is read as `s3a://`,
    which needs hadoop-aws. Raises what the format's library raises if there is no table.
    """
    storage = Storage(target)
    base = storage.table_url(MESSAGES)
    match format:
        case "delta":
            from deltalake import DeltaTable

            table = DeltaTable(base, version=version, storage_options=storage.options())
            files, schema = delta_files(table, base), pa.schema(table.schema())
        case "parquet":
            from brokerset_spark.jobs.lake.parquet_table import ParquetLake

            lake = ParquetLake(storage)
            files = [f"{base}/{each.path}" for each in lake.live_files()]
            schema = pa.schema([*list(TABLE_SCHEMA)[:2], *lake.schema])
        case "iceberg":
            from brokerset_spark.jobs.lake.iceberg_table import live_files

            files, schema = live_files(storage, catalog or CatalogOptions(), "")
        case _:
            raise ValueError(f"format {format!r}: it is delta, parquet or iceberg")
    return _read(spark, files, schema, base)


def read_control(
    spark: SparkSession, target: str, *, format: str = "delta", catalog: CatalogOptions | None = None
) -> DataFrame:
    """The control table: what a reader of the messages has to know of them."""
    storage = Storage(target)
    base = storage.table_url(CONTROL)
    match format:
        case "delta":
            from deltalake import DeltaTable

            files = delta_files(DeltaTable(base, storage_options=storage.options()), base)
        case "parquet":
            from pyarrow import fs

            found, folder = storage.files(CONTROL)
            there = found.get_file_info(fs.FileSelector(folder, allow_not_found=True))
            names = [each.base_name for each in there]
            files = [f"{base}/{name}" for name in names if re.fullmatch(r"\d{20}\.parquet", name)]
        case "iceberg":
            from brokerset_spark.jobs.lake.iceberg_table import live_files

            files, _ = live_files(storage, catalog or CatalogOptions(), "_control")
        case _:
            raise ValueError(f"format {format!r}: it is delta, parquet or iceberg")
    return _read(spark, files, CONTROL_SCHEMA, None)


def delta_files(table: DeltaTable, base: str) -> list[str]:
    """The files of a table at `base`. deltalake gives folders above the table as in a URL, and those below it
    as they are."""
    above = table.table_uri.rstrip("/") + "/"
    roots = (above, urlsplit(above).path)
    made = []
    for uri in table.file_uris():
        root = next((each for each in roots if uri.startswith(each)), None)
        made.append(uri if root is None else f"{base.rstrip('/')}/{uri.removeprefix(root)}")
    return made


def _read(spark: SparkSession, files: list[str], schema: pa.Schema, base: str | None) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    wanted = from_arrow_schema(schema)
    if not files:
        return spark.createDataFrame([], wanted)
    reader = spark.read.schema(wanted)
    if base is not None:
        reader = reader.option("basePath", _spark_path(base))
    return reader.parquet(*map(_spark_path, files))


def read_delta(spark: SparkSession, target: str, *, version: int | None = None) -> DataFrame:
    """The rows of a table that is not divided into partitions, such as `append_to_delta` makes.

    They are those of the newest version, or of a given one; `read_delta` again sees what came since.
    DeltaError if there is no table.
    """
    from deltalake import DeltaTable

    place = table_place(target)
    table = DeltaTable(place, version=version, storage_options=Storage(place).options())
    return _read(spark, delta_files(table, place), pa.schema(table.schema()), None)


def _spark_path(uri: str) -> str:
    scheme, found, rest = uri.partition("://")
    return f"s3a://{rest}" if found and scheme == "s3" else uri
