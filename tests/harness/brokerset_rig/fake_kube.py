"""A small API server over real HTTP: objects in memory, versions, lists, watches, patches, conflicts, faults.

It knows what the operator and `kubectl brokerset` use, and no schemas. Server-side apply merges maps, replaces lists, and removes what
the same manager applied before and does not any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web

from brokerset_kube.kinds import ALL, Kind

Object = dict[str, Any]
ObjectKey = tuple[str, str, str, str]
"""API group, plural, namespace (empty outside of all), name."""

HISTORY_MAX: Final = 10_000
"""Events that can still be watched from; older ones are answered with 410."""

WITH_STATUS: Final = frozenset(
    {
        "brokersets",
        "topics",
        "users",
        "subjects",
        "storeaudits",
        "storemigrations",
        "storeexports",
        "jobs",
        "statefulsets",
        "pods",
        "persistentvolumeclaims",
        "poddisruptionbudgets",
        "nodes",
    }
)
"""Kinds whose status is written on a path of its own only."""

SERVED: Final = (*ALL, Kind("apps/v1", "Deployment", "deployments"), Kind("v1", "Event", "events"))
"""Kinds whose objects are kept: those of the operator's client, and what else people look at."""

DISCOVERED: Final = (
    Kind("v1", "Namespace", "namespaces", namespaced=False),
    Kind(
        "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
    ),
)
"""Kinds that the server says it knows, and does not serve: kopf looks for them."""


class Refused(Exception):
    """An answer that is an error."""

    def __init__(
        self, code: int, reason: str, message: str, details: Object | None = None, **headers: str
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": code,
            "reason": reason,
            "message": message,
            "details": details or {},
        }
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass(slots=True)
class Fault:
    """What goes wrong with the next `times` requests of this kind."""

    verb: str
    plural: str
    code: int = 500
    """0: the connection is closed without an answer."""

    reason: str = "InternalError"
    message: str = "made to fail"
    times: int = 1
    delay: float = 0.0
    """Seconds until the answer, which is then a good one if `code` is 200."""

    retry_after: str | None = None
    after: bool = False
    """Whether the request is carried out all the same, and only the answer is bad."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request as it came."""

    verb: str
    plural: str
    namespace: str
    name: str
    subresource: str = ""
    query: Mapping[str, str] = field(default_factory=dict, compare=False)
    user: str = field(default="", compare=False)
    """As whom somebody acts; empty for themselves."""


@dataclass(frozen=True, slots=True)
class _Event:
    version: int
    kind: str
    group: str
    plural: str
    live: Object


@dataclass(slots=True)
class _Watcher:
    resource: tuple[str, str]
    namespace: str
    selector: str
    queue: asyncio.Queue[Object | None] = field(default_factory=asyncio.Queue)


