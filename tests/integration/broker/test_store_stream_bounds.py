"""The read-only stream of a broker's store never gives out what is not confirmed."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import aiohttp
import pytest

from brokerset_formats.index_file import HEADER, IndexHeader
from brokerset_formats.queue_units import UNIT_SIZE
from brokerset_rig.local_servers import Setup
from brokerset_rig.store_streaming import SEGMENT, TOPIC, ask, confirm_only, get, read_file, streaming
from brokerset_spark.stores.folder import LocalFolder
from brokerset_spark.stores.http_folder import HttpFolder


def record_size(near: LocalFolder, offset: int) -> int:
    head = bytearray(4)
    near.read_into(f"commitlog/{offset // SEGMENT * SEGMENT:020d}", offset % SEGMENT, memoryview(head))
    return int.from_bytes(head, "big")


async def test_nothing_at_or_above_the_confirmed_offset_is_given_out(setup: Setup) -> None:
    """Neither records, nor queue units that point to them, nor an index that knows of them."""

    def compare(url: str, end: int) -> None:
        near, far = LocalFolder(setup.folder), HttpFolder(url)
        total = sum(len(read_file(far, each.path, each.size)) for each in far.files("commitlog"))
        assert total == end
        for queue, units in (("0", 30), ("1", 30)):
            path = f"consumequeue/{TOPIC}/{queue}/{0:020d}"
            assert read_file(far, path, 10**6) == read_file(near, path, units * UNIT_SIZE)
        assert far.files("index") == []
        path = near.files("index")[0].path
        with pytest.raises(FileNotFoundError):
            read_file(far, path, 10)
        far.close()

    async with streaming(setup) as (broker, url):
        end = broker.store.queues_table.table[TOPIC, 0].unit(30)[0]
        confirm_only(broker, end)
        await asyncio.to_thread(compare, url, end)
        log_file = f"{url}/files/commitlog/{end // SEGMENT * SEGMENT:020d}"
        inside = end % SEGMENT
        assert (await get(log_file, Range=f"bytes={inside}-{inside}"))[0] == 416
        status, headers, body = await get(log_file, Range=f"bytes={inside - 3}-")
        assert (status, len(body)) == (206, 3)
        assert headers["Content-Range"] == f"bytes {inside - 3}-{inside - 1}/{inside}"
        status, headers, body = await get(log_file)
        assert (status, len(body)) == (200, inside)
        assert (await get(f"{url}/files/commitlog/{(end // SEGMENT + 1) * SEGMENT:020d}"))[0:3:2] == (
            200,
            b"",
        )

        broker.store.confirmation.load(broker.store.max_offset)
        assert len((await get(log_file))[2]) == SEGMENT
        assert len(await ask(url, lambda folder: folder.files("index"))) == 1


async def test_a_record_that_is_half_confirmed_has_no_unit_yet(setup: Setup) -> None:
    """Replicas confirm bytes: whoever follows a unit must find a whole record."""

    async with streaming(setup) as (broker, url):
        path = f"consumequeue/{TOPIC}/0/{0:020d}"
        begin, size, _ = broker.store.queues_table.table[TOPIC, 0].unit(30)
        for end, units in (
            (begin, 30), (begin + 1, 30), (begin + size // 2, 30), (begin + size - 1, 30),
            (begin + size, 31),
        ):  # fmt: skip
            confirm_only(broker, end)
            found = await ask(url, lambda folder: read_file(folder, path, 10**6))
            assert len(found) == units * UNIT_SIZE, end - begin


async def test_synchronous_flushing_gives_out_only_what_is_on_the_disk(setup: Setup) -> None:
    """With SYNC_FLUSH consumers see nothing that is not on the disk, and neither does the stream."""

    async with streaming(setup, flush_disk_type="SYNC_FLUSH") as (broker, url):
        assert await broker.store.flush()
        end = broker.store.log.flushed_offset
        broker.store.log.flushed_offset = end - 1_000

        state = await ask(url, HttpFolder.state)

        broker.store.log.flushed_offset = end
        assert state.confirmed_offset == end - 1_000 < state.max_offset


async def test_an_index_file_is_given_out_only_when_nothing_is_added_any_more(setup: Setup) -> None:
    """Neither a foreign file behind it nor a header that is not written yet makes an index file readable."""

    async with streaming(setup) as (broker, url):
        first, newest = (f"index/{each.name}" for each in sorted((setup.folder / "index").iterdir()))
        (setup.folder / "index" / "~backup").write_bytes(b"x")
        assert (await get(f"{url}/files/{newest}"))[0] == 404
        assert [each.path for each in await ask(url, lambda folder: folder.files("index"))] == [first]

        path = setup.folder / first
        header = IndexHeader.decode(path.read_bytes()[: HEADER.size])
        end = header.end_offset
        with path.open("r+b") as file:
            file.write(replace(header, end_offset=end - 1_000).encode())
        confirm_only(broker, end)
        assert (await get(f"{url}/files/{first}"))[0] == 404
        with contextlib.closing(LocalFolder(setup.folder)) as near:
            size = record_size(near, end)
        for half in (end + 1, end + size // 2, end + size - 1):
            broker.store.confirmation.load(half)
            assert (await get(f"{url}/files/{first}"))[0] == 404
            assert await ask(url, lambda folder: folder.files("index")) == []
        broker.store.confirmation.load(end + size)
        assert (await get(f"{url}/files/{first}"))[0] == 200


async def test_a_log_that_is_cut_while_it_is_read_ends_the_connection(setup: Setup) -> None:
    """What was promised and is not there any more is never sent as if it were: the body stays incomplete."""

    async with streaming(
        setup,
        300,
        max_store_stream_byte_in_second=2 * SEGMENT,
        mapped_file_size_commit_log=4 * SEGMENT,
    ) as (broker, url):
        log_file = f"{url}/files/commitlog/{0:020d}"
        async with aiohttp.ClientSession() as session:
            answer = await session.get(log_file)
            assert answer.headers["Content-Length"] == str(4 * SEGMENT)
            assert await answer.content.readexactly(SEGMENT)  # the first step; others follow in a while
            confirm_only(broker, 2 * SEGMENT - 10)
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
