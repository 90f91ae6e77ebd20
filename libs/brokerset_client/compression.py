"""Message bodies on the wire: compressed by the producer, stored as they are, opened by the consumer.

Sources: `DefaultMQProducerImpl.tryToCompressMessage`, `CompressionType`.
"""

from __future__ import annotations

import zlib

from brokerset_client.errors import MessageUnreadable
from brokerset_formats.records import SysFlag

COMPRESS_FROM_BYTES = 4096
"""Smaller bodies are sent as they are (`compressMsgBodyOverHowmuch`)."""

LEVEL = 5
"""Java's default level."""

BODY_SIZE_MAX = 64 * 1024 * 1024
"""Largest body that is opened: bounds what a small hostile record can make of this process's memory."""

_NAMES = {SysFlag.COMPRESSION_LZ4: "LZ4", SysFlag.COMPRESSION_ZSTD: "Zstandard"}


def compress(body: bytes, from_bytes: int = COMPRESS_FROM_BYTES) -> tuple[bytes, int]:
    """What to send for `body`, and the bits that this adds to the sysFlag."""
    if len(body) < from_bytes:
        return body, 0
    return zlib.compress(body, LEVEL), SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The body as the producer's application gave it.

    Raises `MessageUnreadable` for a compression that this client cannot open, for damaged bytes, and for a
    body of more than `BODY_SIZE_MAX` bytes.
    """
    if not sys_flag & SysFlag.COMPRESSED:
        return body
    kind = sys_flag & SysFlag.COMPRESSION_MASK
    if kind not in (0, SysFlag.COMPRESSION_ZLIB):
        raise MessageUnreadable(
            f"body is compressed with {_NAMES.get(kind, hex(kind))}, this client opens zlib only: "
            "read `stored_body` and open it yourself, or let the producer use zlib"
        )
    opener = zlib.decompressobj()
    try:
        opened = opener.decompress(body, BODY_SIZE_MAX)
    except zlib.error as error:
        raise MessageUnreadable(f"compressed body of {len(body)} bytes is damaged: {error}") from error
    if opener.unconsumed_tail:
        raise MessageUnreadable(f"compressed body of {len(body)} bytes opens to more than {BODY_SIZE_MAX}")
    if not opener.eof:
        raise MessageUnreadable(f"compressed body of {len(body)} bytes ends too early")
    return opened
