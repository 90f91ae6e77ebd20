"""Files of a program taken out of the page cache, so that its next start reads them from the disk."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

JAVA_CACHE = "PEERS_CACHE"


def evict(folders: Iterable[Path]) -> int:
    """Drop all clean pages of the files below; returns how many files. Pages that a running process maps stay."""
    count = 0
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                with suppress(OSError):
                    descriptor = os.open(Path(parent) / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                    try:
                        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    finally:
                        os.close(descriptor)
                    count += 1
    return count


def of_python(checkout: Path, python: str) -> list[Path]:
    """What a broker of ours may import: the checkout's packages, the environment's, and the standard library."""
    packages = [checkout / name for name in ("libs", "broker", "controller")]
    standard = Path(sysconfig.get_path("stdlib"))
    return [*packages, Path(python).parents[1] / "lib", standard]


def of_java() -> list[Path]:
    """The Java runtime, the jars and the archive of shared classes."""
    own = os.environ.get("BROKERSET_CACHE", str(Path.home() / ".cache" / "brokerset"))
    cache = Path(os.environ.get(JAVA_CACHE, f"{own}/peers"))
    found = [cache]
    java = next(
        (Path(folder) / "java" for folder in os.get_exec_path() if (Path(folder) / "java").exists()), None
    )
    if java is not None:
        found.append(java.resolve().parents[1])
    return found
