"""What an archive says of itself: `_archive.json` at its root, the files that are whole and were read back.

An archive has the files of a log that are no longer written, and the small files that name its owner. It
grows while its broker runs. A file that the manifest does not name is one that is being written, and nobody
reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import orjson

from brokerset_spark.json_values import CAMEL, read_versioned, to_value

MANIFEST: Final = "_archive.json"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file of the archive, as it was read back."""

    __pydantic_config__: ClassVar = CAMEL

    path: str
    """In the store and in the archive."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ArchiveManifest:
    """`_archive.json`."""

    __pydantic_config__: ClassVar = CAMEL

    cluster_name: str | None
    broker_name: str | None
    files: tuple[ArchivedFile, ...]
    """By path."""

    def find(self, path: str) -> ArchivedFile | None:
        """What is known of a file."""
        return next((each for each in self.files if each.path == path), None)

    def with_files(self, files: Iterable[ArchivedFile]) -> ArchiveManifest:
        """The same with more files, or with a newer state of them."""
        found = {each.path: each for each in (*self.files, *files)}
        return replace(self, files=tuple(found[path] for path in sorted(found)))

    def encode(self) -> bytes:
        """As it is stored."""
        return orjson.dumps({"version": VERSION, **to_value(self)}, option=orjson.OPT_INDENT_2)


def decode_manifest(text: bytes) -> ArchiveManifest:
    """FormatError for what is no manifest of this version."""
    return read_versioned(ArchiveManifest, text, "version", VERSION, "manifest of an archive")
