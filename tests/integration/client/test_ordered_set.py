"""Ordered subjects as an application and its administrator meet them: real controllers and a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

from brokerset_cli.options import namesrv_address, observed_controllers
from brokerset_client.controller_admin import ControllersUnavailable
from brokerset_client.errors import ClientClosed, RequestRefused
from brokerset_client.messages import Message
from brokerset_client.ordered import HandlingContext, OrderedClient, OrderedMessage, ProducerFenced
from brokerset_client.ordered.metrics import OrderedMetrics
from brokerset_client.ordered.producing.producer import CLOSE_SECONDS
from brokerset_client.subject_admin import SubjectAdmin
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus
from brokerset_rig.local_set import LocalSet, local_set
from brokerset_rig.stack import free_port
from brokerset_rig.waiting import until

pytestmark = pytest.mark.long

MANIFEST = """
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {name: orders}
spec:
  replicas: 1
  controllers: {replicas: 1}
  config: {mappedFileSizeCommitLog: 16777216, maxHashSlotNum: 1000, maxIndexNum: 4000}
"""

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| (.+) \|$", re.M)
REFUSED, UNKNOWN = ResponseCode.BROKERSET_SUBJECT_REFUSED, ResponseCode.BROKERSET_SUBJECT_UNKNOWN


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSet]:
    """One controller and one broker; each test has subjects of its own."""
    with local_set(tmp_path_factory.mktemp("ordered"), MANIFEST) as started:
        started.until_healthy()
        yield started


def admin_of(running: LocalSet) -> SubjectAdmin:
    return SubjectAdmin(observed_controllers(None, running.data))


def client_of(running: LocalSet, client_id: str | None = None) -> OrderedClient:
    return OrderedClient(namesrv_address(None, running.data), client_id=client_id)


async def created(running: LocalSet, subject: str, partitions: int = 2) -> None:
    async with admin_of(running) as admin:
        await admin.create_subject(subject, OrderStrategy.STRICT, partitions=partitions)
        await admin.wait_until_open(subject)


async def send(client: OrderedClient, subject: str, *bodies: str) -> None:
    async with client.producer() as producer:
        for body in bodies:
            await producer.send(Message(topic=subject, body=body.encode()), key="k")


@contextlib.asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Fails if the block leaves tasks, threads or sockets behind."""

    def sockets() -> set[str]:
        found = set()
        for each in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.add(os.readlink(each))
        return {link for link in found if link.startswith("socket:")}

    before = asyncio.all_tasks(), set(threading.enumerate()), sockets()
    yield
    assert (asyncio.all_tasks(), set(threading.enumerate()), sockets()) == before


