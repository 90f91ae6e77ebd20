"""Digests of files that will not change any more, from one audit to the next.

A file is known again by path, size and modification time. After `FULL_READ_MS` it is read again all the same:
bits rot without anybody writing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from brokerset_formats.errors import FormatError
from brokerset_spark.jobs.audit.digests import decode_digests
from brokerset_spark.jobs.audit.intervals import Interval
from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.stores.layout import LogFile
from brokerset_spark.stores.places import is_stream, local_path

CACHE_VERSION: Final = 1
FULL_READ_MS: Final = 7 * 24 * 3600 * 1000


@dataclass(slots=True)
class DigestCache:
    """What is known of the files of several stores: URL, path -> answer of the task that read it, and
    when."""

    path: Path
    stores: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> DigestCache:
        """Read the file; a missing, damaged or foreign one is an empty cache."""
        try:
            value = orjson.loads(path.read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return cls(path)
        if not isinstance(value, dict) or value.get("cacheVersion") != CACHE_VERSION:
            return cls(path)
        stores = value.get("stores")
        return cls(path, stores if isinstance(stores, dict) else {})

    def save(self) -> None:
        """Replace the file as a whole."""
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with beside.open("wb") as stream:
            stream.write(orjson.dumps({"cacheVersion": CACHE_VERSION, "stores": self.stores}))
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(self.path)

    def find(
        self, url: str, file: LogFile, intervals: list[Interval], epochs: list[int], now_ms: int
    ) -> dict[str, Any] | None:
        """What the task would answer; None if it must read."""
        known = self.stores.get(url, {}).get(file.path)
        if known is None or (known.get("size"), known.get("mtimeMs")) != (file.size, file.mtime_ms):
            return None
        try:
            age = now_ms - int(known["readAtMs"])
            answer: dict[str, Any] = known["answer"]
            have = {(each.start, each.end) for each in decode_digests(answer["digests"])}
            checked = set(known["epochs"])
        except (KeyError, TypeError, ValueError, FormatError):
            return None
        if not 0 <= age < FULL_READ_MS or not have.issuperset(intervals) or not checked.issuperset(epochs):
            return None
        return answer

    def keep(self, url: str, file: LogFile, epochs: list[int], answer: dict[str, Any], now_ms: int) -> None:
        """Remember an answer that found nothing wrong."""
        self.stores.setdefault(url, {})[file.path] = {
            "size": file.size,
            "mtimeMs": file.mtime_ms,
            "readAtMs": now_ms,
            "epochs": epochs,
            "answer": answer,
        }

    def forget_others(self, url: str, paths: set[str]) -> None:
        """Drop what is known of files that are gone."""
        self.stores[url] = {path: known for path, known in self.stores.get(url, {}).items() if path in paths}


def check_place(path: Path, stores: list[str]) -> None:
    """JobFailed if a file would be written into a store: Java does not start with foreign files in it."""
    for url in stores:
        if is_stream(url):
            continue
        root = Path(local_path(url)).resolve()
        if path.resolve().is_relative_to(root):
            raise JobFailed(
                f"{path} lies inside the store {url}", "nothing is written into a store; choose another place"
            )
