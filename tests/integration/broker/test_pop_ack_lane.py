"""Acks that come together: the native core's way and the handlers' way answer and record the same."""

from __future__ import annotations

import asyncio
import json
import random
from base64 import b64encode
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import orjson
import pytest

from brokerset_acl.signatures import Credentials, Sign
from brokerset_broker.app import Broker
from brokerset_broker.requests.pop.log import Popped
from brokerset_formats import native
from brokerset_formats.config import SubscriptionGroupConfig
from brokerset_formats.pop.records import Acks, decode_revive_record
from brokerset_formats.properties import decode_properties
from brokerset_formats.records import decode_record
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import FLAG_ONEWAY, Command, decode, encode
from brokerset_rig.local_servers import HOST, Client, Setup
from brokerset_rig.transaction_client import transaction_client
from brokerset_runtime.remoting import connect

POP_TIMES = {0: (1, tuple(range(10))), 10: (2, (10, 12, 15)), 20: (3, (20, 21))}
"""Start of a check point: milliseconds before now when it was popped, and its messages.
The last one is never acked: what is said of others depends on whether the check point is open."""

Outcome = tuple[dict[int, tuple[int, str]], dict[tuple[int, int], set[int]], int]
"""Code and remark of each answer, acked messages of each check point by the log, messages in flight."""


ROOT, APP, GUEST = Credentials("root", "root-key"), Credentials("app", "app-key"), Credentials("guest", "k")
SIGNED: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps({"username": "root", "password": "root-key"}),
}
"""Settings of a broker that checks who acks."""


async def prepare(broker: Broker) -> None:
    async with transaction_client(broker.port) as client:
        await client.create_topic("t")
    await fill(broker)


async def prepare_signed(broker: Broker, *, app: list[str], guest: list[str]) -> None:
    """As `prepare`, with two users who may consume some topics and groups."""
    connection = await connect(f"{HOST}:{broker.port}", sign=ROOT.sign)
    client = Client(connection)
    await client.create_topic("t")
    for user, resources in ((APP, app), (GUEST, guest)):
        account = {"username": user.access_key, "password": user.secret_key}
        await administrate(client, RequestCode.AUTH_CREATE_USER, account, username=user.access_key)
        await let_consume(client, RequestCode.AUTH_CREATE_ACL, user, resources)
    connection.close()
    await connection.wait_closed()
    await fill(broker)


async def let_consume(client: Client, code: int, user: Credentials, resources: list[str]) -> None:
    """Make, or change, what a user may consume."""
    subject = f"User:{user.access_key}"
    entries = [{"resource": each, "actions": ["Sub"], "decision": "Allow"} for each in resources]
    await administrate(
        client, code, {"subject": subject, "policies": [{"entries": entries}]}, subject=subject
    )


async def administrate(client: Client, code: int, body: object, **subject: Any) -> None:
    reply = await client.call(code, json.dumps(body).encode(), **subject)
    assert reply.code == 0, reply.remark


async def fill(broker: Broker) -> None:
    """Messages that can be popped."""
    for number in range(30):
        broker.store.append(
            "t", 0, b"%d" % number, b"", flag=0, sys_flag=0, born_timestamp=5, born_host=bytes(8)
        )
    async with asyncio.timeout(60):
        while not broker.pop_log.is_known:  # noqa: ASYNC110  # services of a role start in turns of the loop
            await asyncio.sleep(0.01)


def requests(seed: int, now: int) -> list[Command]:
    """Acks of a group that is yet to be named: mostly good ones, of neighbours."""
    draw = random.Random(seed)
    found = []
    for opaque in range(60):
        start = draw.choice([0, 0, 0, 10, 20, 25])
        before, offsets = POP_TIMES.get(start, (9, (25, 26)))
        offsets = offsets[:-1]
        offset = draw.choice([*offsets, *offsets, *offsets, 11, 29, 31, start + 70])
        pop_time = now - before
        flag = FLAG_ONEWAY if draw.random() < 0.03 else 0
        if draw.random() < 0.2:
            bits = sum({1 << abs(each - start) for each in draw.choices([*offsets, offset], k=3)})
            ack = {"c": "", "t": draw.choice(["t"] * 9 + ["u"]), "so": start, "q": 0, "rq": 1, "pt": pop_time,
                   "it": 60_000, "b": b64encode(bits.to_bytes(16, "little")).decode(),
                   "r": draw.choice(["0"] * 9 + ["1"])}  # fmt: skip
            parts = [ack] * draw.choice([1, 1, 2])
            command = Command(RequestCode.BATCH_ACK_MESSAGE, opaque=opaque, flag=flag)
            command.body = orjson.dumps({"brokerName": "broker-a", "acks": parts})
        else:
            handle = f"{start} {pop_time} 60000 1 0 broker-a 0 {offset}"
            ext = {"consumerGroup": "", "topic": draw.choice(["t"] * 20 + ["u"]), "queueId": "0",
                   "extraInfo": draw.choice([handle] * 20 + [handle + " 7", "x"]),
                   "offset": draw.choice([str(offset)] * 20 + ["0" + str(offset)])}  # fmt: skip
            command = Command(RequestCode.ACK_MESSAGE, ext, opaque=opaque, flag=flag)
        found.append(command)
    return found


