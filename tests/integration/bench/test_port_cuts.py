"""Single ports of a set can be cut off from its clients, or from everything; nothing is closed by that."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from brokerset_bench.network import inside_command, why_not

PROGRAM = """
import socket, subprocess, sys
from pathlib import Path
from brokerset_bench.network import HOST, OwnNetwork
from brokerset_rig.port_cuts import PortCuts

network = OwnNetwork(Path(sys.argv[1]))
_, address, enter = network.member()
cuts = PortCuts([address])
servers = [socket.create_server((HOST, port)) for port in (7000, 7001)]
code = '''
import socket, sys
server = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
print("connected", flush=True)
for line in sys.stdin:
    server.settimeout(float(line))
    try:
        print(server.recv(9).decode(), flush=True)
    except TimeoutError:
        print("silent", flush=True)
'''
command = [*enter, sys.executable, "-c", code, HOST, "7000"]
client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
said = [client.stdout.readline().strip()]
accepted, _ = servers[0].accept()

def received(seconds):
    client.stdin.write(f"{seconds}\\n")
    client.stdin.flush()
    said.append(client.stdout.readline().strip())

def connects(before, port, seconds=0.5):
    code = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3]))"
    command = [*before, sys.executable, "-c", code, HOST, str(port), str(seconds)]
    said.append("fine" if subprocess.run(command, stderr=subprocess.PIPE).returncode == 0 else "failed")

cuts.cut_from_clients([7000])
accepted.send(b"late")
received(0.5)
connects(enter, 7000)
connects(enter, 7001, 5)
connects((), 7000, 5)
cuts.mend()
received(10)
connects(enter, 7000, 5)
cuts.cut_from_all(7001)
connects((), 7001)
connects(enter, 7001)
connects(enter, 7000, 5)
cuts.mend()
connects((), 7001, 5)
client.kill()
client.wait()
network.close()
print(*said)
"""


def test_a_port_that_is_cut_is_silent_for_those_it_is_cut_off_from_and_delivers_when_mended(
    tmp_path: Path,
) -> None:
    """Clients lose one port and keep others, and the set's own processes keep both; or all lose it."""
    if reason := why_not():
        pytest.skip(reason)
    command = inside_command(["-c", PROGRAM, str(tmp_path)])

    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)

    assert done.returncode == 0, done.stderr
    from_clients = ["connected", "silent", "failed", "fine", "fine", "late", "fine"]
    from_all = ["failed", "failed", "fine", "fine"]
    assert done.stdout.split() == [*from_clients, *from_all]
