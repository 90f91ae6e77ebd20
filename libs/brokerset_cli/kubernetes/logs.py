"""`kubectl brokerset logs`: the logs of a group's pods as one, also while pods come and go."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import click

from brokerset_cli.kubernetes import names
from brokerset_cli.kubernetes.edits import Progress, look, one_group
from brokerset_cli.kubernetes.kubectl import (
    Kubectl,
    KubectlFailed,
    Trouble,
    environment,
    failure,
    no_kubectl,
    selector,
)
from brokerset_cli.kubernetes.log_lines import BEGINNING, Line, Stamp, merged, read_line, read_lines, shown
from brokerset_cli.kubernetes.options import kubectl_options
from brokerset_cli.kubernetes.sets import PodView, read_pod
from brokerset_cli.output import fail

TAIL_LINES: Final = 200
"""Lines of each pod that are shown when nobody says how many."""

AT_ONCE_MAX: Final = 4
"""kubectls that run at the same time when logs are read once."""

RECHECK_SECONDS: Final = 2.0
"""How soon a new pod, or a container that started again, is followed."""

LINE_BYTES_MAX: Final = 1 << 20
ENDING_SECONDS: Final = 5.0
FOLLOWED_MAX: Final = 64
"""Most pods that are followed at the same time: each takes a kubectl and a connection."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines are wanted."""

    since: str | None = None
    """A span as kubectl reads it, as 5m."""

    tail: int = TAIL_LINES
    """Lines of each pod; -1 for all."""

    previous: bool = False
    """The containers before the last restart."""

    def options(self) -> list[str]:
        """Options of `kubectl logs`."""
        found = ["--timestamps", f"--tail={self.tail}"]
        if self.since is not None:
            found.append(f"--since={self.since}")
        return [*found, "--previous"] if self.previous else found


def choose_pods(kubectl: Kubectl, set_name: str, resource: str | None, *, controllers: bool) -> list[PodView]:
    """The pods that are meant: of a group, of the controllers, of both, or of the whole set."""
    labels = {names.SET_LABEL: set_name}
    if resource is not None and not controllers:
        labels[names.GROUP_LABEL] = resource
    elif controllers and resource is None:
        labels[names.COMPONENT_LABEL] = names.CONTROLLER
    found = [read_pod(each) for each in kubectl.objects("pods", selector(labels))]
    if resource is None:
        return found
    return [pod for pod in found if pod.resource == resource or (controllers and pod.resource is None)]


def read_log(kubectl: Kubectl, pod: PodView, wanted: Wanted) -> list[Line] | None:
    """The log of a pod; None of one that is gone or has not begun. Raises `KubectlFailed`."""
    container = ["-c", pod.container] if pod.container else []
    try:
        text = kubectl.run("logs", pod.name, *container, *wanted.options())
    except KubectlFailed as error:
        if error.trouble in (Trouble.NOT_FOUND, Trouble.OTHER):
            click.echo(f"{pod.name}: {error.message}", err=True)
            return None
        raise
    return read_lines(pod.name, text)


def read_logs(kubectl: Kubectl, pods: Sequence[PodView], wanted: Wanted) -> list[Line] | None:
    """The logs of pods as one; None if no pod has one. Raises `KubectlFailed`."""
    with ThreadPoolExecutor(AT_ONCE_MAX) as threads:
        found = [
            log for log in threads.map(lambda pod: read_log(kubectl, pod, wanted), pods) if log is not None
        ]
    return merged(found) if found else None


