"""`brokerset adopt`: takes a Java cluster in controller mode over, step by step, and gives it back."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from brokerset_cli.folder import DataFolder
from brokerset_cli.options import data_option, json_option
from brokerset_cli.output import CommandFailed, fail
from brokerset_cli.takeover import guest_set
from brokerset_cli.takeover.adopt_report import NO_CONTROLLERS, report, show_findings
from brokerset_cli.takeover.adoption import Adoption
from brokerset_cli.takeover.asking import Asker
from brokerset_cli.takeover.cluster_look import find_cluster, look_at_java
from brokerset_cli.takeover.obstacles import FEATURES
from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import ClientError, RequestRefused
from brokerset_runtime.logs import configure_logs
from brokerset_spec.broker_settings import address_problems
from brokerset_spec.manifest import REPLICAS_MAX


@click.command()
@click.option("--namesrv", metavar="HOST:PORT", help="Name servers of the Java cluster, with ; between them.")
@click.option(
    "--controllers", metavar="HOST:PORT", help="Its controllers. [default: as its brokers say themselves]"
)
@data_option
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="IPv4 address of this machine that the Java brokers and all clients reach.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, REPLICAS_MAX),
    metavar="N",
    help="Brokers of ours for each group. [default: as many as Java's]",
)
@click.option(
    "--to", "last", metavar="STEP", help="Stop when this step is done: join, catch-up, switch, retire."
)
@click.option("--back", is_flag=True, help="Give the cluster back: the same steps the other way round.")
@click.option("--yes", is_flag=True, help="Do not ask before each step.")
@click.option(
    "--stop-with",
    metavar="COMMAND",
    help="Shell command that stops a Java broker; {address}, {group} and {id} are filled in. "
    "Without it you are asked to stop them.",
)
@click.option(
    "--accept",
    multiple=True,
    type=click.Choice(list(FEATURES)),
    metavar="FEATURE",
    help="Go on although this feature seems to be in use, which our brokers do not serve; repeatable.",
)
@click.option("--look", "only_look", is_flag=True, help="Only look, and say what stands against it.")
@json_option
def adopt(
    namesrv: str | None,
    controllers: str | None,
    data: Path,
    host: str,
    replicas: int | None,
    last: str | None,
    back: bool,
    yes: bool,
    stop_with: str | None,
    accept: tuple[str, ...],
    only_look: bool,
    as_json: bool,
) -> None:
    """Take over a running Java cluster in controller mode (RocketMQ 5.1.1 or later) by joining it.

    Brokers of ours start in --data as replicas of its groups, copy the logs, become masters, and the Java
    brokers are stopped one by one. Its controllers and name servers stay. Each step is seen done before the
    next; a call that was cut off is repeated, and goes on. --back gives the cluster back.

    Exit code 0: all is done, or --to is reached. 3: the next step is yours, the output says which. 1: it
    failed.
    """
    for text, option in ((namesrv, "--namesrv"), (controllers, "--controllers")):
        if text and (problems := address_problems(text)):
            raise click.BadParameter("; ".join(problems), param_hint=option)
    folder = DataFolder(data)
    known = guest_set.guest_of(folder)
    if back and known is None:
        fail(
            f"{folder.path} has no brokers that joined another cluster",
            "give the folder of the adoption with --data",
        )
    if known is not None:
        namesrv, controllers = known.name_servers, known.controllers
    if namesrv is None:
        raise click.UsageError("Give the name servers of the Java cluster with --namesrv.")
    configure_logs("error", json=False)
    try:
        code = asyncio.run(
            _run(
                folder, namesrv, controllers, accept,
                options={"host": host, "replicas": replicas, "stop_with": stop_with, "yes": yes},
                back=back, last=last, only_look=only_look, as_json=as_json,
            )
        )  # fmt: skip
    except RequestRefused as error:
        raise CommandFailed(
            str(error), f"is {error.address or namesrv} what it was taken for? The same command goes on"
        ) from None
    except ClientError as error:
        raise CommandFailed(
            str(error), "see that it runs and can be reached; the same command goes on"
        ) from None
    except OSError as error:
        raise CommandFailed(
            f"{error.filename or folder.path} cannot be used: {error.strerror or error}",
            "see to it that you may write there and that there is room; the same command goes on",
        ) from None
    sys.exit(code)


async def _run(
    folder: DataFolder,
    namesrv: str,
    controllers: str | None,
    accepted: Sequence[str],
    *,
    options: Mapping[str, Any],
    back: bool,
    last: str | None,
    only_look: bool,
    as_json: bool,
) -> int:
    async with Asker() as asker:
        cluster, found = await find_cluster(asker, namesrv, controllers)
        if (name := guest_set.cluster_of(folder)) is not None:
            cluster = replace(cluster, name=name)
        if not cluster.controllers:
            _, more = await look_at_java(asker, cluster, (), accepted)
            return report(cluster, (), [*found, *more] or [NO_CONTROLLERS], (), {}, as_json)
        async with ControllerAdmin(cluster.controllers) as admin:
            adoption = Adoption(folder, asker, admin, cluster, **options)
            await adoption.look_well(found, accepted)
            if not as_json:
                show_findings(adoption.findings)
            facts = await adoption.facts()
            steps = adoption.plan(facts, back=back)
            if not only_look:
                steps = await adoption.go(back=back, last=last)
                facts = await adoption.facts() if not back or steps else facts
            findings = adoption.findings if as_json else []
            groups = facts.groups if steps or only_look else ()
            return report(cluster, groups, findings, steps, adoption.pauses, as_json, last)
