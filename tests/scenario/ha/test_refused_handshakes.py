"""Handshakes that a master cannot take: counted, named in the log once, and without any other effect."""

from __future__ import annotations

import pytest

from brokerset_broker.member.ha import leader
from brokerset_broker.member.ha.links import LinkClosed, PeerRefused
from brokerset_broker.store.errors import PutStatus
from brokerset_protocol.ha_packets import SlaveHandshake
from brokerset_rig.fake_group import answered, group_of
from brokerset_rig.fake_ha import FakeSlaveLink
from brokerset_rig.log_lines import lines_of

pytestmark = pytest.mark.virtual

REASON = "the slave names its address where its id is due"


async def test_a_slave_that_sends_no_handshake_of_today_is_named_in_the_log() -> None:
    """Once for the same reason again and again; whoever only closes the connection is not worth a line."""

    async def refuse(link: FakeSlaveLink) -> SlaveHandshake:
        raise PeerRefused(REASON)

    async def leave(link: FakeSlaveLink) -> SlaveHandshake:
        raise LinkClosed("closed by the peer")

    async with group_of(2) as group:
        await group.elect(1)
        await group.in_sync(1, 2)
        port = group.network.network("9")
        with pytest.MonkeyPatch.context() as patched, lines_of(leader) as lines:
            for handshake in (refuse, refuse, leave):
                patched.setattr(FakeSlaveLink, "handshake", handshake)
                link = await port.connect("1", 1.0)
                with pytest.raises(LinkClosed):
                    await link.shake_hands(SlaveHandshake(9))

        told = [
            (line["log_level"], line["reason"]) for line in lines if line["event"] == "a slave is refused"
        ]
        assert told == [("warning", REASON), ("debug", REASON)]
        assert group[1].replication.status().connections_refused == 2
        _, answer = group[1].send("goes on")
        assert await answered(answer) is PutStatus.PUT_OK
        await group.same(2)


async def test_a_slave_that_says_nothing_is_taken_for_one_without_controllers() -> None:
    """RocketMQ 4.x is silent for 5 s after it has connected: then the connection ends, with the way out."""
    async with group_of(1) as group:
        await group.elect(1)
        with lines_of(leader) as lines:
            link = await group.network.network("9").connect("1", 1.0)
            reason = await link.closed()

        told = [line["reason"] for line in lines if line["event"] == "a slave is refused"]
        assert told == [reason]
        assert "no handshake in 5 s" in reason
        assert "enableControllerMode" in reason
