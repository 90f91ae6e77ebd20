"""Every query of every panel and every rule, asked of a real Prometheus that scrapes a running set."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from brokerset_cli.options import namesrv_address, observed_controllers
from brokerset_client.messages import Message
from brokerset_client.ordered import HandlingContext, OrderedClient, OrderedMessage
from brokerset_client.ordered.metrics import OrderedMetrics
from brokerset_client.subject_admin import SubjectAdmin
from brokerset_formats.pop.handles import Handle
from brokerset_formats.pop.offset_infos import parse_message_offsets, parse_start_offsets
from brokerset_kube.errors import Request
from brokerset_operator.metrics import Measurements
from brokerset_operator.reconcile_queue import Key, ReconcileQueue
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_rig.certificates import Certificates
from brokerset_rig.local_set import LocalSet, local_set
from brokerset_rig.stack import free_port
from brokerset_runtime.http import HttpEndpoint
from brokerset_runtime.remoting import Connection, connect
from brokerset_runtime.tls import Tls

CHART = Path(__file__).parents[3] / "charts" / "brokerset"

PROMETHEUS = shutil.which("prometheus")

SET, NAMESPACE = "orders", "shop"
MANIFEST = f"""
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {{name: {SET}}}
spec:
  replicas: 3
  config: {{mappedFileSizeCommitLog: 16777216, maxHashSlotNum: 1000, maxIndexNum: 4000}}
"""

LEDGER_SET = "ledgers"
LEDGER_MANIFEST = MANIFEST.replace(f"name: {SET}", f"name: {LEDGER_SET}").replace(
    "replicas: 3", "replicas: 3\n  replication: {mode: dledger}"
)

SCRAPE_SECONDS = 0.5
TLS_JOB = "by-tls"
"""Name of the scrapes by HTTPS, whose server takes nothing else."""

LIVE_SECONDS_MAX = 45.0
"""Longest time until every query has an answer; some need a few scrapes, and traffic between them."""

CALL_SECONDS_MAX = 10.0

VARIABLES = {
    "$__rate_interval": "10s",
    "$namespace": ".*",
    "$set": ".*",
    "$group": ".*",
    "$subject": ".*",
}

SILENT_RULES = {
    "BrokersetOperatorAbsent": "it asks whether there are no series",
}
"""Rules that have no series while all is well, whatever is compared, and why."""

AUDITED = {
    "lastRun": {
        "startTime": "2026-01-01T03:00:00Z",
        "completionTime": "2026-01-01T03:05:00Z",
        "result": "FindingsFound",
        "errors": 1,
        "bytesRead": 4096,
        "brokers": [{"group": f"{SET}-0", "pod": f"{SET}-0-0", "result": "Compared"}],
    },
    "lastSuccessTime": "2025-12-31T03:05:00Z",
    "counts": {"bytes": 1},
    "workflow": {"set": SET, "begun": 1767000000, "period": 86400},
}
"""The status of a StoreAudit on a schedule, whose last run found an error."""

EXPORTED = {
    "lastRun": {
        "startTime": "2026-01-01T03:00:00Z",
        "completionTime": "2026-01-01T03:05:00Z",
        "result": "Passed",
        "lag": 7,
    },
    "lastSuccessTime": "2026-01-01T03:05:00Z",
    "totals": {"runs": 9, "failures": 1, "rows": 1000, "bytes": 4096, "gaps": 2},
    "workflow": {"set": SET, "begun": 1767000000, "period": 60},
}
"""The status of a StoreExport on a schedule."""


@dataclass
class Query:
    """One expression, and where it stands."""

    where: str
    expression: str


def panel_queries() -> Iterator[Query]:
    """All targets of all panels, with values for the variables."""
    for file in sorted((CHART / "dashboards").glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel.get("targets", ()):
                expression = target["expr"]
                for name, value in VARIABLES.items():
                    expression = expression.replace(name, value)
                assert "$" not in expression, expression
                yield Query(f"{file.stem}: {panel['title']} {target['refId']}", expression)


def rule_queries() -> Iterator[Query]:
    """All rules; comparisons tell 0 or 1 instead of leaving out what is well."""
    for file in sorted((CHART / "files" / "rules").glob("*.yaml")):
        for group in yaml.safe_load(file.read_text())["groups"]:
            for rule in group["rules"]:
                if rule["alert"] not in SILENT_RULES:
                    yield Query(rule["alert"], compared(rule["expr"]))


def compared(expression: str) -> str:
    """The expression with `bool` at each comparison but those that select masters and leaders."""
    expression = re.sub(r" ([<>]) ", r" \1 bool ", expression)
    return re.sub(r" == (0|1$)", r" == bool \1", expression)


@dataclass
class Prometheus:
    """A Prometheus that listens on loopback."""

    port: int

    def series(self, expression: str) -> list[Any]:
        """What an expression is now. Fails when it is refused."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.port}/api/v1/query?{query}", timeout=CALL_SECONDS_MAX
        ) as answer:
            found: list[Any] = json.load(answer)["data"]["result"]
            return found


