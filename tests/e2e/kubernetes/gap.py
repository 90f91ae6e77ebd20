"""Ends masters under load, again and again, and measures from inside the cluster how long nothing is acknowledged.

    python -m tests.e2e.kubernetes.gap --rounds 30 --how kill,delete,stop,cut

Needs a cluster with the chart installed, as `make e2e-kubernetes` and `BROKERSET_E2E_INSTALLED=1` find it. Two clients
write at once, each told the address `<group>-master` and nothing else: ours, and RocketMQ's own for Java with its
default settings. A third program connects to that address every 10 ms. Gaps are taken from the clients' own
clocks. The steps between need that pods and this machine go by the same clock.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from kubernetes.client import ApiException
from tests.e2e.kubernetes import rig
from tests.e2e.kubernetes.deployed import Deployed, Load
from tests.e2e.kubernetes.java_client import JavaWriter, load_image
from tests.e2e.kubernetes.killing import cut_off, kill_process_at
from tests.e2e.kubernetes.pod_process import PodProcess
from tests.e2e.kubernetes.rig import HERE, Cluster, until

PROBE_FILE: Final = "/tmp/probe.py"
SAVE: Final = f"import sys; open({PROBE_FILE!r}, 'w').write(sys.stdin.read())"

BACK_SECONDS: Final = 60.0
"""Longest time until the address leads to a master again."""

BUSY_SECONDS: Final = 0.3
"""Between two changes of another Service, for a cluster in which something always changes."""

AFTER_MESSAGES: Final = 50
PAUSE_SECONDS: Final = 1.2
"""After the set has settled: kube-proxy has done what was on its way, and waits for nothing."""

STEPS: Final = (
    ("refused", "no connection any more"),
    ("elected", "elected"),
    ("switched", "the new master's log is ready"),
    ("led", "EndpointSlice written"),
    ("reachable", "a connection reaches the new master"),
    ("ours", "our client's longest silence ends"),
    ("java", "the Java client's longest silence ends"),
)
"""What happens after the master was ended, and how the tables call it."""


@dataclass(slots=True)
class Round:
    """One ended master."""

    how: str
    ours_ms: int
    java_ms: int | None
    steps: dict[str, float]
    """Milliseconds after the end by name of the step, as far as they are known."""

    load: float
    """Of the machine, over the last minute."""

    outcomes: list[str] = field(default_factory=list)
    """What connections to the address came to, as `milliseconds outcome`."""


def kill(orders: Deployed, pod: str) -> float:
    """`kill -9` of the broker's process; returns when, in seconds since 1970."""
    at = kill_process_at(orders, pod)
    assert at is not None, "the node's processes are out of reach: use delete"
    return at


def delete(orders: Deployed, pod: str) -> float:
    """A delete that gives it no time to end; returns when it was begun, in seconds since 1970."""
    at = time.time()
    orders.delete_pods(pod, force=True)
    return at


def stop(orders: Deployed, pod: str) -> float:
    """A delete, as a drained node does it; returns when it was begun, in seconds since 1970."""
    at = time.time()
    orders.delete_pods(pod)
    return at


@contextlib.contextmanager
def at_once(end: Callable[[Deployed, str], float], orders: Deployed, pod: str) -> Iterator[float]:
    """An end after which nothing is to be healed."""
    yield end(orders, pod)


HOW: Final[dict[str, Callable[[Deployed, str], contextlib.AbstractContextManager[float]]]] = {
    "kill": partial(at_once, kill),
    "delete": partial(at_once, delete),
    "stop": partial(at_once, stop),
    "cut": cut_off,
}
"""Ways in which a master ends: context managers that yield when it did, and heal what has to be healed."""

HANDS_OVER: Final = ("delete", "stop")
"""Of these the process is told with SIGTERM: it may hand over so that no connection ever fails."""

ENDED_SECONDS_MIN: Final = 3.0
"""After a forced deletion the process lives on for 2 s at most, though its pod is gone at once."""


def slice_of(orders: Deployed) -> tuple[str, int]:
    """Where the group's `-master` Service leads to, and the epoch that says so."""
    found = orders.cluster.must_get("endpointslice", f"{orders.name}-0-master", orders.namespace)
    epoch = int(found["metadata"]["annotations"]["brokerset.io/epoch"])
    return found["endpoints"][0]["addresses"][0], epoch


def master_of(orders: Deployed) -> str:
    """Pod to which the `-master` Service leads; needs no operator."""
    address = slice_of(orders)[0]
    return next(name for name, pod in orders.pods("broker").items() if pod["status"].get("podIP") == address)


