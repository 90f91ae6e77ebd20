"""A broker's network can be cut and mended without privileges, where the machine allows namespaces at all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from brokerset_bench.network import inside_command, why_not

PROGRAM = """
import socket, subprocess, sys, time
from pathlib import Path
from brokerset_bench.network import OwnNetwork
from brokerset_bench.server_process import ServerProcess

network = OwnNetwork(Path(sys.argv[1]))
number, address, enter = network.member()
other = network.member()
code = f"import socket; s = socket.create_server(('{address}', 7000)); [s.accept() for _ in range(99)]"
command = (*enter, sys.executable, "-c", code)
server = ServerProcess("server", command, f"{address}:7000", Path(sys.argv[1]) / "server.log")
server.start()

def reach(seconds):
    try:
        socket.create_connection((address, 7000), seconds).close()
        return "reached"
    except TimeoutError:
        return "silent"
    except OSError as error:
        return type(error).__name__

deadline = time.monotonic() + 10
while reach(0.5) != "reached" and time.monotonic() < deadline:
    time.sleep(0.02)
print(reach(2.0))
network.cut(number)
print(reach(0.3))
network.mend(number)
print(reach(5.0))
network.cut_path("10.77.0.1", address)
print(reach(0.3))
network.mend_path("10.77.0.1", address)
print(reach(5.0))
network.cut_path(address, "10.77.0.1")
print(reach(0.3))
network.mend_paths()
print(reach(5.0))
network.cut_path(other[1], address)
network.cut_path(address, other[1])
print(reach(0.5))
print(other[1])
server.end()
network.close()
print(server.running)
again = OwnNetwork(Path(sys.argv[1]))
print(again.member()[0])
again.close()
"""


def test_a_broker_that_is_cut_off_is_silent_and_is_back_when_it_is_mended(tmp_path: Path) -> None:
    """Nothing is refused or closed meanwhile, as with a pulled cable; single paths are cut one way too."""
    if reason := why_not():
        pytest.skip(reason)
    command = inside_command(["-c", PROGRAM, str(tmp_path)])

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    whole, one_way = ["reached", "silent", "reached"], ["silent", "reached"]
    assert done.stdout.split() == [*whole, *one_way, *one_way, "reached", "10.77.0.12", "False", "0"]
