"""The requests for one EndpointSlice, against a real HTTP server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from brokerset_broker.outside.kubernetes.api import ApiFailed, SliceApi, SliceConflict

PATH = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/orders-0-master"


def _with_server(
    folder: Path,
    answer: Callable[[web.Request], Awaitable[web.Response]],
    scenario: Callable[[SliceApi], Awaitable[None]],
) -> None:
    (folder / "token").write_text("secret\n")

    async def main() -> None:
        application = web.Application()
        application.router.add_route("*", PATH, answer)
        async with asyncio.timeout(10), TestServer(application) as server:
            api = SliceApi(
                "shop", "orders-0-master", server=str(server.make_url("")).rstrip("/"), account=folder
            )
            try:
                await scenario(api)
            finally:
                await api.close()

    asyncio.run(main())


def test_it_reads_and_patches_as_the_service_account(tmp_path: Path) -> None:
    """The token is read for each request, as the kubelet renews it."""
    seen: list[tuple[str, str, str, object]] = []

    async def answer(request: web.Request) -> web.Response:
        body = await request.read()
        kind = request.headers.get("Content-Type", "")
        seen.append(
            (request.method, request.headers["Authorization"], kind, json.loads(body) if body else None)
        )
        return web.json_response({"metadata": {"name": "orders-0-master"}})

    async def scenario(api: SliceApi) -> None:
        assert (await api.read())["metadata"] == {"name": "orders-0-master"}
        (tmp_path / "token").write_text("newer")
        await api.patch({"endpoints": []})

    _with_server(tmp_path, answer, scenario)

    assert seen[0][:2] == ("GET", "Bearer secret")
    assert seen[1] == ("PATCH", "Bearer newer", "application/merge-patch+json", {"endpoints": []})


@pytest.mark.parametrize(
    ("status", "text", "error", "part"),
    [
        (409, "{}", SliceConflict, "somebody else"),
        (403, '{"message": "endpointslices is forbidden"}', ApiFailed, "403 endpointslices is forbidden"),
        (500, "no json", ApiFailed, "500"),
        (200, "[]", ApiFailed, "no object"),
        (200, "no json", ApiFailed, "endpointslices"),
    ],
)
def test_a_refusal_says_what_the_api_server_says(
    tmp_path: Path, status: int, text: str, error: type[ApiFailed], part: str
) -> None:
    """Nothing else than `ApiFailed` comes out, whatever the answer is."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    async def scenario(api: SliceApi) -> None:
        with pytest.raises(error, match=part):
            await api.patch({})

    _with_server(tmp_path, answer, scenario)


def test_outside_of_a_pod_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting that asks for it is named."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    async def main() -> None:
        with pytest.raises(ApiFailed, match="masterEndpointSlice"):
            await SliceApi("shop", "x", account=tmp_path).read()

    asyncio.run(main())


def test_a_pod_without_a_token_says_so(tmp_path: Path) -> None:
    """A missing token is a failure that is tried again, not a crash."""

    async def main() -> None:
        with pytest.raises(ApiFailed, match="token"):
            await SliceApi("shop", "x", server="http://127.0.0.1:1", account=tmp_path).read()

    asyncio.run(main())
