"""What the plan remembers from one reconcile to the next: `status.workflow`, as typed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from brokerset_operator.model.remembered import kept, read, write

write_workflow = write


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacing:
    """A pod that is deleted by us to be made again. Written down one reconcile before it is deleted."""

    pod: str
    uid: str
    since: float
    """When that was decided, in seconds since 1970."""

    broker_id: int | None = field(default=None, metadata=kept("id"))
    incarnation: int | None = None
    """Start of the broker that was seen last; the new pod's is higher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A broker that leaves its group by scale-in."""

    ordinal: int
    since: float = field(default=0.0, metadata=kept(always=True))
    """When that was decided, in seconds since 1970."""

    broker_id: int | None = field(default=None, metadata=kept("id"))
    """None when it never had one."""

    claim_uid: str | None = None
    """The claim that goes with it, when an annotation asked for that; None: it stays."""

    claim_resource: str = field(default="", metadata=kept("claim"))
    """Name of that claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWork:
    """What is remembered of a broker group; it stays when the group goes, for its volumes stay too."""

    name: str
    """Broker name."""

    expected: int = field(default=0, metadata=kept("expectedReplicas", always=True))
    """Number of brokers at the group's first creation."""

    replicas: int = field(default=0, metadata=kept(always=True))
    """Most pods that the StatefulSet was allowed to have since it was last seen with fewer."""

    led: bool = field(default=False, metadata=kept(always=True))
    """Whether it ever had a master: then it may have messages."""

    whole: bool = field(default=False, metadata=kept(always=True))
    """Whether all its brokers ever were in sync at once: until then it is being created."""

    ids: Mapping[int, int] = field(default_factory=dict, metadata=kept(always=True, pair=("ordinal", "id")))
    """Broker id on the volume of each ordinal, as last seen alive."""

    replacing: Replacing | None = None
    leaving: Leaving | None = None

    aside: tuple[int, ...] = ()
    """Ids that were fenced by scale-in and whose volume was kept."""

    orphans: Mapping[int, float] = field(default_factory=dict, metadata=kept(pair=("id", "since")))
    """Ids that seem to have no volume any more, with the time since when."""

    drain_since: float | None = None
    empty_since: float | None = None
    """Since when nobody has anything left to read in a group that is drained."""

    opening: bool = False
    """Whether a drain was called off, and the group is being made writable again."""

    astray_since: float | None = None
    """Since when the `-master` Service contradicts the controllers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """All of it."""

    controllers: Replacing | None = field(default=None, metadata=kept("controller"))
    """The controller that is being replaced."""

    controller_replicas: int = 0
    """Controllers that the set was made with: these are the first members."""

    blank_controllers: bool = False
    """Whether the controllers' volumes, which a deleted set left, were found to have no data."""

    changed_users: str = ""
    """The Secret whose passwords its two users have, or are about to get; empty once that is behind
    (`model/password_rotation`)."""

    groups: Mapping[int, GroupWork] = field(
        default_factory=dict, metadata=kept(always=True, pair=("index", ""))
    )
    """By index."""


def read_workflow(status: Mapping[str, Any]) -> Workflow:
    """Return what `status.workflow` says."""
    return read(Workflow, status.get("workflow")) or Workflow()
