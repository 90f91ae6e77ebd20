"""The requests: which files there are, how far the log is, parts of files, digests."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from email.utils import formatdate
from typing import Any, Final, TypeVar

import orjson
import structlog
from aiohttp import web

from brokerset_broker.outside.store_stream.access import AccessFile
from brokerset_broker.outside.store_stream.digests import ALGORITHM, Digests, TooManyDigests
from brokerset_broker.outside.store_stream.files import Bounds, OpenFile, StoreFiles
from brokerset_broker.outside.store_stream.names import Kind, Wanted, split_path, wanted
from brokerset_broker.outside.store_stream.pace import Pace
from brokerset_broker.outside.store_stream.ranges import Part, wanted_part
from brokerset_broker.outside.store_stream.sending import (
    STALL_SECONDS_MAX,
    STEP_BYTES,
    SendingEnded,
    send_part,
)
from brokerset_broker.outside.store_stream.small_files import WHOLE_MAX, read_at_once
from brokerset_broker.store.message_store import MessageStore
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_runtime.tls.transport import TlsTransport
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)

WAITING_MAX: Final = 32
"""Requests that wait for their turn; more are told to come again."""

WAIT_SECONDS_MAX: Final = 10.0
"""Longest wait for a turn."""

DIGEST_SECONDS_MAX: Final = 20.0
"""Longest wait for a digest; after that the answer is to ask again."""

HEADERS_SECONDS_MAX: Final = 10.0
"""Longest time that a peer may leave the head of an answer unread."""

FILES: Final = "/store/files"

_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Who:
    """Whose store it is."""

    cluster_name: str
    broker_name: str
    broker_id: int | None
    role: str
    epoch: int | None


class _Busy(Exception):
    """There is no turn for a request soon."""


class StoreStream:
    """Serves the store of a broker read-only, at a bounded rate, to a bounded number of readers."""

    def __init__(self, store: MessageStore, settings: BrokerSettings, who: Callable[[], Who]) -> None:
        self._store = store
        self._files = StoreFiles(store, settings)
        self._who = who
        token = settings.store_stream_token_file
        self._access = AccessFile(token) if token is not None else None
        self._streams_max = settings.max_store_streams
        self._pace = Pace(settings.max_store_stream_byte_in_second)
        self._turns = asyncio.Semaphore(self._streams_max)
        self._waiting = 0
        self._stop = threading.Event()

    def add_to(self, application: web.Application) -> None:
        """Register the requests, and have everything end with the application."""
        self._readers = ThreadPoolExecutor(self._streams_max, "store-stream")
        digests = ThreadPoolExecutor(1, "store-digests")
        self._digests = Digests(self._pace, self._stop, digests)
        for path, handler in (
            ("/store/state", self._state),
            (FILES, self._list),
            (FILES + "/{path:.+}", self._file),
            ("/store/checksums", self._checksum),
        ):
            application.router.add_get(path, self._guarded(handler), allow_head=False)

        async def stop(_application: web.Application) -> None:
            self._stop.set()

        async def release(_application: web.Application) -> None:
            self._readers.shutdown(wait=False, cancel_futures=True)
            digests.shutdown(wait=False, cancel_futures=True)

        application.on_shutdown.append(stop)
        application.on_cleanup.append(release)
        if self._access is None:
            log.warning(
                "the store can be read by everybody who reaches the HTTP port",
                advice="set storeStreamTokenFile",
            )

    # -- around every request -------------------------------------------------------------------------------

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            refusal = await self._refusal(request)
            if refusal is not None:
                return refusal
            try:
                return await handler(request)
            except _Busy:
                text = f"{self._streams_max} streams are in use and others wait; come again"
                return _problem(503, "busy", text, headers={"Retry-After": "1"})
            except ConnectionError:
                raise  # the peer is gone: nobody is there to be told
            except OSError as error:
                log.warning("a file of the store cannot be read", path=request.path, reason=str(error))
                return _problem(500, "unreadable", f"{request.path}: {error.strerror or error}")

        return guarded

    async def _refusal(self, request: web.Request) -> web.Response | None:
        if self._access is None:
            return None
        try:
            if await asyncio.to_thread(self._access.allows, request.headers.get("Authorization")):
                return None
        except (OSError, ValueError) as error:
            log.error("nobody may read the store: its token is missing", reason=str(error))
            return _problem(
                503, "no-token", "the broker has no token to compare with: see storeStreamTokenFile"
            )
        text = "give the token of storeStreamTokenFile as `Authorization: Bearer …`"
        return _problem(401, "unauthorized", text, headers={"WWW-Authenticate": 'Bearer realm="store"'})

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """One of the places for those who read at the same time."""
        if self._waiting >= WAITING_MAX:
            raise _Busy
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                await self._turns.acquire()
        except TimeoutError:
            raise _Busy from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turns.release()

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, function, *arguments)

    # -- requests -------------------------------------------------------------------------------------------

    async def _state(self, _request: web.Request) -> web.Response:
        who, store = self._who(), self._store
        return _json(
            {
                "clusterName": who.cluster_name,
                "brokerName": who.broker_name,
                "brokerId": who.broker_id,
                "role": who.role,
                "epoch": who.epoch,
                "minOffset": store.min_offset,
                "maxOffset": store.max_offset,
                "confirmedOffset": self._files.end,
                "dispatchedOffset": store.max_offset,
                "flushedOffset": store.flushed_offset,
                "replicated": store.confirmation.replicated,
                "damage": store.damage,
            }
        )

    async def _list(self, request: web.Request) -> web.Response:
        under = _parts(request.query.get("under", ""))
        after = _parts(request.query.get("after", ""))
        if under is None or after is None:
            return _problem(400, "bad-name", "under and after are paths as they are listed")
        async with self._turn():
            bounds = self._files.bounds()
            found, more = await self._in_thread(self._files.listed, under, after, bounds)
        return _json(
            {
                "minOffset": bounds.first,
                "confirmedOffset": bounds.end,
                "files": [
                    {
                        "path": each.path,
                        "size": each.size,
                        **({"readable": each.readable} if each.readable is not None else {}),
                        "sealed": each.sealed,
                        "mtime": each.mtime_ms,
                    }
                    for each in found
                ],
                "next": found[-1].path if more else None,
            }
        )

    async def _file(self, request: web.Request) -> web.StreamResponse:
        named = _named(request.rel_url.raw_path.removeprefix(FILES + "/"))
        if isinstance(named, web.Response):
            return named
        async with self._turn():
            bounds = self._files.bounds()
            file = await self._open(named, bounds)
            if file is None:
                return _missing(named, bounds)
            try:
                content: bytes | None = None
                if named.kind is Kind.SMALL and file.readable <= WHOLE_MAX:
                    content = await self._in_thread(self._at_once, file)
                part = wanted_part(
                    request.headers.get("Range"), request.headers.get("If-Range"), file.etag, file.readable
                )
                if part is None:
                    text = f"{named.path} can be read up to byte {file.readable}"
                    headers = {"Content-Range": f"bytes */{file.readable}"}
                    return _problem(416, "behind-the-end", text, headers=headers)
                if content is not None:
                    return _whole(file, content, part)
                return await self._send(request, named, file, part)
            finally:
                file.close()

    async def _checksum(self, request: web.Request) -> web.Response:
        parts = _parts(request.query.get("path", ""))
        named = wanted(parts) if parts else None
        if named is None:
            return _problem(400, "bad-name", "path must be the path of a file as it is listed")
        async with self._turn():
            bounds = self._files.bounds()
            file = await self._open(named, bounds)
            if file is None:
                return _missing(named, bounds)
            if not file.sealed:
                file.close()
                return _problem(409, "not-sealed", f"{named.path} may still change; it has no digest yet")
            etag, size = file.etag, file.readable
            digest = self._digests.known(named.path, etag)
            if digest is not None:
                file.close()
                return _digest(named, size, digest)
            end = bounds.end if named.kind is not Kind.LOG else named.start + size
            try:
                making = self._digests.make(named.path, file, lambda: self._files.end >= end)
            except TooManyDigests:
                raise _Busy from None
        try:
            async with asyncio.timeout(DIGEST_SECONDS_MAX):
                return _digest(named, size, await asyncio.shield(making))
        except TimeoutError:
            return _json({"path": named.path, "state": "computing"}, status=202, headers={"Retry-After": "1"})

    def _at_once(self, file: OpenFile) -> bytes:
        """In a thread."""
        content = read_at_once(file)
        if content is None or self._stop.wait(self._pace.take(len(content))):
            raise _Busy
        return content

    # -- answers --------------------------------------------------------------------------------------------

    async def _open(self, named: Wanted, bounds: Bounds) -> OpenFile | None:
        queue_end = self._files.queue_end(named, bounds) if named.kind is Kind.QUEUE else None
        if named.kind is Kind.QUEUE and queue_end is None:
            return None
        return await self._in_thread(self._files.open, named, bounds, queue_end)

    async def _send(
        self, request: web.Request, named: Wanted, file: OpenFile, part: Part
    ) -> web.StreamResponse:
        digest = self._digests.known(named.path, file.etag)
        headers = _described(file, part, digest)
        response = web.StreamResponse(status=200 if part.whole else 206, headers=headers)
        response.content_length = part.end - part.start
        await response.prepare(request)
        if part.start < part.end:
            try:
                await self._send_bytes(request, response, named, file, part)
            except (SendingEnded, OSError) as error:  # after the head, no other answer can be given
                log.info("a reader of the store did not get all", path=named.path, reason=str(error))
                if request.transport is not None:
                    request.transport.abort()
                return response
        await response.write_eof()
        return response

    async def _send_bytes(
        self, request: web.Request, response: web.StreamResponse, named: Wanted, file: OpenFile, part: Part
    ) -> None:
        first = named.start if named.kind is Kind.LOG else None

        def still_there(position: int) -> bool:
            return first is None or self._files.end >= first + position

        if isinstance(request.transport, TlsTransport):
            await self._send_by_tls(response, file, part, still_there)
        else:
            await self._send_plain(request, file, part, still_there)

    async def _send_by_tls(
        self,
        response: web.StreamResponse,
        file: OpenFile,
        part: Part,
        still_there: Callable[[int], bool],
    ) -> None:
        """The body goes through the connection's TLS, a step after the other."""
        position = part.start
        while position < part.end:
            step = min(STEP_BYTES, part.end - position)
            await asyncio.sleep(self._pace.take(step))
            if self._stop.is_set():
                raise SendingEnded("the broker closes")
            data = await self._in_thread(os.pread, file.descriptor, step, position)
            if not data:
                raise SendingEnded("the file has become shorter")
            position += len(data)
            if not still_there(position):
                raise SendingEnded("the log was truncated meanwhile")
            try:
                async with asyncio.timeout(STALL_SECONDS_MAX):
                    await response.write(data)
            except TimeoutError:
                raise SendingEnded("the peer takes nothing") from None
            if file.sealed:
                os.posix_fadvise(file.descriptor, position - len(data), len(data), os.POSIX_FADV_DONTNEED)

    async def _send_plain(
        self, request: web.Request, file: OpenFile, part: Part, still_there: Callable[[int], bool]
    ) -> None:
        """The body goes past the loop's transport, which has nothing to send once the head is away.

        The thread has descriptors of its own, so that neither the end of the request nor that of the
        connection can give their numbers to something else meanwhile.
        """
        transport = request.transport
        if transport is None:
            raise SendingEnded("the peer has closed")
        try:
            async with asyncio.timeout(HEADERS_SECONDS_MAX):
                while transport.get_write_buffer_size():  # noqa: ASYNC110  # it tells only its protocol
                    await asyncio.sleep(0.001)
        except TimeoutError:
            raise SendingEnded("the peer takes nothing") from None
        connection = transport.get_extra_info("socket")
        if transport.is_closing() or connection is None:
            raise SendingEnded("the peer has closed")

        def send(target: int, source: int) -> str | None:
            try:
                send_part(
                    target,
                    source,
                    part.start,
                    part.end,
                    pace=self._pace,
                    stop=self._stop,
                    still_there=still_there,
                    forget=file.sealed,
                )
            except SendingEnded as error:
                return str(error)
            finally:
                os.close(target)
                os.close(source)
            return None

        with socket.socket(fileno=os.dup(connection.fileno())) as ender:
            target, source = _duplicates(ender.fileno(), file.descriptor)
            try:
                problem = await asyncio.shield(self._in_thread(send, target, source))
            except asyncio.CancelledError:
                with suppress(OSError):
                    ender.shutdown(socket.SHUT_RDWR)  # so that the thread ends soon
                raise
        if problem is not None:
            raise SendingEnded(problem)