@contextlib.contextmanager
def prometheus(
    folder: Path, targets: list[dict[str, Any]], of_tls: dict[str, Any], authority: Path
) -> Iterator[Prometheus]:
    """A process that scrapes `targets` until the end, and `of_tls` by HTTPS alone, checked by `authority`."""
    assert PROMETHEUS is not None
    config = {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS * 1000:g}ms", "evaluation_interval": "1s"},
        "rule_files": [str(file) for file in sorted((CHART / "files" / "rules").glob("*.yaml"))],
        "scrape_configs": [
            {"job_name": "pods", "scrape_timeout": "400ms", "static_configs": targets},
            {
                "job_name": TLS_JOB,
                "scrape_timeout": "400ms",
                "scheme": "https",
                "tls_config": {"ca_file": str(authority)},
                "static_configs": [of_tls],
            },
        ],
    }
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    port = free_port()
    with (
        (folder / "prometheus.log").open("wb") as log,
        subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            yield Prometheus(port)
        finally:
            process.terminate()
            process.wait(CALL_SECONDS_MAX)


def pod_targets(running: LocalSet, name_of_set: str = SET) -> list[dict[str, Any]]:
    """Every process with the labels that a PodMonitor of the operator gives its pod."""
    found = []
    for kind in ("controller", "broker"):
        for name, process in running.processes(kind).items():
            number = name.rpartition("-")[2]
            pod = f"{name_of_set}-{name if kind == 'controller' else f'0-{number}'}"
            found.append(
                {
                    "targets": [f"127.0.0.1:{process['httpPort']}"],
                    "labels": {"namespace": NAMESPACE, "pod": pod, "brokerset_io_set": name_of_set},
                }
            )
    return found


@contextlib.asynccontextmanager
async def served(registry: CollectorRegistry, tls: Tls | None = None) -> AsyncIterator[int]:
    """Shows a registry, and the certificates of `tls`, at the port."""
    endpoint = HttpEndpoint(metrics=lambda: registry)
    try:
        yield await endpoint.start("127.0.0.1", 0, tls)
    finally:
        await endpoint.close()


def an_operator() -> Measurements:
    """The operator's own registry, leading, with an object of each kind."""
    measurements = Measurements(asyncio.get_running_loop().time)

    async def nothing(_: Key) -> None:
        return None

    queue = ReconcileQueue(nothing, workers=1)
    measurements.watch_queue(queue)
    measurements.leads.set(1)
    queue.enqueue(Key("BrokerSet", NAMESPACE, SET))
    conditions = [
        {"type": "Ready", "status": "True", "reason": "AsWanted"},
        {"type": "Progressing", "status": "True", "reason": "Rolling"},
        {"type": "AuditPassed", "status": "False", "reason": "ErrorsFound"},
    ]
    retired = {"groups": [{"name": "old", "replicas": 0}]}
    measurements.status(Key("BrokerSet", NAMESPACE, SET), {"conditions": conditions, "workflow": retired})
    measurements.audit(Key("StoreAudit", NAMESPACE, "nightly"), AUDITED)
    measurements.migration(Key("StoreMigration", NAMESPACE, "to-ours"), {"phase": "Running"})
    measurements.export(Key("StoreExport", NAMESPACE, "lake"), EXPORTED)
    measurements.kind_served.labels("StoreAudit").set(1)
    return measurements


def work(measurements: Measurements) -> None:
    """What a leading operator does now and then."""
    for succeeded in (True, False):
        measurements.reconciled(Key("BrokerSet", NAMESPACE, SET), 0.05, succeeded)
        measurements.call(Request("get", "statefulsets", "apps"), "ok" if succeeded else "Timeout", 0.01)
    measurements.events.labels("Pod").inc()


@dataclass
class Client:
    """A producer and consumer of one topic on one connection, which stays open."""

    connection: Connection
    sent: int = 0
    offset: int = 0
    popped: Handle | None = None
    """Of the message that was popped for a moment last."""

    last: dict[str, str] = field(default_factory=dict)

    async def ask(self, code: int, body: bytes = b"", **ext: object) -> Command:
        answer = await self.connection.call(
            Command(code, {k: str(v) for k, v in ext.items()}, body), CALL_SECONDS_MAX
        )
        return answer

    async def begin(self) -> None:
        """Tell who is there, as clients do."""
        await self.ask(
            RequestCode.HEART_BEAT,
            b'{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[{"groupName":"g",'
            b'"subscriptionDataSet":[{"topic":"t","subString":"*","subVersion":1}]}]}',
        )

    async def work(self) -> None:
        """Send a message, read one, give one up; one more is sent than read, so that there is a lag.

        Two more wait for their time, one of them for long; of two transactions one is committed.
        """
        for _ in range(2):
            sent = await self.send("")
        for timer in ("TIMER_DELAY_MS\x01300\x02", "TIMER_DELAY_SEC\x013600\x02"):
            await self.send(timer)
        half = "TRAN_MSG\x01true\x02PGROUP\x01p\x02"
        await self.send(half, sys_flag=4)
        begun = await self.send(half, sys_flag=4)
        ended = await self.ask(
            RequestCode.END_TRANSACTION, topic="t", producerGroup="p", commitOrRollback=8,
            msgId=begun.ext["transactionId"], tranStateTableOffset=begun.ext["queueOffset"],
            commitLogOffset=int(begun.ext["msgId"][-16:], 16),
        )  # fmt: skip
        assert ended.code == 0, ended.remark
        read = await self.ask(
            RequestCode.PULL_MESSAGE, consumerGroup="g", topic="t", queueId=0, queueOffset=self.offset,
            maxMsgNums=1, sysFlag=5, commitOffset=self.offset, suspendTimeoutMillis=0, subscription="*",
            subVersion=1, expressionType="TAG",
        )  # fmt: skip
        if read.code == 0:
            self.offset += 1
        given_up = await self.ask(
            RequestCode.CONSUMER_SEND_MSG_BACK, offset=int(sent.ext["msgId"][-16:], 16), group="g",
            delayLevel=-1, originTopic="t",
        )  # fmt: skip
        assert given_up.code == 0, given_up.remark
        await self.pop_some()

    async def pop_some(self) -> None:
        """Pop one message for long and one for a moment; ack the latter of the round before, too late."""
        if self.popped is not None:
            offset = self.popped.queue_offset
            await self.ask(
                RequestCode.ACK_MESSAGE, consumerGroup="popping", topic="t", queueId=0, offset=offset,
                extraInfo=self.popped.encode(),
            )  # fmt: skip
        for invisible_ms in (600_000, 50):
            answer = await self.ask(
                RequestCode.POP_MESSAGE, consumerGroup="popping", topic="t", queueId=0, maxMsgNums=1,
                invisibleTime=invisible_ms, pollTime=0, bornTime=0, initMode=0,
            )  # fmt: skip
            if answer.code or "msgOffsetInfo" not in answer.ext:
                return
            ((retry, queue_id), offsets), *_ = parse_message_offsets(answer.ext["msgOffsetInfo"]).items()
            start = parse_start_offsets(answer.ext["startOffsetInfo"])[retry, queue_id]
            self.popped = Handle(
                start, int(answer.ext["popTime"]), invisible_ms, int(answer.ext["reviveQid"]), retry,
                f"{SET}-0", queue_id, offsets[0],
            ) if retry == 0 else None  # fmt: skip

    async def send(self, properties: str, *, sys_flag: int = 0) -> Command:
        """Send a message with these properties; the answer."""
        self.sent += 1
        answer = await self.ask(
            RequestCode.SEND_MESSAGE_V2, b"body", a="p", b="t", c="TBW102", d=1, e=0, f=sys_flag, g=1, h=0,
            i=properties, j=0, k="false", l=0, m="false",
        )  # fmt: skip
        assert answer.code == 0, answer.remark
        return answer


@contextlib.asynccontextmanager
async def ordered_client(running: LocalSet, registry: CollectorRegistry) -> AsyncIterator[None]:
    """A producer, and a member of a group with a blocked key, which export what they measure."""

    async def handle(message: OrderedMessage, context: HandlingContext) -> None:
        raise RuntimeError("the ledger is closed")

    async with SubjectAdmin(observed_controllers(None, running.data)) as admin:
        await admin.create_subject("keyed", OrderStrategy.STRICT, partitions=1)
        await admin.wait_until_open("keyed")
    async with OrderedClient(namesrv_address(None, running.data)) as client:
        OrderedMetrics(client, registry=registry)
        consumer = client.consumer(group="g")
        consumer.subscribe("keyed", handle)
        async with client.producer() as producer, consumer:
            await producer.send(Message(topic="keyed", body=b"1"), key="k")
            yield


def silent(server: Prometheus, queries: list[Query]) -> list[Query]:
    """Those that have no series now."""
    return [query for query in queries if not server.series(query.expression)]


@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus on the PATH: apt-get install prometheus")
def test_every_query_of_panels_and_rules_has_series_while_a_set_works(tmp_path: Path) -> None:
    """With traffic, a dead letter, a fenced slave, an ordered client, TLS and a DLedger none is in vain.

    Who takes TLS alone is scraped by HTTPS, and its certificate is checked.
    """
    ledgers = tmp_path / LEDGER_SET
    ledgers.mkdir()
    with (
        local_set(tmp_path, MANIFEST) as running,
        local_set(ledgers, LEDGER_MANIFEST) as dledger,
    ):
        dledger.until_healthy()
        (group,) = running.until_healthy()["groups"]
        slave = next(each["brokerId"] for each in group["replicas"] if each["brokerId"] != group["masterId"])
        running("fence", group["brokerName"], str(slave))
        master = next(each for each in group["replicas"] if each["brokerId"] == group["masterId"])

        targets = [*pod_targets(running), *pod_targets(dledger, LEDGER_SET)]
        missing = asyncio.run(_ask(tmp_path, targets, master["address"], running))

    assert not missing, "\n".join(f"{query.where}: {query.expression}" for query in missing)


async def _ask(folder: Path, targets: list[dict[str, Any]], master: str, running: LocalSet) -> list[Query]:
    measurements = an_operator()
    certificates = Certificates(folder / "certificates")
    tls = Tls(certificates.config(tls_server_mode="enforcing"))
    pod = {"namespace": NAMESPACE, "pod": f"{SET}-controller-9", "brokerset_io_set": SET}
    async with (
        served(measurements.registry) as port,
        served(CollectorRegistry(), tls) as tls_port,
        ordered_client(running, measurements.registry),
    ):
        own = {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": "brokerset-system", "pod": "op-0"}}
        of_tls = {"targets": [f"127.0.0.1:{tls_port}"], "labels": pod}
        authority = certificates.folder / "authority.pem"
        with prometheus(folder, [*targets, own], of_tls, authority) as server:
            client = Client(await connect(master))
            await client.begin()
            missing = [
                Query("a scrape by TLS", f'up{{job="{TLS_JOB}"}} == 1'),
                *panel_queries(),
                *rule_queries(),
            ]
            deadline = time.monotonic() + LIVE_SECONDS_MAX
            try:
                while missing and time.monotonic() < deadline:
                    work(measurements)
                    await client.work()
                    await asyncio.sleep(SCRAPE_SECONDS)
                    with contextlib.suppress(urllib.error.URLError):  # it does not listen yet
                        missing = await asyncio.to_thread(silent, server, missing)
            finally:
                client.connection.close()
            refused = {
                rule["name"]: rule["lastError"]
                for group in await asyncio.to_thread(_groups, server)
                for rule in group["rules"]
                if rule["health"] == "err"
            }
            assert not refused
            return missing


def _groups(server: Prometheus) -> list[dict[str, Any]]:
    with urllib.request.urlopen(
        f"http://127.0.0.1:{server.port}/api/v1/rules", timeout=CALL_SECONDS_MAX
    ) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["groups"]
        return found
