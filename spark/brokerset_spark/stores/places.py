"""Which paths and URLs are served. Anything else with a scheme is refused: taken as a path it would become a
folder of this machine with a strange name."""

from __future__ import annotations

import re
from typing import Final

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
"""With one slash as well: that is what a path makes of `s3a://`."""

_STREAM: Final = ("http", "https")
_OBJECTS: Final = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")


class NotServed(ValueError):
    """The place has a scheme that is not served."""


def scheme_of(text: str) -> str:
    """The scheme of a URL in lower case; empty for a path."""
    if text.startswith("file:"):
        return "file"
    found = _SCHEME.match(text)
    return found[1].lower() if found else ""


def without_secrets(text: str) -> str:
    """The text for an error or a log: of a URL neither user (of Azure: the container), password nor
    parameters."""
    scheme = scheme_of(text)
    if not scheme:
        return text
    secret = r":[^/?#]*(?=@)" if scheme.startswith("abfs") else r"(?<=//)[^/?#]*@"
    head, slashes, rest = re.sub(r"[?#].*", "", text, flags=re.DOTALL).partition("//")
    return head + re.sub(secret, "", slashes + rest, count=1)


def is_stream(text: str) -> bool:
    """Whether it is the address of a broker's read-only stream."""
    return scheme_of(text) in _STREAM


def is_object(text: str) -> bool:
    """Whether it is the URL of a place in object storage or HDFS, in full: with a bucket or host and a
    path."""
    if scheme_of(text) not in _OBJECTS:
        return False
    return re.match(r"[A-Za-z0-9]+://[^/?#]*/[^?#]*[^/?#]", text) is not None


def is_remote(text: str) -> bool:
    """Whether it is read over a network, so that it is no path of this machine."""
    return is_stream(text) or is_object(text)


def local_path(text: str) -> str:
    """The path that a path or a `file:` URL names; NotServed for another scheme or another machine."""
    scheme = scheme_of(text)
    if not scheme:
        return text
    if scheme != "file":
        raise NotServed(
            f"{without_secrets(text)}: {scheme}: is not served here. Give a path of this machine or "
            "file:///PATH; mount what lies elsewhere, or copy it with the tools of that place"
        )
    rest = text[len("file:") :]
    if not rest.startswith("//"):
        return rest
    host, slash, path = rest[2:].partition("/")
    if host not in ("", "localhost"):
        raise NotServed(f"{text}: a file: URL names no other machine; write file:///PATH")
    return slash + path


def check_store(text: str) -> str:
    """The same text if a store can be opened there: a path, a `file:` URL, a broker's stream, object storage;
    else NotServed."""
    if is_remote(text):
        return text
    scheme = scheme_of(text)
    if scheme not in ("", "file"):
        raise NotServed(
            f"{without_secrets(text)}: is not served. A store is a folder (a path, or file:///PATH), "
            f"a broker's http(s)://HOST:PORT/store, or SCHEME://BUCKET/PATH with {', '.join(_OBJECTS)}"
        )
    local_path(text)
    return text
