"""Which kernels are used, and what the compiled ones stand on."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Callable

import numpy as np
import pytest

from brokerset_spark.kernels import Kernels, Stop, chosen, self_check

numba = pytest.importorskip("numba")

from brokerset_spark.kernels import compiled, compiling, table_crc  # noqa: E402  they need numba


def test_names() -> None:
    """A name is obeyed, none means the best that there is, and other names are refused."""
    assert chosen("pure").NAME == "pure"
    assert chosen("compiled").NAME == "compiled"
    assert chosen(None).NAME == chosen("").NAME == "compiled"
    with pytest.raises(ValueError, match="BROKERSET_KERNELS=fast: must be pure or compiled"):
        chosen("fast")


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("BROKERSET_KERNELS", "pure", "pure"),
        ("NUMBA_DISABLE_JIT", "1", "pure"),
        ("BROKERSET_KERNELS", "", "compiled"),
    ],
)
def test_environment(variable: str, value: str, name: str) -> None:
    """The environment decides where no name is given; without a compiler the pure ones are taken."""
    code = "from brokerset_spark.kernels import KERNELS, chosen; print(KERNELS.NAME, chosen(None).NAME)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, variable: value},
        capture_output=True,
        check=True,
        text=True,
    )

    assert done.stdout.split() == [name, name]


def test_kernels_are_loaded_when_they_are_used() -> None:
    """A process that only plans or waits does not pay for a compiler: numba is loaded by the first call."""
    code = (
        "import sys; import brokerset_spark.sources.messages as m; import brokerset_spark.jobs.verify.job;"
        "before = 'numba' in sys.modules; from brokerset_spark.kernels import KERNELS; KERNELS.crc31;"
        "print(before, 'numba' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "BROKERSET_KERNELS": ""},
        capture_output=True,
        check=True,
        text=True,
    )

    assert done.stdout.split() == ["False", "True"]


def test_warm() -> None:
    """`warm` runs every function, and compares."""
    self_check.warm()


def test_self_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that give something else are found out."""
    zeros = lambda _, data, texts: np.zeros(len(texts.starts), np.int32)  # noqa: E731
    monkeypatch.setattr(compiled.Compiled, "java_hashes", zeros)

    with pytest.raises(RuntimeError, match="the compiled kernels are wrong on this host"):
        self_check.check("compiled")


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
    data = self_check.example_log().copy()

    good = chosen("compiled").walk(data, 0, len(data), self_check.BASE, final=True, crc=True)
    data[int(good.starts[9]) + 130] ^= 1
    bad = chosen("compiled").walk(data, 0, len(data), self_check.BASE, final=True, crc=True)

    assert (len(good.starts), good.stop) == (20, Stop.RANGE_END)
    assert (
        bad.stop
        is Kernels().walk(data, 0, len(data), self_check.BASE, final=True, crc=True).stop
        is Stop.BAD_CRC
    )
    assert len(bad.starts) == 9


def test_wrong_isal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of ISA-L that computes something else is not taken."""
    monkeypatch.setattr(compiling, "_CHECK_CRC", 1)

    assert compiling.isal_crc32() == 0
