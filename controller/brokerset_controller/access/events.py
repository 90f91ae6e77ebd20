"""What controllers agree on about users and policies; plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brokerset_acl.policies import Acl
from brokerset_acl.users import User


@dataclass(frozen=True, slots=True)
class BookChanged:
    """Users by name and policies by subject are these now; None where one is deleted."""

    base_version: int
    """The version that this was decided on; with another one nothing happens."""

    at_ms: int
    """The leader's time, which becomes the version."""

    users: Mapping[str, User | None]
    acls: Mapping[str, Acl | None]


@dataclass(frozen=True, slots=True)
class BookAdopted:
    """All that a broker group had before it asked the controllers; counts once for each group."""

    broker_group: str
    at_ms: int
    users: Mapping[str, User]
    acls: Mapping[str, Acl]


AccessEvent = BookChanged | BookAdopted
