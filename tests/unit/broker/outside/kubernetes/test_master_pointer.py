"""A master leads its group's Service to itself, through conflicts and an API server that is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.outside.kubernetes import master_pointer
from brokerset_broker.outside.kubernetes.master_pointer import MasterPointer, MasterSlice
from brokerset_broker.outside.kubernetes.master_slice import EPOCH_ANNOTATION
from brokerset_kube.credentials import Access, CredentialsProblem, TokenFile
from brokerset_operator.resources.pod_parts import token_volume
from brokerset_rig.fake_kube import Call, FakeKube, Fault
from brokerset_rig.operator_parts import until

NAME, NAMESPACE, SLICES = "orders-0-master", "shop", "endpointslices"


def led_to(address: str, epoch: int) -> dict[str, Any]:
    """The slice, leading to the master of an epoch."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "annotations": {EPOCH_ANNOTATION: str(epoch)}},
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
    }


class Running:
    """A pointer that runs, and the epoch that it leads in."""

    def __init__(self, kube: FakeKube, access: Access) -> None:
        self.kube = kube
        self.epoch: int | None = None
        self.pointer = MasterPointer(
            MasterSlice(NAMESPACE, NAME, access=lambda: access),
            pod="p",
            pod_ip="10.0.0.7",
            leads=lambda: self.epoch,
        )

    def lead(self, epoch: int) -> None:
        self.epoch = epoch
        self.pointer.wake()

    @property
    def leads_to(self) -> tuple[str, str]:
        """The address and the epoch in the slice."""
        live = self.kube.get(SLICES, NAME, NAMESPACE) or {}
        return live["endpoints"][0]["addresses"][0], live["metadata"]["annotations"][EPOCH_ANNOTATION]

    async def checked(self, times: int = 1) -> None:
        """Wait until the slice was read so often, and what follows from it is done."""
        await until(lambda: self.kube.count("get", SLICES) >= times)
        await asyncio.sleep(0.05)


@asynccontextmanager
async def running(**access: Any) -> AsyncIterator[Running]:
    """A pointer at an API server with a slice that leads to an earlier master."""
    async with FakeKube() as kube:
        kube.put(led_to("10.0.0.1", 2))
        found = Running(kube, Access(kube.url, **access))
        task = asyncio.create_task(found.pointer.run())
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.wait([task])


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(bounded())


def test_a_new_master_leads_the_service_to_itself() -> None:
    """And a slave asks nothing, and writes nothing."""

    async def scenario() -> None:
        async with running() as one:
            one.pointer.wake()
            await asyncio.sleep(0.05)
            assert one.kube.calls == []

            one.lead(3)
            await until(lambda: one.leads_to == ("10.0.0.7", "3"))

    run(scenario)


def test_it_goes_on_after_failures_and_conflicts() -> None:
    """An API server that is away, or a slice that somebody else changed between reading and writing."""

    async def scenario() -> None:
        async with running() as one:
            one.kube.faults.append(Fault("get", SLICES, code=503, times=2))
            others = iter([led_to("10.0.0.2", 2)])

            def overtake(call: Call) -> None:
                if call.verb == "patch" and (other := next(others, None)) is not None:
                    one.kube.put(other)

            one.kube.on_call = overtake
            one.lead(3)

            await until(lambda: one.leads_to == ("10.0.0.7", "3"))
            assert one.kube.count("patch", SLICES) == 2

    run(scenario)


def test_who_lost_the_mastership_while_reading_writes_nothing() -> None:
    """The role is checked once more after the slice was read."""

    async def scenario() -> None:
        async with running() as one:

            def lose(_call: Call) -> None:
                one.epoch = None

            one.kube.on_call = lose
            one.lead(3)
            await one.checked()

            assert one.kube.count("patch") == 0

    run(scenario)


def test_a_later_master_is_left_alone() -> None:
    """An old master that still believes in its role cannot take clients away from the new one."""

    async def scenario() -> None:
        async with running() as one:
            one.kube.put(led_to("10.0.0.1", 9))
            one.lead(3)
            await one.checked()

            assert one.leads_to == ("10.0.0.1", "9")

    run(scenario)


def test_it_asks_as_the_service_account(tmp_path: Path) -> None:
    """No token yet is a failure that is tried again; one that the kubelet renewed is read again."""

    async def scenario() -> None:
        token = tmp_path / "token"
        async with running(token=TokenFile(token)) as one:
            one.kube.tokens = {"secret"}
            one.lead(3)
            await asyncio.sleep(0.1)
            token.write_text("secret\n")
            await until(lambda: one.leads_to == ("10.0.0.7", "3"))

            one.kube.tokens = {"newer"}
            token.write_text("newer")
            one.lead(4)
            await until(lambda: one.leads_to == ("10.0.0.7", "4"))

    run(scenario)


def test_outside_of_a_pod_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting that asks for it is named, and the pointer tries again."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(master_pointer, "PAUSE_SECONDS_MAX", 0.05)
    tries: list[int] = []

    async def scenario() -> None:
        found = MasterSlice(NAMESPACE, NAME)
        with pytest.raises(CredentialsProblem, match="masterEndpointSlice"):
            await found.read()

        def leads() -> int:
            tries.append(3)
            return 3

        task = asyncio.create_task(MasterPointer(found, pod="p", pod_ip="10.0.0.7", leads=leads).run())
        await until(lambda: len(tries) > 2)
        task.cancel()
        await asyncio.wait([task])

    run(scenario)


def account_of_a_pod(folder: Path, authority: bytes) -> Path:
    """The folder that a broker's pod has: what the operator projects into it, and nothing else."""
    content = {"token": b"secret", "ca.crt": authority}
    for source in token_volume()["projected"]["sources"]:
        for item in (source.get("serviceAccountToken"), *source.get("configMap", {}).get("items", ())):
            if item is not None:
                (folder / item["path"]).write_bytes(content[item["path"]])
    return folder


def test_what_a_pod_is_given_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token and the authority: a broker knows its namespace by itself."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")

    access = master_pointer.account_access(NAMESPACE, account_of_a_pod(tmp_path, b"ca"))

    assert (access.server, access.namespace) == ("https://10.96.0.1:443", NAMESPACE)
    assert access.authorization(0.0) == {"Authorization": "Bearer secret"}


def test_an_authority_that_cannot_be_used_is_told_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker goes on, and tries again: the file may be repaired."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    folder = account_of_a_pod(tmp_path, "# Főtan, and no certificate".encode())

    async def scenario() -> None:
        found = MasterSlice(NAMESPACE, NAME, access=lambda: master_pointer.account_access(NAMESPACE, folder))
        for _ in range(2):
            with pytest.raises(CredentialsProblem, match="cannot be used"):
                await found.read()
        await found.close()

    run(scenario)
