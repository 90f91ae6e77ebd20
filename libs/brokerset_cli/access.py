"""`brokerset user` and `brokerset acl`: who may send requests to brokers, and what they may do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from brokerset_acl.access_book import WantedUser
from brokerset_acl.former_passwords import FORMER_SECONDS_MAX
from brokerset_acl.plain_acl import Migrated, migrate
from brokerset_acl.policies import Acl, Action, Decision, Entry, PolicyType, network_of, resource_of
from brokerset_acl.users import UserStatus, UserType, subject_of
from brokerset_cli.client_session import Cluster, cluster_options
from brokerset_cli.delivery_times import parse_delay
from brokerset_cli.options import at_cluster_option, json_option, yes_option
from brokerset_cli.output import CommandFailed, counted, write_columns, write_json
from brokerset_cli.set_acl import (
    administrator_file,
    change_administrator,
    check_password,
    is_administrator,
)
from brokerset_client.access_admin import AccessAdmin
from brokerset_client.admin import Admin
from brokerset_spec.yaml_text import YamlProblem, read_yaml

ACTIONS: Final = [str(action) for action in Action if action is not Action.ANY]

_ABOUT_FORMER: Final = ("formerUntil", "formerLastUsed", "formerLastUsedFrom")
"""Fields of users whose former password is accepted."""

password_option: Final = click.option(
    "--password",
    envvar="BROKERSET_PASSWORD",
    show_envvar=True,
    prompt="Password",
    hide_input=True,
    confirmation_prompt=True,
    help="Asked for when it is not given; in a command line others can see it.",
)
"""`--password`: better by the environment or the prompt."""


def _seconds(context: click.Context, option: click.Parameter, text: str) -> int:
    try:
        seconds = parse_delay(text).total_seconds()
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if not 0 <= seconds <= FORMER_SECONDS_MAX or seconds != int(seconds):
        raise click.BadParameter(f"{text!r} is not 0 to 30d, in whole seconds")
    return int(seconds)


def _moment(ms: Any) -> str:
    """A time of an answer, as people of here read it."""
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(" ", "seconds")


# -- users ------------------------------------------------------------------------------------------------


@click.group()
def user() -> None:
    """Users: who may send requests to brokers that check them (`authenticationEnabled`)."""


@user.command()
@click.argument("name")
@password_option
@click.option("--super", "is_super", is_flag=True, help="May do everything.")
@at_cluster_option
@cluster_options
def create(name: str, password: str, is_super: bool, at_cluster: str | None, cluster: Cluster) -> None:
    """Create the user NAME in every broker group."""
    kind = UserType.SUPER if is_super else UserType.NORMAL

    async def work(admin: Admin) -> None:
        await AccessAdmin(admin, at_cluster).create_user(WantedUser(name, password, kind))

    cluster.administer(work)
    click.echo(f"User {name} is there." + ("" if is_super else f" Next: brokerset acl allow {name} …"))


@user.command()
@click.argument("name")
@password_option
@click.option(
    "--keep-former",
    "keep_former",
    callback=_seconds,
    metavar="SPAN",
    default="0",
    help="Accept the former password, too, for 24h or 7d: at most 30d. [default: not at all]",
)
@at_cluster_option
@cluster_options
def password(name: str, password: str, keep_former: int, at_cluster: str | None, cluster: Cluster) -> None:
    """Give the user NAME another password.

    What is signed with the former one is refused at once, unless it is kept; the one before that always is.
    """
    if cluster.namesrv is None:
        _check_for_folder(name, password, cluster.data)
    found = _update(WantedUser(name, password, former_seconds=keep_former), at_cluster, cluster)
    click.echo(f"User {name} has another password.")
    if cluster.namesrv is None:
        _keep_in_folder(name, password, cluster.data)
    if not keep_former:
        return
    times = [until_ms for until_ms in found.values() if until_ms is not None]
    without = [broker for broker, until_ms in found.items() if until_ms is None]
    if times and not without:
        click.echo(f"The former one is accepted until {_moment(min(times))}: see brokerset user list.")
    if without:
        click.echo(
            f"warning: {', '.join(without)} accepts no former password: the user is disabled or had this"
            " password already, or the broker is of a version without them, and then perhaps no other one"
            " accepts it: see brokerset user list",
            err=True,
        )


def _check_for_folder(name: str, password: str, data: Path) -> None:
    """Before anything is changed."""
    try:
        if is_administrator(data, name):
            check_password(password)
    except ValueError as error:
        raise CommandFailed(f"nothing was changed: {error}", "choose another password") from None


def _keep_in_folder(name: str, password: str, data: Path) -> None:
    """The administrator of a local set signs with what is in its folder."""
    if not is_administrator(data, name):
        return
    try:
        change_administrator(data, password)
        click.echo(f"{administrator_file(data)} has it, too.")
    except (OSError, ValueError) as error:
        raise CommandFailed(
            f"{administrator_file(data)} does not have the new password: {error}", "write it there yourself"
        ) from None


@user.command("drop-former")
@click.argument("name")
@at_cluster_option
@cluster_options
def drop_former(name: str, at_cluster: str | None, cluster: Cluster) -> None:
    """Refuse the former password of the user NAME from now on."""
    _update(WantedUser(name), at_cluster, cluster)
    click.echo(f"User {name} has one password.")


@user.command()
@click.argument("name")
@at_cluster_option
@cluster_options
def disable(name: str, at_cluster: str | None, cluster: Cluster) -> None:
    """Refuse every request of the user NAME; policies stay."""
    _update(WantedUser(name, status=UserStatus.DISABLE), at_cluster, cluster)
    click.echo(f"User {name} is refused. Back: brokerset user enable {name}")


@user.command()
@click.argument("name")
@at_cluster_option
@cluster_options
def enable(name: str, at_cluster: str | None, cluster: Cluster) -> None:
    """Serve the user NAME again."""
    _update(WantedUser(name, status=UserStatus.ENABLE), at_cluster, cluster)
    click.echo(f"User {name} is served.")


def _update(wanted: WantedUser, at_cluster: str | None, cluster: Cluster) -> dict[str, int | None]:
    async def work(admin: Admin) -> dict[str, int | None]:
        return await AccessAdmin(admin, at_cluster).update_user(wanted)

    return cluster.administer(work)


@user.command()
@click.argument("name")
@yes_option
@at_cluster_option
@cluster_options
def delete(name: str, yes: bool, at_cluster: str | None, cluster: Cluster) -> None:
    """Delete the user NAME with all policies."""
    if not yes:
        click.confirm(f"Delete the user {name} with all policies?", abort=True)

    async def work(admin: Admin) -> None:
        await AccessAdmin(admin, at_cluster).delete_user(name)

    cluster.administer(work)
    click.echo(f"User {name} is gone.")


@user.command("list")
@at_cluster_option
@cluster_options
@json_option
def list_users(at_cluster: str | None, cluster: Cluster, as_json: bool) -> None:
    """List the users of each broker group; passwords are never shown.

    A former password that is accepted has the time until when, and when and from where the master that was
    asked has seen it used last, since it started.
    """

    async def work(admin: Admin) -> list[dict[str, object]]:
        found = await AccessAdmin(admin, at_cluster).users()
        return [
            {
                "broker": broker,
                "name": each.get("username"),
                "type": each.get("userType"),
                "status": each.get("userStatus"),
                **{name: each[name] for name in _ABOUT_FORMER if name in each},
            }
            for broker, users in found.items()
            for each in users
        ]

    rows = cluster.administer(work)
    if as_json:
        write_json(rows)
    else:
        titles: dict[str, str | Callable[[dict[str, object]], object]] = {
            "broker group": "broker", "name": "name", "type": "type", "status": "status"
        }  # fmt: skip
        if any("formerUntil" in row for row in rows):
            titles["former password until"] = lambda row: (
                _moment(row["formerUntil"]) if "formerUntil" in row else None
            )
            titles["last used"] = _last_used
        write_columns(rows, titles, empty="There are no users. One is made by: brokerset user create NAME")


def _last_used(row: dict[str, object]) -> object:
    if "formerUntil" not in row:
        return None
    last = row.get("formerLastUsed")
    return "not seen" if last is None else f"{_moment(last)} from {row.get('formerLastUsedFrom')}"


# -- policies ---------------------------------------------------------------------------------------------


@click.group()
def acl() -> None:
    """Policies: what users may do at brokers that check it (`authorizationEnabled`)."""


def _said(decision: Decision) -> Any:
    @click.argument("name")
    @click.argument("resources", nargs=-1, required=True, metavar="RESOURCE…")
    @click.option(
        "--action",
        "actions",
        type=click.Choice(ACTIONS, case_sensitive=False),
        multiple=True,
        required=True,
        help="What is meant; may be given several times.",
    )
    @click.option(
        "--from", "sources", multiple=True, metavar="CIDR", help="Only from there. [default: from all]"
    )
    @click.option("--default", "is_default", is_flag=True, help="Counts only where nothing else matches.")
    @at_cluster_option
    @cluster_options
    def command(
        name: str,
        resources: tuple[str, ...],
        actions: tuple[str, ...],
        sources: tuple[str, ...],
        is_default: bool,
        at_cluster: str | None,
        cluster: Cluster,
    ) -> None:
        chosen = tuple(Action(action) for action in actions)
        entries = tuple(_entry(each, chosen, decision, sources) for each in resources)
        wanted = Acl(subject_of(name), default=entries) if is_default else Acl(subject_of(name), entries)

        async def work(admin: Admin) -> None:
            await AccessAdmin(admin, at_cluster).put_acl(wanted)

        cluster.administer(work)
        done = "may" if decision is Decision.ALLOW else "may not"
        click.echo(f"User {name} {done}: {', '.join(chosen)} on {', '.join(resources)}.")

    return command


def _entry(key: str, actions: tuple[Action, ...], decision: Decision, sources: tuple[str, ...]) -> Entry:
    resource = resource_of(key)
    if resource is None:
        raise click.BadParameter(
            f"{key!r} is no resource: write *, Topic:NAME, Topic:PREFIX*, Topic:*, Group:… or Cluster:…",
            param_hint="RESOURCE",
        )
    for source in sources:
        if network_of(source) is None:
            raise click.BadParameter(f"{source!r} is no address and no range", param_hint="--from")
    return Entry(resource, actions, decision, sources)


acl.command("allow", help="Allow actions on RESOURCE… to the user NAME.")(_said(Decision.ALLOW))
acl.command("deny", help="Deny actions on RESOURCE… to the user NAME; the most specific policy decides.")(
    _said(Decision.DENY)
)


@acl.command()
@click.argument("name")
@click.argument("resource", required=False)
@click.option("--default", "is_default", is_flag=True, help="Of the policies that count last.")
@at_cluster_option
@cluster_options
def remove(
    name: str, resource: str | None, is_default: bool, at_cluster: str | None, cluster: Cluster
) -> None:
    """Remove what is said about RESOURCE for the user NAME; without RESOURCE everything."""
    if resource is not None and resource_of(resource) is None:
        raise click.BadParameter(f"{resource!r} is no resource", param_hint="RESOURCE")
    kind = PolicyType.DEFAULT if is_default else PolicyType.CUSTOM

    async def work(admin: Admin) -> None:
        await AccessAdmin(admin, at_cluster).delete_acl(subject_of(name), resource, str(kind))

    cluster.administer(work)
    click.echo(f"Nothing is said about {resource or 'anything'} for user {name} any more.")


@acl.command("list")
@click.argument("name", required=False)
@at_cluster_option
@cluster_options
@json_option
def list_acls(name: str | None, at_cluster: str | None, cluster: Cluster, as_json: bool) -> None:
    """List the policies of the user NAME, or of all."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        found = await AccessAdmin(admin, at_cluster).acls(None if name is None else subject_of(name))
        return [
            _row(broker, each, kind, entry)
            for broker, acls in found.items()
            for each in acls
            if name is None or each.subject == subject_of(name)
            for kind in PolicyType
            for entry in each.of(kind)
        ]

    rows = cluster.administer(work)
    if as_json:
        write_json(rows)
        return
    titles: dict[str, str | Callable[[dict[str, Any]], object]] = {
        "broker group": "broker",
        "user": "user",
        "policy": "policy",
        "resource": "resource",
        "decision": "decision",
        "actions": lambda row: ",".join(row["actions"]),
        "from": lambda row: ",".join(row["from"]) or "everywhere",
    }
    write_columns(rows, titles, empty="There are no policies: only Super users may do anything.")