@contextlib.contextmanager
def frozen(running: LocalSet, kind: str) -> Iterator[None]:
    """The processes of a kind answer nothing, and their connections stay; at the end all is well again."""
    pids = [process["pid"] for process in running.processes(kind).values()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        running.until_healthy()


# -- administrators ---------------------------------------------------------------------------------------


async def test_an_administrator_creates_scales_describes_and_deletes_a_subject(running: LocalSet) -> None:
    """Each call answers the state, repetitions change nothing, and a deleted subject is unknown."""
    async with nothing_left(), admin_of(running) as admin:
        first = await admin.create_subject("life", OrderStrategy.STRICT, partitions=2)
        again = await admin.create_subject("life", OrderStrategy.STRICT, partitions=2)
        await admin.wait_until_open("life")
        scaled = await admin.scale_subject("life", 4)
        seen: list[int] = []
        opened = await admin.wait_until_open(
            "life", generation=scaled.generation, progress=lambda state: seen.append(state.generation)
        )
        names = [state.name for state in await admin.subjects()]
        one = await admin.subjects(["life", "of others"])
        await admin.delete_subject("life")
        await admin.delete_subject("life")
        with pytest.raises(RequestRefused) as unknown:
            await admin.subject("life")

    assert (first.generation, first.order_strategy) == (again.generation, OrderStrategy.STRICT)
    assert scaled.generation == opened.generation == first.generation + 1
    assert seen[-1] == opened.generation
    open_ones = [each for each in opened.partitions if each.status == PartitionStatus.OPEN]
    assert len(open_ones) == 4
    assert "life" in names
    assert [state.name for state in one] == ["life"]
    assert unknown.value.code == UNKNOWN
    assert "there is no subject 'life'" in str(unknown.value)


async def test_what_cannot_be_done_is_refused_with_a_code_and_a_text(running: LocalSet) -> None:
    """Names, numbers, strategies and routes that cannot be, and subjects that are not there."""
    await created(running, "strict")
    async with admin_of(running) as admin:
        cases = [
            (admin.create_subject("strict", OrderStrategy.BEST_TRIED), REFUSED, "Strict"),
            (admin.create_subject("a name", OrderStrategy.STRICT), REFUSED, "letters"),
            (admin.create_subject("none", OrderStrategy.STRICT, partitions=1025), REFUSED, "1024|1,024"),
            (admin.create_subject("none", OrderStrategy.STRICT, route=["nowhere"]), REFUSED, "nowhere"),
            (admin.scale_subject("none", 2), UNKNOWN, "none"),
            (admin.scale_subject("strict", 0), REFUSED, "1"),
            (admin.remove_consumer_group("none", "billing"), UNKNOWN, "none"),
        ]
        for work, code, text in cases:
            with pytest.raises(RequestRefused, match=text) as refused:
                await work
            assert refused.value.code == code
        assert [state.name for state in await admin.subjects(["none"])] == []


async def test_members_keep_their_group_and_their_subject(running: LocalSet) -> None:
    """Group and subject go when the last member has left, and not before."""
    await created(running, "kept")

    async def handle(message: OrderedMessage, context: HandlingContext) -> None:
        return None

    async with client_of(running) as client, admin_of(running) as admin:
        consumer = client.consumer(group="billing")
        consumer.subscribe("kept", handle)
        async with consumer:
            await until(lambda: consumer.measurements()[0].permission_seconds > 0)
            for refused in (admin.delete_subject("kept"), admin.remove_consumer_group("kept", "billing")):
                with pytest.raises(RequestRefused, match="member") as error:
                    await refused
                assert error.value.code == REFUSED
            during = await admin.subject("kept")
        await admin.remove_consumer_group("kept", "billing")
        after = await admin.subject("kept")
        await admin.delete_subject("kept")

    assert [(group.name, len(group.members)) for group in during.groups] == [("billing", 1)]
    assert after.groups == ()


async def test_controllers_that_are_not_there_are_an_error_of_their_own() -> None:
    """The text names each address that was tried."""
    address = f"127.0.0.1:{free_port()}"
    async with nothing_left(), SubjectAdmin(address) as admin:
        with pytest.raises(ControllersUnavailable, match=address):
            await admin.subjects()


# -- the end of a client ----------------------------------------------------------------------------------


async def test_close_waits_for_handlers_that_run_and_confirms_what_they_have_done(running: LocalSet) -> None:
    """Of two messages of a key the first is handled while the client is closed: the next owner gets only
    the second. A plain function in a thread is waited for, too."""
    await created(running, "handlers", 1)
    handled: list[bytes] = []
    begun, threads_begun, may_end = asyncio.Event(), threading.Event(), threading.Event()

    async def slow(message: OrderedMessage, context: HandlingContext) -> None:
        begun.set()
        await asyncio.sleep(0.5)
        handled.append(message.body)

    def plain(message: OrderedMessage, context: HandlingContext) -> None:
        threads_begun.set()
        may_end.wait(10)
        handled.append(b"plain " + message.body)

    async def quick(message: OrderedMessage, context: HandlingContext) -> None:
        handled.append(b"next " + message.body)

    async with nothing_left():
        client = client_of(running)
        await client.start()
        await send(client, "handlers", "1", "2")
        for group, handler in (("slow", slow), ("plain", plain)):
            consumer = client.consumer(group=group)
            consumer.subscribe("handlers", handler)
            consumer.start()
        await begun.wait()
        await until(threads_begun.is_set)
        closing = asyncio.create_task(client.close())
        asyncio.get_running_loop().call_later(0.5, may_end.set)
        await closing

        assert sorted(handled) == [b"1", b"plain 1"]
        async with client_of(running) as another:
            for group in ("slow", "plain"):
                consumer = another.consumer(group=group)
                consumer.subscribe("handlers", quick)
                consumer.start()
            await until(lambda: len(handled) >= 4)

    assert handled[2:] == [b"next 2", b"next 2"]


async def test_close_fails_what_is_unsent_and_may_be_called_twice(running: LocalSet) -> None:
    """The broker answers nothing: after the producer's time each sender gets `ClientClosed`, and whether its
    message may be stored; new producers and sends are refused."""
    await created(running, "unsent", 1)
    async with nothing_left():
        client = client_of(running)
        await client.start()
        producer = client.producer()
        await producer.start()
        await producer.send(Message(topic="unsent", body=b"before"), key="k")
        with frozen(running, "broker"):
            waiting = [
                await producer.send_async(Message(topic="unsent", body=b"x" * 1024), key="k")
                for _ in range(2000)
            ]
            await asyncio.sleep(0.1)  # a request is on its way, the others wait behind it
            began = asyncio.get_running_loop().time()
            await asyncio.gather(client.close(), client.close())
            took = asyncio.get_running_loop().time() - began
        await client.close()
        errors = [future.exception() for future in waiting]
        with pytest.raises(ClientClosed):
            client.producer()
        with pytest.raises(ClientClosed):
            await producer.send(Message(topic="unsent", body=b"after"), key="k")

    assert took < CLOSE_SECONDS + 5
    assert all(isinstance(error, ClientClosed) for error in errors)
    assert str(errors[0]).endswith("it may be stored")
    assert str(errors[-1]).endswith("it is not stored")


async def test_close_ends_while_the_controllers_are_away(running: LocalSet) -> None:
    """A member that cannot say that it leaves, and a message without a route, are given up after the time
    that was given."""
    await created(running, "away", 1)
    handled: list[bytes] = []

    async def handle(message: OrderedMessage, context: HandlingContext) -> None:
        handled.append(message.body)

    async with nothing_left():
        client = client_of(running)
        await client.start()
        await send(client, "away", "1")
        consumer = client.consumer(group="billing")
        consumer.subscribe("away", handle)
        consumer.start()
        await until(lambda: handled)
        producer = client.producer()
        await producer.start()
        with frozen(running, "controller"):
            parked = await producer.send_async(Message(topic="away", body=b"2"), key="k")
            began = asyncio.get_running_loop().time()
            await client.close(2)
            took = asyncio.get_running_loop().time() - began

    assert 2 <= took < 5
    assert isinstance(parked.exception(), ClientClosed)
    assert str(parked.exception()).endswith("it is not stored")


# -- one producer id --------------------------------------------------------------------------------------


async def test_producers_have_ids_of_their_own_unless_they_are_given_one(running: LocalSet) -> None:
    """Two processes with one client id send side by side. With one producer id the older one is fenced: its
    next message is not stored, and its error says which id, and what to do."""
    await created(running, "ids", 1)
    async with client_of(running, "shop") as one, client_of(running, "shop") as other:
        async with one.producer() as first, other.producer() as second:
            for producer in (first, second, first):
                await producer.send(Message(topic="ids", body=b"side by side"), key="k")
            ids = {first.producer_id, second.producer_id}
        async with one.producer(producer_id="same") as older, other.producer(producer_id="same") as newer:
            before = await older.send(Message(topic="ids", body=b"older"), key="k")
            after = await newer.send(Message(topic="ids", body=b"newer"), key="k")
            with pytest.raises(
                ProducerFenced, match=r"'same' was started again by another process.*end this"
            ):
                await older.send(Message(topic="ids", body=b"too late"), key="k")
            last = await newer.send(Message(topic="ids", body=b"newer"), key="k")

    assert len(ids) == 2
    assert after.producer_epoch > before.producer_epoch
    assert last.queue_offset == 5


# -- metrics ----------------------------------------------------------------------------------------------


def get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def documented() -> dict[str, tuple[str, frozenset[str], str]]:
    """Type, labels and meaning of the rows about ordered clients."""
    text = PAGE.read_text().split("\n## Ordered clients\n")[1].split("\n## ")[0]
    return {
        name: (kind, frozenset(re.findall(r"`(\w+)`", labels)), meaning)
        for name, kind, labels, meaning in ROW.findall(text)
    }


def exported(text: str) -> dict[str, tuple[str, frozenset[str], str]]:
    """The families of a scrape, each of which must have a sample."""
    found = {}
    helps = dict(re.findall(r"^# HELP (\w+) (.+)$", text, re.M))
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M):
        samples = re.findall(rf"^{name}\{{(.*)\}} \S+$", text, re.M)
        assert samples, f"{name} has no sample here: let the test make one"
        found[name] = (kind, frozenset(re.findall(r'(\w+)="', samples[0])), helps[name])
    return found