def _span(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A span of time as kubectl reads it; looked at here, because kubectl would complain for each pod."""
    if value is not None and not re.fullmatch(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h))+", value):
        raise click.BadParameter(f"{value!r} is no span of time: write 30s, 5m, 2h or 1h30m", ctx, param)
    return value


@click.command(short_help="Show the logs of a group's pods as one.")
@click.argument("set_name", metavar="SET")
@click.argument("group", metavar="[GROUP]", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C, also with pods that come later.")
@click.option("--since", callback=_span, metavar="SPAN", help="Only what is newer, as 30s, 5m, 2h.")
@click.option(
    "--tail",
    type=click.IntRange(-1),
    metavar="LINES",
    help=f"Last lines of each pod; -1 for all. [default: {TAIL_LINES}; all with --since]",
)
@click.option("-p", "--previous", is_flag=True, help="The containers before their last restart.")
@click.option("--controllers", is_flag=True, help="The controllers' pods; with GROUP, also those.")
@click.option("--timestamps", is_flag=True, help="Show when the node got each line.")
@kubectl_options
def logs(
    kubectl: Kubectl,
    set_name: str,
    group: str | None,
    follow: bool,
    since: str | None,
    tail: int | None,
    previous: bool,
    controllers: bool,
    timestamps: bool,
) -> None:
    """Show the logs of all pods of GROUP, in the order in which lines were written; without GROUP, of SET."""
    if follow and previous:
        raise click.UsageError("containers that have ended cannot be followed: give --follow or --previous.")
    seen = look(kubectl, set_name)
    resource = one_group(seen, group).resource if group is not None else None
    lines_of_each = tail if tail is not None else (-1 if since is not None else TAIL_LINES)
    wanted = Wanted(since, lines_of_each, previous)

    def choose() -> list[PodView]:
        return choose_pods(kubectl, set_name, resource, controllers=controllers)

    pods = choose()
    if not pods and not follow:
        fail(
            f"there are no pods of {group or set_name}",
            f"`kubectl brokerset status {seen.place}` shows why; with -f they are waited for",
        )
    order = [pod.name for pod in pods]

    def show(line: Line) -> None:
        if line.pod not in order:
            order.append(line.pod)
        click.echo(shown(line, order, with_time=timestamps))

    read = read_logs(kubectl, pods, wanted)
    if read is None and not follow:
        raise SystemExit(1)  # each pod's line has said why
    began = read or []
    for line in began:
        show(line)
    if follow:
        newest = {
            pod.uid: max((x.stamp for x in began if x.pod == pod.name), default=BEGINNING) for pod in pods
        }
        try:
            asyncio.run(_follow(kubectl, choose, show, newest))
        except KeyboardInterrupt:
            pass  # is how people end it
        except ExceptionGroup as group:
            raise _first(group) from None


def _first(group: ExceptionGroup[Exception]) -> Exception:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, ExceptionGroup) else found


async def _follow(
    kubectl: Kubectl,
    choose: Callable[[], list[PodView]],
    show: Callable[[Line], None],
    newest: dict[str, Stamp],
) -> None:
    """Follow the chosen pods; again and again it is looked which those are."""
    running: dict[str, asyncio.Task[None]] = {}
    progress = Progress()
    async with asyncio.TaskGroup() as tasks:
        while True:
            for uid in [uid for uid, task in running.items() if task.done()]:
                del running[uid]
            try:
                pods = await asyncio.to_thread(choose)
            except KubectlFailed as error:
                if error.trouble not in (Trouble.UNREACHABLE, Trouble.TIMEOUT):
                    raise
                pods = []
            if len(pods) > FOLLOWED_MAX:
                progress.say(f"only {FOLLOWED_MAX} of {len(pods)} pods are followed: name a group")
            for pod in pods[:FOLLOWED_MAX]:
                if pod.uid not in running and pod.word not in ("Pending", "ContainerCreating"):
                    running[pod.uid] = tasks.create_task(_follow_one(kubectl, pod, show, newest))
            await asyncio.sleep(RECHECK_SECONDS)


async def _follow_one(
    kubectl: Kubectl, pod: PodView, show: Callable[[Line], None], newest: dict[str, Stamp]
) -> None:
    """Show a pod's lines from the newest known one on, until its container ends.

    Kubernetes takes whole seconds, so what was shown before is skipped by its exact time.
    """
    known = newest.setdefault(pod.uid, BEGINNING)
    options = ["--timestamps", "--follow"]
    if known != BEGINNING:
        since = datetime.fromtimestamp(known[0], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        options.append(f"--since-time={since}")
    container = ["-c", pod.container] if pod.container else []
    command = kubectl.command("logs", pod.name, *container, *options)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
            limit=LINE_BYTES_MAX,
        )
    except OSError as error:
        no_kubectl(command[0], error)
    assert process.stdout is not None, "a pipe was asked for"
    assert process.stderr is not None, "a pipe was asked for"
    # Read at the same time: a pipe that nobody empties would stop kubectl.
    errors = asyncio.ensure_future(process.stderr.read())
    try:
        await _show_lines(process.stdout, pod.name, known, show, newest, pod.uid)
        text = (await errors).decode("utf-8", "replace")
        if await process.wait() and (problem := failure(text)).trouble in (Trouble.FORBIDDEN, Trouble.LOGIN):
            raise problem
    finally:
        errors.cancel()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(ENDING_SECONDS):
                    await process.wait()


async def _show_lines(
    stream: asyncio.StreamReader,
    pod: str,
    known: Stamp,
    show: Callable[[Line], None],
    newest: dict[str, Stamp],
    uid: str,
) -> None:
    while True:
        try:
            given = await stream.readline()
        except ValueError:
            show(Line(newest[uid], pod, f"[a line of more than {LINE_BYTES_MAX} bytes]", ""))
            continue
        if not given:
            return
        line = read_line(pod, given.decode("utf-8", "replace").rstrip("\n"), newest[uid])
        if line.stamp <= known:
            continue
        newest[uid] = line.stamp
        show(line)
