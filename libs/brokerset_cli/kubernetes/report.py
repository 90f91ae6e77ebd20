"""`kubectl brokerset report`: all that support needs to know about a set, in one file, without secrets."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from brokerset_cli.kubernetes import names, tree
from brokerset_cli.kubernetes.kube_api import ApiFailed, KubeApi, log_query
from brokerset_cli.kubernetes.options import kube_options
from brokerset_cli.kubernetes.redaction import redact_text, to_json
from brokerset_cli.kubernetes.report_objects import (
    DEPLOYMENT,
    EVENTS,
    KINDS,
    belongs,
    event_line,
    event_time,
    node_facts,
    of_this_set,
    operator_facts,
)
from brokerset_cli.kubernetes.sets import Object, PodView, items, part, read_pod, read_set
from brokerset_cli.output import fail, write_table
from brokerset_kube.kinds import LEASE, NODE, POD, SUBJECT, TOPIC

LOG_LINES: Final = 5000
"""Last lines of each log."""

LOG_CHARACTERS_MAX: Final = 4 << 20
"""Most of each log; the newest lines."""

PODS_MAX: Final = 200
"""Most pods whose logs are read."""

AT_ONCE_MAX: Final = 4

README: Final = """\
A report about BrokerSet {name} in namespace {namespace}, made {time} by `kubectl brokerset report`.

Begin with status.txt, events.txt and missing.txt. Times are UTC.
Secrets were never read. Values of settings, variables, annotations and log lines that look secret were
replaced by [left out]; names of topics, groups, hosts and addresses are still there. Look through the files
before you hand them to somebody whom you do not want to know those.
"""


@dataclass(slots=True)
class Collected:
    """Files of a report, and what could not be read."""

    namespace: str = ""
    files: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def add(self, name: str, what: str, read: Callable[[], str]) -> None:
        """Add a file, or a line that says why it is not there."""
        try:
            text = read()
        except ApiFailed as error:
            self.missing.append(f"{what}: {error.message}")
        else:
            self.files[name] = text


def collect(api: KubeApi, name: str, *, tail: int, operator_namespace: str | None, now: float) -> Collected:
    """Read everything; only a set that cannot be read is an error. `now` is in seconds since 1970."""
    given = api.broker_set(name)
    namespace = str(part(given, "metadata").get("namespace", ""))
    api = api.within(namespace)
    found = Collected(namespace)
    found.files["brokerset.json"] = to_json(given)
    objects = _objects(api, name, found)
    pods = objects.get("pods", [])
    found.files["status.txt"] = _status(given, pods)
    found.add("events.txt", "events", lambda: _events(api, name, objects))
    found.add("topics.json", "topics", lambda: to_json(of_this_set(api.objects(TOPIC), name)))
    found.add("subjects.json", "subjects", lambda: to_json(of_this_set(api.objects(SUBJECT), name)))
    found.add("nodes.json", "nodes", lambda: to_json(node_facts(api.objects(NODE), pods)))
    found.add("versions.json", "versions", lambda: _versions(api))
    _operator(api, operator_namespace, tail, found)
    _logs(api, "logs", pods[:PODS_MAX], tail, found)
    if len(pods) > PODS_MAX:
        found.missing.append(f"logs of {len(pods) - PODS_MAX} pods: only {PODS_MAX} are read")
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now))
    found.files["README.txt"] = README.format(name=name, namespace=namespace, time=made)
    # What a program says that logs people in may have anything in it.
    found.missing = [redact_text(line) for line in found.missing]
    found.files["missing.txt"] = "".join(f"{line}\n" for line in found.missing) or "nothing is missing\n"
    return found


def _objects(api: KubeApi, name: str, found: Collected) -> dict[str, list[Object]]:
    objects: dict[str, list[Object]] = {}
    for kind, optional in KINDS:
        try:
            objects[kind.plural] = api.objects(kind, f"{names.SET_LABEL}={name}")
        except ApiFailed as error:
            if not optional:
                found.missing.append(f"{kind.plural}: {error.message}")
        else:
            if objects[kind.plural] or not optional:
                found.files[f"{kind.plural}.json"] = to_json(objects[kind.plural])
    return objects


def _status(given: Object, pods: Sequence[Object]) -> str:
    seen = read_set(given, pods)
    text = "".join(f"{click.unstyle(line)}\n" for line in tree.lines(seen))
    wrong = "".join(f"! {redact_text(line)}\n" for line in tree.problems(seen))
    return redact_text(text) + ("\n" + wrong if wrong else "")


def _events(api: KubeApi, name: str, objects: dict[str, list[Object]]) -> str:
    known = {str(part(each, "metadata").get("name")) for group in objects.values() for each in group}
    events = [each for each in api.objects(EVENTS) if belongs(each, name, known)]
    return redact_text("".join(f"{event_line(each)}\n" for each in sorted(events, key=event_time)))


def _versions(api: KubeApi) -> str:
    server: dict[str, Any] = {"kubernetes": api.read("/version")}
    return to_json({**server, "client": _version("kubernetes"), "brokerset": _version("brokerset")})


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _operator(api: KubeApi, namespace: str | None, tail: int, found: Collected) -> None:
    """The operator's Deployments, Leases and logs, as far as one may see them."""
    everywhere = namespace is None
    there = api.within(namespace or "")
    try:
        pods = there.objects(POD, names.OPERATOR_SELECTOR, all_namespaces=everywhere)
        deployments = there.objects(DEPLOYMENT, names.OPERATOR_SELECTOR, all_namespaces=everywhere)
    except ApiFailed as error:
        found.missing.append(
            f"the operator: {error.message}; --operator-namespace tells where to look if not everywhere"
        )
        return
    if not deployments:
        found.missing.append("the operator: no Deployment of it was found")
    found.files["operator/objects.json"] = to_json(operator_facts(deployments, pods))
    for space in sorted({str(part(each, "metadata").get("namespace", "")) for each in deployments}):
        local = api.within(space)
        own = {
            str(part(each, "metadata").get("name"))
            for each in deployments
            if part(each, "metadata").get("namespace") == space
        }

        def leases(local: KubeApi = local, own: set[str] = own) -> str:
            all_of_them = local.objects(LEASE)
            return to_json([each for each in all_of_them if part(each, "metadata").get("name") in own])

        found.add(f"operator/leases-{space}.json", f"the operator's Lease in {space}", leases)
        of_space = [each for each in pods if part(each, "metadata").get("namespace") == space]
        _logs(local, "operator/logs", of_space, tail, found)


