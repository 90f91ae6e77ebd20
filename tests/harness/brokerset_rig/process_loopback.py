"""A loopback address of this test process alone, for servers whose ports are fixed."""

from __future__ import annotations

import os
from typing import Final


def loopback_of(process: int) -> str:
    """An address of 127.128.0.0/10, another for each process id (below 2 ** 22, as Linux gives them)."""
    return f"127.{128 | process >> 16 & 63}.{process >> 8 & 255}.{process & 255}"


PROCESS_LOOPBACK: Final = loopback_of(os.getpid())
"""Tests of one file run in several processes at once: a fixed address would be another's in the same second."""
