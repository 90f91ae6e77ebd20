"""The lake export where nobody is served without TLS and a signature: which rights it takes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerset_acl.signatures import Credentials
from brokerset_client.errors import TopicNotFound
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import Message
from brokerset_client.producer import Producer
from brokerset_operator.store_jobs.broker_access import (
    SIGNING_VARIABLES,
    TLS_VARIABLE,
    BrokerTrust,
    config_data,
)
from brokerset_protocol.codes import RequestCode
from brokerset_rig.certificates import Certificates
from brokerset_rig.local_servers import HOST, Client
from brokerset_rig.spark_session import missing_java
from brokerset_rig.threaded_servers import ThreadedServers, threaded_servers
from brokerset_runtime.remoting import connect
from brokerset_runtime.remoting.signing import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE
from brokerset_runtime.tls import ENVIRONMENT_VARIABLE, Tls
from brokerset_spark.jobs.lake.exporting import LakeOptions, LakeReport, export_pass
from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spark.topics import client_thread

ROOT = Credentials("root", "root-key")
CHECKED: dict[str, Any] = {
    "authentication_enabled": True,
    "init_authentication_user": json.dumps({"username": "root", "password": "root-key"}),
    "inner_client_authentication_credentials": json.dumps({"accessKey": "inner", "secretKey": "inner-key"}),
}
READER = (("Topic:orders", "Get", "Sub"), ("Group:TOOLS_CONSUMER", "Sub"))


class Guarded:
    """A name server and a broker that serve nobody without TLS and a signature; with a topic `orders`."""

    def __init__(self, servers: ThreadedServers, tls: Tls, folder: Path) -> None:
        self.servers = servers
        self._tls = tls
        self._folder = folder
        self.make_topic("orders", 2)

    async def as_root(self, work: Any) -> None:
        connection = await connect(f"{HOST}:{self.servers.broker.port}", sign=ROOT.sign, tls=self._tls)
        try:
            await work(Client(connection))
        finally:
            connection.close()
            await connection.wait_closed()

    def make_topic(self, topic: str, queues: int) -> None:
        """Make a topic, and wait until the name server knows it."""

        async def work(root: Client) -> None:
            await root.create_topic(topic, queues)
            names = self.servers.name_servers
            async with asyncio.timeout(60), ClientInstance(names, tls=self._tls) as instance:
                while True:
                    try:
                        await instance.route(topic, fresh=True)
                        return
                    except TopicNotFound:
                        await asyncio.sleep(0.05)

        self.servers.run(self.as_root(work))

    def send(self, count: int) -> None:
        async def run() -> None:
            names = self.servers.name_servers
            async with (
                ClientInstance(names, tls=self._tls, credentials=ROOT) as instance,
                Producer("test", instance=instance) as producer,
            ):
                for number in range(count):
                    await producer.send(Message(topic="orders", body=b"x", keys=[str(number)]))

        self.servers.run(run())

    def make_user(self, name: str, *rights: tuple[str, ...]) -> None:
        async def work(root: Client) -> None:
            user = {"username": name, "password": f"{name}-key"}
            made = await root.call(RequestCode.AUTH_CREATE_USER, json.dumps(user).encode(), username=name)
            entries = [{"resource": each[0], "actions": each[1:], "decision": "Allow"} for each in rights]
            policies = {"subject": f"User:{name}", "policies": [{"entries": entries}]}
            body = json.dumps(policies).encode()
            allowed = await root.call(RequestCode.AUTH_CREATE_ACL, body, subject=f"User:{name}")
            assert (made.code, allowed.code if rights else 0) == (0, 0), (made.remark, allowed.remark)

        self.servers.run(self.as_root(work))

    def export_all(self, monkeypatch: pytest.MonkeyPatch, count: int) -> list[LakeReport]:
        """Passes as the user `lake` until so many messages are there: queues may show them a moment late."""
        reports: list[LakeReport] = []
        deadline = time.monotonic() + 60
        while sum(each.messages for each in reports) < count:
            assert time.monotonic() < deadline, reports
            reports.append(self.export(monkeypatch, "lake"))
        return reports

    def export(self, monkeypatch: pytest.MonkeyPatch, user: str = "", **more: Any) -> LakeReport:
        """A pass as a process with this user in its environment makes it."""
        monkeypatch.setattr(client_thread, "_CLIENTS", {})
        monkeypatch.setenv(ACCESS_KEY_VARIABLE, user)
        monkeypatch.setenv(SECRET_KEY_VARIABLE, f"{user}-key" if user else "")
        given: dict[str, Any] = {"topics": ("orders",)} | more
        options = LakeOptions(
            name_servers=self.servers.name_servers, target=str(self._folder / "lake"), **given
        )
        try:
            return export_pass(LocalRunner(), options)
        finally:
            for each in client_thread._CLIENTS.values():
                each.close()


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    certificates = Certificates(tmp_path / "tls")
    file = certificates.config()
    trusting = tmp_path / "tls" / "clients.properties"
    trusting.write_text("tls.enable=true\ntls.client.trustCertPath=authority.pem\n")
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(trusting))
    server = {**CHECKED, "tls_config_file": file}
    broker = {**server, "authorization_enabled": True}
    with threaded_servers(tmp_path, server, **broker) as servers:
        yield Guarded(servers, Tls(trusting), tmp_path)


def test_a_user_who_may_read_the_topics_is_enough(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Super user, and no right to change anything: a table is begun, and what is new comes later."""
    guarded.make_user("lake", *READER)
    guarded.send(7)

    first = guarded.export_all(monkeypatch, 7)
    guarded.send(3)
    second = guarded.export_all(monkeypatch, 3)

    assert [each.unreachable for each in (*first, *second)] == [()] * len((*first, *second))
    assert {str(each.event) for report in (*first, *second) for each in report.control} == {"queue-added"}


