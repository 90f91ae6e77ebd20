"""The key-value configuration of a name server: namespaces of texts, and the file that keeps them.

Source: RocketMQ's `KVConfigManager`; the file's layout is that of `KvConfig`.
"""

from __future__ import annotations

from typing import Final

from brokerset_formats import fastjson
from brokerset_formats.config import KvConfig
from brokerset_formats.errors import FormatError

NAMESPACES_MAX: Final = 1_000
"""Namespaces; one more is refused."""

ENTRIES_MAX: Final = 100_000
"""Entries of all namespaces; one more is refused."""

NAME_LENGTH_MAX: Final = 1_024
"""Characters of a namespace or key."""

VALUE_LENGTH_MAX: Final = 64 * 1024
"""Characters of a value."""

TOTAL_LENGTH_MAX: Final = 8 * 1024 * 1024
"""Characters of all keys and values, so that the answer with a whole namespace fits a frame."""


class KvTable:
    """Texts by namespace and key."""

    __slots__ = ("_entries", "_length", "_namespaces")

    def __init__(self) -> None:
        self._namespaces: dict[str, dict[str, str]] = {}
        self._entries = 0
        self._length = 0

    @property
    def entry_count(self) -> int:
        """Number of entries in all namespaces."""
        return self._entries

    def put(self, namespace: str, key: str, value: str) -> str | None:
        """Set an entry; returns why that is refused, or `None`."""
        for label, text in (("namespace", namespace), ("key", key)):
            if not text or len(text) > NAME_LENGTH_MAX:
                return f"{label} has {len(text)} characters, 1 to {NAME_LENGTH_MAX} allowed"
        if len(value) > VALUE_LENGTH_MAX:
            return f"the value has {len(value)} characters, at most {VALUE_LENGTH_MAX} allowed"
        table = self._namespaces.get(namespace)
        old = table.get(key) if table is not None else None
        if table is None and len(self._namespaces) >= NAMESPACES_MAX:
            return f"there are {NAMESPACES_MAX} namespaces already"
        if old is None and self._entries >= ENTRIES_MAX:
            return f"there are {ENTRIES_MAX} entries already"
        growth = len(value) - len(old) if old is not None else len(key) + len(value)
        if self._length + growth > TOTAL_LENGTH_MAX:
            return f"all keys and values together would exceed {TOTAL_LENGTH_MAX} characters"
        self._namespaces.setdefault(namespace, {})[key] = value
        self._entries += old is None
        self._length += growth
        return None

    def get(self, namespace: str, key: str) -> str | None:
        """The value of an entry."""
        table = self._namespaces.get(namespace)
        return table.get(key) if table is not None else None

    def delete(self, namespace: str, key: str) -> bool:
        """Remove an entry; returns whether there was one. Its namespace stays, as in Java."""
        value = self._namespaces.get(namespace, {}).pop(key, None)
        if value is None:
            return False
        self._entries -= 1
        self._length -= len(key) + len(value)
        return True

    def keep_namespace(self, namespace: str) -> None:
        """Know a namespace even if it has no entries."""
        if len(self._namespaces) < NAMESPACES_MAX:
            self._namespaces.setdefault(namespace, {})

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All entries of a namespace, by key in order; `None` if it was never used."""
        table = self._namespaces.get(namespace)
        return dict(sorted(table.items())) if table is not None else None

    def encode_namespace(self, namespace: str) -> bytes | None:
        """A namespace as the body of answers: a `KVTable`."""
        table = self.namespace(namespace)
        return fastjson.dumps({"table": table}) if table is not None else None

    def encode(self) -> bytes:
        """The whole file."""
        ordered = {name: dict(sorted(table.items())) for name, table in sorted(self._namespaces.items())}
        return KvConfig(ordered).encode()


def decode(data: bytes) -> KvTable:
    """The table that a file holds. Raises `FormatError` with what is wrong, also when a limit is exceeded."""
    table = KvTable()
    for namespace, entries in KvConfig.decode(data).namespaces.items():
        table.keep_namespace(namespace)
        for key, value in entries.items():
            problem = table.put(namespace, key, value)
            if problem is not None:
                raise FormatError(f"{key[:80]!r} in namespace {namespace[:80]!r}: {problem}")
    return table
