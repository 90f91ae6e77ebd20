"""`brokerset upgrade … --back`: everything that was done comes back, or is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from brokerset_cli.output import fail
from brokerset_cli.takeover import upgrade_exchange, upgrade_files
from brokerset_cli.takeover.java_switchover import ACCEPTS, PERMISSION
from brokerset_cli.takeover.upgrade_acts import set_permission
from brokerset_cli.takeover.upgrade_facts import Note, Origin, StoreSeen, World
from brokerset_cli.takeover.upgrade_observation import UpgradeObserver, Where


@dataclass(frozen=True, slots=True)
class Back:
    """What came of it, as sentences."""

    done: tuple[str, ...]
    left: tuple[str, ...]
    """What the person has to do before the old brokers and controllers start."""


async def go_back(where: Where, *, yes: bool, say: Callable[[str], None]) -> Back:
    """Put everything back that was done here; refused once a new broker has run. May be repeated.

    `say` gets what is left for the person at once: it is forgotten with the manifest.
    """
    observer = UpgradeObserver(where)
    _check(await observer.observe(logs=False))
    if not yes:
        click.confirm("Put back what the upgrade moved?", abort=True)
    world = await observer.observe(logs=False)  # the answer may have taken long
    _check(world)
    done, left = _folders_back(where, world)
    for line in left:
        say(line)
    for each in world.stores:
        if each.here and where.flow is Origin.DLEDGER:
            upgrade_exchange.forget_new(each.store.path)
        if not each.here or each.note is None:
            continue
        given, missed = await _permission_back(each)
        for line in missed:
            say(line)
        done += given
        left += missed
        but = _files_back(each.store.path, each.note)
        done.append(f"{each.name} is as it was{', but ' if but else ''}{'; '.join(but)}")
    if world.controllers_problem and any(each.here and each.prepared for each in world.stores):
        done.append(
            f"whether a broker of {world.group} has run with a persistent id on another host could not be"
            f" asked ({world.controllers_problem}): it would have left a brokerIdentity in its store, and"
            " what it took would be there only"
        )
    return Back(tuple(done), tuple(left))


def _files_back(store: Path, note: Note) -> list[str]:
    """What was done to the files of a store; what is not as it was, as sentences."""
    if note.flow != Origin.DLEDGER:
        return upgrade_files.put_back(store, note)
    but = upgrade_exchange.exchange_back(store, note) if note.exchange else []
    return but + upgrade_files.put_back(store, upgrade_files.note_of(store, note.flow, note.group))


def _check(world: World) -> None:
    """End the command while there is no way back, or a broker is in the way."""
    late = [each.name for each in world.stores if each.store.identity is not None]
    if late:
        fail(
            f"brokers with persistent ids have run on {', '.join(late)}: there is no way back;"
            " nothing was changed",
            "messages that were taken since are in the new log only; go on with the upgrade",
        )
    prepared = any(each.here and each.prepared for each in world.stores)
    if prepared and world.replicas is not None and world.replicas.replicas:
        fail(
            f"the new controllers know {world.group} already: a broker of it has run with a persistent id, "
            "here or on another host; nothing was changed",
            "go on with the upgrade; or, if that broker took no messages, stop it and clean the group at "
            "these controllers",
        )
    running = [
        each.name
        for each in world.stores
        if each.here and (each.locked or each.starting) and each.note and each.note.changed
    ]
    if running:
        fail(f"brokers run on {', '.join(running)}; nothing was changed", "stop them first")


def _folders_back(where: Where, world: World) -> tuple[list[str], list[str]]:
    """The old controllers' folders: those that were named, and those of the manifests."""
    noted = [Path(name) for each in world.stores if each.here and each.note for name in each.note.aside]
    done, left = [], []
    for folder in dict.fromkeys((*where.old_data, *noted)):
        aside = upgrade_files.aside_of(folder)
        if not aside.exists():
            if not folder.exists():
                left.append(f"neither {folder} nor {aside} is there: look for the old controllers' data")
        elif folder.exists():
            left.append(
                f"{folder} was not put back: the old controllers' data is in {aside}, and something else"
                f" stands at {folder}, such as the data of new controllers. Stop what uses it, move it"
                f" elsewhere, then rename {aside} to {folder}"
            )
        else:
            upgrade_files.take_back(folder)
            done.append(f"{folder} is in its place again")
    return done, left


async def _permission_back(each: StoreSeen) -> tuple[list[str], list[str]]:
    """Give the old master back what it allowed, while it runs; what was done, and what is left."""
    note = each.note
    if note is None or note.permission is None:
        return [], []
    if note.address and each.port_open:
        await set_permission(note.address, note.permission, closes=False)
        return [f"{note.address} has {PERMISSION}={note.permission} again"], []
    return [], [
        f"{note.address or f'the broker of {each.name}'} does not answer, so it was not told: before it"
        f" starts, set {PERMISSION}={note.permission} and {ACCEPTS}=0 in its settings file, as it keeps there"
        " what it was told"
    ]
