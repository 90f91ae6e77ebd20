"""Broker groups and looks at them, written in few words for tests of the controller's rules."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from brokerset_controller.liveness import PRIORITY_DEFAULT, LiveReplica, LiveView, Standing
from brokerset_controller.replicas.state import Group, Replica

NAME = "a"
CLUSTER = "demo"


def group_of(
    *ids: int,
    master: int | None = None,
    epoch: int = 0,
    in_sync: Iterable[int] = (),
    set_epoch: int = 0,
    suspects: Iterable[int] = (),
    expected: int = 0,
    owner: str | None = None,
    next_id: int | None = None,
    nonces: bool = True,
    fenced: Iterable[int] = (),
    unproven: Iterable[int] = (),
) -> Group:
    """A group whose replica N is at `hN:1`, has the check code `hN:1;N`, and the nonce `nN`."""
    return Group(
        CLUSTER,
        NAME,
        owner=owner,
        expected_replicas=expected,
        next_broker_id=next_id or max(ids, default=0) + 1,
        replicas=MappingProxyType(
            {
                key: Replica(key, f"h{key}:1", f"h{key}:1;{key}", f"n{key}" if nonces else None, int(nonces))
                for key in ids
            }
        ),
        master_id=master,
        master_epoch=epoch,
        sync_state_set=frozenset(in_sync),
        sync_state_set_epoch=set_epoch,
        suspects=frozenset(suspects),
        fenced=frozenset(fenced),
        unproven=frozenset(unproven),
    )


def live(
    broker_id: int,
    epoch: int = -1,
    offset: int = -1,
    *,
    nonce: str | None = "",
    priority: int = PRIORITY_DEFAULT,
    address: str = "",
    confirmed: int = -1,
    stuck: bool = False,
    all_ack: bool | None = None,
    surely_dead: bool = False,
    lost_cache: bool = False,
) -> LiveReplica:
    """What was heard of a replica; the nonce is `nN` unless one is given."""
    return LiveReplica(
        address or f"h{broker_id}:1",
        f"n{broker_id}" if nonce == "" else nonce,
        epoch,
        offset,
        confirmed,
        priority,
        0.0,
        stuck,
        all_ack,
        surely_dead,
        lost_cache,
    )


def view_of(
    *alive: int,
    dead: Iterable[int] = (),
    logs: dict[int, tuple[int, int]] | None = None,
    lease_seconds: float = 0.0,
    **lives: LiveReplica,
) -> LiveView:
    """A look: these are alive, those dead, the rest unknown; `logs` has (epoch, offset), `r1=…` all of it."""
    standings = dict.fromkeys(alive, Standing.ALIVE) | dict.fromkeys(dead, Standing.DEAD)
    found = {key: live(key, *(logs or {}).get(key, (-1, -1))) for key in standings}
    return LiveView(standings, found | {int(name[1:]): one for name, one in lives.items()}, lease_seconds)
