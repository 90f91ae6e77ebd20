"""The read-only stream of a broker's store: what it gives out, and what it never does."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import pickle
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yarl

from brokerset_broker.app import Broker
from brokerset_broker.store_stream import files, stream
from brokerset_formats.index_file import HEADER, IndexHeader
from brokerset_formats.queue_units import UNIT_SIZE
from brokerset_runtime.files import lock_holder
from brokerset_spark.jobs.audit.sighting import look_at
from brokerset_spark.jobs.verify.options import VerifyOptions
from brokerset_spark.jobs.verify.plan import find_target
from brokerset_spark.sources.columns import arrow_schema, schema_of
from brokerset_spark.sources.options import read_message_options
from brokerset_spark.sources.plan import open_store, plan_pieces, plan_store
from brokerset_spark.sources.reader import read_piece
from brokerset_spark.stores.folder import LocalFolder, StoreFolder, open_folder, read_all
from brokerset_spark.stores.http_folder import HttpFolder, StreamFailed, StreamRefused
from brokerset_spec.broker_settings import BrokerSettings

Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
Setup = Any
"""The class of the fixture lives in conftest.py, which cannot be imported."""

SEGMENT = 256 * 1024
TOPIC = "tøpic with a blank"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@asynccontextmanager
async def streaming(setup: Setup, messages: int = 200, **changes: Any) -> AsyncIterator[tuple[Broker, str]]:
    """A broker with messages in several files of its log, and the address of its stream."""
    small: dict[str, Any] = {
        "http_port": free_port(), "store_stream_enable": True, "mapped_file_size_commit_log": SEGMENT,
        "max_message_size": 65_536, "mapped_file_size_consume_queue": 20 * 100, "max_index_num": 150,
        "max_store_stream_byte_in_second": 2**30,
    }  # fmt: skip
    async with setup.broker(**(small | changes)) as broker:
        await setup.until(lambda: broker.http_port != 0)
        for number in range(messages):
            append(broker, number)
        yield broker, f"http://127.0.0.1:{broker.http_port}/store"


def append(broker: Broker, number: int) -> int:
    appended = broker.store.append(
        TOPIC,
        number % 2,
        bytes([number % 256]) * 5_000,
        b"KEYS\x01key-%d\x02" % number,
        flag=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=bytes(8),
    )
    return appended.offset


def confirm_only(broker: Broker, end: int) -> None:
    """Let the store be one whose replicas have nothing at or behind `end`."""
    broker.store.confirmation.replicated = True
    broker.store.confirmation.appends = False
    broker.store.confirmation.load(end)


def read_file(folder: StoreFolder, path: str, size: int) -> bytes:
    """Up to `size` bytes of a file, in odd pieces."""
    parts = []
    position = 0
    while position < size:
        piece = bytearray(min(30_011, size - position))
        count = folder.read_into(path, position, memoryview(piece))
        parts.append(bytes(piece[:count]))
        position += count
        if count < len(piece):
            break
    return b"".join(parts)


async def ask(url: str, call: Callable[[HttpFolder], Any], token: str | None = None) -> Any:
    """What a call on the stream's folder gives."""

    def in_thread() -> Any:
        with closing(HttpFolder(url, token=token)) as folder:
            return call(folder)

    return await asyncio.to_thread(in_thread)


