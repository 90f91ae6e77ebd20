"""Until when a master may serve."""

from __future__ import annotations

from brokerset_broker.ha.lease import Lease


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


def test_half_a_lease_makes_it_urgent() -> None:
    """When half a lease has passed without another, it is time to ask more often."""
    lease = Lease()
    lease.granted(10.0, 2_000, 3)

    assert not lease.urgent(10.9)
    assert lease.urgent(11.0)
    lease.granted(10.8, 2_000, 3)
    assert not lease.urgent(11.0)


def test_rocketmqs_controllers_give_none() -> None:
    """With RocketMQ's controllers a master serves without a lease."""
    lease = Lease(required=False)

    assert lease.valid(0.0, 1)
    assert not lease.urgent(100.0)
