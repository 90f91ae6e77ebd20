"""`brokerset bench`: measures sending and reading with this one process as client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from brokerset_bench.failover import failover
from brokerset_bench.measurements import latency_summary
from brokerset_bench.reader import GROUP, pull
from brokerset_cli.client_session import Cluster, cluster_options, stop_event
from brokerset_cli.options import json_option, number_option
from brokerset_cli.output import CommandFailed, progress, write_json
from brokerset_cli.sending import Sent, check_statuses, send_all
from brokerset_client import calls
from brokerset_client.errors import NoQueue
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import BODY_SIZE_MAX, Message
from brokerset_client.positions import reader_address
from brokerset_client.producer import Producer
from brokerset_client.send_window import SendLimits
from brokerset_protocol.bodies.queues import MessageQueue

BENCH_TOPIC: Final = "brokerset-bench"

IN_FLIGHT_MAX: Final = 8192
"""Most requests on their way: what a broker takes from one connection."""

BATCH_MAX: Final = 1024
"""Most messages in one request."""

MEBIBYTE: Final = 1024 * 1024

PULL_MESSAGES: Final = 1024
"""Messages asked for in one pull; the broker gives as many as its settings allow."""


@click.group()
def bench() -> None:
    """Measure sending and reading, and what faults do.

    One process is the client, so a fast broker shows the client's limits; run several to see the broker's.
    """


@bench.command("send", short_help="Send as fast as answers allow; show rate and latencies.")
@click.option(
    "--topic",
    metavar="TOPIC",
    default=BENCH_TOPIC,
    show_default=True,
    help="Topic to send to; created if brokers may do that.",
)
@number_option("--count", "Number of messages.", 1, default=100_000)
@number_option("--size", "Bytes of a body.", 1, BODY_SIZE_MAX, metavar="B", default=1024)
@number_option("--in-flight", "Requests on their way at once.", 1, IN_FLIGHT_MAX, default=64)
@number_option("--batch", "Messages in one request.", 1, BATCH_MAX, default=1)
@cluster_options
@json_option
def bench_send(
    topic: str, count: int, size: int, in_flight: int, batch: int, cluster: Cluster, as_json: bool
) -> None:
    """Send messages as fast as answers allow, and show rate and latencies."""

    async def work(instance: ClientInstance) -> Sent:
        limits = SendLimits(messages_max=in_flight, bytes_max=in_flight * max(size * batch * 2, MEBIBYTE))
        # Bodies are sent as they are: compressing dots would measure the compressor.
        async with Producer(
            GROUP, instance=instance, limits=limits, compress_from_bytes=BODY_SIZE_MAX + 1
        ) as producer:
            await producer.send(Message(topic=topic, body=b"first"))  # creates the topic, opens connections
            with progress(f"sending to {topic}", count) as done:
                return await send_all(
                    producer,
                    _messages(topic, count, size),
                    done=done,
                    in_flight_max=in_flight,
                    batch=batch,
                    measure=True,
                    stop=stop_event(),
                )

    sent = cluster.run(work)
    latencies = latency_summary(sent.latencies_ms)
    if as_json:
        write_json(
            {
                "what": "send",
                "topic": topic,
                "size": size,
                "inFlight": in_flight,
                "batch": batch,
                "count": sent.count,
                "seconds": round(sent.seconds, 6),
                "perSecond": round(sent.per_second, 1),
                "mibPerSecond": round(sent.body_bytes / MEBIBYTE / sent.seconds, 3),
                "statuses": dict(sent.statuses),
                **latencies,
            }
        )
    else:
        click.echo(
            f"Sent {sent.count:,} messages of {size:,} bytes in {sent.seconds:.2f} s: "
            f"{sent.per_second:,.0f}/s, {sent.body_bytes / MEBIBYTE / sent.seconds:,.1f} MiB/s"
        )
        times = ", ".join(f"{name.removesuffix('Ms')} {value:g} ms" for name, value in latencies.items())
        click.echo(f"Time of a request with {in_flight} on their way: {times}")
    check_statuses(sent)


@bench.command("consume", short_help="Read a topic from its beginning; show the rate.")
@click.option("--topic", metavar="TOPIC", default=BENCH_TOPIC, show_default=True, help="Topic to read.")
@number_option("--count", "Stop after about so many. [default: all that are there]", 1)
@cluster_options
@json_option
def bench_consume(topic: str, count: int | None, cluster: Cluster, as_json: bool) -> None:
    """Read what a topic has from its beginning, all queues at once, and show the rate.

    Nothing is stored about it: consumers of the topic are not affected.
    """

    async def work(instance: ClientInstance) -> dict[str, Any]:
        route = await instance.route(topic)
        if not route.subscribe_queues:
            raise NoQueue(f"no broker gives out messages of topic {topic!r} now")
        ends = await asyncio.gather(*(_range(instance, queue) for queue in route.subscribe_queues))
        total = sum(last - first for first, last in ends)
        if not total:
            raise CommandFailed(
                f"topic {topic} is empty", f"fill it with `brokerset bench send --topic {topic}`"
            )
        goal = total if count is None else min(count, total)
        reading = _Reading(instance, goal)
        with progress(f"reading {topic}", goal) as done:
            started = time.perf_counter()
            jobs = zip(route.subscribe_queues, ends, strict=True)
            await asyncio.gather(*(reading.read(queue, *bounds, done) for queue, bounds in jobs))
            seconds = time.perf_counter() - started
        return {
            "what": "consume",
            "topic": topic,
            "queues": len(route.subscribe_queues),
            "count": reading.count,
            "seconds": round(seconds, 6),
            "perSecond": round(reading.count / seconds, 1),
            "mibPerSecond": round(reading.record_bytes / MEBIBYTE / seconds, 3),
        }

    result = cluster.run(work)
    if as_json:
        write_json(result)
    else:
        click.echo(
            f"Read {result['count']:,} messages from {result['queues']} queues in {result['seconds']:.2f} s: "
            f"{result['perSecond']:,.0f}/s, {result['mibPerSecond']:,.1f} MiB/s"
        )


class _Reading:
    """Reads queues from one offset to another, and counts."""

    def __init__(self, instance: ClientInstance, goal: int) -> None:
        self._instance = instance
        self._goal = goal
        self.count = 0
        self.record_bytes = 0

    async def read(self, queue: MessageQueue, first: int, last: int, done: Callable[[int], None]) -> None:
        """Pull one queue until `last`, or until all queues together have reached the goal."""
        address = await reader_address(self._instance, queue)
        while first < last and self.count < self._goal:
            result = await pull(self._instance, address, queue, first, PULL_MESSAGES)
            self.count += len(result.messages)
            self.record_bytes += sum(message.size for message in result.messages)
            done(len(result.messages))
            if result.next_queue_offset <= first and not result.messages:
                raise CommandFailed(
                    f"{queue} gives nothing at offset {first} though it ends at {last}",
                    "look at the log of its broker, see `brokerset status`",
                )
            first = result.next_queue_offset


async def _range(instance: ClientInstance, queue: MessageQueue) -> tuple[int, int]:
    address = await reader_address(instance, queue)
    first = await calls.min_offset(instance, address, queue)
    return first, await calls.max_offset(instance, address, queue)


def _messages(topic: str, count: int, size: int) -> Iterator[Message]:
    for number in range(count):
        yield Message(topic=topic, body=str(number).encode()[:size].ljust(size, b"."))


bench.add_command(failover)