@dataclass(slots=True)
class Probe:
    """Connections to the group's `-master` Service (`probe.py`)."""

    process: PodProcess
    outcome: str = ""

    def changes(self) -> list[tuple[int, str]]:
        """Changes since the last call: milliseconds since 1970, outcome."""
        found = []
        for line in self.process.lines_now():
            at, outcome = line.split()
            found.append((int(at), outcome))
            self.outcome = outcome
        return found

    def back(self, ended: Callable[[], bool] | None = None) -> list[tuple[int, str]]:
        """Wait until connections fail and then succeed again; returns the changes.

        With `ended`, which tells that the old master is gone, none need fail: it hands over, and passes on.
        """
        seen: list[tuple[int, str]] = []

        def check() -> bool:
            seen.extend(self.changes())
            failed = any(outcome != "ok" for _, outcome in seen)
            succeeds = self.outcome in ("", "ok")
            return succeeds and (failed if ended is None else ended())

        until("the address leads to a master again", check, BACK_SECONDS, pause=0.05)
        return seen


@contextlib.contextmanager
def probing(orders: Deployed, client: rig.Client) -> Iterator[Probe]:
    """A probe in the client's pod."""
    cluster = orders.cluster
    cluster.execute(client.pod, orders.namespace, "python", "-c", SAVE, given=(HERE / "probe.py").read_text())
    host = f"{orders.name}-0-master.{orders.namespace}.svc"
    process = PodProcess(cluster, orders.namespace, client.pod, "python", PROBE_FILE, host, "10911")
    try:
        yield Probe(process)
    finally:
        process.end()


