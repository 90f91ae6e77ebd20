"""A small store in a temporary folder, on a clock that stands still."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.store import Appended, MessageStore
from brokerset_formats.hosts import Host
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

BORN_HOST = Host.from_text("10.0.0.1", 54321).encode()


class Stores:
    """Opens stores and lets go of those that a test leaves open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        self._open: list[MessageStore] = []

    def settings(self, **changes: Any) -> BrokerSettings:
        """Files of 64 KiB, queue files of 10 units, a small index."""
        values: dict[str, Any] = {
            "store_path_root_dir": self.root,
            "mapped_file_size_commit_log": 65_536,
            "mapped_file_size_consume_queue": 200,
            "max_hash_slot_num": 50,
            "max_index_num": 200,
            "max_message_size": 20_000,
        }
        return BrokerSettings(**(values | changes))

    def make(self, **changes: Any) -> MessageStore:
        """A store that is not loaded yet."""
        store = MessageStore(self.settings(**changes), self.clock)
        self._open.append(store)
        return store

    def open(self, *, accept_damage: bool = False, **changes: Any) -> MessageStore:
        """A loaded store."""
        store = self.make(**changes)
        store.load(accept_damage=accept_damage)
        return store

    def abandon_all(self) -> None:
        """What a crash does to all stores that are open."""
        for store in self._open:
            store.abandon()
        self._open.clear()

    @staticmethod
    def append(
        store: MessageStore,
        body: bytes = b"body",
        properties: bytes = b"",
        *,
        topic: str = "T",
        queue_id: int = 0,
        sys_flag: int = 0,
        born_host: bytes = BORN_HOST,
        tags_code: int | None = None,
    ) -> Appended:
        """Append with values that do not matter."""
        return store.append(
            topic,
            queue_id,
            body,
            properties,
            flag=0,
            sys_flag=sys_flag,
            born_timestamp=1_600_000_000_000,
            born_host=born_host,
            tags_code=tags_code,
        )


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    """Opens stores below a temporary folder."""
    stores = Stores(tmp_path / "store")
    yield stores
    stores.abandon_all()
