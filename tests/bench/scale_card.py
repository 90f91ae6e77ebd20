"""One operator and many BrokerSets: memory, start-up, rounds, requests when idle: `scale_card.py [--sets N] [--idle-seconds S]`.

The operator is the real process, kopf and all. Kubernetes is `brokerset_rig.fake_kube` over real HTTP; what StatefulSets, kubelets and brokers
would do is played here at once: pods and volumes come, controllers answer at addresses of their own, every group has a master and two slaves
in sync. So rounds are as long as in a healthy set, and their requests are counted where they arrive. Exit status 1 only if a set
did not become ready; nothing is judged by time.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import itertools
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from brokerset_operator.model import names
from brokerset_protocol.bodies.controllers import (
    ControllerMember,
    ControllerStatus,
    GroupState,
    GroupStates,
    ReplicaState,
)
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import GetMetaDataResponse
from brokerset_rig.fake_kube import FakeKube, Object, kubeconfig
from brokerset_rig.measuring import cpu_seconds, markdown, memory_mib
from brokerset_runtime.remoting import Connection, RemotingServer

ROOT = Path(__file__).parents[2]
SETS_IN_A_NAMESPACE = 10
CONTROLLERS = BROKERS = 3
CONTROLLER_NET, BROKER_NET = 100, 110
"""Second number of the loopback addresses of the first controllers and brokers: ports are fixed, so each pod has an address."""

SETS_MAX = 20_000
FILES_BESIDES = 1000
"""Open files of this process besides the sockets of the controllers that it plays."""

EPOCH = 1
BOOKMARK_SECONDS = 50.0
"""API servers send a bookmark on each watch about once a minute."""

READY_SECONDS_MAX = 3600.0
SETTLED_SECONDS = 5.0
"""After so long without a reconcile what the start has set off is over."""

CHANGES = 50
"""Sets that are changed one after the other, to see how soon that shows."""

GOAL_MEMORY_MIB = 256
GOAL_CALLS_PER_SECOND = 1.0
SAMPLE = re.compile(r"(?P<name>[a-z_]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")


@dataclass(frozen=True, slots=True)
class SetPlace:
    """One set of the card."""

    index: int

    @property
    def name(self) -> str:
        return f"set-{self.index}"

    @property
    def namespace(self) -> str:
        return f"team-{self.index // SETS_IN_A_NAMESPACE}"

    def manifest(self) -> Object:
        """The smallest one."""
        return {
            "apiVersion": "brokerset.io/v1alpha1",
            "kind": "BrokerSet",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {},
        }

    def address(self, net: int, ordinal: int) -> str:
        """IP of a pod; every one is this machine."""
        return f"127.{net + ordinal}.{self.index // 250}.{self.index % 250 + 1}"


class PlayedCluster:
    """What runs besides the API server: pods appear as StatefulSets ask for them, and are ready at once."""

    def __init__(self, kube: FakeKube, places: Iterable[SetPlace]) -> None:
        self.kube = kube
        self.places = {(place.namespace, place.name): place for place in places}
        self._servers: list[RemotingServer] = []
        self._starts: Counter[tuple[str, str]] = Counter()
        kube.on_change = self._changed

    async def start(self) -> None:
        """Let every set's controllers answer; before their pods are there nobody asks them."""
        for place in self.places.values():
            for number in range(CONTROLLERS):
                server = RemotingServer(
                    {
                        RequestCode.BROKERSET_CONTROLLER_STATUS: partial(self._status, number),
                        RequestCode.CONTROLLER_GET_METADATA_INFO: self._metadata,
                        RequestCode.BROKERSET_GROUP_STATES: partial(self._groups, place),
                    }
                )
                await server.listen(place.address(CONTROLLER_NET, number), names.CONTROLLER_PORT)
                self._servers.append(server)

    async def close(self) -> None:
        self.kube.on_change = None
        for server in self._servers:
            server.stop_accepting()
        await asyncio.gather(*(server.close(0.1) for server in self._servers))

    def live(self, place: SetPlace) -> Object:
        """A BrokerSet as it is."""
        return self.kube.objects["brokerset.io", "brokersets", place.namespace, place.name]

    def ready(self) -> int:
        """How many sets say that they are Ready."""
        return sum(_is_ready(self.live(place)) for place in self.places.values())

    # -- the controllers of all sets ------------------------------------------------------------------------

    @staticmethod
    def _status(number: int, connection: Connection, command: Command) -> Command:
        members = tuple(ControllerMember(n, f"x:{n}", f"x:{n}", True, 9) for n in range(CONTROLLERS))
        role = "follower" if number else "leader"
        return command.reply(
            body=ControllerStatus(number, role, 1, 0, not number, 9, 9, 9, 0, members).to_json()
        )

    @staticmethod
    def _metadata(connection: Connection, command: Command) -> Command:
        return command.reply(ext=GetMetaDataResponse(group="g", is_leader=True).to_ext())

    def _groups(self, place: SetPlace, connection: Connection, command: Command) -> Command:
        ids = tuple(range(1, BROKERS + 1))
        replicas = tuple(
            ReplicaState(
                number,
                f"{place.address(BROKER_NET, number - 1)}:{names.REMOTING_PORT}",
                "",
                self._starts[place.namespace, names.broker_pod(place.name, 0, number - 1)],
                None,
                "alive",
                max_offset=1000,
            )
            for number in ids
        )
        owner = self.live(place)["metadata"]["uid"]
        group = names.group_set(place.name, 0)
        state = GroupState(
            "DefaultCluster", group, owner, BROKERS, BROKERS + 1, 1, EPOCH, ids, 1, (), (), replicas
        )
        return command.reply(body=GroupStates((state,)).to_json())

    # -- Kubernetes' own controllers, and the masters ---------------------------------------------------------

    def _changed(self, event: str, live: Object) -> None:
        metadata = live["metadata"]
        place = self.places.get((metadata.get("namespace", ""), _labels(live).get(names.SET_LABEL, "")))
        if place is None:
            return
        match live["kind"], event:
            case "StatefulSet", "ADDED" | "MODIFIED":
                self._make_pods(place, live)
            case "Pod", "DELETED":
                keeper = self.kube.objects.get(
                    ("apps", "statefulsets", place.namespace, metadata["name"].rpartition("-")[0])
                )
                if keeper is not None:
                    self._make_pods(place, keeper)
            case "EndpointSlice", "ADDED":
                self._lead_to_master(place, live)

    def _make_pods(self, place: SetPlace, keeper: Object) -> None:
        spec, name = keeper["spec"], keeper["metadata"]["name"]
        for ordinal in range(spec["replicas"]):
            pod = f"{name}-{ordinal}"
            if ("", "pods", place.namespace, pod) in self.kube.objects:
                continue
            self._starts[place.namespace, pod] += 1
            for template in spec["volumeClaimTemplates"]:
                self._bind(place, template, pod)
            self.kube.put(_pod_of(keeper, place, ordinal))

    def _bind(self, place: SetPlace, template: Mapping[str, Any], pod: str) -> None:
        name = f"{template['metadata']['name']}-{pod}"
        if ("", "persistentvolumeclaims", place.namespace, name) not in self.kube.objects:
            claim = copy.deepcopy(dict(template))
            claim["metadata"] |= {"name": name, "namespace": place.namespace}
            claim["status"] = {"phase": "Bound", "capacity": claim["spec"]["resources"]["requests"]}
            self.kube.put(claim)

    def _lead_to_master(self, place: SetPlace, live: Object) -> None:
        fresh = copy.deepcopy(live)
        fresh["metadata"].setdefault("annotations", {})[names.EPOCH_ANNOTATION] = str(EPOCH)
        fresh["endpoints"] = [{"addresses": [place.address(BROKER_NET, 0)], "conditions": {"ready": True}}]
        self.kube.put(fresh)


