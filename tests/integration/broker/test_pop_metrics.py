"""What metrics say of popped messages, and of how far groups that pop are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from brokerset_broker.app import Broker
from brokerset_broker.outside import metrics
from brokerset_broker.store.errors import PutStatus, StoreRefused
from brokerset_broker.store.results import Appended
from brokerset_formats.config import SubscriptionGroupConfig
from brokerset_formats.pop.handles import Handle
from brokerset_formats.pop.names import ORDER_REVIVE_QUEUE
from brokerset_formats.pop.offset_infos import parse_start_offsets
from brokerset_protocol.bodies.queues import KVTable, MessageQueue
from brokerset_protocol.bodies.stats import ConsumeStats, ConsumeStatsList
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig.local_servers import Setup
from brokerset_rig.transaction_client import TransactionClient, transaction_client
from brokerset_rig.waiting import until

HEARTBEAT = (
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_POP",'
    b'"subscriptionDataSet":[{"topic":"t","subString":"*","subVersion":1}]}]}'
)

LAGS = ("lag", "inflight", "ready")


class Scrape:
    """The samples of one scrape."""

    def __init__(self, broker: Broker) -> None:
        found: CollectorRegistry = metrics.registry(broker.metric_sources())
        self.samples = [sample for family in found.collect() for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples with these labels."""
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def lags(self, *, is_retry: bool = False) -> tuple[float, ...]:
        """Lag, messages in flight and ready messages of the group in topic t."""
        labels = {"consumer_group": "g", "topic": "t", "is_retry": str(is_retry).lower()}
        return tuple(self.value(f"rocketmq_consumer_{name}_messages", **labels) for name in LAGS)


async def prepare(broker: Broker, client: TransactionClient, count: int) -> None:
    await client.create_topic("t")
    broker.groups.put(SubscriptionGroupConfig("g"))
    await until(lambda: broker.pop_log.is_known)
    for _ in range(count):
        broker.store.append("t", 0, b"body", b"", flag=0, sys_flag=0, born_timestamp=5, born_host=bytes(8))


async def pop(
    client: TransactionClient, count: int, invisible_ms: int = 60_000, order: str = "false"
) -> Command:
    return await client.call(
        RequestCode.POP_MESSAGE, consumerGroup="g", topic="t", queueId="0", maxMsgNums=str(count),
        invisibleTime=str(invisible_ms), pollTime="0", bornTime="0", initMode="0", order=order,
    )  # fmt: skip


def handle_of(answer: Command, start: int, offset: int) -> Handle:
    ext = answer.ext
    return Handle(
        start, int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"]), 0, "broker-a", 0, offset
    )


def ordered_handle(answer: Command, offset: int) -> Handle:
    return replace(handle_of(answer, offset, offset), revive_queue=ORDER_REVIVE_QUEUE)


async def ack(client: TransactionClient, handle: Handle) -> int:
    answer = await client.call(
        RequestCode.ACK_MESSAGE, consumerGroup="g", topic="t", queueId="0", extraInfo=handle.encode(),
        offset=str(handle.queue_offset),
    )  # fmt: skip
    return answer.code


async def test_a_popped_message_is_in_flight_until_it_is_acked(setup: Setup) -> None:
    """It counts as lag, though the consumer offset has passed it; its ack takes it away."""
    async with setup.broker() as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, 5)
        await client.call(RequestCode.HEART_BEAT, HEARTBEAT)
        answer = await pop(client, 3)

        popped = Scrape(broker)
        codes = [await ack(client, handle_of(answer, 0, offset)) for offset in (0, 1)]
        acked = Scrape(broker)

        assert popped.lags() == (5, 3, 2)
        assert popped.value("rocketmq_consumer_connections", consumer_group="g", consume_mode="pop") == 1
        assert popped.value("rocketmq_consumer_lag_latency", consumer_group="g", topic="t") >= 0
        assert popped.value("brokerset_broker_pop_in_flight") == 3
        assert popped.value("rocketmq_pop_checkpoint_buffer_size") == 1
        assert 0 < popped.value("brokerset_broker_pop_next_due_seconds") <= 60.1
        assert popped.value("rocketmq_pop_revive_lag") == 0
        assert codes == [0, 0]
        assert acked.lags() == (3, 1, 2)
        assert acked.value("brokerset_broker_pop_acked_total") == 2
        labels = {"consumer_group": "g", "topic": "t", "put_status": "PUT_OK"}
        stored = "rocketmq_pop_revive_in_message_total"
        assert acked.value(stored, revive_message_type="CK", **labels) == 1
        assert acked.value(stored, revive_message_type="ACK", **labels) == 2


async def test_administrators_see_what_is_in_flight(setup: Setup) -> None:
    """Java's consumerProgress, and `brokerset group describe`; the consumer offset alone says otherwise."""
    async with setup.broker() as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, 5)
        answer = await pop(client, 3)
        await ack(client, handle_of(answer, 0, 1))

        asked = await client.call(RequestCode.GET_CONSUME_STATS, consumerGroup="g", topic="t")
        listed = await client.call(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")

        queue = ConsumeStats.from_json(asked.body).offset_table[MessageQueue("t", "broker-a", 0)]
        assert (queue.broker_offset, queue.consumer_offset, queue.pull_offset) == (5, 3, 5)
        assert ConsumeStatsList.from_json(listed.body).total_inflight_diff == 2


async def test_what_comes_back_is_ready_again_in_the_retry_topic(setup: Setup) -> None:
    """Also before the group has popped anything of its retry topic; a late ack is counted with its reason."""
    async with setup.broker(pop_clock_skew_ms=0) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, 2)
        answer = await pop(client, 2, invisible_ms=50)

        await until(lambda: broker.pop_revival.revived == 2)
        code = await ack(client, handle_of(answer, 0, 1))
        found = Scrape(broker)

        assert code == ResponseCode.MESSAGE_ILLEGAL
        assert found.lags() == (0, 0, 0)
        assert found.lags(is_retry=True) == (2, 0, 2)
        of = {"consumer_group": "g", "topic": "t"}
        assert found.value("brokerset_broker_pop_acks_refused_total", reason="expired") == 1
        assert found.value("rocketmq_pop_revive_out_message_total", revive_message_type="CK", **of) == 1
        assert found.value("rocketmq_pop_revive_retry_messages_total", put_status="PUT_OK", **of) == 2
        assert found.value("rocketmq_pop_buffer_scan_time_consume_count") > 0
        assert found.value("rocketmq_pop_checkpoint_buffer_size") == 0


