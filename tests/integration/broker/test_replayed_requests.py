"""What becomes of signed requests that somebody on the way sends again or alters, without TLS and with it."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from brokerset_acl.signatures import ACCESS_KEY, SIGNATURE, Credentials
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command, encode
from brokerset_rig.certificates import Certificates
from brokerset_rig.local_servers import HOST, Client, bodies, running_broker
from brokerset_runtime.remoting import connect
from brokerset_runtime.tls import Tls

ROOT = Credentials("root", "root-key")
SETTINGS: dict[str, Any] = {
    "authentication_enabled": True,
    "init_authentication_user": json.dumps({"username": "root", "password": "root-key"}),
}
SEED = 73
ALTERED = 400


def signed_send(body: bytes) -> Command:
    fields = {"a": "pg", "b": "t", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000",
              "h": "0", "i": "", "j": "0", "k": "false", "m": "false"}  # fmt: skip
    command = Command(310, fields, body)
    ROOT.sign(command)
    return command


async def test_without_tls_a_signed_request_is_served_again_also_as_another_kind(tmp_path: Path) -> None:
    """As docs/security.md says: a signature has neither a time in it nor the code."""
    async with running_broker(tmp_path, **SETTINGS) as broker:
        owner = await connect(f"{HOST}:{broker.port}", sign=ROOT.sign)
        thief = await connect(f"{HOST}:{broker.port}")
        await Client(owner).create_topic("t")
        send = signed_send(b"once")
        asked = Command(RequestCode.GET_MIN_OFFSET, {"topic": "t", "queueId": "0"})
        ROOT.sign(asked)

        assert (await owner.call(send, 20)).code == 0
        assert (await thief.call(send, 20)).code == 0
        other = await thief.call(Command(RequestCode.GET_MAX_OFFSET, asked.ext), 20)

        assert (other.code, other.ext["offset"]) == (0, "2")
        assert bodies(await Client(owner).pull("t", 0)) == [b"once", b"once"]
        owner.abort()
        thief.abort()


async def test_with_tls_recorded_bytes_are_served_neither_again_nor_altered(tmp_path: Path) -> None:
    """Somebody between the two sees all bytes, sends them again on a connection of its own, or flips one."""
    file = Certificates(tmp_path / "certificates").config()
    async with running_broker(tmp_path / "broker", **SETTINGS, tls_config_file=file) as broker:
        recorded: list[bytes] = []
        alters = [False]

        async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            answers, requests = await asyncio.open_connection(HOST, broker.port)

            async def back() -> None:
                while data := await answers.read(65536):
                    writer.write(data)
                writer.close()

            task = asyncio.create_task(back())
            while data := await reader.read(65536):
                recorded.append(data)
                requests.write(data[:-1] + bytes([data[-1] ^ 1]) if alters[0] else data)
            requests.close()
            await task

        relay = await asyncio.start_server(between, HOST, 0)
        port = relay.sockets[0].getsockname()[1]
        owner = await connect(f"{HOST}:{port}", sign=ROOT.sign, tls=Tls(file))
        await Client(owner).create_topic("t")
        assert (await owner.call(signed_send(b"once"), 20)).code == 0

        replies, thief = await asyncio.open_connection(HOST, broker.port)
        with suppress(ConnectionError):
            for data in list(recorded):
                thief.write(data)
                await thief.drain()
            async with asyncio.timeout(20):
                while await replies.read(65536):
                    pass  # the server's part of a handshake, then an alert and the end
        thief.close()
        alters[0] = True
        with suppress(ConnectionError):
            await owner.call(signed_send(b"altered"), 20)
            raise AssertionError("an altered request was answered")

        reader = await connect(f"{HOST}:{broker.port}", sign=ROOT.sign, tls=Tls(file))
        assert bodies(await Client(reader).pull("t", 0)) == [b"once"]
        reader.abort()
        owner.abort()
        relay.close()


def altered(source: random.Random) -> bytes:
    """A frame of a signed send that says something else than what was signed, or is signed otherwise."""
    command = signed_send(b"altered")
    fields = list(command.ext.items())
    signature = command.ext[SIGNATURE]
    match source.randrange(7):
        case 0:
            wrong = source.choice(
                ["", "=", signature[:-2], signature + signature, "\u00e9" * 28, "x" * 100_000]
            )
            fields = [(name, wrong if name == SIGNATURE else value) for name, value in fields]
        case 1:
            left_out = source.choice([ACCESS_KEY, SIGNATURE])
            fields = [item for item in fields if item[0] != left_out]
        case 2:
            key = source.choice(["", "Root", "root\0", "root ", "nobody", "r" * 1_000_000])
            fields = [(name, key if name == ACCESS_KEY else value) for name, value in fields]
        case 3:
            fields.append(("e", "3"))  # the last one of a name counts
        case 4:
            fields.append((f"more{source.randrange(9)}", "1"))
        case 5:
            fields.append((SIGNATURE, "A" * 28))
        case 6:
            command.body += b"!"
    text = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in fields)
    header = (
        f'{{"code":310,"language":"JAVA","version":479,"opaque":7,"flag":0,"extFields":{{{text}}}}}'.encode()
    )
    if source.random() < 0.1:
        header = header.replace(b'"root"', b'"ro\xff\xfet"')
    return struct.pack(">ii", 4 + len(header) + len(command.body), len(header)) + header + command.body


async def test_nothing_is_served_that_is_not_what_was_signed(tmp_path: Path) -> None:
    """400 drawn changes: each is refused or ends its connection, and a good client is served after each."""
    source = random.Random(SEED)
    async with running_broker(tmp_path, **SETTINGS) as broker:
        owner = await connect(f"{HOST}:{broker.port}", sign=ROOT.sign)
        await Client(owner).create_topic("t")
        refused = 0
        for _ in range(ALTERED):
            replies, writer = await asyncio.open_connection(HOST, broker.port)
            writer.write(altered(source))
            async with asyncio.timeout(20):
                with suppress(asyncio.IncompleteReadError, ConnectionError):
                    size = int.from_bytes(await replies.readexactly(4), "big")
                    answer = await replies.readexactly(size)
                    code = json.loads(answer[4 : 4 + int.from_bytes(answer[1:4], "big")])["code"]
                    assert code != 0, answer
                    refused += code == ResponseCode.NO_PERMISSION
            writer.close()
            most = await Client(owner).call(RequestCode.GET_MAX_OFFSET, topic="t", queueId=0)
            assert (most.code, most.ext["offset"]) == (0, "0")
        assert refused > ALTERED // 2
        replies, writer = await asyncio.open_connection(HOST, broker.port)
        writer.write(encode(signed_send(b"good")))
        await replies.readexactly(4)
        assert bodies(await Client(owner).pull("t", 0)) == [b"good"]
        writer.close()
        owner.abort()
