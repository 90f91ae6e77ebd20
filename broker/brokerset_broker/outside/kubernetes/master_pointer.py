"""Lets the group's `-master` Service lead to this broker while it is master."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from brokerset_broker.outside.kubernetes.master_slice import Change, Overtaken, decide_slice
from brokerset_kube.client import KubeClient
from brokerset_kube.credentials import ACCOUNT_FOLDER, Access, CredentialsProblem, from_account
from brokerset_kube.errors import Conflict, KubeError
from brokerset_kube.kinds import ENDPOINT_SLICE

log = structlog.get_logger(__name__)

PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 5.0
"""Waits after failures double from the first to the second."""

CHECK_SECONDS: Final = 15.0
"""How often a master checks whether the slice still leads to it."""


REQUEST_SECONDS: Final = 2.0
"""Longest time that one request may take, connecting included."""

MANAGER: Final = "brokerset-broker"
"""Field manager of what a broker writes."""


def account_access(namespace: str, folder: Path = ACCOUNT_FOLDER) -> Access:
    """The access of a broker's pod, whose account has a token and the authority, and nothing else."""
    try:
        return from_account(os.environ, folder, namespace=namespace)
    except CredentialsProblem as problem:
        raise CredentialsProblem(f"{problem}; or leave masterEndpointSlice out") from None


class MasterSlice:
    """One EndpointSlice at the API server, as this pod's service account.

    Every method raises `KubeError` or `CredentialsProblem`.
    """

    def __init__(self, namespace: str, name: str, *, access: Callable[[], Access] | None = None) -> None:
        self._place = name, namespace
        self._access = access or partial(account_access, namespace)
        self._client: KubeClient | None = None

    async def read(self) -> Mapping[str, Any]:
        """The slice as it is."""
        return await self._started().get(ENDPOINT_SLICE, *self._place)

    async def patch(self, change: Mapping[str, Any]) -> None:
        """Merge a change into it. Raises `Conflict` when it has changed since it was read."""
        await self._started().merge_patch(ENDPOINT_SLICE, *self._place, change)

    async def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            await self._client.close()

    def _started(self) -> KubeClient:
        if self._client is None:
            client = KubeClient(self._access(), manager=MANAGER, timeout=REQUEST_SECONDS)
            client.start()
            self._client = client
        return self._client


class MasterPointer:
    """Writes the slice when this broker becomes master, and again when somebody else spoils it.

    Failover needs no operator for that: the right on this one object is the broker's own. The epoch in the
    slice keeps a former master from taking it back.
    """

    def __init__(self, found: MasterSlice, *, pod: str, pod_ip: str, leads: Callable[[], int | None]) -> None:
        """`leads` tells the epoch in which this broker is master; None while it is not."""
        self._slice = found
        self._pod = pod
        self._pod_ip = pod_ip
        self._leads = leads
        self._wake = asyncio.Event()
        self._logged: int | None = None

    def wake(self) -> None:
        """The role may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Keep the slice right for as long as this task runs."""
        pause = PAUSE_SECONDS_MIN
        try:
            while True:
                self._wake.clear()
                try:
                    await self._check()
                    pause, wait = PAUSE_SECONDS_MIN, CHECK_SECONDS
                except Conflict:
                    wait = PAUSE_SECONDS_MIN
                except (KubeError, CredentialsProblem) as error:
                    wait = pause
                    pause = min(pause * 2, PAUSE_SECONDS_MAX)
                    if wait == PAUSE_SECONDS_MIN:
                        log.warning(
                            "the master's Service cannot be led to this broker; it is tried again",
                            reason=str(error),
                        )
                try:
                    async with asyncio.timeout(wait):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        finally:
            await self._slice.close()

    async def _check(self) -> None:
        epoch = self._leads()
        if epoch is None:
            return
        decision = decide_slice(await self._slice.read(), pod=self._pod, pod_ip=self._pod_ip, epoch=epoch)
        if isinstance(decision, Change):
            if self._leads() != epoch:
                self._wake.set()
                return
            await self._slice.patch(decision.patch)
            log.info("the master's Service leads here", epoch=epoch, address=self._pod_ip)
        elif isinstance(decision, Overtaken) and self._logged != decision.epoch:
            self._logged = decision.epoch
            log.warning("the master's Service leads to a later master", epoch=epoch, later=decision.epoch)
