"""The read-only stream of a broker's store: how bytes are sent, digests, turns and pace."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from contextlib import suppress

import aiohttp
import pytest

from brokerset_broker.outside.store_stream import stream
from brokerset_rig.local_servers import Setup
from brokerset_rig.store_streaming import SEGMENT, ask, get, raw, streaming
from brokerset_spark.stores.http_folder import HttpFolder


def descriptors() -> int:
    """How many are open of the first file of the log; others are made ahead at any time."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing itself
            found += os.readlink(f"/proc/self/fd/{number}").endswith(f"/commitlog/{0:020d}")
    return found


async def test_a_range_with_an_old_tag_brings_the_whole(setup: Setup) -> None:
    """`If-Range` holds while the file is the same; a file that was replaced is sent from its beginning."""

    async with streaming(setup) as (broker, url):
        path = setup.folder / "config" / "subscriptionGroup.json"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"0123456789")
        _, headers, _ = await get(f"{url}/files/config/subscriptionGroup.json")
        tag = headers["Etag"]
        ask = {"Range": "bytes=4-6", "If-Range": tag}
        assert (await get(f"{url}/files/config/subscriptionGroup.json", **ask))[0:3:2] == (206, b"456")

        beside = path.with_name("new")
        beside.write_bytes(b"abcdefghij")
        beside.replace(path)

        assert (await get(f"{url}/files/config/subscriptionGroup.json", **ask))[0:3:2] == (
            200,
            b"abcdefghij",
        )
        assert broker.http_port


async def test_digests_are_those_of_sealed_files_and_are_made_once(setup: Setup) -> None:
    """SHA-256 of the file; none for the file that is being written; told with the file once it is known."""

    async with streaming(setup) as (broker, url):
        path = f"commitlog/{0:020d}"
        folder = HttpFolder(url)
        content = (setup.folder / path).read_bytes()
        assert "Repr-Digest" not in (await get(f"{url}/files/{path}"))[1]

        told = await asyncio.gather(*(ask(url, lambda folder: folder.checksum(path)) for _ in range(3)))

        assert told == [("sha-256", hashlib.sha256(content).hexdigest())] * 3
        assert "Repr-Digest" in (await get(f"{url}/files/{path}"))[1]
        last = f"commitlog/{broker.store.log.files.files[-1].start:020d}"
        assert await asyncio.to_thread(folder.checksum, last) is None
        with pytest.raises(FileNotFoundError):
            await asyncio.to_thread(folder.checksum, f"commitlog/{SEGMENT * 1000:020d}")
        folder.close()


async def test_an_answer_that_has_begun_is_never_followed_by_another(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When descriptors run out behind the head, the connection breaks: an error's text is no content."""

    async with streaming(setup) as (broker, url):
        opened = descriptors()
        real, calls = os.dup, []

        def failing(descriptor: int) -> int:
            calls.append(descriptor)
            if len(calls) == wanted:
                raise OSError(errno.EMFILE, "too many open files")
            return real(descriptor)

        for wanted in (1, 2, 3):
            calls.clear()
            with monkeypatch.context() as patched:
                patched.setattr(os, "dup", failing)
                status, answer = await raw(broker.http_port, f"/store/files/commitlog/{0:020d}")
            assert len(calls) == wanted
            assert status == 200
            assert answer.endswith(b"\r\n\r\n")
        assert (await get(f"{url}/files/commitlog/{0:020d}"))[0] == 200
        await setup.until(lambda: descriptors() <= opened)


async def test_readers_have_turns_and_a_rate_and_harm_nobody(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one turn, taken by a slow reader, the next one is told to come again; producers notice nothing,
    and the broker closes without waiting for the reader."""

    monkeypatch.setattr(stream, "WAIT_SECONDS_MAX", 0.05)

    async with streaming(
        setup,
        300,
        max_store_streams=1,
        max_store_stream_byte_in_second=65_536,
        mapped_file_size_commit_log=4 * SEGMENT,
    ) as (broker, url):
        log_file = f"{url}/files/commitlog/{0:020d}"
        async with aiohttp.ClientSession() as session:
            slow = await session.get(log_file)
            assert slow.status == 200
            status, headers, body = await get(f"{url}/files")
            assert (status, headers["Retry-After"]) == (503, "1")
            assert b"1 streams are in use" in body
            async with setup.client(broker) as client:
                assert (await client.send("other")).code == 0
            assert (await get(f"http://127.0.0.1:{broker.http_port}/healthz"))[0] == 200
            loop = asyncio.get_running_loop()
            begun = loop.time()
            await broker.close()
            assert loop.time() - begun < 5
            with pytest.raises(aiohttp.ClientPayloadError):
                await slow.read()
