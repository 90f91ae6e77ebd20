"""`brokerset consume --pop` against our broker, in this process: what it acknowledges."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerset_cli.consuming import Taken
from brokerset_cli.output import CommandFailed
from brokerset_cli.popped_messages import popped_json, take_popped
from brokerset_client import ConsumeFromWhere, Message, PoppedMessage, Producer, TopicConfig
from brokerset_client.instance import ClientInstance
from brokerset_rig.local_servers import HOST, running_broker, running_name_server
from brokerset_rig.waiting import until


@asynccontextmanager
async def topic_of_ten(folder: Path) -> AsyncIterator[ClientInstance]:
    """A client of a broker with ten messages in topic `t`, which has two queues."""
    async with running_name_server(folder) as server:
        namesrv = f"{HOST}:{server.port}"
        async with running_broker(folder / "store", namesrv_addr=namesrv, pop_clock_skew_ms=0) as broker:
            broker.topics.update(TopicConfig("t", 2, 2))
            await until(lambda: broker.registrar.registered and broker.pop_log.is_known)
            async with Producer("p", namesrv=namesrv) as producer:
                for number in range(10):
                    await producer.send(Message(topic="t", body=b"%d" % number))
                yield producer.instance


async def take(instance: ClientInstance, shown: list[PoppedMessage], **options: Any) -> Taken:
    wishes: dict[str, Any] = {
        "where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, "handle": shown.append, "idle_seconds": 0.4
    }  # fmt: skip
    async with asyncio.timeout(20):
        return await take_popped(instance, "t", "g", **(wishes | options))


async def test_what_was_shown_is_acknowledged_and_nothing_more(tmp_path: Path) -> None:
    async with topic_of_ten(tmp_path) as instance:
        first: list[PoppedMessage] = []
        rest: list[PoppedMessage] = []
        assert (await take(instance, first, count=3, batch=2)).count == 3
        assert (await take(instance, rest, ordered=False)).count == 7
        assert len({message.body for message in (*first, *rest)}) == 10
        assert json.loads(json.dumps(popped_json(first[0])))["handle"] == first[0].handle.encode()


async def test_what_was_not_acknowledged_comes_again(tmp_path: Path) -> None:
    """After its invisible time."""
    async with topic_of_ten(tmp_path) as instance:
        first: list[PoppedMessage] = []
        again: list[PoppedMessage] = []
        await take(instance, first, count=10, ack=False, invisible_seconds=0.5)
        await take(instance, again, count=10, idle_seconds=5.0)
        assert {message.body for message in first} == {message.body for message in again}
        assert {message.reconsume_times for message in again} == {1}


async def test_what_could_not_be_shown_is_given_back(tmp_path: Path) -> None:
    """A closed pipe: the message and those behind it come to the next reader at once."""
    async with topic_of_ten(tmp_path) as instance:
        shown: list[PoppedMessage] = []

        def show(message: PoppedMessage) -> None:
            if len(shown) == 2:
                raise BrokenPipeError
            shown.append(message)

        with pytest.raises(BrokenPipeError):
            await take(instance, shown, handle=show)
        rest: list[PoppedMessage] = []
        await take(instance, rest, count=8, idle_seconds=5.0)
        assert len({message.body for message in (*shown, *rest)}) == 10


async def test_an_ack_that_is_not_taken_fails_the_command(tmp_path: Path) -> None:
    """Who is too slow to show a message hears that it comes again."""
    async with topic_of_ten(tmp_path) as instance:

        def slow(message: PoppedMessage) -> None:
            message.handle = message.handle.__class__(
                **{name: getattr(message.handle, name) for name in message.handle.__slots__}
                | {"pop_time": message.handle.pop_time - 90_000}
            )

        with pytest.raises(CommandFailed, match="are not acknowledged"):
            await take(instance, [], handle=slow)
