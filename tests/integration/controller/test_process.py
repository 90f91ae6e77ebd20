"""The controller as a process: its command line, its folder, its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from brokerset_rig.controller_group import HOST
from brokerset_rig.stack import free_port

SECONDS_MAX = 20.0
COMMAND = [sys.executable, "-m", "brokerset_controller"]


def options(folder: Path) -> list[str]:
    """A controller that is a group of its own, on ports that are free."""
    return [
        "--bindAddress", HOST,
        "--controllerDLegerPeers", f"n0-{HOST}:{free_port()}",
        "--raftPeers", f"n0-{HOST}:{free_port()}",
        "--controllerStorePath", str(folder / "store"),
        "--kvConfigPath", str(folder / "kv.json"),
        "--namesrvListenPort", str(free_port()),
    ]  # fmt: skip


def listens(port: int) -> bool:
    """Whether somebody accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def port_in(arguments: list[str]) -> int:
    """The controller's port."""
    return int(arguments[3].rpartition(":")[2])


def start(arguments: list[str]) -> subprocess.Popen[str]:
    """A process that listens."""
    process = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + SECONDS_MAX
    while not listens(port_in(arguments)):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    return process


def ended(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A process that is expected to end by itself."""
    return subprocess.run(
        [*COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )


def test_settings_come_from_file_environment_and_command_line(tmp_path: Path) -> None:
    """Later sources win; `-p` shows the result."""
    file = tmp_path / "controller.conf"
    file.write_text("probeTimeout=111\nrequestTimeout=222\nscanNotActiveBrokerInterval=333\n")
    environment = {
        **os.environ,
        "BROKERSET_SET_probeTimeout": "444",
        "BROKERSET_SET_requestTimeout": "555",
    }

    shown = subprocess.run(
        [*COMMAND, "-c", str(file), "--probeTimeout", "666", "-p"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=True,
    ).stdout.splitlines()

    assert {"probeTimeout=666", "requestTimeout=555", "scanNotActiveBrokerInterval=333"} <= set(shown)


def test_wrong_settings_are_all_named(tmp_path: Path) -> None:
    """Every problem, and exit code 2."""
    result = ended(["--controllerDLegerSelfId", "n7", "--httpPort", "many"], tmp_path)
    second = ended(["--controllerDLegerSelfId", "n7"], tmp_path)

    assert (result.returncode, second.returncode) == (2, 2)
    assert "httpPort='many'" in result.stderr
    assert "does not list n7, this node" in second.stderr


def test_the_process_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """SIGTERM ends it in order with exit code 0; a second process is refused its folder meanwhile."""
    arguments = options(tmp_path)
    process = start(arguments)
    try:
        rival = options(tmp_path)
        rival[rival.index("--controllerStorePath") + 1] = arguments[
            arguments.index("--controllerStorePath") + 1
        ]
        refused = ended(rival, tmp_path)

        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 0, log
    assert '"event":"controller listens"' in log
    assert '"event":"controller stops"' in log
    assert refused.returncode == 1
    assert f"is locked by process {process.pid}" in refused.stderr


def test_a_taken_port_and_damaged_data_end_the_process_with_a_reason(tmp_path: Path) -> None:
    """Exit code 1, and the log says what is wrong."""
    arguments = options(tmp_path)
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, port_in(arguments)))
        holder.listen()
        taken = ended(arguments, tmp_path)
    process = start(arguments)
    end = time.monotonic() + SECONDS_MAX
    while not (segments := sorted((tmp_path / "store" / "raft").glob("log-*"))):
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS_MAX)
    name, number = segments[-1].name.rsplit("-", 1)
    segments[-1].with_name(f"{name}-{int(number) + 1:0{len(number)}d}").write_bytes(segments[-1].read_bytes())
    segments[-1].write_bytes(b"x" * 64)
    damaged = ended(arguments, tmp_path)

    assert taken.returncode == 1
    assert "address already in use" in taken.stderr
    assert damaged.returncode == 1
    assert segments[-1].name in damaged.stderr
