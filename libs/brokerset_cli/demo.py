"""`brokerset demo`: a whole life of a set in under a minute, with everything checked."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from brokerset_cli.client_session import run
from brokerset_cli.consuming import Taken, parse_start, take
from brokerset_cli.folder import DataFolder
from brokerset_cli.output import fail, progress
from brokerset_cli.sending import Sent, check_statuses, send_all
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import Message, MessageView
from brokerset_client.producer import Producer

TOPIC: Final = "demo"
BODY_BYTES: Final = 1024

IN_FLIGHT_MAX: Final = 128
"""Requests on their way at once while sending."""

IDLE_SECONDS: Final = 10.0
"""Reading gives up when no message comes for so long."""


@click.command()
@click.option(
    "--count",
    type=click.IntRange(1),
    metavar="N",
    default=10_000,
    show_default=True,
    help="Number of messages.",
)
def demo(count: int) -> None:
    """Run a set in a temporary folder on free ports, send messages, read them back, compare, clean up.

    Fails when one message is missing or differs. It touches neither running sets nor their data.
    """
    began = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="brokerset-demo-")) / "data"
    try:
        _step("1. Start a name server and a broker, on free ports, in " + str(folder))
        _command(
            "up",
            "--detach",
            "--data",
            str(folder),
            "--namesrv-port",
            "0",
            "--broker-port",
            "0",
            "--http-port",
            "0",
        )
        namesrv = _namesrv(folder)
        _step(f"2. Send {count:,} messages of {BODY_BYTES} bytes to the topic {TOPIC!r}")
        sent = run(namesrv, lambda instance: _send(instance, count))
        check_statuses(sent)
        click.echo(f"{sent.count:,} messages acknowledged in {sent.seconds:.2f} s: {sent.per_second:,.0f}/s")
        _step("3. Read them back as a consumer group, and compare every one with what was sent")
        check = Check(count)
        taken = run(namesrv, lambda instance: _read(instance, check))
        check.finish()
        click.echo(
            f"{taken.count:,} messages read in {taken.seconds:.2f} s: {taken.per_second:,.0f}/s; "
            f"none missing, none different, {check.doubled:,} twice"
        )
        _step("4. Look at the processes and the broker")
        _command("status", "--data", str(folder))
        _step("5. Stop everything and delete the data")
        _command("down", "--data", str(folder), "--purge", "--yes")
        shutil.rmtree(folder.parent)
    except BaseException:
        click.echo(f"The demo failed; logs are in {folder / 'logs'}", err=True)
        if DataFolder(folder).owner() is not None:
            subprocess.run(
                [sys.executable, "-m", "brokerset_cli.main", "down", "--data", str(folder)], check=False
            )
        raise
    click.secho(
        f"Done in {time.perf_counter() - began:.1f} s: all {count:,} messages came through.",
        fg="green",
        bold=True,
    )


def body_of(number: int) -> bytes:
    """Return the body of a message: its number and bytes that only this number has."""
    seed = hashlib.sha256(str(number).encode()).hexdigest()
    return f"{number}:{seed}".encode().ljust(BODY_BYTES, b".")


class Check:
    """Compares what was read with what was sent."""

    def __init__(self, count: int) -> None:
        self._missing = dict.fromkeys(range(count))
        self.expected = count
        self.doubled = 0
        """Messages that came more than once, as may happen after a lost connection."""

    def add(self, body: bytes) -> None:
        """Count a message; ends the command when it is none of those that were sent."""
        head = body.split(b":", 1)[0]
        number = int(head) if head.isdigit() else -1
        if not 0 <= number < self.expected or body != body_of(number):
            fail(f"a message differs from what was sent: {body[:80]!r}", "please report this, with the logs")
        if number in self._missing:
            del self._missing[number]
        else:
            self.doubled += 1

    def finish(self) -> None:
        """End the command when messages are missing."""
        if self._missing:
            some = ", ".join(map(str, list(self._missing)[:5]))
            fail(
                f"{len(self._missing):,} of {self.expected:,} acknowledged messages did not come back: "
                f"{some}, …",
                "please report this, with the logs",
            )


def _messages(count: int) -> Iterator[Message]:
    for number in range(count):
        yield Message(topic=TOPIC, body=body_of(number), keys=(f"demo-{number}",), tags="demo")


async def _send(instance: ClientInstance, count: int) -> Sent:
    async with Producer("brokerset-demo", instance=instance) as producer:
        with progress("sending", count) as done:
            return await send_all(producer, _messages(count), done=done, in_flight_max=IN_FLIGHT_MAX)


async def _read(instance: ClientInstance, check: Check) -> Taken:
    problems: list[click.ClickException] = []
    with progress("reading", check.expected) as done:

        def handle(message: MessageView) -> None:
            try:
                check.add(message.body)
            except click.ClickException as error:
                problems.append(error)
                raise OSError("a message differs") from error
            done(1)

        try:
            return await take(
                instance,
                TOPIC,
                "brokerset-demo",
                start=parse_start("earliest"),
                handle=handle,
                count=check.expected,
                idle_seconds=IDLE_SECONDS,
            )
        except OSError:
            raise problems[0] from None


def _namesrv(folder: Path) -> str:
    state = DataFolder(folder).read_state()
    if state is None:
        fail(f"{folder} has no state file though `up` succeeded", "please report this")
    return state.namesrv


def _step(text: str) -> None:
    click.secho(f"\n{text}", bold=True)


def _command(*arguments: str) -> None:
    """Run a brokerset command as a person would; ends this one when it fails."""
    click.secho(f"$ brokerset {' '.join(arguments)}", dim=True)
    done = subprocess.run([sys.executable, "-m", "brokerset_cli.main", *arguments], check=False)
    if done.returncode:
        fail(f"`brokerset {arguments[0]}` ended with exit code {done.returncode}", "its error is above")
