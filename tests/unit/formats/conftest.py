"""Stores that the Java broker wrote, for the formats' tests."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerset_rig.archives import extract_archive

PEERS = Path(__file__).parents[2] / "peers"


@pytest.fixture
def unpack(tmp_path: Path) -> Callable[[str, str], Path]:
    """Unpacks the members of one archive below a folder, and gives that folder back."""

    def unpack_into_tmp(archive: str, folder: str) -> Path:
        with tarfile.open(PEERS / "fixtures" / f"{archive}.tar.xz") as tar:
            prefix = f"{archive}/{folder}"
            members = [member for member in tar if member.name.startswith(prefix)]
            extract_archive(tar, tmp_path, members)
        assert members, f"{archive} has nothing below {folder}"
        return tmp_path / archive / folder

    return unpack_into_tmp


@pytest.fixture
def wire_body() -> Callable[[str], bytes]:
    """Gives the body of a recorded answer of the Java broker or name server."""

    def body_of(name: str) -> bytes:
        recorded = json.loads((PEERS / "golden" / "wire" / f"{name}.json").read_text())
        return str(recorded["body"]).encode()

    return body_of
