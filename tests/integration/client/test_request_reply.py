"""Requests that wait for a reply, between clients and brokers with real sockets and files."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from brokerset_broker.app import Broker
from brokerset_cli.consuming import parse_start, take
from brokerset_cli.main import main
from brokerset_cli.requests import replying
from brokerset_client import (
    Answer,
    ClientClosed,
    ClientInstance,
    ConsumeFromWhere,
    Message,
    MessageQueue,
    MessageView,
    NotARequest,
    Producer,
    PullConsumer,
    Replier,
    ReplyNotTaken,
    ReplyTimeout,
    RequestRefused,
    TopicConfig,
    is_request,
    reply_message,
)
from brokerset_client import instance as instance_module
from brokerset_formats.properties import Property
from brokerset_formats.records import SysFlag
from brokerset_protocol.codes import RequestCode
from brokerset_rig.local_servers import HOST, running_broker, running_name_server
from brokerset_rig.waiting import until

from .fake_broker import FakeCluster, say_nothing

REPLIES = "DefaultCluster_REPLY_TOPIC"


class Servers:
    """A name server, as long as the block runs, and brokers of one cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.namesrv = ""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Servers:
        server = await self._stack.enter_async_context(running_name_server(self.folder))
        self.namesrv = f"{HOST}:{server.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @asynccontextmanager
    async def broker(
        self, name: str = "broker-a", *, topic: str = "t", **changes: Any
    ) -> AsyncIterator[Broker]:
        """A broker with a topic, both of which the name server knows."""
        settings = {"namesrv_addr": self.namesrv, "broker_name": name, **changes}
        async with running_broker(self.folder / name, **settings) as broker:
            broker.topics.update(TopicConfig(topic, 1, 1))
            await until(lambda: broker.registrar.registered)
            await self.routed(topic, name, f"{HOST}:{broker.port}")
            yield broker

    async def routed(self, topic: str, name: str, address: str) -> None:
        """Wait until the name server knows a topic on a broker at an address."""
        async with ClientInstance(self.namesrv) as instance:

            async def known() -> bool:
                try:
                    return (await instance.route(topic, fresh=True)).master(name) == address
                except Exception:
                    return False

            async with asyncio.timeout(20):
                while not await known():  # noqa: ASYNC110  # no event tells
                    await asyncio.sleep(0.01)

    def replier(self, handler: Any, **changes: Any) -> Replier:
        """A member of the group `g` that begins with the first message."""
        replier = Replier(
            "g",
            handler,
            namesrv=self.namesrv,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            **changes,
        )
        replier.subscribe("t")
        return replier

    def producer(self, group: str = "p") -> Producer:
        return Producer(group, namesrv=self.namesrv)


@pytest.fixture
def servers(tmp_path: Path) -> Servers:
    """Servers in a folder of this test."""
    return Servers(tmp_path)


async def stored_replies(namesrv: str, broker: str) -> list[MessageView]:
    """What the reply topic of a broker has."""
    async with PullConsumer("reader", namesrv=namesrv) as consumer:
        found = await consumer.pull(MessageQueue(REPLIES, broker, 0), 0)
        return found.messages


async def echo(request: MessageView) -> bytes:
    return b"re:" + request.body


async def test_a_request_gets_its_reply(servers: Servers) -> None:
    """With body, tags, keys and properties; the reply is stored, too, in the cluster's reply topic."""

    async def answer(request: MessageView) -> Answer:
        assert is_request(request)
        return Answer(b"re:" + request.body, "A", ("k",), {"own": "1"})

    async with (
        servers.broker(),
        servers.replier(answer),
        servers.producer() as producer,
    ):
        reply = await producer.request(Message(topic="t", body=b"ping", properties={"x": "y"}), 10)

        assert reply.body == b"re:ping"
        assert (reply.topic, reply.tags, reply.keys) == (REPLIES, "A", ("k",))
        assert reply.properties["own"] == "1"
        assert {Property.CORRELATION_ID, Property.PUSH_REPLY_TIME, Property.ARRIVE_TIME} <= set(
            reply.properties
        )
        assert reply.born_host.text.startswith(HOST)
        [stored] = await stored_replies(servers.namesrv, "broker-a")
        assert stored.body == b"re:ping"
        assert stored.properties[Property.CORRELATION_ID] == reply.properties[Property.CORRELATION_ID]
        assert Property.PUSH_REPLY_TIME not in stored.properties


