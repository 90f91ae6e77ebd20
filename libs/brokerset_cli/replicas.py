"""`brokerset clean`, `elect` and `replica`: what people decide about single replicas."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

import click

from brokerset_cli.controller_session import Controllers, controllers_options, one_group, one_replica
from brokerset_cli.options import json_option, yes_option
from brokerset_cli.output import CommandFailed, counted, fail, write_json
from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import RequestRefused
from brokerset_formats.errors import FormatError
from brokerset_formats.identity import BrokerIdentity
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_protocol.codes import ResponseCode
from brokerset_runtime.files import FileLocked, lock_file, sync_folder
from brokerset_spec.broker_settings import NAME_PATTERN

IDENTITY: Final = "brokerIdentity"
IDENTITY_FILES: Final = (IDENTITY, f"{IDENTITY}-temp", f"{IDENTITY}-start")
"""Files by which a store is a certain replica."""

STORE_MARKS: Final = ("commitlog", "checkpoint", "abort", "config", *IDENTITY_FILES)
"""A folder with one of these is a store."""

LOCK: Final = "lock"
"""File that a running broker has locked; it stays where it is."""


@click.command()
@click.argument("group")
@click.argument("ids", metavar="ID...", nargs=-1, type=click.IntRange(0))
@click.option("--all", "everything", is_flag=True, help="All replicas of the group.")
@click.option("--live", is_flag=True, help="Also replicas that are alive.")
@yes_option
@controllers_options
@json_option
def clean(
    group: str,
    ids: tuple[int, ...],
    everything: bool,
    live: bool,
    yes: bool,
    controllers: Controllers,
    as_json: bool,
) -> None:
    """Let the controllers forget replicas of GROUP for good.

    Their ids are never given again, and a broker that comes back with one is kept out.
    """
    if bool(ids) == everything:
        raise click.UsageError("Give the ids of replicas, or --all.")
    state = controllers.run(lambda admin: one_group(admin, group))
    chosen = tuple(r.broker_id for r in state.replicas) if everything else tuple(sorted(set(ids)))
    found = [one_replica(state, broker_id) for broker_id in chosen]
    if not found:
        raise CommandFailed(f"{group} has no replicas any more", "there is nothing to clean")
    living = [each for each in found if each.standing == "alive"]
    if living and not live:
        names = ", ".join(f"{group}/{each.broker_id} at {each.address}" for each in living)
        raise CommandFailed(
            f"alive: {names}; nothing was changed",
            "stop these brokers first, or give --live: they are kept out from then on",
        )
    if not yes:
        for replica in found:
            click.echo(f"{group}/{replica.broker_id} at {replica.address}, {replica.standing}")
        click.confirm(f"Forget {counted(len(found), 'replica')} for good?", abort=True)
    controllers.run(lambda admin: admin.clean(state, chosen, living=live))
    if as_json:
        write_json({"group": group, "cleaned": list(chosen)})
    else:
        click.echo(f"Forgotten: {', '.join(f'{group}/{broker_id}' for broker_id in chosen)}.")


@click.command()
@click.argument("group")
@click.argument("broker_id", metavar="[ID]", type=click.IntRange(0), required=False)
@click.option(
    "--unclean", is_flag=True, help="Accept that acknowledged messages may be lost, if nobody in sync lives."
)
@controllers_options
@json_option
def elect(group: str, broker_id: int | None, unclean: bool, controllers: Controllers, as_json: bool) -> None:
    """Elect a master of GROUP now: the replica ID, or the best one."""

    async def work(admin: ControllerAdmin) -> tuple[GroupState, bool]:
        state = await one_group(admin, group)
        if broker_id is not None:
            one_replica(state, broker_id)
        try:
            await admin.elect(state, broker_id, unclean=unclean)
        except RequestRefused as error:
            if error.code != ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
                raise
            return await one_group(admin, group), False
        return await one_group(admin, group), True

    state, changed = controllers.run(work)
    if as_json:
        write_json(
            {
                "group": group,
                "masterId": state.master_id,
                "masterEpoch": state.master_epoch,
                "changed": changed,
            }
        )
        return
    address = next((r.address for r in state.replicas if r.broker_id == state.master_id), "")
    word = "is master" if changed else "is the living master already"
    click.echo(f"{group}/{state.master_id} at {address} {word}, epoch {state.master_epoch}.")


@click.group()
def replica() -> None:
    """Give up a replica, or make a store folder another replica."""


@replica.command()
@click.argument("group")
@click.argument("broker_id", metavar="ID", type=click.IntRange(0))
@yes_option
@controllers_options
def retire(group: str, broker_id: int, yes: bool, controllers: Controllers) -> None:
    """Give up the replica ID of GROUP, which does not run any more: its id is never given again."""
    state = controllers.run(lambda admin: one_group(admin, group))
    found = one_replica(state, broker_id)
    if state.master_id == broker_id and found.standing == "alive":
        raise CommandFailed(
            f"{group}/{broker_id} is the master", f"elect another one first: `brokerset elect {group} ID`"
        )
    if found.standing == "alive":
        raise CommandFailed(f"{group}/{broker_id} at {found.address} is alive", "stop its process first")
    if not yes:
        click.confirm(f"Give up {group}/{broker_id}, last at {found.address}, for good?", abort=True)
    controllers.run(lambda admin: admin.clean(state, (broker_id,)))
    click.echo(
        f"{group}/{broker_id} is given up. Its folder cannot come back as that replica; to use it again, "
        "run `brokerset replica replace FOLDER`."
    )


@replica.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--empty", is_flag=True, help="Also put the messages aside: the replica starts without any.")
@yes_option
def replace(folder: Path, empty: bool, yes: bool) -> None:
    """Make the store in FOLDER a new replica of its group: it asks for a new id at its next start.

    For a copied, overtaken or restored volume, and for one whose id was given up. Its broker must not run.
    Nothing is deleted: what is taken away lies in a dated folder inside of it.
    """
    store = _store(folder)
    identity = _identity(store)
    who = f"{identity.broker_name}/{identity.broker_id}" if identity else "no replica yet"
    if not yes:
        click.confirm(f"{store} is {who}. Make it a new replica?", abort=True)
    aside = put_aside(store, everything=empty)
    click.echo(f"{store} was {who}; what made it that lies in {aside}.")
    kept = "without messages" if empty else "with the messages that it has"
    click.echo(f"At its next start it asks for a new id, and joins its group {kept}.")
    if identity is not None:
        click.echo(
            f"When {who} is not to come back from another folder, give it up: "
            f"brokerset replica retire {identity.broker_name} {identity.broker_id}"
        )


@replica.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--group", "group", metavar="NAME", required=True, help="The group that it is to join.")
@yes_option
def rehome(folder: Path, group: str, yes: bool) -> None:
    """Make the store in FOLDER an empty replica of another group; its broker must not run.

    Messages of one group never belong to another, so all of them are put aside, in a dated folder inside.
    """
    if not NAME_PATTERN.fullmatch(group):
        raise click.BadParameter("must be 1 to 127 letters, digits, _, -, % or |", param_hint="--group")
    store = _store(folder)
    identity = _identity(store)
    if identity is not None and identity.broker_name == group:
        raise CommandFailed(
            f"{store} belongs to {group} already",
            "use `brokerset replica replace` for a new id in the same group",
        )
    was = f"{identity.broker_name}/{identity.broker_id}" if identity else "no replica yet"
    if not yes:
        click.confirm(f"{store} is {was}. Put its messages aside, so that it can join {group}?", abort=True)
    aside = put_aside(store, everything=True)
    click.echo(f"{store} was {was}; everything that was in it lies in {aside}.")
    click.echo(f"Start its broker with brokerName={group}: it asks for an id there, and has no messages.")


def put_aside(store: Path, *, everything: bool) -> Path:
    """Move the identity, or everything, into a dated folder of the store; ends the command when it runs."""
    try:
        lock = lock_file(store / LOCK)
    except FileLocked as error:
        fail(str(error), f"stop the broker that uses {store} first; nothing was changed")
    try:
        aside = store / f"aside-{datetime.now().astimezone():%Y%m%d-%H%M%S-%f}"
        aside.mkdir()
        for path in sorted(store.iterdir()):
            mine = path.name != LOCK and not path.name.startswith("aside-")
            if mine and (everything or path.name in IDENTITY_FILES):
                path.rename(aside / path.name)
        sync_folder(aside)
        sync_folder(store)
        return aside
    except OSError as error:
        fail(
            f"{error.filename or store} cannot be moved: {error.strerror}",
            "see to it that you may write there, then repeat this: what was moved already stays moved",
        )
    finally:
        lock.release()


def _store(folder: Path) -> Path:
    """Return the store that is `folder`, or right in it; ends the command when there is none."""
    for candidate in (folder, folder / "store"):
        if any((candidate / name).exists() for name in STORE_MARKS):
            return candidate.absolute()
    fail(
        f"{folder} is no store of a broker",
        "give the folder of storePathRootDir; in a local set it is brokers/<name>/store in the data folder",
    )


def _identity(store: Path) -> BrokerIdentity | None:
    try:
        return BrokerIdentity.decode((store / IDENTITY).read_bytes())
    except FileNotFoundError:
        return None
    except FormatError as error:
        click.echo(f"Note: {store / IDENTITY} cannot be read: {error}", err=True)
        return None
    except OSError as error:
        fail(f"{store / IDENTITY} cannot be read: {error.strerror}", "see to it that you may read it")
