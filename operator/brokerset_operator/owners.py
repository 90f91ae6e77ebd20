"""Before a set is reconciled: does this installation look after it, or another one (`plan/owner`)?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from brokerset_kube import kinds
from brokerset_kube.client import Object
from brokerset_kube.errors import KubeError, NotFound
from brokerset_operator.apply import Means, write_status
from brokerset_operator.plan import owner, reasons
from brokerset_operator.plan.owner import Decision, read_owner

log = structlog.get_logger(__name__)

ASKED_SECONDS: Final = 2.0
"""How long an answer about another installation is believed: it is the same for all sets that it has."""

AGAIN_SECONDS: Final = 60.0
"""How soon to ask again about a set that another installation has: nobody tells when that is gone."""

INSTALLATIONS_MAX: Final = 256
"""Other installations of which answers are remembered; all are forgotten when there are more."""


class NotOurs(Exception):
    """Another installation looks after the set."""


@dataclass(slots=True)
class Owners:
    """Admits sets; one for the process."""

    means: Means
    _exists: dict[str, tuple[float, bool | None]] = field(default_factory=dict)
    _logged: dict[str, str] = field(default_factory=dict)

    async def admit(self, live: Object) -> Object:
        """The BrokerSet, which is this installation's from now on. Raises `NotOurs`, or a `KubeError`."""
        mine, found = self.means.installation, read_owner(live)
        if live["metadata"].get("deletionTimestamp"):
            return live
        exists = None
        if found.is_other(mine) and not found.wished:
            exists = await self._ask(found.marked)
        decision = found.decide(mine, exists)
        if decision is Decision.WORK:
            return live
        if decision is Decision.CLAIM:
            return await self._claim(live, found.marked)
        if decision is Decision.REFUSE:
            await self._refuse(live, owner.refusal_text(mine, found, exists))
        raise NotOurs(found.wished or found.marked)

    async def _claim(self, live: Object, before: str) -> Object:
        metadata = live["metadata"]
        status = owner.claimed(live.get("status") or {}, self.means.installation)
        version = await write_status(kinds.BROKER_SET, live, status, self.means)
        if before:
            log.info("set taken over", set=f"{metadata['namespace']}/{metadata['name']}", before=before)
        self._logged.pop(metadata["uid"], None)
        written = {**metadata, "resourceVersion": version or metadata["resourceVersion"]}
        return {**live, "metadata": written, "status": status}

    async def _refuse(self, live: Object, message: str) -> None:
        metadata = live["metadata"]
        if self._logged.get(metadata["uid"]) != message:
            if len(self._logged) >= INSTALLATIONS_MAX:
                self._logged.clear()
            self._logged[metadata["uid"]] = message
            log.warning(
                "set is left alone", set=f"{metadata['namespace']}/{metadata['name']}", reason=message
            )
        status = owner.refused(live, self.means.installation, message, self.means.clock.now_ms() / 1000)
        if status is not None:
            await write_status(kinds.BROKER_SET, live, status, self.means)
            await self.means.events.emit(live, reasons.OPERATOR_CONFLICT, message, warning=True)

    async def _ask(self, installation: str) -> bool | None:
        """Whether an installation exists, as long as its Lease does; None when that cannot be seen."""
        now = self.means.clock.monotonic()
        known = self._exists.get(installation)
        if known is not None and now - known[0] < ASKED_SECONDS:
            return known[1]
        namespace, _, name = installation.partition("/")
        found: bool | None = None
        if namespace and name:
            try:
                await self.means.client.get(kinds.LEASE, name, namespace)
                found = True
            except NotFound:
                found = False
            except KubeError as error:
                log.debug("lease of another operator cannot be read", lease=installation, reason=str(error))
        if len(self._exists) >= INSTALLATIONS_MAX:
            self._exists.clear()
        self._exists[installation] = now, found
        return found


def ensure_ours(broker_set: Mapping[str, Any], means: Means) -> None:
    """For what belongs to a set: whoever looks after that looks after these. Raises `NotOurs`."""
    found = read_owner(broker_set)
    if found.is_other(means.installation):
        raise NotOurs(found.wished or found.marked)