@contextlib.contextmanager
def busy(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Change the EndpointSlice of another Service all the time, as in a cluster with many pods."""
    name = "elsewhere"
    port = {"name": "any", "port": 9, "protocol": "TCP"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": [port]}}
    found = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [port],
        "endpoints": [{"addresses": ["10.244.255.1"]}],
    }
    cluster.apply(service, found, namespace=namespace)
    ended = threading.Event()

    def change() -> None:
        number = 0
        while not ended.wait(BUSY_SECONDS):
            number = number % 250 + 1
            endpoints = {"endpoints": [{"addresses": [f"10.244.255.{number}"]}]}
            with contextlib.suppress(ApiException):
                cluster.patch("endpointslice", name, namespace, endpoints)

    worker = threading.Thread(target=change, daemon=True)
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join()
        cluster.delete("service", name, namespace=namespace)
        cluster.delete("endpointslice", name, namespace=namespace)


def steps_of(orders: Deployed, at: float, seen: Sequence[tuple[int, str]]) -> dict[str, float]:
    """What the logs of controllers and brokers, and the probe, tell about the time after `at`."""
    found: dict[str, float] = {}
    words = {
        "elected master": "elected",
        '"role switched","role":"master"': "switched",
        "the master's Service leads here": "led",
    }
    since = datetime.fromtimestamp(at - 1).astimezone().isoformat()
    for name in orders.pods():
        with contextlib.suppress(rig.CommandFailed):  # the pod that was ended may be missing
            text = orders.cluster.logs(name, orders.namespace, "--timestamps", f"--since-time={since}")
            for line in text.splitlines():
                stamp, _, said = line.partition(" ")
                step = next((step for word, step in words.items() if word in said), None)
                if step is None:
                    continue
                ms = (seconds_of(stamp) - at) * 1000
                if ms > -500 and (step not in found or ms < found[step]):
                    found[step] = ms
    failed = next((stamp for stamp, outcome in seen if outcome != "ok"), None)
    if failed is not None:
        found["refused"] = failed - at * 1000
        found["reachable"] = seen[-1][0] - at * 1000
    return found


def seconds_of(stamp: str) -> float:
    """Seconds since 1970 of a time as Kubernetes writes it, which may have nanoseconds."""
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")


def one_round(orders: Deployed, how: str, load: Load, java: JavaWriter | None, probe: Probe) -> Round:
    """End the master once, with everybody in sync before."""
    orders.wait_settled()
    pod = master_of(orders)
    time.sleep(PAUSE_SECONDS)
    load.look()
    if java is not None:
        java.look()
    probe.changes()
    machine = os.getloadavg()[0]
    uid = orders.uids("broker")[pod]
    with HOW[how](orders, pod) as at:

        def ended() -> bool:
            return time.time() - at > ENDED_SECONDS_MIN and orders.uids("broker").get(pod) not in (None, uid)

        seen = probe.back(ended if how in HANDS_OVER else None)
        ours = max(load.look(), load.goes_on(AFTER_MESSAGES), key=lambda found: int(found["gapMs"]))
        theirs = None
        if java is not None:
            theirs = max(java.look(), java.goes_on(AFTER_MESSAGES), key=lambda found: found.gap_ms)
    if how == "kill":  # else the kubelet waits longer and longer before it starts that container again
        orders.delete_pods(pod, force=True)
    steps = steps_of(orders, at, seen)
    steps["ours"] = (ours["gapEndedAt"] - at) * 1000
    if theirs is not None:
        steps["java"] = theirs.ended_at_ms - at * 1000
    outcomes = [f"{stamp - at * 1000:.0f} {outcome}" for stamp, outcome in seen]
    return Round(how, ours["gapMs"], theirs.gap_ms if theirs else None, steps, machine, outcomes)


def measure(orders: Deployed, how: str, rounds: int, *, with_java: bool) -> list[Round]:
    """So many rounds on a set that serves; nothing acknowledged may be lost, and nobody's sends end for good."""
    found: list[Round] = []
    with contextlib.ExitStack() as stack:
        load = stack.enter_context(orders.load())
        java = JavaWriter(load.client, "java-events") if with_java else None
        if java is not None:
            stack.callback(java.end)
            java.start()
        probe = stack.enter_context(probing(orders, load.client))
        for number in range(rounds):
            found.append(one_round(orders, how, load, java, probe))
            rig.say(f"{how} {number + 1}/{rounds}: {shown(found[-1])}")
        verdict = load.finish()
        rig.say(f"ours: {verdict}")
        if java is not None:
            java.finish()
            reasons = dict(java.reasons.most_common(4))
            rig.say(f"Java: {len(java.acked)} acknowledged and stored, {java.failed} failed: {reasons}")
    return found


def shown(one: Round) -> str:
    """A round on one line."""
    steps = ", ".join(f"{name} {one.steps[name]:.0f}" for name, _ in STEPS if name in one.steps)
    return f"ours {one.ours_ms} ms, Java {one.java_ms} ms; {steps}; load {one.load:.1f}; {one.outcomes}"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so many are not above."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def table(rounds: Sequence[Round]) -> str:
    """Gaps and steps as Markdown."""
    lines = [
        "| how the master ends | client | rounds | p50 | p99 | max |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for how in dict.fromkeys(one.how for one in rounds):
        chosen = [one for one in rounds if one.how == how]
        gaps = {"ours": [one.ours_ms for one in chosen]}
        gaps["Java"] = [one.java_ms for one in chosen if one.java_ms is not None]
        for client, values in gaps.items():
            if values:
                figures = (statistics.median(values), percentile(values, 0.99), max(values))
                told = " | ".join(f"{figure:.0f} ms" for figure in figures)
                lines.append(f"| {how} | {client} | {len(values)} | {told} |")
    lines += ["", "| step, after the master's end | p50 | max |", "| --- | ---: | ---: |"]
    for how in dict.fromkeys(one.how for one in rounds):
        for name, title in STEPS:
            times = [one.steps[name] for one in rounds if one.how == how and name in one.steps]
            if times:
                lines.append(f"| {how}: {title} | {statistics.median(times):.0f} ms | {max(times):.0f} ms |")
    return "\n".join(lines)


def as_json(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """The rounds, to be kept."""
    return [
        {
            "how": one.how,
            "oursMs": one.ours_ms,
            "javaMs": one.java_ms,
            "steps": {name: round(ms) for name, ms in one.steps.items()},
            "load": one.load,
            "outcomes": one.outcomes,
        }
        for one in rounds
    ]


def main() -> None:
    """Measure as the command line says, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30, help="rounds of each kind")
    parser.add_argument("--how", default="kill,delete", help=f"some of {','.join(HOW)}")
    parser.add_argument("--namespace", default="failover-gap")
    parser.add_argument("--no-java", action="store_true", help="our client alone")
    parser.add_argument("--busy", action="store_true", help="another Service changes all the time")
    parser.add_argument("--out", type=Path, help="file that gets every round as JSON")
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="gap-"))
    cluster = Cluster(rig.provider(scratch), scratch)
    if not given.no_java:
        load_image(cluster)
    found: list[Round] = []
    for how in given.how.split(","):
        namespace = cluster.namespace(f"{given.namespace}-{how}")
        try:
            orders = Deployed(cluster, namespace)
            orders.create()
            with busy(cluster, namespace) if given.busy else contextlib.nullcontext():
                found += measure(orders, how, given.rounds, with_java=not given.no_java)
        finally:
            cluster.delete_namespace(namespace)
            if given.out is not None:
                given.out.write_text(json.dumps(as_json(found), indent=1))
    print(table(found))


if __name__ == "__main__":
    main()
