"""The two requests that a broker makes of the Kubernetes API: read one EndpointSlice, and patch it."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson

ACCOUNT_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet keeps the token and the authority of a pod's service account."""

REQUEST_SECONDS: Final = 2.0
"""Longest time that one request may take, connecting included."""

ANSWER_BYTES_MAX: Final = 1024 * 1024
"""An EndpointSlice is far smaller."""


class ApiFailed(Exception):
    """The API server cannot be asked, or refused."""


class SliceConflict(ApiFailed):
    """Somebody else has changed the slice since it was read."""


class SliceApi:
    """Reads and patches one EndpointSlice, as this pod's service account."""

    def __init__(
        self, namespace: str, name: str, *, server: str = "", account: Path = ACCOUNT_FOLDER
    ) -> None:
        """`server` is the URL of the API; empty takes the one that Kubernetes tells every pod."""
        self._account = account
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{name}"
        self._server = server or _server_of_pod()
        self._session: aiohttp.ClientSession | None = None

    async def read(self) -> Mapping[str, Any]:
        """The slice. Raises `ApiFailed`."""
        return await self._request("GET")

    async def patch(self, change: Mapping[str, Any]) -> None:
        """Merge `change` into the slice. Raises `SliceConflict`, `ApiFailed`."""
        await self._request("PATCH", orjson.dumps(change))

    async def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _request(self, verb: str, body: bytes | None = None) -> Mapping[str, Any]:
        if not self._server:
            raise ApiFailed(
                "this is no pod: KUBERNETES_SERVICE_HOST is not set; leave masterEndpointSlice out, or set it"
            )
        try:
            token = (self._account / "token").read_text(encoding="ascii").strip()  # the kubelet renews it
            session = self._session or self._open()
            headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
            if body is not None:
                headers["Content-Type"] = "application/merge-patch+json"
            async with session.request(verb, self._server + self._path, data=body, headers=headers) as answer:
                content = await answer.content.read(ANSWER_BYTES_MAX)
                if answer.status == 409:
                    raise SliceConflict(f"{self._path} was changed by somebody else")
                if answer.status >= 300:
                    raise ApiFailed(f"{verb} {self._path}: {answer.status} {_reason(content)}")
            found = orjson.loads(content)
        except (OSError, TimeoutError, aiohttp.ClientError, ValueError) as error:
            raise ApiFailed(f"{verb} {self._path}: {error or type(error).__name__}") from error
        if not isinstance(found, dict):
            raise ApiFailed(f"{verb} {self._path}: the answer is no object")
        return found

    def _open(self) -> aiohttp.ClientSession:
        authority = self._account / "ca.crt"
        context = ssl.create_default_context(cafile=authority) if self._server.startswith("https:") else False
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=1),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
        )
        return self._session


def _server_of_pod() -> str:
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return ""
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _reason(content: bytes) -> str:
    """What the API server says of a refusal."""
    try:
        return str(orjson.loads(content).get("message", ""))[:300]
    except (ValueError, AttributeError):
        return ""