def signed(seed: int, commands: list[Command], group: str) -> list[bytes]:
    """The frames of the requests, signed by somebody, mostly rightly."""
    draw = random.Random(~seed)
    return [of_group(command, group, lambda each: sign_somehow(draw, each)) for command in commands]


def sign_somehow(draw: random.Random, command: Command) -> None:
    """As a user who may or may not ack, or with something wrong."""
    draw.choice([APP] * 25 + [ROOT, GUEST, Credentials("app", "other-key"), Credentials("nobody", "k")]).sign(
        command
    )
    if draw.random() < 0.05:
        name = draw.choice([*command.ext, "AccessKey", "Signature", "brokersetBornHost", "ns"])
        command.ext[name] = draw.choice(["", "0", "x", command.ext.get(name, "") + " "])
    if draw.random() < 0.03:
        command.ext.pop(draw.choice(["AccessKey", "Signature"]))


def of_group(command: Command, group: str, sign: Sign = lambda _command: None) -> bytes:
    """The frame of the request, as a Java client begins it."""
    if command.body:
        command.body = bytes(command.body).replace(b'"c":""', b'"c":"%s"' % group.encode())
        sign(command)
        return encode(command)
    command.ext["consumerGroup"] = group
    sign(command)
    header = {
        "code": int(command.code), "extFields": command.ext, "flag": command.flag,
        "language": "JAVA", "opaque": command.opaque, "serializeTypeCurrentRPC": "JSON", "version": 479,
    }  # fmt: skip
    text = orjson.dumps(header)
    return (4 + len(text)).to_bytes(4, "big") + len(text).to_bytes(4, "big") + text


async def outcome(
    broker: Broker,
    group: str,
    commands: list[Command],
    chunks: int,
    now: int,
    frames: list[bytes] | None = None,
) -> Outcome:
    """Send the requests in so many pieces, which end anywhere; as these frames, if they are given."""
    broker.groups.put(SubscriptionGroupConfig(group))
    for start, (before, offsets) in POP_TIMES.items():
        popped = Popped("t", group, 0, start, offsets, offsets[-1] + 1, now - before, 60_000, 1, "broker-a")
        broker.pop_log.pop([popped])
    data = b"".join(frames or [of_group(command, group) for command in commands])
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    step = len(data) // chunks + 1
    for at in range(0, len(data), step):
        writer.write(data[at : at + step])
        await writer.drain()
    answers: dict[int, tuple[int, str]] = {}
    async with asyncio.timeout(60):
        while len(answers) < sum(not command.flag for command in commands):
            size = await reader.readexactly(4)
            frame = await reader.readexactly(int.from_bytes(size, "big"))
            answer = decode(frame, 0, len(frame))
            assert answer.opaque not in answers, "each request is answered once"
            answers[answer.opaque] = answer.code, (answer.remark or "").replace(group, "g")
    writer.close()
    return answers, recorded(broker, group), broker.pop_log.in_flight("t", group, 0)


def recorded(broker: Broker, group: str) -> dict[tuple[int, int], set[int]]:
    """Acked messages by start and pop time of their check points, as the log has them."""
    found: dict[tuple[int, int], set[int]] = {}
    for queue_id in broker.store.queues()[broker.pop_log.topic]:
        for place in range(broker.store.queue_end(broker.pop_log.topic, queue_id)):
            unit = broker.store.unit(broker.pop_log.topic, queue_id, place)
            data = broker.store.read(unit[0]) if unit is not None else None
            assert data is not None
            record = decode_record(data)
            said = decode_revive_record(decode_properties(record.properties)["TAGS"], record.body)
            if isinstance(said, Acks) and said.group == group:
                found.setdefault((said.start_offset, said.pop_time), set()).update(said.offsets)
    return found


@pytest.mark.skipif(native.core is None, reason="there is no native core")
async def test_the_native_way_answers_and_records_what_the_handlers_do(setup: Setup) -> None:
    """Right and wrong acks, single ones and batches, in chunks that end anywhere."""
    async with setup.broker(pop_clock_skew_ms=0) as broker:
        await prepare(broker)
        lane: Any = broker._ack_lane
        is_open = lane.is_open
        now = broker.clock.now_ms()
        for seed in range(40):
            outcomes = []
            for name, opens in (("native", is_open), ("handlers", lambda: False)):
                lane.is_open = opens
                commands = requests(seed, now)
                chunks = random.Random(seed).choice([1, 1, 2, 5, 50])
                outcomes.append(await outcome(broker, f"{name}-{seed}", commands, chunks, now))
            assert outcomes[0] == outcomes[1], seed
        assert lane.served > 200


