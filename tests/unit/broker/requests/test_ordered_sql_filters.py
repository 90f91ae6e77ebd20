"""SQL92 filters next to ordered subjects: sessions that own a queue may filter, Shared groups may not."""

from __future__ import annotations

from typing import Any, Final

from brokerset_protocol.codes import ResponseCode
from brokerset_rig.local_servers import bodies
from brokerset_rig.ordered_broker import Brokers
from brokerset_rig.shared_sessions import shared

NOBODY: Final[dict[str, Any]] = {"subscription": "ORDER_STAMP IS NULL", "expressionType": "SQL92"}
ALL: Final[dict[str, Any]] = {"subscription": "ORDER_STAMP IS NOT NULL", "expressionType": "SQL92"}


async def test_an_owner_gets_what_matches_and_may_acknowledge_what_does_not(brokers: Brokers) -> None:
    master = await brokers.master(enable_property_filter=True)
    await master.send(4)
    await master.claim()
    found = await master.pull(0, **ALL)
    passed_by = await master.pull(0, **NOBODY)
    acked = await master.ack(0, 3)

    assert found.answer is not None
    assert bodies(found.answer) == [b"0", b"1", b"2", b"3"]
    assert (passed_by.code, passed_by.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "4")
    assert (acked.code, acked.ext["position"]) == (0, "4")


async def test_a_waiting_owner_hears_of_messages_that_do_not_match(brokers: Brokers) -> None:
    """Its session is known by its offset, so it does not wait from another one on."""
    master = await brokers.master(enable_property_filter=True)
    await master.send(1)
    await master.claim()
    await master.pull(0, **ALL)
    waiting = await master.pull(1, **NOBODY)
    assert waiting.answer is None

    await master.send(1, producer="q")

    assert (waiting.code, waiting.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "2")


async def test_sessions_of_a_shared_group_are_refused(brokers: Brokers) -> None:
    """They get nothing by it, and go on without."""
    master = await brokers.master(enable_property_filter=True)
    await master.send(2)
    (one,) = await shared(master, "s1")
    refused = await one.pull_call(one.start, **ALL)

    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "Shared group" in refused.remark
    assert await one.pull() == [b"0", b"1"]
