"""Stores that Java wrote, unpacked once."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerset_rig.archives import extract_archive

FIXTURES = Path(__file__).parents[3] / "peers" / "fixtures"
Unpack = Callable[[str], Path]


@pytest.fixture(scope="session")
def java_store(tmp_path_factory: pytest.TempPathFactory) -> Unpack:
    """Folder of a store, by archive and broker: `classic/broker-0`. Nobody may change it."""
    known: dict[str, Path] = {}

    def unpack(name: str) -> Path:
        if name not in known:
            archive = name.partition("/")[0]
            folder = tmp_path_factory.mktemp(archive)
            with tarfile.open(FIXTURES / f"{archive}.tar.xz") as packed:
                wanted = [each for each in packed.getmembers() if each.name.startswith(f"{name}/store/")]
                extract_archive(packed, folder, wanted)
            known[name] = folder / name / "store"
        return known[name]

    return unpack
