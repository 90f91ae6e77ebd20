"""`brokerset demo`: a whole life of a set in half a minute, with crashes, and with everything checked."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from brokerset_bench import demo_failover, demo_faults, log_comparison
from brokerset_bench.demo_faults import REPORT
from brokerset_bench.history import body_of, number_of
from brokerset_cli.client_session import run
from brokerset_cli.consuming import Taken, parse_start, take
from brokerset_cli.folder import DataFolder
from brokerset_cli.options import mode_option
from brokerset_cli.output import fail, progress
from brokerset_cli.scaling import running_state
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import Message, MessageView
from brokerset_spec.set_parts import DLEDGER

TOPIC: Final = "demo"
BODY_BYTES: Final = 1024

IDLE_SECONDS: Final = 10.0
"""Reading gives up when no message comes for so long."""

CRASH_SHARE: Final = 20
"""One message in so many is sent one by one while the leading controller dies."""

MANIFEST: Final = """\
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {name: demo}
spec:
  replicas: 3
  replication: {mode: %s}
  config: {mappedFileSizeCommitLog: 67108864}
"""
"""With the mode in its place; controllers are three where the mode has any."""


@click.command()
@click.option(
    "--count",
    type=click.IntRange(2),
    metavar="N",
    default=10_000,
    show_default=True,
    help="Number of messages.",
)
@mode_option
def demo(count: int, mode: str) -> None:
    """Run a set in a temporary folder on free ports, send messages, kill parts of it, compare, clean up.

    Three controllers and three brokers run. The master is killed under load, then the leading controller,
    then every broker; each comes back at another port with the id that it had. With --mode dledger there are
    no controllers, and the leadership is transferred instead. It fails when a message that was acknowledged
    is missing or differs, when an id changes, or when the brokers' logs are not the same. It touches neither
    running sets nor their data.
    """
    began = time.perf_counter()
    # A shell lets what it runs in the background ignore Ctrl-C.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    top = Path(tempfile.mkdtemp(prefix="brokerset-demo-"))
    folder = top / "data"
    try:
        ledger = mode == DLEDGER
        first = "a name server, and a DLedger" if ledger else "three controllers with name servers, and a"
        _step(f"1. Start {first} group of three brokers, in {folder}")
        (top / "demo.yaml").write_text(MANIFEST % mode)
        ports = [f"--{name}-port=0" for name in ("namesrv", "broker", "http")]
        _command("up", "--detach", "-f", str(top / "demo.yaml"), "--data", str(folder), *ports)
        last = max(1, count // CRASH_SHARE)
        _step("2. Kill the master (kill -9) while a writer writes and a reader reads")
        demo_failover.kill_master(DataFolder(folder), TOPIC, list(_messages(range(count - last))))
        rest = list(_messages(range(count - last, count)))
        if ledger:
            _step("3. Transfer the leadership; sending goes on")
            demo_faults.transfer_leadership(DataFolder(folder), rest)
        else:
            _step("3. Kill the leading controller; sending goes on")
            demo_faults.kill_leading_controller(DataFolder(folder), rest)
        _step("4. Kill every broker; each comes back with the same id, at another port")
        demo_faults.kill_brokers(DataFolder(folder))
        _step("5. Read all messages as another consumer group, and compare every one with what was sent")
        check = Check(count)
        taken = run(running_state(DataFolder(folder)).namesrv, lambda instance: _read(instance, check))
        check.finish()
        click.echo(
            f"{taken.count:,} messages read in {taken.seconds:.2f} s: {taken.per_second:,.0f}/s; "
            f"none missing, none different, {check.doubled:,} twice"
        )
        _step("6. Compare the logs of the three brokers")
        log_comparison.compare_logs(DataFolder(folder))
        _step("7. Look at everything")
        _command("status", "--data", str(folder))
        _step("8. Stop everything and delete the data")
        _command("down", "--data", str(folder), "--purge", "--yes")
        shutil.rmtree(top)
    except KeyboardInterrupt:
        click.echo("\nThe demo was interrupted; everything is stopped and deleted", err=True)
        _end_set(folder)
        shutil.rmtree(top, ignore_errors=True)
        raise
    except BaseException:
        click.echo(f"The demo failed; logs are in {folder / 'logs'}", err=True)
        _end_set(folder)
        raise
    click.secho(
        f"Done in {time.perf_counter() - began:.1f} s: all {count:,} acknowledged messages came through.",
        fg="green",
        bold=True,
    )


class Check:
    """Compares what was read with what was sent."""

    def __init__(self, count: int) -> None:
        self._missing = set(range(count))
        self.expected = count
        self.doubled = 0
        """Messages that came more than once, as may happen after a lost connection."""

    def add(self, body: bytes) -> None:
        """Count a message; ends the command when it is none of those that were sent."""
        number = number_of(body)
        if number is None or number >= self.expected or body != body_of(number, BODY_BYTES):
            fail(f"a message differs from what was sent: {body[:80]!r}", REPORT)
        if number in self._missing:
            self._missing.remove(number)
        else:
            self.doubled += 1

    @property
    def complete(self) -> bool:
        """Whether every message has come."""
        return not self._missing

    def finish(self) -> None:
        """End the command when messages are missing."""
        if self._missing:
            some = ", ".join(map(str, sorted(self._missing)[:5]))
            fail(
                f"{len(self._missing):,} of {self.expected:,} acknowledged messages did not come back: "
                f"{some}, …",
                REPORT,
            )


def _messages(numbers: range) -> Iterator[Message]:
    for number in numbers:
        yield Message(topic=TOPIC, body=body_of(number, BODY_BYTES), keys=(f"demo-{number}",), tags="demo")


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
                enough=lambda: check.complete,
                idle_seconds=IDLE_SECONDS,
            )
        except OSError:
            raise problems[0] from None


def _step(text: str) -> None:
    click.secho(f"\n{text}", bold=True)


def _end_set(folder: Path) -> None:
    """Stop what runs, if anything does; nothing that was started is left."""
    if folder.exists() and DataFolder(folder).owner() is not None:
        command = [sys.executable, "-m", "brokerset_cli.main", "down", "--data", str(folder)]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)


def _command(*arguments: str) -> None:
    """Run a brokerset command as a person would; ends this one when it fails.

    The command has a process group of its own and is interrupted by us, once: it then stops what it started.
    """
    click.secho(f"$ brokerset {' '.join(arguments)}", dim=True)
    command = [sys.executable, "-m", "brokerset_cli.main", *arguments]
    with subprocess.Popen(command, process_group=0) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
    if code:
        fail(f"`brokerset {arguments[0]}` ended with exit code {code}", "its error is above")
