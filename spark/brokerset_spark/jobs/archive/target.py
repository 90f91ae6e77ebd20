"""Where an archive is written: a folder of this machine, object storage or HDFS, by one implementation."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brokerset_spark.stores.folder import READ_MAX
from brokerset_spark.stores.object_folder import open_filesystem
from brokerset_spark.stores.places import is_object, local_path

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

PIECE: Final = 8 << 20
"""Bytes that are read and written at once; S3 clients send parts of this size."""

PARTS: Final = "_parts"
"""Folder of files that are being written, where a file appears before it is whole."""

_ATOMIC: Final = ("s3", "gcs", "abfs")
"""File systems in which a file appears when it is whole; in others it is renamed then."""


class ArchiveTarget:
    """The files of an archive. OSError as from the file system."""

    def __init__(self, url: str) -> None:
        """NotServed for a URL that is neither a path nor object storage. Nothing is written yet."""
        self.url = url
        self._local = not is_object(url)
        self._filesystem, self._root = _opened(url)
        self._atomic = self._filesystem.type_name in _ATOMIC

    def read(self, path: str) -> bytes | None:
        """A small file; None if there is none. ValueError for one with more than `READ_MAX` bytes."""
        try:
            with self._filesystem.open_input_file(self._path(path)) as file:
                if file.size() > READ_MAX:
                    raise ValueError(f"{self.url}/{path} has more than {READ_MAX} bytes")
                found: bytes = file.read()
                return found
        except FileNotFoundError:
            return None

    def write(self, path: str, pieces: Iterator[bytes | memoryview]) -> str:
        """Write a file, which replaces an older one when it is whole; its SHA-256 in hexadecimal."""
        digest = hashlib.sha256()
        at = self._path(path if self._atomic else f"{PARTS}/{path.replace('/', '-')}")
        if not self._atomic:
            for each in (at, self._path(path)):
                self._filesystem.create_dir(each.rpartition("/")[0], recursive=True)
        with self._filesystem.open_output_stream(at) as file:
            for piece in pieces:
                digest.update(piece)
                file.write(piece)
        if not self._atomic:
            self._sync(at)
            self._filesystem.move(at, self._path(path))
            self._sync(self._path(path).rpartition("/")[0])
        return digest.hexdigest()

    def digest(self, path: str) -> tuple[int, str] | None:
        """Size and SHA-256 of a file as it is read; None if there is none."""
        digest, size = hashlib.sha256(), 0
        piece = memoryview(bytearray(PIECE))
        try:
            with self._filesystem.open_input_file(self._path(path)) as file:
                while count := file.readinto(piece):
                    digest.update(piece[:count])
                    size += count
        except FileNotFoundError:
            return None
        return size, digest.hexdigest()

    def read_head(self, path: str, count: int) -> bytes:
        """The first bytes of a file, fewer if it is shorter; none if there is no file."""
        try:
            with self._filesystem.open_input_file(self._path(path)) as file:
                found: bytes = file.read(count)
                return found
        except FileNotFoundError:
            return b""

    def remove(self, path: str) -> None:
        """Take a file away that must not be read."""
        self._filesystem.delete_file(self._path(path))

    def sizes(self) -> dict[str, int]:
        """All files with their sizes."""
        from pyarrow.fs import FileSelector

        wanted = FileSelector(self._root, allow_not_found=True, recursive=True)
        found = self._filesystem.get_file_info(wanted)
        return {each.path[len(self._root) :].lstrip("/"): each.size for each in found if each.is_file}

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _sync(self, path: str) -> None:
        if self._local:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _opened(url: str) -> tuple[FileSystem, str]:
    if is_object(url):
        return open_filesystem(url)
    from pyarrow.fs import LocalFileSystem

    return LocalFileSystem(), str(Path(local_path(url)).absolute())
