"""Parts of hand-written pages that are generated: what stands between two marks."""

from __future__ import annotations

END = "<!-- end -->"


def replaced(text: str, name: str, made: str) -> str:
    """`text` with another part between the marks called `name`."""
    begin = f"<!-- {name}: made by `make generate` -->\n"
    assert text.count(begin) == 1, f"the page has no one place for {name!r}"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{made}\n\n{END}{rest.partition(END)[2]}"
