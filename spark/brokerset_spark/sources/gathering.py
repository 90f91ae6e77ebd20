"""From places in a buffer to Arrow arrays, without a loop in Python over the records.

An array of texts is one buffer of bytes and ascending offsets, which is what the kernels give: Arrow takes
both without a copy. Brokers store bodies as they came; those that producers compressed are opened here
(source: `CompressionType`, `CompressorFactory` of Java: zlib, LZ4 frames, Zstandard).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from brokerset_formats.hosts import HOST_SIZE_V4, HOST_SIZE_V6, Host
from brokerset_formats.records import OFFSET_POSITION, SysFlag
from brokerset_spark.kernels import KERNELS, Laid, Texts
from brokerset_spark.kernels.contract import Bools, Bytes, Int32s, Int64s

_TABLE_MAX: Final = 4 << 20
"""Places of a table in which repeated names are counted; a larger one costs more than sorting."""

BODY_SIZE_MAX: Final = 64 << 20
"""Largest body that is opened: bounds what a small damaged record can make of a task's memory."""

_PIECE: Final = 1 << 20
_CODECS: Final = {SysFlag.COMPRESSION_LZ4: "lz4", SysFlag.COMPRESSION_ZSTD: "zstd"}
_OFFSET_SIZE: Final = 8
_TIME_MAX: Final = 2**63 // 1000 - 1
"""Milliseconds that Spark, which counts microseconds, can hold."""


def binary(laid: Laid, there: Bools | None = None) -> pa.BinaryArray:
    """The texts as an array; null where they are not `there`."""
    nulls = None
    if there is not None and not bool(there.all()):
        nulls = pa.py_buffer(np.packbits(there, bitorder="little"))
    buffers = [nulls, pa.py_buffer(laid.offsets), pa.py_buffer(laid.flat)]
    return pa.Array.from_buffers(pa.binary(), len(laid.offsets) - 1, buffers)


def gather(data: Bytes, texts: Texts) -> pa.BinaryArray:
    """These pieces of the buffer, copied; null where a start is -1. ValueError for 2 GiB of them."""
    return binary(KERNELS.copy_texts(data, texts), texts.starts >= 0)


def as_text(array: pa.BinaryArray) -> pa.StringArray:
    """The same bytes as text; what is no UTF-8 becomes U+FFFD, as in Java."""
    text = array.view(pa.string())
    flat = np.frombuffer(array.buffers()[2] or b"", np.uint8)
    if len(flat) == 0 or int(flat.max()) < 0x80:
        return text
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array(
            [None if each is None else each.decode(errors="replace") for each in array.to_pylist()],
            pa.string(),
        )
    return text


def repeated(values: Sequence[str], codes: Int32s) -> pa.StringArray:
    """For each code the value with this number."""
    return pa.array(values, pa.string()).take(pa.array(codes))


def host_texts(positions: Int64s, wide: NDArray[np.bool_]) -> Texts:
    """Address and port at these positions; 20 bytes where `wide`, else 8."""
    return Texts(positions, np.where(wide, np.int32(HOST_SIZE_V6), np.int32(HOST_SIZE_V4)))


def hosts(data: Bytes, texts: Texts) -> pa.StringArray:
    """`ip:port` of hosts. Few of them write many records: each is turned into text once."""
    codes, firsts = KERNELS.number_texts(data, texts)
    names = []
    for start, size in zip(texts.starts[firsts].tolist(), texts.sizes[firsts].tolist(), strict=True):
        raw = data[start : start + size].tobytes()
        names.append(Host.decode(raw, 0, v6=size == HOST_SIZE_V6).text)
    return repeated(names, codes)


def offset_ids(data: Bytes, starts: Int64s, stored: Texts) -> pa.StringArray:
    """`offsetMsgId` of records: storing host and physicalOffset as digits."""
    places = Texts(starts + OFFSET_POSITION, np.full(len(starts), _OFFSET_SIZE, np.int32))
    return binary(KERNELS.hex_texts(data, stored, places)).view(pa.string())


def property_maps(data: Bytes, texts: Texts, type_: pa.MapType) -> pa.MapArray:
    """Maps from the properties of records (`name 0x01 value 0x02`, repeated).

    The rules are those of `brokerset_formats.properties.decode_properties`: pairs without name or value are
    left out, of a repeated name the last value counts. Pairs keep the order of the record.
    """
    count = len(texts.starts)
    pairs = KERNELS.split_properties(data, texts.starts, texts.sizes)
    if len(pairs.name_offsets) == 1:
        offsets = pa.array(np.zeros(count + 1, np.int32))
        empty = pa.array([], pa.string())
        return pa.MapArray.from_arrays(offsets, empty, empty, type=type_)
    names = binary(Laid(pairs.names, pairs.name_offsets))
    values = binary(Laid(pairs.values, pairs.value_offsets))
    offsets = pairs.offsets
    if pairs.repeated:
        owner = np.repeat(np.arange(count), np.diff(offsets))
        kept = _last_of_each(owner, names)
        if kept is not None:
            names, values = names.take(pa.array(kept)), values.take(pa.array(kept))
            offsets = np.searchsorted(kept, offsets).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(offsets), as_text(names), as_text(values), type=type_)


def _last_of_each(owner: Int64s, names: pa.BinaryArray) -> Int64s | None:
    """Numbers of the pairs that count, in order; None if all do, which is the rule."""
    coded = names.dictionary_encode()
    kinds = len(coded.dictionary)
    keys = owner * kinds + coded.indices.to_numpy(zero_copy_only=False)
    if len(keys) and kinds * int(owner[-1] + 1) <= _TABLE_MAX and np.bincount(keys).max() == 1:
        return None
    backwards = keys[::-1]
    unique, first = np.unique(backwards, return_index=True)
    if len(unique) == len(keys):
        return None
    return np.sort(len(keys) - 1 - first)


def timestamps(milliseconds: Int64s, type_: pa.DataType) -> pa.Array:
    """Microseconds for Spark; null for times that it cannot hold."""
    if len(milliseconds) == 0 or (milliseconds.max() <= _TIME_MAX and milliseconds.min() >= -_TIME_MAX):
        return pa.array(milliseconds * 1000, pa.int64()).view(type_)
    held = holds_time(milliseconds)
    return pa.array(np.where(held, milliseconds, 0) * 1000, pa.int64(), mask=~held).view(type_)


def holds_time(milliseconds: Int64s) -> Bools:
    """Which times Spark can hold."""
    found: Bools = (milliseconds <= _TIME_MAX) & (milliseconds >= -_TIME_MAX)
    return found


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
