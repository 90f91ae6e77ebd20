"""Who may pull from, commit for and lock queues of ordered subjects: sessions by their epoch, others by what
sessions have left.

Requests of sessions, and those of RocketMQ's clients next to them, ask here first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.ordered_counters import OrderedCounters
from brokerset_broker.requests.ordered_parts import QueueReads
from brokerset_broker.tables.locks import SESSION_LOCK_SECONDS, QueueLocks
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.ordered.claims import PullSession, Standing, standing
from brokerset_broker.tables.ordered.ordered_tables import OrderedTables
from brokerset_broker.tables.ordered.shared_pulls import PullLog
from brokerset_broker.tables.ordered.values import SESSION_SIZE_MAX, SHARED_SESSION, ClaimKey
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.ordered import PULL_EPOCH, PULL_SESSION
from brokerset_runtime.clock import Clock

_DIGITS_MAX: Final = 19


class OrderedAccess:
    """Checks of everything that touches a queue which sessions have claimed."""

    def __init__(
        self,
        *,
        ordered: OrderedTables,
        locks: QueueLocks,
        offsets: OffsetManager,
        store: QueueReads,
        admission: Admission,
        clock: Clock,
        counters: OrderedCounters,
        broker_name: Callable[[], str],
    ) -> None:
        self.ordered = ordered
        self._locks = locks
        self._offsets = offsets
        self._store = store
        self._admission = admission
        self._clock = clock
        self._counters = counters
        self._broker_name = broker_name
        self._role_since = clock.monotonic()
        ordered.on_role_change = self._role_changed

    # -- what is where ------------------------------------------------------------------------------------

    def queue(self, key: ClaimKey) -> MessageQueue:
        """The queue as locks name it."""
        return MessageQueue(key.topic, self._broker_name(), key.queue_id)

    def position(self, key: ClaimKey) -> int:
        """The next message to be consumed: what was acknowledged, or the first one that is still there."""
        acknowledged = self._offsets.query(key.group, key.topic, key.queue_id)
        return max(acknowledged or 0, self._store.queue_min(key.topic, key.queue_id))

    # -- sessions -----------------------------------------------------------------------------------------

    def owner(self, key: ClaimKey, epoch: int, session: str, request: str) -> PullSession | PullLog:
        """The pulls of a session that owns the queue, alone or with its Shared group; its lock is renewed.

        Raises `Rejected`.
        """
        pulls = self.ordered.claims.session(key, session)
        match standing(self.ordered.fence(key), pulls, epoch, session):
            case Standing.STALE:
                self._counters.fenced_request(request)
                raise self._stale(key, epoch)
            case Standing.OWNER if pulls is not None:
                if isinstance(pulls, PullLog):
                    session, pulls.seen = SHARED_SESSION, self._clock.monotonic()
                self.lock(key, epoch, session)
                return pulls
            case _:
                raise Rejected(
                    ResponseCode.BROKERSET_NOT_CLAIMED,
                    f"epoch {epoch} has not claimed {key} from this master: claim it, with pulledTo",
                )

    def acknowledging(self, key: ClaimKey, epoch: int, session: str) -> PullSession | PullLog:
        """The pulls of a session that owns the queue, and whose acks count now. Raises `Rejected`."""
        pulls = self.owner(key, epoch, session, "ack")
        if self._offsets.is_held(key.group, key.topic):
            raise Rejected(ResponseCode.SYSTEM_BUSY, f"offsets of {key} are being changed; acknowledge again")
        if self._offsets.has_reset(key.group, key.topic, key.queue_id):
            raise Rejected(
                ResponseCode.BROKERSET_NOT_CLAIMED, f"the position of {key} was reset: claim it again"
            )
        return pulls

    def lock(self, key: ClaimKey, epoch: int, session: str) -> None:
        """Lock the queue for a session, or renew its lock. Raises `Rejected` while a client has it.

        All sessions of a Shared group have one lock together: `session` is `SHARED_SESSION` then.
        """
        if not self._locks.claim(key.group, session, self.queue(key), epoch):
            raise Rejected(
                ResponseCode.BROKERSET_QUEUE_LOCKED,
                f"a RocketMQ client holds the lock of {key}: end that client, or wait until its lock ends",
            )

    def unlock(self, key: ClaimKey, session: str) -> None:
        """Free the queue, if the session has it."""
        self._locks.unlock(key.group, session, [self.queue(key)])

    def _stale(self, key: ClaimKey, epoch: int) -> Rejected:
        fence = self.ordered.fence(key)
        newest = "none" if fence is None else str(fence.epoch)
        return Rejected(
            ResponseCode.BROKERSET_STALE_EPOCH,
            f"epoch {epoch} does not own {key} any more, the newest is {newest}: stop, and ask the "
            "controllers",
        )

    # -- pulls --------------------------------------------------------------------------------------------

    def admit_pull(
        self, key: ClaimKey, queue_offset: int, ext: Mapping[str, str]
    ) -> PullSession | PullLog | None:
        """Who pulls; None for a client without claim, or if a reset is to be told. Raises `Rejected`."""
        if PULL_EPOCH not in ext:
            self._check_plain(key, "pull")
            return None
        epoch, session = _pull_fields(ext)
        if self._offsets.frozen:
            raise Rejected(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"broker {self._admission.name} is not the master: sessions pull from the master alone",
            )
        fence = self.ordered.fence(key)
        if (
            not (fence is not None and fence.is_shared)
            and self._offsets.has_reset(key.group, key.topic, key.queue_id)
            and standing(fence, None, epoch, session) is not Standing.STALE
        ):
            return None
        pulls = self.owner(key, epoch, session, "pull")
        if isinstance(pulls, PullLog):
            if not pulls.start <= queue_offset <= pulls.end:
                raise Rejected(
                    ResponseCode.BROKERSET_OFFSET_OUT_OF_RANGE,
                    f"the pull log of {key} has the sequences from {pulls.start} to {pulls.end}, and "
                    f"not {queue_offset}: claim again, with pulledTo",
                )
            return pulls
        given_end = max(pulls.given_end, self.position(key))
        if queue_offset > given_end:
            raise Rejected(
                ResponseCode.BROKERSET_OFFSET_OUT_OF_RANGE,
                f"the session was given {key} up to {given_end}, so it cannot pull from {queue_offset}: "
                "claim again, with pulledTo",
            )
        return pulls

    def _check_plain(self, key: ClaimKey, request: str) -> None:
        """A client without claim goes on only where no session is, or has been too long away."""
        if self.is_claimed(key):
            self._counters.fenced_request(f"plain {request}")
            raise Rejected(
                ResponseCode.BROKERSET_STALE_EPOCH,
                f"a session of group {key.group} has claimed {key}: use another group for other consumers",
            )

    def is_claimed(self, key: ClaimKey) -> bool:
        """Whether a session has claimed the queue, and no client has locked it since.

        Of a Shared group some session is known; or may be, until all have claimed from a new master.
        """
        fence = self.ordered.fence(key)
        return (
            fence is not None
            and not fence.released
            and (not fence.is_shared or key in self.ordered.claims.shared or self._is_new_master())
            and not self._locks.held_by_client(key.group, self.queue(key))
        )

    # -- commits and locks of others ----------------------------------------------------------------------

    def check_commit(self, group: str, topic: str, queue_id: int) -> None:
        """Raise `Rejected` for a commit (15) of what a session has claimed."""
        if self.ordered.has_fences(topic):
            self._check_plain(ClaimKey(topic, group, queue_id), "commit")

    def may_lock(self, group: str, queue: MessageQueue) -> bool:
        """Whether a RocketMQ client may lock a queue, as far as nobody has a lock.

        A new master knows no locks. So for the life of one it treats each queue that a session has claimed as
        locked: the session may be at work.
        """
        if not self.ordered.has_fences(queue.topic):
            return True
        fence = self.ordered.fence(ClaimKey(queue.topic, group, queue.queue_id))
        if fence is None or fence.released:
            return True
        return not self._is_new_master()

    def _is_new_master(self) -> bool:
        return self._clock.monotonic() - self._role_since <= SESSION_LOCK_SECONDS

    def _role_changed(self) -> None:
        self._role_since = self._clock.monotonic()


def _pull_fields(ext: Mapping[str, str]) -> tuple[int, str]:
    """Epoch and session of a pull. Raises `Rejected`."""
    epoch, session = ext[PULL_EPOCH], ext.get(PULL_SESSION, "")
    if not isinstance(epoch, str) or not epoch.isdecimal() or len(epoch) > _DIGITS_MAX:
        raise Rejected(ResponseCode.INVALID_PARAMETER, f"{PULL_EPOCH} is not a number: {str(epoch)[:64]!r}")
    if not isinstance(session, str) or not 0 < len(session) <= SESSION_SIZE_MAX:
        raise Rejected(
            ResponseCode.INVALID_PARAMETER, f"{PULL_SESSION} has 1 to {SESSION_SIZE_MAX} characters"
        )
    return int(epoch), session
