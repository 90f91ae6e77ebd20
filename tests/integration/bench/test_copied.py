"""How a benchmark watches an empty slave."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from tests.bench import replicas

from brokerset_bench.server_process import ServerProcess
from brokerset_rig import stack
from brokerset_rig.waiting import until


async def test_a_slave_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    """What it said last is told at once, not after the time that a copy may take."""
    code = "import sys; sys.exit('no such setting')"
    slave = ServerProcess("broker-1", (sys.executable, "-c", code), "127.0.0.1:1", tmp_path / "log")
    slave.start()
    await until(lambda: not slave.running)

    with pytest.raises(stack.StackError, match="broker-1 has ended:\nno such setting"):
        replicas.copied(slave, 1, time.monotonic() + 60)
