"""The read-only stream of a broker's store: names that are refused, and those who are."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import aiohttp
import pytest

from brokerset_rig.local_servers import Setup
from brokerset_rig.store_streaming import ask, get, raw, streaming
from brokerset_runtime.files import lock_holder
from brokerset_spark.stores.http_folder import HttpFolder, StreamRefused


async def test_no_name_leads_out_of_what_is_served(setup: Setup) -> None:
    """Neither `..`, plain or escaped, nor links, nor files that no reader needs: above all not `lock`."""

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


async def test_letters_that_no_encoding_has_are_refused(setup: Setup) -> None:
    """Bytes that are no UTF-8, plain or escaped, in paths and queries, are a refusal and no failure."""

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


async def test_who_does_not_know_the_token_reads_nothing(setup: Setup, tmp_path: Path) -> None:
    """401 without and with a wrong token; a replaced token counts at once; without a file nobody reads."""

    token = tmp_path / "token"
    token.write_text("one\n")

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
