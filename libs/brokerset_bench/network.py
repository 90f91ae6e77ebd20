"""A network of its own for a measurement, in which single servers, or single paths, can be cut.

The command runs itself again under `unshare --user --map-root-user --net`, which needs no privileges where
user namespaces are allowed. There it makes a bridge, and for each server a network namespace with one
interface on it. To cut a server off as a pulled cable does is to take its interface from the bridge. To cut
one path, which has a direction, is to tell the sender a hardware address that nobody has. Packets vanish in
both cases, nothing is closed and no side gets an error. Firewall rules would need more tools, and proxies
between the processes cannot hide addresses that servers tell each other.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from brokerset_bench.server_process import ServerProcess, end_all

HOST: Final = "10.77.0.1"
"""Address of the measuring process, which is the clients."""

TOOLS: Final = ("unshare", "nsenter", "ip")
BRIDGE: Final = "brokerset0"
FIRST_MEMBER: Final = 11
"""Last byte of the first member's address."""

HOLDER_SECONDS_MAX: Final = 5.0
"""Longest time until a new namespace is there."""

HARDWARE_ADDRESS: Final = "02:00:00:00:00:{:02x}"
"""Of the interface with this last byte of the address."""

NOBODYS_HARDWARE_ADDRESS: Final = "02:00:00:00:01:00"

INSIDE: Final = "BROKERSET_BENCH_INSIDE"
"""Set in the process that runs in the network of its own."""


def why_not() -> str:
    """Why no network of one's own can be had here; empty when it can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are a part of Linux"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found; they are in the packages util-linux and iproute2"
    done = subprocess.run(
        [*_unshare(), "ip", "link", "set", "lo", "up"], capture_output=True, text=True, check=False
    )
    return done.stderr.strip() or "user namespaces are not allowed here" if done.returncode else ""


def inside_command(arguments: Sequence[str]) -> list[str]:
    """How Python is called with `arguments` in a network of its own."""
    return [*_unshare(), sys.executable, *arguments]


def _unshare() -> list[str]:
    return ["unshare", "--user", "--map-root-user", "--net", "--"]


class OwnNetwork:
    """The bridge and the members' namespaces. Only for a process that `inside_command` started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._holders: list[ServerProcess] = []
        self._used = 0
        self._enter: dict[str, tuple[str, ...]] = {HOST: ()}
        """By address, what goes before a command that shall run there."""
        self._cut_paths: dict[tuple[str, str], None] = {}
        run_ip("link", "set", "lo", "up")
        run_ip("link", "add", BRIDGE, "address", _hardware_address(HOST), "type", "bridge")
        run_ip("addr", "add", f"{HOST}/24", "dev", BRIDGE)
        run_ip("link", "set", BRIDGE, "up")

    def member(self) -> tuple[int, str, tuple[str, ...]]:
        """Make a namespace: its number, its address, and what goes before a command that shall run in it."""
        number = self._used
        self._used += 1
        address = f"10.77.0.{FIRST_MEMBER + number}"
        holder = ServerProcess(
            f"network-{number}",
            ("unshare", "--net", "--", "sleep", "infinity"),
            "",
            self._folder / f"network-{number}.log",
        )
        holder.start()
        self._holders.append(holder)
        pid = str(self._wait_apart(holder))
        enter = ("nsenter", "--target", pid, "--net", "--")
        veth = ("link", "add", _link(number), "type", "veth", "peer", "name", "eth0")
        run_ip(*veth, "address", _hardware_address(address), "netns", pid)
        run_ip("link", "set", _link(number), "master", BRIDGE)
        run_ip("link", "set", _link(number), "up")
        for words in (
            ("addr", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            subprocess.run([*enter, "ip", *words], check=True)
        self._enter[address] = enter
        return number, address, enter

    def cut(self, number: int) -> None:
        """Let all packets from and to a member vanish."""
        run_ip("link", "set", _link(number), "nomaster")

    def mend(self, number: int) -> None:
        """Let packets through again."""
        run_ip("link", "set", _link(number), "master", BRIDGE)

    def cut_path(self, sender: str, receiver: str) -> None:
        """Let what one address sends to another vanish; the other direction stays as it is.

        Both must be addresses of this network, of different namespaces.
        """
        self._set_neighbour(sender, receiver, NOBODYS_HARDWARE_ADDRESS)
        self._cut_paths[sender, receiver] = None

    def mend_path(self, sender: str, receiver: str) -> None:
        """Let packets through again that way; nothing happens where they are."""
        if (sender, receiver) in self._cut_paths:
            self._set_neighbour(sender, receiver, _hardware_address(receiver))
            del self._cut_paths[sender, receiver]

    def mend_paths(self) -> None:
        """Mend every path that is cut."""
        for sender, receiver in list(self._cut_paths):
            self.mend_path(sender, receiver)

    def _set_neighbour(self, sender: str, receiver: str, hardware_address: str) -> None:
        assert sender != receiver, "packets to oneself do not leave the namespace"
        assert receiver in self._enter, receiver
        device = BRIDGE if sender == HOST else "eth0"
        words = ("replace", receiver, "lladdr", hardware_address, "nud", "permanent", "dev", device)
        _run(*self._enter[sender], "ip", "neigh", *words)

    def close(self) -> None:
        """Give the members' namespaces, their interfaces and the bridge up."""
        for number in range(self._used):
            run_ip("link", "del", _link(number))
        run_ip("link", "del", BRIDGE)
        end_all(self._holders)
        self._holders.clear()

    @staticmethod
    def _wait_apart(holder: ServerProcess) -> int:
        own = os.readlink("/proc/self/ns/net")
        deadline = time.monotonic() + HOLDER_SECONDS_MAX
        while time.monotonic() < deadline:
            pid = holder.pid
            try:
                if os.readlink(f"/proc/{pid}/ns/net") != own:
                    return pid
            except OSError:
                pass
            time.sleep(0.005)
        raise OSError(f"no namespace was made in {HOLDER_SECONDS_MAX:g} s: {holder.log_tail()}")


def _link(number: int) -> str:
    return f"brokerset-v{number}"


def _hardware_address(address: str) -> str:
    return HARDWARE_ADDRESS.format(int(address.rpartition(".")[2]))


def run_ip(*words: str) -> None:
    """Run `ip` in this namespace; raises `OSError` with what it said."""
    _run("ip", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"`{' '.join(words)}`: {done.stderr.strip()}")