def test_a_topic_that_is_gone_is_seen_without_the_list_of_brokers(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name servers list brokers for Super users alone; that a broker is there its own topic tells."""
    guarded.make_user("lake", ("Topic:*", "Get", "Sub"), READER[1])
    guarded.send(2)
    guarded.export_all(monkeypatch, 2)
    guarded.make_topic("others", 1)

    async def remove(root: Client) -> None:
        assert (await root.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")).code == 0

    guarded.servers.run(guarded.as_root(remove))
    monkeypatch.setattr("brokerset_spark.jobs.lake.exporting.BELIEVE_SECONDS", 0.0)

    def events() -> list[str]:
        report = guarded.export(monkeypatch, "lake", topics=("orders", "others"))
        return sorted(str(each.event) for each in report.control)

    assert events() == ["queue-added", "queue-gone", "queue-gone"]


@pytest.mark.parametrize(
    ("rights", "said"),
    [
        (None, "username cannot be null."),
        ((), "User:lake has no permission to access Topic:orders"),
        ((("Topic:orders", "Sub"), READER[1]), "User:lake has no permission to access Topic:orders"),
        (READER[:1], "User:lake has no permission to access Group:TOOLS_CONSUMER"),
    ],
    ids=["unsigned", "nothing", "no Get", "no group"],
)
def test_what_may_not_be_read_fails_the_run_and_is_named(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, rights: tuple[Any, ...] | None, said: str
) -> None:
    """In the broker's own words, with the rights that it takes; no run passes with nothing."""
    guarded.send(3)
    if rights is not None:
        guarded.make_user("lake", *rights)

    with pytest.raises(JobFailed) as raised:
        guarded.export(monkeypatch, "lake" if rights is not None else "")

    assert said in str(raised.value)
    assert "Sub on Group:TOOLS_CONSUMER" in raised.value.advice
    assert "lake-key" not in str(raised.value)


def test_a_pattern_takes_a_super_user_and_says_so(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of all topics is the name servers', who know Super users alone."""
    guarded.make_user("lake", ("Topic:*", "Get", "Sub"), READER[1])
    guarded.send(3)

    with pytest.raises(JobFailed) as raised:
        guarded.export(monkeypatch, "lake", topics=(), pattern="ord.*")

    assert "takes a Super user" in raised.value.advice
    assert guarded.export(monkeypatch, "root", topics=(), pattern="ord.*").queues == 2


@pytest.mark.long
def test_executors_read_in_the_same_way(guarded: Guarded, tmp_path: Path) -> None:
    """The command as a pod gets it, with the file that the operator writes: an executor of its own reads."""
    problem = missing_java()
    if problem is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(problem)
        pytest.skip(problem)
    guarded.make_user("lake", *READER)
    guarded.send(50)
    for name, text in config_data(BrokerTrust("orders-authorities", HOST)).items():
        (tmp_path / name).write_text(text)
        variables = {TLS_VARIABLE: str(tmp_path / name)}
    (tmp_path / "ca.crt").write_bytes((tmp_path / "tls" / "authority.pem").read_bytes())
    variables |= dict(zip(SIGNING_VARIABLES, ("lake", "lake-key"), strict=True))

    done = subprocess.run(
        [
            *(sys.executable, "-m", "brokerset_spark", "lake", "--topic", "orders"),
            *("--name-servers", guarded.servers.name_servers, "--target", str(tmp_path / "lake")),
            *("--summary", str(tmp_path / "summary"), "--messages-per-task", "10"),
            *("--engine", "spark", "--workers", "1", "--master", "local-cluster[1,1,1024]"),
        ],
        env=os.environ | variables, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-8_000:]
    summary = json.loads((tmp_path / "summary").read_text())
    rows, lag = summary["counters"]["export.rows"], summary["counters"]["export.lag"]
    assert rows + lag >= 50
    assert rows >= 1
    assert "lake-key" not in done.stdout + done.stderr
