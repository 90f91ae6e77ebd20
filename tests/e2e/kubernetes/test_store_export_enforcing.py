"""An export, and clients on this machine, of a set that takes TLS alone and checks who signs."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator

import pytest
from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.rig import Cluster
from tests.e2e.kubernetes.test_kubectl_plugin import SECONDS_MAX, running
from tests.e2e.kubernetes.test_own_authority import bundle
from tests.e2e.kubernetes.test_store_export import LAKE_CLAIM, lake_claim, wait_run
from tests.e2e.kubernetes.test_store_export_targets import export, until_says
from tests.e2e.kubernetes.test_tls import give_files
from tests.e2e.kubernetes.test_users import SECRET, make_secret, make_user

from brokerset_acl.signatures import Credentials
from brokerset_client import ClientInstance, Message, Producer

TOPIC = "events"
MESSAGES = 100
RIGHTS = [
    {"resources": [f"Topic:{TOPIC}"], "actions": ["Get", "Sub"]},
    {"resources": ["Group:TOOLS_CONSUMER"], "actions": ["Sub"]},
]


@pytest.fixture
def chart(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster whose operator may read and write Secrets, and make executors; it is put back."""
    repository, tag = cluster.spark_image.split(":")
    spark = {"image": {"repository": repository, "tag": tag}, "executors": True}
    tls = {"authority": {"enabled": True}}
    cluster.install(values={"secrets": {"access": True}, "tls": tls, "spark": spark})
    yield cluster
    cluster.install()


async def send_from_here(namesrv: str, user: Credentials) -> None:
    """Send one message as a client without TLS."""
    async with (
        ClientInstance(namesrv, credentials=user) as instance,
        Producer("outside", instance=instance) as producer,
    ):
        await producer.send(Message(topic=TOPIC, body=b"from here"))


@pytest.mark.slow
@pytest.mark.usefixtures("spark_image")
def test_an_export_reads_as_a_user_that_may_read_and_nothing_else(chart: Cluster, namespace: str) -> None:
    """Driver and executor find authorities and user; what is missing a condition or the run says. A client on
    this machine sends without TLS of its own, and the next run has its message."""
    orders = Deployed(chart, namespace)
    make_secret(orders)
    orders.create(
        replicas=1,
        controllers={"replicas": 1},
        tls={"authority": {}, "mode": "enforcing"},
        acl={"secretName": SECRET},
    )
    client = orders.client()
    boss = make_user(orders, "boss", type="Super")
    make_user(orders, "lake", policies=RIGHTS)
    make_user(orders, "nobody")
    variables = [f"{name}={value}" for name, value in (boss | give_files(client, bundle(orders))).items()]
    say = ("env", *variables, "brokerset")
    chart.execute(
        client.pod, namespace, *say, "topic", "create", TOPIC, "--queues", "4", "--namesrv", client.namesrv
    )
    bodies = "body\n" * MESSAGES
    chart.execute(
        client.pod, namespace, *say, "send", TOPIC, "--file", "-", "--namesrv", client.namesrv, given=bodies
    )
    executors = {
        "instances": 1,
        "resources": {"requests": {"cpu": "200m"}, "limits": {"cpu": 1, "memory": "1200Mi"}},
    }
    target = {"claimName": LAKE_CLAIM, "path": "tables"}
    lake = export("lake", namespace, target, topics=[TOPIC], executors=executors)
    chart.apply(lake_claim(), lake, namespace=namespace)
    assert "credentials.secretName" in until_says(chart, namespace, "lake", "Ready", "NoCredentials")

    for name, request in (("nobody", "1"), ("lake", "2")):
        credentials = {"credentials": {"secretName": f"{name}-credentials"}}
        chart.patch("storeexport", "lake", namespace, {"spec": credentials})
        until_says(chart, namespace, "lake", "Ready", "OnRequest")
        chart.annotate("storeexport", "lake", namespace, export_now=request)
        if name == "nobody":
            said = until_says(chart, namespace, "lake", "Exported", "RunFailed")
            assert "User:nobody has no permission" in said
            assert "Group:TOOLS_CONSUMER" in said
        else:
            until_says(chart, namespace, "lake", "Exported", "UpToDate")
    first = wait_run(chart, namespace, -1)
    assert (first["result"], first["lag"]) == ("Passed", 0)
    assert first["rows"] >= MESSAGES  # who sends again may store a message twice

    with running(orders, "port-forward", "--namesrv-port", "0") as lines:
        told = lines.get(timeout=SECONDS_MAX)
        while "Ctrl-C ends" not in told:
            told = lines.get(timeout=SECONDS_MAX)
        namesrv = told.partition("name server ")[2].partition(";")[0]
        user = Credentials(boss["BROKERSET_ACCESS_KEY"], boss["BROKERSET_SECRET_KEY"])
        asyncio.run(send_from_here(namesrv, user))
    chart.annotate("storeexport", "lake", namespace, export_now="3")
    second = wait_run(chart, namespace, first["number"])
    assert (second["result"], second["lag"]) == ("Passed", 0)
    assert second["rows"] >= 1

    password = chart.must_get("secret", "lake-credentials", namespace)["data"]["secretKey"]
    written = json.dumps([chart.items(kind, namespace) for kind in ("jobs", "pods", "configmaps", "events")])
    assert base64.b64decode(password).decode() not in written
