"""Until when a master may serve."""

from __future__ import annotations

import pytest

from brokerset_broker.member.lease import URGENT_SECONDS, Lease


def test_without_a_lease_nobody_serves() -> None:
    """A mastership begins without a lease."""
    assert not Lease().valid(0.0, 1)


def test_a_lease_runs_from_the_sending() -> None:
    """The lease counts from when the heartbeat was sent, whenever its answer comes."""
    lease = Lease()
    assert lease.granted(10.0, 2_000, 3)

    assert lease.valid(11.9, 3)
    assert not lease.valid(12.0, 3)
    assert lease.ends_at == 12.0


def test_a_lease_is_for_one_epoch() -> None:
    """A lease of another epoch is none, and an older one does not replace a newer one."""
    lease = Lease()
    lease.granted(10.0, 2_000, 3)

    assert not lease.valid(11.0, 4)
    assert not lease.granted(20.0, 2_000, 2)
    assert lease.granted(10.5, 1_000, 4)
    assert lease.valid(11.0, 4)
    assert not lease.valid(11.0, 3)


def test_answers_may_overtake_each_other() -> None:
    """An older answer does not shorten the lease; an empty one is none."""
    lease = Lease()
    lease.granted(10.0, 2_000, 3)

    assert not lease.granted(9.0, 2_000, 3)
    assert not lease.granted(12.0, 0, 3)
    assert lease.ends_at == 12.0


def test_after_half_of_the_lease_heartbeats_hurry() -> None:
    """Also without any lease; who is not master keeps its pace."""
    lease = Lease()
    assert lease.pause_seconds(0.0, 3, 0.5) == URGENT_SECONDS

    lease.granted(0.0, 1_200, 3)

    assert lease.pause_seconds(0.0, 3, 0.5) == 0.5
    assert lease.pause_seconds(0.3, 3, 0.5) == pytest.approx(0.3), "not later than the half"
    assert lease.pause_seconds(0.6, 3, 0.5) == URGENT_SECONDS
    assert lease.pause_seconds(0.6, None, 0.5) == 0.5


def test_who_gave_up_its_lease_needs_one_that_was_asked_for_later() -> None:
    """An answer to an earlier heartbeat says nothing about a switchover that came between."""
    lease = Lease()
    lease.granted(0.0, 5_000, 3)

    lease.give_up(1.0)

    assert not lease.valid(1.0, 3)
    assert not lease.granted(0.9, 5_000, 3)
    assert lease.granted(1.0, 5_000, 3)
    assert lease.valid(1.0, 3)


def test_rocketmqs_controllers_give_none() -> None:
    """With RocketMQ's controllers a master serves without a lease."""
    lease = Lease(required=False)

    assert lease.valid(0.0, 1)
    assert lease.pause_seconds(100.0, 1, 0.5) == 0.5
