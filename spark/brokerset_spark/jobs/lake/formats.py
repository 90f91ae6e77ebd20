"""The table formats of a lake, and what their libraries raise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from brokerset_spark.jobs.lake.catalog import CatalogOptions
from brokerset_spark.jobs.lake.commits import LakeTable
from brokerset_spark.jobs.lake.storage import Storage, without_secrets
from brokerset_spark.jobs.report import JobFailed

FORMATS: Final = ("delta", "parquet", "iceberg")
LIBRARIES: Final = (
    "deltalake",
    "_internal",
    "obstore",
    "pyarrow",
    "pyiceberg",
    "sqlalchemy",
    "botocore",
    "thrift",
    "hive_metastore",
)
"""Packages whose exceptions are about the storage or the catalog. deltalake's belong to `_internal`."""


def open_lake(kind: str, storage: Storage, catalog: CatalogOptions | None) -> LakeTable:
    """The tables below a URL, made if they are not there. Loads the library of that format alone."""
    match kind:
        case "iceberg":
            from brokerset_spark.jobs.lake.iceberg_table import IcebergLake

            return IcebergLake(storage, catalog or CatalogOptions())
        case "parquet":
            from brokerset_spark.jobs.lake.parquet_table import ParquetLake

            return ParquetLake(storage)
        case _:
            from brokerset_spark.jobs.lake.delta_table import DeltaLake

            return DeltaLake(storage)


@contextlib.contextmanager
def guarded(target: str) -> Iterator[None]:
    """What storage, catalog and their libraries raise is a JobFailed that says what to do."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in LIBRARIES:
            raise
        raise JobFailed(
            f"the tables in {target} cannot be read or written: {without_secrets(error)}",
            "check the target, its room and rights, the catalog if there is one, and their credentials "
            "in the environment, then run it again: it goes on from the last commit",
        ) from error