def _is_ready(live: Object) -> bool:
    conditions = (live.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _labels(live: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = live["metadata"].get("labels") or {}
    return found


def _pod_of(keeper: Object, place: SetPlace, ordinal: int) -> Object:
    template = copy.deepcopy(keeper["spec"]["template"])
    net = CONTROLLER_NET if _labels(keeper)[names.COMPONENT_LABEL] == "controller" else BROKER_NET
    name = f"{keeper['metadata']['name']}-{ordinal}"
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": keeper["metadata"]["name"],
             "uid": keeper["metadata"]["uid"], "controller": True}  # fmt: skip
    containers = template["spec"]["containers"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **template["metadata"],
            "name": name,
            "namespace": place.namespace,
            "labels": {**template["metadata"]["labels"], names.POD_INDEX_LABEL: str(ordinal)},
            "ownerReferences": [owner],
        },
        "spec": {**template["spec"], "nodeName": f"node-{ordinal}"},
        "status": {
            "phase": "Running",
            "podIP": place.address(net, ordinal),
            "conditions": [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")],
            "containerStatuses": [{"name": c["name"], "ready": True, "state": {"running": {}}} for c in containers],
        },
    }  # fmt: skip


class OperatorUnderTest:
    """The operator's process; use it with `async with`."""

    def __init__(self, kube: FakeKube, folder: Path, port: int) -> None:
        self._port = port
        self._log = folder / "operator.log"
        self._kubeconfig = folder / "kubeconfig"
        self._kubeconfig.write_text(kubeconfig(kube.url))
        self.started = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> OperatorUnderTest:
        self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        process = self._running()
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, 30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _begin(self) -> None:
        command = [sys.executable, "-m", "brokerset_operator", "--image", "brokerset:card", "--kubeconfig", str(self._kubeconfig),
                   "--httpPort", str(self._port), "--bindAddress", "127.0.0.1", "--logFormat", "json", "--logLevel", "warning"]  # fmt: skip
        self.started = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log, stdout=log)

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "used with `async with`"
        return self._process

    def since_start(self) -> float:
        """Seconds since the process was started. Raises `RuntimeError` when it has ended."""
        if self._running().poll() is not None:
            text = self._log.read_text()[-2000:]
            raise RuntimeError(f"the operator has ended with status {self._running().returncode}: {text}")
        return time.monotonic() - self.started

    def memory(self) -> dict[str, float]:
        """In MiB: resident, the most of it so far, and what is no page of a file."""
        return memory_mib(self._running().pid)

    def cpu_seconds(self) -> float:
        """Processor time so far."""
        return cpu_seconds(self._running().pid)

    async def ask(self, path: str) -> str | None:
        """An answer of its HTTP port; None while there is none."""
        try:
            with await asyncio.to_thread(
                urllib.request.urlopen, f"http://127.0.0.1:{self._port}{path}", None, 10
            ) as answer:
                found: bytes = await asyncio.to_thread(answer.read)
                return found.decode()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    async def measurements(self) -> dict[str, float]:
        """What `/metrics` says, by name with labels; empty while it does not answer."""
        text = await self.ask("/metrics") or ""
        samples = (SAMPLE.fullmatch(line) for line in text.splitlines() if not line.startswith("#"))
        return {f"{m['name']}{{{m['labels'] or ''}}}": float(m["value"]) for m in samples if m is not None}


