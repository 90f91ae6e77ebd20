"""Where a process listens, as /proc says."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

_LISTEN: Final = "0A"
_WORD: Final = 8
"""Hexadecimal digits of four bytes of an address, each four in the order of the machine."""


def listening(pid: int) -> set[str]:
    """The addresses, `host:port`, of the TCP sockets on which a process listens."""
    own = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            own.add(os.readlink(descriptor))
    found = set()
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and f"socket:[{fields[9]}]" in own:
                host, _, port = fields[1].partition(":")
                words = (host[start : start + _WORD] for start in range(0, len(host), _WORD))
                packed = b"".join(bytes.fromhex(word)[::-1] for word in words)
                found.add(f"{socket.inet_ntop(family, packed)}:{int(port, 16)}")
    return found
