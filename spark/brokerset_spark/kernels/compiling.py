"""What compiled loops are made of: a typed face for numba, big-endian loads and stores, CRC, copies.

ImportError where numba is missing, switched off (`NUMBA_DISABLE_JIT`), or the processor is big-endian.
Nothing here checks an address: whoever calls has compared every length with what there is.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from brokerset_spark.kernels.contract import Bytes, Int32s, Int64s

if cast("Any", numba.config).DISABLE_JIT:
    raise ImportError("compiled kernels need numba's compiler, and NUMBA_DISABLE_JIT is set")
if sys.byteorder != "little":
    raise ImportError("compiled kernels are for little-endian processors")

# What loops write has names of its own: numba must know it.
OutBytes: TypeAlias = Bytes
OutInt64s: TypeAlias = Int64s
OutInt32s: TypeAlias = Int32s
TableInt64s: TypeAlias = Int64s
TableInt32s: TypeAlias = Int32s

_TYPES: Final[dict[str, Any]] = {
    "int": types.int64,
    "bool": types.boolean,
    "None": types.void,
    "tuple[int, int]": cast("Any", types).UniTuple(types.int64, 2),
    "tuple[int, int, int]": cast("Any", types).UniTuple(types.int64, 3),
    "Bytes": types.Array(types.uint8, 1, "C", readonly=True),
    "Int64s": types.Array(types.int64, 1, "C", readonly=True),
    "Int32s": types.Array(types.int32, 1, "C", readonly=True),
    "Bools": types.Array(types.boolean, 1, "C"),
    "OutBytes": types.Array(types.uint8, 1, "C"),
    "OutInt64s": types.Array(types.int64, 1, "C"),
    "OutInt32s": types.Array(types.int32, 1, "C"),
    "TableInt64s": types.Array(types.int64, 2, "C"),
    "TableInt32s": types.Array(types.int32, 2, "C"),
}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Compile at once for the annotated types, or load what an earlier process compiled.

    Where no cache folder can be written (see `NUMBA_CACHE_DIR`), each process compiles for itself.
    """
    found = {name: _TYPES[annotation] for name, annotation in function.__annotations__.items()}
    signature = found.pop("return")(*found.values())
    try:
        return cast("_Function", numba.njit(signature, cache=True, nogil=True, error_model="numpy")(function))
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        return cast("_Function", numba.njit(signature, nogil=True, error_model="numpy")(function))


_C_FUNCTIONS: Final[list[Any]] = []


def c_function(signature: Any, function: Callable[..., Any]) -> int:
    """Address of a function compiled for callers by pointer; it stays valid until the process ends."""
    try:
        made = numba.cfunc(signature, cache=True)(function)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        made = numba.cfunc(signature)(function)
    _C_FUNCTIONS.append(made)
    return made.address or 0


def _loader(bits: int) -> Callable[[int], int]:
    """A function from an address to the signed big-endian number there (of 8 bits: unsigned)."""

    def load(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            integer = ir.IntType(bits)
            value = builder.load(builder.inttoptr(values[0], integer.as_pointer()))
            value.align = 1
            if bits == 8:
                return builder.zext(value, ir.IntType(64))
            value = builder.bswap(value)
            return value if bits == 64 else builder.sext(value, ir.IntType(64))

        return types.int64(types.int64), generate

    return cast("Callable[[int], int]", intrinsic(load))


def _storer(bits: int) -> Callable[[int, int], None]:
    """A function that writes the low bits of a number to an address, big-endian."""

    def store(typing: Any, address: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            integer = ir.IntType(bits)
            value = values[1] if bits == 64 else builder.trunc(values[1], integer)
            place = builder.inttoptr(values[0], integer.as_pointer())
            builder.store(builder.bswap(value), place).align = 1
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return cast("Callable[[int, int], None]", intrinsic(store))


def _addresser() -> Callable[[Any], int]:
    """Not `array.ctypes.data`, which is unsigned: signed and unsigned together make numba count in floats."""

    def address_of(typing: Any, array: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            data = context.make_array(array)(context, builder, values[0]).data
            return builder.ptrtoint(data, ir.IntType(64))

        return types.int64(array), generate

    return cast("Callable[[Any], int]", intrinsic(address_of))


address_of: Final = _addresser()
"""Address of the first byte of an array."""

load8: Final = _loader(8)
load16: Final = _loader(16)
load32: Final = _loader(32)
load64: Final = _loader(64)
store32: Final = _storer(32)
store64: Final = _storer(64)


def _copier() -> Callable[[int, int, int], None]:
    def copy(typing: Any, target: Any, source: Any, count: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            pointer, integer = ir.IntType(8).as_pointer(), ir.IntType(64)
            kind = ir.FunctionType(ir.VoidType(), [pointer, pointer, integer, ir.IntType(1)])
            memcpy = builder.module.globals.get("llvm.memcpy.p0.p0.i64") or ir.Function(
                builder.module, kind, "llvm.memcpy.p0.p0.i64"
            )
            places = [builder.inttoptr(each, pointer) for each in values[:2]]
            builder.call(memcpy, [*places, values[2], ir.Constant(ir.IntType(1), 0)])
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), generate

    return cast("Callable[[int, int, int], None]", intrinsic(copy))


copy_bytes: Final = _copier()
"""`memcpy` of the C library, 4 times as fast as a slice assignment in numba: target, source, count."""


def _crc_caller() -> Callable[[int, int, int], int]:
    """A call through a pointer, so that code in numba's cache does not depend on where a library lies."""

    def call(typing: Any, function: Any, address: Any, count: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            integer, long = ir.IntType(32), ir.IntType(64)
            kind = ir.FunctionType(integer, [integer, long, long])
            pointer = builder.inttoptr(values[0], kind.as_pointer())
            crc = builder.call(pointer, [ir.Constant(integer, 0), values[1], values[2]])
            return builder.and_(builder.zext(crc, long), ir.Constant(long, 0x7FFFFFFF))

        return types.int64(types.int64, types.int64, types.int64), generate

    return cast("Callable[[int, int, int], int]", intrinsic(call))


crc31_at: Final = _crc_caller()
"""CRC-32 & 0x7FFFFFFF: address of a function as `isal_crc32` gives it, address of the data, count."""

_CHECK: Final = b"123456789"
_CHECK_CRC: Final = 0xCBF43926


def isal_crc32() -> int:
    """Address of `uint32 crc(uint32 seed, pointer, uint64 count)` of ISA-L inside the isal wheel, or 0.

    Some 10 GB/s, but no documented interface of the wheel: it is taken only if it is there and right.
    """
    try:
        from isal import isal_zlib

        function = ctypes.CDLL(isal_zlib.__file__).crc32_gzip_refl
    except (ImportError, OSError, AttributeError):
        return 0
    function.restype, function.argtypes = ctypes.c_uint32, (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64)
    if function(0, _CHECK, len(_CHECK)) != _CHECK_CRC:
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0
