"""An audit by executors in pods, of as many files and queues as 100 GB have (docs/spark-scale.md)."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.rig import Cluster, Object, until
from tests.e2e.kubernetes.test_store_jobs import audit

FILES: Final = 100
TOPICS: Final = 4
QUEUES: Final = 1_000
"""Of each topic."""

FILE_BYTES: Final = 1 << 20
BODY_BYTES: Final = 100
"""With it a message to each of 4,000 queues fills a file, about."""

EXECUTOR: Final = {
    "instances": 1,
    "resources": {"requests": {"cpu": "300m"}, "limits": {"cpu": 1, "memory": "1200Mi"}},
}
"""One for each of the two replicas."""

EXECUTORS: Final = "brokerset.io/job-owner=nightly,spark-role=executor"
SEND_SECONDS: Final = 600.0
RUN_SECONDS: Final = 900.0

FILL: Final = """
import asyncio, json, sys
from brokerset_client import Message, Producer

async def main(namesrv, topics, passes, body_bytes):
    sent = 0
    async with Producer("fill", namesrv=namesrv) as producer:
        queues = [queue for topic in topics for queue in await producer.queues(topic)]
        for _ in range(passes):
            futures = [
                await producer.send_async(Message(topic=queue.topic, body=b"b" * body_bytes), queue=queue) for queue in queues
            ]
            sent += len(await asyncio.gather(*futures))
    print(json.dumps({"queues": len(queues), "sent": sent}))

asyncio.run(main(*json.loads(sys.argv[1])))
"""
"""In a client's pod: a message to each queue, again and again."""


@pytest.mark.slow
@pytest.mark.usefixtures("spark_image")
def test_executors_in_pods_audit_a_thousandth_of_100_tb(chart: Cluster, namespace: str) -> None:
    """100 files and 4,000 queues of two replicas: every record of both is read, and they are the same."""
    chart.install("--set", "spark.executors=true")
    orders = Deployed(chart, namespace)
    config = {"mappedFileSizeCommitLog": FILE_BYTES, "maxMessageSize": 65_536}
    orders.create(replicas=2, controllers={"replicas": 1}, config=config)
    orders.wait_settled(2, 1)
    client = orders.client()
    topics = [f"wide-{number}" for number in range(TOPICS)]
    for topic in topics:
        client.create_topic(topic, QUEUES)
    given = json.dumps([client.namesrv, topics, FILES, BODY_BYTES])
    filled = json.loads(client.python(FILL, given, seconds=SEND_SECONDS).splitlines()[-1])
    assert filled == {"queues": TOPICS * QUEUES, "sent": FILES * TOPICS * QUEUES}
    orders.wait_settled(2, 1)

    limits = {"deadlineSeconds": int(RUN_SECONDS)}
    chart.apply(audit(namespace, engine="spark", executors=EXECUTOR, limits=limits))
    chart.annotate("storeaudit", "nightly", namespace, audit_now="1")
    executors: dict[str, Any] = {}

    def check() -> Object:
        for pod in chart.items("pods", namespace, EXECUTORS):
            if pod["status"]["phase"] == "Running":
                executors[pod["metadata"]["uid"]] = pod
        status = chart.must_get("storeaudit", "nightly", namespace)["status"]
        if "lastRun" in status:
            run: Object = status["lastRun"]
            return run
        raise ValueError(f"{status}; executors {sorted(executors)}")

    run = until("the audit has ended", check, RUN_SECONDS, pause=0.5)

    assert (run["result"], run["replicas"]) == ("Passed", "2/2"), run
    assert len(executors) >= 2, "each replica has an executor of its own"
    assert run["bytesRead"] >= 2 * FILES * FILE_BYTES, run
    print(json.dumps(run, indent=1))  # figures for the page
