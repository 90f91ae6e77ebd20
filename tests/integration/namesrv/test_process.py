"""The name server as a process: its command line, its settings, its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from brokerset_rig.stack import free_port

SECONDS_MAX = 20.0
COMMAND = [sys.executable, "-m", "brokerset_namesrv"]


def listens(port: int) -> bool:
    """Whether somebody accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_settings_come_from_file_environment_and_command_line(tmp_path: Path) -> None:
    """Later sources win; `-p` shows the result."""
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPort=1111\nhttpPort=2222\nwaitSecondsForService=3\n")
    environment = {**os.environ, "BROKERSET_SET_listenPort": "4444", "BROKERSET_SET_httpPort": "5555"}

    shown = subprocess.run(
        [*COMMAND, "-c", str(file), "--listenPort", "6666", "-p"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=True,
    ).stdout.splitlines()

    assert {"listenPort=6666", "httpPort=5555", "waitSecondsForService=3"} <= set(shown)


def test_wrong_settings_are_all_named(tmp_path: Path) -> None:
    """Every problem with its source, and exit code 2."""
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPorts=1\n")

    ended = subprocess.run(
        [*COMMAND, "-c", str(file), "--listenPort", "many"],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )

    assert ended.returncode == 2
    assert "did you mean listenPort?" in ended.stderr
    assert "command line: listenPort='many'" in ended.stderr


def test_the_process_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """It listens soon, and SIGTERM ends it in order with exit code 0."""
    port = free_port()
    arguments = ["--bindAddress", "127.0.0.1", "--listenPort", str(port)]
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--kvConfigPath", str(tmp_path / "kv.json")],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + SECONDS_MAX
        while not listens(port):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)

        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 0
    assert '"event":"name server listens"' in log
    assert '"event":"name server stops"' in log


def test_a_taken_port_ends_the_process_with_a_reason(tmp_path: Path) -> None:
    """Exit code 1, and the log says what is wrong."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]

        ended = subprocess.run(
            [*COMMAND, "--bindAddress", "127.0.0.1", "--listenPort", str(port)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )

    assert ended.returncode == 1
    assert "address already in use" in ended.stderr
