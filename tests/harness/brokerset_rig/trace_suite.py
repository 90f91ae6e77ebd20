"""Interop suite `traces`: mqadmin reads traces of our client, and our command line those of Java's, at brokers of both makes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brokerset_rig import stack

Add = Callable[[str, list[str], float], None]
SETTINGS = {"traceTopicEnable": "true"}
SECONDS_MAX = 90.0
TOPIC = "traced"


def run(add: Add) -> None:
    """Both ways, with both brokers."""
    for make, name_server, broker in (
        ("our broker", stack.our_namesrv, stack.our_broker),
        ("Java's broker", stack.java_namesrv, stack.java_broker),
    ):
        with stack.Workspace("traces") as folder:
            ports = stack.free_ports(2, below=2)
            with (
                name_server(folder, ports[0]) as namesrv,
                broker(folder, ports[1], namesrv.address, SETTINGS),
            ):
                _until(lambda namesrv=namesrv: _ours(namesrv.address, "topic", "create", TOPIC))  # type: ignore[misc]  # a default of a lambda
                for what, part in (
                    ("mqadmin reads ours", _mqadmin_reads_ours),
                    ("ours reads Java's", _ours_reads_javas),
                ):
                    started = time.monotonic()
                    add(f"{what}, {make}", part(namesrv.address, folder), time.monotonic() - started)


def _mqadmin_reads_ours(namesrv: str, folder: Path) -> list[str]:
    sent = json.loads(_ours(namesrv, "send", TOPIC, "--trace", "--json"))
    _ours(namesrv, "consume", TOPIC, "--count", "1", "--trace", "--group", "readers")
    command = ["queryMsgTraceById", "-n", namesrv, "-i", sent["lastMessageId"]]
    wanted = (
        r"(?m)^Pub\s+brokerset-cli\s+127\.0\.0\.1\s+\d{4}-.*\d+ms\s+success",
        r"(?m)^Sub\s+readers\s+127\.0\.0\.1\s+\d{4}-.*\d+ms\s+success",
    )

    def shown() -> str | None:
        text = _run([str(stack.PEERS / "bin" / "mqadmin"), *command], namesrv, folder)
        return text if all(re.search(each, text) for each in wanted) else None

    return [] if _until(shown) else ["mqadmin does not show the send and the consumption"]


def _ours_reads_javas(namesrv: str, folder: Path) -> list[str]:
    script = stack.ROOT / "tests" / "java" / "traced"
    message_id = _run([str(script), f"topic={TOPIC}"], namesrv, folder).strip().splitlines()[-1]
    wanted = {("sent", "traced-producer"), ("consumed", "traced-consumer")}
    found: list[dict[str, Any]] = []

    def complete() -> bool:
        found[:] = json.loads(_ours(namesrv, "message", "trace", message_id, "--json"))
        return wanted <= {(row["what"], row["group"]) for row in found}

    return [] if _until(complete) else [f"our command line shows {found}"]


def _until(attempt: Callable[[], object]) -> bool:
    """Try again until it gives something; what fails meanwhile is not yet there."""
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            if attempt():
                return True
        except stack.StackError:
            pass
        time.sleep(0.5)
    return False


def _ours(namesrv: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "brokerset_cli.main", *arguments, "--namesrv", namesrv]
    return _run(command, namesrv, None)


def _run(command: list[str], namesrv: str, folder: Path | None) -> str:
    environment = {**os.environ, "NAMESRV_ADDR": namesrv}
    if folder is not None:
        environment |= {"PEERS_RUN": str(folder / "client"), "CLIENT_HEAP": "256m"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, env=environment)
    if done.returncode:
        raise stack.StackError(f"{command[:4]} ended with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout
