"""Asks brokers that were not heard whether they are there, and still who they were.

The question is 1007, which every RocketMQ broker answers. Only the leader asks; the first answer counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from brokerset_controller.liveness import Beat, Liveness, Probe, ReplicaKey
from brokerset_controller.machine import ReplicasMachine
from brokerset_controller.measurements import Measurements
from brokerset_controller.replicas.state import Group, Replica
from brokerset_controller.worker_pool import WorkerPool
from brokerset_protocol.bodies.replicas import EpochEntryCache
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.controller import BrokerIdentityAnswer
from brokerset_runtime.clock import Clock
from brokerset_runtime.peer_requests import Asker
from brokerset_runtime.remoting.connection import ConnectionClosed, RequestTimeout

log = structlog.get_logger(__name__)

AT_ONCE_MAX: Final = 128
"""Probes on their way; more wait. With everybody silent, 128 in each `probeTimeout`."""

MASTER_ROLE_ID: Final = 0
"""What a Java broker gives as its id while it is master."""

UNKNOWN: Final = -1
"""Epoch or offset of a replica that told none."""

LATE_SECONDS: Final = 0.05
"""A question that ends later than this after its time-out was held up here: it says nothing of the broker."""

TRIES_MAX: Final = 3
"""How often a broker is asked while this process is held up; then the last outcome counts."""

LISTENING_SECONDS: Final = 2.0
"""For so long a controller that has just started gives brokers the time to be heard by it: a broker behind an
address that controllers cannot reach sends heartbeats all the same."""

_WITHOUT_ANSWER: Final = ("unreachable", "silent")
_CERTAIN: Final = ("refused", "someone_else")


@dataclass(frozen=True, slots=True)
class Examined:
    """What came of a question."""

    alive: bool
    result: str
    """`alive`, or why not: `refused`, `unreachable`, `silent`, `unreadable`, `someone_else`, `forgotten`."""

    beat: Beat | None = None

    @property
    def surely_dead(self) -> bool:
        """Whether the process is gone by more than silence: nobody, or another process, is there."""
        return self.result in _CERTAIN


class BrokerProbes:
    """Takes questions that `Liveness` hands out, and tells it the answers."""

    def __init__(
        self,
        *,
        asker: Asker,
        liveness: Liveness,
        machine: ReplicasMachine,
        clock: Clock,
        timeout: Callable[[], float],
        on_answer: Callable[[str], None],
        measurements: Measurements,
    ) -> None:
        """`timeout` gives the seconds that a broker has; `on_answer` hears the group of each answer."""
        self._asker = asker
        self._liveness = liveness
        self._machine = machine
        self._clock = clock
        self._timeout = timeout
        self._on_answer = on_answer
        self._measurements = measurements
        self._workers = WorkerPool(AT_ONCE_MAX)
        self._listens_since: float | None = None

    async def run(self) -> None:
        """Ask, for as long as this task runs."""
        self._listens_since = self._clock.monotonic()
        await self._workers.run()

    def ask_about(self, groups: Iterator[Group]) -> int:
        """Ask all replicas of these groups that must be asked, masters first; returns how many."""
        masters: list[tuple[Group, Replica]] = []
        others: list[tuple[Group, Replica]] = []
        for group in groups:
            for broker_id, replica in group.replicas.items():
                (masters if broker_id == group.master_id else others).append((group, replica))
        wanted = self._liveness.to_ask(
            self._clock.monotonic(),
            [
                (ReplicaKey(group.broker_name, replica.broker_id), replica.address)
                for group, replica in (*masters, *others)
            ],
        )
        for probe in wanted:
            self._workers.add(partial(self.ask, probe))
        return len(wanted)

    async def ask(self, probe: Probe) -> None:
        """Ask, and tell the liveness table and the owner what came of it."""
        examined = await self._examine(probe.key, probe.address)
        now = self._clock.monotonic()
        if self._is_too_early(probe.key, examined, now):
            self._liveness.withdraw(probe)
            return
        surely = examined.surely_dead
        self._liveness.answered(probe, examined.alive, now, examined.beat, surely=surely)
        self._on_answer(probe.key.broker_name)

    async def ask_now(self, key: ReplicaKey, address: str) -> None:
        """Ask about a replica whatever is known of it, also while it counts as alive; returns when the table
        knows the answer. A sign of life that comes meanwhile counts more than silence."""
        since = self._clock.monotonic()
        examined = await self._examine(key, address)
        now = self._clock.monotonic()
        view = self._liveness.view(key.broker_name, now)
        live = view.lives.get(key.broker_id)
        if examined.alive:
            if not view.alive(key.broker_id):
                beat = examined.beat or Beat(address)
                self._liveness.heard(key, beat, None, now, is_heartbeat=False)
        elif self._is_too_early(key, examined, now):
            return
        elif live is None or live.heard_at <= since:
            self._liveness.found_dead(key, address, now, surely=examined.surely_dead)
        self._on_answer(key.broker_name)

    def _is_too_early(self, key: ReplicaKey, examined: Examined, now: float) -> bool:
        """Whether silence says nothing yet: this process has just started, and never heard the replica."""
        return (
            examined.result in _WITHOUT_ANSWER
            and self._listens_since is not None
            and now - self._listens_since < LISTENING_SECONDS
            and key.broker_id not in self._liveness.view(key.broker_name, now).lives
        )

    async def _examine(self, key: ReplicaKey, address: str) -> Examined:
        examined = await self._answer_of(key, address)
        self._measurements.probe_done(examined.result)
        if not examined.alive:
            log.info(
                "broker does not answer for its replica",
                broker=key.broker_name,
                id=key.broker_id,
                address=address,
                result=examined.result,
            )
        return examined

    async def _answer_of(self, key: ReplicaKey, address: str) -> Examined:
        """Ask; again when the time ran out because this process stood still (overload, SIGSTOP)."""
        for _ in range(TRIES_MAX):
            since, timeout = self._clock.monotonic(), self._timeout()
            examined = await self._ask_once(key, address, timeout)
            late = self._clock.monotonic() - since - timeout
            if examined.result not in _WITHOUT_ANSWER or late <= LATE_SECONDS:
                break
        return examined

    async def _ask_once(self, key: ReplicaKey, address: str, timeout: float) -> Examined:
        command = Command(RequestCode.GET_BROKER_EPOCH_CACHE)
        try:
            answer = await self._asker.ask(address, command, timeout)
        except ConnectionClosed as error:
            refused = isinstance(error.__cause__, ConnectionRefusedError)
            return Examined(False, "refused" if refused else "unreachable")
        except RequestTimeout:
            return Examined(False, "silent")
        group = self._machine.groups.get(key.broker_name)
        replica = group.replicas.get(key.broker_id) if group is not None else None
        if group is None or replica is None:
            return Examined(False, "forgotten")
        return examine(group.broker_name, replica, address, answer)


def examine(broker_name: str, replica: Replica, address: str, answer: Command) -> Examined:
    """Whether an answer to 1007 is the one of the replica's latest process.

    Java's brokers give no nonce: there name and role id must do.
    """
    try:
        identity = BrokerIdentityAnswer.from_ext(answer.ext)
        if is_ours(identity):
            if identity.replica_id != replica.broker_id or identity.nonce != replica.nonce:
                return Examined(False, "someone_else")
            beat = Beat(
                address,
                identity.nonce,
                _or_unknown(identity.log_epoch),
                _or_unknown(identity.log_offset),
                append_age_ms=identity.append_age_ms,
                lost_cache=bool(identity.lost_cache),
            )
            return Examined(True, "alive", beat)
        if answer.code != ResponseCode.SUCCESS:
            return Examined(False, "unreadable")
        cache = EpochEntryCache.from_json(answer.body)
    except Rejected:
        return Examined(False, "unreadable")
    if cache.broker_name != broker_name or cache.broker_id not in (MASTER_ROLE_ID, replica.broker_id):
        return Examined(False, "someone_else")
    epoch = cache.epoch_list[-1].epoch if cache.epoch_list else UNKNOWN
    return Examined(True, "alive", Beat(address, None, epoch, cache.max_offset))


def is_ours(identity: BrokerIdentityAnswer) -> bool:
    """Whether one of our brokers answered: Java's send none of these fields."""
    fields = (identity.replica_id, identity.nonce, identity.check_code, identity.registration)
    return any(field is not None for field in fields)


def _or_unknown(value: int | None) -> int:
    return UNKNOWN if value is None else value
