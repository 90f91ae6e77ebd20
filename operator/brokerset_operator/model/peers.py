"""Sets that share controllers: a set whose controllers others use, and the sets that use them. Pure.

Of two such sets only controllers and brokers talk to each other, in both directions. So they go their ways
over stages (`staging`) together: their pods are never further apart than those of one set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brokerset_spec.manifest import BrokerSet


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSet:
    """Another set, as far as pods of the one that is reconciled talk to its pods."""

    name: str
    manifest: BrokerSet | None = None
    """None when it is invalid: its pods stay as they are."""

    pods: tuple[Mapping[str, Any], ...] = ()
    """Metadata of its controllers, or of its brokers, and of the templates that make them."""

    authorities: str = ""
    """In PEM: who signs its certificates. Empty if that is not known."""

    trust_problem: str | None = None
    """Why that is not known, and what to do; None also where it has no certificates."""
