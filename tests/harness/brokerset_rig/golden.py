"""Compares what a peer got from our servers with what it got from Java's (the golden answers of `tests/peers`)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PEERS = Path(__file__).parents[2] / "peers"
GOLDEN = PEERS / "golden"

JUSTIFIED: dict[str, dict[str, str]] = {
    "40-errors": {
        "cases.timerTooFar": "timer messages are refused as a whole until they are served, with the same code 13",
    },
    "client-cpp": {
        "consumed.cpp-body-6": "the C++ client's batch is a batch here; Java stores it as one undecoded message",
        "consumed.cpp-body-7": "the same; the client may have seen enough before this one came",
        "consumed.empty-1": "the undecoded message that Java makes of the batch",
    },
}
"""Golden file -> path of a field that may differ -> why. A difference that is not listed here fails the run."""

_EPHEMERAL = re.compile(r"127\.0\.0\.1:\d{5}\b")
"""The client's own address inside a text: the kernel chose its port."""


def steps() -> dict[str, list[str]]:
    """Golden file name -> verb and arguments, as `tests/peers/bin/golden` runs them."""
    text = (PEERS / "bin" / "golden").read_text()
    return {m[1]: m[2].split() for m in re.finditer(r"^step (\S+) (.+)$", text, re.M)}


def differences(name: str, got: dict[str, Any]) -> list[str]:
    """Paths at which `got` is not what the golden file says, but for what is volatile or justified."""
    want = json.loads((GOLDEN / f"{name}.json").read_text())
    allowed = JUSTIFIED.get(name, {})
    return [text for path, text in _walk("", _stable(want), _stable(got)) if path not in allowed]


def _stable(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key not in ("volatile", "logged")}


def _walk(path: str, want: Any, got: Any) -> list[tuple[str, str]]:
    if isinstance(want, dict) and isinstance(got, dict):
        found: list[tuple[str, str]] = []
        for key in sorted(want.keys() | got.keys()):
            inner = f"{path}.{key}" if path else key
            if key not in got:
                found.append((inner, f"{inner}: missing, Java gives {want[key]!r}"))
            elif key not in want:
                found.append((inner, f"{inner}: {got[key]!r}, which Java does not give"))
            else:
                found += _walk(inner, want[key], got[key])
        return found
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        return [
            item
            for i, (a, b) in enumerate(zip(want, got, strict=True))
            for item in _walk(f"{path}[{i}]", a, b)
        ]
    if isinstance(want, str) and isinstance(got, str):
        want, got = _EPHEMERAL.sub("client", want), _EPHEMERAL.sub("client", got)
    return [] if want == got else [(path, f"{path}: {got!r} instead of {want!r}")]
