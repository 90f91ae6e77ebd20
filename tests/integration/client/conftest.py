from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from .fake_broker import FakeCluster, fake_cluster


@pytest.fixture
def cluster() -> AbstractAsyncContextManager[FakeCluster]:
    """A name server and brokers with queues in memory."""
    return fake_cluster()
