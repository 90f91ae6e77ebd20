"""Findings on their way from tasks to the driver."""

from __future__ import annotations

from brokerset_spark.jobs.running import Result


def finding(code: str, text: str, file: str, offset: int | None = None, end: int | None = None) -> Result:
    """A finding of `codes.CODES`, as a row."""
    return Result({"kind": "finding", "code": code, "text": text, "file": file, "offset": offset, "end": end})
