"""Consumers that filter by SQL92, from the client library and the command line's reader to a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerset_cli.consuming import parse_start, take
from brokerset_client import (
    ConsumeFromWhere,
    Message,
    MessageView,
    Producer,
    PushConsumer,
    RequestRefused,
    TopicConfig,
)
from brokerset_client.instance import ClientInstance
from brokerset_rig.local_servers import HOST, running_broker, running_name_server
from brokerset_rig.waiting import until


async def test_consumers_get_what_their_expression_matches(tmp_path: Path) -> None:
    """Before and after they came; one with a bad expression does not start, and hears why."""
    seen: list[bytes] = []

    async def listener(message: MessageView) -> None:
        seen.append(message.body)

    async with running_name_server(tmp_path) as server:
        namesrv = f"{HOST}:{server.port}"
        settings = {"namesrv_addr": namesrv, "enable_property_filter": True}
        async with running_broker(tmp_path / "store", **settings) as broker:
            broker.topics.update(TopicConfig("t", 2, 2))
            await until(
                lambda: "t" in server.topics() if hasattr(server, "topics") else broker.registrar.registered
            )
            async with Producer("p", namesrv=namesrv) as producer:
                consumer = PushConsumer(
                    "g",
                    namesrv=namesrv,
                    listener=listener,
                    consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                )
                consumer.subscribe("t", "price < 10 AND region IN ('eu')", expression_type="SQL92")

                async def offer(price: int, region: str) -> None:
                    properties = {"price": str(price), "region": region}
                    await producer.send(Message(topic="t", body=b"%d" % price, properties=properties))

                for price in range(5, 15):
                    await offer(price, "eu" if price % 2 else "us")
                async with consumer:
                    await until(lambda: len(seen) == 3)
                    await offer(11, "eu")
                    await offer(3, "eu")
                    await until(lambda: len(seen) == 4)

                assert sorted(seen, key=int) == [b"3", b"5", b"7", b"9"]

                bad = PushConsumer("h", namesrv=namesrv, listener=listener)
                bad.subscribe("t", "price < ", expression_type="SQL92")
                with pytest.raises(RequestRefused, match="Encountered"):
                    await bad.start()

                shown: list[bytes] = []
                async with ClientInstance(namesrv) as instance:
                    taken = await take(
                        instance,
                        "t",
                        "reader",
                        start=parse_start("earliest"),
                        handle=lambda message: shown.append(message.body),
                        expression="price > 11",
                        expression_type="SQL92",
                        count=3,
                    )
                assert taken.count == 3
                assert sorted(shown) == [b"12", b"13", b"14"]
