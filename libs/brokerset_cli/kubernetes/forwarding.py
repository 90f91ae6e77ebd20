"""All local ports of a set for `kubectl brokerset port-forward`, which follow its pods and masters."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

import click

from brokerset_cli.kubernetes import names
from brokerset_cli.kubernetes.edits import fetch_set
from brokerset_cli.kubernetes.forward_targets import (
    LOOPBACK,
    MASTER_SUFFIX,
    NAMESRV_PORT,
    PORTS_MAX,
    REMOTING_PORT,
    Targets,
    changed_masters,
    local_addresses,
    read_targets,
)
from brokerset_cli.kubernetes.forwarders import NameServerForwarder, PortForwarder
from brokerset_cli.kubernetes.kube_api import ApiFailed, KubeApi, Trouble, selector
from brokerset_cli.kubernetes.pod_streams import Way, stream_of
from brokerset_cli.kubernetes.set_trust import trust_of_set
from brokerset_cli.kubernetes.streams import Streams
from brokerset_cli.output import CommandFailed
from brokerset_kube.kinds import ENDPOINT_SLICE, POD
from brokerset_protocol.external_routes import ExternalAddresses
from brokerset_runtime.tls import ServerTrust

REFRESH_SECONDS: Final = 10.0
"""How often pods and groups are read; a change of a master is noticed at once, by a watch."""

RETRY_SECONDS: Final = 1.0
"""Pause before a watch that has ended is begun again."""

ENDING: Final = (Trouble.FORBIDDEN, Trouble.LOGIN, Trouble.NOT_FOUND)
"""What does not get better by waiting."""

WATCH_SECONDS: Final = 300
"""How long a watch lasts until the API server ends it."""


class Forwarding:
    """All local ports of one set; `run` follows its pods and masters until cancelled."""

    def __init__(self, api: KubeApi, set_name: str, first_port: int, authorities: str | None = None) -> None:
        """`authorities`, in PEM, are trusted instead of those that the set names itself."""
        self._api = api
        self._authorities = authorities
        self._trusts: dict[str, ServerTrust] = {}
        """By set whose pods take TLS alone."""

        self._set_name = set_name
        self._next_port = first_port
        self._streams = Streams(api)
        self._ports: dict[str, PortForwarder] = {}
        self._to_name_servers: dict[str, PortForwarder] = {}
        self._name_server = NameServerForwarder(
            lambda: [self._to_name_servers[pod].port for pod in self.targets.name_servers], self._addresses
        )
        self._said: str | None = None
        self._changed = asyncio.Event()
        self.targets = Targets()

    async def start(self, namesrv_port: int) -> int:
        """Listen on all ports; returns that of the name server. Raises `ApiFailed`, `OSError`."""
        await self.refresh()
        problem = CommandFailed(
            f"no name server of {self._set_name} runs",
            f"`kubectl brokerset status {self._set_name}` shows why",
        )
        for pod in self.targets.name_servers:
            try:
                way = self._way_to(pod, NAMESRV_PORT)
                async with way.tunnel as socket:
                    await stream_of(way, socket)
                    break  # missing rights and a wrong certificate are told now, not at the first request
            except CommandFailed as error:
                problem = error
        else:
            raise problem
        return await self._name_server.start(namesrv_port)

    async def run(self) -> None:
        """Follow what changes."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            group.create_task(self._refresh_again())

    async def close(self) -> None:
        """Close all ports and connections."""
        await self._name_server.close()
        forwarders = (*self._ports.values(), *self._to_name_servers.values())
        await asyncio.gather(*(each.close() for each in forwarders))
        await self._streams.close()

    async def refresh(self) -> None:
        """Read the set, its pods, where its masters are and whom to trust. Raises `CommandFailed`."""
        after = await self._read()
        await self._read_trust(after)
        before, self.targets = self.targets, after
        for resource, pod in changed_masters(before, after).items():
            if forwarder := self._ports.get(resource + MASTER_SUFFIX):
                forwarder.disconnect()
            if before.masters:
                click.echo(f"{resource}: the master is {f'now {pod}' if pod else 'not known'}")
        for resource in sorted(after.groups.values()):
            await self._listen(resource + MASTER_SUFFIX)
        for pod in sorted(after.brokers):
            await self._listen(pod)
        for pod, broker in before.brokers.items():
            now = after.brokers.get(pod)
            if pod in self._ports and (now is None or now.uid != broker.uid):
                self._ports[pod].disconnect()
        for pod in after.name_servers:
            if pod not in self._to_name_servers:
                forwarder = PortForwarder(partial(self._way_to, pod, NAMESRV_PORT), self._say)
                await forwarder.start(0)
                self._to_name_servers[pod] = forwarder

    def lines(self) -> list[str]:
        """What is forwarded where, for people."""
        found = []
        for group, resource in sorted(self.targets.groups.items()):
            master = self.targets.masters.get(resource, "not known")
            port = self._ports.get(resource + MASTER_SUFFIX)
            found.append(f"{group}: master {LOOPBACK}:{port.port if port else '-'} -> {master}")
            found += [
                f"{group}: {pod} {LOOPBACK}:{self._ports[pod].port}"
                for pod in sorted(self.targets.brokers)
                if pod.rpartition("-")[0] == resource and pod in self._ports
            ]
        return found

    # -- inner parts --------------------------------------------------------------------------------------

    async def _read(self) -> Targets:
        own = selector({names.SET_LABEL: self._set_name})
        seen, pods, slices = await asyncio.gather(  # at the same time: clients wait for the new master
            asyncio.to_thread(fetch_set, self._api, self._set_name),
            asyncio.to_thread(self._api.objects, POD, own),
            asyncio.to_thread(self._api.objects, ENDPOINT_SLICE, own),
        )
        if seen.controllers.of is not None:
            shared = {names.SET_LABEL: seen.controllers.of, names.COMPONENT_LABEL: names.CONTROLLER}
            pods += await asyncio.to_thread(self._api.objects, POD, selector(shared))
        return read_targets(seen, pods, slices)

    async def _read_trust(self, targets: Targets) -> None:
        """Read whom to trust, again at each refresh: authorities are renewed. Those known before stay in use
        while nothing better can be read."""
        for name in sorted(set(targets.by_tls.values())):
            try:
                self._trusts[name] = await asyncio.to_thread(trust_of_set, self._api, name, self._authorities)
            except CommandFailed as error:
                if name not in self._trusts:
                    raise
                self._say(error.message)

    async def _listen(self, name: str) -> None:
        if name in self._ports:
            return
        if len(self._ports) >= PORTS_MAX:
            self._say(f"only {PORTS_MAX} ports are forwarded; what comes after them is left out of routes")
            return
        forwarder = PortForwarder(lambda: self._way(name), self._say)
        await forwarder.start(self._next_port)
        self._next_port += 1 if self._next_port else 0
        self._ports[name] = forwarder

    def _way(self, name: str) -> Way | None:
        pod: str | None = name
        if name.endswith(MASTER_SUFFIX):
            pod = self.targets.masters.get(name.removesuffix(MASTER_SUFFIX))
        broker = self.targets.brokers.get(pod) if pod is not None else None
        return self._way_to(broker.pod, REMOTING_PORT) if broker is not None else None

    def _way_to(self, pod: str, port: int) -> Way:
        owner = self.targets.by_tls.get(pod)
        trust = self._trusts[owner] if owner is not None else None
        return Way(pod, self._streams.forward(pod, port), trust)

    def _addresses(self) -> ExternalAddresses:
        return local_addresses(self.targets, {name: each.port for name, each in self._ports.items()})

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            click.echo(text, err=True)

    async def _refresh_again(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self.refresh()
            except CommandFailed as error:
                if not isinstance(error, ApiFailed) or error.trouble in ENDING:
                    raise
                self._say(error.message)
                await asyncio.sleep(RETRY_SECONDS)

    async def _watch(self) -> None:
        """Let every change of an EndpointSlice of the set cause a refresh, for as long as this task runs."""
        query = {
            "watch": "true",
            "labelSelector": selector({names.SET_LABEL: self._set_name}),
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        while True:
            with suppress(ApiFailed):
                async with self._streams.read(ENDPOINT_SLICE.path(self._api.namespace), query) as content:
                    async for _ in content.iter_any():
                        self._changed.set()
            self._changed.set()  # what has changed meanwhile was not told
            await asyncio.sleep(RETRY_SECONDS)
