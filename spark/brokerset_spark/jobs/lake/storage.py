"""Where a lake lies: a path, a bucket or HDFS, as pyarrow, deltalake and obstore take it.

Credentials come from the environment of driver and executors, never from a row, a URL or a command line.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pyarrow import fs

_S3: Final = ("s3", "s3a", "s3n")
_AZURE: Final = ("abfs", "abfss", "az")
_OBJECTS: Final = (*_S3, *_AZURE, "gs")
_SETTINGS: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL",
    "AWS_REGION",
)
_OTHER_SETTINGS: Final = ("AZURE_", "AZURITE_", "GOOGLE_")
"""Beginnings of names of variables that the clients of Azure and Google take as they are."""

_EMULATORS: Final = ("AZURITE_BLOB_STORAGE_URL", "STORAGE_EMULATOR_HOST")
"""Variables that lead clients of Azure and Google to servers for tests."""

_SECRET: Final = re.compile(r"(SECRET|TOKEN|PASSWORD|CREDENTIAL|_KEY|_SAS|CONNECTION_STRING)$")
"""Names of variables whose values are no part of a text that people see."""

_SECRET_LENGTH_MIN: Final = 8
_IN_URLS: Final = re.compile(r"(?i)(\bsig=)[^&\s'\"]+|(://[^/\s:@]*:)[^\s/@]+(?=@)")
"""Signatures and passwords: libraries write other parts of a URL otherwise than they were given."""


_SAFE: Final = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, slots=True)
class Storage:
    """The root of a lake."""

    url: str

    @property
    def is_s3(self) -> bool:
        """Whether it is a bucket that speaks S3."""
        return urlsplit(self.url).scheme in _S3

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        return "://" not in self.url or urlsplit(self.url).scheme == "file"

    def table_url(self, name: str) -> str:
        """A table's URL for deltalake."""
        parts = urlsplit(self.url)
        if parts.scheme in _S3:
            return f"s3://{parts.netloc}{parts.path.rstrip('/')}/{name}"
        return f"{self.url.rstrip('/')}/{name}"

    def options(self, environment: Mapping[str, str] = os.environ) -> dict[str, str] | None:
        """What deltalake needs besides the URL."""
        scheme = urlsplit(self.url).scheme
        if scheme not in _OBJECTS:
            return None
        if scheme not in _S3:
            others = {name: each for name, each in environment.items() if name.startswith(_OTHER_SETTINGS)}
            is_plain = any(environment.get(name, "").startswith("http:") for name in _EMULATORS)
            return others | ({"ALLOW_HTTP": "true"} if is_plain else {})
        found = {name: environment[name] for name in _SETTINGS if environment.get(name)}
        if found.get("AWS_ENDPOINT_URL", "").startswith("http:"):
            found["AWS_ALLOW_HTTP"] = "true"
        # Two writers: S3 itself refuses the second one's commit.
        found["conditional_put"] = "etag"
        return found

    def file_settings(self, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The same for pyiceberg, which writes its metadata through pyarrow."""
        names = {
            "AWS_ACCESS_KEY_ID": "s3.access-key-id",
            "AWS_SECRET_ACCESS_KEY": "s3.secret-access-key",
            "AWS_SESSION_TOKEN": "s3.session-token",
            "AWS_ENDPOINT_URL": "s3.endpoint",
            "AWS_REGION": "s3.region",
            "AZURE_STORAGE_ACCOUNT_NAME": "adls.account-name",
            "AZURE_STORAGE_ACCOUNT_KEY": "adls.account-key",
            "AZURE_STORAGE_SAS_KEY": "adls.sas-token",
        }
        found = {each: environment[name] for name, each in names.items() if environment.get(name)}
        if "adls.sas-token" in found:
            found["adls.sas-token"] = _query(found["adls.sas-token"])
        return {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"} | found

    def files(self, name: str, environment: Mapping[str, str] = os.environ) -> tuple[fs.FileSystem, str]:
        """A file system, and the path of a table's folder in it."""
        if self.is_s3:
            parts = urlsplit(self.url)
            endpoint = urlsplit(environment.get("AWS_ENDPOINT_URL", ""))
            s3 = fs.S3FileSystem(
                access_key=environment.get("AWS_ACCESS_KEY_ID"),
                secret_key=environment.get("AWS_SECRET_ACCESS_KEY"),
                session_token=environment.get("AWS_SESSION_TOKEN"),
                region=environment.get("AWS_REGION"),
                endpoint_override=endpoint.netloc or None,
                scheme=endpoint.scheme or None,
            )
            return s3, f"{parts.netloc}{parts.path.rstrip('/')}/{name}"
        if urlsplit(self.url).scheme in _AZURE:
            return self._azure_files(name, environment)
        found, path = fs.FileSystem.from_uri(self.table_url(name))
        return found, path

    def _azure_files(self, name: str, environment: Mapping[str, str]) -> tuple[fs.FileSystem, str]:
        """`abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/…`; without a key who runs here is asked."""
        parts = urlsplit(self.url)
        container, at, host = parts.netloc.rpartition("@")
        account = host.partition(".")[0] if at else environment.get("AZURE_STORAGE_ACCOUNT_NAME", "")
        given: dict[str, str] = {}
        if environment.get("AZURE_STORAGE_ACCOUNT_KEY"):
            given["account_key"] = environment["AZURE_STORAGE_ACCOUNT_KEY"]
        elif environment.get("AZURE_STORAGE_SAS_KEY"):
            given["sas_token"] = _query(environment["AZURE_STORAGE_SAS_KEY"])
        emulator = urlsplit(environment.get("AZURITE_BLOB_STORAGE_URL", ""))
        if emulator.netloc:
            given |= {f"{kind}_storage_authority": emulator.netloc for kind in ("blob", "dfs")}
            given |= {f"{kind}_storage_scheme": emulator.scheme for kind in ("blob", "dfs")}
        path = f"{container or host}{parts.path.rstrip('/')}/{name}"
        return fs.AzureFileSystem(account, **given), path

    def create(self, folder: str, name: str, data: bytes) -> bool:
        """Make a file, whole or not at all; False if there is one of that name, which stays as it is."""
        if self.is_local:
            _, path = self.files(folder)
            return _create_local(Path(path) / name, data)
        if urlsplit(self.url).scheme in _OBJECTS:
            return self._create_object(folder, name, data)
        files, path = self.files(folder)  # HDFS: to move a file onto another one is refused there
        target, draft = f"{path}/{name}", f"{path}/.{name}.{uuid.uuid4().hex}"
        files.create_dir(path, recursive=True)
        with files.open_output_stream(draft) as stream:
            stream.write(data)
        if files.get_file_info(target).type is not fs.FileType.NotFound:
            files.delete_file(draft)
            return False
        files.move(draft, target)
        return True

    def _create_object(self, folder: str, name: str, data: bytes) -> bool:
        from obstore import put
        from obstore.exceptions import AlreadyExistsError
        from obstore.store import from_url

        # obstore takes what it knows from the environment; no setting that it does not know.
        found = self.options() or {}
        given = {key.lower(): value for key, value in found.items() if key in _SETTINGS}
        http = (
            {"allow_http": True} if "true" in (found.get("AWS_ALLOW_HTTP"), found.get("ALLOW_HTTP")) else {}
        )
        store = from_url(self.table_url(folder), config=given, client_options=http)  # type: ignore[call-overload]
        try:
            put(store, name, data, mode="create")
        except AlreadyExistsError:
            return False
        return True


def _query(token: str) -> str:
    """A shared access signature as pyarrow wants it, which puts it behind URLs as it is."""
    return token if token.startswith("?") else f"?{token}"


def without_secrets(text: object, environment: Mapping[str, str] = os.environ) -> str:
    """What a library says of an error, without what the environment has of credentials: it goes into logs,
    reports and the status of a StoreExport."""
    said = str(text)
    for name, value in environment.items():
        if len(value) >= _SECRET_LENGTH_MIN and _SECRET.search(name.upper()):
            said = said.replace(value, "***")
    return _IN_URLS.sub(r"\1\2***", said)


def url_problems(url: str, *, delta: bool) -> list[str]:
    """What is wrong with the place of a lake, of Delta's tables or others. It stands in command lines, logs
    and reports; here it is not repeated."""
    if "://" not in url:
        if delta and any(each in url for each in "%[]^|\\"):
            return [
                "deltalake takes no folders with % [ ] ^ | or \\ in their names: choose others, or parquet"
            ]
        return []
    parts, found = urlsplit(url), []
    if ":" in parts.netloc.rpartition("@")[0]:
        found.append("the target has a password in it: credentials come from the environment")
    if (
        parts.scheme in _OBJECTS and "%" in parts.path
    ):  # some libraries take it for a character, others do not
        found.append("the target has a % in it: write the characters of its folders as they are")
    if parts.query or parts.fragment:
        found.append("the target has a query or a fragment: write scheme, bucket and path alone")
    return found


def _create_local(path: Path, data: bytes) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def sync_folder(path: Path) -> None:
    """Its names are on the disk."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def folder_name(value: str) -> str:
    """A partition's value as Hive writes it into the name of a folder."""
    return _SAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), value)