async def test_the_page_says_what_an_application_exports(running: LocalSet) -> None:
    """Scraped over HTTP from prometheus_client's own server, which has threads: names, types, labels and
    meanings are those of the page, and a blocked key is seen."""
    await created(running, "shown", 1)

    async def handle(message: OrderedMessage, context: HandlingContext) -> None:
        if message.body == b"2":
            raise RuntimeError("the ledger is closed")

    registry = CollectorRegistry()
    async with client_of(running) as client:
        OrderedMetrics(client, registry=registry)
        server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
        try:
            consumer = client.consumer(group="billing")
            consumer.subscribe("shown", handle)
            async with client.producer() as producer, consumer:
                for body in (b"1", b"2", b"3"):
                    await producer.send(Message(topic="shown", body=body), key="k")
                await until(lambda: any(each.blocked for each in consumer.measurements()[0].partitions))
                text = await asyncio.to_thread(get, server.server_port)
                consumer.retry_now("shown")
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    page, scrape = documented(), exported(text)
    assert page.keys() == scrape.keys()
    for name, (kind, labels, meaning) in scrape.items():
        assert page[name][:2] == (kind, labels), name
        assert page[name][2].startswith(meaning), name
    group = 'consumer_group="billing"'
    lag = 'lag_messages{consumer_group="billing",partition="0",retry="false",subject="shown"}'
    for sample in (
        f'blocked_lanes{{{group},subject="shown"}} 1.0',
        f'members{{{group},state="consuming",subject="shown"}} 1.0',
        f'handled_messages_total{{{group},subject="shown"}} 1.0',
        'confirmed_messages_total{subject="shown"} 3.0',
        lag,
    ):
        assert f"\nbrokerset_client_ordered_{sample}" in text, text


