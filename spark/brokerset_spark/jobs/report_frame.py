"""The findings of a report as a table: a Spark DataFrame, or a Parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from brokerset_spark.jobs.report import Report

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "job string, level string, code string, store string, file string, offset bigint, end bigint, text string"
)
"""Columns, as Spark writes them."""


def _rows(report: Report) -> list[tuple[str, str, str, str, str, int | None, int | None, str]]:
    return [
        (report.job, str(each.level), each.code, each.store, each.file, each.offset, each.end, each.text)
        for each in report.findings
    ]


def findings_frame(spark: SparkSession, report: Report) -> DataFrame:
    """The findings that the report names, one row each, with the columns of `SCHEMA`."""
    return spark.createDataFrame(_rows(report), SCHEMA)


def findings_table(report: Report) -> pa.Table:
    """The same as an Arrow table."""
    import pyarrow as pa

    names = [column.split()[0] for column in SCHEMA.split(", ")]
    types = [pa.int64() if column.endswith("bigint") else pa.string() for column in SCHEMA.split(", ")]
    schema = pa.schema(list(zip(names, types, strict=True)))
    columns: list[tuple[object, ...]] = list(zip(*_rows(report), strict=True)) or [() for _ in names]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def write_findings(report: Report, path: Path) -> None:
    """The same as a Parquet file, which appears when it is whole."""
    import pyarrow.parquet as pq

    part = path.with_name(f".{path.name}.writing")
    pq.write_table(findings_table(report), part)
    part.replace(path)
