"""Lists of generated pages: a name, what is to know about it at a glance, and sentences."""

from __future__ import annotations

import re
import textwrap
from typing import Final

COLUMNS: Final = 120
MARKS: Final = re.compile(r"\s*([-+*#>]|\d+[.)])\s")


def item(name: str, facts: str, meaning: str) -> str:
    """One item: the name and the facts, and below them the meaning."""
    head = _wrapped(f"`{name}`{': ' if facts else ''}{facts}", "* ", COLUMNS - 1)
    below = _wrapped(meaning, "  ", COLUMNS)
    if below:
        head[-1] += "\\"
    return "\n".join([*head, *below])


def entry(title: str, text: str) -> str:
    """One item that is a title and a sentence or two."""
    return "\n".join(_wrapped(f"{title}: {text}", "* ", COLUMNS))


def _wrapped(text: str, indent: str, columns: int) -> list[str]:
    lines = textwrap.wrap(
        text,
        columns,
        initial_indent=indent,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    later = lines[1:] if indent.strip() else lines
    assert not any(MARKS.match(line) for line in later), f"a line would begin a list: {text}"
    return lines
