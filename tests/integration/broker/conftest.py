from __future__ import annotations

from pathlib import Path

import pytest

from brokerset_rig import local_servers


@pytest.fixture
def setup(tmp_path: Path) -> local_servers.Setup:
    """Brokers on a folder of this test."""
    return local_servers.Setup(tmp_path / "store")
