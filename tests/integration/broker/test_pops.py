"""Pops of one broker over real sockets: what they give, how they wait, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest

from brokerset_broker.app import Broker
from brokerset_broker.requests.pop.reading import POSITIONS_MAX
from brokerset_formats.config import SubscriptionGroupConfig
from brokerset_formats.pop.handles import Handle, parse_handle
from brokerset_formats.pop.offset_infos import parse_message_offsets, parse_start_offsets
from brokerset_formats.properties import decode_properties, encode_properties
from brokerset_formats.records import Record, decode_record
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig.local_servers import Setup
from brokerset_rig.transaction_client import TransactionClient, transaction_client


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110  # several parts of a broker change what is asked for
            await asyncio.sleep(0.01)


def running(setup: Setup, **changes: Any) -> AbstractAsyncContextManager[Broker]:
    return setup.broker(pop_clock_skew_ms=0, **changes)


async def prepare(broker: Broker, client: TransactionClient) -> None:
    await client.create_topic("t")
    broker.groups.put(SubscriptionGroupConfig("g"))
    await until(lambda: broker.pop_log.is_known)


def append(broker: Broker, *bodies: str, queue_id: int = 0, **properties: str) -> None:
    for body in bodies:
        broker.store.append(
            "t", queue_id, body.encode(), encode_properties({"TAGS": "a"} | properties), flag=0, sys_flag=0,
            born_timestamp=5, born_host=bytes(8),
        )  # fmt: skip


def request(**fields: object) -> dict[str, Any]:
    """The header of a pop of any queue, which does not wait."""
    header: dict[str, object] = {
        "consumerGroup": "g", "topic": "t", "queueId": -1, "maxMsgNums": 32, "invisibleTime": 60_000,
        "pollTime": 0, "bornTime": 0, "initMode": 0,
    }  # fmt: skip
    return {name: str(value) for name, value in (header | fields).items() if value is not None}


async def pop(client: TransactionClient, **fields: object) -> Command:
    header: dict[str, Any] = dict(request(**fields))
    return await client.call(RequestCode.POP_MESSAGE, **header)


async def call(client: TransactionClient, code: RequestCode, **fields: object) -> Command:
    """A request for any queue of the topic."""
    header: dict[str, Any] = {"consumerGroup": "g", "topic": "t", "queueId": "-1"}
    return await client.call(code, **header | {name: str(value) for name, value in fields.items()})


def records(answer: Command) -> list[Record]:
    body, found = answer.body, []
    while body:
        size = int.from_bytes(body[:4], "big")
        found.append(decode_record(body[:size]))
        body = body[size:]
    return found


def bodies(answer: Command) -> list[str]:
    return [record.body.decode() for record in records(answer)]


async def ack(client: TransactionClient, handle: Handle, topic: str = "t") -> int:
    answer = await client.call(
        RequestCode.ACK_MESSAGE, consumerGroup="g", topic=topic, queueId=str(handle.queue_id),
        extraInfo=handle.encode(), offset=str(handle.queue_offset),
    )  # fmt: skip
    return answer.code


async def test_a_pop_gives_messages_of_all_queues_once_and_says_how_to_ack_them(setup: Setup) -> None:
    """The shape of `39-pop`: handles made of the answer ack; what is out is given to nobody else."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        append(broker, "0", "1", "2")
        append(broker, "3", queue_id=1)

        answer = await pop(client)
        again = await pop(client)
        ext = answer.ext
        starts = parse_start_offsets(ext["startOffsetInfo"])
        acked = [
            await ack(
                client,
                Handle(
                    starts[flag, queue_id], int(ext["popTime"]), int(ext["invisibleTime"]),
                    int(ext["reviveQid"]), flag, broker.settings.broker_name, queue_id, offset,
                ),
            )
            for (flag, queue_id), offsets in parse_message_offsets(ext["msgOffsetInfo"]).items()
            for offset in offsets
        ]  # fmt: skip

        assert (answer.code, answer.remark, ext["restNum"]) == (0, "FOUND", "0")
        assert sorted(bodies(answer)) == ["0", "1", "2", "3"]
        assert (again.code, again.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
        assert acked == [0, 0, 0, 0]


async def test_what_is_not_acked_comes_under_its_own_topic_with_its_handle(setup: Setup) -> None:
    """The message of the retry topic has the name of the topic, POP_CK, and a handle that acks it."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        append(broker, "0", KEYS="k")
        first = await pop(client, invisibleTime=100)

        second = await pop(client, pollTime=10_000, bornTime=broker.clock.now_ms())
        (record,) = records(second)
        properties = decode_properties(record.properties)
        handle = parse_handle(properties["POP_CK"])
        acked = await ack(client, handle, "%RETRY%g_t")

        assert (bodies(first), second.code, record.topic, record.body) == (["0"], 0, "t", b"0")
        assert (record.reconsume_times, properties["KEYS"], properties["ORIGIN_GROUP"]) == (1, "k", "g")
        assert (handle.retry_flag, handle.pop_time, acked) == (1, int(second.ext["popTime"]), 0)


async def test_a_message_wakes_one_of_those_who_wait(setup: Setup) -> None:
    """A waiting pop gets what comes; the others wait on, and are answered with 210 in the end."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        waiting = [asyncio.ensure_future(pop(client, pollTime=600)) for _ in range(20)]
        await until(lambda: len(broker.pop_requests.pops) == 20)
        info = await call(client, RequestCode.POLLING_INFO)
        append(broker, "0")
        await until(lambda: len(broker.pop_requests.pops) == 19)
        answers = await asyncio.gather(*waiting)

        assert info.ext["pollingNum"] == "20"
        assert sorted(answer.code for answer in answers) == [0, *[ResponseCode.POLLING_TIMEOUT] * 19]
        assert broker.pop_requests.waiting == 0


async def test_many_messages_wake_as_many_as_are_needed(setup: Setup) -> None:
    """Who leaves something wakes the next one, so all is given out at once."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        waiting = [asyncio.ensure_future(pop(client, pollTime=9_000, maxMsgNums=2)) for _ in range(5)]
        await until(lambda: len(broker.pop_requests.pops) == 5)
        append(broker, *"0123456789")
        answers = await asyncio.gather(*waiting)

        assert sorted(body for answer in answers for body in bodies(answer)) == list("0123456789")


async def test_tags_and_expressions_choose_messages(setup: Setup) -> None:
    """What does not match is passed by; a waiting pop is woken by what it wants."""
    async with (
        running(setup, enable_property_filter=True) as broker,
        transaction_client(broker.port) as client,
    ):
        await prepare(broker, client)
        append(broker, "0", TAGS="a")
        append(broker, "1", TAGS="b", n="5")
        by_tag = await pop(client, exp="b", expType="TAG")
        append(broker, "2", TAGS="b", n="1")
        append(broker, "3", TAGS="b", n="7")
        by_sql = await pop(client, exp="n > 6", expType="SQL92")
        waits = asyncio.ensure_future(pop(client, exp="c", pollTime=9_000))
        await until(lambda: len(broker.pop_requests.pops) == 1)
        append(broker, "4", TAGS="b")
        append(broker, "5", TAGS="c")
        woken = await waits
        bad = await pop(client, exp="n >", expType="SQL92")
        odd = await pop(client, exp="n", expType="JSON")

        assert (bodies(by_tag), by_tag.ext["msgOffsetInfo"]) == (["1"], "0 0 1")
        assert (bodies(by_sql), bodies(woken)) == (["3"], ["5"])
        assert (bad.code, odd.code) == (ResponseCode.SUBSCRIPTION_PARSE_FAILED,) * 2
        wanted = broker.consumers.popped_subscription("g", "t")
        assert wanted is not None
        assert wanted.sub_string == "c"
        assert broker.consumers.popped_subscription("g", "%RETRY%g_t") is not None


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"bornTime": 1}, ResponseCode.POLLING_TIMEOUT),
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": -1}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": -1}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 1 << 62}, ResponseCode.INVALID_PARAMETER),
        ({"order": "true", "attemptId": "a" * 256}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 99}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "%RETRY%g"}, None),
        ({"queueId": "x"}, None),
        ({"pollTime": None}, None),
    ],
)
async def test_what_cannot_be_served_is_refused(
    setup: Setup, fields: dict[str, object], code: int | None
) -> None:
    """Java's codes; hostile numbers are refused, and nothing is given out."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        append(broker, "0")

        answer = await pop(client, **fields)

        assert answer.code != 0 if code is None else answer.code == code
        assert bodies(await pop(client)) == ["0"]


async def test_a_group_that_wants_what_is_new_begins_at_the_last_message_of_an_old_queue(
    setup: Setup,
) -> None:
    """initMode 1: at message 0 while that is new (`initPopOffsetByCheckMsgInMem`), else at the last one."""
    async with (
        running(setup, init_pop_offset_by_check_msg_in_mem=False) as broker,
        transaction_client(broker.port) as client,
    ):
        await prepare(broker, client)
        append(broker, "0", "1", "2")
        last = await pop(client, initMode=1)
        broker.groups.put(SubscriptionGroupConfig("h"))
        oldest = await pop(client, consumerGroup="h")

        assert (bodies(last), bodies(oldest)) == (["2"], ["0", "1", "2"])


async def test_a_reset_moves_the_next_pop(setup: Setup) -> None:
    """A waiting pop of the group is served again, from where the offset was set."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        append(broker, "0", "1")
        await pop(client)
        waits = asyncio.ensure_future(pop(client, pollTime=9_000))
        await until(lambda: len(broker.pop_requests.pops) == 1)
        broker.offsets.reset("g", "t", 0, 1)
        broker.pop_requests.reset({"t@g": {0: 1}})

        assert bodies(await waits) == ["1"]


async def test_a_group_that_is_new_to_many_queues_gets_its_message_with_its_first_pop(setup: Setup) -> None:
    """Its positions are found in several turns of the loop, also for a pop that may not wait."""
    queues = 3 * POSITIONS_MAX + 1
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        config = broker.topics.items["t"]
        broker.topics.put(replace(config, read_queue_nums=queues, write_queue_nums=queues))
        append(broker, "last", queue_id=queues - 1)

        answer = await pop(client)
        nothing = await pop(client)
        waits = asyncio.ensure_future(pop(client, pollTime=9_000))
        await until(lambda: len(broker.pop_requests.pops) == 1)
        append(broker, "next", queue_id=7)

        assert bodies(answer) == ["last"]
        assert nothing.code == ResponseCode.POLLING_TIMEOUT
        assert bodies(await waits) == ["next"]


async def test_peeks_and_notifications_take_nothing(setup: Setup) -> None:
    """They tell of what the next pop gives; a notification waits for it."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        nothing = await call(client, RequestCode.PEEK_MESSAGE, maxMsgNums="5")
        none = await call(client, RequestCode.NOTIFICATION, pollTime="0", bornTime="0")
        waits = asyncio.ensure_future(call(client, RequestCode.NOTIFICATION, pollTime="9000", bornTime="0"))
        await until(lambda: len(broker.pop_requests.notifications) == 1)
        append(broker, "0", "1")
        notified = await waits
        peeked = await call(client, RequestCode.PEEK_MESSAGE, maxMsgNums="5")
        popped = await pop(client)
        rolled = await client.call(RequestCode.POP_ROLLBACK)

        assert (nothing.code, peeked.code) == (ResponseCode.PULL_NOT_FOUND, 0)
        assert (none.ext["hasMsg"], notified.ext["hasMsg"]) == ("false", "true")
        assert (bodies(peeked), peeked.ext["restNum"]) == (["0", "1"], "2")
        assert bodies(popped) == ["0", "1"]
        assert rolled.code == 0


async def test_limits_answer_at_once_and_a_lost_connection_waits_no_more(setup: Setup) -> None:
    """popPollingSize and maxPopPollingSize: 209; who is gone is forgotten, and takes nothing."""
    async with running(setup, pop_polling_size=2) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        async with transaction_client(broker.port) as gone:
            lost = [asyncio.ensure_future(pop(gone, pollTime=9_000)) for _ in range(2)]
            await until(lambda: len(broker.pop_requests.pops) == 2)
            full = await pop(client, pollTime=9_000)
        await until(lambda: len(broker.pop_requests.pops) == 0)
        await asyncio.gather(*lost, return_exceptions=True)
        append(broker, "0")

        assert full.code == ResponseCode.POLLING_FULL
        assert bodies(await pop(client)) == ["0"]


async def test_a_topic_that_is_deleted_is_waited_for_no_more(setup: Setup) -> None:
    """Who waits hears of it at once."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        waits = asyncio.ensure_future(pop(client, pollTime=9_000))
        await until(lambda: len(broker.pop_requests.pops) == 1)
        broker.topics.delete("t")

        assert (await waits).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_topic_that_may_not_be_read_is_refused_also_to_who_waits(setup: Setup) -> None:
    """With Java's code and text; who waits hears of it when the permission is withdrawn."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        waits = asyncio.ensure_future(pop(client, pollTime=19_000))
        await until(lambda: len(broker.pop_requests.pops) == 1)
        found = broker.topics.get("t")
        assert found is not None

        broker.topics.update(replace(found, perm=2))
        answers = [await waits, await pop(client)]

        text = "the topic[t] peeking message is forbidden"
        assert [(answer.code, answer.remark) for answer in answers] == 2 * [
            (ResponseCode.NO_PERMISSION, text)
        ]


async def test_the_waiting_pops_of_a_member_that_leaves_end(setup: Setup) -> None:
    """All of them and those of no other group of its connection, which lives on; so what it gives back goes
    to others."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client)
        broker.groups.put(SubscriptionGroupConfig("other"))
        leave = [asyncio.ensure_future(pop(client, pollTime=19_000)) for _ in range(100)]
        stays = asyncio.ensure_future(pop(client, consumerGroup="other", pollTime=19_000))
        await until(lambda: len(broker.pop_requests.pops) == 101)

        await client.call(RequestCode.UNREGISTER_CLIENT, clientID="c", consumerGroup="g")

        assert {answer.code for answer in await asyncio.gather(*leave)} == {ResponseCode.POLLING_TIMEOUT}
        append(broker, "m")
        assert (await stays).code == 0