async def test_the_runtime_info_says_what_is_in_flight(setup: Setup) -> None:
    """`brokerset status` and Java's brokerStatus read it."""
    async with setup.broker() as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, 3)
        await pop(client, 2)

        answer = await client.call(RequestCode.GET_BROKER_RUNTIME_INFO)

        table = KVTable.from_json(answer.body).table
        assert {key: value for key, value in table.items() if key.startswith("brokersetPop")} == {
            "brokersetPopKnown": "true",
            "brokersetPopCheckPoints": "1",
            "brokersetPopCheckPointsMax": "500000",
            "brokersetPopInFlight": "2",
            "brokersetPopReviveLatencyMs": "0",
            "brokersetPopWaiting": "0",
        }


async def test_a_store_that_takes_nothing_makes_what_is_due_late(setup: Setup) -> None:
    """Lag and latency show it while it lasts, also of a single message, and what was refused is counted."""
    async with setup.broker(pop_clock_skew_ms=0) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, 1)
        append = broker.store.append
        refusing = True

        def refuse(topic: str, *arguments: Any, **more: Any) -> Appended:
            if refusing and topic.startswith("%RETRY%"):
                raise StoreRefused(PutStatus.SERVICE_NOT_AVAILABLE, "the disk is full")
            return append(topic, *arguments, **more)

        broker.store.append = refuse  # type: ignore[method-assign]
        await pop(client, 1, invisible_ms=50)

        retries = "rocketmq_pop_revive_retry_messages_total"
        await until(lambda: Scrape(broker).value(retries, put_status="SERVICE_NOT_AVAILABLE") >= 1)
        await until(lambda: Scrape(broker).value("rocketmq_pop_revive_latency") > 100)
        refused = Scrape(broker)
        refusing = False
        await until(lambda: broker.pop_revival.revived == 1)
        done = Scrape(broker)

        assert refused.value("rocketmq_pop_revive_out_message_total") == 0
        assert done.value("rocketmq_pop_revive_latency") == 0
        assert done.value("rocketmq_pop_revive_out_message_total") == 1


async def test_messages_of_an_ordered_pop_are_in_flight_until_they_are_acked(setup: Setup) -> None:
    """By the lock of the queue: they have no check points. Refused acks are counted on their own."""
    async with setup.broker() as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, 5)
        answer = await pop(client, 3, order="true")
        popped = Scrape(broker)

        other = replace(ordered_handle(answer, 0), pop_time=1)
        codes = [await ack(client, ordered_handle(answer, 1)), await ack(client, other)]
        acked = Scrape(broker)
        codes += [await ack(client, ordered_handle(answer, offset)) for offset in (0, 2)]
        done = Scrape(broker)

        assert popped.lags() == (5, 3, 2)
        assert popped.value("brokerset_broker_pop_ordered_locked") == 1
        assert acked.lags() == (4, 2, 2)
        assert acked.value("brokerset_broker_pop_acks_refused_total", reason="ordered_other_pop") == 1
        assert acked.value("brokerset_broker_pop_acked_total") == 1
        assert codes == [0, ResponseCode.MESSAGE_ILLEGAL, 0, 0]
        assert done.lags() == (2, 0, 2)
        assert done.value("brokerset_broker_pop_ordered_locked") == 0


async def test_pops_above_the_limit_of_check_points_are_refused(setup: Setup) -> None:
    """Nothing is handed out without a check point; an ack makes room again; metrics show how near it is."""
    async with setup.broker(pop_check_points_max=2) as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, 4)
        answers = [await pop(client, 1) for _ in range(3)]
        full = Scrape(broker)
        code = await ack(client, handle_of(answers[0], 0, 0))
        again = await pop(client, 1)

        assert [answer.code for answer in answers] == [0, 0, ResponseCode.POLLING_FULL]
        assert full.value("rocketmq_pop_checkpoint_buffer_size") == 2
        assert full.value("brokerset_broker_pop_check_points_limit") == 2
        assert full.lags() == (4, 2, 2)
        assert (code, again.code) == (0, 0)
        assert parse_start_offsets(again.ext["startOffsetInfo"]) == {(0, 0): 2}


async def test_what_groups_have_of_deleted_topics_is_forgotten_with_their_last_message(setup: Setup) -> None:
    """Each scrape and each deletion looks at all that is known: topics that come and go must not add up."""
    async with setup.broker() as broker, transaction_client(broker.port) as client:
        await prepare(broker, client, 2)
        answer = await pop(client, 2)
        await ack(client, handle_of(answer, 0, 0))
        log = broker.pop_log
        before = list(log.points.sources)
        log.forget_deleted(lambda topic: topic == "t")
        in_flight = list(log.points.sources)
        await ack(client, handle_of(answer, 0, 1))
        log.forget_deleted(lambda topic: topic == "u")
        kept = list(log.points.sources)
        log.forget_deleted(lambda topic: topic == "t")

        assert before == in_flight == kept == [("t", "g", 0)]
        assert log.points.sources == {}
