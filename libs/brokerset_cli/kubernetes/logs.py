"""`kubectl brokerset logs`: the logs of a group's pods as one, also while pods come and go."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from brokerset_cli.kubernetes import names
from brokerset_cli.kubernetes.edits import Progress, fetch_set, one_group
from brokerset_cli.kubernetes.kube_api import ApiFailed, KubeApi, Query, Trouble, log_query, selector
from brokerset_cli.kubernetes.log_lines import BEGINNING, Line, Stamp, merged, read_line, read_lines, shown
from brokerset_cli.kubernetes.options import kube_options
from brokerset_cli.kubernetes.sets import PodView, read_pod
from brokerset_cli.output import fail
from brokerset_kube.kinds import POD

if TYPE_CHECKING:
    from brokerset_cli.kubernetes.streams import Streams

UNIT_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}

TAIL_LINES: Final = 200
"""Lines of each pod that are shown when nobody says how many."""

AT_ONCE_MAX: Final = 4
"""Logs that are read at the same time."""

RECHECK_SECONDS: Final = 2.0
"""How soon a new pod, or a container that started again, is followed."""

LINE_BYTES_MAX: Final = 1 << 20
"""Most of one line; the rest of a longer one is left out."""

FOLLOWED_MAX: Final = 64
"""Most pods that are followed at the same time: each takes a connection."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines are wanted."""

    since_seconds: int | None = None
    """Only what is not older."""

    tail: int = TAIL_LINES
    """Lines of each pod; -1 for all."""

    previous: bool = False
    """The containers before the last restart."""

    def query(self, container: str) -> Query:
        """How the API server is asked for them."""
        more = {"sinceSeconds": str(self.since_seconds)} if self.since_seconds is not None else {}
        return log_query(container, tail=self.tail, **more, **({"previous": "true"} if self.previous else {}))


def choose_pods(api: KubeApi, set_name: str, resource: str | None, *, controllers: bool) -> list[PodView]:
    """The pods that are meant: of a group, of the controllers, of both, or of the whole set."""
    labels = {names.SET_LABEL: set_name}
    if resource is not None and not controllers:
        labels[names.GROUP_LABEL] = resource
    elif controllers and resource is None:
        labels[names.COMPONENT_LABEL] = names.CONTROLLER
    found = [read_pod(each) for each in api.objects(POD, selector(labels))]
    if resource is None:
        return found
    return [pod for pod in found if pod.resource == resource or (controllers and pod.resource is None)]


def read_log(api: KubeApi, pod: PodView, wanted: Wanted) -> list[Line] | None:
    """The log of a pod; None of one that is gone or has not begun. Raises `ApiFailed`."""
    try:
        text = api.log(pod.name, wanted.query(pod.container))
    except ApiFailed as error:
        if error.trouble in (Trouble.NOT_FOUND, Trouble.OTHER):
            click.echo(f"{pod.name}: {error.message}", err=True)
            return None
        raise
    return read_lines(pod.name, text)


def read_logs(api: KubeApi, pods: Sequence[PodView], wanted: Wanted) -> list[Line] | None:
    """The logs of pods as one; None if no pod has one. Raises `ApiFailed`."""
    with ThreadPoolExecutor(AT_ONCE_MAX) as threads:
        found = [log for log in threads.map(lambda pod: read_log(api, pod, wanted), pods) if log is not None]
    return merged(found) if found else None


