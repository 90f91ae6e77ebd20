"""Stores that a Java broker wrote are migrated to volumes of BrokerSets, which then serve every message of them."""

from __future__ import annotations

import base64
import hashlib
import json
import tarfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.rig import AT_ONCE, HERE, ROOT, Client, Cluster, Object, client_pod, until
from tests.e2e.kubernetes.test_rights import account, may, rights_at_server

FIXTURE: Final = "classic"
"""A store with batches, delays, a timer, transactions, compressed bodies and consumers' offsets."""

ARCHIVE: Final = ROOT / "tests" / "peers" / "fixtures" / f"{FIXTURE}.tar.xz"
OLD_BROKER_NAME: Final = "broker-a"
OLD_GROUP: Final = "fx-group"
TOPIC: Final = "fx-plain"

OLD_CLAIM: Final = "old-broker"
EXECUTOR: Final = {
    "instances": 1,
    "resources": {"requests": {"cpu": "600m"}, "limits": {"cpu": 1, "memory": "1200Mi"}},
}

OLD_POD: Final = "old-broker-0"
TARGET_CLAIM: Final = "data-orders-0-0"
"""Of the first broker of the set `orders`."""

CONFIG: Final = {
    "mappedFileSizeCommitLog": 1_048_576,
    "mappedFileSizeConsumeQueue": 6_000,
    "maxHashSlotNum": 1_000,
    "maxIndexNum": 4_000,
    "maxMessageSize": 65_536,
    "fileReservedTime": 87_600,
    "acceptUnservedMessages": True,
}
"""As the old broker had it; nothing expires, however old the fixture is, and its one timer message may stay."""

RUN_SECONDS: Final = 300.0
WAIT_SECONDS: Final = 60.0
EXECUTORS: Final = "brokerset.io/job-owner=take-over,spark-role=executor"

UNPACK: Final = """
import base64, io, sys, tarfile
prefix = sys.argv[1]
with tarfile.open(fileobj=io.BytesIO(base64.b64decode(sys.stdin.read()))) as archive:
    members = [each for each in archive if each.name.startswith(prefix)]
    for each in members:
        each.name = each.name.removeprefix(prefix)
    archive.extractall("/old/store", members=members)
print(len(members))
"""
"""In the old broker's pod: its store, from an archive on standard input."""

Queue = tuple[str, int]


@dataclass(frozen=True, slots=True)
class OldStore:
    """What the Java broker itself gave out of the store."""

    messages: dict[Queue, dict[int, Object]]
    """By queue and offset."""

    def end(self, queue: Queue) -> int:
        """The offset behind the last message."""
        return max(self.messages[queue]) + 1


def old_pod(cluster: Cluster) -> Object:
    """A pod that has the old volume, as the user that brokers and jobs are."""
    pod = client_pod(OLD_POD, cluster.image, cluster.provider.pull_policy)
    spec = pod["spec"]
    spec["securityContext"]["fsGroup"] = 10001
    spec["volumes"].append({"name": "old", "persistentVolumeClaim": {"claimName": OLD_CLAIM}})
    spec["containers"][0]["volumeMounts"].append({"name": "old", "mountPath": "/old"})
    return pod


