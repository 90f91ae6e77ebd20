"""A Spark stream that follows a broker's log over its read-only stream, without Spark."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from brokerset_rig.local_servers import Setup
from brokerset_rig.store_streaming import append, confirm_only, streaming
from brokerset_spark.sources import stream_positions
from brokerset_spark.sources.columns import schema_of
from brokerset_spark.sources.options import read_message_options
from brokerset_spark.sources.reader import DataLost
from brokerset_spark.sources.stream import MessageStream

ALL = ReadAllAvailable()
GROUP = "group:DefaultCluster/broker-a"
"""What the stream's offset is filed under: whichever replica is read."""


def follow(url: str) -> MessageStream:
    options = {"path": url, "includeSystemTopics": "true", "columns": "commitLogOffset"}
    read = read_message_options("rocketmq-store", options)
    return MessageStream(read, schema_of(read.all_columns, ["commitLogOffset"]))


def rows(source: MessageStream, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    found: list[int] = []
    for partition in source.partitions(start, end):
        for batch in source.read(partition):
            found += batch.column("commitLogOffset").to_pylist()
    return found


async def test_a_stream_over_http_reads_each_message_once_and_knows_its_store_again(setup: Setup) -> None:
    """It goes on from its mark; while less is confirmed it waits; another store at the address fails it."""

    async with streaming(setup, messages=60) as (broker, url):
        source = follow(url)
        begin = await asyncio.to_thread(source.initialOffset)
        end = await asyncio.to_thread(source.latestOffset, begin, ALL)
        first = await asyncio.to_thread(rows, source, begin, end)
        assert len(first) == 60
        last = stream_positions.mark_in(end, GROUP)
        assert last is not None
        assert last.offset == first[-1]

        more = [append(broker, number) for number in range(5)]
        source = follow(url)
        after = await asyncio.to_thread(source.latestOffset, end, ALL)
        assert await asyncio.to_thread(rows, source, end, after) == more

        confirm_only(broker, first[30])
        assert await asyncio.to_thread(follow(url).latestOffset, after, ALL) == after

        other = after | {GROUP + stream_positions.SUFFIX: stream_positions.Mark(first[0], 100, 1).encode()}
        with pytest.raises(DataLost, match="the store was replaced"):
            await asyncio.to_thread(follow(url).latestOffset, other, ALL)
        beyond = {url: broker.store.max_offset + 1_000_000}
        with pytest.raises(DataLost, match=f"the log ends at {broker.store.max_offset}"):
            await asyncio.to_thread(follow(url).latestOffset, beyond, ALL)