def _described(file: OpenFile, part: Part, digest: bytes | None) -> dict[str, str]:
    """The head of an answer with a part of a file."""
    headers = _HEADERS | {
        "Content-Type": "application/octet-stream",
        "Accept-Ranges": "bytes",
        "ETag": file.etag,
        "Last-Modified": formatdate(file.status.st_mtime, usegmt=True),
    }
    if digest is not None:
        headers["Repr-Digest"] = f"{ALGORITHM}=:{base64.b64encode(digest).decode()}:"
    if not part.whole:
        headers["Content-Range"] = f"bytes {part.start}-{part.end - 1}/{file.readable}"
    return headers


def _whole(file: OpenFile, content: bytes, part: Part) -> web.Response:
    headers = _described(file, part, hashlib.sha256(content).digest())
    return web.Response(
        body=content[part.start : part.end], status=200 if part.whole else 206, headers=headers
    )


def _duplicates(first: int, second: int) -> tuple[int, int]:
    """Descriptors of one's own; both or none."""
    found = os.dup(first)
    try:
        return found, os.dup(second)
    except OSError:
        os.close(found)
        raise


def _parts(path: str) -> tuple[str, ...] | None:
    """The parts of a path that was decoded already; empty for an empty one, None for what is no path."""
    if not path:
        return ()
    parts = tuple(path.split("/"))
    return None if any(part in ("", ".", "..") or "\0" in part for part in parts) else parts


def _named(escaped: str) -> Wanted | web.Response:
    parts = split_path(escaped)
    named = wanted(parts) if parts is not None else None
    if named is None:
        return _problem(
            404, "no-such-name", "no file of that name is served; /store/files lists what there is"
        )
    return named


def _missing(named: Wanted, bounds: Bounds) -> web.Response:
    if named.kind is Kind.LOG and named.start < bounds.first:
        text = f"{named.path} was deleted: the log begins at {bounds.first} now"
        return _problem(404, "expired", text, minOffset=bounds.first)
    return _problem(
        404, "no-such-file", f"there is no {named.path}, or it may not be read yet", minOffset=bounds.first
    )


def _digest(named: Wanted, size: int, digest: bytes) -> web.Response:
    return _json({"path": named.path, "size": size, "algorithm": ALGORITHM, "digest": digest.hex()})


def _json(value: dict[str, Any], *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    body = orjson.dumps(value)
    return web.Response(
        body=body, status=status, headers={**_HEADERS, **(headers or {})}, content_type="application/json"
    )


def _problem(
    status: int, code: str, text: str, *, headers: dict[str, str] | None = None, **more: Any
) -> web.Response:
    return _json({"error": code, "message": text, **more}, status=status, headers=headers)
