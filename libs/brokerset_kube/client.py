"""Requests to the Kubernetes API over aiohttp: typed errors, short time-outs, counted by verb.

Why not the official package: `docs/decisions/0010-kubernetes-client.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson

from brokerset_kube.credentials import Access
from brokerset_kube.errors import (
    Gone,
    KubeError,
    NotFound,
    Request,
    Unauthorized,
    Unavailable,
    error_of,
)
from brokerset_kube.kinds import LEASE, POD, Kind, kind_of

Object = dict[str, Any]
"""An object of the API as it came."""

REQUEST_SECONDS: Final = 10.0
"""Time-out of one request."""

CONNECT_SECONDS: Final = 5.0
"""Time-out of connecting, TLS included."""

PAGE_SIZE: Final = 500
"""Objects asked for at once, as kubectl does."""

PAGES_MAX: Final = 1000
"""Pages of one list; more are an error of the server."""

CONNECTIONS_MAX: Final = 32
"""Requests at the same time; further ones wait. Watches have connections of their own, and a Lease never
waits: who leads must not lose it because its own lists are slow."""

RELEASE_SECONDS: Final = 0.25
"""How long closing waits for TLS connections to end."""

APPLY: Final = "application/apply-patch+yaml"
MERGE_PATCH: Final = "application/merge-patch+json"
METADATA_OF_ONE: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_OF_MANY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

OnCall = Callable[[Request, str, float], None]
"""Called after each request with its outcome (`ok` or an error's reason) and its seconds."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The objects of one kind, and from where on a watch goes on."""

    items: tuple[Object, ...]
    resource_version: str


class KubeClient:
    """Requests to one API server; use it with `async with`.

    Every method raises a `KubeError`. What may safely be done twice is repeated once when the connection
    broke, because a kept connection may have been closed by the server just then.
    """

    def __init__(
        self,
        access: Access,
        *,
        manager: str,
        timeout: float = REQUEST_SECONDS,
        on_call: OnCall | None = None,
    ) -> None:
        """`manager` is the field manager of everything that is applied."""
        self.access = access
        self.manager = manager
        self.calls: Counter[str] = Counter()
        """Requests so far, by verb."""
        self._timeout = timeout
        self._on_call = on_call
        self._session: aiohttp.ClientSession | None = None
        self._free = asyncio.Semaphore(CONNECTIONS_MAX)

    async def __aenter__(self) -> KubeClient:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> None:
        """Make connections possible; needs the running loop. Raises `CredentialsProblem`."""
        if self._session is not None:
            return
        tls: ssl.SSLContext | bool = self.access.tls() if self.access.tls is not None else False
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls),
            headers={"Accept": "application/json", "User-Agent": self.manager},
            auto_decompress=True,
            raise_for_status=False,
        )

    async def close(self) -> None:
        """Close all connections; may be called more than once."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            if self.access.tls is not None:
                await asyncio.sleep(RELEASE_SECONDS)  # aiohttp does not wait for TLS to end

    @property
    def session(self) -> aiohttp.ClientSession:
        """All connections, between `start` and `close`."""
        assert self._session is not None, "start comes first"
        return self._session

    # -- reading ------------------------------------------------------------------------------------------

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        """One object. Raises `NotFound`."""
        request = Request("get", kind.plural, kind.group, namespace, name)
        return await self._call(request, "GET", kind.path(namespace, name))

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        metadata_only: bool = False,
    ) -> Listing:
        """All objects of a kind that fit, page by page; of a namespace, or of all that we may see."""
        for attempt in (1, 2):
            try:
                return await self._list(kind, namespace, labels, fields, metadata_only)
            except Gone:  # the first page is too old for the next one: from the beginning
                if attempt == 2:
                    raise
        raise AssertionError("the loop above returns or raises")

    async def _list(
        self, kind: Kind, namespace: str | None, labels: str | None, fields: str | None, metadata_only: bool
    ) -> Listing:
        request = Request("list", kind.plural, kind.group, namespace)
        parameters = _selectors(labels, fields) | {"limit": str(PAGE_SIZE)}
        headers = {"Accept": METADATA_OF_MANY} if metadata_only else {}
        items: list[Object] = []
        for _ in range(PAGES_MAX):
            page = await self._call(
                request, "GET", kind.path(namespace), parameters=parameters, headers=headers
            )
            # Lists do not repeat what their items have in common.
            items += (
                {"apiVersion": kind.api_version, "kind": kind.kind} | item for item in page.get("items") or ()
            )
            about = page.get("metadata") or {}
            if not about.get("continue"):
                return Listing(tuple(items), str(about.get("resourceVersion") or ""))
            parameters["continue"] = str(about["continue"])
        raise Unavailable(request, f"more than {PAGES_MAX} pages of {PAGE_SIZE} objects")

    async def log(self, pod: str, namespace: str, *, limit_bytes: int) -> str:
        """What a pod with one container has written, from the beginning, at most so many bytes."""
        request = Request("get", f"{POD.plural}/log", POD.group, namespace, pod)
        parameters = {"limitBytes": str(limit_bytes)}
        async with self._free:
            content = await self._read(
                request, "GET", POD.path(namespace, pod, "log"), None, {"Accept": "*/*"}, parameters
            )
        return content.decode("utf-8", "replace")

    @contextlib.asynccontextmanager
    async def stream(
        self,
        kind: Kind,
        namespace: str | None,
        *,
        resource_version: str,
        seconds: int,
        silence: float,
        labels: str | None = None,
        metadata_only: bool = False,
    ) -> AsyncIterator[AsyncIterator[Mapping[str, Any]]]:
        """One watch request: its events, as they come, for at most so many `seconds`.

        Ends with `Unavailable` when nothing at all has come for `silence` seconds. `watching.Watch` is what
        keeps a watch going.
        """
        request = Request("watch", kind.plural, kind.group, namespace)
        parameters = _selectors(labels, None) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
        }
        headers = {"Accept": METADATA_OF_ONE} if metadata_only else {}
        headers |= self.access.authorization(asyncio.get_running_loop().time())
        started = asyncio.get_running_loop().time()
        outcome = "ok"
        try:
            async with self.session.get(
                self.access.server + kind.path(namespace),
                params=parameters,
                headers=headers,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=CONNECT_SECONDS, connect=CONNECT_SECONDS, sock_read=silence
                ),
            ) as answer:
                if answer.status >= 400:
                    raise error_of(
                        request, answer.status, await answer.read(), answer.headers.get("Retry-After")
                    )
                self._count(request, "ok", started)
                outcome = ""
                yield _events(answer, request)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            problem = Unavailable(request, _reason(error))
            outcome = problem.reason
            raise problem from error
        except KubeError as error:
            outcome = error.reason if outcome else ""
            raise
        finally:
            if outcome:
                self._count(request, outcome, started)

    async def serves(self, kind: Kind) -> bool:
        """Whether the cluster knows a kind."""
        return bool(await self.serves_which((kind,)))

    async def serves_which(self, wanted: Sequence[Kind]) -> tuple[Kind, ...]:
        """Those kinds, all of one group and version, that the cluster knows."""
        first = wanted[0]
        try:
            found = await self._call(Request("get", first.plural, first.group), "GET", first.root)
        except NotFound:
            return ()
        names = {resource.get("name") for resource in found.get("resources") or ()}
        return tuple(kind for kind in wanted if kind.plural in names)

    # -- writing ------------------------------------------------------------------------------------------

    async def apply(self, manifest: Mapping[str, Any], *, force: bool = True) -> Object:
        """Make an object have the fields of `manifest`, by server-side apply; ours win with `force`."""
        how = {"force": str(force).lower()}
        return await self._write("apply", "PATCH", manifest, how, content_type=APPLY, again=True)

    async def create(self, manifest: Mapping[str, Any]) -> Object:
        """Make a new object. Raises `AlreadyExists`."""
        return await self._write("create", "POST", manifest)

    async def replace(self, manifest: Mapping[str, Any]) -> Object:
        """Put an object in the place of the one it was read as. Raises `Conflict` if that has changed."""
        return await self._write("update", "PUT", manifest)

    async def _write(
        self,
        verb: str,
        method: str,
        manifest: Mapping[str, Any],
        parameters: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Object:
        """Send a whole object."""
        kind, metadata = kind_of(manifest), manifest["metadata"]
        namespace, name = metadata.get("namespace"), metadata.get("name")
        return await self._call(
            Request(verb, kind.plural, kind.group, namespace, name),
            method,
            kind.path(namespace, None if method == "POST" else metadata["name"]),
            body=manifest,
            parameters={"fieldManager": self.manager, **(parameters or {})},
            **options,
        )

    async def merge_patch(
        self,
        kind: Kind,
        name: str,
        namespace: str | None,
        patch: Mapping[str, Any],
        *,
        subresource: str = "",
        resource_version: str | None = None,
        uid: str | None = None,
    ) -> Object:
        """Change some fields; null removes one. Raises `Conflict` when the object is another or newer."""
        guard = {"resourceVersion": resource_version, "uid": uid}
        metadata = dict(patch.get("metadata") or {}) | {
            key: value for key, value in guard.items() if value is not None
        }
        body = {**patch, "metadata": metadata} if metadata else dict(patch)
        return await self._call(
            Request("patch", _part(kind, subresource), kind.group, namespace, name),
            "PATCH",
            kind.path(namespace, name, subresource),
            body=body,
            content_type=MERGE_PATCH,
            parameters={"fieldManager": self.manager},
        )

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        orphan: bool = False,
        grace_seconds: int | None = None,
    ) -> bool:
        """Delete an object, and what it owns unless `orphan`; False when it is not there (any more).

        Raises `Conflict` when an object of that name has another `uid` or version by now.
        """
        guard = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {key: value for key, value in guard.items() if value is not None}
        body: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Orphan" if orphan else "Background",
        }
        if preconditions:
            body["preconditions"] = preconditions
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        request = Request("delete", kind.plural, kind.group, namespace, name)
        try:
            await self._call(request, "DELETE", kind.path(namespace, name), body=body, again=uid is not None)
        except NotFound:
            return False
        return True

    # -- inside -------------------------------------------------------------------------------------------

    async def _call(
        self,
        request: Request,
        method: str,
        path: str,
        *,
        body: Any = None,
        content_type: str = "application/json",
        parameters: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        again: bool = False,
    ) -> Object:
        data = None if body is None else orjson.dumps(body)
        sent = dict(headers or {})
        if data is not None:
            sent["Content-Type"] = content_type
        async with contextlib.nullcontext() if request.resource == LEASE.plural else self._free:
            try:
                return await self._send(request, method, path, data, sent, parameters)
            except Unauthorized:
                # A token may have been renewed since it was read.
                return await self._send(request, method, path, data, sent, parameters, fresh=True)
            except Unavailable as error:
                broken = isinstance(error.__cause__, aiohttp.ClientConnectionError)
                if not broken or not (again or method == "GET"):
                    raise
                return await self._send(request, method, path, data, sent, parameters)

    async def _send(
        self,
        request: Request,
        method: str,
        path: str,
        data: bytes | None,
        headers: Mapping[str, str],
        parameters: Mapping[str, str] | None,
        *,
        fresh: bool = False,
    ) -> Object:
        content = await self._read(request, method, path, data, headers, parameters, fresh=fresh)
        try:
            found = orjson.loads(content) if content else {}
        except ValueError as error:
            raise Unavailable(request, _reason(error)) from error
        if not isinstance(found, dict):
            raise Unavailable(request, "the answer is no object")
        return found

    async def _read(
        self,
        request: Request,
        method: str,
        path: str,
        data: bytes | None,
        headers: Mapping[str, str],
        parameters: Mapping[str, str] | None,
        *,
        fresh: bool = False,
    ) -> bytes:
        """The body of a good answer."""
        started = asyncio.get_running_loop().time()
        outcome = "cancelled"
        try:
            async with self.session.request(
                method,
                self.access.server + path,
                params=dict(parameters or {}),
                data=data,
                headers={**headers, **self.access.authorization(started, fresh=fresh)},
                timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=CONNECT_SECONDS),
            ) as answer:
                content = await answer.read()
                if answer.status >= 400:
                    raise error_of(request, answer.status, content, answer.headers.get("Retry-After"))
            outcome = "ok"
            return content
        except KubeError as error:
            outcome = error.reason
            raise
        except TimeoutError as error:
            outcome = Unavailable.reason
            raise Unavailable(request, f"no answer in {self._timeout:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            outcome = Unavailable.reason
            raise Unavailable(request, _reason(error)) from error
        finally:
            self._count(request, outcome, started)

    def _count(self, request: Request, outcome: str, started: float) -> None:
        self.calls[request.verb] += 1
        if self._on_call is not None:
            self._on_call(request, outcome, asyncio.get_running_loop().time() - started)


async def _events(answer: aiohttp.ClientResponse, request: Request) -> AsyncIterator[Mapping[str, Any]]:
    """The lines of a watch; an object may be larger than the reader's buffer."""
    rest = bytearray()
    async for chunk in answer.content.iter_any():
        rest += chunk
        *lines, last = rest.split(b"\n")
        rest = last
        for line in lines:
            if line.strip():
                yield _event(bytes(line), request)
    if rest.strip():
        yield _event(bytes(rest), request)


def _event(line: bytes, request: Request) -> Mapping[str, Any]:
    try:
        value = orjson.loads(line)
    except ValueError:
        raise Unavailable(request, "a line of the watch cannot be read") from None
    if not isinstance(value, dict):
        raise Unavailable(request, "a line of the watch is no object")
    return value


def _selectors(labels: str | None, fields: str | None) -> dict[str, str]:
    found = {"labelSelector": labels, "fieldSelector": fields}
    return {name: value for name, value in found.items() if value}


def _part(kind: Kind, subresource: str) -> str:
    return f"{kind.plural}/{subresource}" if subresource else kind.plural


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "nothing came in time"
    return str(error) or type(error).__name__
