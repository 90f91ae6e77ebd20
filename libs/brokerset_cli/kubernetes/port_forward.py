"""`kubectl brokerset port-forward`: a set as if it ran on this machine, for unmodified clients."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Final

import click

from brokerset_cli.kubernetes import names
from brokerset_cli.kubernetes.edits import look
from brokerset_cli.kubernetes.forward_targets import (
    LOOPBACK,
    MASTER_SUFFIX,
    NAMESRV_PORT,
    REMOTING_PORT,
    Targets,
    changed_masters,
    local_addresses,
    read_targets,
)
from brokerset_cli.kubernetes.forwarders import NameServerForwarder, PortForwarder
from brokerset_cli.kubernetes.kubectl import Kubectl, KubectlFailed, Trouble, environment, selector
from brokerset_cli.kubernetes.options import kubectl_options
from brokerset_cli.kubernetes.tunnels import Tunnel, Tunnels, end_process
from brokerset_cli.output import CommandFailed, fail
from brokerset_protocol.external_routes import ExternalAddresses
from brokerset_runtime.signals import stop_on_signals

REFRESH_SECONDS: Final = 10.0
"""How often pods and groups are read; a change of a master is noticed at once, by a watch."""

RETRY_SECONDS: Final = 1.0
"""Pause before a watch that has ended is begun again."""

PORTS_MAX: Final = 200
"""Most local ports of brokers; each that is used takes a kubectl of some 40 MB."""


class Forwarding:
    """All local ports of one set; `run` follows its pods and masters until cancelled."""

    def __init__(self, kubectl: Kubectl, set_name: str, first_port: int) -> None:
        self._kubectl = kubectl
        self._set_name = set_name
        self._next_port = first_port
        self._tunnels = Tunnels(kubectl)
        self._ports: dict[str, PortForwarder] = {}
        self._name_server = NameServerForwarder(self._to_name_servers, self._addresses)
        self._said: str | None = None
        self._changed = asyncio.Event()
        self.targets = Targets()

    async def start(self, namesrv_port: int) -> int:
        """Listen on all ports; returns that of the name server. Raises `KubectlFailed`, `OSError`."""
        await self.refresh()
        problem = CommandFailed(
            f"no name server of {self._set_name} runs",
            f"`kubectl brokerset status {self._set_name}` shows why",
        )
        for way in self._to_name_servers():
            try:
                await way.port()  # missing rights are told now, not at the first request
                return await self._name_server.start(namesrv_port)
            except CommandFailed as error:
                problem = error
        raise problem

    async def run(self) -> None:
        """Follow what changes."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            group.create_task(self._refresh_again())

    async def close(self) -> None:
        """Close all ports and end all kubectls."""
        await self._name_server.close()
        await asyncio.gather(*(each.close() for each in self._ports.values()))
        await self._tunnels.close()

    async def refresh(self) -> None:
        """Read the set, its pods and where its masters are. Raises `KubectlFailed`."""
        after = await self._read()
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
        for pod in self._ports.keys() & before.brokers.keys() - after.brokers.keys():
            self._ports[pod].disconnect()
        kept = {(each.pod, each.uid) for each in after.brokers.values()}
        await self._tunnels.keep(kept | {(pod, "") for pod in after.name_servers})

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
            asyncio.to_thread(look, self._kubectl, self._set_name),
            asyncio.to_thread(self._kubectl.objects, "pods", own),
            asyncio.to_thread(self._kubectl.objects, "endpointslices", own),
        )
        if seen.controllers.of is not None:
            shared = {names.SET_LABEL: seen.controllers.of, names.COMPONENT_LABEL: names.CONTROLLER}
            pods += await asyncio.to_thread(self._kubectl.objects, "pods", selector(shared))
        return read_targets(seen, pods, slices)

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

    def _way(self, name: str) -> Tunnel | None:
        pod: str | None = name
        if name.endswith(MASTER_SUFFIX):
            pod = self.targets.masters.get(name.removesuffix(MASTER_SUFFIX))
        broker = self.targets.brokers.get(pod) if pod is not None else None
        return self._tunnels.to(broker.pod, broker.uid, REMOTING_PORT) if broker is not None else None

    def _to_name_servers(self) -> list[Tunnel]:
        return [self._tunnels.to(pod, "", NAMESRV_PORT) for pod in self.targets.name_servers]

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
            except KubectlFailed as error:
                if error.trouble in (Trouble.FORBIDDEN, Trouble.LOGIN, Trouble.NOT_FOUND):
                    raise
                self._say(error.message)
                await asyncio.sleep(RETRY_SECONDS)

    async def _watch(self) -> None:
        """Let every change of an EndpointSlice of the set cause a refresh, for as long as this task runs."""
        command = self._kubectl.command(
            "get",
            "endpointslices",
            "-l",
            selector({names.SET_LABEL: self._set_name}),
            "--watch-only",
            "-o",
            "name",
        )
        while True:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=environment(),
                start_new_session=os.name == "posix",
            )
            assert process.stdout is not None, "a pipe was asked for"
            try:
                async for _ in process.stdout:
                    self._changed.set()
            finally:
                if process.returncode is None:
                    await end_process(process)
            self._changed.set()  # what has changed meanwhile was not told
            await asyncio.sleep(RETRY_SECONDS)


@click.command("port-forward", short_help="Let clients on this machine use a set.")
@click.argument("set_name", metavar="SET")
@click.option(
    "--namesrv-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    default=NAMESRV_PORT,
    show_default=True,
    help="Local port of the name server; 0 takes a free one.",
)
@click.option(
    "--broker-ports",
    type=click.IntRange(1024, 65535 - PORTS_MAX),
    metavar="FIRST",
    help="Local ports of masters and brokers, from this one on. [default: free ones]",
)
@kubectl_options
def port_forward(kubectl: Kubectl, set_name: str, namesrv_port: int, broker_ports: int | None) -> None:
    """Forward the name server and the brokers of SET to ports of this machine, until Ctrl-C.

    Unmodified clients that run here use the name server 127.0.0.1:9876; they are told local addresses, and
    find the new master there after a failover.
    """
    try:
        asyncio.run(_serve(kubectl, set_name, namesrv_port, broker_ports or 0))
    except OSError as error:
        fail(
            f"a local port cannot be listened on: {error.strerror or error}",
            "choose others with --namesrv-port and --broker-ports; 0 and leaving it out take free ones",
        )
    except ExceptionGroup as group:
        raise _first(group) from None


async def _serve(kubectl: Kubectl, set_name: str, namesrv_port: int, first_port: int) -> None:
    stop = asyncio.Event()
    stop_on_signals(stop)
    forwarding = Forwarding(kubectl, set_name, first_port)
    try:
        ended = asyncio.create_task(stop.wait())
        port = await forwarding.start(namesrv_port)
        for line in forwarding.lines():
            click.echo(line)
        click.echo(f"{set_name}: name server {LOOPBACK}:{port}; Ctrl-C ends")
        running = asyncio.create_task(forwarding.run())
        await asyncio.wait({running, ended}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    finally:
        await forwarding.close()


def _first(group: ExceptionGroup[Exception]) -> Exception:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, ExceptionGroup) else found
