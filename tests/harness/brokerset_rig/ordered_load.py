"""Processes that send to an ordered subject and consume it, for tests that kill and stop them.

python -m brokerset_rig.ordered_load send --namesrv … --subject s --keys 50 --count 5000 --rate 500 --name p1
python -m brokerset_rig.ordered_load handle --namesrv … --subject s --group g --acts acts.txt
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
from pathlib import Path

from brokerset_client import Message
from brokerset_client.ordered import (
    ConsumeStrategy,
    HandlingContext,
    OrderedClient,
    OrderedMessage,
    OrderStrategy,
    SubscriptionOptions,
)
from brokerset_rig.ordered_oracle import Act, write_act
from brokerset_runtime.logs import configure_logs

FLUSH_SECONDS = 120.0


async def send(options: argparse.Namespace) -> int:
    """Send `count` messages over `keys` keys, `rate` a second; prints how many by key, and which of them failed."""
    counts = dict.fromkeys((f"{options.name}-{number}" for number in range(options.keys)), 0)
    names = list(counts)
    failures: list[tuple[str, str]] = []
    async with OrderedClient(options.namesrv) as client, client.producer() as producer:
        loop = asyncio.get_running_loop()
        began = loop.time()
        futures = {}
        for number in range(options.count):
            await asyncio.sleep(max(0.0, began + number / options.rate - loop.time()))
            key = names[number % len(names)]
            body = f"{key} {counts[key]}"
            counts[key] += 1
            message = Message(topic=options.subject, body=body.encode())
            futures[body] = await producer.send_async(message, key=key, order=options.order)
        async with asyncio.timeout(FLUSH_SECONDS):
            results = await asyncio.gather(*futures.values(), return_exceptions=True)
        for body, result in zip(futures, results, strict=True):
            if isinstance(result, BaseException):
                failures.append((body, repr(result)))
    print(json.dumps({"sent": counts, "failures": failures}))
    return 1 if failures else 0


async def handle(options: argparse.Namespace) -> int:
    """Consume until SIGTERM; each message is written down when it begins and when it is handled."""
    acts = os.open(options.acts, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    session = f"{options.name}:{os.getpid()}"

    async def on_message(message: OrderedMessage, context: HandlingContext) -> None:
        key, number = message.body.decode().split()
        os.write(acts, write_act(Act("begin", key, int(number), context.epoch, session)).encode())
        await asyncio.sleep(options.work_ms / 1000)
        if random.random() < options.failing:
            raise RuntimeError(f"{key} {number} fails on purpose")
        os.write(acts, write_act(Act("end", key, int(number), context.epoch, session)).encode())

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with OrderedClient(options.namesrv, client_id=session) as client:
        consumer = client.consumer(group=options.group)
        consumer.subscribe(options.subject, on_message, SubscriptionOptions(consume_strategy=options.consume))
        async with consumer:
            await stop.wait()
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    for name in ("send", "handle"):
        part = parts.add_parser(name)
        part.add_argument("--namesrv", required=True)
        part.add_argument("--subject", required=True)
        part.add_argument("--name", required=True)
        if name == "send":
            part.add_argument("--keys", type=int, default=50)
            part.add_argument("--count", type=int, default=5_000)
            part.add_argument("--rate", type=float, default=500.0)
            part.add_argument(
                "--order", type=OrderStrategy, choices=OrderStrategy, default=OrderStrategy.STRICT
            )
        else:
            part.add_argument("--group", required=True)
            part.add_argument("--acts", type=Path, required=True)
            part.add_argument(
                "--consume", type=ConsumeStrategy, choices=ConsumeStrategy, default=ConsumeStrategy.EXCLUSIVE
            )
            part.add_argument("--work-ms", type=float, default=1.0)
            part.add_argument("--failing", type=float, default=0.0, help="share of attempts that fail")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    configure_logs("info", json=False)
    return asyncio.run(send(options) if options.part == "send" else handle(options))


if __name__ == "__main__":
    sys.exit(main())
