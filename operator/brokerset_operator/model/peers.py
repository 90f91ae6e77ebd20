"""Sets that share controllers: a set whose controllers others use, and the sets that use them. Pure.

Of two such sets only controllers and brokers talk to each other, in both directions. So they go their ways
over stages (`staging`) together: their pods are never further apart than those of one set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brokerset_operator.model.certificates import trust_config_map
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
    """What is wrong with its ConfigMap of authorities, and what to do."""

    @property
    def unknown(self) -> str | None:
        """Why its authorities are not known; None where they are, or where it has none."""
        named = None if self.manifest is None else trust_config_map(self.manifest)
        if self.trust_problem is not None or named is None or self.authorities:
            return self.trust_problem
        return f"ConfigMap {named} is not there yet"

    @property
    def is_watched(self) -> bool:
        """Whether there are events when its authorities change: not of a ConfigMap that people keep."""
        return self.manifest is None or self.manifest.spec.tls.trust_config_map is None
