"""Compares what a peer got from our servers with what it got from Java's (the golden answers of `tests/peers`)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PEERS = Path(__file__).parents[2] / "peers"
GOLDEN = PEERS / "golden"

JUSTIFIED: dict[str, dict[str, str]] = {
    "29-transaction": {
        "checkedShape.keys": "two transactions are checked at once, and Java asks from several threads: either came first",
        "checkedShape.tags": "the same",
    },
    "39-pop": {
        "shapes.again.properties": "a revived message has RETRY_TOPIC, too, so that a dead letter names its topic",
    },
    "client-cpp": {
        "consumed.cpp-body-6": "the C++ client's batch is a batch here; Java stores it as one undecoded message",
        "consumed.cpp-body-7": "the same; the client may have seen enough before this one came",
        "consumed.empty-1": "the undecoded message that Java makes of the batch",
    },
}
"""Golden file -> path of a field that may differ -> why. A difference that is not listed here fails the run."""

JUSTIFIED_WIRE: dict[str, dict[str, str]] = {
    "controller-1010-config": {
        "body": "each make lists its own settings; the common ones are compared by mqadmin's text"
    },
}
"""The same for `wire/`: file -> path -> why."""

CPP_SEEN = 7
"""The C++ client ends when it has seen so many messages. Java gives it no more, we give it eight, as the batch is
two for us: any one of them may not have come yet."""

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
    found = [(path, text) for path, text in walk("", _stable(want), _stable(got)) if path not in allowed]
    unseen = [(path, text) for path, text in found if ": missing, " in text]
    if name == "client-cpp" and len(got.get("consumed", ())) == CPP_SEEN and len(unseen) == 1:
        found.remove(unseen[0])
    return [text for _, text in found]


def _stable(answer: dict[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in answer.items() if key not in ("volatile", "logged")}
    if isinstance(found.get("first"), dict):
        found["first"] = _as_number_0(found["first"])
    shapes = found.get("shapes")
    if isinstance(shapes, dict) and isinstance(shapes.get("first"), dict):
        found["shapes"] = {**shapes, "first": _as_number_0(shapes["first"])}
    return found


def _as_number_0(shape: dict[str, Any]) -> dict[str, Any]:
    """A message's shape as if it were the run's message 0, if its key and its tag belong together.

    `first` is what came first to a consumer with several threads: on a busy machine any message.
    """
    number = str(shape.get("keys", "")).removeprefix("k-")
    if number.isdecimal() and shape.get("tags") == "ABC"[int(number) % 3]:
        return {**shape, "keys": "k-0", "tags": "A"}
    return shape


def walk(path: str, want: Any, got: Any) -> list[tuple[str, str]]:
    """Path and text of each difference between what Java gives and what was got."""
    if isinstance(want, dict) and isinstance(got, dict):
        found: list[tuple[str, str]] = []
        for key in sorted(want.keys() | got.keys()):
            inner = f"{path}.{key}" if path else key
            if key not in got:
                found.append((inner, f"{inner}: missing, Java gives {want[key]!r}"))
            elif key not in want:
                found.append((inner, f"{inner}: {got[key]!r}, which Java does not give"))
            else:
                found += walk(inner, want[key], got[key])
        return found
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        return [
            item
            for i, (a, b) in enumerate(zip(want, got, strict=True))
            for item in walk(f"{path}[{i}]", a, b)
        ]
    if isinstance(want, str) and isinstance(got, str):
        want, got = _EPHEMERAL.sub("client", want), _EPHEMERAL.sub("client", got)
    return [] if want == got else [(path, f"{path}: {got!r} instead of {want!r}")]


def wire_request(name: str) -> tuple[int, dict[str, str], bytes]:
    """Code, extFields and body of the request behind a file of `wire/`."""
    request = json.loads((GOLDEN / "wire" / f"{name}.json").read_text())["request"]
    return request["code"], request["ext"], request["body"].encode()


def wire_differences(name: str, code: int, remark: str | None, ext: dict[str, str], body: bytes) -> list[str]:
    """Where an answer's form is not that of a file of `wire/`: code, remark, names and kinds of fields; not numbers and addresses."""
    golden = json.loads((GOLDEN / "wire" / f"{name}.json").read_text())
    header = json.loads(golden["header"])
    want = {
        "code": header["code"],
        "remark": _form(header.get("remark") or ""),
        "ext": {key: _form(value) for key, value in (header.get("extFields") or {}).items()},
        "body": _body_form(golden["body"].encode()),
    }
    got = {
        "code": code,
        "remark": _form(remark or ""),
        "ext": {key: _form(value) for key, value in ext.items()},
        "body": _body_form(body),
    }
    allowed = JUSTIFIED_WIRE.get(name, {})
    return [
        text
        for path, text in walk("", want, got)
        if not any(path.startswith(p) for p in allowed) and "[]" not in text
    ]


def _form(value: str) -> str:
    return re.sub(r"\d+", "N", re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", value))


def _body_form(body: bytes) -> Any:
    if not body:
        return ""
    if not body.startswith((b"{", b"[")):
        return {line.partition("=")[0]: "…" for line in body.decode().splitlines() if "=" in line}
    return _json_form(json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', body)))


def _json_form(value: Any) -> Any:
    """Names and kinds; of a list the form of its first element, since an empty list is like any other."""
    if isinstance(value, dict):
        return {_form(key): _json_form(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_json_form(inner) for inner in value[:1]]
    return _form(value) if isinstance(value, str) else type(value).__name__
