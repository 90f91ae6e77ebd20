"""Stores that Java wrote, unpacked once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from brokerset_rig.made_stores import unpacked_once

Unpack = Callable[[str], Path]


@pytest.fixture(scope="session")
def java_store(tmp_path_factory: pytest.TempPathFactory) -> Unpack:
    """Folder of a store, by archive and broker: `classic/broker-0`. Nobody may change it."""

    unpacked = unpacked_once(tmp_path_factory)

    def unpack(name: str) -> Path:
        archive, _, broker = name.partition("/")
        return unpacked(archive) / broker / "store"

    return unpack
