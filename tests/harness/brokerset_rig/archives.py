"""Unpacking the stores that are kept as archives."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def extract_archive(
    archive: tarfile.TarFile, folder: Path, members: Iterable[tarfile.TarInfo] | None = None
) -> None:
    """Unpack an archive, or these members of it, without owners and links that lead out.

    Python before 3.11.4 has no filters for that; our own archives are harmless without.
    """
    how: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    archive.extractall(folder, members, **how)
