"""Acks in their usual form, which are served without their headers being read one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brokerset_formats.pop.handles import Handle
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_rig.local_servers import Setup
from brokerset_rig.pop_requests import ack, ack_batch, append, handles, pop, running
from brokerset_rig.transaction_client import TransactionClient, transaction_client


async def raw_ack(client: TransactionClient, handle: Handle, **fields: str) -> int:
    ext: dict[str, Any] = {
        "consumerGroup": "g", "topic": "t", "queueId": "0", "offset": str(handle.queue_offset),
        "extraInfo": handle.encode(),
    }  # fmt: skip
    answer = await client.call(RequestCode.ACK_MESSAGE, **ext | fields)
    return answer.code


async def test_acks_of_two_pops_in_turn_are_recorded_each_in_its_own_check_point(setup: Setup) -> None:
    """What the handles of neighbouring acks share is not taken for that of another pop."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await client.create_topic("t")
        append(broker, *"abcdef")
        one = handles(await pop(client, maxMsgNums=3))
        two = handles(await pop(client, maxMsgNums=3))
        assert len(one) == len(two) == 3
        for first, second in zip(one, two, strict=True):
            assert await ack(client, first) == ResponseCode.SUCCESS
            assert await ack(client, second) == ResponseCode.SUCCESS
            assert await ack(client, first) == ResponseCode.SUCCESS, "acked before"
        assert broker.pop_log.points.count == broker.pop_log.points.in_flight == 0


@pytest.mark.parametrize("fields", [{"offset": "1"}, {"offset": "+1"}, {"queueId": "+0"}, {"liteTopic": ""}])
async def test_an_unusual_form_of_an_ack_is_served_too(setup: Setup, fields: dict[str, str]) -> None:
    """What the fast way does not take is read like every header, and counts the same."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await client.create_topic("t")
        append(broker, *"ab")
        first, second = handles(await pop(client))
        assert (
            await raw_ack(client, first if "offset" in fields else second, **fields) == ResponseCode.SUCCESS
        )
        assert broker.pop_log.points.in_flight == 1
        assert await ack(client, second) == ResponseCode.SUCCESS
        assert await ack(client, first) == ResponseCode.SUCCESS
        assert broker.pop_log.points.in_flight == 0


async def test_a_batch_that_names_one_message_too_many_acks_the_others(setup: Setup) -> None:
    """Messages of a batch are acked together only if all are out."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await client.create_topic("t")
        append(broker, *"abc")
        (handle, *_) = handles(await pop(client))
        answer = await ack_batch(client, (handle, (0, 1, 2)))
        assert answer.code == ResponseCode.SUCCESS
        assert broker.pop_log.points.in_flight == 0
        append(broker, *"def")
        (handle, *_) = handles(await pop(client))
        answer = await ack_batch(client, (handle, (3, 4, 7)))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert broker.pop_log.points.in_flight == 1


async def test_a_handle_of_another_pop_time_acks_nothing(setup: Setup) -> None:
    """The name of the check point counts, also when a usual ack came just before."""
    async with running(setup) as broker, transaction_client(broker.port) as client:
        await client.create_topic("t")
        append(broker, *"ab")
        first, second = handles(await pop(client))
        assert await ack(client, first) == ResponseCode.SUCCESS
        other = replace(second, pop_time=second.pop_time - 1)
        await ack(client, other)
        assert broker.pop_log.points.in_flight == 1
