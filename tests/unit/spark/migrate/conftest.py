"""Stores that Java wrote, unpacked once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from brokerset_rig.made_stores import unpack_fixture

Unpack = Callable[[str], Path]


@pytest.fixture(scope="session")
def java_store(tmp_path_factory: pytest.TempPathFactory) -> Unpack:
    """Folder of a store, by archive and broker: `classic/broker-0`. Nobody may change it."""

    @cache
    def unpacked(archive: str) -> Path:
        return unpack_fixture(tmp_path_factory.mktemp(archive), archive)

    def unpack(name: str) -> Path:
        archive, _, broker = name.partition("/")
        return unpacked(archive) / broker / "store"

    return unpack
