"""Tokens of SQL92 expressions, one at a time, with the errors of Java's `SelectorParserTokenManager`.

Whatever no pattern matches is an error only when the parser gets there: Java does not read what stands
behind a complete expression, but for one token.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from brokerset_broker.filters.errors import TOKEN_ERROR, FilterError


class Kind(IntEnum):
    """What a token is; the numbers are those of `SelectorParserConstants`, whose order messages have."""

    END = 0
    NOT = 8
    AND = 9
    OR = 10
    BETWEEN = 11
    IN = 12
    TRUE = 13
    FALSE = 14
    NULL = 15
    IS = 16
    CONTAINS = 17
    STARTSWITH = 18
    ENDSWITH = 19
    INTEGER = 20
    FLOAT = 21
    STRING = 23
    NAME = 24
    EQUAL = 25
    NOT_EQUAL = 26
    GREATER = 27
    GREATER_EQUAL = 28
    LESS = 29
    LESS_EQUAL = 30
    OPEN = 31
    COMMA = 32
    CLOSE = 33
    PLUS = 34
    MINUS = 35


_SYMBOLS: Final = {
    "=": Kind.EQUAL, "<>": Kind.NOT_EQUAL, ">": Kind.GREATER, ">=": Kind.GREATER_EQUAL, "<": Kind.LESS,
    "<=": Kind.LESS_EQUAL, "(": Kind.OPEN, ",": Kind.COMMA, ")": Kind.CLOSE, "+": Kind.PLUS, "-": Kind.MINUS,
}  # fmt: skip

_KEYWORDS: Final = {
    kind.name: kind
    for kind in (
        Kind.NOT, Kind.AND, Kind.OR, Kind.BETWEEN, Kind.IN, Kind.TRUE, Kind.FALSE, Kind.NULL, Kind.IS,
        Kind.CONTAINS, Kind.STARTSWITH, Kind.ENDSWITH,
    )
}  # fmt: skip
KEYWORD_SIZE_MAX = max(map(len, _KEYWORDS))

_IMAGES: Final = {
    Kind.END: "<EOF>", Kind.INTEGER: "<DECIMAL_LITERAL>", Kind.FLOAT: "<FLOATING_POINT_LITERAL>",
    Kind.STRING: "<STRING_LITERAL>", Kind.NAME: "<ID>",
    **{kind: f'"{name}"' for name, kind in _KEYWORDS.items()},
    **{kind: f'"{symbol}"' for symbol, kind in _SYMBOLS.items()},
}  # fmt: skip

_SPACE = re.compile(r"[ \t\n\r\f]*+")
_COMMENT_LINE = re.compile(r"--[^\n\r]*+(?:\r\n|[\n\r])")
_TOKEN = re.compile(
    r"""(?P<name>[A-Za-z_$][A-Za-z0-9_$]*+)
      | (?P<float>(?:[0-9]++\.[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)? | [0-9]++[eE][+-]?[0-9]++)
      | (?P<integer>0 | [1-9][0-9]*+[lL]?)
      | (?P<string>'[^']*+(?:''[^']*+)*')
      | (?P<symbol><> | >= | <= | [=<>(),+-])""",
    re.VERBOSE,
)
_KINDS: Final = {"float": Kind.FLOAT, "integer": Kind.INTEGER, "string": Kind.STRING}


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its kind and text, and where it is, as indexes of the expression."""

    kind: Kind
    text: str
    start: int
    end: int


class Lexer:
    """Reads the tokens of one expression in turn; time is linear in its length."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._position = 0
        self._last_line_end = max(text.rfind("\n"), text.rfind("\r"))

    def next(self) -> Token:
        """The next token, `Kind.END` at the end. Raises `FilterError` where there is none."""
        start = self._skip()
        if start == len(self.text):
            return Token(Kind.END, "", start, start)
        match = _TOKEN.match(self.text, start)
        if match is None:
            raise self._error(start)
        text, group = match[0], str(match.lastgroup)
        self._position = match.end()
        if group == "name":
            kind = Kind.NAME
            if len(text) <= KEYWORD_SIZE_MAX:
                kind = _KEYWORDS.get(text.upper(), kind)
        else:
            kind = _SYMBOLS[text] if group == "symbol" else _KINDS[group]
        return Token(kind, text, start, self._position)

    def _skip(self) -> int:
        """The first character that belongs to a token: behind space, comments of a line, and of a block."""
        text, position = self.text, self._position
        while True:
            match = _SPACE.match(text, position)
            assert match is not None, "the pattern matches the empty text"
            position = match.end()
            # Java wants the line's end; without one, "--" is two signs. Nor is it searched again and again.
            if position < self._last_line_end and (comment := _COMMENT_LINE.match(text, position)):
                position = comment.end()
            elif text.startswith("/*", position) and (end := text.find("*/", position + 2)) >= 0:
                position = end + 2
            else:
                return position

    def _error(self, start: int) -> FilterError:
        """Where Java's automaton stops, with its habit to say <EOF> when nothing follows what it has read."""
        units = utf16_units(self.text)
        begin = len(utf16_units(self.text[:start]))
        if units[begin] == "'" or units.startswith("/*", begin):
            end = len(units)
        else:
            end = min(begin + (2 if units[begin] in "./" else 1), len(units))
        line, column = _position(units[:end])
        if end == len(units):
            line, column = (line + 1, 0) if units[-1] in "\n\r" else (line, column + 1)
            seen, after = "<EOF> ", "" if end == begin + 1 else units[begin:]
        else:
            character = units[end - 1]
            seen, after = f'"{escaped(character)}" ({ord(character)}), ', units[begin : end - 1]
        reason = (
            f'Lexical error at line {line}, column {column}.  Encountered: {seen}after : "{escaped(after)}"'
        )
        return FilterError(reason, line=line, column=column, java_class=TOKEN_ERROR)


def position_of(text: str, index: int) -> tuple[int, int]:
    """Line and column of a character, as Java's `SimpleCharStream` counts them; the index -1 is the last one.

    Columns are UTF-16 units, and a tab ends at a multiple of 8. An empty text has only 0, 0.
    """
    before = text if index < 0 else text[:index] + utf16_units(text[index : index + 1])[:1]
    return _position(utf16_units(before))


def _position(units: str) -> tuple[int, int]:
    """Line and column of the last unit."""
    if not units:
        return 0, 0
    line, column, before = 1, 0, ""
    for unit in units:
        column += 1
        if before == "\n" or (before == "\r" and unit != "\n"):
            line, column = line + 1, 1
        if unit == "\t":
            column += -column % 8
        before = unit
    return line, column


def image(kind: Kind) -> str:
    """How messages name a kind of token."""
    return _IMAGES[kind]


def utf16_units(text: str) -> str:
    """The text as Java's characters: two for one outside the basic plane."""
    if text.isascii() or max(text) <= "\uffff":
        return text
    raw = text.encode("utf-16-be", "surrogatepass")
    return "".join(chr(raw[i] << 8 | raw[i + 1]) for i in range(0, len(raw), 2))


_ESCAPES: Final = {
    "\0": "", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r",
    '"': '\\"', "'": "\\'", "\\": "\\\\",
}  # fmt: skip


def escaped(text: str) -> str:
    """Text inside of a message, with Java's escapes."""
    if text.isascii() and text.isalnum():
        return text
    return "".join(
        _ESCAPES[unit] if unit in _ESCAPES else unit if " " <= unit <= "~" else f"\\u{ord(unit):04x}"
        for unit in utf16_units(text)
    )