async def test_the_command_exports_what_it_consumes(running: LocalSet) -> None:
    """`consume --ordered --metrics-port` can be scraped while it waits, and counts what it printed."""
    await created(running, "command", 1)
    async with client_of(running) as client:
        await send(client, "command", "1")
    port = free_port()
    samples = (
        'brokerset_client_ordered_members{consumer_group="g",state="consuming",subject="command"} 1.0',
        'brokerset_client_ordered_handled_messages_total{consumer_group="g",subject="command"} 1.0',
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "brokerset_cli.main", "consume", "command", "--ordered", "--group", "g",
        "--metrics-port", str(port), "--data", str(running.data), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip

    async def until_scraped() -> None:
        while process.returncode is None:
            with contextlib.suppress(OSError):  # it does not listen yet
                text = await asyncio.to_thread(get, port)
                if all(sample in text for sample in samples):
                    return
            await asyncio.sleep(0.1)

    try:
        await until_scraped()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        output, _ = await process.communicate()

    assert process.returncode == 0
    assert b"order-key=k partition=0@0" in output


def test_a_port_that_is_taken_and_one_without_order_are_errors_of_usage(running: LocalSet) -> None:
    """The text says what to choose instead."""
    port = running.processes("broker")["orders-0-0"]["httpPort"]
    asyncio.run(created(running, "taken", 1))

    taken = running("consume", "taken", "--ordered", "--group", "g", "--metrics-port", str(port), code=1)
    plain = running("consume", "taken", "--group", "g", "--metrics-port", "8000", code=2)

    assert "choose another --metrics-port" in taken.stdout + taken.stderr
    assert "--metrics-port goes with --ordered" in plain.stderr
