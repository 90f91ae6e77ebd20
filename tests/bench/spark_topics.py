"""Topics and Spark: what each side of a case does, in a process of its own whose memory and processors are measured.

One broker of ours in another process has the topic. Bodies are random bytes, which no compression makes smaller.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tests.bench.process_tree import Kind, peaks, usage_below

from brokerset_client import Message, Producer
from brokerset_rig.threaded_servers import read_all, threaded_servers
from brokerset_rig.topic_queries import texts
from brokerset_runtime.logs import configure_logs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
TOPIC: Final = "wire"
QUEUES: Final = 8
BODY: Final = 1024
BATCH: Final = 100
AT_ONCE: Final = 16
WARM_MESSAGES: Final = 4_000
"""Messages of a first run, which is not counted: kernels are loaded, Java has compiled a little."""


@dataclass
class Measured:
    """What came out for one side: a value for each run, and the peaks of its processes in MiB."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak_mib: dict[str, float] = field(default_factory=dict)


def apart(work: Callable[..., T], *arguments: object) -> T:
    """Does it in a new process, which has ended when this returns."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def serve(pipe: Connection, folder: str, topics: tuple[str, ...]) -> None:
    """Runs a broker until the other end says so."""
    configure_logs("error", json=False)
    with threaded_servers(Path(folder)) as servers:
        for topic in topics:
            servers.create_topic(topic, QUEUES)
        pipe.send(servers.name_servers)
        pipe.recv()


def fill(name_servers: str, topic: str, messages: int) -> None:
    """Sends so many messages, in batches."""
    draw = random.Random(1)

    async def send_all() -> None:
        slots = asyncio.Semaphore(AT_ONCE)

        async def send(producer: Producer, some: list[Message]) -> None:
            try:
                await producer.send_batch(some)
            finally:
                slots.release()

        async with Producer("bench", namesrv=name_servers) as producer, asyncio.TaskGroup() as tasks:
            for _ in range(messages // BATCH):
                await slots.acquire()
                some = [Message(topic=topic, body=draw.randbytes(BODY), tags="t") for _ in range(BATCH)]
                tasks.create_task(send(producer, some))

    asyncio.run(send_all())


def measured(runs: int, work: Callable[[int], int], messages: int, warm: Callable[[], object]) -> Measured:
    """Some runs of `work`, which is given the number of the run and says how many messages it had."""
    warm()
    found = Measured()
    for number in range(runs):
        before, begun = usage_below(os.getpid()), time.perf_counter()
        count = work(number)
        found.seconds.append(time.perf_counter() - begun)
        after = usage_below(os.getpid())
        assert count == messages, f"{count} of {messages} messages"
        spent = sum(each.cpu_seconds for each in after.values())
        found.cpu_seconds.append(spent - sum(each.cpu_seconds for each in before.values()))
        for kind, most in peaks(after).items():
            found.peak_mib[kind] = max(found.peak_mib.get(kind, 0.0), most)
    return found


# -- reading ----------------------------------------------------------------------------------------------


def loop_reads(name_servers: str, messages: int, runs: int) -> Measured:
    """`PullConsumer` over all queues, each message an object."""

    def read(_: int) -> int:
        return len(asyncio.run(read_all(name_servers, TOPIC)))

    return measured(runs, read, messages, lambda: None)


def source_reads(name_servers: str, messages: int, runs: int) -> Measured:
    """The source without Spark: one task's Arrow batches of all usual columns, in this process."""
    from brokerset_spark.topics.source import TopicSource

    def read(_: int) -> int:
        source = TopicSource(texts({"nameServers": name_servers, "topic": TOPIC}))
        reader = source.reader(source.schema())
        return sum(batch.num_rows for each in reader.partitions() for batch in reader.read(each))

    return measured(runs, read, messages, lambda: read(0))


def spark_reads(name_servers: str, messages: int, runs: int, cores: int) -> Measured:
    """The same through Spark into its `noop` sink: every row becomes one of the JVM."""
    from tests.bench.spark_jobs import open_notebook

    from brokerset_spark.sources import register

    with ExitStack() as stack:
        spark: SparkSession = open_notebook(stack, cores)
        register(spark)

        def rows(**more: str) -> DataFrame:
            reader = spark.read.format("rocketmq").option("nameServers", name_servers).options(**more)
            return reader.option("topic", TOPIC).load()

        def read(_: int) -> int:
            rows(minPartitions=str(QUEUES)).write.format("noop").mode("overwrite").save()
            return messages

        return measured(runs, read, messages, lambda: read(0))


# -- sending ----------------------------------------------------------------------------------------------


def loop_sends(name_servers: str, topic: str, messages: int, runs: int) -> Measured:
    """`Producer.send_batch`, a hundred messages at a time, sixteen of them on their way."""

    def send(_: int) -> int:
        fill(name_servers, topic, messages)
        return messages

    return measured(runs, send, messages, lambda: fill(name_servers, topic, WARM_MESSAGES))


def spark_sends(name_servers: str, topic: str, messages: int, runs: int, cores: int) -> Measured:
    """`write.format("rocketmq")` of rows that Spark has made before; each is acknowledged."""
    from tests.bench.spark_jobs import open_notebook

    from brokerset_spark.sources import register

    with ExitStack() as stack:
        spark: SparkSession = open_notebook(stack, cores)
        register(spark)

        def made(count: int) -> DataFrame:
            value = f"substring(concat({', '.join(f'sha2(string(id + {n}), 256)' for n in range(16))}), 1, {BODY})"
            found = spark.range(0, count, 1, cores).selectExpr(f"{value} value", "'t' tags").cache()
            assert found.count() == count
            return found

        def send(rows: DataFrame) -> None:
            writer = rows.write.format("rocketmq").option("nameServers", name_servers)
            writer.option("topic", topic).mode("append").save()

        rows = made(messages)

        def send_all(_: int) -> int:
            send(rows)
            return messages

        return measured(runs, send_all, messages, lambda: send(made(WARM_MESSAGES)))


# -- the lake ---------------------------------------------------------------------------------------------


def lake_exports(name_servers: str, messages: int, runs: int, folder: str, executors: int) -> Measured:
    """`export_pass` of the whole topic into a new Delta table, with executors outside the driver, a core each."""
    from brokerset_spark.jobs.lake.exporting import LakeOptions, export_pass
    from brokerset_spark.jobs.running import SparkRunner
    from brokerset_spark.jobs.session import open_session

    with open_session(workers=executors, master=f"local-cluster[{executors},1,1024]") as spark:
        _until_executors(spark, executors)

        def export(name: str, per_queue: int | None) -> int:
            target = str(Path(folder, f"lake-{executors}-{name}"))
            options = LakeOptions(
                name_servers=name_servers,
                target=target,
                topics=(TOPIC,),
                messages_per_task=max(messages // QUEUES, 1),
                messages_per_queue=per_queue,
            )
            return export_pass(SparkRunner(spark), options).messages

        return measured(
            runs,
            lambda number: export(str(number), None),
            messages,
            lambda: export("warm", WARM_MESSAGES // QUEUES),
        )


def _until_executors(spark: SparkSession, wanted: int) -> None:
    """They register one by one; who begins early measures fewer."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = [each.kind for each in usage_below(os.getpid()).values()].count(Kind.EXECUTOR)
        context = spark.sparkContext._jsc
        assert context is not None
        if found >= wanted and context.sc().getExecutorMemoryStatus().size() > wanted:
            return
        time.sleep(0.1)
    raise TimeoutError(f"{wanted} executors did not come within a minute")
