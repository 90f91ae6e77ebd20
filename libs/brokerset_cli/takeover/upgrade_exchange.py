"""Exchanges the content of a DLedger member's store. Everything may be interrupted anywhere and done again.

What is there moves to the backup folder, by renames; on the chosen store what the migration made alongside
moves into its place, on the others nothing does.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover.old_store import BACKUP, EPOCHS, EPOCHS_BACKUP, LOCK
from brokerset_cli.takeover.upgrade_dledger import BACK, BEGUN, DONE
from brokerset_cli.takeover.upgrade_facts import Note
from brokerset_cli.takeover.upgrade_files import (
    exclusively,
    move,
    refuse_after_new_broker,
    refuse_others,
    write_note,
)
from brokerset_runtime.files import sync_folder

NEW_SUFFIX: Final = "-upgrade-new"
"""Of the folder next to a store in which its migration makes what it becomes."""

CONFIG: Final = "config"
STAMP: Final = f"{CONFIG}/brokersetMetadata.json"
"""Names an offset of the log that is moved aside: an empty store must not have it."""

EXCHANGED: Final = "exchanged"
"""Folder in the backup with what `--back` took out, and a number."""

State = Mapping[str, tuple[int, int]]


def new_of(store: Path) -> Path:
    """Where the migration makes what a store becomes."""
    return store.with_name(store.name + NEW_SUFFIX)


def forget_new(store: Path) -> None:
    """Remove what the migration has made, whole or not; all of it can be made again.

    Ends the command when the folder is somebody else's: a migration leaves its record before it.
    """
    new = new_of(store)
    record = new.with_name(f"{new.name}.brokerset-migration.json")
    if new.exists() and not record.exists():
        raise CommandFailed(
            f"{new} is in the way: what {store} becomes is made there", "move it elsewhere; then repeat this"
        )
    for folder in (new, new.with_name(f"{new.name}.brokerset-staging")):
        if folder.exists():
            shutil.rmtree(folder)
    record.unlink(missing_ok=True)
    sync_folder(store.parent)


def state_of_files(store: Path) -> State:
    """Size and time of all files of a store: whether anybody has changed it."""
    found = {}
    for path in store.rglob("*"):
        name = path.relative_to(store)
        if name.parts[0] not in (BACKUP, LOCK) and path.is_file():
            facts = path.stat()
            found[str(name)] = facts.st_size, facts.st_mtime_ns
    return found


def exchange(
    store: Path,
    note: Note,
    new: Path | None,
    *,
    chosen: tuple[int, int] | None = None,
    expected: State | None = None,
) -> None:
    """Move all of a store but its lock aside, and what is in `new` into its place; without `new` the files of
    `config/` stay.

    Ends the command, with nothing changed, when the files are not in the `expected` state any more.
    """
    with exclusively(store):
        if note.exchange != BEGUN:
            if expected is not None and state_of_files(store) != expected:
                raise CommandFailed(
                    f"files of {store} have changed while it was read: a broker has run",
                    "stop it; then repeat this",
                )
            note = _begin(store, note, new, chosen)
        for is_config in (False, True):  # without `config` it would not be known for a store
            for name in note.moved:
                if (name == CONFIG) is is_config and not (store / BACKUP / name).exists():
                    _move(store / name, store / BACKUP / name)
            for path in sorted(new.iterdir()) if new is not None and new.exists() else ():
                if (path.name == CONFIG) is is_config and path.name != LOCK:
                    move(path, store / path.name)
        if new is not None:
            forget_new(store)
        write_note(store, replace(note, exchange=DONE))


def _begin(store: Path, note: Note, new: Path | None, chosen: tuple[int, int] | None) -> Note:
    names = [each.name for each in sorted(store.iterdir()) if each.name not in (BACKUP, LOCK)]
    if new is None:
        names = [name for name in names if name != CONFIG]
        names += [STAMP] if (store / STAMP).exists() else []
    refuse_others(store, names)
    fresh = [each.name for each in sorted(new.iterdir()) if each.name != LOCK] if new is not None else []
    note = replace(
        note,
        exchange=BEGUN,
        chosen=chosen,
        moved=(*note.moved, *names),
        made=(*note.made, *(name for name in fresh if name not in names)),
    )
    write_note(store, note)
    return note


def exchange_back(store: Path, note: Note) -> list[str]:
    """Undo it. What stands in the place of what comes back is kept; returns where, as a sentence.

    Ends the command when a broker with a persistent id has run.
    """
    with exclusively(store):
        refuse_after_new_broker(store)
        note = replace(note, exchange=BACK)
        write_note(store, note)
        others = (EPOCHS, EPOCHS_BACKUP)  # these belong to the step behind this one
        numbers = (store / BACKUP / f"{EXCHANGED}.{n}" for n in itertools.count(1))
        kept = next(each for each in numbers if not each.exists())
        for name in dict.fromkeys((*note.moved, *note.made)):
            backup = store / BACKUP / name
            if name in others or (name in note.moved and not backup.exists()):
                continue  # it is back already
            if (store / name).exists():
                _move(store / name, kept / name)
            if name in note.moved:
                move(backup, store / name)
        folder = (store / BACKUP / STAMP).parent
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()  # else another `config` could not be moved there
        rest = [tuple(name for name in names if name in others) for names in (note.moved, note.made)]
        write_note(store, replace(note, exchange="", chosen=None, moved=rest[0], made=rest[1]))
    if not any((store / BACKUP).glob(f"{EXCHANGED}.*")):
        return []
    return [f"what it was in between is in {store / BACKUP}/{EXCHANGED}.*; delete that when you are content"]


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    sync_folder(target.parent.parent)
    move(source, target)
