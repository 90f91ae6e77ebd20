"""The read-only stream of a broker's store: what it gives out, and who can read it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import pickle
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from brokerset_broker.app import Broker
from brokerset_broker.outside.store_stream import files, small_files
from brokerset_formats.queue_units import UNIT_SIZE
from brokerset_rig.local_servers import Setup
from brokerset_rig.store_streaming import SEGMENT, TOPIC, append, ask, confirm_only, get, read_file, streaming
from brokerset_spark.jobs.audit.replica import observe
from brokerset_spark.jobs.verify.options import VerifyOptions
from brokerset_spark.jobs.verify.plan import find_target
from brokerset_spark.sources.columns import arrow_schema, schema_of
from brokerset_spark.sources.options import read_message_options
from brokerset_spark.sources.plan import open_store, plan_pieces, plan_store
from brokerset_spark.sources.reader import read_piece
from brokerset_spark.stores.folder import LocalFolder, read_all
from brokerset_spark.stores.http_folder import HttpFolder, StreamFailed
from brokerset_spark.stores.opening import open_folder
from brokerset_spec.broker_settings import BrokerSettings


async def test_there_is_no_stream_unless_it_is_switched_on(setup: Setup) -> None:
    """A broker with default settings gives out nothing of its store."""

    async with streaming(setup, store_stream_enable=False) as (broker, url):
        for path in ("/state", "/files", "/files/checkpoint", "/checksums?path=checkpoint"):
            assert (await get(url + path))[0] == 404
        assert not BrokerSettings().store_stream_enable
        with pytest.raises(StreamFailed, match="storeStreamEnable=true"):
            await ask(url, HttpFolder.state)
        assert broker.http_port


async def test_a_store_reads_the_same_over_the_stream_as_in_its_folder(setup: Setup) -> None:
    """Names, sizes and bytes of log, queues, sealed index and small files agree."""

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

    async with streaming(setup) as (broker, url):
        (setup.folder / "config").mkdir(exist_ok=True)
        (setup.folder / "config" / "topics.json").write_bytes(b"{}" + b" " * 100_000)
        await broker.store.checkpoint()
        await asyncio.to_thread(compare, broker, url)


async def test_the_state_tells_who_it_is_and_how_far_it_goes(setup: Setup) -> None:
    """`/store/state` has identity, role and offsets; the folder survives being pickled."""

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


async def test_jobs_read_a_stream_up_to_what_its_broker_confirmed(setup: Setup) -> None:
    """Data source, audit and verification ask the broker: all whole records below are there, the last one as
    well, and a confirmed offset inside a record is no damage."""

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

            sight = observe(folder).known
            assert (sight.confirmed, sight.confirmed_by, sight.bound) == (confirmed, "broker", confirmed)
            assert find_target(folder, VerifyOptions()).ending.claimed == confirmed

    async with streaming(setup) as (broker, url):
        end = broker.store.queues_table.table[TOPIC, 0].unit(30)[0]
        for confirmed, count in ((end, 60), (end + 100, 60)):
            confirm_only(broker, confirmed)
            await asyncio.to_thread(check, url, confirmed, count)


async def test_an_expired_file_is_said_to_be_expired(setup: Setup) -> None:
    """A file that retention deleted is a 404 that tells where the log begins now."""

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


async def test_a_long_list_comes_in_parts(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that does not fit into one answer goes on where the last one ended."""

    def listed(folder: Any, below: str) -> list[tuple[str, int]]:
        """Without the times: what was written before may be flushed at any moment."""
        found = folder.files(below) if below == "commitlog" else folder._below(below)
        return [(each.path, each.size) for each in found]

    async with streaming(setup) as (_, url):
        whole, queues, everything = [
            await ask(url, partial(listed, below=below)) for below in ("commitlog", "consumequeue", "")
        ]
        for limit in (1, 2, 3):
            monkeypatch.setattr(files, "LISTED_MAX", limit)
            assert await ask(url, partial(listed, below="commitlog")) == whole
            assert await ask(url, partial(listed, below="consumequeue")) == queues
            assert await ask(url, partial(listed, below="")) == everything
        assert len(everything) > len(whole) + len(queues) > 5


async def test_a_small_file_is_given_out_with_the_digest_of_what_it_was_at_one_moment(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a part of one; a file that changes whenever it is read brings only a request to come again."""

    async with streaming(setup) as (broker, url):
        await broker.store.checkpoint()
        content = (setup.folder / "checkpoint").read_bytes()
        digest = f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"

        for headers, part in (({}, content), ({"Range": "bytes=8-15"}, content[8:16])):
            _, told, body = await get(f"{url}/files/checkpoint", **headers)
            assert (told["Repr-Digest"], body) == (digest, part)

        numbers = itertools.count()
        monkeypatch.setattr(small_files, "_read", lambda *_: b"%08d" % next(numbers))
        status, told, _ = await get(f"{url}/files/checkpoint")
        assert (status, told["Retry-After"]) == (503, "1")
        assert next(numbers) == 2 * small_files.ATTEMPTS_MAX
