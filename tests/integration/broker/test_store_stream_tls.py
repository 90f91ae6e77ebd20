"""The read-only stream of a broker's store by TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import closing
from pathlib import Path

import pytest
import structlog

from brokerset_rig.certificates import Certificates
from brokerset_rig.local_servers import Setup
from brokerset_rig.store_streaming import SEGMENT, streaming
from brokerset_rig.waiting import until
from brokerset_runtime.tls import ENVIRONMENT_VARIABLE
from brokerset_spark.stores.folder import LocalFolder, read_all
from brokerset_spark.stores.http_folder import HttpFolder, StreamFailed


async def test_a_store_reads_the_same_by_tls_as_in_its_folder(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole files and ranges; the reader checks who answers, and without TLS it gets nothing."""
    certificates = Certificates(tmp_path / "certificates")
    file = certificates.config()
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(file))

    def compare(url: str) -> None:
        with (
            closing(HttpFolder(url.replace("http://", "https://"))) as far,
            closing(LocalFolder(setup.folder)) as near,
        ):
            for facts in far.files("commitlog"):
                data = read_all(near, facts.path)
                assert data is not None
                piece = bytearray(SEGMENT)
                count = far.read_into(facts.path, 1_000, memoryview(piece))
                assert count > SEGMENT // 2 or facts.size < SEGMENT
                assert piece[:count] == data[1_000 : 1_000 + count]
        with closing(HttpFolder(url)) as plain, pytest.raises(StreamFailed):
            plain.state()

    async with streaming(setup, tls_config_file=file) as (_, url):
        await asyncio.to_thread(compare, url)


async def test_a_reader_follows_a_new_authority(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs read for hours: when a connection has ended, the next one trusts whom the files name now."""
    certificates = Certificates(tmp_path / "certificates")
    file = certificates.config()
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(file))

    async with streaming(setup, tls_config_file=file) as (broker, url):
        assert broker.tls is not None
        with closing(HttpFolder(url.replace("http://", "https://"))) as far:
            before = await asyncio.to_thread(far.state)
            certificates.renew_authority("next")
            certificates.issue("both")
            await asyncio.to_thread(broker.tls.refresh)
            far.close()

            assert await asyncio.to_thread(far.state) == before


async def test_a_reader_by_tls_that_takes_nothing_is_ended(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps neither memory nor its turn among readers."""
    monkeypatch.setattr("brokerset_broker.outside.store_stream.stream.STALL_SECONDS_MAX", 0.3)
    certificates = Certificates(tmp_path / "certificates")
    file = certificates.config()
    context = ssl.create_default_context(cafile=certificates.folder / "authority.pem")

    def reads_the_head(port: int) -> ssl.SSLSocket:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
        plain.connect(("127.0.0.1", port))
        secured = context.wrap_socket(plain, server_hostname="127.0.0.1")
        secured.sendall(f"GET /store/files/commitlog/{0:020d} HTTP/1.1\r\nHost: broker\r\n\r\n".encode())
        assert b"200 OK" in secured.recv(1_000)
        return secured

    with structlog.testing.capture_logs() as lines:
        async with streaming(
            setup, 2_000, tls_config_file=file, mapped_file_size_commit_log=16 << 20
        ) as found:
            with await asyncio.to_thread(reads_the_head, found[0].http_port):
                await until(lambda: any(line.get("reason") == "the peer takes nothing" for line in lines))