async def get(url: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """`url` goes out as it is, without being made tidy."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(yarl.URL(url, encoded=True), headers=headers) as answer,
    ):
        return answer.status, dict(answer.headers), await answer.read()


async def raw(port: int, target: str) -> tuple[int, bytes]:
    """The same for paths that a client library would never send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return int(answer.split(b" ", 2)[1]), answer


def test_there_is_no_stream_unless_it_is_switched_on(setup: Setup, run: Run) -> None:
    """A broker with default settings gives out nothing of its store."""

    async def main() -> None:
        async with streaming(setup, store_stream_enable=False) as (broker, url):
            for path in ("/state", "/files", "/files/checkpoint", "/checksums?path=checkpoint"):
                assert (await get(url + path))[0] == 404
            assert not BrokerSettings().store_stream_enable
            with pytest.raises(StreamFailed, match="storeStreamEnable=true"):
                await ask(url, HttpFolder.state)
            assert broker.http_port

    run(main)


def test_a_store_reads_the_same_over_the_stream_as_in_its_folder(setup: Setup, run: Run) -> None:
    """Names, sizes and bytes of log, queues, sealed index and small files agree."""

    async def main() -> None:
        async with streaming(setup) as (broker, url):
            (setup.folder / "config").mkdir(exist_ok=True)
            (setup.folder / "config" / "topics.json").write_bytes(b"{}" + b" " * 100_000)
            await broker.store.checkpoint()
            await asyncio.to_thread(compare, broker, url)

    def compare(broker: Broker, url: str) -> None:
        near, far = LocalFolder(setup.folder), open_folder(url)
        end = broker.store.confirmed_offset

        assert far.folders("") == ["commitlog", "config", "consumequeue", "index"]
        assert far.folders("consumequeue") == [TOPIC]
        assert far.folders(f"consumequeue/{TOPIC}") == ["0", "1"]
        assert far.files("nothing") == []
        used = [each for each in near.files("commitlog") if int(each.path[-20:]) < end]
        assert far.files("commitlog") == used
        assert len(used) > 3
        for facts in used:
            count = min(SEGMENT, end - int(facts.path[-20:]))
            assert read_file(far, facts.path, SEGMENT) == read_file(near, facts.path, count)
        for queue in ("0", "1"):
            listed = far.files(f"consumequeue/{TOPIC}/{queue}")
            assert [each.path for each in listed] == [
                each.path for each in near.files(f"consumequeue/{TOPIC}/{queue}")
            ]
            assert (
                b"".join(read_file(far, each.path, each.size) for each in listed)
                == b"".join(read_file(near, each.path, each.size) for each in listed)[: 100 * UNIT_SIZE]
            )
        (index,) = far.files("index")
        assert index.path == near.files("index")[0].path
        assert read_file(far, index.path, index.size) == read_file(near, index.path, index.size)
        assert read_all(far, "config/topics.json") == read_all(near, "config/topics.json")
        assert read_all(far, "abort") == read_all(near, "abort")
        assert read_all(far, "config/nothing.json") is None
        with pytest.raises(FileNotFoundError, match="there is no"):
            read_file(far, f"commitlog/{SEGMENT * 1000:020d}", 10)
        far.close()
        near.close()

    run(main)


def test_the_state_tells_who_it_is_and_how_far_it_goes(setup: Setup, run: Run) -> None:
    """`/store/state` has identity, role and offsets; the folder survives being pickled."""

    async def main() -> None:
        async with streaming(setup, broker_name="broker-z") as (broker, url):
            confirm_only(broker, append(broker, 1))
            append(broker, 2)

            folder = pickle.loads(pickle.dumps(HttpFolder(url)))
            state = await asyncio.to_thread(folder.state)

            assert (state.cluster_name, state.broker_name, state.broker_id) == (
                "DefaultCluster",
                "broker-z",
                0,
            )
            assert (state.role, state.epoch) == ("master", None)
            assert state.confirmed_offset == broker.store.confirmed_offset < state.max_offset
            assert state.min_offset == 0
            folder.close()

    run(main)


def test_nothing_at_or_above_the_confirmed_offset_is_given_out(setup: Setup, run: Run) -> None:
    """Neither records, nor queue units that point to them, nor an index that knows of them."""

    async def main() -> None:
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

    run(main)


def test_jobs_read_a_stream_up_to_what_its_broker_confirmed(setup: Setup, run: Run) -> None:
    """Data source, audit and verification ask the broker: all whole records below are there, the last one as
    well, and a confirmed offset inside a record is no damage."""

    async def main() -> None:
        async with streaming(setup) as (broker, url):
            end = broker.store.queues_table.table[TOPIC, 0].unit(30)[0]
            for confirmed, count in ((end, 60), (end + 100, 60)):
                confirm_only(broker, confirmed)
                await asyncio.to_thread(check, url, confirmed, count)

    def check(url: str, confirmed: int, count: int) -> None:
        options = read_message_options("rocketmq-store", {"path": url, "includeSystemTopics": "true"})
        folder, facts = open_store(url)
        with closing(folder):
            store = plan_store(folder, facts, options)
            assert (store.bound.offset, store.bound.reason) == (confirmed, "confirm")
            pieces = plan_pieces(folder, store, options)
            schema = arrow_schema(schema_of(options.all_columns, ["commitLogOffset"]))
            batches = [batch for piece in pieces for batch in read_piece(piece, options, schema)]
            assert sum(batch.num_rows for batch in batches) == count

            sight = look_at(folder)
            assert (sight.confirmed, sight.confirmed_by, sight.bound) == (confirmed, "broker", confirmed)
            assert find_target(folder, VerifyOptions()).ending.claimed == confirmed

    run(main)


def test_synchronous_flushing_gives_out_only_what_is_on_the_disk(setup: Setup, run: Run) -> None:
    """With SYNC_FLUSH consumers see nothing that is not on the disk, and neither does the stream."""

    async def main() -> None:
        async with streaming(setup, flush_disk_type="SYNC_FLUSH") as (broker, url):
            assert await broker.store.flush()
            end = broker.store.log.flushed_offset
            broker.store.log.flushed_offset = end - 1_000

            state = await ask(url, HttpFolder.state)

            broker.store.log.flushed_offset = end
            assert state.confirmed_offset == end - 1_000 < state.max_offset

    run(main)


def test_no_name_leads_out_of_what_is_served(setup: Setup, run: Run) -> None:
    """Neither `..`, plain or escaped, nor links, nor files that no reader needs: above all not `lock`."""

    async def main() -> None:
        async with streaming(setup) as (broker, url):
            root: Path = setup.folder
            secret = root.parent / "secret"
            secret.write_bytes(b"SECRET")
            os.symlink(secret, root / "checkpoint.x")
            os.symlink(secret, root / "config" / "delayOffset.json.bak")
            os.symlink(root.parent, root / "consumequeue" / "linked")
            (root.parent / "0").mkdir()
            (root.parent / "0" / f"{0:020d}").write_bytes(b"SECRET")
            os.mkfifo(root / "config" / "consumerOffset.json.bak")
            (root / "brokerIdentity").write_bytes(b"cluster#broker#1#SECRET")
            (root / "brokerIdentity-temp").write_bytes(b"cluster#broker#1#SECRET")

            for target in (
                "../secret", "..%2fsecret", "%2e%2e/secret", "commitlog/../../secret",
                "commitlog/..%2F..%2Fsecret", "config/..%2f..%2fsecret", "/etc/passwd",
                "%2fetc%2fpasswd", "lock", "./lock",
                "config/../lock", "checkpoint.x", "checkpoint%00", "checkpoint/",
                "brokerIdentity", "brokerIdentity-temp",
                "",
                "consumequeue/../0/00000000000000000000", "consumequeue/linked/0/00000000000000000000",
                "consumequeue/%2e%2e/0/00000000000000000000", "config/delayOffset.json.bak",
                "config/consumerOffset.json.bak", "commitlog", "commitlog/0", "%ff", "removal",
                "commitlog.damaged/x",
                f"commitlog/{'0' * 3000}",
            ):  # fmt: skip
                status, answer = await raw(broker.http_port, f"/store/files/{target}")
                assert status == 404, target
                assert b"SECRET" not in answer
                assert b"root:" not in answer
            for query in ("under=..", "under=/", "after=a//b", "under=a%00b"):
                assert (await get(f"{url}/files?{query}"))[0] == 400
            for query in ("", "path=lock", "path=../secret", "path=/etc/passwd"):
                assert (await get(f"{url}/checksums?{query}"))[0] == 400
            _, _, listing = await get(f"{url}/files")
            for name in (b"lock", b"secret", b"linked", b"Identity", b".bak", b"checkpoint.x"):
                assert name not in listing
            (root / "brokerIdentity").write_bytes(b"cluster#broker#1")
            assert (await get(f"{url}/files/brokerIdentity"))[2] == b"cluster#broker#1"
            for method in ("POST", "PUT", "DELETE", "HEAD"):
                async with (
                    aiohttp.ClientSession() as session,
                    session.request(method, f"{url}/files/abort") as refused,
                ):
                    assert refused.status == 405
            assert lock_holder(root / "lock") == os.getpid()  # reading has not given it up

    run(main)


def test_who_does_not_know_the_token_reads_nothing(setup: Setup, run: Run, tmp_path: Path) -> None:
    """401 without and with a wrong token; a replaced token counts at once; without a file nobody reads."""
    token = tmp_path / "token"
    token.write_text("one\n")

    async def main() -> None:
        async with streaming(setup, store_stream_token_file=token) as (broker, url):
            for path in ("/state", "/files", "/files/abort", "/checksums?path=abort"):
                status, headers, body = await get(url + path)
                assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="store"')
                assert b"one" not in body
                for wrong in ("Bearer two", "Bearer ", "Basic one", "one", "Bearer on", "Bearer öne"):
                    assert (await get(url + path, Authorization=wrong))[0] == 401
            assert (await get(url + "/state", Authorization="bearer one"))[0] == 200
            with pytest.raises(StreamRefused, match="BROKERSET_STORE_TOKEN"):
                await ask(url, HttpFolder.state)
            assert (await ask(url, HttpFolder.state, "one")).role == "master"

            token.write_text("three")
            assert (await get(url + "/state", Authorization="Bearer one"))[0] == 401
            assert (await get(url + "/state", Authorization="Bearer three"))[0] == 200
            token.write_text("\n")
            assert (await get(url + "/state", Authorization="Bearer "))[0] == 503
            token.unlink()
            assert (await get(url + "/state", Authorization="Bearer three"))[0] == 503
            assert (await get(f"http://127.0.0.1:{broker.http_port}/healthz"))[0] == 200

    run(main)


def test_a_range_with_an_old_tag_brings_the_whole(setup: Setup, run: Run) -> None:
    """`If-Range` holds while the file is the same; a file that was replaced is sent from its beginning."""

    async def main() -> None:
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

    run(main)


def test_an_expired_file_is_said_to_be_expired(setup: Setup, run: Run) -> None:
    """A file that retention deleted is a 404 that tells where the log begins now."""

    async def main() -> None:
        async with streaming(setup) as (broker, url):
            broker.store.log.files.remove_first(2)

            status, _, body = await get(f"{url}/files/commitlog/{0:020d}")

            assert status == 404
            assert b'"expired"' in body
            assert f'"minOffset":{2 * SEGMENT}'.encode() in body
            folder = HttpFolder(url)
            first = (await asyncio.to_thread(folder.files, "commitlog"))[0]
            assert first.path == f"commitlog/{2 * SEGMENT:020d}"
            with pytest.raises(FileNotFoundError, match=f"the log begins at {2 * SEGMENT}"):
                await asyncio.to_thread(read_file, folder, f"commitlog/{0:020d}", 10)
            folder.close()

    run(main)


def test_digests_are_those_of_sealed_files_and_are_made_once(setup: Setup, run: Run) -> None:
    """SHA-256 of the file; none for the file that is being written; told with the file once it is known."""

    async def main() -> None:
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

    run(main)


def test_a_long_list_comes_in_parts(setup: Setup, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that does not fit into one answer goes on where the last one ended."""

    async def main() -> None:
        async with streaming(setup) as (_, url):
            whole = await ask(url, lambda folder: folder.files("commitlog"))
            queues = await ask(url, lambda folder: folder._below("consumequeue"))
            everything = await ask(url, lambda folder: folder._below(""))
            for limit in (1, 2, 3):
                monkeypatch.setattr(files, "LISTED_MAX", limit)
                assert await ask(url, lambda folder: folder.files("commitlog")) == whole
                assert await ask(url, lambda folder: folder._below("consumequeue")) == queues
                assert await ask(url, lambda folder: folder._below("")) == everything
            assert len(everything) > len(whole) + len(queues) > 5

    run(main)


def test_an_answer_that_has_begun_is_never_followed_by_another(
    setup: Setup, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When descriptors run out behind the head, the connection breaks: an error's text is no content."""

    async def main() -> None:
        async with streaming(setup) as (broker, url):
            opened = len(os.listdir("/proc/self/fd"))
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
            await setup.until(lambda: len(os.listdir("/proc/self/fd")) <= opened)

    run(main)


def test_an_index_file_is_given_out_only_when_nothing_is_added_any_more(setup: Setup, run: Run) -> None:
    """Neither a foreign file behind it nor a header that is not written yet makes an index file readable."""

    async def main() -> None:
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
            broker.store.confirmation.load(end + 1)
            assert (await get(f"{url}/files/{first}"))[0] == 200

    run(main)


def test_letters_that_no_encoding_has_are_refused(setup: Setup, run: Run) -> None:
    """Bytes that are no UTF-8, plain or escaped, in paths and queries, are a refusal and no failure."""

    async def main() -> None:
        async with streaming(setup) as (broker, _):
            for name in (b"\xff", b"%FF", b"%ED%B3%BF", b"\xed\xb3\xbf"):
                for target in (
                    b"/store/files/consumequeue/" + name + b"/0/00000000000000000000",
                    b"/store/files?under=" + name,
                    b"/store/files?under=consumequeue/" + name + b"&after=" + name,
                    b"/store/checksums?path=consumequeue/" + name + b"/0/00000000000000000000",
                ):
                    reader, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
                    writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    answer = await reader.read()
                    writer.close()
                    await writer.wait_closed()
                    assert int(answer.split(b" ", 2)[1]) in (200, 400, 404), (target, answer)

    run(main)


def test_readers_have_turns_and_a_rate_and_harm_nobody(
    setup: Setup, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one turn, taken by a slow reader, the next one is told to come again; producers notice nothing,
    and the broker closes without waiting for the reader."""
    monkeypatch.setattr(stream, "WAIT_SECONDS_MAX", 0.05)

    async def main() -> None:
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

    run(main)


def test_a_log_that_is_cut_while_it_is_read_ends_the_connection(setup: Setup, run: Run) -> None:
    """What was promised and is not there any more is never sent as if it were: the body stays incomplete."""

    async def main() -> None:
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

    run(main)
