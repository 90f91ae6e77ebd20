"""The tables of a lake as tests want them: rows of any format, and a driver that stops where it is to be killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from brokerset_spark.jobs.lake.catalog import CatalogOptions
from brokerset_spark.jobs.lake.files import TABLE_SCHEMA
from brokerset_spark.jobs.lake.parquet_table import ParquetLake
from brokerset_spark.jobs.lake.storage import Storage

FORMATS: Final = ("delta", "parquet", "iceberg")
POINTS: Final = {
    "files": ("commit", "before"),
    "commit": ("_write_control", "before"),
    "control": ("commit", "after"),
}
"""Where a driver is killed: its data files are written; the pass is committed, but not its control rows; all is
written, but nobody has heard of it."""

STOPPED: Final = "the driver stands still"


@dataclass(frozen=True, slots=True)
class LakeAt:
    """A lake of some format, in a folder or a bucket."""

    kind: str
    url: str
    catalog: CatalogOptions | None = field(default=None)

    @classmethod
    def make(cls, kind: str, url: str, folder: Path) -> LakeAt:
        """With a catalog of Iceberg in `folder`."""
        properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
        return cls(kind, url, CatalogOptions("tests", properties) if kind == "iceberg" else None)

    def options(self) -> dict[str, Any]:
        """Of `LakeOptions`."""
        return {"target": self.url, "format": self.kind, "catalog": self.catalog}

    def arguments(self) -> list[str]:
        """Of the command."""
        found = ["--target", self.url, "--format", self.kind]
        if self.catalog is not None:
            found += ["--catalog", self.catalog.name]
            for name, value in self.catalog.properties.items():
                found += ["--catalog-property", f"{name}={value}"]
        return found

    def rows(self, table: str = "messages") -> list[dict[str, Any]]:
        """Of `messages` or `control`, as readers that want exactness read them."""
        found: list[dict[str, Any]] = self.table(table).to_pylist()
        return found

    def table(self, table: str = "messages") -> pa.Table:
        """The same, as Arrow has it."""
        storage = Storage(self.url)
        if self.kind == "delta":
            from deltalake import DeltaTable

            return DeltaTable(storage.table_url(table), storage_options=storage.options()).to_pyarrow_table()
        if self.kind == "iceberg":
            from pyiceberg.catalog import load_catalog

            assert self.catalog is not None
            catalog = load_catalog(self.catalog.name, **storage.file_settings(), **self.catalog.properties)
            suffix = "" if table == "messages" else "_control"
            with closing(catalog):
                return catalog.load_table(self.catalog.table + suffix).scan().to_arrow()
        files, root = storage.files(table)
        if table == "control":
            return pq.read_table(root, filesystem=files)
        lake = ParquetLake(storage)
        parts = []
        for each in lake.live_files():
            with files.open_input_file(f"{root}/{each.path}") as stream:
                part = pq.read_table(stream)
            parts.append(part.append_column("topic", pa.array([each.topic] * len(part))))
        empty = pa.schema([TABLE_SCHEMA.field("topic"), *lake.schema]).empty_table()
        return pa.concat_tables([empty, *parts], promote_options="default")

    def data_files(self) -> set[str]:
        """Paths of all Parquet files of messages that lie there, of whatever pass."""
        from pyarrow import fs

        files, root = Storage(self.url).files("messages")
        found = files.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
        return {each.path for each in found if each.path.endswith(".parquet") and "/day=" in each.path}


def killed_driver(point: str, arguments: Sequence[str]) -> None:
    """Runs `lake` in a process of its own until it is at the point, and kills it there."""
    command = [sys.executable, "-m", "brokerset_rig.lake_tables", point, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        said = []
        for line in driver.stdout:
            said.append(line)
            if STOPPED in line:
                driver.kill()
                break
        assert driver.wait() == -signal.SIGKILL, said


def _stand_still_at(point: str, arguments: Sequence[str]) -> None:
    from brokerset_spark.commands.table import main
    from brokerset_spark.jobs.lake.delta_table import DeltaLake
    from brokerset_spark.jobs.lake.iceberg_table import IcebergLake

    name, when = POINTS[point]
    for lake in (DeltaLake, ParquetLake, IcebergLake):
        real = getattr(lake, name)

        def stopping(*given: Any, real: Any = real, **more: Any) -> Any:
            if when == "after":
                real(*given, **more)
            if not more:  # of a pass, not what an earlier one left
                print(STOPPED, flush=True)
                signal.pause()
            return real(*given, **more)

        setattr(lake, name, stopping)
    main(["lake", *arguments], standalone_mode=False)


if __name__ == "__main__":
    _stand_still_at(sys.argv[1], sys.argv[2:])