def _span(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A span of time as kubectl reads it, in seconds, of which the API server takes whole ones."""
    if value is None:
        return None
    if not re.fullmatch(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h))+", value):
        raise click.BadParameter(f"{value!r} is no span of time: write 30s, 5m, 2h or 1h30m", ctx, param)
    parts = re.findall(r"([\d.]+)(ms|s|m|h)", value)
    return max(1, round(sum(float(number) * UNIT_SECONDS[unit] for number, unit in parts)))


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
@kube_options
def logs(
    api: KubeApi,
    set_name: str,
    group: str | None,
    follow: bool,
    since: int | None,
    tail: int | None,
    previous: bool,
    controllers: bool,
    timestamps: bool,
) -> None:
    """Show the logs of all pods of GROUP, in the order in which lines were written; without GROUP, of SET."""
    if follow and previous:
        raise click.UsageError("containers that have ended cannot be followed: give --follow or --previous.")
    seen = fetch_set(api, set_name)
    resource = one_group(seen, group).resource if group is not None else None
    lines_of_each = tail if tail is not None else (-1 if since is not None else TAIL_LINES)
    wanted = Wanted(since, lines_of_each, previous)

    def choose() -> list[PodView]:
        return choose_pods(api, set_name, resource, controllers=controllers)

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

    try:
        read = read_logs(api, pods, wanted)
        if read is None and not follow:
            raise SystemExit(1)  # each pod's line has said why
        newest = {pod.uid: BEGINNING for pod in pods}
        uids = {pod.name: pod.uid for pod in pods}
        for line in read or []:
            show(line)
            newest[uids[line.pod]] = line.stamp
        if follow:
            asyncio.run(_follow(api, choose, show, newest))
    except KeyboardInterrupt:
        if not follow:  # else it is how people end it
            raise
    except ExceptionGroup as group:
        raise _first(group) from None


def _first(group: ExceptionGroup[Exception]) -> Exception:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, ExceptionGroup) else found


async def _follow(
    api: KubeApi,
    choose: Callable[[], list[PodView]],
    show: Callable[[Line], None],
    newest: dict[str, Stamp],
) -> None:
    """Follow the chosen pods; again and again it is looked which those are."""
    from brokerset_cli.kubernetes.streams import Streams  # other verbs need none of it

    running: dict[str, asyncio.Task[None]] = {}
    progress = Progress()
    async with Streams(api) as streams, asyncio.TaskGroup() as tasks:
        while True:
            for uid in [uid for uid, task in running.items() if task.done()]:
                del running[uid]
            try:
                pods = await asyncio.to_thread(choose)
            except ApiFailed as error:
                if error.trouble not in (Trouble.UNREACHABLE, Trouble.TIMEOUT):
                    raise
                pods = []
            if len(pods) > FOLLOWED_MAX:
                progress.say(f"only {FOLLOWED_MAX} of {len(pods)} pods are followed: name a group")
            for pod in pods[:FOLLOWED_MAX]:
                if pod.uid not in running and pod.word not in ("Pending", "ContainerCreating"):
                    running[pod.uid] = tasks.create_task(_follow_one(api, streams, pod, show, newest))
            await asyncio.sleep(RECHECK_SECONDS)


async def _follow_one(
    api: KubeApi, streams: Streams, pod: PodView, show: Callable[[Line], None], newest: dict[str, Stamp]
) -> None:
    """Show a pod's lines from the newest known one on, until its container ends or is silent for long.

    Kubernetes takes whole seconds, so what was shown before is skipped by its exact time.
    """
    known = newest.setdefault(pod.uid, BEGINNING)
    query = {**log_query(pod.container), "follow": "true"}
    if known != BEGINNING:
        query["sinceTime"] = datetime.fromtimestamp(known[0], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        async with streams.read(POD.path(api.namespace, pod.name, "log"), query) as content:
            async for given in _lines(content.iter_any()):
                line = read_line(pod.name, given.decode("utf-8", "replace"), newest[pod.uid])
                if line.stamp > known:
                    newest[pod.uid] = line.stamp
                    show(line)
    except ApiFailed as error:
        if error.trouble in (Trouble.FORBIDDEN, Trouble.LOGIN):
            raise


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of a text; of one that is too long, its beginning."""
    rest = b""
    async for part in parts:
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line
        rest = rest[:LINE_BYTES_MAX]
    if rest:
        yield rest
