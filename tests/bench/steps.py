"""What each step of a send, a batch and a pull costs inside the broker, and the floor under it: `steps.py [--calls N]`.

One process, no sockets: the same functions that a broker calls, on a store in a temporary folder. Prints a Markdown table of
microseconds for each message, the best of several rounds, so that a busy machine shows least.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from brokerset_broker.requests.replies import SendReplies
from brokerset_broker.store import MessageStore
from brokerset_broker.store.dispatch import derived
from brokerset_formats.batches import BatchItem, encode_batch, iterate_batch
from brokerset_formats.hashing import KeyHasher, crc31
from brokerset_formats.hosts import Host
from brokerset_protocol.commands import Command, CommandReader, encode
from brokerset_rig.measuring import markdown
from brokerset_runtime.clock import SystemClock
from brokerset_spec.broker_settings import BrokerSettings

BATCH = 32
ROUNDS = 7
BODY = b"x" * 1024
HOST = Host.from_text("127.0.0.1", 10911).encode()
PROPERTIES = b"UNIQ_KEY\x01ABCDEFABCDEFABCDEFABCDEF%08X\x02WAIT\x01true\x02"


def best(step: Callable[[], object], calls: int, messages: int = 1) -> float:
    """Microseconds for each message in the fastest round."""
    step()
    rounds = []
    for _ in range(ROUNDS):
        before = time.perf_counter()
        for _ in range(calls):
            step()
        rounds.append((time.perf_counter() - before) / calls / messages * 1e6)
    return min(rounds)


def send_frame() -> bytes:
    ext = {"a": "pg", "b": "bench", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
           "i": (PROPERTIES % 1).decode(), "j": "0", "k": "false", "l": "0", "m": "false", "n": "broker-a"}  # fmt: skip
    return encode(Command(310, ext, BODY, opaque=1))


def new_store(folder: str, *, index: bool, crc: bool = False) -> MessageStore:
    settings = BrokerSettings(
        store_path_root_dir=Path(folder),
        mapped_file_size_commit_log=1 << 28,
        message_index_enable=index,
        enabled_append_prop_crc=crc,
    )
    store = MessageStore(settings, SystemClock())
    store.load()
    return store


def measure(calls: int) -> list[tuple[str, float]]:
    rows: list[tuple[str, float]] = []
    frames = send_frame() * BATCH
    rows.append(
        ("read a frame and its JSON header", best(lambda: CommandReader().feed(frames), calls, BATCH))
    )
    replies = SendReplies(HOST, "DefaultRegion", True)
    command = CommandReader().feed(send_frame())[0]
    unique_id = "ABCDEFABCDEFABCDEFABCDEF00000001"
    rows.append(
        ("make the answer", best(lambda: replies.stored(command, 0, 7, 4096, unique_id), calls * BATCH))
    )
    rows.append(("CRC of 1 KB (floor)", best(lambda: crc31(BODY), calls * BATCH)))
    copy = bytearray(2048)
    rows.append(("copy of 1 KB (floor)", best(lambda: copy.__setitem__(slice(0, 1024), BODY), calls * BATCH)))
    hasher = KeyHasher()
    numbers = iter(range(1 << 62))
    rows.append(
        (
            "hash of one key",
            best(
                lambda: hasher.hash("bench", b"ABCDEFABCDEFABCDEFABCDEF%08X" % next(numbers)), calls * BATCH
            ),
        )
    )
    items = [BatchItem(0, BODY, PROPERTIES % i) for i in range(BATCH)]
    batch = encode_batch(items)
    rows.append(("batch: take it apart", best(lambda: iterate_batch(batch), calls, BATCH)))
    offsets = list(range(0, 1200 * BATCH, 1200))
    rows.append(("batch: message ids", best(lambda: replies.message_ids(offsets), calls, BATCH)))
    for index, crc, words in (
        (False, False, "without the index"),
        (False, True, "without the index, with property CRCs"),
        (True, False, "with the index"),
    ):
        with tempfile.TemporaryDirectory() as folder:
            store = new_store(folder, index=index, crc=crc)
            rows += store_rows(store, words, calls, numbers)
            asyncio.run(store.close())
    return rows


def store_rows(
    store: MessageStore, words: str, calls: int, numbers: Iterator[int]
) -> list[tuple[str, float]]:
    """Appending to a store and reading from it."""

    def append() -> None:
        properties = PROPERTIES % next(numbers)
        store.append("bench", 0, BODY, properties, flag=0, sys_flag=0, born_timestamp=0, born_host=HOST)

    def append_run() -> None:
        texts = [PROPERTIES % next(numbers) for _ in range(BATCH)]
        run = [("bench", 0, BODY, properties, derived(properties), 0, 0, 0, 0) for properties in texts]
        if store.append_run(run, HOST) is None:  # the next one needs room
            append()

    def append_batch() -> None:
        fresh = [BatchItem(0, BODY, PROPERTIES % next(numbers)) for _ in range(BATCH)]
        store.append_batch("bench", 1, fresh, sys_flag=0, born_timestamp=0, born_host=HOST)

    return [
        (f"append a message, {words}", best(append, calls * 4)),
        (f"append a message of a run of {BATCH}, {words}", best(append_run, calls // 4, BATCH)),
        (f"batch: append, {words}", best(append_batch, calls // 4, BATCH)),
        (
            f"pull: read 32 neighbours, {words}",
            best(lambda: store.get("bench", 0, 0, 32, 1 << 18, None), calls, 32),
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    options = parser.parse_args()
    rows = measure(options.calls)
    print(markdown(("step", "µs for each message"), ((words, f"{cost:.2f}") for words, cost in rows)))


if __name__ == "__main__":
    main()
