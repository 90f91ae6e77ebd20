"""A consumer that leaves in order: when it is told that it is out, the offsets it committed last are safe."""

from __future__ import annotations

import asyncio

from brokerset_broker.member.role import Role
from brokerset_broker.member.service_mode import ServiceFacts, decide_mode
from brokerset_broker.requests.request_classes import FORWARDED
from brokerset_protocol.commands import FLAG_ONEWAY, Command, encode
from brokerset_rig.gateway_front import (
    COMMIT,
    SERVING,
    SWITCHING,
    UNREGISTER,
    Front,
    connected,
    following,
    fronting,
    request,
)
from brokerset_rig.waiting import until


def leaving(
    number: int, *more: str, group: str = "consumerGroup", flag: int = 0, binary: bool = False
) -> Command:
    ext = {"n": str(number), "clientID": "c", group: "g", **dict.fromkeys(more, "1")}
    return Command(UNREGISTER, ext, flag=flag, binary=binary)


def codes(front: Front) -> list[int]:
    return [command.code for command in front.served]


async def test_a_slave_lets_the_master_answer_behind_the_commits_that_it_passed_on() -> None:
    """Over one connection, so in their order; the slave's own table forgets the consumer without waiting."""

    async with fronting() as master, fronting() as slave, connected(slave) as consumer:
        slave.gateway.use(following(master.port))
        for number in range(3):
            consumer.send(encode(request(number, COMMIT, oneway=True)))

        answer = await consumer.call(leaving(3), 5)

        assert (answer.code, answer.ext["n"]) == (0, "3")
        assert codes(master) == [COMMIT, COMMIT, COMMIT, UNREGISTER]
        assert master.numbers() == ["0", "1", "2", "3"]
        assert codes(slave) == [UNREGISTER]
        assert slave.served[0].is_oneway


async def test_it_is_not_answered_before_commits_that_are_held() -> None:
    async with fronting() as front, connected(front) as consumer:
        front.gateway.use(SWITCHING)
        consumer.send(encode(request(1, COMMIT, oneway=True)))
        out = consumer.start_call(leaving(2))
        await until(lambda: len(front.gateway.holding) == 2)
        assert codes(front) == []

        front.gateway.use(SERVING)

        assert (await out).code == 0
        assert codes(front) == [COMMIT, UNREGISTER]


async def test_a_held_one_goes_to_the_master_that_was_elected_meanwhile() -> None:
    async with fronting() as master, fronting() as front, connected(front) as consumer:
        front.gateway.use(SWITCHING)
        consumer.send(encode(request(1, COMMIT, oneway=True)))
        out = consumer.start_call(leaving(2))
        await until(lambda: len(front.gateway.holding) == 2)

        front.gateway.use(following(master.port))

        assert (await out).code == 0
        assert codes(master) == [COMMIT, UNREGISTER]


async def test_nobody_waits_without_a_reason() -> None:
    """Producers, one-way requests, and what another broker has passed on are answered here."""

    async with fronting() as master, fronting() as slave, connected(slave) as client:
        slave.gateway.use(following(master.port))

        await client.call(leaving(1, group="producerGroup"), 5)
        await client.call(leaving(2, FORWARDED), 5)
        client.send(encode(leaving(3, flag=FLAG_ONEWAY)))
        await until(lambda: len(slave.served) == 3)

        assert codes(master) == []


async def test_without_a_master_that_answers_it_is_told_so() -> None:
    """What was committed may be lost then; the consumer is out all the same."""

    async with fronting() as gone:
        port = gone.port
    async with fronting(forwarder={"retry_seconds": 0.1}) as slave, connected(slave) as consumer:
        slave.gateway.use(following(port))

        answer = await asyncio.wait_for(consumer.call(leaving(1), 5), 5)

        assert answer.code == 14
        assert codes(slave) == [UNREGISTER]


async def test_binary_headers_are_answered_with_binary_ones() -> None:
    """Also by the master, and once: a second answer would be counted as one that nobody waits for."""

    async with fronting() as master, fronting() as slave, connected(slave) as consumer:
        slave.gateway.use(following(master.port))

        first = await consumer.call(leaving(1, binary=True), 5)
        second = await consumer.call(leaving(2), 5)

        assert (first.binary, first.ext["n"]) == (True, "1")
        assert (second.binary, second.ext["n"]) == (False, "2")
        assert master.numbers() == slave.numbers() == ["1", "2"]


async def test_when_too_much_is_passed_on_already_it_is_told_so_at_once() -> None:
    """The consumer is out at the slave all the same."""

    full = {"in_flight_max": 0}
    async with fronting() as master, fronting(forwarder=full) as slave, connected(slave) as consumer:
        slave.gateway.use(following(master.port))

        answer = await consumer.call(leaving(1), 5)

        assert answer.code == 2
        assert codes(slave) == [UNREGISTER]
        assert codes(master) == []


async def test_without_any_master_it_is_told_so_within_the_time_that_clients_wait() -> None:
    """A slave that knows of none yet: Java's clients wait for 3 s, and end whatever the answer is."""

    async with fronting() as slave, connected(slave) as consumer:
        slave.gateway.use(decide_mode(ServiceFacts(role=Role.SLAVE)))

        answer = await asyncio.wait_for(consumer.call(leaving(1), 5), 3)

        assert answer.code in (0, 14)
        assert codes(slave) == [UNREGISTER]
