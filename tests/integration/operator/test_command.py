from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import aiohttp

from brokerset_rig import fake_kube
from brokerset_rig.fake_kube import FakeKube
from brokerset_rig.operator_parts import NAMESPACE, broker_set, condition, until
from brokerset_rig.stack import free_port

SECONDS_MAX: Final = 45.0
"""Longest wait for something that a process does: it starts in a second, and in many on a busy machine."""

LEASE_SECONDS: Final = 30
"""Nobody loses a Lease in a test because the machine is busy."""


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(110):
            await work

    asyncio.run(bounded())


async def done(condition: Callable[[], object]) -> None:
    await until(condition, SECONDS_MAX)


def lease(kube: FakeKube) -> dict[str, Any]:
    found = kube.get("leases", "brokerset-operator", "system")
    assert found is not None
    return found


def held(kube: FakeKube) -> dict[str, Any]:
    """Who has the Lease, since when, and for how long."""
    return dict(lease(kube)["spec"])


async def started(*arguments: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "brokerset_operator",
        "--logFormat",
        "json",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )


def kubeconfig(folder: Path, url: str) -> str:
    path = folder / "kubeconfig"
    path.write_text(fake_kube.kubeconfig(url))
    return str(path)


@asynccontextmanager
async def process(folder: Path, kube: FakeKube, *more: str) -> AsyncIterator[asyncio.subprocess.Process]:
    arguments = [
        "--image",
        "brokerset:1",
        "--kubeconfig",
        kubeconfig(folder, kube.url),
        "--leaseSeconds",
        str(LEASE_SECONDS),
    ]
    found = await started(*arguments, *more)
    try:
        yield found
    finally:
        if found.returncode is None:
            found.kill()
        await found.communicate()


def test_wrong_settings_end_with_code_2() -> None:
    """All problems are in the log, and nothing is started."""

    async def work() -> None:
        found = await started("--workers", "0")
        _, err = await found.communicate()

        assert found.returncode == 2
        assert b"workers=0: must be from 1 to 64" in err
        assert b"image: is empty" in err

    run(work())


def test_without_a_cluster_the_process_says_where_it_looked() -> None:
    """A kubeconfig that is not there ends the process with code 1 and one line."""

    async def work() -> None:
        found = await started("--image", "x", "--kubeconfig", "/nowhere/config")
        _, err = await found.communicate()

        assert found.returncode == 1
        assert b"/nowhere/config cannot be read" in err
        assert b"Traceback" not in err

    run(work())


def test_the_whole_process_leads_works_and_ends_in_order(tmp_path: Path) -> None:
    """With kopf and the real plan a set gets its objects; SIGTERM ends it and gives the Lease back."""

    async def work() -> None:
        port = free_port()
        async with (
            FakeKube(absent=frozenset({"PodMonitor", "PrometheusRule"})) as kube,
            process(tmp_path, kube, "--httpPort", str(port), "--bindAddress", "127.0.0.1") as found,
        ):
            kube.put(broker_set())
            await done(lambda: kube.get("statefulsets", "orders-controller", NAMESPACE))
            await done(lambda: kube.get("statefulsets", "orders-0", NAMESPACE))
            await done(lambda: condition(kube.get("brokersets", "orders", NAMESPACE), "Ready"))
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{port}/readyz") as answer,
            ):
                assert answer.status == 200, await answer.text()

            found.send_signal(signal.SIGTERM)
            _, err = await found.communicate()

            assert found.returncode == 0, err
            assert held(kube)["holderIdentity"] == ""

    run(work())


def test_a_killed_process_is_followed_by_another(tmp_path: Path) -> None:
    """SIGKILL gives nothing back; who comes next waits for the Lease, and goes on."""

    async def work() -> None:
        async with FakeKube() as kube:
            async with process(tmp_path, kube, "--httpPort", "0") as first:
                kube.put(broker_set())
                await done(lambda: kube.get("statefulsets", "orders-0", NAMESPACE))
                first.kill()
                await first.wait()
            left = held(kube)
            # It ends soon, lest the test wait for as long as a busy machine may need to renew it.
            kube.put({**lease(kube), "spec": {**left, "leaseDurationSeconds": 3}})
            async with process(tmp_path, kube, "--httpPort", "0"):
                kube.put(broker_set("bills"))
                await done(lambda: kube.get("statefulsets", "bills-0", NAMESPACE))

            assert kube.count("create", "leases") == 1
            assert left["holderIdentity"]
            assert held(kube)["holderIdentity"] not in ("", left["holderIdentity"])
            assert held(kube)["leaseTransitions"] == left["leaseTransitions"] + 1
            waited = datetime.fromisoformat(held(kube)["acquireTime"]) - datetime.fromisoformat(
                left["renewTime"]
            )
            assert waited.total_seconds() >= 3

    run(work())
