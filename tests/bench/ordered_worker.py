"""A producer or a consumer of an ordered subject, with the arguments and lines of `tests/peers/java/Orderly.java`."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time

from brokerset_client.messages import Message
from brokerset_client.ordered import HandlingContext, OrderedClient, OrderedMessage, OrderedSendResult


async def produce(client: OrderedClient, options: dict[str, str]) -> None:
    """Send until the time is over; each key's messages in order, `window` of all on their way."""
    keys, rate, seconds = int(options["keys"]), int(options["rate"]), int(options["seconds"])
    size, window = int(options.get("size", 100)), int(options.get("window", 256))
    failed = sent = 0
    slots = asyncio.Semaphore(window)

    def done(future: asyncio.Future[OrderedSendResult]) -> None:
        nonlocal sent, failed
        slots.release()
        if future.exception() is None:
            sent += 1
        else:
            failed += 1

    async with client.producer() as producer:
        begun = time.monotonic_ns()
        until = begun + seconds * 1_000_000_000
        number = 0
        while (now := time.monotonic_ns()) < until:
            if rate and (early := begun + number * 1_000_000_000 // rate - now) > 0:
                await asyncio.sleep(early / 1e9)
            await slots.acquire()
            key, sequence = number % keys, number // keys
            body = f"{key} {sequence} {time.monotonic_ns()} ".encode().ljust(size, b"\0")
            future = await producer.send_async(Message(topic=options["topic"], body=body), key=str(key))
            future.add_done_callback(done)
            number += 1
        await producer.flush()
        took = (time.monotonic_ns() - begun) / 1e9
    print(json.dumps({"sent": sent, "failed": failed, "perSecond": round(sent / took, 1)}), flush=True)


async def consume(client: OrderedClient, options: dict[str, str]) -> None:
    """Handle until SIGTERM."""
    work, poison = int(options.get("workMs", 0)) / 1e3, options.get("poison") or None

    async def handle(message: OrderedMessage, context: HandlingContext) -> None:
        key, sequence, sent, _ = message.body.decode().split(" ", 3)
        if key == poison:
            raise ValueError("this key is never handled")
        if work:
            await asyncio.sleep(work)
        print("H", key, sequence, sent, time.monotonic_ns())

    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with client.consumer(group=options["group"]) as consumer:
        consumer.subscribe(options["topic"], handle)
        print("started", flush=True)
        await ended.wait()


async def main() -> None:
    options = dict(argument.split("=", 1) for argument in sys.argv[1:])
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a real stream
    async with OrderedClient(namesrv=options["namesrv"], controllers=options["controllers"]) as client:
        await (produce if options["mode"] == "produce" else consume)(client, options)


asyncio.run(main())
