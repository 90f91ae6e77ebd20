from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerset_rig.ordered_broker import Brokers


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    """Makes brokers of one group, whose stores are let go at the end."""
    made = Brokers(tmp_path)
    yield made
    made.crash()
