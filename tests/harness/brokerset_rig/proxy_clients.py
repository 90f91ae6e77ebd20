"""The clients of RocketMQ 5 (`tests/peers/clients5`) as processes, and what they saw, in a form that runs have in common."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from brokerset_rig import stack
from brokerset_rig.proxy_world import DEAD, dead_letters

FOLDER = stack.PEERS / "clients5"
CLIENTS: Final = ("java", "python", "node", "go")
UNKNOWN_TO: Final = {"go": ("recall", "priority")}
"""Client -> scenarios of what it does not have."""
SECONDS_MAX = 200.0
DEAD_SECONDS_MAX = 60.0
_UNSTABLE: Final = {
    "__transactionId__": "its id",
    "TRANSACTION_CHECK_TIMES": "some",
}
"""Properties whose values differ from run to run: a check may come once or twice before it is answered."""

_EPHEMERAL: Final = re.compile(
    r"request-id=[^,\]]*|127\.0\.0\.1:\d+|(?<=\[)PID[^]]*|\([\w$.]+\.java:\d+\)|\b[0-9A-F]{34}\b"
)


def fetch() -> None:
    """Have the clients at hand; nothing to do where they are."""
    subprocess.run([str(stack.PEERS / "bin" / "fetch"), "clients5"], check=True, stdout=subprocess.DEVNULL)


def command(client: str, cache: Path, endpoints: str, *arguments: str) -> list[str]:
    """How a client is started; `cache` is where `fetch` puts peers."""
    home = cache / "clients5"
    classes = f"{home / 'classes'}:{home / 'lib'}/*"
    begin = {
        "java": ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp", classes, "Flow"],
        "python": [str(home / "venv" / "bin" / "python"), str(FOLDER / "flow.py")],
        "node": ["node", str(FOLDER / "flow.js")],
        "go": [str(home / "flow-go")],
    }
    return [*begin[client], endpoints, *arguments]


def environment(cache: Path, folder: Path) -> dict[str, str]:
    """For a client: its logs go into `folder`."""
    return {
        **os.environ,
        "HOME": str(folder),
        "JAVA_TOOL_OPTIONS": f"-Duser.home={folder}",
        "NODE_PATH": str(cache / "clients5" / "node_modules"),
        "rocketmq.client.enableSsl": "false",  # of Go, whose client reads names with dots
        "rocketmq.client.logRoot": str(folder),
    }


class Scenarios:
    """A client that goes through scenarios. `start`, then `result`; ends its process in every case."""

    def __init__(self, client: str, cache: Path, folder: Path, endpoints: str, *names: str) -> None:
        self.client = client
        self._folder = folder / f"client-{client}"
        self._command = command(client, cache, endpoints, *names)
        self._environment = environment(cache, self._folder)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._output.open("wb") as out, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=out, stderr=errors, env=self._environment
            )

    @property
    def _output(self) -> Path:
        return self._folder / "output"

    @property
    def _errors(self) -> Path:
        return self._folder / "errors"

    def result(self, broker_port: int) -> dict[str, Any]:
        """Scenario -> what the client saw, or its error; with what became dead letters at the broker."""
        assert self._process is not None
        assert self._process.stdin is not None
        dead: dict[str, object] = {}
        try:
            for scenario in DEAD:
                dead[scenario] = dead_letters(broker_port, f"{self.client}-{scenario}", DEAD_SECONDS_MAX)
            self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(SECONDS_MAX)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        found = self._lines()
        for scenario, letters in dead.items():
            if scenario in found:
                found[scenario]["deadLetters"] = letters
        return {scenario: normalized(saw, self.client) for scenario, saw in found.items()}

    def _lines(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for text in self._output.read_text().splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and "scenario" in line:
                found[line["scenario"]] = {key: line[key] for key in ("saw", "error") if key in line}
        if not found:
            raise stack.StackError(
                f"the {self.client} client said nothing: {self._errors.read_text(errors='replace')[-800:]}"
            )
        return found


def normalized(value: Any, client: str) -> Any:
    """Without what differs from run to run, or from client to client only by name."""
    if isinstance(value, Mapping):
        return {key: _UNSTABLE.get(key) or normalized(inner, client) for key, inner in sorted(value.items())}
    if isinstance(value, list):
        return [normalized(inner, client) for inner in value]
    return _EPHEMERAL.sub("…", value) if isinstance(value, str) else value
