"""Opening bodies that producers compressed; brokers store them as they came.

Source: `CompressionType`, `CompressorFactory` of Java: zlib, LZ4 frames, Zstandard.
"""

from __future__ import annotations

import zlib
from typing import Final

import pyarrow as pa

from brokerset_formats.records import SysFlag

BODY_SIZE_MAX: Final = 64 << 20
"""Largest body that is opened: bounds what a small damaged record can make of a task's memory."""

_PIECE: Final = 1 << 20
_CODECS: Final = {SysFlag.COMPRESSION_LZ4: "lz4", SysFlag.COMPRESSION_ZSTD: "zstd"}


def decompress(body: pa.Buffer | bytes, sys_flag: int) -> bytes:
    """The body as the producer's application gave it; ValueError if it cannot be opened."""
    kind = sys_flag & SysFlag.COMPRESSION_MASK
    if kind in (0, SysFlag.COMPRESSION_ZLIB):
        return _zlib(memoryview(body))
    codec = _CODECS.get(kind)
    if codec is None:
        raise ValueError(f"unknown compression {kind:#x} in sysFlag {sys_flag:#x}")
    if not pa.Codec.is_available(codec):
        raise ValueError(f"compressed with {codec}, which this build of pyarrow cannot open")
    return _stream(pa.py_buffer(body), codec)


def _zlib(body: memoryview) -> bytes:
    opener = zlib.decompressobj()
    try:
        opened = opener.decompress(body, BODY_SIZE_MAX)
    except zlib.error as error:
        raise ValueError(f"{len(body)} bytes of zlib are damaged: {error}") from error
    if opener.unconsumed_tail:
        raise ValueError(f"{len(body)} bytes of zlib open to more than {BODY_SIZE_MAX}")
    if not opener.eof:
        raise ValueError(f"{len(body)} bytes of zlib end too early")
    return opened


def _stream(body: pa.Buffer, codec: str) -> bytes:
    parts, total = [], 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            while piece := stream.read(_PIECE):
                parts.append(piece)
                total += len(piece)
                if total > BODY_SIZE_MAX:
                    raise ValueError(f"{body.size} bytes of {codec} open to more than {BODY_SIZE_MAX}")
    except OSError as error:
        raise ValueError(f"{body.size} bytes of {codec} are damaged: {error}") from error
    return b"".join(parts)
