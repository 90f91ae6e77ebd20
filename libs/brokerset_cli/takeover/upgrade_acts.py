"""What `brokerset upgrade` does on its steps, one act at a time: to notes, brokers, folders and logs."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from brokerset_cli.output import CommandFailed, fail
from brokerset_cli.takeover import upgrade_exchange, upgrade_files
from brokerset_cli.takeover.broker_queries import BrokerQueries, clock_ms
from brokerset_cli.takeover.java_switchover import ACCEPTS, PERMISSION
from brokerset_cli.takeover.old_store import BACKUP
from brokerset_cli.takeover.upgrade_dledger import BEGUN
from brokerset_cli.takeover.upgrade_facts import (
    Act,
    Exchange,
    Note,
    Prepare,
    PutAside,
    SetPermission,
    StartBroker,
    TakeNote,
    TruncateLog,
    World,
)
from brokerset_cli.takeover.upgrade_migration import migrate
from brokerset_cli.takeover.upgrade_observation import STORE_VARIABLE, Where
from brokerset_client.errors import ClientError

CLOSED_MS: Final = 3_600_000
"""How long an old master turns sends away if nobody stops it; after that it is told again."""

OBSERVE_SECONDS: Final = 1.0
"""Pause between two observations while something is waited for."""

SERVICE_SECONDS_MAX: Final = 60.0
"""So long after `--start-with` has ended well, a service that it started may take to lock the store."""


class UpgradeActs:
    """The acts of one call."""

    def __init__(self, where: Where, *, start_with: str) -> None:
        self._where = where
        self._start_with = start_with
        self._started: dict[Path, tuple[subprocess.Popen[bytes], float]] = {}
        """What was started for a store, and when."""

    async def carry_out(self, act: Act, world: World) -> None:
        """Do it, or end the command with why not."""
        with upgrade_files.disk_errors():
            match act:
                case TakeNote(store, address, master, members, levels):
                    changes = {"address": address, "master": master, "members": members}
                    self._note(store, world, **changes, delay_levels=levels)
                case SetPermission(address, value, was, store, closes):
                    if was is not None:
                        known = self._noted(store, world).address
                        self._note(store, world, permission=was, address=known or address)
                    await set_permission(address, value, closes=closes)
                case PutAside(folder):
                    upgrade_files.check_aside(Path(folder))
                    first = str(self._where.stores[0])
                    aside = self._noted(first, world).aside
                    self._note(first, world, aside=(*(each for each in aside if each != folder), folder))
                    upgrade_files.put_aside(Path(folder))
                case TruncateLog(store, offset):
                    upgrade_files.truncate_log(Path(store), self._noted(store, world), offset)
                case Exchange(store, chosen, until):
                    await self._exchange(Path(store), self._noted(store, world), chosen, until)
                case Prepare(store, empty, leader):
                    note = replace(self._noted(store, world), leader=leader)
                    upgrade_files.prepare(Path(store), note, empty=empty)
                case StartBroker(store):
                    await self._start(Path(store))

    def _noted(self, store: str, world: World) -> Note:
        return upgrade_files.note_of(Path(store), world.flow.value, world.group)

    def _note(self, store: str, world: World, **changes: Any) -> None:
        upgrade_files.write_note(Path(store), replace(self._noted(store, world), **changes))

    async def _exchange(
        self, store: Path, note: Note, chosen: tuple[int, int] | None, until: int | None
    ) -> None:
        expected = upgrade_exchange.state_of_files(store)
        new = upgrade_exchange.new_of(store) if chosen is not None else None
        if new is not None and note.exchange != BEGUN:
            await migrate(store, until=until, delay_levels=note.delay_levels)
        upgrade_exchange.exchange(store, note, new, chosen=chosen, expected=expected)

    async def _start(self, store: Path) -> None:
        """Start the new broker of a store; it outlives this command. Its output goes next to the manifest."""
        said = store / BACKUP / "start.log"
        if store in self._started:
            process, since = self._started[store]
            if process.poll() == 0 and time.monotonic() - since < SERVICE_SECONDS_MAX:
                # Such as systemctl: a service is about to lock the store.
                await asyncio.sleep(OBSERVE_SECONDS)
                return
            last = said.read_text(errors="replace").strip().splitlines()[-1:]
            fail(
                f"the broker that was started on {store} has ended: {(last or ['it said nothing'])[0][:500]}",
                f"see {said}, correct the settings or --start-with, then repeat this",
            )
        words = start_command(self._start_with, store, self._where.stores.index(store))
        self._started[store] = (_launch(words, store, said), time.monotonic())


def _launch(words: list[str], store: Path, output: Path) -> subprocess.Popen[bytes]:
    with output.open("ab") as log:
        try:
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, STORE_VARIABLE: str(store)},
            )
        except OSError as error:
            fail(f"{words[0]} cannot be started: {error.strerror}", "correct --start-with")


def start_command(text: str, store: Path, number: int) -> list[str]:
    """The words of `--start-with` with `{store}` and `{number}` filled in; other braces stay."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}", param_hint="--start-with") from None
    if not words:
        raise click.BadParameter("it names no program", param_hint="--start-with")
    return [each.replace("{store}", str(store)).replace("{number}", str(number)) for each in words]


async def set_permission(address: str, value: int, *, closes: bool) -> None:
    """Set `brokerPermission`, and turn every send away for a while or not at all.

    One does not follow from the other: a master without the right to write takes most sends.
    """
    changes = {PERMISSION: str(value)}
    async with BrokerQueries() as brokers:
        try:
            if ACCEPTS in await brokers.settings(address):
                now_ms = clock_ms(await brokers.measurements(address)) or time.time_ns() // 1_000_000
                changes[ACCEPTS] = str(now_ms + CLOSED_MS) if closes else "0"
            await brokers.change(address, changes)
        except ClientError as error:
            raise CommandFailed(
                f"{address} did not take brokerPermission={value}: {error}",
                "see its log, or set it with mqadmin updateBrokerConfig, then repeat this",
            ) from None
