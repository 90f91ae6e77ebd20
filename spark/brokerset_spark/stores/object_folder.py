"""A store in object storage or HDFS, through pyarrow's file systems (docs/decisions/0031).

Credentials come from where the file system's own client takes them: the environment, a profile, the machine's
role. A URL with a user in it is refused, because URLs stand in reports and logs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from brokerset_spark.stores.folder import FileFacts, StoreFolder
from brokerset_spark.stores.names import NameTree
from brokerset_spark.stores.places import NotServed, is_object

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileInfo, FileSystem

_SCHEMES: Final = {"s3a": "s3", "gcs": "gs"}
"""What Spark's users write, and what pyarrow calls it."""

_SECRETS: Final = ("secret", "token", "key", "password", "sig", "credential")
"""Words in names of URL parameters that hold secrets."""


def open_filesystem(url: str) -> tuple[FileSystem, str]:
    """The file system of a URL and the path in it; NotServed for a URL that it does not take.

    Nothing is written or read, but where an S3 bucket has no region in URL or environment, its region is
    asked for.
    """
    from pyarrow import ArrowInvalid
    from pyarrow.fs import FileSystem

    parts = urlsplit(url)
    if not is_object(url):
        raise NotServed(f"{url}: is no URL of object storage")
    is_hdfs = parts.scheme in ("hdfs", "viewfs")  # there a user is a name, and no secret
    query = dict(parse_qsl(parts.query))
    secret = parts.password is not None or any(word in name.lower() for name in query for word in _SECRETS)
    named = parts.username is not None and not is_hdfs and not parts.scheme.startswith("abfs")
    if secret or (named and parts.username != "anonymous"):
        raise NotServed(
            f"{parts.scheme}://{parts.hostname}: secrets do not belong into a URL, which stands in reports "
            "and logs. Give them as the client of the storage takes them (AWS_ACCESS_KEY_ID, profiles, roles)"
        )
    scheme = _SCHEMES.get(parts.scheme, parts.scheme)
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if scheme == "s3" and "region" not in query and region:
        query["region"] = region
    known = parts._replace(scheme=scheme, query=urlencode(query)).geturl()
    try:
        found, path = FileSystem.from_uri(known)
    except (ArrowInvalid, ValueError) as error:
        raise NotServed(f"{url}: {error}") from error
    except OSError as error:
        if not is_hdfs or error.errno is not None:
            raise
        reason = str(error).splitlines()[0]
        raise NotServed(
            f"{url}: {reason}. HDFS needs Hadoop's native client here: set HADOOP_HOME, JAVA_HOME, and "
            "CLASSPATH to what `hadoop classpath --glob` says"
        ) from error
    return found, path.rstrip("/")


class ObjectFolder(StoreFolder):
    """A store below a URL. The newest file of a log that was read stays open, as in a local folder."""

    def __init__(self, url: str) -> None:
        """NotServed as `open_filesystem`. Whether there is a store is seen when it is listed."""
        self.url = url.rstrip("/")
        self._filesystem, self._root = open_filesystem(url)
        self._open: tuple[str, NativeFile] | None = None
        self._names: NameTree | None = None

    def __reduce__(self) -> tuple[type[ObjectFolder], tuple[str]]:
        return ObjectFolder, (self.url,)

    def files(self, folder: str) -> list[FileFacts]:
        if self._names is not None:
            return self._names.files(folder)
        return sorted(self._facts(each) for each in self._list(folder) if each.is_file)

    def folders(self, folder: str) -> list[str]:
        if self._names is not None:
            return self._names.folders(folder)
        from pyarrow.fs import FileType

        return sorted(each.base_name for each in self._list(folder) if each.type == FileType.Directory)

    def listed(self) -> ObjectFolder:
        found = ObjectFolder(self.url)
        found._names = NameTree(self._facts(each) for each in self._list("", recursive=True) if each.is_file)
        return found

    def read_into(self, path: str, position: int, target: memoryview) -> int:
        if not path[-20:].isdigit():  # small, and replaced by brokers: never kept open
            with self._filesystem.open_input_file(self._path(path)) as file:
                return _read_fully(file, position, target)
        if self._open is None or self._open[0] != path:
            opened = self._filesystem.open_input_file(self._path(path))
            self.close()
            self._open = (path, opened)
        return _read_fully(self._open[1], position, target)

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _list(self, folder: str, *, recursive: bool = False) -> list[FileInfo]:
        from pyarrow.fs import FileSelector

        wanted = FileSelector(self._path(folder), allow_not_found=True, recursive=recursive)
        found: list[FileInfo] = self._filesystem.get_file_info(wanted)
        return found

    def _facts(self, each: FileInfo) -> FileFacts:
        path = each.path[len(self._root) :].lstrip("/")
        return FileFacts(path, each.size, (each.mtime_ns or 0) // 1_000_000)


def _read_fully(file: NativeFile, position: int, target: memoryview) -> int:
    size = file.size()
    if position >= size:  # object storage refuses a range behind the end
        return 0
    file.seek(position)
    total = 0
    while total < len(target):
        count: int = file.readinto(target[total:])
        if count == 0:
            break
        total += count
    return total