def _logs(api: KubeApi, folder: str, pods: Sequence[Object], tail: int, found: Collected) -> None:
    def read(pod: PodView, previous: bool) -> str | ApiFailed:
        query = log_query(pod.container, tail=tail, **({"previous": "true"} if previous else {}))
        try:
            text = api.log(pod.name, query)
            return redact_text(newest(text, LOG_CHARACTERS_MAX))
        except ApiFailed as error:
            return error

    wanted = list(_wanted_logs(pods))
    with ThreadPoolExecutor(AT_ONCE_MAX) as threads:
        texts = list(threads.map(lambda each: read(*each), wanted))
    for (pod, previous), text in zip(wanted, texts, strict=True):
        name = f"{pod.name}.previous.log" if previous else f"{pod.name}.log"
        if isinstance(text, ApiFailed):
            found.missing.append(f"{folder}/{name}: {text.message}")
        else:
            found.files[f"{folder}/{name}"] = text


def newest(text: str, characters_max: int) -> str:
    """The end of a log, from the beginning of a line on; the API's own limit keeps the oldest lines."""
    if len(text) <= characters_max:
        return text
    left_out, end = text[:-characters_max], text[-characters_max:]
    rest, _, kept = end.partition("\n")
    return f"[{len(left_out) + len(rest):,} characters before this are left out]\n{kept}"


def _wanted_logs(pods: Sequence[Object]) -> Iterator[tuple[PodView, bool]]:
    for given in pods:
        pod = read_pod(given)
        yield pod, False
        started_again = any(
            each.get("restartCount") for each in items(part(given, "status"), "containerStatuses")
        )
        if started_again:
            yield pod, True


def pack(collected: Collected, folder: str, path: Path, now: float) -> None:
    """Write the files into a new tarball that only its owner can read. Raises `OSError`."""
    with (
        open(path, "xb", opener=_private) as raw,
        tarfile.open(fileobj=raw, mode="w:gz") as archive,
    ):
        for name, text in sorted(collected.files.items()):
            content = text.encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(now), 0o644
            archive.addfile(entry, io.BytesIO(content))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@click.command(short_help="Write a tarball for support; secrets are left out.")
@click.argument("set_name", metavar="SET")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The file to write. [default: brokerset-report-<namespace>-<set>-<time>.tar.gz here]",
)
@click.option(
    "--tail",
    type=click.IntRange(0),
    metavar="LINES",
    default=LOG_LINES,
    show_default=True,
    help="Last lines of each log.",
)
@click.option(
    "--operator-namespace",
    metavar="NS",
    help="Namespace of the operator, if you may not look into all. [default: wherever it is]",
)
@kube_options
def report(
    api: KubeApi, set_name: str, output: Path | None, tail: int, operator_namespace: str | None
) -> None:
    """Write a tarball for support: manifest, status, events, objects, logs; secrets are left out."""
    now = time.time()
    if output is not None and output.exists():
        _is_there(output)
    collected = collect(api, set_name, tail=tail, operator_namespace=operator_namespace, now=now)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    folder = f"brokerset-report-{collected.namespace}-{set_name}-{stamp}"
    path = output if output is not None else Path(f"{folder}.tar.gz")
    try:
        pack(collected, folder, path, now)
    except FileExistsError:
        _is_there(path)
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        fail(f"{path} could not be written: {error.strerror or error}", "name another file with -o")
    write_table(
        ("file", "bytes"), [(name, len(text.encode())) for name, text in sorted(collected.files.items())]
    )
    for line in collected.missing:
        click.echo(f"missing: {line}", err=True)
    click.echo(f"Wrote {path}, {path.stat().st_size:,} bytes. Look through it before you hand it on.")


def _is_there(path: Path) -> NoReturn:
    fail(f"{path} is there already", "name another file with -o")
