"""The clients of C++ and Node as programs (tests/peers/clients), with what they saw."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

from brokerset_rig import stack

SECONDS_MAX: Final = 120.0
NAMES: Final = {"cpp": "C++", "node": "Node"}
"""Short names of the clients, and how people call them."""


def cache_folder() -> Path:
    """Where `tests/peers/bin/fetch` keeps what it fetches."""
    given = os.environ.get("PEERS_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("BROKERSET_CACHE", Path.home() / ".cache" / "brokerset")) / "peers"


def run_client(make: str, folder: Path, namesrv: str, topic: str, **environment: str) -> dict[str, Any]:
    """What a client (`cpp` or `node`) saw; it signs with ACCESS_KEY and SECRET_KEY. Not `ok` if it printed nothing."""
    cache, clients = cache_folder(), stack.PEERS / "clients"
    commands = {
        "cpp": [str(cache / "venv" / "bin" / "python"), str(clients / "cpp_client.py")],
        "node": ["node", str(clients / "node_client.js")],
    }
    done = subprocess.run(
        [*commands[make], namesrv, topic],
        capture_output=True, text=True, timeout=SECONDS_MAX, cwd=folder, check=False,
        env={**os.environ, "NODE_PATH": str(cache / "node_modules"), "HOME": str(folder), **environment},
    )  # fmt: skip
    try:
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"ok": False, "error": done.stderr.strip()[-800:]}
    return found
