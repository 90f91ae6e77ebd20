"""Clients on the test's own machine, outside of the pods' network, use a set by its outer name servers alone."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import pytest
from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.gap import master_of, slice_of
from tests.e2e.kubernetes.java_client import FETCH, FETCH_SECONDS, has_java_client
from tests.e2e.kubernetes.rig import ROOT, Cluster, Object, run, say, until
from tests.e2e.kubernetes.test_failover import kill_master

from brokerset_client import Admin, ClientError, Message, Producer, PullConsumer
from brokerset_formats.config import TopicConfig

TOPIC = "outside"
ADDRESS_SECONDS = 60.0
PUBLISHED_SECONDS = 180.0
"""Longest time until name servers have new addresses: the kubelet refreshes a ConfigMap every minute or so."""

ANSWERS = 30
"""Right answers in a row, each on a connection of its own, after which every name server has given some."""

GOES_ON_SECONDS = 60.0
CONSUMED_SECONDS = 150.0
"""A Java consumer tells the next master of itself every 30 s, and waits 30 s for an answer to a pull."""

PAUSE_SECONDS = 0.02
MESSAGES = 100


@dataclass(slots=True)
class Account:
    """What a producer was promised."""

    acked: list[str] = field(default_factory=list)
    failed: int = 0
    gap: float = 0.0
    """Longest time without an acknowledgement."""

    last: float = 0.0

    def took(self, body: str) -> None:
        """A message was acknowledged."""
        now = time.monotonic()
        self.gap = max(self.gap, now - self.last) if self.last else 0.0
        self.last = now
        self.acked.append(body)


async def keep_sending(namesrv: str, account: Account) -> None:
    """Our Python client, one message after the other, for as long as this task runs."""
    async with Producer("outside-producer", namesrv=namesrv) as producer:
        for number in range(1_000_000):
            body = f"python-{number}"
            try:
                await producer.send(Message(topic=TOPIC, body=body.encode()))
                account.took(body)
            except ClientError:
                account.failed += 1
            await asyncio.sleep(PAUSE_SECONDS)


@contextlib.asynccontextmanager
async def sending(namesrv: str) -> AsyncIterator[Account]:
    """Messages are sent while the block runs."""
    account = Account()
    task = asyncio.create_task(keep_sending(namesrv, account))
    try:
        yield account
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def more(account: Account, count: int = MESSAGES) -> None:
    """Wait until so many more messages are acknowledged."""
    wanted = len(account.acked) + count
    async with asyncio.timeout(GOES_ON_SECONDS):
        while len(account.acked) < wanted:  # noqa: ASYNC110  # the producer tells nobody
            await asyncio.sleep(PAUSE_SECONDS)


async def received(namesrv: str, topic: str = TOPIC) -> set[str]:
    """All messages of a topic, by our Python client."""
    found = set()
    async with PullConsumer("outside-readers", namesrv=namesrv, auto_commit=False) as consumer:
        for queue in await consumer.queues(topic):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.pull(queue, offset)
                found |= {message.body.decode() for message in result.messages}
                offset = result.next_queue_offset
    return found


async def all_received(namesrv: str, acked: set[str]) -> None:
    """Wait until every message that was acknowledged can be read: a queue has it a moment after that."""
    deadline = time.monotonic() + GOES_ON_SECONDS
    while lost := acked - await received(namesrv):
        assert time.monotonic() < deadline, f"{len(lost)} of {len(acked)} are lost: {sorted(lost)[:10]}"
        await asyncio.sleep(PAUSE_SECONDS)


class JavaFlow:
    """RocketMQ's Java producer or consumer on this machine; a context manager."""

    def __init__(self, **arguments: str) -> None:
        self._process = subprocess.Popen(
            [str(ROOT / "tests" / "java" / "flow"), *(f"{key}={value}" for key, value in arguments.items())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.lines: list[list[str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        assert self._process.stdout is not None, "it is a pipe"
        for raw in self._process.stdout:
            self.lines.append(raw.decode(errors="replace").split())

    def __enter__(self) -> JavaFlow:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        assert self._process.stdout is not None, "it is a pipe"
        self._process.stdout.close()

    def bodies(self, kind: str, word: int) -> list[str]:
        """Bodies in lines of a kind."""
        return [line[word] for line in list(self.lines) if line[:1] == [kind] and len(line) > word]

    @property
    def acked(self) -> list[str]:
        """What the broker has promised to keep."""
        return self.bodies("ack", 2)

    @property
    def got(self) -> list[str]:
        """What was consumed."""
        return self.bodies("got", 4)

    def wait_acked(self, count: int) -> None:
        """Wait until so many more are acknowledged."""
        wanted = len(self.acked) + count
        until("sends of the Java client are acknowledged", lambda: len(self.acked) >= wanted, GOES_ON_SECONDS)


@contextlib.contextmanager
def java_clients(namesrv: str) -> Iterator[tuple[JavaFlow, JavaFlow] | None]:
    """A Java producer and a Java consumer outside; None where there is no Java."""
    if not has_java_client():
        yield None
        return
    run([str(FETCH)], seconds=FETCH_SECONDS)
    with (
        JavaFlow(namesrv=namesrv, mode="produce", topic=TOPIC, pause="20", prefix="java") as producer,
        JavaFlow(namesrv=namesrv, mode="consume", topic=TOPIC, group="java-readers") as consumer,
    ):
        yield producer, consumer


def external_of(orders: Deployed) -> Object:
    """Addresses outside, when all are there."""

    def check() -> Object:
        found: Object = orders.status["external"]
        if found.get("waiting") or not found["nameServers"] or not found["masters"]:
            raise ValueError(str(found))
        return found

    return until("all addresses are known", check, ADDRESS_SECONDS)


async def addresses_told(namesrv: str) -> dict[str, dict[int, str]]:
    """Addresses of brokers as name servers tell them."""
    async with Admin(namesrv=namesrv) as admin:
        info = await admin.cluster_info()
        return {name: dict(group.broker_addrs) for name, group in info.broker_addr_table.items()}


def wait_published(namesrv: str, masters: list[Object]) -> None:
    """Wait until all name servers tell clients outside these addresses of masters; each reads its own file."""
    wanted = {one["group"]: one["address"] for one in masters}
    began = time.monotonic()

    def check() -> bool:
        for _ in range(ANSWERS):
            try:
                told = asyncio.run(addresses_told(namesrv))
            except ClientError as error:
                raise ValueError(str(error)) from error
            if {name: group.get(0) for name, group in told.items()} != wanted:
                raise ValueError(f"{told}, wanted {wanted}")
        return True

    until("name servers tell the addresses outside", check, PUBLISHED_SECONDS, pause=1.0)
    say(f"name servers told the addresses outside {time.monotonic() - began:.0f} s after they were known")


async def create_topic(namesrv: str) -> None:
    """Create the topic from outside."""
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic(TopicConfig(TOPIC, 8, 8))


async def fail_over(orders: Deployed, namesrv: str) -> None:
    """Python and Java send and receive before and after the master is killed; nothing acknowledged is lost."""
    await create_topic(namesrv)
    with java_clients(namesrv) as java:
        async with sending(namesrv) as account:
            await more(account)
            if java is not None:
                await asyncio.to_thread(java[0].wait_acked, MESSAGES)
            epoch = slice_of(orders)[1]
            account.gap = 0.0

            await asyncio.to_thread(kill_master, orders, master_of(orders))

            await more(account)
            await asyncio.to_thread(
                until, "another master is there", lambda: slice_of(orders)[1] > epoch, GOES_ON_SECONDS
            )
            await more(account)
            if java is not None:
                await asyncio.to_thread(java[0].wait_acked, MESSAGES)
        say(
            f"outside: {len(account.acked)} acknowledged, {account.failed} failed, longest gap"
            f" {account.gap * 1000:.0f} ms"
        )
        await all_received(namesrv, set(account.acked))
        if java is not None:
            producer, consumer = java
            acked = producer.acked
            await all_received(namesrv, set(acked))
            wanted = set(acked) | set(account.acked)

            def all_consumed() -> bool:
                if missing := sorted(wanted - set(consumer.got)):
                    raise ValueError(f"{len(missing)} of {len(wanted)} are missing: {missing[:10]}")
                return True

            until("Java consumes all of it", all_consumed, CONSUMED_SECONDS)
            say(f"outside, Java: {len(acked)} acknowledged, {len(set(consumer.got))} consumed")


@pytest.mark.slow
def test_clients_outside_follow_a_failover_at_node_ports(cluster: Cluster, namespace: str) -> None:
    """Given only the outer name servers, clients send and receive before and after the master is killed.

    Clients inside are told what they were told before; opening and closing restarts no broker.
    """
    orders = Deployed(cluster, namespace)
    orders.create()
    orders.wait_settled()
    brokers = orders.uids("broker")

    orders.change(external={"type": "NodePort"})
    external = external_of(orders)
    orders.wait_settled()
    wait_published(external["nameServers"], external["masters"])
    asyncio.run(fail_over(orders, external["nameServers"]))
    orders.wait_settled()
    client = cluster.client(namespace, orders.name)
    inside = client.run("topic", "describe", TOPIC, "--json", "--namesrv", client.namesrv)

    assert f"orders-0-master.{namespace}.svc" in inside
    assert external["masters"][0]["address"] not in inside
    assert orders.uids("broker") == brokers

    orders.change(external=None)
    cluster.wait_gone("service", "orders-namesrv-external", namespace)
    until(
        "the master's Service is an inner one",
        lambda: cluster.must_get("service", "orders-0-master", namespace)["spec"]["type"] == "ClusterIP",
        ADDRESS_SECONDS,
    )
    orders.wait_settled()
    assert "external" not in orders.status
    assert orders.uids("broker") == brokers


def balance(orders: Deployed, service: str, ip: str) -> None:
    """Give a Service an address, as a load balancer's controller does."""
    patch = f'{{"status": {{"loadBalancer": {{"ingress": [{{"ip": "{ip}"}}]}}}}}}'
    options = ["--subresource=status", "--type=merge", "-p", patch]
    orders.cluster.kubectl("patch", "service", service, *options, namespace=orders.namespace)


async def send_and_receive(namesrv: str) -> None:
    """Some messages from outside, and back."""
    await create_topic(namesrv)
    async with sending(namesrv) as account:
        await more(account)
    await all_received(namesrv, set(account.acked))


@pytest.mark.slow
def test_load_balancers_lead_in_when_they_have_addresses(cluster: Cluster, namespace: str) -> None:
    """The status says what is waited for; with the addresses of load balancers clients outside send and receive.

    Nothing here makes load balancers: the node's own address stands for theirs, and kube-proxy does the rest.
    """
    orders = Deployed(cluster, namespace)
    orders.create(external={"type": "LoadBalancer", "loadBalancerSourceRanges": ["0.0.0.0/0"]})
    orders.wait_settled()
    waiting = until("the status says what is missing", lambda: orders.status["external"]["waiting"], 30)
    assert "Service orders-namesrv-external has no address of a load balancer yet" in waiting
    assert "Service orders-0-master has no address of a load balancer yet" in waiting
    addresses = cluster.items("nodes")[0]["status"]["addresses"]
    ip = next(each["address"] for each in addresses if each["type"] == "InternalIP")

    balance(orders, "orders-namesrv-external", ip)
    balance(orders, "orders-0-master", ip)
    external = external_of(orders)

    assert external["nameServers"] == f"{ip}:9876"
    assert external["masters"] == [{"group": "orders-0", "address": f"{ip}:10911"}]
    controllers = orders.uids("controller")
    wait_published(external["nameServers"], external["masters"])
    asyncio.run(send_and_receive(external["nameServers"]))
    assert orders.uids("controller") == controllers
