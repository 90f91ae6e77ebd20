"""Which paths and URLs are served. Anything else with a scheme is refused: taken as a path it would become a
folder of this machine with a strange name."""

from __future__ import annotations

import re
from typing import Final

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
"""With one slash as well: that is what a path makes of `s3a://`."""

_STREAM: Final = ("http", "https")


class NotServed(ValueError):
    """The place has a scheme that is not served."""


def scheme_of(text: str) -> str:
    """The scheme of a URL in lower case; empty for a path."""
    if text.startswith("file:"):
        return "file"
    found = _SCHEME.match(text)
    return found[1].lower() if found else ""


def is_stream(text: str) -> bool:
    """Whether it is the address of a broker's read-only stream."""
    return scheme_of(text) in _STREAM


def local_path(text: str) -> str:
    """The path that a path or a `file:` URL names; NotServed for another scheme or another machine."""
    scheme = scheme_of(text)
    if not scheme:
        return text
    if scheme != "file":
        raise NotServed(
            f"{text}: {scheme}: is not served here. Give a path of this machine or file:///PATH; mount what "
            "lies elsewhere, or copy it with the tools of that place"
        )
    rest = text[len("file:") :]
    if not rest.startswith("//"):
        return rest
    host, slash, path = rest[2:].partition("/")
    if host not in ("", "localhost"):
        raise NotServed(f"{text}: a file: URL names no other machine; write file:///PATH")
    return slash + path


def check_store(text: str) -> str:
    """The same text if a store can be opened there: a path, a `file:` URL, a broker's stream; else
    NotServed."""
    if is_stream(text):
        return text
    scheme = scheme_of(text)
    if scheme not in ("", "file"):
        raise NotServed(
            f"{text}: {scheme}: is not served. A store is a folder (a path, or file:///PATH), or a broker's "
            "http(s)://HOST:PORT/store; mount a bucket or copy the store from it"
        )
    local_path(text)
    return text