def rounds_of(measurements: Mapping[str, float]) -> dict[float, float]:
    """Rounds of BrokerSets by the bound of their seconds, cumulative."""
    pattern = re.compile(r'brokerset_operator_round_seconds_bucket\{kind="BrokerSet",le="(.+)"\}')
    return {float(m[1]): value for name, value in measurements.items() if (m := pattern.fullmatch(name))}


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Seconds within which that share of rounds ended, interpolated as Prometheus does; None without rounds."""
    bounds = sorted(buckets)
    if not bounds or not buckets[bounds[-1]]:
        return None
    rank, low, below = share * buckets[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= rank:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (rank - below) / max(buckets[bound] - below, 1e-9)
        low, below = bound, buckets[bound]
    return low


def of_rounds(buckets: Mapping[float, float]) -> dict[str, float | None]:
    """How many rounds there were, and how long they took."""
    times = {f"roundP{share}Ms": ms(quantile(buckets, share / 100)) for share in (50, 99)}
    return {"rounds": buckets.get(float("inf"), 0.0), **times}


def minus(after: Mapping[float, float], before: Mapping[float, float]) -> dict[float, float]:
    """Rounds between two looks."""
    return {bound: value - before.get(bound, 0.0) for bound, value in after.items()}


def ms(seconds: float | None) -> float | None:
    """Milliseconds, for people."""
    return None if seconds is None else round(seconds * 1000, 1)


async def until(done: Callable[[], bool], operator: OperatorUnderTest) -> float:
    """Wait; returns the seconds since the operator's start. Raises `TimeoutError`, or when it has ended."""
    async with asyncio.timeout(READY_SECONDS_MAX):
        while True:
            age = operator.since_start()
            if done():
                return age
            await asyncio.sleep(0.1)


