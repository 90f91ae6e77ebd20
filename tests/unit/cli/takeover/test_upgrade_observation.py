"""What the observer sees of a store whose broker registers at that moment."""

from __future__ import annotations

import asyncio
from pathlib import Path

from brokerset_cli.takeover.broker_queries import BrokerQueries
from brokerset_cli.takeover.upgrade_facts import OldStore, StoreSeen
from brokerset_cli.takeover.upgrade_observation import with_registration


def test_ids_are_read_after_the_controllers_were_asked(tmp_path: Path) -> None:
    """A broker that they know by then claims its id, or has it, though its store was read before."""
    seen = StoreSeen(OldStore(tmp_path))

    async def observe() -> StoreSeen:
        async with BrokerQueries() as queries:
            return await with_registration(queries, seen)

    assert not asyncio.run(observe()).claims_id
    (tmp_path / "brokerIdentity-temp").write_bytes(b"c#broker-a#1#code")
    claims = asyncio.run(observe())
    (tmp_path / "brokerIdentity").write_bytes(b"c#broker-a#1")
    granted = asyncio.run(observe())

    assert claims.claims_id
    assert claims.store.identity is None
    assert granted.store.identity is not None
    assert granted.store.identity.broker_id == 1
