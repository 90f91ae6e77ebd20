"""One operator leads: a Lease that the leader renews, and that another one takes when it was not renewed.

As client-go does it: nobody believes another machine's clock. A Lease is taken when *we* have not seen it
change for as long as it lasts, by our own clock; the leader gives up, by its own clock, well before that.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import structlog

from brokerset_kube.errors import Conflict, KubeError, NotFound
from brokerset_kube.kinds import LEASE, Kind
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

JITTER: Final = 0.2
"""By how much the pause of who stands by may be longer, so that two of them do not ask at the same time."""

RELEASED_SECONDS: Final = 1
"""Duration in a Lease that was given back: whoever sees it may take it at once."""


class Leases(Protocol):
    """The requests that an elector makes; `KubeClient` has them."""

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any]:
        """Read. Raises `NotFound`."""

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Make. Raises `AlreadyExists`."""

    async def replace(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Write. Raises `Conflict`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectorSettings:
    """The Lease and its times; client-go's and controller-runtime's by default."""

    namespace: str
    identity: str
    """Differs between any two processes that ever live: a pod's name and something random."""

    name: str = "brokerset-operator"
    lease_seconds: float = 15.0
    """How long others wait, after the last renewal that they saw, until they take over."""

    renew_seconds: float = 10.0
    """Who has not renewed for so long leads no more; less than `lease_seconds` by what stopping takes."""

    retry_seconds: float = 2.0
    """Pause between two attempts to renew or to take."""

    def problems(self) -> list[str]:
        """What is wrong with the times."""
        if self.lease_seconds > self.renew_seconds > self.retry_seconds > 0:
            return []
        return ["leader election: the lease must last longer than renewing may take, and that than the pause"]


class LeaseLost(Exception):
    """This process led, and leads no more: what it decides may contradict another one's decisions."""


class Elector:
    """Leads, or stands by until it can."""

    def __init__(
        self,
        leases: Leases,
        settings: ElectorSettings,
        clock: Clock,
        *,
        randomness: random.Random | None = None,
    ) -> None:
        self._leases = leases
        self._settings = settings
        self._clock = clock
        self._random = randomness or random.Random()
        self._seen: tuple[Any, ...] | None = None
        self._seen_at = 0.0
        self._renewed_at: float | None = None
        self._lease: dict[str, Any] | None = None
        self._asked_at: float | None = None
        self.holder: str | None = None
        """Who led when the Lease was read last."""

        self.problem: str | None = None
        """Why the last attempt failed."""

    @property
    def leads(self) -> bool:
        """Whether this process leads now, by its own clock, even if it was held up since it renewed.

        Asked before everything that changes something.
        """
        if self._renewed_at is None:
            return False
        return self._clock.monotonic() - self._renewed_at < self._settings.renew_seconds

    def asked_seconds_ago(self) -> float | None:
        """When the Lease was last read or written; None before."""
        return None if self._asked_at is None else self._clock.monotonic() - self._asked_at

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Stand by, then call `lead`, which is cancelled when the Lease is lost; returns when it returns.

        Raises `LeaseLost`, after which the process must end: only a new one knows nothing of the old state.
        The Lease is given back when `lead` has ended or this is cancelled, so that another one leads at once.
        """
        await self._acquire()
        log.info("leading", identity=self._settings.identity, lease=self._settings.name)
        lost: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                renewing = group.create_task(self._keep())
                await lead()
                renewing.cancel()
        except* LeaseLost as problems:
            self._renewed_at = None
            lost = problems.exceptions[0]
        finally:
            await self._release()
        if lost is not None:
            raise lost

    async def _acquire(self) -> None:
        logged: str | None = None
        while not await self._try():
            if self.holder != logged:
                logged = self.holder
                log.info("standing by", leader=logged, identity=self._settings.identity)
            await asyncio.sleep(self._settings.retry_seconds * (1 + self._random.random() * JITTER))

    async def _keep(self) -> None:
        settings = self._settings
        pause = settings.retry_seconds
        while True:
            await asyncio.sleep(pause)
            assert self._renewed_at is not None
            begun = self._clock.monotonic()
            left = self._renewed_at + settings.renew_seconds - begun
            try:
                # The loop's clock may stand still while the machine sleeps; the lease's does not. One request
                # on a dead connection must not take all the time there is: the next one makes another.
                async with asyncio.timeout(max(0.0, min(left, settings.renew_seconds / 2))):
                    renewed = await self._try()
            except TimeoutError:
                renewed = False
                self.problem = self.problem or "no answer in time"
            took = self._clock.monotonic() - begun
            pause = settings.retry_seconds if renewed else max(0.0, settings.retry_seconds - took)
            if not renewed and not self.leads:
                log.error("lease is lost", leader=self.holder, reason=self.problem)
                raise LeaseLost(
                    f"the lease {self._settings.namespace}/{self._settings.name} was not renewed for "
                    f"{self._settings.renew_seconds:g} s: {self.problem or f'{self.holder} has it'}"
                )
            if not renewed and self.holder not in (None, "", self._settings.identity):
                self._renewed_at = None  # nothing is begun any more while tasks end
                raise LeaseLost(f"{self.holder} has taken the lease {self._settings.name}")

    async def _try(self) -> bool:
        """Take or renew the Lease if that is possible now; False if not."""
        # Before the request: ours counts from the earliest moment at which it may have been written.
        begun = self._clock.monotonic()
        try:
            took = await self._take(begun)
        except KubeError as error:
            self.problem = str(error)
            if isinstance(error, Conflict):
                self._asked_at = begun
            else:
                log.warning("lease cannot be used", reason=str(error))
            return False
        self._asked_at = begun
        self.problem = None
        if took:
            self._renewed_at = begun
        return took

    async def _take(self, begun: float) -> bool:
        settings = self._settings
        if self._lease is not None and self._renewed_at is not None:
            try:  # nobody else writes it while we lead, so it need not be read
                return await self._write(self._lease, begun)
            except (Conflict, NotFound):  # somebody has written it, or deleted it: look
                self._lease = None
        try:
            lease = await self._leases.get(LEASE, settings.name, settings.namespace)
        except NotFound:
            self._lease = await self._leases.create(self._manifest(None))
            self._saw(self._lease, begun)
            self.holder = settings.identity
            return True
        self._saw(lease, self._clock.monotonic())  # its holder may have renewed it right before the answer
        spec = lease.get("spec") or {}
        self.holder = str(spec.get("holderIdentity") or "")
        if self.holder != settings.identity and self.holder:
            lasts = float(spec.get("leaseDurationSeconds") or settings.lease_seconds)
            if begun < self._seen_at + lasts:
                return False
        if self.holder == settings.identity and self._renewed_at is None:
            # Ours by name, but not taken by this process: an identity is never used twice.
            log.warning("lease names this process already", identity=settings.identity)
        return await self._write(lease, begun)

    async def _write(self, before: Mapping[str, Any], begun: float) -> bool:
        self._lease = await self._leases.replace(self._manifest(before))
        self._saw(self._lease, begun)
        self.holder = self._settings.identity
        return True

    def _saw(self, lease: Mapping[str, Any], now: float) -> None:
        """Remember when the Lease last looked different, by our clock."""
        spec = lease.get("spec") or {}
        seen = tuple(
            spec.get(name) for name in ("holderIdentity", "renewTime", "acquireTime", "leaseTransitions")
        )
        if seen != self._seen:
            self._seen, self._seen_at = seen, now

    def _manifest(self, before: Mapping[str, Any] | None, *, release: bool = False) -> dict[str, Any]:
        settings = self._settings
        now = micro_time(self._clock.now_ms())
        spec = dict((before or {}).get("spec") or {})
        ours = spec.get("holderIdentity") == settings.identity
        transitions = int(spec.get("leaseTransitions") or 0)
        metadata = dict((before or {}).get("metadata") or {})
        metadata |= {"name": settings.name, "namespace": settings.namespace}
        metadata.pop("managedFields", None)
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": metadata,
            "spec": {
                "holderIdentity": "" if release else settings.identity,
                "leaseDurationSeconds": RELEASED_SECONDS if release else round(settings.lease_seconds),
                "acquireTime": spec.get("acquireTime") if ours and spec.get("acquireTime") else now,
                "renewTime": now,
                "leaseTransitions": transitions if ours or before is None else transitions + 1,
            },
        }

    async def _release(self) -> None:
        """Give the Lease back if it is ours; others wait until it has run out when that fails."""
        if self._renewed_at is None:
            return
        self._renewed_at = None
        try:
            async with asyncio.timeout(self._settings.retry_seconds):
                lease = await self._leases.get(LEASE, self._settings.name, self._settings.namespace)
                if (lease.get("spec") or {}).get("holderIdentity") == self._settings.identity:
                    await self._leases.replace(self._manifest(lease, release=True))
                    log.info("lease is given back", lease=self._settings.name)
        except (KubeError, TimeoutError) as error:
            log.warning("lease was not given back", reason=str(error) or "no answer in time")


def micro_time(now_ms: int) -> str:
    """A moment as `MicroTime` fields of the API spell it."""
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
