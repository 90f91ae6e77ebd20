"""SQL92 filters of a real broker: registered by heartbeats, or brought by pulls; waiting pulls; restarts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from brokerset_broker.member.role import Role
from brokerset_broker.tables.consumer_filters import NATIVE_FACTOR
from brokerset_formats import native
from brokerset_protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from brokerset_protocol.commands import Command
from brokerset_rig.local_servers import Client, Setup
from brokerset_rig.stack import free_ports
from brokerset_spec.broker_settings import BrokerSettings

SQL: dict[str, Any] = {"expressionType": "SQL92"}
FILE = "config/consumerFilter.json"


@pytest.fixture(params=["native", "python"], autouse=True)
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with the native core, where there is one, and without."""
    if request.param == "python":
        monkeypatch.setattr(native, "core", None)
    elif native.core is None:
        pytest.skip("no native core here")


async def beat(
    client: Client,
    expression: str,
    *,
    version: int = 1,
    topic: str = "t",
    kind: str = "SQL92",
    group: str = "g",
) -> Command:
    """A heartbeat of one group that wants its retry topic, as consumers do, and a topic by an expression."""
    wanted = SubscriptionData(topic, expression, sub_version=version, expression_type=kind)
    retries = SubscriptionData("%RETRY%" + group)
    consumer = ConsumerData(group_name=group, subscription_data_set=(wanted, retries))
    return await client.call(34, HeartbeatData(client_id="c", consumer_data_set=(consumer,)).to_json())


async def send(client: Client, *numbers: int, topic: str = "t") -> None:
    """Messages with a property `a`, which is also their body."""
    for number in numbers:
        assert (await client.send(topic, b"%d" % number, properties={"a": str(number)})).code == 0


def registered(setup: Setup) -> Any:
    """What the file of a closed broker has, by topic and group."""
    saved = json.loads((setup.folder / FILE).read_bytes())["filterDataByTopic"]
    return {topic: groups["groupFilterData"] for topic, groups in saved.items()}


async def test_a_group_gets_what_its_registered_filter_matches(setup: Setup) -> None:
    """Also when the pull itself names no expression, as those of push consumers."""
    async with setup.pair(enable_property_filter=True) as (_, client):
        await client.create_topic("t")
        await send(client, *range(10))
        assert (await beat(client, "a > 3 AND a <> 5 AND missing IS NULL")).code == 0

        pulled = await client.pull("t", 0, expression=None, group="g", subVersion=1, **SQL)

        assert setup.bodies(pulled) == [b"4", b"6", b"7", b"8", b"9"]
        assert (pulled.code, pulled.ext["nextBeginOffset"]) == (0, "10")


