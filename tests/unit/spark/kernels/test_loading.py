"""When the kernels are loaded, and what they stand on."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Callable

import numba
import pytest

from brokerset_rig.both_kernels import COMPILED, PURE
from brokerset_rig.example_log import BASE, example_log
from brokerset_spark.kernels import Stop, compiled, compiling, table_crc


def test_kernels_are_loaded_when_they_are_used() -> None:
    """A process that only plans or waits does not pay for a compiler: numba is loaded by the first call."""
    code = (
        "import sys; import brokerset_spark.sources.messages as m; import brokerset_spark.jobs.verify.job;"
        "before = 'numba' in sys.modules; from brokerset_spark.kernels import KERNELS; KERNELS.walk;"
        "print(before, 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)

    assert done.stdout.split() == ["False", "True"]


def test_without_numba_the_extra_is_named() -> None:
    """Whoever lacks the compiler reads what to install; nothing slower runs in its place."""
    code = (
        "import sys; sys.modules['numba'] = None; from brokerset_spark.kernels import KERNELS; KERNELS.walk"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)

    assert done.returncode == 1
    assert (
        "ModuleNotFoundError: numba is missing, and jobs read records with it: install brokerset[spark]"
        in (done.stderr)
    )


def test_without_its_compiler_numba_is_of_no_use() -> None:
    """With `NUMBA_DISABLE_JIT` nothing runs, because the loops are written for the compiler."""
    code = "from brokerset_spark.kernels import KERNELS; KERNELS.walk"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=False, text=True
    )

    assert "ImportError: compiled kernels need numba's compiler, and NUMBA_DISABLE_JIT is set" in done.stderr


def test_no_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be written, functions are compiled without a cache."""
    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])

    @compiling.compiled
    def double(value: int) -> int:
        return value * 2

    assert double(21) == 42


CRC_TYPE = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64)


@pytest.mark.parametrize("address", [compiling.isal_crc32, table_crc.table_crc32])
def test_crc_functions(address: Callable[[], int]) -> None:
    """Both functions for CRCs agree with zlib on data of any length."""
    function = CRC_TYPE(address())
    data = random.Random(1).randbytes(5000)
    for size in [*range(300), 1000, 4096, 5000]:
        assert function(0, data[:size], size) == zlib.crc32(data[:size])
    assert function(zlib.crc32(data[:77]), data[77:], 4923) == zlib.crc32(data)


def test_without_isal(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tables instead of ISA-L the walk sees the same."""
    monkeypatch.setattr(compiled, "_CRC", table_crc.table_crc32())
    data = example_log().copy()

    good = COMPILED.walk(data, 0, len(data), BASE, final=True, crc=True)
    data[int(good.starts[9]) + 130] ^= 1
    bad = COMPILED.walk(data, 0, len(data), BASE, final=True, crc=True)

    assert (len(good.starts), good.stop) == (20, Stop.RANGE_END)
    assert bad.stop is PURE.walk(data, 0, len(data), BASE, final=True, crc=True).stop is Stop.BAD_CRC
    assert len(bad.starts) == 9


def test_wrong_isal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of ISA-L that computes something else is not taken."""
    monkeypatch.setattr(compiling, "_CHECK_CRC", 1)

    assert compiling.isal_crc32() == 0
