"""The audit of order against the scan of `audit`, on one store: `spark_order.py [--records N] [--runs N] [--engine spark]`.

Records have bodies of 100 bytes, keys and order stamps; they lie in 8 queues and come from 50 producers, each of which starts again once. Both read
the same bytes from the page cache in one process (with `--engine spark` in two of Spark's, by the clock), in turn; the best of the runs counts.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from brokerset_formats.hosts import Host
from brokerset_formats.order_keys import logical_partition, partition_ranges
from brokerset_formats.records import BLANK, MAGIC_BLANK, Record, encode_record
from brokerset_spark.jobs.audit import MapOptions, map_replica
from brokerset_spark.jobs.order import OrderOptions, audit_order
from brokerset_spark.jobs.running import LocalRunner, Runner, SparkRunner
from brokerset_spark.jobs.session import open_session

FILE_BYTES = 64 << 20
QUEUES = 8
PRODUCERS = 50
KEYS = 20_000
HOST = Host(b"\x7f\0\0\1", 10911)
TIME = 1_760_000_000_000


def records(count: int) -> Iterator[Record]:
    """A correct history, without offsets."""
    owner = [number for number, (low, high) in enumerate(partition_ranges(QUEUES)) for _ in range(low, high)]
    keys = [(key, logical_partition(key)) for key in (f"order-{number}" for number in range(KEYS))]
    sequences: dict[tuple[int, int, int], int] = {}
    places = [0] * QUEUES
    body = b"x" * 100
    for number in range(count):
        key, logical = keys[number * 7_919 % KEYS]
        partition, producer = owner[logical], number % PRODUCERS
        epoch = producer + (PRODUCERS if number > count // 2 else 0)
        sequence = sequences.get((partition, producer, epoch), 0)
        sequences[partition, producer, epoch] = sequence + 1
        stamp = f"{partition}:{logical}:producer-{producer}:{epoch}:{sequence}"
        properties = (
            f"TAGS\x01a\x02WAIT\x01true\x02__SHARDINGKEY\x01{key}\x02UNIQ_KEY\x017F000001{number:024X}\x02"
            f"ORDER_STAMP\x01{stamp}\x02"
        )
        yield Record(
            queue_id=partition, queue_offset=places[partition], offset=0, born_timestamp=TIME + number,
            born_host=HOST, store_timestamp=TIME + number, store_host=HOST, body=body, topic="orders",
            properties=properties.encode(),
        )  # fmt: skip
        places[partition] += 1


def write_store(root: Path, count: int) -> int:
    """The log of a store; bytes of its records."""
    folder, base, total = root / "commitlog", 0, 0
    folder.mkdir(parents=True)
    content = bytearray()
    for record in records(count):
        raw = bytearray(encode_record(record))
        if len(content) + len(raw) + BLANK.size > FILE_BYTES:
            content += BLANK.pack(FILE_BYTES - len(content), MAGIC_BLANK)
            (folder / f"{base:020d}").write_bytes(content.ljust(FILE_BYTES, b"\0"))
            base, content = base + FILE_BYTES, bytearray()
        raw[28:36] = (base + len(content)).to_bytes(8, "big")
        content += raw
        total += len(raw)
    (folder / f"{base:020d}").write_bytes(content.ljust(FILE_BYTES, b"\0"))
    return total


def measured(work: Callable[[], int], clock: Callable[[], float]) -> tuple[int, float]:
    """What `work` counted, and seconds."""
    begun = clock()
    return work(), clock() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--engine", choices=("processes", "spark"), default="processes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        size = write_store(Path(folder), args.records)
        runner: Runner = LocalRunner()
        if args.engine == "spark":
            runner = SparkRunner(stack.enter_context(open_session(workers=2)), 2)
        clock = time.process_time if args.engine == "processes" else time.monotonic
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        def audited() -> int:
            options = OrderOptions(drop_cache=False, range_bytes=32 << 20)
            report = audit_order(runner, [folder], options)
            assert report.findings == [], report.findings[:3]
            return report.counters["messages"]

        def mapped() -> int:
            return map_replica(runner, folder, MapOptions(drop_cache=False)).records

        best = dict.fromkeys(("order", "audit"), 1e9)
        for number in range(args.runs + 1):  # the first run compiles kernels, and is not counted
            for name, work in (("order", audited), ("audit", mapped)):
                count, seconds = measured(work, clock)
                assert count == args.records
                best[name] = min(best[name], seconds) if number else best[name]
        print(
            json.dumps(
                {
                    "engine": args.engine,
                    "records": args.records,
                    "bytes": size,
                    "orderRecordsPerSecond": round(args.records / best["order"]),
                    "auditRecordsPerSecond": round(args.records / best["audit"]),
                    "ratio": round(best["audit"] / best["order"], 3),
                    "mebibytesBefore": before >> 10,
                    "mebibytesPeak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
                }
            )
        )


if __name__ == "__main__":
    main()
