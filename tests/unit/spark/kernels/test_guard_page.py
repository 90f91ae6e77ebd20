"""Compiled kernels touch no byte outside their arrays: these end where memory that cannot be read begins."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import ctypes, mmap
import numpy as np
from brokerset_formats.dledger import LedgerEntry
from brokerset_rig.example_log import BASE, example_log
from brokerset_rig.both_kernels import COMPILED as compiled, PURE as pure
from brokerset_spark.kernels import Texts

PAGE = mmap.PAGESIZE
region = mmap.mmap(-1, 9 * PAGE)
everything = np.frombuffer(region, np.uint8)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mprotect(ctypes.c_void_p(everything.ctypes.data + 8 * PAGE), PAGE, 0) == 0
before = everything[: 8 * PAGE]

def at_the_end(data):
    found = before[len(before) - len(data) :]
    found[:] = data
    return found

log = example_log()
starts = pure.walk(log, 0, len(log), BASE, final=True, crc=True)
size = len(log) + 48 * 20
entries, positions = np.zeros(size, np.uint8), starts.starts + np.arange(20) * 48
pure.to_entries(log, starts.starts, starts.sizes, entries, positions, 0, first_index=0, term=1)
noise = np.full(400, 0xDA, np.uint8)
for whole in (log[:700], entries[:900], noise):
    for count in range(len(whole) + 1):
        data = at_the_end(whole[:count])
        for base in (0, BASE):
            found = compiled.walk(data, 0, count, base, final=False, crc=True)
            compiled.walk_entries(data, 0, count, base, index=-1, final=False, crc=True)
            compiled.resync(data, 0, count, base)
            compiled.resync_entries(data, 0, count, base)
            for begin in range(max(0, count - 9), count):
                compiled.resync(data, begin, count, base)
                compiled.resync_entries(data, begin, count, base)
            heads = compiled.heads(data, found.starts)
            compiled.java_hashes(data, compiled.find_property(data, heads, b"TAGS"))
        for begin in range(max(0, count - 120), count):
            try:
                compiled.heads(data, np.array([begin]))
            except ValueError:
                pass
for text in (b"\\xf0\\x9f\\x98\\x80", b"\\xe2\\x82\\xac", b"\\xc3\\x9f"):
    for count in range(1, len(text) + 1):
        data = at_the_end(np.frombuffer(text[:count], np.uint8))
        compiled.java_hashes(data, Texts(np.array([0]), np.array([count], np.int32)))
source, found = log.copy(), starts
for out_size in (size, size - 1, size - 47, size - 48, size - 49):
    out = at_the_end(np.zeros(out_size, np.uint8))
    for write in (
        lambda: compiled.to_entries(source, *found[:2], out, positions, 0, first_index=0, term=1),
        lambda: compiled.to_records(source, *found[:2], out, positions + 48, 0),
    ):
        try:
            write()
            assert out_size == size
        except ValueError:
            assert out_size < size
print("alive")
"""


def test_nothing_outside_is_touched() -> None:
    """A process that runs all kernels on arrays of every length before such memory stays alive."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")