def put_old_store(cluster: Cluster, namespace: str) -> OldStore:
    """Make the old broker's volume; its pod runs, and uses it."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": OLD_CLAIM},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "256Mi"}}},
    }
    cluster.apply(claim, old_pod(cluster), namespace=namespace)
    cluster.wait_pod(OLD_POD, namespace, 60)
    packed = base64.b64encode(ARCHIVE.read_bytes()).decode()
    prefix = f"{FIXTURE}/broker-0/store/"
    put = cluster.execute(OLD_POD, namespace, "python", "-c", UNPACK, prefix, given=packed)
    assert int(put) > 0, f"{ARCHIVE} has nothing below {prefix}"
    messages: dict[Queue, dict[int, Object]] = defaultdict(dict)
    with tarfile.open(ARCHIVE) as archive:
        lines = archive.extractfile(f"{FIXTURE}/expected.jsonl")
        assert lines is not None
        for message in map(json.loads, lines):
            messages[message["topic"], message["queueId"]][message["queueOffset"]] = message
    return OldStore(dict(messages))


def stop_old_broker(cluster: Cluster, namespace: str) -> None:
    """Nothing uses the old volume any more."""
    cluster.delete("pod", OLD_POD, namespace=namespace, **AT_ONCE)
    cluster.wait_gone("pod", OLD_POD, namespace)


def migration(namespace: str, **spec: Any) -> Object:
    """A StoreMigration of the old store to the first broker of the set `orders`."""
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "StoreMigration",
        "metadata": {"name": "take-over", "namespace": namespace},
        "spec": {
            "source": {"claimName": OLD_CLAIM},
            "target": {"broker": {"set": {"name": "orders"}}, "storage": {"size": "1Gi"}},
            "limits": {"deadlineSeconds": 600},
            **spec,
        },
    }


def waits(cluster: Cluster, namespace: str, reason: str) -> None:
    """Wait until the StoreMigration says why it does nothing; it then has made nothing."""
    cluster.wait_condition("storemigration", "take-over", namespace, "Ready", "False", reason=reason)
    assert not cluster.items("jobs", namespace)
    assert cluster.get("pvc", TARGET_CLAIM, namespace) is None


def read_queues(client: Client, queues: Sequence[tuple[str, int, int, int | None]]) -> list[Object]:
    """What the set's name servers lead to, read in the old consumers' group."""
    given = {"namesrv": client.namesrv, "group": OLD_GROUP, "queues": queues}
    program = (HERE / "queue_reader.py").read_text()
    told = client.python(program, json.dumps(given), seconds=90)
    return [json.loads(line) for line in told.splitlines()]


def check_served(client: Client, old: OldStore) -> None:
    """Every message is where it was, with the same content, and consumers go on where they were."""
    wanted = [(topic, number, 0, old.end((topic, number))) for topic, number in sorted(old.messages)]
    compared = 0
    for read in read_queues(client, wanted):
        queue = (read["topic"], read["queueId"])
        served = {message["queueOffset"]: message for message in read["messages"]}
        assert read["brokerName"] == OLD_BROKER_NAME
        assert sorted(served) == sorted(old.messages[queue]), queue
        if read["topic"] == TOPIC:
            assert read["committed"] == old.end(queue), queue
        for offset, message in old.messages[queue].items():
            found = served[offset]
            for name in found:
                if name == "properties":
                    kept = {each: found[name].get(each) for each in message[name]}
                    assert kept == message[name], (queue, offset)
                else:
                    assert found[name] == message[name], (queue, offset, name)
            compared += 1
    assert compared == sum(map(len, old.messages.values())) > 3_000


def check_sent(client: Client, old: OldStore, bodies: list[str]) -> None:
    """These messages, and no others, are behind the old ones."""
    queues = [queue for queue in sorted(old.messages) if queue[0] == TOPIC]
    found = read_queues(client, [(topic, number, old.end((topic, number)), None) for topic, number in queues])
    digests = [message["bodySha256"] for read in found for message in read["messages"]]
    assert sorted(digests) == sorted(hashlib.sha256(body.encode()).hexdigest() for body in bodies)


@pytest.mark.slow
@pytest.mark.usefixtures("spark_image")
def test_a_java_brokers_store_is_taken_over_by_a_new_set(cluster: Cluster, namespace: str) -> None:
    """Not before the old broker stops; then all is served, by the first broker and by the one that copies it."""
    old = put_old_store(cluster, namespace)
    cluster.apply(migration(namespace))
    waits(cluster, namespace, "VolumeInUse")

    stop_old_broker(cluster, namespace)
    done = cluster.wait_condition("storemigration", "take-over", namespace, "Ready", seconds=RUN_SECONDS)

    status = done["status"]
    assert (status["phase"], status["targetClaim"]) == ("Succeeded", TARGET_CLAIM)
    assert not [each for each in status["findings"] if each["level"] != "info"], status

    orders = Deployed(cluster, namespace)
    orders.create(replicas=1, controllers={"replicas": 1}, brokerNames=[OLD_BROKER_NAME], config=CONFIG)
    client = orders.client()
    check_served(client, old)
    sent = [f"sent-{number}" for number in range(40)]
    client.send(TOPIC, sent)
    check_sent(client, old, sent)

    orders.change(replicas=2)
    orders.wait_settled(2, 1)
    first, epoch = orders.master(), orders.epoch()
    orders.annotate(switchover=OLD_BROKER_NAME)
    until("the other broker leads", lambda: orders.epoch() > epoch, WAIT_SECONDS)
    orders.wait_settled(2, 1)
    assert orders.master() != first
    check_served(client, old)
    check_sent(client, old, sent)
    cluster.delete("storemigration", "take-over", namespace=namespace, seconds=60)
    until("its Jobs are gone", lambda: not cluster.items("jobs", namespace), WAIT_SECONDS)
    assert cluster.get("pvc", TARGET_CLAIM, namespace) is not None, "the volume stays"


@pytest.mark.slow
@pytest.mark.usefixtures("spark_image")
def test_spark_executors_rewrite_a_store_in_pods_of_their_own(chart: Cluster, namespace: str) -> None:
    """Once the chart allows it: next to the driver, with rights on pods alone, and the new store has every message."""
    old = put_old_store(chart, namespace)
    stop_old_broker(chart, namespace)
    small = {"rewrite": True, "fileSize": "512Ki"}
    chart.apply(migration(namespace, engine="spark", executors=EXECUTOR, options=small))
    waits(chart, namespace, "ExecutorsForbidden")

    chart.install("--set", "spark.executors=true")
    executors: dict[str, Object] = {}

    def check() -> Object:
        for pod in chart.items("pods", namespace, EXECUTORS):
            if pod["status"]["phase"] == "Running":
                executors[pod["metadata"]["uid"]] = pod
        status: Object = chart.must_get("storemigration", "take-over", namespace)["status"]
        if status["phase"] in ("Succeeded", "Failed"):
            return status
        raise ValueError(f"{status}; executors {sorted(executors)}")

    status = until("the migration has ended", check, RUN_SECONDS, pause=0.5)

    assert status["phase"] == "Succeeded", status
    job = chart.must_get("job", "take-over-migrate", namespace)
    assert job["status"]["succeeded"] == 1
    assert executors, "there were no executors"
    (driver,) = chart.items("pods", namespace, "batch.kubernetes.io/job-name=take-over-migrate")
    for pod in executors.values():
        check_executor(pod, driver)
    until("executors go with the driver", lambda: not chart.items("pods", namespace, EXECUTORS), WAIT_SECONDS)
    check_driver_rights(chart, namespace, driver["spec"]["serviceAccountName"])

    orders = Deployed(chart, namespace)
    config = {**CONFIG, "mappedFileSizeCommitLog": 524_288}
    orders.create(replicas=1, controllers={"replicas": 1}, brokerNames=[OLD_BROKER_NAME], config=config)
    check_served(orders.client(), old)


def check_executor(pod: Object, driver: Object) -> None:
    """It runs where the driver does, goes with it, has both volumes and no token."""
    (owner,) = pod["metadata"]["ownerReferences"]
    assert owner["uid"] == driver["metadata"]["uid"]
    spec = pod["spec"]
    assert spec["nodeName"] == driver["spec"]["nodeName"]
    assert spec["automountServiceAccountToken"] is False
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in spec["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert sorted(claims.values()) == sorted([OLD_CLAIM, TARGET_CLAIM])
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    asked, most = container["resources"]["requests"], container["resources"]["limits"]
    assert (asked["cpu"], asked["memory"]) == ("600m", "1200Mi")
    assert (most["cpu"], most["memory"]) == ("1", "1200Mi")
    writable = {
        claims[mount["name"]]
        for mount in container["volumeMounts"]
        if mount["name"] in claims and not mount.get("readOnly")
    }
    assert writable == {TARGET_CLAIM}


def check_driver_rights(cluster: Cluster, namespace: str, name: str) -> None:
    """What the API server lets a driver do: pods of its namespace, and nothing else anywhere."""
    user = account(namespace, name)
    assert rights_at_server(cluster, user, namespace) == {
        ("", "pods", "", verb)
        for verb in ("get", "list", "watch", "create", "patch", "delete", "deletecollection")
    }
    assert rights_at_server(cluster, user, "default") == set()
    assert may(cluster, user, "create", "pods", namespace)
    for verb in ("get", "create", "delete", "deletecollection"):
        assert not may(cluster, user, verb, "persistentvolumeclaims", namespace)