def _row(broker: str, acl: Acl, kind: PolicyType, entry: Entry) -> dict[str, Any]:
    return {
        "broker": broker,
        "user": acl.subject.partition(":")[2],
        "policy": str(kind),
        "resource": entry.resource.key,
        "decision": str(entry.decision),
        "actions": [str(action) for action in entry.actions],
        "from": list(entry.sources),
    }


@acl.command("import")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False, exists=True)
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@at_cluster_option
@cluster_options
def import_files(files: tuple[Path, ...], dry_run: bool, at_cluster: str | None, cluster: Cluster) -> None:
    """Make users and policies of FILES of ACL 1.0 (plain_acl.yml); users that are there stay as they are."""
    found = migrate([_read(path) for path in files])
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    if dry_run:
        for each in found.users.values():
            entries = found.acls.get(subject_of(each.username), Acl(""))
            rules = counted(len(entries.custom) + len(entries.default), "rule")
            click.echo(f"would create {each.username} ({each.type}) with {rules}")
        return
    made = cluster.administer(lambda admin: _import(AccessAdmin(admin, at_cluster), found))
    click.echo(f"{counted(len(made), 'user')} made: {', '.join(made) or 'all were there'}")


async def _import(access: AccessAdmin, found: Migrated) -> list[str]:
    """Users that every group has already are left alone, with their policies."""
    known = [{str(each.get("username")) for each in users} for users in (await access.users()).values()]
    made = []
    for name, each in found.users.items():
        if known and all(name in names for names in known):
            continue
        await access.create_user(WantedUser(name, each.password, each.type))
        if (said := found.acls.get(subject_of(name))) is not None:
            await access.put_acl(said)
        made.append(name)
    return made


def _read(path: Path) -> dict[str, object]:
    try:
        found = read_yaml(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, YamlProblem) as error:
        raise CommandFailed(f"{path} cannot be read: {error}", "give a file of ACL 1.0") from None
    if not isinstance(found, dict):
        raise CommandFailed(f"{path} is no map of YAML", "give a file of ACL 1.0, as conf/plain_acl.yml")
    return found
