"""How the operator connects to the pods of a set, and as whom it signs what it asks them."""

from __future__ import annotations

from dataclasses import dataclass, field

from brokerset_acl.signatures import Sign
from brokerset_runtime.tls import ClientTls


@dataclass(frozen=True, slots=True)
class Connecting:
    """The same for all pods of a set; what is None is as the operator's own environment says."""

    tls: ClientTls | None = None
    sign: Sign | None = field(default=None, repr=False)


AS_ENVIRONMENT = Connecting()
"""As the operator's own environment says."""
