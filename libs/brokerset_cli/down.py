"""`brokerset down`: ends what `up` runs, in order, and deletes it when asked to."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final, NoReturn

import click

from brokerset_cli.folder import DataFolder, ProcessState, SetState
from brokerset_cli.options import data_option
from brokerset_cli.output import fail
from brokerset_cli.processes import send_signal, wait_gone
from brokerset_cli.takeover.adoption_journal import ADOPTION, Journal

STOP_SECONDS_MAX: Final = 90.0
"""Longest time that `up` may take to end: it gives each process 20 s."""

LEFTOVER_SECONDS_MAX: Final = 20.0
"""Longest time that a process without its `up` may take to end."""


@click.command()
@data_option
@click.option("--purge", is_flag=True, help="Also delete the data folder with all messages.")
@click.option("--yes", is_flag=True, help="Do not ask before deleting.")
def down(data: Path, purge: bool, yes: bool) -> None:
    """Stop the set that `brokerset up` runs; messages are kept unless --purge is given.

    Succeeds also when nothing of it runs.
    """
    folder = DataFolder(data)
    if folder.owner() is None:
        fail(f"{folder.path} is not a folder of brokerset", "give the folder that `up` was given with --data")
    if purge and (folder.path / ADOPTION).exists():
        _refuse_purge(folder)
    if purge and not yes:
        click.confirm(f"Delete {folder.path} with all messages?", abort=True)
    click.echo("Stopped." if stop_set(folder) else "Nothing runs.")
    if purge:
        folder.purge()
        click.echo(f"Deleted {folder.path}.")


def _refuse_purge(folder: DataFolder) -> NoReturn:
    """Say how brokers that joined another cluster leave it; ends the command."""
    joined_cluster_of, remembered = folder.memory().joined_cluster_of, Journal(folder.path).read()
    finishing = remembered is not None and remembered.finishing is not None
    if finishing and (joined_cluster_of is None or not joined_cluster_of.controllers):
        fail(
            f"the set in {folder.path} has not left the cluster that it joined yet, which still knows its "
            "brokers: nothing done",
            f"`brokerset adopt --data {folder.path} --finish` ends that; then it can be deleted",
        )
    fail(
        f"the brokers in {folder.path} are replicas of a cluster that goes on without them: nothing done",
        f"`brokerset adopt --data {folder.path} --back` lets them leave it, and deletes the folder",
    )


def stop_set(folder: DataFolder) -> bool:
    """End everything that `up` runs in a folder; whether anything ran. Ends the command when that fails."""
    state = folder.read_state()
    stopped = _stop_up(state) if state is not None else False
    leftovers = [process for process in (state.processes if state else ()) if process.alive]
    for process in reversed(leftovers):
        _stop_leftover(process)
    if (pid := folder.running_pid()) is not None:
        fail(f"process {pid} still holds {folder.path}", f"wait for it, or end it with: kill {pid}")
    return stopped or bool(leftovers)


def _stop_up(state: SetState) -> bool:
    """Tell `up` to stop and wait; whether it was running."""
    if not send_signal(state.pid, state.start_ticks, signal.SIGTERM):
        return False
    if not wait_gone(state.pid, state.start_ticks, STOP_SECONDS_MAX):
        fail(
            f"process {state.pid}, which runs the set, has not ended after {STOP_SECONDS_MAX:g} s",
            f"look into the logs; `kill -9 {state.pid}` ends it at once, then run `brokerset down` again",
        )
    return True


def _stop_leftover(process: ProcessState) -> None:
    """End a process whose `up` was killed and could not end it."""
    # Standard output may be read as JSON.
    click.echo(f"{process.name} (process {process.pid}) has lost its `up` and is stopped", err=True)
    send_signal(process.pid, process.start_ticks, signal.SIGTERM)
    if not wait_gone(process.pid, process.start_ticks, LEFTOVER_SECONDS_MAX):
        click.echo(f"{process.name} has not ended after {LEFTOVER_SECONDS_MAX:g} s and is killed", err=True)
        send_signal(process.pid, process.start_ticks, signal.SIGKILL)
        wait_gone(process.pid, process.start_ticks, LEFTOVER_SECONDS_MAX)
