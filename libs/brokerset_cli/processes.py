"""What /proc says about processes and ports: who is alive, who listens where."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import socket
import time
from pathlib import Path
from typing import Final

LISTEN_STATE: Final = "0A"
"""State of a listening socket in /proc/net/tcp."""

FREE_PORTS_START: Final = 15_000
FREE_PORTS_END: Final = 32_768
"""Free ports are searched between these two."""

FREE_PORTS_ROOM: Final = 200
"""Distance that is kept from the ports for outgoing connections."""

FREE_PORTS_LEAST: Final = 2_000
"""So many are enough to choose from: controllers and brokers of a set are to be far apart."""

FREE_PORT_TRIES_MAX: Final = 1_000
"""Ports that are tried before giving up."""

COMMAND_LENGTH_MAX: Final = 120
"""Longer command lines are shortened when they are shown."""


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None when there is none of this id.

    Together with the id it names a process for good: ids are given again, never with the same start.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def is_alive(pid: int, ticks: int | None) -> bool:
    """Whether the process that was seen with this start still runs; a zombie does not."""
    return pid > 0 and ticks is not None and start_ticks(pid) == ticks


def send_signal(pid: int, ticks: int | None, number: signal.Signals) -> bool:
    """Signal exactly the process that was seen with this start; False when it has gone."""
    if not is_alive(pid, ticks):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def wait_gone(pid: int, ticks: int | None, seconds_max: float) -> bool:
    """Wait until a process that need not be a child has ended; False when it has not in time."""
    deadline = time.monotonic() + seconds_max
    while is_alive(pid, ticks):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def port_is_free(host: str, port: int) -> bool:
    """Whether `host:port` can be listened on now; raises `OSError` for a foreign address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def free_port(host: str, *offsets: int) -> int:
    """Return a port that nobody listens on now, nor on those at these distances from it.

    It lies below the range from which the kernel takes ports for outgoing connections, since one that is kept
    for the next start must not be lost to such a connection. Where nearly all ports are for
    those, any will do. Raises `OSError` for a foreign address.
    """
    end = min(_outgoing_ports_start() - FREE_PORTS_ROOM, FREE_PORTS_END)
    if end < FREE_PORTS_START + FREE_PORTS_LEAST:
        end = FREE_PORTS_END
    for _ in range(FREE_PORT_TRIES_MAX):
        port = random.randrange(FREE_PORTS_START, end)
        if all(port_is_free(host, port + offset) for offset in (0, *offsets)):
            return port
    raise OSError(errno.EADDRINUSE, f"no free port after {FREE_PORT_TRIES_MAX} tries")


def _outgoing_ports_start() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return FREE_PORTS_END


def port_holder(port: int) -> str | None:
    """Return who listens on a port as `process 12 (python -m …)`, or None when the system does not say."""
    inodes = _listening_inodes(port)
    if not inodes:
        return None
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        if _holds_socket(folder, inodes):
            return f"process {folder.name} ({command_line(int(folder.name))})"
    return "a process of another user"


def _holds_socket(process_folder: Path, inodes: set[str]) -> bool:
    try:
        links = list((process_folder / "fd").iterdir())
    except OSError:
        return False  # another user's process, or it has just ended
    for link in links:
        with contextlib.suppress(OSError):  # closed meanwhile
            target = os.readlink(link)
            if target.startswith("socket:[") and target[8:-1] in inodes:
                return True
    return False


def _listening_inodes(port: int) -> set[str]:
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == LISTEN_STATE and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def command_line(pid: int) -> str:
    """Return how a process was called, shortened to one line's length."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return "has ended"
    text = " ".join(words).strip() or "no command line"
    return text if len(text) <= COMMAND_LENGTH_MAX else text[: COMMAND_LENGTH_MAX - 1] + "…"
