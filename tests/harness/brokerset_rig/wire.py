"""A small blocking remoting client that shares no code with the product, so that it can judge it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import ssl
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

SEND_V2, PULL, QUERY_MESSAGE, MAX_OFFSET, MIN_OFFSET, CREATE_TOPIC, DELETE_TOPIC = (
    310,
    11,
    12,
    30,
    31,
    17,
    215,
)
QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET, GET_BROKER_CONSUME_STATS = 14, 15, 317
MAGIC_V1 = 0xDAA320A7


@dataclass(frozen=True, slots=True)
class Access:
    """How a server is reached that demands signed requests, or TLS as well."""

    user: str
    password: str
    authority: Path | None = None
    """PEM file of who signed the server's certificate; without one the connection is plain."""

    def sign(self, ext: dict[str, str], body: bytes) -> dict[str, str]:
        """The fields of a request, and those that say who signs it."""
        ext = {**ext, "AccessKey": self.user}
        signed = "".join(ext[name] for name in sorted(ext)).encode() + body
        digest = hmac.digest(self.password.encode(), signed, hashlib.sha1)
        return {**ext, "Signature": base64.b64encode(digest).decode()}


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    opaque: int
    ext: dict[str, str]
    remark: str | None
    body: bytes


@dataclass(frozen=True, slots=True)
class Stored:
    """One record as it lies in the log."""

    queue_id: int
    queue_offset: int
    offset: int
    body: bytes
    crc_ok: bool
    properties: str


def frame(code: int, ext: dict[str, str], body: bytes = b"", opaque: int = 1, flag: int = 0) -> bytes:
    header = json.dumps(
        {"code": code, "language": "JAVA", "version": 479, "opaque": opaque, "flag": flag, "extFields": ext,
         "serializeTypeCurrentRPC": "JSON"}
    ).encode()  # fmt: skip
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def send_ext(topic: str, queue_id: int, properties: str, *, batch: bool = False) -> dict[str, str]:
    return {"a": "faults", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1700000000000",
            "h": "0", "i": properties, "j": "0", "k": "false", "l": "0", "m": "true" if batch else "false"}  # fmt: skip


def pull_ext(
    topic: str, queue_id: int, queue_offset: int, *, count: int = 32, suspend_ms: int = 0
) -> dict[str, str]:
    return {"consumerGroup": "faults", "topic": topic, "queueId": str(queue_id), "queueOffset": str(queue_offset),
            "maxMsgNums": str(count), "sysFlag": "6" if suspend_ms else "4", "commitOffset": "0",
            "suspendTimeoutMillis": str(suspend_ms), "subscription": "*", "subVersion": "0", "expressionType": "TAG"}  # fmt: skip


def records(data: bytes) -> Iterator[Stored]:
    """Records with IPv4 hosts, as a pull answer has them, one after the other."""
    position = 0
    while position < len(data):
        size, magic, crc, queue_id, _flag, queue_offset, offset, sys_flag = struct.unpack_from(
            ">IIIiiqqi", data, position
        )
        if magic != MAGIC_V1:
            raise ValueError(f"no record at {position}: magic {magic:08x}")
        at = position + 84 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
        (length,) = struct.unpack_from(">i", data, at)
        body = data[at + 4 : at + 4 + length]
        at += 4 + length
        at += 1 + data[at]
        (properties_length,) = struct.unpack_from(">h", data, at)
        properties = data[at + 2 : at + 2 + properties_length].decode()
        yield Stored(queue_id, queue_offset, offset, body, zlib.crc32(body) & 0x7FFFFFFF == crc, properties)
        position += size


def begins_with_record(path: Path) -> bool:
    """Whether a commit log file has been written to."""
    with path.open("rb") as stream:
        return stream.read(8)[4:] == struct.pack(">I", MAGIC_V1)


class Client:
    """One connection, one request at a time, or pipelined by `write` and `read`."""

    def __init__(self, port: int, timeout: float = 10.0, access: Access | None = None) -> None:
        self._timeout = timeout
        self._access = access
        self._opaque = 0
        self.socket = self._connected(port)
        self._buffer = b""

    def connect(self, port: int) -> None:
        """Go on at another server."""
        self.socket.close()
        self.socket, self._buffer = self._connected(port), b""

    def _connected(self, port: int) -> socket.socket:
        found = socket.create_connection(("127.0.0.1", port), self._timeout)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._access is None or self._access.authority is None:
            return found
        context = ssl.create_default_context(cafile=self._access.authority)
        return context.wrap_socket(found, server_hostname="127.0.0.1")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def call(self, code: int, ext: dict[str, str], body: bytes = b"") -> Answer:
        self._opaque += 1
        if self._access is not None:
            ext = self._access.sign(ext, body)
        self.socket.sendall(frame(code, ext, body, self._opaque))
        while True:
            answer = self.read()
            if answer.opaque == self._opaque:
                return answer

    def read(self) -> Answer:
        """The next response; requests of the server are passed over. Raises `ConnectionError` at the end."""
        while True:
            data = self._take(4)
            data = self._take(int.from_bytes(data, "big"))
            size = int.from_bytes(data[:4], "big") & 0xFFFFFF
            header = json.loads(data[4 : 4 + size])
            if header["flag"] & 1:
                return Answer(
                    header["code"],
                    header["opaque"],
                    header.get("extFields") or {},
                    header.get("remark"),
                    data[4 + size :],
                )

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            chunk = self.socket.recv(1 << 18)
            if not chunk:
                raise ConnectionError("the server closed the connection")
            self._buffer += chunk
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data
