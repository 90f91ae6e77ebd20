"""First task where records stay as they are: a file of the log is read once, checked, copied, and read back.

What is read back is compared by its digest with what was checked, so the copy need not be taken apart again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from brokerset_spark.jobs.migrate.cloning import copy_rest, opened, part_of, read_back
from brokerset_spark.jobs.migrate.output import Output, at_ms
from brokerset_spark.jobs.migrate.scanning import examine
from brokerset_spark.jobs.migrate.writing import blank_record
from brokerset_spark.jobs.running import Result, Row
from brokerset_spark.stores.folder import LocalFolder
from brokerset_spark.stores.reading import Throttle

TASK: Final = "brokerset_spark.jobs.migrate.copying:copy"


def copy(row: Row) -> Iterator[Result]:
    """See the module; the result is that of a scan, with the copy among its files.

    A closed file is copied as a whole. Of another one, in which the log ends, only records are; zeros follow,
    or with `closes` a blank record. One without records is left out: it was made in advance.
    """
    folder, source = LocalFolder(row["source"]), Path(row["source"]) / row["path"]
    target = Path(row["staging"]) / row["target"]
    target.parent.mkdir(parents=True, exist_ok=True)
    throttle = Throttle(row["rate"])
    size: int = row["size"]
    try:
        with opened(source) as reading, Output(part_of(target)) as output:
            facts = os.fstat(reading)
            output.share(reading)
            found, _ = examine(folder, row, throttle, lambda data: output.take(data.data))
            if found["records"] or found["closed"]:
                if found["closed"]:
                    copy_rest(reading, output, size, throttle)
                elif row["closes"]:
                    output.put(blank_record(size - output.position, ledger=False))
                read_back(output, row["path"], throttle)
                times = facts.st_atime_ns, facts.st_mtime_ns
                output.finish(
                    size, times_ns=at_ms(found["lastStored"]) if found["lastStored"] >= 0 else times
                )
                output.publish(target)
                found["files"].append(output.described(row["target"], size))
            else:
                output.part.unlink()
    finally:
        folder.close()
    found["shared"] = int(output.shared)
    yield Result(found)
