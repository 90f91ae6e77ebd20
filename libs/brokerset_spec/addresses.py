"""Lists of addresses in settings. Pure."""

from __future__ import annotations


def addresses(text: str) -> list[str]:
    """The entries of `host:port;host:port`, each once."""
    return list(dict.fromkeys(part.strip() for part in text.split(";") if part.strip()))
