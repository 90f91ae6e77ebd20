"""A store behind the read-only stream of its broker: `http(s)://HOST:PORT/store`.

The requests are described in `broker/brokerset_broker/outside/store_stream/DESIGN.md`. A broker gives out
nothing that is not confirmed, so a file of the log may end earlier here than its size says, and so do reads
of it.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import orjson

from brokerset_formats.errors import FormatError
from brokerset_runtime.tls import tls_of_environment
from brokerset_spark.json_values import CAMEL, from_value
from brokerset_spark.stores.folder import READ_MAX, FileFacts, StoreFolder
from brokerset_spark.stores.names import NameTree
from brokerset_spark.stores.places import without_secrets

TOKEN_VARIABLE: Final = "BROKERSET_STORE_TOKEN"
TOKEN_FILE_VARIABLE: Final = "BROKERSET_STORE_TOKEN_FILE"
"""Where the token comes from unless it is given: its text, or a file that holds it."""

TIMEOUT_SECONDS: Final = 60.0
"""Of one wait for the broker; longer than anything for which it lets a reader wait."""

ATTEMPTS_MAX: Final = 6
"""How often in a row a request may fail without having brought a byte."""

BUSY_SECONDS_MAX: Final = 600.0
"""How long a broker may say that it has no turn for us."""

RETRY_SECONDS: Final = 0.1
"""Pause after the first failure; it doubles with each further one."""

BUSY_PAUSE_SECONDS: Final = 1.0
"""Pause before a busy broker is asked again, as it wishes (`Retry-After`)."""

LISTINGS_MAX: Final = 10_000
"""Answers that one listing may have."""

ANSWER_MAX: Final = 64 << 20
"""Bytes of an answer that is read as a whole."""

T = TypeVar("T")

_LARGE: Final = ("commitlog/", "consumequeue/", "index/")


class StreamRefused(PermissionError):
    """The broker does not let us read; says what to do."""


class StreamFailed(OSError):
    """The broker does not answer, or not as it should."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """What a broker tells of its store."""

    __pydantic_config__: ClassVar = CAMEL

    cluster_name: str
    broker_name: str
    broker_id: int | None
    role: str
    epoch: int | None
    min_offset: int
    max_offset: int
    confirmed_offset: int
    """How far the log can be read."""

    dispatched_offset: int
    """How far queues and index are."""


def _context() -> ssl.SSLContext:
    """What `BROKERSET_TLS_CONFIG_FILE` says, else the authorities that the system trusts."""
    tls = tls_of_environment()
    found = None if tls is None else tls.client
    return found or ssl.create_default_context()


class HttpFolder(StoreFolder):
    """A broker's stream. Connections stay open from one request to the next; pickled, it is its URL."""

    def __init__(
        self, url: str, *, token: str | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """ValueError if the URL is none of a stream. Nothing is asked before it is needed."""
        parts, shown = urlsplit(url), without_secrets(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise ValueError(f"{shown}: must be http(s)://HOST[:PORT]/store; tokens go into {TOKEN_VARIABLE}")
        if parts.query or parts.fragment or parts.path.rstrip("/") not in ("", "/store"):
            raise ValueError(f"{shown}: a broker's stream is at /store, with nothing behind")
        self.url = f"{parts.scheme}://{parts.netloc}/store"
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._given = token
        self._sleep = sleep
        self._connection: http.client.HTTPConnection | None = None
        self._queues: NameTree | None = None
        self._small: tuple[str, bytes] | None = None

    def __reduce__(self) -> tuple[Callable[..., HttpFolder], tuple[str, str | None]]:
        return _opened, (self.url, self._given)

    # -- what is asked ------------------------------------------------------------------------------------

    def files(self, folder: str) -> list[FileFacts]:
        return self._below(folder).files(folder)

    def folders(self, folder: str) -> list[str]:
        """Folders without files are not told."""
        return self._below(folder).folders(folder)

    def listed(self) -> HttpFolder:
        return _Listed(self, self._below(""))

    def forget_names(self) -> None:
        self._queues = None

    def read_into(self, path: str, position: int, target: memoryview) -> int:
        """The end is what the broker gives out. A small file is read whole, at once."""
        if not path.startswith(_LARGE):
            if position == 0 or self._small is None or self._small[0] != path:
                self._small = path, self._whole(path)
            piece = self._small[1][position : position + len(target)]
            target[: len(piece)] = piece
            return len(piece)
        return self._read(path, position, target)

    def state(self) -> StreamState:
        """Whose store it is, and how far it goes."""
        try:
            return from_value(StreamState, self._json("/state"))
        except FormatError as error:
            raise StreamFailed(f"{self.url}/state: {error}; is it a broker of this version?") from error

    def confirmed_offset(self) -> int:
        """How far the log can be read now; see `tail.bound_of`."""
        return self.state().confirmed_offset

    def max_offset(self) -> int:
        return self.state().max_offset

    def checksum(self, path: str) -> tuple[str, str] | None:
        """Algorithm and digest (hexadecimal) of a file that does not change any more; None while it may.

        Waits until the broker has read the file, at its own pace. FileNotFoundError.
        """
        until = time.monotonic() + BUSY_SECONDS_MAX
        while time.monotonic() < until:
            status, body = self._ask("/checksums?" + urlencode({"path": path}), path, (200, 202, 409))
            if status == 409:
                return None
            if status == 200:
                received = orjson.loads(body)
                return str(received["algorithm"]), str(received["digest"])
            self._sleep(RETRY_SECONDS)
        raise StreamFailed(
            f"{self.url}: no digest of {path} within {BUSY_SECONDS_MAX:.0f} s; ask again later"
        )

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- requests -------------------------------------------------------------------------------------------

    def _below(self, folder: str) -> NameTree:
        """All files below a folder. Those of queues are many, and kept from the last listing of the root."""
        if self._queues is not None and (folder == "consumequeue" or folder.startswith("consumequeue/")):
            return self._queues
        found: list[FileFacts] = []
        after: str | None = ""
        for _ in range(LISTINGS_MAX):
            received = self._json("/files?" + urlencode({"under": folder, "after": after or ""}))
            try:
                found += [FileFacts(each["path"], each["size"], each["mtime"]) for each in received["files"]]
                after = received["next"]
            except (KeyError, TypeError) as error:
                raise StreamFailed(
                    f"{self.url}/files tells no {error}; is it a broker of this version?"
                ) from error
            if after is None:
                break
        else:
            raise StreamFailed(f"{self.url}/files does not come to an end")
        names = NameTree(found)
        if not folder:
            self._queues = names
        return names

    def _json(self, request: str) -> dict[str, Any]:
        _, body = self._ask(request, "", (200,))
        try:
            received = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise StreamFailed(f"{self.url}{request} answers no JSON; is it a broker's stream?") from error
        if not isinstance(received, dict):
            raise StreamFailed(f"{self.url}{request} answers no JSON object; is it a broker's stream?")
        return received

    def _whole(self, path: str) -> bytes:
        """A small file, as it was at one moment: its bytes have the digest that the broker tells."""
        return self._ask("/files/" + quote(path), path, (200,))[1]

    def _ask(self, request: str, path: str, expected: tuple[int, ...]) -> tuple[int, bytes]:
        """Send a request until there is an answer, with the digest that it tells; its status and body."""

        def take(response: http.client.HTTPResponse) -> tuple[int, bytes]:
            body = response.read(ANSWER_MAX + 1)
            if len(body) > min(ANSWER_MAX, READ_MAX):
                raise ValueError(f"{self.url}{request} answers more than {ANSWER_MAX} bytes")
            if response.length:
                raise http.client.IncompleteRead(body, response.length)
            digest = _digest(response.headers.get("Repr-Digest"))
            if digest is not None and response.status == 200 and hashlib.sha256(body).digest() != digest:
                raise http.client.HTTPException(f"{path} has not the digest that the broker tells")
            return response.status, body

        return self._repeat(request, path, expected, take)

    def _read(self, path: str, position: int, target: memoryview) -> int:
        done, restarts, at_end = 0, 0, False
        tag: str | None = None

        def take(response: http.client.HTTPResponse) -> None:
            nonlocal done, restarts, at_end, tag
            if response.status == 416:
                response.read(ANSWER_MAX)
                at_end = True
                return
            start, total = _content_range(response.headers.get("Content-Range"))
            if start != position + done or not 0 < (response.length or 0) <= len(target) - done:
                raise StreamFailed(f"{self.url}/files/{path} answers with other bytes than asked for")
            new_tag = response.headers.get("ETag")
            if done and new_tag != tag:  # it may have been truncated: what came before does not count
                done, restarts = 0, restarts + 1
                if restarts >= ATTEMPTS_MAX:
                    raise StreamFailed(f"{self.url}/files/{path} changes whenever reading it breaks off")
                raise http.client.HTTPException(f"{path} has changed")
            tag = new_tag
            while response.length:
                count = response.readinto(target[done : done + response.length])
                if count == 0:
                    raise http.client.IncompleteRead(b"", response.length)
                done += count
            at_end = position + done >= total

        def rest() -> dict[str, str]:
            return {"Range": f"bytes={position + done}-{position + len(target) - 1}"}

        while done < len(target) and not at_end:
            self._repeat("/files/" + quote(path), path, (206, 416), take, headers=rest, progress=lambda: done)
        return done

    def _repeat(
        self,
        request: str,
        path: str,
        expected: tuple[int, ...],
        take: Callable[[http.client.HTTPResponse], T],
        *,
        headers: Callable[[], dict[str, str]] = dict,
        progress: Callable[[], int] = int,
    ) -> T:
        """One request; again after failures of the connection, and while the broker is busy.

        `headers` are made each time, and failures between which there was `progress` do not add up.
        """
        failures, seen, until = 0, progress(), time.monotonic() + BUSY_SECONDS_MAX
        while True:
            token = self._token()
            try:
                response = self._send(request, headers(), token)
                if response.status in expected:
                    return take(response)
                problem = _told(response)
            except (StreamFailed, ValueError):
                self.close()
                raise
            except (OSError, http.client.HTTPException) as error:
                self.close()
                failures = 1 if progress() > seen else failures + 1
                seen = progress()
                if failures >= ATTEMPTS_MAX:
                    reason = f"{self.url} does not answer: {error or type(error).__name__}"
                    raise StreamFailed(f"{reason}; is the broker up, with storeStreamEnable=true?") from error
                self._sleep(RETRY_SECONDS * 2**failures)
                continue
            if response.status != 503 or problem.get("error") != "busy" or time.monotonic() > until:
                raise _error(f"{self.url}{request}", response.status, problem, path)
            self._sleep(BUSY_PAUSE_SECONDS)

    def _send(self, request: str, headers: dict[str, str], token: bytes) -> http.client.HTTPResponse:
        if self._connection is None:
            self._connection = (
                http.client.HTTPSConnection(
                    self._host, self._port, timeout=TIMEOUT_SECONDS, context=_context()
                )
                if self._secure
                else http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
            )
        authorization = {"Authorization": b"Bearer " + token} if token else {}
        self._connection.request("GET", "/store" + request, headers={**headers, **authorization})
        return self._connection.getresponse()

    def _token(self) -> bytes:
        """The token, read each time: secrets are replaced while jobs run. StreamRefused if it is none."""
        token = os.environ.get(TOKEN_VARIABLE, "") if self._given is None else self._given
        file = os.environ.get(TOKEN_FILE_VARIABLE)
        if not token and self._given is None and file:
            try:
                token = Path(file).read_text()
            except (OSError, ValueError) as error:  # not FileNotFoundError: that is a file of the store
                raise StreamRefused(f"{file}, which {TOKEN_FILE_VARIABLE} names: {error}") from error
        token = token.strip()
        if any(letter < " " or letter == "\x7f" for letter in token):
            raise StreamRefused(
                f"the token for {self.url} has a line break or another control character; "
                f"see {TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE}"
            )
        return token.encode()


class _Listed(HttpFolder):
    """The same folder, connection and all, with the names that there were at one moment."""

    __slots__ = ("_names",)

    def __init__(self, folder: HttpFolder, names: NameTree) -> None:
        self.__dict__ = folder.__dict__
        self._names = names

    def _below(self, folder: str) -> NameTree:
        return self._names


def _opened(url: str, token: str | None) -> HttpFolder:
    return HttpFolder(url, token=token)


def _content_range(header: str | None) -> tuple[int, int]:
    """First byte and size of the whole, of `bytes 0-99/1234`; (-1, -1) for anything else."""
    found = re.fullmatch(r"bytes ([0-9]{1,19})-[0-9]{1,19}/([0-9]{1,19})", header or "")
    return (int(found[1]), int(found[2])) if found else (-1, -1)


def _digest(header: str | None) -> bytes | None:
    """The SHA-256 of a `Repr-Digest`; None if there is none."""
    found = re.search(r"sha-256=:([A-Za-z0-9+/=]{1,64}):", header or "")
    try:
        return base64.b64decode(found[1], validate=True) if found else None
    except ValueError:
        return None


def _told(response: http.client.HTTPResponse) -> dict[str, Any]:
    """What a refusal says, for a person; empty if it says nothing that can be read."""
    try:
        received = orjson.loads(response.read(1 << 16))
    except orjson.JSONDecodeError:
        return {}
    return received if isinstance(received, dict) else {}


def _error(request: str, status: int, received: dict[str, Any], path: str) -> OSError:
    text = str(received.get("message") or http.client.responses.get(status, "no reason"))
    if status == 401:
        return StreamRefused(f"{request}: {text}; set {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE}")
    if status == 403:
        return StreamRefused(f"{request}: {text}")
    if status == 404 and path and received:
        return FileNotFoundError(f"{request}: {text}")
    if status == 404:
        return StreamFailed(f"{request}: there is no stream; start the broker with storeStreamEnable=true")
    return StreamFailed(f"{request}: {text} (HTTP {status})")
