"""Java properties text, the body of requests about configurations (25, 26, 318, 319, 1009, 1010).

Source: `MixAll.string2Properties`, `properties2String`; the syntax is that of `java.util.Properties.load`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from brokerset_protocol.bodies.codec import rejected

TEXT_SIZE_MAX: Final = 1024 * 1024
"""Bytes of a configuration's text; a whole broker configuration has about 15 KB."""

_BLANK: Final = " \t\f"
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.)|$)", re.DOTALL)
_KEY: Final = re.compile(r"(?:\\.|[^\\=: \t\f])*")
_SEPARATOR: Final = re.compile(r"[ \t\f]*(?:[=:][ \t\f]*)?")
_TO_ESCAPE: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\f": "\\f"})
_KEY_TO_ESCAPE: Final = _TO_ESCAPE | str.maketrans({"=": "\\=", ":": "\\:", " ": "\\ ", "\t": "\\t"})


def from_text(data: bytes) -> dict[str, str]:
    """Names and values in the order of the text; the last of equal names wins. Raises `Rejected`."""
    if len(data) > TEXT_SIZE_MAX:
        raise rejected("properties text", f"it has {len(data)} bytes, at most {TEXT_SIZE_MAX} are taken")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise rejected("properties text", f"it is not UTF-8 at byte {error.start}") from None
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        key = _KEY.match(line)
        assert key is not None, "the pattern matches the empty text"
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None, "the pattern matches the empty text"
        name, value = _unescape(key[0]), _unescape(line[separator.end() :])
        try:
            f"{name}{value}".encode()
        except UnicodeEncodeError:
            raise rejected("properties text", "it has half a surrogate pair") from None
        found[name] = value
    return found


def to_text(properties: Mapping[str, str]) -> bytes:
    """One `name=value` for each line, sorted by name as Java answers."""
    lines = []
    for name in sorted(properties):
        value = properties[name].translate(_TO_ESCAPE)
        if value[:1] in (" ", "\t"):
            value = "\\" + ("t" if value[0] == "\t" else " ") + value[1:]
        key = name.translate(_KEY_TO_ESCAPE)
        if key[:1] in ("#", "!"):
            key = "\\" + key
        lines.append(f"{key}={value}\n")
    return "".join(lines).encode()


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blank ones, joined where a backslash continues them."""
    kept = ""
    for line in re.split(r"\r\n|\n|\r", text):
        line = line.lstrip(_BLANK)
        if not kept and (not line or line[0] in "#!"):
            continue
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            kept += line[:-1]
            if kept:
                continue
        else:
            kept += line
        if kept:
            yield kept
        kept = ""
    if kept:
        yield kept


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_replacement, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _replacement(match: re.Match[str]) -> str:
    if match[1]:
        return chr(int(match[1], 16))
    character = match[2] or ""
    return _ESCAPED.get(character, character)