async def test_a_pull_brings_its_own_expression(setup: Setup) -> None:
    async with setup.pair(enable_property_filter=True) as (_, client):
        await client.create_topic("t")
        await send(client, *range(5))

        pulled = await client.pull("t", 1, expression="a BETWEEN 0 AND 2", **SQL)
        assert setup.bodies(pulled) == [b"1", b"2"]
        none = await client.pull("t", 0, expression="a > 100", **SQL)
        assert (none.code, none.remark, none.ext["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "5")
        limited = await client.pull("t", 0, expression="a > 0", maxMsgNums=2, **SQL)
        assert setup.bodies(limited) == [b"1", b"2"]
        assert limited.ext["nextBeginOffset"] == "3"


async def test_messages_of_a_dledger_are_examined_too(setup: Setup) -> None:
    """Their records lie inside of entries."""
    peers = f"n0-127.0.0.1:{free_ports(1)[0]}"
    async with setup.pair(
        enable_property_filter=True, enable_dledger_commit_log=True, dledger_peers=peers, dledger_self_id="n0"
    ) as (broker, client):
        await setup.until(lambda: broker.part.role().role is Role.MASTER and not broker.part.problems())
        await client.create_topic("t")
        await send(client, *range(5))

        pulled = await client.pull("t", 0, expression="a >= 2 AND a <> 3", **SQL)
        assert setup.bodies(pulled) == [b"2", b"4"]


async def test_a_message_that_cannot_be_evaluated_does_not_match(setup: Setup) -> None:
    async with setup.pair(enable_property_filter=True) as (_, client):
        await client.create_topic("t")
        await client.send("t", b"word", properties={"a": "x"})
        await client.send("t", b"none")
        await send(client, 7)

        assert setup.bodies(await client.pull("t", 0, expression="a > 3", **SQL)) == [b"7"]


def factor() -> int:
    """How many times more messages one pull examines here than in Python alone."""
    return 1 if native.core is None else NATIVE_FACTOR


async def test_one_pull_examines_a_bounded_number_of_messages(setup: Setup) -> None:
    """The answer tells where to go on; the longer the expression, the fewer are examined."""
    async with setup.pair(enable_property_filter=True) as (_, client):
        await client.create_topic("t")
        for _ in range(3):
            await client.send_batch("t", [b"x"] * 100)

        short = await client.pull("t", 0, expression="a > 3", **SQL)
        first = min(256 * factor(), 300)
        assert (short.code, short.ext["nextBeginOffset"]) == (20, str(first))
        if first < 300:
            behind = await client.pull("t", first, expression="a > 3", **SQL)
            assert (behind.code, behind.ext["nextBeginOffset"]) == (20, "300")
        long = await client.pull("t", 0, expression="a > 3 AND " + " " * 6_000 + "b > 4", **SQL)
        assert (long.code, long.ext["nextBeginOffset"]) == (20, str(10 * factor()))
        longest = await client.pull("t", 0, expression="a IS NULL" + " " * 32_000, maxMsgNums=32, **SQL)
        assert len(setup.bodies(longest)) == int(longest.ext["nextBeginOffset"]) == factor()


@pytest.mark.parametrize(
    ("expression", "remark"),
    [
        ("i > ", 'Encountered "<EOF>" at line 1, column'),
        ("", "Encountered"),
        ("a ! 3", "Lexical error at line 1, column 3."),
        ("a > '4'", "cannot be compared"),
    ],
)
async def test_a_bad_expression_is_refused_where_it_is_said(
    setup: Setup, expression: str, remark: str
) -> None:
    """A check and a pull with it get 23 and the parser's words; a heartbeat 0, and its pulls 27."""
    async with setup.pair(enable_property_filter=True) as (_, client):
        await client.create_topic("t")
        wanted = {"topic": "t", "subString": expression, "expressionType": "SQL92"}
        body = json.dumps({"clientId": "c", "group": "g", "subscriptionData": wanted}).encode()
        checked = await client.call(46, body)
        assert checked.code == 23
        assert remark in (checked.remark or "")
        own = await client.pull("t", 0, expression=expression, **SQL)
        assert own.code == 23
        assert remark in (own.remark or "")

        assert (await beat(client, expression)).code == 0
        pulled = await client.pull("t", 0, expression=None, group="g", subVersion=1)
        assert (pulled.code, pulled.remark) == (
            27,
            "The broker's consumer filter data is not exist!Your expression may be wrong!",
        )


async def test_a_good_expression_is_confirmed(setup: Setup) -> None:
    async with setup.pair(enable_property_filter=True) as (_, client):
        wanted = {"topic": "t", "subString": "a > 1", "expressionType": "SQL92"}
        body = json.dumps({"clientId": "c", "group": "g", "subscriptionData": wanted}).encode()

        assert (await client.call(46, body)).code == 0


@pytest.mark.parametrize("kind", ["XPATH", "sql92"])
async def test_other_languages_are_refused(setup: Setup, kind: str) -> None:
    async with setup.pair(enable_property_filter=True) as (_, client):
        await client.create_topic("t")
        text = f"The broker does not support consumer to filter message by {kind}"

        own = await client.pull("t", 0, expression="a > 1", expressionType=kind)
        assert (own.code, own.remark) == (1, text)
        assert (await beat(client, "a > 1", kind=kind)).code == 0
        pulled = await client.pull("t", 0, expression=None, group="g", subVersion=1)
        assert (pulled.code, pulled.remark) == (1, text)


async def test_a_pull_newer_than_the_registered_filter_is_refused(setup: Setup) -> None:
    """28 if the subscription is known but the filter is older; a newer expression replaces the old one."""
    async with setup.pair(enable_property_filter=True) as (broker, client):
        await client.create_topic("t")
        await send(client, 1, 2, 3)
        await beat(client, "a = 1", version=5)
        assert broker.filters is not None
        entry = broker.filters.get("t", "g")
        assert entry is not None
        subscription = broker.consumers.group("g")
        assert subscription is not None
        await beat(client, "a = 2", version=4)  # older: nothing changes
        assert setup.bodies(await client.pull("t", 0, expression=None, group="g", subVersion=5)) == [b"1"]
        assert (await client.pull("t", 0, expression=None, group="g", subVersion=6)).code == 25

        await beat(client, "a = 2", version=6)
        assert setup.bodies(await client.pull("t", 0, expression=None, group="g", subVersion=6)) == [b"2"]

        broker.filters._put(entry)  # as if the heartbeat had not come this far
        refused = await client.pull("t", 0, expression=None, group="g", subVersion=6)
        assert (refused.code, refused.remark) == (28, "the consumer's consumer filter data not latest")

        await beat(client, "a > ", version=7)
        assert (await client.pull("t", 0, expression=None, group="g", subVersion=7)).code == 27


async def test_a_waiting_pull_wakes_for_a_message_that_matches_and_for_no_other(setup: Setup) -> None:
    """What does not match lets it wait from behind it, so that its answer names the new offset at the end."""
    async with setup.pair(enable_property_filter=True) as (broker, client):
        await client.create_topic("t")
        await send(client, 0)
        await beat(client, "a > 3")
        waiting = asyncio.create_task(
            client.pull("t", 1, expression=None, group="g", subVersion=1, suspend_ms=15_000)
        )
        await setup.until(lambda: len(broker.parked_pulls) == 1)
        await send(client, 1, 2)
        await client.pull("t", 0)  # its answer comes behind one that the sends would have caused
        assert not waiting.done()
        assert len(broker.parked_pulls) == 1
        await send(client, 9)
        pulled = await waiting
        assert setup.bodies(pulled) == [b"9"]
        assert pulled.ext["nextBeginOffset"] == "4"

        silent = asyncio.create_task(client.pull("t", 4, expression="a > 3", suspend_ms=400, **SQL))
        await setup.until(lambda: len(broker.parked_pulls) == 1)
        await send(client, 1)
        ended = await silent
        assert (ended.code, ended.ext["nextBeginOffset"]) == (19, "5")


async def test_a_waiting_pull_is_answered_when_more_came_than_one_pull_examines(setup: Setup) -> None:
    """It must not wait with messages before it that nobody has examined."""
    async with setup.pair(enable_property_filter=True) as (broker, client):
        await client.create_topic("t")
        await send(client, 0)
        waiting = asyncio.create_task(client.pull("t", 1, expression="a > 3", suspend_ms=15_000, **SQL))
        await setup.until(lambda: len(broker.parked_pulls) == 1)
        await client.send_batch("t", [b"x"] * (256 * factor() + 44))

        answer = await waiting
        assert (answer.code, answer.ext["nextBeginOffset"]) == (20, str(256 * factor() + 1))


async def test_a_waiting_pull_skips_nothing_by_a_filter_that_was_replaced(setup: Setup) -> None:
    async with setup.pair(enable_property_filter=True) as (broker, client):
        await client.create_topic("t")
        await send(client, 0)
        await beat(client, "a > 3", version=1)
        waiting = asyncio.create_task(
            client.pull("t", 1, expression=None, group="g", subVersion=1, suspend_ms=15_000)
        )
        await setup.until(lambda: len(broker.parked_pulls) == 1)
        await beat(client, "a < 3", version=2)
        await send(client, 1)

        again = await waiting
        assert (again.code, again.ext["nextBeginOffset"]) == (20, "1")
        assert setup.bodies(await client.pull("t", 1, expression=None, group="g", subVersion=2)) == [b"1"]


async def test_registered_filters_outlive_a_restart(setup: Setup) -> None:
    """As a Java broker writes them; a damaged file is written again by heartbeats."""
    async with setup.pair(enable_property_filter=True) as (_, client):
        await client.create_topic("t")
        await send(client, 1, 2)
        await beat(client, "a = 1", version=5)
    saved = registered(setup)["t"]["g"]
    assert (saved["expression"], saved["clientVersion"], saved["consumerGroup"]) == ("a = 1", 5, "g")
    assert saved["bloomFilterData"]["bitNum"] == 112
    assert saved["dead"]

    async with setup.pair(enable_property_filter=True) as (broker, client):
        assert broker.filters is not None
        entry = broker.filters.get("t", "g")
        assert entry is not None
        assert entry.data.is_dead
        await beat(client, "a = 1", version=5)
        assert broker.filters.get("t", "g") is entry
        assert not entry.data.is_dead
        assert setup.bodies(await client.pull("t", 0, expression=None, group="g", subVersion=5)) == [b"1"]

    for name in (FILE, FILE + ".bak"):
        (setup.folder / name).write_bytes(b"{")
    async with setup.pair(enable_property_filter=True) as (_, client):
        await beat(client, "a = 2", version=1)
        assert setup.bodies(await client.pull("t", 0, expression=None, group="g", subVersion=1)) == [b"2"]
    assert registered(setup)["t"]["g"]["expression"] == "a = 2"


async def test_a_filter_goes_with_its_group_or_topic(setup: Setup) -> None:
    """Once nobody of the group is connected; not while consumers want it."""
    async with setup.pair(enable_property_filter=True) as (broker, client):
        await client.create_topic("t")
        await client.create_topic("other")
        assert broker.filters is not None
        await beat(client, "a = 1", group="g")
        await beat(client, "a = 1", group="h", topic="other")
        broker.groups.delete("g")
        broker.filters.expire(broker._has)
        assert len(broker.filters) == 2
        await client.call(35, clientID="c", consumerGroup="g")
        await client.call(35, clientID="c", consumerGroup="h")
        broker.filters.expire(broker._has)
        assert broker.filters.get("t", "g") is None
        assert broker.filters.get("other", "h") is not None
        broker.topics.delete("other")
        broker.filters.expire(broker._has)
        assert len(broker.filters) == 0


async def test_without_the_setting_nothing_is_filtered_and_no_file_is_written(setup: Setup) -> None:
    """Off by default, as in Java: heartbeats are answered with 0, checks and pulls with 1."""
    assert BrokerSettings().enable_property_filter is False
    text = "The broker does not support consumer to filter message by SQL92"
    async with setup.pair() as (_, client):
        await client.create_topic("t")
        await send(client, 1)
        assert (await beat(client, "a = 1")).code == 0
        pulled = await client.pull("t", 0, expression=None, group="g", subVersion=1)
        assert (pulled.code, pulled.remark) == (1, text)
        own = await client.pull("t", 0, expression="a = 1", **SQL)
        assert (own.code, own.remark) == (1, text)
        assert setup.bodies(await client.pull("t", 0)) == [b"1"]

    assert not (setup.folder / FILE).exists()


@pytest.mark.parametrize("retries", [False, True])
async def test_retry_topics_are_filtered_by_the_original_topic_if_that_is_set(
    setup: Setup, retries: bool
) -> None:
    """`filterSupportRetry`; messages of a topic without a filter are always given."""
    async with setup.pair(enable_property_filter=True, filter_support_retry=retries) as (_, client):
        await client.create_topic("t")
        await beat(client, "a > 3")
        retry = "%RETRY%g"
        for body, properties in (
            (b"1", {"a": "1", "RETRY_TOPIC": "t"}),
            (b"9", {"a": "9", "RETRY_TOPIC": "t"}),
            (b"other", {"a": "1", "RETRY_TOPIC": "other"}),
            (b"plain", {"a": "1"}),
        ):
            assert (await client.send(retry, body, properties=properties)).code == 0

        for expression in (None, "*"):
            pulled = await client.pull(retry, 0, expression=expression, group="g")
            kept = [b"9", b"other", b"plain"]
            assert setup.bodies(pulled) == (kept if retries else [b"1", *kept])