class FakeKube:
    """One server; use it with `async with`, then ask at `url`."""

    def __init__(self, *, absent: frozenset[str] = frozenset(), page_size_max: int = 1000) -> None:
        """`absent` has kinds (`PodMonitor`) that this cluster does not know."""
        self.objects: dict[ObjectKey, Object] = {}
        self.calls: list[Call] = []
        self.faults: list[Fault] = []
        self.forbidden: set[tuple[str, str]] = set()
        """Pairs of verb and plural, or plural/subresource, that authorization refuses."""

        self.tokens: set[str] | None = None
        """Whom authentication knows; None: everybody."""

        self.logs: dict[str, str] = {}
        """What pods have written, by name; `<name>.previous` for their containers before the last restart."""

        self.ports: dict[tuple[str, int], int] = {}
        """Where ports of pods are on this machine; a pod that has none does not run."""

        self._forwards: set[web.WebSocketResponse] = set()

        self.deny_evictions = False
        self.version = 1000
        self.on_change: Callable[[str, Object], None] | None = None
        """Called with ADDED, MODIFIED or DELETED after each change, for tests that play a controller."""

        self.on_call: Callable[[Call], None] | None = None
        """Called with each request before it is carried out."""

        self._gone: set[str] = set()
        """UIDs of deleted objects: what they own is collected also when it is made afterwards."""

        self._by_place: dict[tuple[str, str, str], set[ObjectKey]] = {}
        self.absent = absent
        self._page_size_max = page_size_max
        self._history: deque[_Event] = deque(maxlen=HISTORY_MAX)
        self._forgotten = 0
        self._applied: dict[tuple[ObjectKey, str], Object] = {}
        self._watchers: list[_Watcher] = []
        self._pages: dict[str, list[Object]] = {}
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> FakeKube:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._runner = runner
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.drop_watches()
        await self.drop_forwards()
        assert self._runner is not None
        await self._runner.cleanup()

    # -- for tests ----------------------------------------------------------------------------------------

    def put(self, manifest: Mapping[str, Any]) -> Object:
        """Make or replace an object as if somebody else had."""
        kind = self._kind(manifest)
        metadata = manifest["metadata"]
        key = (kind.group, kind.plural, metadata.get("namespace") or "", metadata["name"])
        before = self.objects.get(key)
        fresh: Object = copy.deepcopy(dict(manifest))
        return self._store(key, fresh, before)

    def change(self, plural: str, name: str, namespace: str, edit: Callable[[Object], None]) -> Object:
        """Edit an object in place as if somebody else had."""
        key = next(key for key in self.objects if key[1:] == (plural, namespace, name))
        fresh = copy.deepcopy(self.objects[key])
        edit(fresh)
        return self._store(key, fresh, self.objects[key])

    def remove(self, plural: str, name: str, namespace: str = "") -> None:
        """Delete an object as if somebody else had."""
        key = next(key for key in self.objects if key[1:] == (plural, namespace, name))
        self._drop(key)

    def get(self, plural: str, name: str, namespace: str = "") -> Object | None:
        """An object as it is; None if there is none."""
        return next(
            (live for key, live in self.objects.items() if key[1:] == (plural, namespace, name)), None
        )

    def compact(self) -> None:
        """Forget all history: who is not up to date is told so with 410."""
        self._history.clear()
        self._forgotten = self.version

    def drop_watches(self) -> None:
        """End every watch as a server that restarts does."""
        for watcher in self._watchers:
            watcher.queue.put_nowait(None)

    async def drop_forwards(self) -> None:
        """End every connection to a port of a pod."""
        for each in list(self._forwards):
            await each.close()

    @property
    def forwards(self) -> int:
        """How many connections to ports of pods are open."""
        return len(self._forwards)

    def bookmark(self) -> None:
        """Send a bookmark on every watch."""
        mark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self.version)}}}
        for watcher in self._watchers:
            watcher.queue.put_nowait(mark)

    def say_error(self, code: int) -> None:
        """Send an error on every watch."""
        status = Refused(code, "Expired" if code == 410 else "InternalError", "made to fail").status
        for watcher in self._watchers:
            watcher.queue.put_nowait({"type": "ERROR", "object": status})

    @property
    def watches(self) -> int:
        """How many watches are open."""
        return len(self._watchers)

    def count(self, verb: str, plural: str | None = None) -> int:
        """How often something was asked."""
        return sum(1 for call in self.calls if call.verb == verb and plural in (None, call.plural))

    # -- HTTP ---------------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except Refused as refused:
            return web.json_response(refused.status, status=refused.code, headers=refused.headers)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens is not None and token not in self.tokens:
            raise Refused(401, "Unauthorized", "Unauthorized")
        group, plural, namespace, name, subresource = _split(request.path)
        if request.path == "/version":
            return web.json_response({"gitVersion": "v1.35.0"})
        if not plural:
            return web.json_response(self._resources(request.path))
        kind = next(
            (
                one
                for one in SERVED
                if (one.group, one.plural) == (group, plural) and one.kind not in self.absent
            ),
            None,
        )
        if kind is None:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        verb = _verb(request, name)
        user = request.headers.get("Impersonate-User", "")
        call = Call(verb, plural, namespace, name, subresource, dict(request.query), user)
        self.calls.append(call)
        if self.on_call is not None:
            self.on_call(call)
        asked = "patch" if verb == "apply" else verb
        if not self.forbidden.isdisjoint({(asked, plural), (asked, f"{plural}/{subresource}")}):
            message = f'{plural} is forbidden: User "test" cannot {asked} resource "{plural}"'
            raise Refused(403, "Forbidden", message)
        fault = await self._fault(verb, plural)
        if fault is not None and not fault.after:
            return self._fail(request, fault)
        if verb == "watch":
            return await self._watch(request, kind, namespace)
        if (verb, plural, subresource) == ("get", "pods", "log"):
            self._existing((group, plural, namespace, name))
            return self._log(request, name)
        if (verb, plural, subresource) == ("get", "pods", "portforward"):
            self._existing((group, plural, namespace, name))
            return await self._forward(request, name)
        answer = await self._do(request, verb, kind, (group, plural, namespace, name), subresource)
        if fault is not None:
            return self._fail(request, fault)
        return web.json_response(_shown(request, answer), status=201 if verb == "create" else 200)

    def _log(self, request: web.Request, name: str) -> web.Response:
        if request.query.get("previous") == "true":
            name += ".previous"
            if name not in self.logs:
                raise Refused(400, "BadRequest", f"no terminated container of {name} was found")
        lines = self.logs.get(name, "").splitlines(keepends=True)
        kept = lines[-int(tail) :] if (tail := request.query.get("tailLines")) else lines
        said = "".join(kept).encode()[: int(request.query.get("limitBytes") or 1 << 20)]
        return web.Response(body=said, content_type="text/plain")

    async def _forward(self, request: web.Request, name: str) -> web.StreamResponse:
        """A port of a pod as the kubelet forwards it: its number on both channels, then data or an error."""
        port = int(request.query["ports"])
        if not any(pod == name for pod, _ in self.ports):
            raise Refused(400, "BadRequest", f"pod {name} does not run")
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        if not socket.can_prepare(request):
            raise Refused(400, "BadRequest", "upgrade request required")
        await socket.prepare(request)
        self._forwards.add(socket)
        try:
            for channel in (b"\0", b"\1"):
                await socket.send_bytes(channel + port.to_bytes(2, "little"))
            reader, writer = await asyncio.open_connection("127.0.0.1", self.ports.get((name, port), 1))
            try:
                await _relay(socket, reader, writer)
            finally:
                writer.close()
        except ConnectionRefusedError:
            with contextlib.suppress(ConnectionError):
                await socket.send_bytes(b"\1" + f"port {port} of pod {name} is not served".encode())
        finally:
            self._forwards.discard(socket)
            await socket.close()
        return socket

    async def _fault(self, verb: str, plural: str) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and fault.verb in (verb, "*") and fault.plural in (plural, "*"):
                fault.times -= 1
                if fault.delay:
                    await asyncio.sleep(fault.delay)
                return None if fault.code == 200 else fault
        return None

    @staticmethod
    def _fail(request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.code == 0:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        headers = {"Retry_After": fault.retry_after} if fault.retry_after is not None else {}
        raise Refused(fault.code, fault.reason, fault.message, None, **headers)

    async def _do(
        self, request: web.Request, verb: str, kind: Kind, key: ObjectKey, subresource: str
    ) -> Object:
        match verb:
            case "list":
                return self._list(request, kind, key[2])
            case "get":
                return self._existing(key)
            case "create" if subresource == "eviction":
                return self._evict(key, await request.json())
            case "create":
                body = await request.json()
                made = (*key[:3], body["metadata"]["name"])
                if made in self.objects:
                    raise Refused(409, "AlreadyExists", f'{key[1]} "{made[3]}" already exists')
                return self._store(made, body, None)
            case "update":
                body = await request.json()
                live = self._existing(key)
                self._guard(live, body)
                return self._store(key, body, live)
            case "delete":
                return self._delete(key, json.loads(await request.read() or b"{}"))
            case "apply":
                return self._apply(key, await request.json(), request.query["fieldManager"])
            case _:
                return self._patch(request.content_type, key, await request.json(), subresource)

    def _list(self, request: web.Request, kind: Kind, namespace: str) -> Object:
        token = request.query.get("continue")
        limit = min(int(request.query.get("limit") or self._page_size_max), self._page_size_max)
        if token is None:
            selector = request.query.get("labelSelector", "")
            field_selector = request.query.get("fieldSelector", "")
            items = [
                live
                for key, live in self._places(kind, namespace)
                if matches(live, selector)
                and (not field_selector or field_selector == f"metadata.name={key[3]}")
            ]
        elif token not in self._pages:
            raise Refused(410, "Expired", "the continue token is too old")
        else:
            items = self._pages.pop(token)
        metadata: Object = {"resourceVersion": str(self.version)}
        if len(items) > limit:
            metadata["continue"] = uuid.uuid4().hex
            self._pages[metadata["continue"]] = items[limit:]
        shown = [
            {name: part for name, part in live.items() if name not in ("apiVersion", "kind")}
            for live in items
        ]
        return {
            "apiVersion": kind.api_version,
            "kind": f"{kind.kind}List",
            "metadata": metadata,
            "items": shown[:limit],
        }

    def _places(self, kind: Kind, namespace: str) -> list[tuple[ObjectKey, Object]]:
        """The objects of a kind, of a namespace or of all, by name."""
        wanted = [
            place
            for place in self._by_place
            if place[:2] == (kind.group, kind.plural) and namespace in ("", place[2])
        ]
        return [(key, self.objects[key]) for place in sorted(wanted) for key in sorted(self._by_place[place])]

    def forget_pages(self) -> None:
        """Make every list that is under way start again."""
        self._pages.clear()

    async def _watch(self, request: web.Request, kind: Kind, namespace: str) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion") or 0)
        selector = request.query.get("labelSelector", "")
        watcher = _Watcher((kind.group, kind.plural), namespace, selector)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if since < self._forgotten:
            error = {"type": "ERROR", "object": Refused(410, "Expired", "too old resource version").status}
            await response.write(json.dumps(error).encode() + b"\n")
            return response
        for event in self._history:
            if event.version > since and (event.group, event.plural) == watcher.resource:
                self._tell(watcher, event)
        self._watchers.append(watcher)
        try:
            async with asyncio.timeout(float(request.query.get("timeoutSeconds") or 3600)):
                while (told := await watcher.queue.get()) is not None:
                    shown = (
                        told
                        if told["type"] == "ERROR"
                        else {**told, "object": _shown(request, told["object"])}
                    )
                    await response.write(json.dumps(shown).encode() + b"\n")
        except (TimeoutError, ConnectionError):
            pass
        finally:
            self._watchers.remove(watcher)
        return response

    def _resources(self, path: str) -> Object:
        present = [kind for kind in (*SERVED, *DISCOVERED) if kind.kind not in self.absent]
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            return {"kind": "APIGroupList", "groups": _groups(present)}
        known = [kind for kind in present if kind.root == path.rstrip("/")]
        if not known:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        resources = [
            {
                "name": kind.plural,
                "singularName": kind.kind.lower(),
                "kind": kind.kind,
                "namespaced": kind.namespaced,
                "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
            }
            for kind in known
        ]
        return {"kind": "APIResourceList", "groupVersion": path, "resources": resources}

    # -- objects ------------------------------------------------------------------------------------------

    def _existing(self, key: ObjectKey) -> Object:
        live = self.objects.get(key)
        if live is None:
            raise Refused(404, "NotFound", f'{key[1]} "{key[3]}" not found', {"name": key[3]})
        return live

    @staticmethod
    def _guard(live: Object, body: Mapping[str, Any]) -> None:
        metadata = body.get("metadata") or {}
        for name in ("resourceVersion", "uid"):
            wanted = metadata.get(name)
            if wanted is not None and wanted != live["metadata"][name]:
                raise Refused(409, "Conflict", f"the object has been modified: {name} differs")

    def _store(self, key: ObjectKey, fresh: Object, before: Object | None) -> Object:
        metadata = fresh["metadata"]
        if key[2]:
            metadata["namespace"] = key[2]
        old = before["metadata"] if before is not None else {}
        metadata["uid"] = old.get("uid") or metadata.get("uid") or str(uuid.uuid4())
        metadata["creationTimestamp"] = (
            old.get("creationTimestamp") or metadata.get("creationTimestamp") or _now()
        )
        metadata["resourceVersion"] = old.get("resourceVersion")
        metadata["generation"] = old.get("generation", metadata.get("generation", 1) - 1)
        if before == fresh:
            return before
        if before is None or before.get("spec") != fresh.get("spec"):
            metadata["generation"] += 1
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        self._by_place.setdefault(key[:3], set()).add(key)
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            self.objects[key] = fresh
            self._drop(key)
            return fresh
        self.objects[key] = fresh
        self._happened("ADDED" if before is None else "MODIFIED", key, fresh)
        self._gone.discard(metadata["uid"])
        if key in self.objects and not self._gone.isdisjoint(_owners(fresh)):
            self._drop(key)
        return fresh

    def _drop(self, key: ObjectKey, *, orphan: bool = False) -> None:
        live = self.objects.pop(key)
        self._by_place[key[:3]].discard(key)
        self.version += 1
        gone = copy.deepcopy(live)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._happened("DELETED", key, gone)
        if not orphan:
            uid = live["metadata"]["uid"]
            self._gone.add(uid)
            for child in [other for other, item in self.objects.items() if uid in _owners(item)]:
                if child in self.objects:
                    self._drop(child)

    def _delete(self, key: ObjectKey, options: Mapping[str, Any]) -> Object:
        live = self._existing(key)
        self._guard(live, {"metadata": options.get("preconditions") or {}})
        if live["metadata"].get("finalizers"):
            fresh = copy.deepcopy(live)
            fresh["metadata"].setdefault("deletionTimestamp", _now())
            return self._store(key, fresh, live)
        self._drop(key, orphan=options.get("propagationPolicy") == "Orphan")
        return live

    def _evict(self, key: ObjectKey, body: Mapping[str, Any]) -> Object:
        if self.deny_evictions:
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            raise Refused(429, "TooManyRequests", message, {"retryAfterSeconds": 3})
        self._delete(key, body.get("deleteOptions") or {})
        return {"kind": "Status", "status": "Success"}

    def _apply(self, key: ObjectKey, manifest: Object, manager: str) -> Object:
        live = self.objects.get(key)
        if live is not None:
            self._guard(live, manifest)
        fresh = copy.deepcopy(live) if live is not None else {"metadata": {}}
        _prune(fresh, self._applied.get((key, manager), {}), manifest)
        _merge(fresh, manifest)
        self._applied[key, manager] = copy.deepcopy(manifest)
        if live is not None and key[1] in WITH_STATUS and "status" in live:
            fresh["status"] = live["status"]
        return self._store(key, fresh, live)

    def _patch(self, content_type: str, key: ObjectKey, body: Any, subresource: str) -> Object:
        live = self._existing(key)
        fresh = copy.deepcopy(live)
        if content_type == "application/json-patch+json":
            json_patch(fresh, body)
            self._guard(live, fresh)
        else:
            self._guard(live, body)
            merge_patch(fresh, body)
        if subresource == "status":
            fresh = {**copy.deepcopy(live), "status": fresh.get("status")}
        elif key[1] in WITH_STATUS and "status" in live:
            fresh["status"] = live["status"]
        return self._store(key, fresh, live)

    def _happened(self, kind: str, key: ObjectKey, live: Object) -> None:
        event = _Event(self.version, kind, key[0], key[1], copy.deepcopy(live))
        self._history.append(event)
        for watcher in self._watchers:
            if watcher.resource == key[:2]:
                self._tell(watcher, event)
        if self.on_change is not None:
            self.on_change(kind, live)

    @staticmethod
    def _tell(watcher: _Watcher, event: _Event) -> None:
        namespace = event.live["metadata"].get("namespace") or ""
        if watcher.namespace in ("", namespace) and matches(event.live, watcher.selector):
            watcher.queue.put_nowait({"type": event.kind, "object": event.live})

    @staticmethod
    def _kind(manifest: Mapping[str, Any]) -> Kind:
        return next(
            kind
            for kind in SERVED
            if (kind.api_version, kind.kind) == (manifest["apiVersion"], manifest["kind"])
        )


async def _relay(
    socket: web.WebSocketResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Copy both ways until one side ends."""

    async def to_client() -> None:
        while data := await reader.read(65536):
            await socket.send_bytes(b"\0" + data)

    async def to_pod() -> None:
        async for message in socket:
            writer.write(message.data[1:])
            await writer.drain()

    ways = [asyncio.ensure_future(to_client()), asyncio.ensure_future(to_pod())]
    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    for way in ways:
        way.cancel()
    await asyncio.gather(*ways, return_exceptions=True)


def kubeconfig(url: str, namespace: str = "system", token: str = "secret") -> str:
    """A kubeconfig that leads to a server, as JSON, which is YAML too."""
    return json.dumps(
        {
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": token}}],
        }
    )


def matches(live: Mapping[str, Any], selector: str) -> bool:
    """Whether an object's labels fit a selector of `name` and `name=value` parts."""
    labels = live["metadata"].get("labels") or {}
    for part in filter(None, selector.split(",")):
        name, equals, value = part.partition("=")
        if name not in labels or (equals and labels[name] != value):
            return False
    return True


def json_patch(target: Object, operations: list[Mapping[str, Any]]) -> None:
    """Do JSON patch operations; raises `Refused` when a test fails."""
    for operation in operations:
        *path, last = [
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        ]
        parent: Any = target
        for part in path:
            parent = parent[int(part)] if isinstance(parent, list) else parent[part]
        match operation["op"], parent:
            case "test", _:
                found = parent[int(last)] if isinstance(parent, list) else parent.get(last)
                if found != operation["value"]:
                    raise Refused(422, "Invalid", f"testing value {operation['path']} failed")
            case "remove", list():
                del parent[int(last)]
            case "remove", _:
                del parent[last]
            case "add", list():
                parent.insert(len(parent) if last == "-" else int(last), operation["value"])
            case _, list():
                parent[int(last)] = operation["value"]
            case _:
                parent[last] = operation["value"]


def _merge(target: Object, wanted: Mapping[str, Any]) -> None:
    for name, value in wanted.items():
        if isinstance(value, Mapping) and isinstance(target.get(name), dict):
            _merge(target[name], value)
        else:
            target[name] = copy.deepcopy(value)


def _prune(target: Object, before: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Remove what was applied before and is not any more."""
    for name, value in before.items():
        if name not in wanted:
            target.pop(name, None)
        elif (
            isinstance(value, Mapping)
            and isinstance(wanted[name], Mapping)
            and isinstance(target.get(name), dict)
        ):
            _prune(target[name], value, wanted[name])


def merge_patch(target: Object, patch: Mapping[str, Any]) -> None:
    """Merge a patch into an object; None removes what is there."""
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, Mapping):
            inner = target.get(name)
            if not isinstance(inner, dict):
                inner = target[name] = {}
            merge_patch(inner, value)
        else:
            target[name] = copy.deepcopy(value)


def _owners(live: Mapping[str, Any]) -> list[str]:
    return [str(owner.get("uid")) for owner in live["metadata"].get("ownerReferences") or ()]


def _verb(request: web.Request, name: str) -> str:
    match request.method:
        case "GET" if request.query.get("watch") == "true":
            return "watch"
        case "GET":
            return "get" if name else "list"
        case "POST":
            return "create"
        case "PUT":
            return "update"
        case "DELETE":
            return "delete"
        case _:
            return "apply" if request.content_type == "application/apply-patch+yaml" else "patch"


def _split(path: str) -> tuple[str, str, str, str, str]:
    """API group, plural, namespace, name and subresource of a path; no plural for a group's list of resources."""
    parts: Iterator[str] = iter([part for part in path.split("/") if part])
    group = next(parts, "") if next(parts, "") == "apis" else ""
    next(parts, "")  # the version
    first = next(parts, "")
    namespace = ""
    if first == "namespaces":
        namespace, first = next(parts, ""), next(parts, "")
    return group, first, namespace, next(parts, ""), next(parts, "")


def _groups(present: list[Kind]) -> list[Object]:
    """The API groups as discovery lists them."""
    versions = {kind.group: kind.api_version for kind in present if kind.group}
    return [
        {
            "name": group,
            "versions": [{"groupVersion": version, "version": version.partition("/")[2]}],
            "preferredVersion": {"groupVersion": version, "version": version.partition("/")[2]},
        }
        for group, version in sorted(versions.items())
    ]


METADATA: Final = {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata"}
"""What an object says that it is where its metadata alone was asked for."""


def _shown(request: web.Request, answer: Object) -> Object:
    """The answer, cut down to metadata if that was asked for."""
    accept = request.headers.get("Accept", "")
    if "as=PartialObjectMetadata;" in accept or accept.endswith("as=PartialObjectMetadata"):
        return {**METADATA, "metadata": answer.get("metadata") or {}}
    if "as=PartialObjectMetadataList" in accept:
        return {**answer, "items": [{**METADATA, "metadata": item["metadata"]} for item in answer["items"]]}
    return answer


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
