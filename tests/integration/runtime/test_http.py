"""The HTTP endpoint of a process."""

from __future__ import annotations

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from brokerset_runtime.http import HttpEndpoint


async def _get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def _serve() -> None:
    registry = CollectorRegistry()
    Counter("rocketmq_messages_in", "Messages taken", registry=registry).inc(3)
    reasons = ["the store is being recovered"]
    endpoint = HttpEndpoint(ready=lambda: reasons, metrics=lambda: registry)
    port = await endpoint.start("127.0.0.1", 0)

    assert await _get(port, "/healthz") == (200, "ok\n")
    assert await _get(port, "/readyz") == (503, "the store is being recovered\n")
    reasons.clear()
    assert await _get(port, "/readyz") == (200, "ok\n")
    status, text = await _get(port, "/metrics")
    assert status == 200
    assert "rocketmq_messages_in_total 3.0" in text
    assert (await _get(port, "/nothing"))[0] == 404

    second = HttpEndpoint()
    with pytest.raises(OSError, match="in use"):
        await second.start("127.0.0.1", port)
    await second.close()
    await endpoint.close()
    await endpoint.close()


def test_health_readiness_and_metrics_are_served_until_closed() -> None:
    import asyncio

    asyncio.run(_serve())
