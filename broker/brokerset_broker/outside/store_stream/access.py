"""Who may read: everybody who reaches the port, or who knows the token."""

from __future__ import annotations

import hmac
import os
from pathlib import Path
from typing import Final

TOKEN_SIZE_MAX: Final = 4_096

_SCHEME: Final = "bearer "


class AccessFile:
    """A file with one token, read again when it has changed: secrets are replaced while processes run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state: tuple[int, int, int] | None = None
        self._token = b""

    def allows(self, header: str | None) -> bool:
        """Whether an `Authorization` header names the token. Blocks.

        OSError or ValueError if there is no token to compare with; then nobody may read.
        """
        token = self._read()
        if header is None or not header.lower().startswith(_SCHEME):
            return False
        return hmac.compare_digest(header[len(_SCHEME) :].strip().encode("utf-8", "surrogateescape"), token)

    def _read(self) -> bytes:
        facts = os.stat(self._path)
        state = facts.st_mtime_ns, facts.st_size, facts.st_ino
        if state != self._state:
            with open(self._path, "rb") as stream:
                token = stream.read(TOKEN_SIZE_MAX + 1).strip()
            if not token or len(token) > TOKEN_SIZE_MAX:
                raise ValueError(f"{self._path} must hold a token of 1 to {TOKEN_SIZE_MAX} bytes")
            self._token, self._state = token, state
        return self._token
