"""Ordered subjects as objects: created, scaled under load while a master goes, deleted; each key in order."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest
from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.pod_process import PodProcess
from tests.e2e.kubernetes.rig import HERE, Client, Cluster, CommandFailed, Object, say, until

LOAD_FILE: Final = "/tmp/ordered_load.py"
SAVE: Final = f"import sys; open({LOAD_FILE!r}, 'w').write(sys.stdin.read())"

ANSWER_SECONDS: Final = 30.0
START_SECONDS: Final = 90.0
VERDICT_SECONDS: Final = 240.0
"""Longest time until a load has handled everything, and left its group."""

SCALED_SECONDS: Final = 120.0
"""How soon all new partitions must take messages, a failover included; on an idle machine it is a few seconds."""

KEYS: Final = 64
RATE: Final = 100.0
"""Messages in a second, of all keys."""

CONSUMERS: Final = 2


def subject(namespace: str, name: str = "events", **spec: Any) -> Object:
    """A Subject of the set `orders`."""
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "Subject",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"brokerSetRef": {"name": "orders"}, **spec},
    }


class OrderedLoad:
    """A producer and consumers in the client's pod (`ordered_load.py`)."""

    def __init__(self, client: Client, name: str) -> None:
        cluster = client.cluster
        program = (HERE / "ordered_load.py").read_text()
        cluster.execute(client.pod, client.namespace, "python", "-c", SAVE, given=program)
        options = {
            "namesrv": client.namesrv,
            "subject": name,
            "keys": KEYS,
            "rate": RATE,
            "consumers": CONSUMERS,
            "run": f"r{time.time_ns()}",
        }
        self._process = PodProcess(
            cluster, client.namespace, client.pod, "python", LOAD_FILE, json.dumps(options)
        )
        self._answer(START_SECONDS)

    def _answer(self, seconds: float) -> Object:
        answer: Object = json.loads(self._process.line(seconds))
        return answer

    def progress(self) -> Object:
        """What happened since it was asked before; no fault may have been seen."""
        self._process.tell("progress")
        seen = self._answer(ANSWER_SECONDS)
        assert not seen["faults"], seen
        return seen

    def goes_on(self, messages: int = 200, seconds: float = 90.0) -> None:
        """Wait until so many more are confirmed, and so many are handled."""
        found = {"confirmed": 0, "handled": 0}

        def check() -> bool:
            seen = self.progress()
            for what in found:
                found[what] += seen[what]
            if min(found.values()) < messages:
                raise ValueError(f"{found}, {seen}")
            return True

        until("messages are sent and handled", check, seconds)

    def finish(self) -> Object:
        """Stop sending, let consumers end, and judge: nothing lost, each key in order."""
        self._process.tell("stop")
        verdict = self._answer(VERDICT_SECONDS)
        say(f"ordered load: {verdict}")
        assert verdict["confirmed"] > 0, verdict
        faults = ("faults", "disorder", "lost", "unconfirmed")
        assert {what: verdict[what] for what in faults} == dict.fromkeys(faults, 0), verdict
        return verdict

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.end()


@contextlib.contextmanager
def ordered_load(client: Client, name: str = "events") -> Iterator[OrderedLoad]:
    """Send and consume while the block runs, and until `finish` is called."""
    load = OrderedLoad(client, name)
    try:
        yield load
    finally:
        load.end()


def open_partitions(cluster: Cluster, namespace: str, wanted: int, seconds: float = SCALED_SECONDS) -> Object:
    """Wait until a Subject is ready with so many partitions; returns its status."""

    def check() -> Object | None:
        live = cluster.must_get("bsubject", "events", namespace)
        status: Object = live["status"]
        ready = next(one for one in status["conditions"] if one["type"] == "Ready")
        if (status["observedGeneration"], status.get("partitions")) == (
            live["metadata"]["generation"],
            wanted,
        ) and ready["status"] == "True":
            return status
        raise ValueError(f"{status}")

    return until(f"{wanted} partitions take messages", check, seconds)


def test_a_subject_is_scaled_under_load_while_a_master_is_deleted(cluster: Cluster, namespace: str) -> None:
    """From 2 to 4 by `kubectl scale`: no key loses a message or its order (statements 73, 76)."""
    orders = Deployed(cluster, namespace)
    orders.create(groups=2, replicas=2)
    orders.wait_settled(2, groups=2)
    cluster.apply(subject(namespace, partitions=2))
    before = open_partitions(cluster, namespace, 2)
    assert before["generation"] == 0
    assert before["route"] == ["orders-0", "orders-1"]
    with ordered_load(orders.client()) as load:
        load.goes_on()
        master = orders.master(1)

        cluster.kubectl("scale", "bsubject", "events", "--replicas=4", namespace=namespace)
        orders.delete_pods(master, force=True)
        after = open_partitions(cluster, namespace, 4)

        assert after["generation"] == 1
        assert [group["members"] for group in after["groups"]] == [CONSUMERS]
        load.goes_on()
        orders.wait_settled(2, groups=2)
        load.goes_on()
        verdict = load.finish()
    assert {2, 3, 4, 5} <= set(verdict["partitions"]), "all new partitions took messages"
    events = cluster.items("events", namespace)
    assert {"SubjectCreated", "SubjectScaled"} <= {event["reason"] for event in events}


def test_a_subject_is_deleted_when_its_consumers_have_gone(cluster: Cluster, namespace: str) -> None:
    """Until then the object says why it is still there, and messages are sent and handled."""
    orders = Deployed(cluster, namespace)
    orders.create(replicas=1, controllers={"replicas": 1})
    cluster.apply(subject(namespace, deletionPolicy="Delete", partitions=2))
    open_partitions(cluster, namespace, 2)
    patch = json.dumps({"spec": {"orderStrategy": "BestTried"}})
    with pytest.raises(CommandFailed, match="cannot be changed"):
        cluster.kubectl("patch", "bsubject", "events", "--type=merge", "-p", patch, namespace=namespace)
    with ordered_load(orders.client()) as load:
        load.goes_on(50)
        cluster.delete("bsubject", "events", namespace=namespace)
        cluster.wait_condition("bsubject", "events", namespace, "Ready", "False", reason="DeletionWaits")
        load.goes_on(50)
        load.finish()

    cluster.wait_gone("bsubject", "events", namespace)
