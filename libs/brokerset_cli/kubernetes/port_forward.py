"""`kubectl brokerset port-forward`: a set as if it ran on this machine, for unmodified clients."""

from __future__ import annotations

import asyncio
from typing import IO

import click

from brokerset_cli.kubernetes.forward_targets import LOOPBACK, NAMESRV_PORT, PORTS_MAX
from brokerset_cli.kubernetes.kube_api import KubeApi
from brokerset_cli.kubernetes.options import kube_options
from brokerset_cli.output import fail
from brokerset_runtime.signals import stop_on_signals


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
@click.option(
    "--authorities",
    type=click.File(),
    metavar="FILE",
    help="Who signs the certificates of SET, in PEM. [default: whom its ConfigMap names]",
)
@kube_options
def port_forward(
    api: KubeApi,
    set_name: str,
    namesrv_port: int,
    broker_ports: int | None,
    authorities: IO[str] | None,
) -> None:
    """Forward the name server and the brokers of SET to ports of this machine, until Ctrl-C.

    Unmodified clients that run here use the name server 127.0.0.1:9876; they are told local addresses, and
    find the new master there after a failover.
    """
    trusted = None if authorities is None else authorities.read()
    try:
        asyncio.run(_serve(api, set_name, namesrv_port, broker_ports or 0, trusted))
    except OSError as error:
        fail(
            f"a local port cannot be listened on: {error.strerror or error}",
            "choose others with --namesrv-port and --broker-ports; 0 and leaving it out take free ones",
        )
    except ExceptionGroup as group:
        raise _first(group) from None


async def _serve(
    api: KubeApi, set_name: str, namesrv_port: int, first_port: int, authorities: str | None
) -> None:
    from brokerset_cli.kubernetes.forwarding import Forwarding  # other verbs need none of it

    stop = asyncio.Event()
    stop_on_signals(stop)
    forwarding = Forwarding(api, set_name, first_port, authorities)
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
