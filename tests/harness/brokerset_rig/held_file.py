"""A file that another process has locked, as a second broker or command would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOLD = """\
import sys
from pathlib import Path
from brokerset_runtime.files import lock_file
lock = lock_file(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_another_process(path: Path) -> Iterator[int]:
    """Lock `path` in a process of its own, whose id is given, until the block ends."""
    arguments = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        try:
            yield other.pid
        finally:
            other.communicate()
