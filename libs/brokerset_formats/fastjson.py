"""JSON as fastjson 1.2 of Java writes it: bare integer keys, objects as keys, tab-indented files."""

from __future__ import annotations

import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # the C scanner of the standard library
from typing import Any

import orjson

from brokerset_formats.errors import FormatError

OBJECT_KEYS_SIZE_MAX = 4 * 1024 * 1024
"""Characters of JSON with objects as keys, which is parsed slowly: the statistics of about 25,000 queues."""

INT64_MIN = -(2**63)
"""orjson writes no smaller integer; a smaller number is a float."""

DEPTH_MAX = 128
"""Nesting that the tolerant parser follows; real bodies have fewer than ten levels."""

# A string that never ends matches to the end of the text: searching on inside it would take quadratic time.
_STRING_OR_BARE_KEY = re.compile(
    r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|([{,]\s*+)(-?\d{1,20}+)(?=\s*+:)', re.DOTALL | re.ASCII
)
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?[0-9]{1,400}(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,4})?")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_WORD = re.compile(r"true|false|null")


def loads(data: bytes | bytearray | memoryview | str, *, object_keys: bool = True) -> Any:
    """Parse standard JSON, or fastjson's dialect; FormatError if it is neither.

    Unquoted integer keys become text (`"0"`). An object used as key becomes its JSON text, sorted and without
    spaces: what Java accepts in place of such a key. Without `object_keys` such keys are refused: reading
    them takes a second for each 2 MB, which nobody who sends a request may ask of a server.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        first_error = error
    try:
        text = data if isinstance(data, str) else str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise FormatError("JSON that is not UTF-8", error.start) from error
    try:
        return orjson.loads(_STRING_OR_BARE_KEY.sub(_quote_bare_key, text))
    except orjson.JSONDecodeError:
        pass
    if not object_keys or len(text) > OBJECT_KEYS_SIZE_MAX:
        raise FormatError(f"no JSON: {first_error.msg}", first_error.pos) from first_error
    return _Parser(text).parse()


def dumps(value: object) -> bytes:
    """Standard JSON on one line; integer keys are quoted, which Java accepts."""
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)


def ready(text: bytes) -> object:
    """A value whose JSON is there already: `dumps` writes it as it is."""
    return orjson.Fragment(text)


def dumps_pretty(value: object) -> bytes:
    """The layout of Java's config files: a tab for each level, sorted keys, no space after the colon."""
    return "".join(_pretty(value, "\n")).encode()


def _quote_bare_key(match: re.Match[str]) -> str:
    return match[0] if match[1] is None else f'{match[1]}"{match[2]}"'


def _pretty(value: object, line: str) -> list[str]:
    """The pieces of `value`; `line` is the line break with the indent of the enclosing level."""
    if isinstance(value, dict) and value:
        opening, closing = "{", "}"
        items = [
            [f"{_text(str(key))}:", *_pretty(value[key], line + "\t")]
            for key in sorted(value, key=_key_order)
        ]
    elif isinstance(value, list | tuple) and value:
        opening, closing = "[", "]"
        items = [_pretty(item, line + "\t") for item in value]
    else:
        return [_text(value)]
    pieces = [opening]
    for number, item in enumerate(items):
        pieces.append(f",{line}\t" if number else f"{line}\t")
        pieces.extend(item)
    pieces.append(line + closing)
    return pieces


def _text(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


def _key_order(key: object) -> tuple[int, str]:
    return (key, "") if isinstance(key, int) else (-1, str(key))


class _Parser:
    """Recursive descent over text that may have objects as keys."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def parse(self) -> Any:
        value = self._value(0)
        self._skip_space()
        if self.position != len(self.text):
            raise self._error("text after the end of the JSON value")
        return value

    def _error(self, reason: str) -> FormatError:
        return FormatError(reason, self.position)

    def _skip_space(self) -> None:
        match = _SPACE.match(self.text, self.position)
        assert match is not None, "the pattern matches the empty text"
        self.position = match.end()

    def _peek(self) -> str:
        self._skip_space()
        return self.text[self.position : self.position + 1]

    def _expect(self, character: str) -> None:
        if self._peek() != character:
            raise self._error(f"expected {character!r}")
        self.position += 1

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self._error(f"JSON nested deeper than {DEPTH_MAX} levels")
        character = self._peek()
        if character == "{":
            return self._object(depth)
        if character == "[":
            return self._array(depth)
        if character == '"':
            return self._string()
        if match := _WORD.match(self.text, self.position):
            self.position = match.end()
            return _WORDS[match[0]]
        return self._number()

    def _string(self) -> str:
        try:
            value, self.position = scanstring(self.text, self.position + 1, True)
            value.encode()  # refuses half a surrogate pair, as orjson does
        except ValueError as error:
            raise self._error(f"bad string: {error}") from error
        return str(value)

    def _number(self) -> int | float:
        match = _NUMBER.match(self.text, self.position)
        if match is None:
            raise self._error("expected a value")
        self.position = match.end()
        text = match[0]
        digits = text.lstrip("-")
        number = int(text) if digits.isdigit() and len(digits) < 20 else float(text)
        return number if number >= INT64_MIN else float(text)

    def _key(self, depth: int) -> str:
        character = self._peek()
        if character == '"':
            return self._string()
        if character == "{":
            return orjson.dumps(self._object(depth + 1), option=orjson.OPT_SORT_KEYS).decode()
        return str(self._number())

    def _object(self, depth: int) -> dict[str, Any]:
        if depth > DEPTH_MAX:  # reached by objects as keys of objects as keys
            raise self._error(f"JSON nested deeper than {DEPTH_MAX} levels")
        found: dict[str, Any] = {}
        self._expect("{")
        while self._peek() != "}":
            if found:
                self._expect(",")
            key = self._key(depth)
            self._expect(":")
            found[key] = self._value(depth + 1)
        self.position += 1
        return found

    def _array(self, depth: int) -> list[Any]:
        found: list[Any] = []
        self._expect("[")
        while self._peek() != "]":
            if found:
                self._expect(",")
            found.append(self._value(depth + 1))
        self.position += 1
        return found
