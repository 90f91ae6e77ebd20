"""From places in a buffer to Arrow arrays, without a loop in Python over the records.

A binary array of Arrow is one buffer and ascending offsets. Pieces of a buffer and the gaps between them
are such an array already; taking every second element copies the pieces at the speed of memory.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from brokerset_formats.hosts import HOST_SIZE_V4, HOST_SIZE_V6, Host
from brokerset_spark.kernels import KERNELS
from brokerset_spark.kernels.contract import Bytes, Int32s, Int64s

_TABLE_MAX: Final = 4 << 20
"""Places of a table in which repeated names are counted; a larger one costs more than sorting."""

_HEX: Final = np.frombuffer("".join(f"{number:02X}" for number in range(256)).encode(), np.uint16)
"""The two digits of each byte, in one number."""


def gather(data: Bytes, starts: Int64s, sizes: Int32s) -> pa.BinaryArray:
    """These pieces of the buffer, copied; null where a start is -1.

    Pieces must ascend and not overlap, as the fields of records in a row do; the buffer has less than 2 GiB.
    """
    count = len(starts)
    if count == 0:
        return pa.array([], pa.binary())
    there = starts >= 0
    whole = bool(there.all())
    ends = starts + sizes
    if not whole:  # a piece that is not there is an empty one behind the piece before
        ends = np.maximum.accumulate(np.where(there, ends, 0))
        starts = np.where(there, starts, ends)
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    everything = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    wanted = np.arange(0, 2 * count, 2, dtype=np.int32)
    return everything.take(pa.array(wanted) if whole else pa.array(wanted, mask=~there))


def as_text(array: pa.BinaryArray) -> pa.StringArray:
    """The same bytes as text; what is no UTF-8 becomes U+FFFD, as in Java."""
    text = array.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array(
            [None if each is None else each.decode(errors="replace") for each in array.to_pylist()],
            pa.string(),
        )
    return text


def matrix(data: Bytes, starts: Int64s, size: int) -> NDArray[np.uint8]:
    """The `size` bytes from each start on, a row for each."""
    if len(starts) == 0:
        return np.empty((0, size), np.uint8)
    view = np.ndarray((len(data) - size + 1,), np.dtype((np.void, size)), data, strides=(1,))
    return np.ascontiguousarray(view[starts]).view(np.uint8).reshape(len(starts), size)


def big_endian(numbers: Int64s) -> NDArray[np.uint8]:
    """Eight bytes for each number."""
    return numbers.astype(">i8").view(np.uint8).reshape(len(numbers), 8)


def hex_text(rows: NDArray[np.uint8]) -> pa.StringArray:
    """Each row of bytes in upper-case hexadecimal digits."""
    count, width = rows.shape
    digits = _HEX[rows].reshape(-1).view(np.uint8)
    offsets = np.arange(count + 1, dtype=np.int32) * (2 * width)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(digits)])


def by_width(wide: NDArray[np.bool_], narrow_rows: pa.Array, wide_rows: pa.Array) -> pa.Array:
    """One array of both kinds, in the order of `wide`."""
    if not len(wide_rows):
        return narrow_rows
    order = np.empty(len(wide), np.int64)
    order[~wide] = np.arange(len(narrow_rows))
    order[wide] = len(narrow_rows) + np.arange(len(wide_rows))
    return pa.concat_arrays([narrow_rows, wide_rows]).take(pa.array(order))


def hosts(data: Bytes, positions: Int64s, wide: NDArray[np.bool_]) -> pa.StringArray:
    """`ip:port` of the hosts at these positions; 20 bytes where `wide`, else 8."""
    return by_width(
        wide,
        _host_texts(matrix(data, positions[~wide], HOST_SIZE_V4)),
        _host_texts(matrix(data, positions[wide], HOST_SIZE_V6)),
    )


def _host_texts(rows: NDArray[np.uint8]) -> pa.StringArray:
    """Few hosts write many records: each is turned into text once."""
    count, width = rows.shape
    raw = pa.Array.from_buffers(pa.binary(width), count, [None, pa.py_buffer(np.ascontiguousarray(rows))])
    coded = raw.dictionary_encode()
    texts = [Host.decode(each, 0, v6=width == HOST_SIZE_V6).text for each in coded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(coded.indices)


def property_maps(properties: pa.BinaryArray, type_: pa.MapType) -> pa.MapArray:
    """Maps from the properties of records (`name 0x01 value 0x02`, repeated).

    The rules are those of `brokerset_formats.properties.decode_properties`: pairs without name or value are
    left out, of a repeated name the last value counts. Pairs keep the order of the record.
    """
    count = len(properties)
    buffers = properties.buffers()
    bounds = np.frombuffer(buffers[1], np.int32, count + 1, properties.offset * 4).astype(np.int64)
    if count == 0 or bounds[-1] == bounds[0]:
        offsets = pa.array(np.zeros(count + 1, np.int32))
        empty = pa.array([], pa.string())
        return pa.MapArray.from_arrays(offsets, empty, empty, type=type_)
    flat = np.frombuffer(buffers[2], np.uint8, int(bounds[-1]))
    pairs = KERNELS.split_properties(flat, bounds[:-1], np.diff(bounds).astype(np.int32))
    names = _cut(pairs.names, pairs.name_offsets)
    values = _cut(pairs.values, pairs.value_offsets)
    offsets = pairs.offsets
    if pairs.repeated:
        owner = np.repeat(np.arange(count), np.diff(offsets))
        kept = _last_of_each(owner, names)
        if kept is not None:
            names, values = names.take(pa.array(kept)), values.take(pa.array(kept))
            offsets = np.searchsorted(kept, offsets).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(offsets), as_text(names), as_text(values), type=type_)


def _cut(flat: Bytes, offsets: Int32s) -> pa.BinaryArray:
    """The pieces between these offsets, without a copy."""
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(flat)]
    )


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
    limit = 2**63 // 1000 - 1
    wrong = (milliseconds > limit) | (milliseconds < -limit)
    micros = np.where(wrong, 0, milliseconds) * 1000
    return pa.array(micros, pa.int64(), mask=wrong if wrong.any() else None).view(type_)


def is_one_of(array: pa.Array, values: list[str]) -> NDArray[np.bool_]:
    """Whether each text is one of these."""
    found: NDArray[np.bool_] = pc.is_in(array, value_set=pa.array(values, array.type)).to_numpy(
        zero_copy_only=False
    )
    return found
