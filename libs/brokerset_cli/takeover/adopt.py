"""`brokerset adopt`: takes a Java cluster in controller mode over, step by step, and gives it back."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from brokerset_cli.folder import DataFolder
from brokerset_cli.options import data_option, json_option
from brokerset_cli.output import CommandFailed, fail
from brokerset_cli.takeover import joined_set
from brokerset_cli.takeover.adopt_report import (
    NO_CONTROLLERS,
    report,
    report_finish,
    report_ordinary,
    show_findings,
)
from brokerset_cli.takeover.adoption import Adoption
from brokerset_cli.takeover.adoption_journal import Journal
from brokerset_cli.takeover.broker_queries import BrokerQueries
from brokerset_cli.takeover.cluster_observation import find_cluster, inspect_java
from brokerset_cli.takeover.finish_acts import FinishActs
from brokerset_cli.takeover.finish_observation import FinishObserver
from brokerset_cli.takeover.finish_plan import needs_adopt
from brokerset_cli.takeover.finishing import Finish
from brokerset_cli.takeover.obstacles import FEATURES
from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import ClientError, RequestRefused
from brokerset_runtime.logs import configure_logs
from brokerset_spec.manifest import REPLICAS_MAX
from brokerset_spec.setting_fields import address_problems

T = TypeVar("T")


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
    "--to",
    "last",
    metavar="STEP",
    help="Stop when this step is done: join, catch-up, switch, retire; "
    "with --finish: whole, name-servers, clients, own.",
)
@click.option("--back", is_flag=True, help="Give the cluster back: the same steps the other way round.")
@click.option(
    "--finish",
    is_flag=True,
    help="When every group is ours: leave Java's controllers and name servers for own ones.",
)
@click.option(
    "--clients-moved",
    is_flag=True,
    help="With --finish: all clients use our name servers. With --back: they use Java's again.",
)
@click.option(
    "--namesrv-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="With --finish: port of our first name server; 0 takes a free one. [default: 9876, or one near it]",
)
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
@click.option("--look", "only_observe", is_flag=True, help="Only look, and say what stands against it.")
@json_option
def adopt(data: Path, **options: Any) -> None:
    """Take over a running Java cluster in controller mode (RocketMQ 5.1.1 or later) by joining it.

    Brokers of ours start in --data as replicas of its groups, copy the logs, become masters, and the Java
    brokers are stopped one by one. Each step is seen done before the next; a call that was cut off is
    repeated, and goes on. --back gives the cluster back. Java's controllers and name servers stay until
    --finish leaves them, in steps of its own.

    Exit code 0: all is done, or --to is reached. 3: the next step is yours, the output says which. 1: it
    failed.
    """
    _check_options(options)
    folder, back, finish = DataFolder(data), options["back"], options["finish"]
    known, remembered = joined_set.joined_cluster_of(folder), Journal(folder.path).read()
    finishing = remembered is not None and remembered.finishing is not None
    if (back or finish) and known is None and not finishing:
        if finish and remembered is None and joined_set.has_left(folder):
            sys.exit(report_ordinary(folder, options["as_json"]))
        fail(
            f"{folder.path} has no brokers that joined another cluster",
            "give the folder of the adoption with --data",
        )
    if back:
        _check_back(folder, options["clients_moved"])
    configure_logs("error", json=False)
    code: int | None = None
    if finish or (finishing and not back):
        code = _run(folder, options["namesrv"], _finish(folder, options))
    if code is None:
        namesrv, controllers = options["namesrv"], options["controllers"]
        if known is not None:
            namesrv, controllers = known.name_servers, known.controllers
        if namesrv is None:
            raise click.UsageError("Give the name servers of the Java cluster with --namesrv.")
        if back and not options["only_observe"]:
            with folder.lock():
                Journal(folder.path).go_back()
        code = _run(folder, namesrv, _adopt(folder, namesrv, controllers, options))
    sys.exit(code)


def _check_options(options: Mapping[str, Any]) -> None:
    back, finish = options["back"], options["finish"]
    if back and finish:
        raise click.UsageError("Give either --back or --finish.")
    if options["clients_moved"] and not (back or finish):
        raise click.UsageError("Give --clients-moved together with --finish or --back.")
    if finish and (options["stop_with"] or options["accept"]):
        raise click.UsageError("--finish begins when no Java broker runs any more; give these without it.")
    if options["namesrv_port"] is not None and not finish:
        raise click.UsageError("Give --namesrv-port together with --finish.")
    for name in ("namesrv", "controllers"):
        if options[name] and (problems := address_problems(options[name])):
            raise click.BadParameter("; ".join(problems), param_hint=f"--{name}")


def _check_back(folder: DataFolder, clients_moved: bool) -> None:
    """Whether the cluster can be given back yet; ends the command when it cannot."""
    known, remembered = joined_set.joined_cluster_of(folder), Journal(folder.path).read()
    if known is None or not known.controllers:
        fail(
            f"the brokers in {folder.path} belong to their own controllers: there is no way back any more, "
            "as Java's brokers lack what was sent since",
            f"`brokerset adopt --data {folder.path} --finish` goes on",
        )
    if remembered is not None and remembered.clients_moved and not clients_moved:
        fail(
            f"clients use the name servers of {folder.path}, which go with it: nothing was changed",
            f"give them {known.name_servers} again, then give the same command with --clients-moved",
        )


def _run(folder: DataFolder, namesrv: str | None, work: Coroutine[Any, Any, T]) -> T:
    """Run a flow; errors of the network and the disk end the command with what to do."""
    try:
        return asyncio.run(work)
    except RequestRefused as error:
        raise CommandFailed(
            str(error),
            f"is {error.address or namesrv or 'it'} what it was taken for? The same command goes on",
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


async def _finish(folder: DataFolder, options: Mapping[str, Any]) -> int | None:
    """Go on with leaving Java's controllers, or show how far that is without `--finish`.

    None when `adopt` has something to do before, as it was asked to.
    """
    acts, last, to_json = options["finish"], options["last"], options["as_json"]
    async with BrokerQueries() as brokers:
        journal = Journal(folder.path)
        observer = FinishObserver(folder, journal, brokers)
        acts_of_call = FinishActs(folder, journal, brokers, observer, options["namesrv_port"])
        call = Finish(acts_of_call, yes=options["yes"], clients_moved=options["clients_moved"])
        facts = await call.observe()
        if not acts and needs_adopt(facts):
            return None
        steps = call.plan(facts)
        if acts and not options["only_observe"]:
            steps = await call.go(last)
            facts = replace(
                await call.observe(),  # which does not show any more what was left
                java_name_servers=facts.java_name_servers,
                java_controllers=facts.java_controllers,
            )
        return report_finish(facts, steps, call.pauses, to_json, last if acts else None, goes_on=acts)


async def _adopt(
    folder: DataFolder, namesrv: str, controllers: str | None, options: Mapping[str, Any]
) -> int:
    accepted, last, to_json = options["accept"], options["last"], options["as_json"]
    async with BrokerQueries() as brokers:
        cluster, found = await find_cluster(brokers, namesrv, controllers)
        if (name := joined_set.cluster_of(folder)) is not None:
            cluster = replace(cluster, name=name)
        if not cluster.controllers:
            _, more = await inspect_java(brokers, cluster, (), accepted)
            return report(cluster, (), [*found, *more] or [NO_CONTROLLERS], (), {}, to_json)
        async with ControllerAdmin(cluster.controllers) as admin:
            for_call = {name: options[name] for name in ("host", "replicas", "stop_with", "yes", "back")}
            call = Adoption(folder, brokers, admin, cluster, **for_call)
            await call.inspect(found, accepted)
            if not to_json:
                show_findings(call.findings)
            facts = await call.observe()
            steps = call.plan(facts)
            if not options["only_observe"]:
                steps = await call.go(last)
                facts = await call.observe() if not options["back"] or steps else facts
            findings = call.findings if to_json else []
            groups = facts.groups if steps or options["only_observe"] else ()
            return report(cluster, groups, findings, steps, call.pauses, to_json, last)