async def settle(operator: OperatorUnderTest) -> dict[str, float]:
    """Wait until there are no rounds for a while; returns the figures then."""
    seen, since = -1.0, time.monotonic()
    while True:
        measurements = await operator.measurements()
        operator.since_start()
        rounds = sum(
            v for name, v in measurements.items() if name.startswith("brokerset_operator_rounds_total")
        )
        if rounds != seen:
            seen, since = rounds, time.monotonic()
        elif time.monotonic() - since >= SETTLED_SECONDS:
            return measurements
        await asyncio.sleep(1.0)


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures of one run."""
    places = [SetPlace(index) for index in range(options.sets)]
    async with FakeKube(absent=frozenset({"PodMonitor", "PrometheusRule"})) as kube:
        cluster = PlayedCluster(kube, places)
        for place in places:
            kube.put(place.manifest())
        await cluster.start()
        bookmarks = asyncio.create_task(_bookmarks(kube))
        try:
            operator = OperatorUnderTest(kube, folder, options.http_port)
            async with operator:
                created = await _create(operator, cluster)
            operator = OperatorUnderTest(kube, folder, options.http_port)
            async with operator:
                started = await _start(operator, kube, options.sets)
                idle = await _idle(operator, kube, options.idle_seconds)
                changed = await _change(operator, cluster, places[:CHANGES])
        finally:
            bookmarks.cancel()
            await cluster.close()
        kinds = Counter(key[1] for key in kube.objects)
    return {
        "sets": options.sets,
        "objects": sum(kinds.values()),
        "create": created,
        "start": started,
        "idle": idle,
        "change": changed,
    }


async def _bookmarks(kube: FakeKube) -> None:
    while True:
        await asyncio.sleep(BOOKMARK_SECONDS)
        kube.bookmark()


async def _create(operator: OperatorUnderTest, cluster: PlayedCluster) -> dict[str, Any]:
    all_ready = await until(lambda: cluster.ready() == len(cluster.places), operator)
    measurements = await settle(operator)
    return {
        "allReadySeconds": round(all_ready, 1),
        "calls": len(cluster.kube.calls),
        **of_rounds(rounds_of(measurements)),
        "cpuSeconds": round(operator.cpu_seconds(), 1),
        "memoryMib": operator.memory(),
    }


async def _start(operator: OperatorUnderTest, kube: FakeKube, sets: int) -> dict[str, Any]:
    before = len(kube.calls)
    ready: float | None = None
    reconciled = 0
    async with asyncio.timeout(READY_SECONDS_MAX):
        while reconciled < sets:
            age = operator.since_start()
            if ready is None and await operator.ask("/readyz") is not None:
                ready = age
            measurements = await operator.measurements()
            reconciled = sum(
                name.startswith("brokerset_operator_last_success_age_seconds{") and 'kind="BrokerSet"' in name
                for name in measurements
            )
            await asyncio.sleep(0.2)
    all_seen = operator.since_start()
    measurements = await settle(operator)
    return {
        "readySeconds": round(ready if ready is not None else all_seen, 2),
        "allSeenSeconds": round(all_seen, 1),
        "calls": len(kube.calls) - before,
        "changes": sum(call.verb not in ("get", "list", "watch", "update") for call in kube.calls[before:]),
        **of_rounds(rounds_of(measurements)),
        "cpuSeconds": round(operator.cpu_seconds(), 1),
        "memoryMib": operator.memory(),
    }


async def _idle(operator: OperatorUnderTest, kube: FakeKube, seconds: float) -> dict[str, Any]:
    """Count what arrives while nothing changes: long enough that every set comes to its regular look."""
    begun, marks = time.monotonic(), [len(kube.calls)]
    cpu, rounds = operator.cpu_seconds(), rounds_of(await operator.measurements())
    while (left := begun + seconds - time.monotonic()) > 0:
        await asyncio.sleep(min(60.0, left))
        operator.since_start()
        marks.append(len(kube.calls))
    lasted = time.monotonic() - begun
    calls = kube.calls[marks[0] : marks[-1]]
    rounds = minus(rounds_of(await operator.measurements()), rounds)
    by_verb = Counter(call.verb for call in calls)
    return {
        "seconds": round(lasted, 1),
        "calls": len(calls),
        "callsPerSecond": round(len(calls) / lasted, 2),
        "callsPerMinuteByVerb": {verb: round(n * 60 / lasted, 1) for verb, n in sorted(by_verb.items())},
        "busiestMinute": max((b - a for a, b in itertools.pairwise(marks)), default=0),
        **of_rounds(rounds),
        "cores": round((operator.cpu_seconds() - cpu) / lasted, 4),
        "memoryMib": operator.memory(),
    }


async def _change(
    operator: OperatorUnderTest, cluster: PlayedCluster, places: list[SetPlace]
) -> dict[str, Any]:
    """Pause sets one after the other, and see when their status says so."""
    took = []
    for place in places:
        before = time.monotonic()
        live = copy.deepcopy(cluster.live(place))
        live["metadata"].setdefault("annotations", {})[names.PAUSED] = "true"
        cluster.kube.put(live)
        async with asyncio.timeout(60):
            while cluster.live(place)["status"].get("phase") != "Paused":
                operator.since_start()
                await asyncio.sleep(0.002)
        took.append(time.monotonic() - before)
    took.sort()
    return {"sets": len(took), "p50Ms": ms(took[len(took) // 2]), "mostMs": ms(took[-1])}


def table(found: Mapping[str, Any]) -> str:
    """The card, as a document has it."""
    create, start, idle, change = (found[part] for part in ("create", "start", "idle", "change"))
    verbs = ", ".join(f"{verb} {n:g}" for verb, n in idle["callsPerMinuteByVerb"].items())
    memory = max(part["memoryMib"]["residentMost"] for part in (create, start, idle))
    rows = [
        ("from nothing until every set is Ready", f"{create['allReadySeconds']:,} s, {create['calls']:,} requests", ""),
        ("… a reconcile, p50 / p99", f"{create['roundP50Ms']} / {create['roundP99Ms']} ms", ""),
        ("start, to `/readyz`", f"{start['readySeconds']} s", ""),
        ("start, until it has reconciled every set once", f"{start['allSeenSeconds']:,} s, {start['calls']:,} requests, {start['changes']} of them changes", ""),
        ("… a reconcile, p50 / p99", f"{start['roundP50Ms']} / {start['roundP99Ms']} ms", ""),
        ("resident memory, the most", f"{memory} MiB", goal(memory, GOAL_MEMORY_MIB, "MiB")),
        ("… idle / of that anonymous", f"{idle['memoryMib']['resident']} / {idle['memoryMib']['anonymous']} MiB", ""),
        (f"idle for {idle['seconds']:g} s: requests", f"{idle['callsPerSecond']} /s", goal(idle["callsPerSecond"], GOAL_CALLS_PER_SECOND, "/s")),
        ("… in a minute, by verb", verbs, ""),
        ("… in the busiest minute", f"{idle['busiestMinute']:,}", ""),
        ("… regular reconciles", f"{idle['rounds']:,.0f}" + (f", p50 / p99 {idle['roundP50Ms']} / {idle['roundP99Ms']} ms" if idle["rounds"] else ""), ""),
        ("… cores", f"{idle['cores']}", ""),
        ("a change of one set, until its status tells, p50 / most", f"{change['p50Ms']} / {change['mostMs']} ms", ""),
    ]  # fmt: skip
    namespaces = -(-found["sets"] // SETS_IN_A_NAMESPACE)
    head = f"{found['sets']:,} BrokerSets in {namespaces:,} namespaces, {found['objects']:,} objects"
    return markdown((head, "", "goal"), rows, texts=(0, 2))


def goal(value: float, most: float, unit: str) -> str:
    """The goal, and whether it is reached."""
    return f"≤ {most:g} {unit}: {'reached' if value <= most else '**not reached**'}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument(
        "--idle-seconds", type=float, default=360.0, help="a look at each set comes every 240 to 300 s"
    )
    parser.add_argument("--http-port", type=int, default=21991, help="of the operator")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "scale-card.json")
    options = parser.parse_args()
    if not 1 <= options.sets <= SETS_MAX:
        parser.error(f"--sets: from 1 to {SETS_MAX}")
    needed = options.sets * CONTROLLERS + FILES_BESIDES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        parser.error(
            f"--sets: {options.sets} need {needed} open files, and {hard} are allowed (`ulimit -Hn`)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    with tempfile.TemporaryDirectory(prefix="brokerset-card-") as folder:
        try:
            found = asyncio.run(measure(options, Path(folder)))
        except (RuntimeError, TimeoutError) as error:
            print(f"not measured: {error or 'sets did not become ready in time'}")
            return 1
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