async def test_many_requests_of_many_clients_get_their_own_replies(servers: Servers) -> None:
    """Eight clients with fifty requests each at once; replies come in another order than requests."""

    async def answer(request: MessageView) -> bytes:
        await asyncio.sleep(int(request.body.rpartition(b"-")[2]) % 5 / 1000)
        return b"re:" + request.body

    async with (
        servers.broker("broker-a"),
        servers.broker("broker-b"),
        servers.replier(answer) as replier,
        AsyncExitStack() as stack,
    ):
        producers = [await stack.enter_async_context(servers.producer(f"p{n}")) for n in range(8)]

        async def ask(number: int, each: int) -> None:
            body = b"%d-%d" % (number, each)
            reply = await producers[number].request(Message(topic="t", body=body), 20)
            assert reply.body == b"re:" + body

        await asyncio.gather(*(ask(number, each) for number in range(8) for each in range(50)))

        await until(lambda: replier.replied == 400)
        assert replier.undelivered == 0
        assert all(len(producer.instance.replies) == 0 for producer in producers)


async def test_a_large_reply_comes_compressed_and_is_opened(servers: Servers) -> None:
    """Also where it is stored: the record says how its body is compressed, which Java's broker forgets."""
    body = b"large " * 10_000

    async def answer(_: MessageView) -> bytes:
        return body

    async with servers.broker(), servers.replier(answer), servers.producer() as producer:
        reply = await producer.request(Message(topic="t", body=b"x"), 10)

        assert reply.body == body
        [stored] = await stored_replies(servers.namesrv, "broker-a")
        assert stored.sys_flag & SysFlag.COMPRESSED
        assert stored.body == body


async def test_without_a_reply_the_request_times_out_and_is_consumed_all_the_same(servers: Servers) -> None:
    """The error says that it is stored; a reply that comes too late is refused, and stored once."""
    got = asyncio.Event()
    replied: list[Exception] = []

    async def answer(request: MessageView) -> None:
        await got.wait()
        try:
            await replier_producer.reply_to(request, b"late", 5)
        except ReplyNotTaken as error:
            replied.append(error)

    async with (
        servers.broker(),
        servers.producer("r") as replier_producer,
        servers.replier(answer),
        servers.producer() as producer,
    ):
        with pytest.raises(ReplyTimeout, match=r"'t' is stored, but no reply came in 0\.3 s"):
            await producer.request(Message(topic="t", body=b"x"), 0.3)
        got.set()
        await until(lambda: replied)

        assert "waits here (any more)" in str(replied[0])
        assert len(producer.instance.replies) == 0
        assert len(await stored_replies(servers.namesrv, "broker-a")) == 1


async def test_a_reply_to_a_client_that_has_gone_is_refused_and_stored_once(servers: Servers) -> None:
    """All brokers are asked, again while the request's time runs; each stores the reply once at most."""
    requests: list[MessageView] = []

    async def keep(request: MessageView) -> None:
        requests.append(request)

    async with servers.broker("broker-a"), servers.broker("broker-b"), servers.replier(keep):
        async with servers.producer() as producer:
            asking = asyncio.create_task(producer.request(Message(topic="t", body=b"x"), 1.0))
            await until(lambda: requests)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            assert len(producer.instance.replies) == 0
        async with servers.producer("r") as other:
            with pytest.raises(ReplyNotTaken, match=r"channel of <.*> not found") as refused:
                await other.reply_to(requests[0], b"late", 3)

            assert len(refused.value.attempts) == 2
            for name in ("broker-a", "broker-b"):
                assert len(await stored_replies(servers.namesrv, name)) == 1


async def test_a_message_that_is_no_request_gets_no_reply(servers: Servers) -> None:
    """Nothing is sent for it, and the error says why."""
    seen: list[MessageView] = []

    async def answer(request: MessageView) -> bytes:
        seen.append(request)
        return b"reply"

    async with servers.broker(), servers.replier(answer) as replier, servers.producer() as producer:
        await producer.send(Message(topic="t", body=b"x"))
        await until(lambda: seen)
        with pytest.raises(NotARequest, match="no property REPLY_TO_CLIENT, CORRELATION_ID"):
            await producer.reply_to(seen[0], b"reply")

        assert not is_request(seen[0])
        assert (replier.replied, await stored_replies(servers.namesrv, "broker-a")) == (0, [])


async def test_a_reply_comes_over_whichever_broker_it_is_sent_to(servers: Servers) -> None:
    """A client is known to all masters of the cluster before it asks, also those without the topic, so a
    replier that goes by the route of the reply topic alone, as Java's does, reaches it."""
    requests: asyncio.Queue[MessageView] = asyncio.Queue()

    async with (
        servers.broker("broker-a"),
        servers.broker("broker-b", topic="other"),
        servers.replier(requests.put),
        servers.producer("r") as other,
        servers.producer() as producer,
    ):
        for name in ("broker-a", "broker-b"):
            asking = asyncio.create_task(producer.request(
                Message(topic="t", body=b"x"), 10, queue=MessageQueue("t", "broker-a", 0)
            ))  # fmt: skip
            request = await requests.get()
            made = reply_message(request, name.encode())
            await other.send(made, queue=MessageQueue(REPLIES, name, 0))

            assert (await asking).body == name.encode()