@pytest.mark.skipif(native.core is None, reason="there is no native core")
async def test_signed_acks_are_answered_and_recorded_alike_on_both_ways(setup: Setup) -> None:
    """By users with the right to topic and group, or one of both, or none, and with altered signatures."""
    async with setup.broker(pop_clock_skew_ms=0, **SIGNED) as broker:
        await prepare_signed(
            broker, app=["Topic:t", "Group:native-*", "Group:handlers-*"], guest=["Topic:t", "Group:other"]
        )
        lane: Any = broker._ack_lane
        is_open = lane.is_open
        now = broker.clock.now_ms()
        denied = broker.access_control.denied
        for seed in range(40):
            outcomes, refusals = [], []
            for name, opens in (("native", is_open), ("handlers", lambda: False)):
                lane.is_open = opens
                commands, group = requests(seed, now), f"{name}-{seed}"
                chunks = random.Random(seed).choice([1, 1, 2, 5, 50])
                before = denied.copy()
                frames = signed(seed, commands, group)
                outcomes.append(await outcome(broker, group, commands, chunks, now, frames))
                refusals.append(denied - before)
            assert outcomes[0] == outcomes[1], seed
            assert refusals[0] == refusals[1], seed
        assert min(denied["authentication"], denied["authorization"]) > 40
        assert lane.served > 40


@pytest.mark.parametrize("core", [True, False], ids=["native", "python"])
async def test_acks_are_refused_at_once_when_a_right_is_taken_away(setup: Setup, core: bool) -> None:
    """Also on a connection whose acks went past the handlers; what was acked stays so, the rest is out."""
    without: AbstractContextManager[Any] = nullcontext() if core else mock.patch.object(native, "core", None)
    with without:
        async with setup.broker(pop_clock_skew_ms=0, **SIGNED) as broker:
            await prepare_signed(broker, app=["Topic:t", "Group:g"], guest=["Topic:t"])
            broker.groups.put(SubscriptionGroupConfig("g"))
            pop_time = broker.clock.now_ms()
            broker.pop_log.pop(
                [Popped("t", "g", 0, 0, tuple(range(10)), 10, pop_time, 60_000, 1, "broker-a")]
            )
            clients = [Client(await connect(f"{HOST}:{broker.port}", sign=each.sign)) for each in (ROOT, APP)]
            root, app = clients

            async def ack(client: Client, offset: int) -> int:
                handle = f"0 {pop_time} 60000 1 0 broker-a 0 {offset}"
                reply = await client.call(
                    RequestCode.ACK_MESSAGE,
                    topic="t",
                    consumerGroup="g",
                    queueId=0,
                    extraInfo=handle,
                    offset=offset,
                )
                return reply.code

            assert [await ack(app, offset) for offset in range(5)] == [0] * 5
            served = 0 if broker._ack_lane is None else broker._ack_lane.served
            if native.core is not None:
                assert served >= 3
            for resources in (["Topic:t"], ["Group:g"], ["Topic:t", "Group:h"]):
                await let_consume(root, RequestCode.AUTH_UPDATE_ACL, APP, ["Topic:t", "Group:g"])
                await administrate(root, RequestCode.AUTH_DELETE_ACL, None, subject="User:app")
                await let_consume(root, RequestCode.AUTH_CREATE_ACL, APP, resources)
                assert await ack(app, 6) == ResponseCode.NO_PERMISSION
            assert broker.pop_log.in_flight("t", "g", 0) == 5
            await let_consume(root, RequestCode.AUTH_UPDATE_ACL, APP, ["Topic:t", "Group:g"])
            assert [await ack(app, offset) for offset in (6, 7, 8)] == [0] * 3
            if broker._ack_lane is not None:
                assert broker._ack_lane.served > served, "it is learnt again"
            for client in clients:
                client.connection.close()
                await client.connection.wait_closed()


@pytest.mark.skipif(native.core is None, reason="there is no native core")
async def test_acks_that_the_store_refuses_are_answered_one_by_one(setup: Setup) -> None:
    """Each gets the code of a send that is refused so, and its message is still out."""
    async with setup.broker(pop_clock_skew_ms=0) as broker:
        await prepare(broker)
        now = broker.clock.now_ms()
        handles = [(0, 1, offset) for offset in range(10)] + [(20, 3, 20)]
        commands = [
            Command(
                RequestCode.ACK_MESSAGE,
                {"topic": "t", "queueId": "0", "offset": str(offset),
                 "extraInfo": f"{start} {now - before} 60000 1 0 broker-a 0 {offset}"},
                opaque=opaque,
            )
            for opaque, (start, before, offset) in enumerate(handles)
        ]  # fmt: skip
        serve = broker.pop_log.write_acks

        def refuse() -> None:
            broker.store._refusal = "no room"
            serve()
            broker.store._refusal = None

        broker.pop_log.write_acks = refuse  # type: ignore[method-assign]

        answers, acked, in_flight = await outcome(broker, "g", commands, 1, now)

        assert {code for code, _ in answers.values()} == {14}
        assert len(answers) == len(commands)
        assert (acked, in_flight) == ({}, 15)
