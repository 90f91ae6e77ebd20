"""An audit of order of stores that the broker's own code wrote: on a real Spark, and through a stream."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from click.testing import CliRunner

from brokerset_broker.app import Broker
from brokerset_broker.store.message_store import MessageStore
from brokerset_formats.order_keys import logical_partition
from brokerset_protocol.bodies.ordered import SubjectState, SubjectStates
from brokerset_rig.order_audit_stores import SUBJECT, Producer, Sent, partition_state, subject_state
from brokerset_rig.stack import free_port
from brokerset_runtime.clock import ManualClock
from brokerset_spark.commands.audit import audit as command
from brokerset_spark.jobs.order import OrderOptions, audit_order
from brokerset_spark.jobs.report import Report
from brokerset_spark.jobs.running import LocalRunner, SparkRunner
from brokerset_spec.broker_settings import BrokerSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

RANGE = 65_536
HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


def settings_of(root: Path, broker: str, **changes: Any) -> BrokerSettings:
    return BrokerSettings(
        store_path_root_dir=root, broker_name=broker, bind_address="127.0.0.1", listen_port=0,
        mapped_file_size_commit_log=256 * 1024, max_message_size=RANGE, max_hash_slot_num=1_000,
        max_index_num=4_000, **changes,
    )  # fmt: skip


def append(store: MessageStore, messages: Iterable[Sent]) -> None:
    for each in messages:
        store.append(
            each.topic, each.queue_id, each.body, each.properties, flag=0, sys_flag=0, born_timestamp=1,
            born_host=HOST,
        )  # fmt: skip


def written(root: Path, broker: str, messages: list[Sent]) -> str:
    """A store that was closed in order."""

    async def work() -> None:
        store = MessageStore(settings_of(root, broker), ManualClock())
        store.load()
        append(store, messages)
        await store.checkpoint()
        await store.close()

    asyncio.run(work())
    return str(root)


def scaled(count: int) -> tuple[dict[str, list[Sent]], SubjectState]:
    """Two partitions, each on a broker group of its own, and four that inherit from them."""
    producer, keys = Producer(), [f"order-{number}" for number in range(97)]
    older = [
        partition_state(0, (0, 512), queue_id=0),
        partition_state(1, (512, 1024), queue_id=0, broker="broker-b"),
    ]
    newer = [
        partition_state(
            2 + number, (256 * number, 256 * number + 256), generation=1, queue_id=1 + number // 2,
            broker=("broker-a", "broker-b")[number % 2], inherits=(number // 2,),
        )
        for number in range(4)
    ]  # fmt: skip
    logs: dict[str, list[Sent]] = {"broker-a": [], "broker-b": []}
    ends = {0: 0, 1: 0}
    for taking in (older, newer):
        for key in itertools.islice(itertools.cycle(keys), count):
            logical = logical_partition(key)
            place = next(each for each in taking if each.first <= logical < each.end)
            logs[place.broker_group].append(producer.send(place.partition_id, key, queue_id=place.queue_id))
            if place.partition_id in ends:
                ends[place.partition_id] += 1
    sealed = [
        partition_state(each.partition_id, (each.first, each.end), queue_id=0, broker=each.broker_group,
                        sealed_end=ends[each.partition_id])
        for each in older
    ]  # fmt: skip
    return logs, subject_state(*sealed, *newer)


def codes(report: Report) -> list[str]:
    return [each.code for each in report.findings]


def same(one: Report, other: Report) -> bool:
    """Whether two reports say the same of their stores."""
    return (one.findings, one.counters, one.facts) == (other.findings, other.counters, other.facts)


def test_spark_and_processes_say_the_same_of_a_scaled_subject(spark: SparkSession, tmp_path: Path) -> None:
    """Of a correct one nothing is wrong; of one that lost, repeated and moved messages the same findings."""
    logs, state = scaled(2_000)
    options = OrderOptions(states={SUBJECT: state}, range_bytes=RANGE)
    clean = [written(tmp_path / name, name, messages) for name, messages in logs.items()]
    log = logs["broker-a"]
    moved = [*log[:300], *log[301:700], log[650], *log[700:900], log[905], *log[900:905], *log[906:]]
    faulty = [written(tmp_path / "faulty", "broker-a", moved), clean[1]]

    first, second = (audit_order(SparkRunner(spark, 2), urls, options) for urls in (clean, faulty))

    assert codes(first) == []
    assert first.counters["messages"] == 4_000
    assert first.facts["subjects"][0]["keys"] == 97
    assert {*codes(second)} >= {"order-gap", "order-repeat", "order-disorder"}
    assert same(second, audit_order(LocalRunner(2), faulty, options))


def test_the_command_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    """`audit order --engine spark` ends with the code of its report."""
    logs, state = scaled(300)
    stores = [written(tmp_path / name, name, messages) for name, messages in logs.items()]
    (tmp_path / "states.json").write_bytes(SubjectStates((state,)).to_json())
    arguments = ["order", *stores, "--states", str(tmp_path / "states.json"), "--engine", "spark"]

    done = CliRunner().invoke(command, arguments)

    assert done.exit_code == 0, done.output
    assert "clean: nothing found" in done.output


def test_a_running_broker_is_audited_through_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to what is confirmed: what its replicas may still lose is not judged."""
    monkeypatch.setenv("BROKERSET_STORE_TOKEN", "secret")
    (tmp_path / "token").write_text("secret")
    settings = settings_of(
        tmp_path / "store", "broker-a", http_port=free_port(), store_stream_enable=True,
        store_stream_token_file=tmp_path / "token", max_store_streams=2,
    )  # fmt: skip
    producer = Producer()
    messages = [producer.send(0, "order-1", queue_id=0) for _ in range(900)]

    def audited(url: str) -> Report:
        return audit_order(LocalRunner(), [url], OrderOptions(range_bytes=RANGE))

    async def main(check: Callable[[Broker, str], Any]) -> None:
        broker = Broker(settings)
        await broker.start()
        running = asyncio.create_task(broker.run())
        try:
            while not broker.http_port:  # noqa: ASYNC110  # a broker tells nobody
                await asyncio.sleep(0.005)
            await check(broker, f"http://127.0.0.1:{broker.http_port}/store")
        finally:
            await broker.close()
            await running

    async def check(broker: Broker, url: str) -> None:
        append(broker.store, messages[:700])
        broker.store.confirmation.replicated = True
        broker.store.confirmation.load(broker.store.max_offset)
        append(broker.store, messages[701:])

        before = await asyncio.to_thread(audited, url)
        broker.store.confirmation.load(broker.store.max_offset)
        after = await asyncio.to_thread(audited, url)

        assert (codes(before), before.counters["messages"]) == ([], 700)
        assert (codes(after), after.counters["messages"]) == (["order-gap"], 899)
        assert after.facts["partitions"][0]["brokerGroup"] == "broker-a"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(main(check))