async def test_a_reply_after_the_requests_master_has_gone_is_delivered(servers: Servers) -> None:
    """The client makes itself known to the new master while it waits, though it sends nothing."""
    requests: asyncio.Queue[MessageView] = asyncio.Queue()

    async with servers.producer("r") as other, servers.producer() as producer:
        async with servers.broker(), servers.replier(requests.put):
            asking = asyncio.create_task(producer.request(Message(topic="t", body=b"x"), 20))
            request = await requests.get()
        async with servers.broker():
            await other.reply_to(request, b"later", 10)

            assert (await asking).body == b"later"


async def test_a_request_that_cannot_be_sent_fails_as_a_send(servers: Servers) -> None:
    """No reply is waited for then, and nothing is left behind."""
    async with servers.broker(max_message_size=1000), servers.producer() as producer:
        with pytest.raises(RequestRefused, match="body length limit 1000B"):
            await producer.request(Message(topic="t", body=os.urandom(2000)), 10)

        assert len(producer.instance.replies) == 0


async def test_replies_need_not_be_stored(servers: Servers) -> None:
    """`storeReplyMessageEnable=false`: they are passed on all the same."""
    async with (
        servers.broker(store_reply_message_enable=False),
        servers.replier(echo),
        servers.producer() as producer,
    ):
        assert (await producer.request(Message(topic="t", body=b"x"), 10)).body == b"re:x"

        assert await stored_replies(servers.namesrv, "broker-a") == []


async def test_a_handler_that_fails_gets_the_request_again(servers: Servers) -> None:
    """The request's sender gets the reply of the second try if it still waits."""
    tries: list[int] = []

    async def answer(request: MessageView) -> bytes:
        tries.append(request.reconsume_times)
        if len(tries) == 1:
            raise ValueError("not yet")
        return b"second"

    async with (
        servers.broker(message_delay_level="1s 1s 1s"),
        servers.replier(answer),
        servers.producer() as producer,
    ):
        assert (await producer.request(Message(topic="t", body=b"x"), 20)).body == b"second"
        assert tries == [0, 1]


async def test_closing_a_producer_fails_the_requests_that_wait(servers: Servers) -> None:
    """At once, also when its connections are shared and live on."""
    requests: asyncio.Queue[MessageView] = asyncio.Queue()

    async with (
        servers.broker(),
        servers.replier(requests.put),
        ClientInstance(servers.namesrv) as instance,
    ):
        async with Producer("p", instance=instance) as producer:
            asking = asyncio.create_task(producer.request(Message(topic="t", body=b"x"), 60))
            await requests.get()

        with pytest.raises(ClientClosed, match="closed before a reply came"):
            await asking
        assert len(instance.replies) == 0


async def test_a_broker_that_is_silent_holds_requests_up_for_a_moment_only(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client waits for it once, for as long as `ANNOUNCE_SECONDS`, and not again while it stays silent."""
    monkeypatch.setattr(instance_module, "ANNOUNCE_SECONDS", 0.2)
    good, silent = await cluster.add_broker("a"), await cluster.add_broker("b")
    silent.script(RequestCode.HEART_BEAT, *[say_nothing] * 9)
    async with ClientInstance(cluster.namesrv) as instance:
        instance.add_producer("p")
        loop = asyncio.get_running_loop()
        took, known = [], []
        for _ in range(3):
            began = loop.time()
            known.append(await instance.announce([good.address, silent.address]))
            took.append(loop.time() - began)

        assert known == [False, False, False]
        assert took[0] >= 0.19
        assert took[1] < 0.1
        assert took[2] < 0.1
        assert await instance.announce([good.address])
        assert len(good.seen(RequestCode.HEART_BEAT)) == 1


async def test_the_command_line_asks_and_replies(servers: Servers) -> None:
    """`request` shows the reply of `consume --reply`, as text and as JSON; without one it says what to do."""

    def ask(*options: str) -> Result:
        return CliRunner().invoke(main, ["request", "t", "ping", "--namesrv", servers.namesrv, *options])

    async with servers.broker(), ClientInstance(servers.namesrv) as instance:
        async with replying(instance, "re:{body}") as answer:
            taking = asyncio.create_task(
                take(
                    instance,
                    "t",
                    "cli",
                    start=parse_start("earliest"),
                    handle=lambda _: None,
                    count=2,
                    answer=answer,
                )
            )
            text = await asyncio.to_thread(ask)
            record = await asyncio.to_thread(ask, "--json")
            await taking
        unanswered = await asyncio.to_thread(ask, "--timeout", "0.2")

    assert (text.exit_code, text.stdout.splitlines()[-1]) == (0, "re:ping")
    assert json.loads(record.stdout.splitlines()[-1])["body"] == "re:ping"
    assert unanswered.exit_code == 1
    assert "no reply came in 0.2 s" in unanswered.output
    assert "brokerset consume t --reply TEXT" in unanswered.output
