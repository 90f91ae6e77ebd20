"""`brokerset subject`: create, scale, list, describe and delete ordered subjects, and their consumers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from brokerset_cli import subject_view
from brokerset_cli.controller_session import Controllers, controllers_options
from brokerset_cli.options import address_option, json_option, namesrv_address, number_option, yes_option
from brokerset_cli.output import CommandFailed, counted, progress, write_columns, write_json
from brokerset_cli.subject_view import Progress, QueueKey
from brokerset_client.admin import Admin
from brokerset_client.errors import AnswerTimeout, ClientError
from brokerset_client.instance import ClientInstance
from brokerset_client.subject_admin import OPEN_SECONDS, SubjectAdmin
from brokerset_client.subject_facts import open_partitions
from brokerset_formats import names
from brokerset_formats.order_keys import LOGICAL_PARTITIONS
from brokerset_protocol.bodies.ordered import SubjectState
from brokerset_protocol.subject_words import OrderStrategy

STRATEGIES: Final = [each.value for each in OrderStrategy]

wait_option: Final = click.option(
    "--wait/--no-wait",
    default=True,
    show_default=True,
    help=f"Wait until all new partitions take messages, for at most {OPEN_SECONDS:g} s.",
)
"""`--wait`, which is what people want: sends go on meanwhile."""

route_option: Final = click.option(
    "--route",
    metavar="A,B",
    help="Broker groups for the partitions. [default: those that the subject has, else two that "
    "the controllers choose]",
)
"""`--route A,B`: where partitions are put."""


@click.group()
def subject() -> None:
    """Create, scale, list, describe and delete ordered subjects: topics whose messages are ordered by key."""


@subject.command()
@click.argument("name")
@number_option(
    "--partitions",
    "Partitions: as many consumers of a group can work at once.",
    1,
    LOGICAL_PARTITIONS,
)
@click.option(
    "--order",
    type=click.Choice(STRATEGIES, case_sensitive=False),
    default=OrderStrategy.STRICT.value,
    show_default=True,
    help="Strict: what cannot be sent or handled waits, and its key with it. BestTried: it may be overtaken.",
)
@route_option
@wait_option
@controllers_options
@json_option
def create(
    name: str,
    partitions: int | None,
    order: str,
    route: str | None,
    wait: bool,
    controllers: Controllers,
    as_json: bool,
) -> None:
    """Create the subject NAME. To do it again with the same options is harmless."""
    problem = names.check_topic(name)
    if problem is not None:
        raise click.BadParameter(problem, param_hint="NAME")

    async def work(admin: SubjectAdmin) -> SubjectState:
        state = await admin.create_subject(
            name, OrderStrategy(order), partitions=partitions, route=_groups(route)
        )
        return await _opened(admin, state) if wait else state

    _show_result(controllers.run_subjects(work), "is there", as_json)


@subject.command()
@click.argument("name")
@click.argument("partitions", metavar="N", type=click.IntRange(1, LOGICAL_PARTITIONS))
@route_option
@wait_option
@controllers_options
@json_option
def scale(
    name: str, partitions: int, route: str | None, wait: bool, controllers: Controllers, as_json: bool
) -> None:
    """Give the subject NAME another number of partitions, N, without disorder.

    The partitions that it has are sealed and read to their ends; keys wait shortly while theirs is sealed.
    """

    async def work(admin: SubjectAdmin) -> SubjectState:
        state = await admin.scale_subject(name, partitions, route=_groups(route))
        return await _opened(admin, state) if wait else state

    _show_result(controllers.run_subjects(work), "is scaled", as_json)


async def _opened(admin: SubjectAdmin, state: SubjectState) -> SubjectState:
    """Wait until a generation is open; ends the command with what keeps it when that takes too long."""
    number, of = open_partitions(state)
    with progress(f"opening partitions of {state.name}", of) as done:
        done(number)
        seen = [number]

        def observed(now: SubjectState) -> None:
            done(open_partitions(now)[0] - seen[0])
            seen[0] = open_partitions(now)[0]

        try:
            return await admin.wait_until_open(state.name, generation=state.generation, progress=observed)
        except AnswerTimeout as error:
            raise CommandFailed(
                f"it is agreed on, but {error}",
                f"it goes on by itself; see `brokerset subject describe {state.name}` and `brokerset status`",
            ) from None


def _show_result(state: SubjectState, what: str, as_json: bool) -> None:
    if as_json:
        write_json(subject_view.subject_json(state))
        return
    number, of = open_partitions(state)
    still = "" if number == of else f", {of - number} not open yet"
    click.echo(
        f"Subject {state.name} {what}: {state.order_strategy.value}, {counted(of, 'partition')} "
        f"on {', '.join(state.route)}{still}"
    )


@subject.command("list")
@controllers_options
@json_option
def list_subjects(controllers: Controllers, as_json: bool) -> None:
    """List the subjects."""
    found = controllers.run_subjects(lambda admin: admin.subjects())
    if as_json:
        write_json([subject_view.subject_json(state) for state in found])
        return
    write_columns(
        found,
        {
            "subject": "name",
            "order": lambda state: state.order_strategy.value,
            "generation": "generation",
            "partitions": lambda state: open_partitions(state)[1],
            "open": lambda state: open_partitions(state)[0],
            "on": lambda state: ", ".join(state.route),
            "groups": lambda state: len(state.groups),
            "problems": lambda state: len(state.problems) or None,
        },
        empty="There are no subjects. Make one: brokerset subject create NAME",
    )


def namesrv_option(function: Callable[..., None]) -> Callable[..., None]:
    """`--namesrv HOST:PORT`, to find the brokers, which know how far consumers are."""
    return address_option(
        "--namesrv", "Name servers, to ask the brokers how far consumers are. [default: as --controller]"
    )(function)


@subject.command()
@click.argument("name")
@namesrv_option
@controllers_options
@json_option
def describe(name: str, namesrv: str | None, controllers: Controllers, as_json: bool) -> None:
    """Show the partitions of the subject NAME, who owns them, how far they are, and what is wrong."""
    address = namesrv_address(namesrv, controllers.data)

    async def work(admin: SubjectAdmin) -> tuple[SubjectState, Progress, str]:
        state = await admin.subject(name)
        try:
            return state, await _progress(address, state), ""
        except ClientError as error:
            return state, Progress(), f"how far consumers are is not known: {error}"

    state, far, note = controllers.run_subjects(work)
    if as_json:
        write_json(subject_view.subject_json(state, far))
        return
    click.echo(subject_view.headline(state))
    _write_rows(subject_view.partition_rows(state, far))
    for group in state.groups:
        members = counted(len(group.members), "member")
        click.echo(f"\nGroup {group.name}: {group.strategy.value}, {members}")
        _write_rows(subject_view.owner_rows(group, state, far), empty="It has handled everything.")
    for problem in (*state.problems, *([note] if note else [])):
        click.secho(f"Problem: {problem}", fg="yellow")


async def _progress(namesrv: str, state: SubjectState) -> Progress:
    """Ask the brokers for the ends of the queues, and the positions of groups."""
    async with ClientInstance(namesrv) as instance:
        admin = Admin(instance=instance)
        ends = {
            (queue.broker_name, queue.queue_id): offset.max_offset
            for queue, offset in (await admin.topic_stats(state.name)).items()
        }
        positions: dict[str, dict[QueueKey, int]] = {}
        for group in state.groups:
            try:
                found = await admin.consume_progress(group.name, state.name)
            except ClientError:  # a group without a position yet
                found = []
            positions[group.name] = {
                (each.queue.broker_name, each.queue.queue_id): max(0, each.consumer_offset) for each in found
            }
    return Progress(ends, positions)


@subject.command()
@click.argument("name")
@controllers_options
@json_option
def consumers(name: str, controllers: Controllers, as_json: bool) -> None:
    """Show who consumes the subject NAME: the members of its groups, and what each owns."""
    state = controllers.run_subjects(lambda admin: admin.subject(name))
    if as_json:
        write_json(subject_view.subject_json(state)["groups"])
        return
    _write_rows(subject_view.member_rows(state), empty=f"Nobody consumes {name} now.")
    idle = [group.name for group in state.groups if not group.members]
    if idle:
        click.echo(f"\nGroups without members: {', '.join(idle)}")


@subject.command()
@click.argument("name")
@yes_option
@controllers_options
def delete(name: str, yes: bool, controllers: Controllers) -> None:
    """Delete the subject NAME with all its messages; refused while somebody consumes it."""

    async def work(admin: SubjectAdmin) -> None:
        await admin.subject(name)  # one that is not there is an error
        if not yes:
            click.confirm(f"Delete the subject {name} with all its messages?", abort=True)
        await admin.delete_subject(name)

    controllers.run_subjects(work)
    click.echo(f"Deleted subject {name}.")


@subject.command("remove-group")
@click.argument("name")
@click.argument("group")
@yes_option
@controllers_options
def remove_group(name: str, group: str, yes: bool, controllers: Controllers) -> None:
    """Forget GROUP, which consumes the subject NAME no more; refused while it has members.

    Its positions at the brokers stay: `brokerset group delete` removes them.
    """

    async def work(admin: SubjectAdmin) -> None:
        state = await admin.subject(name)
        if group not in {each.name for each in state.groups}:
            known = ", ".join(each.name for each in state.groups) or "none"
            raise CommandFailed(
                f"{name} has no group {group!r}, only: {known}",
                f"see `brokerset subject consumers {name}`",
            )
        if not yes:
            click.confirm(f"Forget the group {group} of {name}?", abort=True)
        await admin.remove_consumer_group(name, group)

    controllers.run_subjects(work)
    click.echo(f"Removed group {group} of {name}.")


def _groups(route: str | None) -> list[str]:
    """Names of broker groups that are separated by commas."""
    return [each.strip() for each in (route or "").split(",") if each.strip()]


def _write_rows(rows: list[dict[str, Any]], *, empty: str = "nothing") -> None:
    write_columns(rows, {title: title for title in rows[0]} if rows else {}, empty=empty)
