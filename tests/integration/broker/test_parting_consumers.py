"""A consumer that leaves in order: when it is told that it is out, the offsets it committed last are safe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from brokerset_broker.gateway.request_classes import FORWARDED
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
    until,
)

Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


def leaving(number: int, *more: str, group: str = "consumerGroup", flag: int = 0) -> Command:
    return Command(
        UNREGISTER, {"n": str(number), "clientID": "c", group: "g", **dict.fromkeys(more, "1")}, flag=flag
    )


def codes(front: Front) -> list[int]:
    return [command.code for command in front.served]


def test_a_slave_lets_the_master_answer_behind_the_commits_that_it_passed_on(run: Run) -> None:
    """Over one connection, so in their order; the slave's own table forgets the consumer without waiting."""

    async def main() -> None:
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

    run(main)


def test_it_is_not_answered_before_commits_that_are_held(run: Run) -> None:
    async def main() -> None:
        async with fronting() as front, connected(front) as consumer:
            front.gateway.use(SWITCHING)
            consumer.send(encode(request(1, COMMIT, oneway=True)))
            out = consumer.start_call(leaving(2))
            await until(lambda: len(front.gateway.holding) == 2)
            assert codes(front) == []

            front.gateway.use(SERVING)

            assert (await out).code == 0
            assert codes(front) == [COMMIT, UNREGISTER]

    run(main)


def test_a_held_one_goes_to_the_master_that_was_elected_meanwhile(run: Run) -> None:
    async def main() -> None:
        async with fronting() as master, fronting() as front, connected(front) as consumer:
            front.gateway.use(SWITCHING)
            consumer.send(encode(request(1, COMMIT, oneway=True)))
            out = consumer.start_call(leaving(2))
            await until(lambda: len(front.gateway.holding) == 2)

            front.gateway.use(following(master.port))

            assert (await out).code == 0
            assert codes(master) == [COMMIT, UNREGISTER]

    run(main)


def test_nobody_waits_without_a_reason(run: Run) -> None:
    """Producers, one-way requests, and what another broker has passed on are answered here."""

    async def main() -> None:
        async with fronting() as master, fronting() as slave, connected(slave) as client:
            slave.gateway.use(following(master.port))

            await client.call(leaving(1, group="producerGroup"), 5)
            await client.call(leaving(2, FORWARDED), 5)
            client.send(encode(leaving(3, flag=FLAG_ONEWAY)))
            await until(lambda: len(slave.served) == 3)

            assert codes(master) == []

    run(main)


def test_without_a_master_that_answers_it_is_told_so(run: Run) -> None:
    """What was committed may be lost then; the consumer is out all the same."""

    async def main() -> None:
        async with fronting() as gone:
            port = gone.port
        async with fronting(forwarder={"retry_seconds": 0.1}) as slave, connected(slave) as consumer:
            slave.gateway.use(following(port))

            answer = await asyncio.wait_for(consumer.call(leaving(1), 5), 5)

            assert answer.code == 14
            assert codes(slave) == [UNREGISTER]

    run(main)
