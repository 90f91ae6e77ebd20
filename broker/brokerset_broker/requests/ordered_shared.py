"""Shared groups of ordered subjects: each message of a queue goes to one of the sessions that claimed it.

What a session was given is its pull log, in memory; what it acknowledges is replicated. `ordered_claims`,
`ordered_send_back` and `pull` find out whose request it is, and leave to this module what is different.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog

from brokerset_broker.requests.changes import ChangeLog
from brokerset_broker.requests.ordered_access import OrderedAccess
from brokerset_broker.requests.ordered_counters import OrderedCounters
from brokerset_broker.requests.ordered_parts import MessageReads
from brokerset_broker.requests.ordered_send_back import OrderedSendBackProcessor
from brokerset_broker.requests.parked_pulls import ParkedPulls
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.results import GetStatus
from brokerset_broker.tables.locks import SESSION_LOCK_SECONDS
from brokerset_broker.tables.metadata.metadata_log import rejection
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.ordered.acked_ranges import AckedRanges
from brokerset_broker.tables.ordered.shared_pulls import SESSIONS_MAX, PullLog, SharedQueue
from brokerset_broker.tables.ordered.values import SHARED_SESSION, ClaimKey
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.ordered import (
    Acknowledge,
    AcknowledgeResponse,
    ClaimQueue,
    ClaimQueueResponse,
)
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

EXPIRE_SECONDS: Final = 1.0
"""Time between two searches for sessions that ask for nothing any more."""

READS_MAX: Final = 1_000
"""Reads of a queue for one pull; filters skip many messages in each."""

_PASSED_BY: Final = (
    GetStatus.FOUND,
    GetStatus.NO_MATCHED_MESSAGE,
    GetStatus.MESSAGE_WAS_REMOVING,
    GetStatus.OFFSET_TOO_SMALL,
)
"""The queue goes on behind where the read began: what was skipped is not for the group, or is gone."""


@dataclass(slots=True)
class SharedRead:
    """What a pull has found."""

    next_sequence: int
    """The pull sequence behind its messages."""

    code: ResponseCode = ResponseCode.PULL_NOT_FOUND
    status: GetStatus = GetStatus.OFFSET_OVERFLOW_ONE
    parts: list[memoryview] = field(default_factory=list)
    count: int = 0
    size: int = 0

    def add(self, parts: list[memoryview], size: int) -> None:
        """A message of the next pull sequence."""
        self.code, self.status = ResponseCode.SUCCESS, GetStatus.FOUND
        self.parts += parts
        self.size += size
        self.count += 1
        self.next_sequence += 1


def draw_start() -> int:
    """Where a pull log begins: 2^20 sequences and more lie between two that are drawn, but for a chance of
    one in 2^40."""
    return random.getrandbits(40) << 20


class SharedGroups:
    """The pull logs of this master's queues, and all that changes them."""

    def __init__(
        self,
        *,
        access: OrderedAccess,
        store: MessageReads,
        offsets: OffsetManager,
        parked_pulls: ParkedPulls,
        changes: ChangeLog,
        counters: OrderedCounters,
        send_back: OrderedSendBackProcessor,
        clock: Clock,
        draw_start: Callable[[], int],
    ) -> None:
        """`draw_start` draws where a pull log begins: apart from all that were before, on any master."""
        self._access = access
        self._ordered = access.ordered
        self._store = store
        self._offsets = offsets
        self._parked_pulls = parked_pulls
        self._changes = changes
        self._counters = counters
        self._send_back = send_back
        self._clock = clock
        self._draw_start = draw_start

    async def run(self) -> None:
        """Forget sessions that ask for nothing any more, for as long as this task runs."""
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            self.forget_silent()

    def forget_silent(self) -> None:
        """End the pull logs of sessions that have asked for nothing for the life of their lock."""
        before = self._clock.monotonic() - SESSION_LOCK_SECONDS
        for key, queue in list(self._ordered.claims.shared.items()):
            silent = queue.forget_silent(before)
            if silent:
                log.info("sessions of a shared group are silent", topic=key.topic, group=key.group,
                         queue_id=key.queue_id, sessions=silent)  # fmt: skip
                self._left(key, queue)

    def release(self, key: ClaimKey, session: str) -> None:
        """A session goes: what it has not acknowledged is given again."""
        queue = self._ordered.claims.shared.get(key)
        if queue is not None and queue.forget(session):
            self._left(key, queue)

    def _left(self, key: ClaimKey, queue: SharedQueue) -> None:
        """Without sessions nothing is kept: the next one begins with what is not acknowledged."""
        if not queue.logs:
            del self._ordered.claims.shared[key]
            self._access.unlock(key, SHARED_SESSION)
        self._parked_pulls.wake_queue(key.topic, key.queue_id)

    # -- claims -------------------------------------------------------------------------------------------

    def is_known(self, key: ClaimKey, header: ClaimQueue) -> bool:
        """Whether a claim says only that the session is there still: nothing has to be written for it."""
        return (
            header.pulled_to >= 0
            and key not in self._ordered.claims.raised
            and isinstance(self._ordered.claims.session(key, header.session), PullLog)
        )

    async def repeat_claim(self, command: Command, key: ClaimKey, header: ClaimQueue) -> Command:
        """Answer the claim of a known session, once all that it says is confirmed."""
        self._access.owner(key, header.epoch, header.session, "claim")
        await self._all_confirmed()
        return self.answer_claim(command, key, header)

    def answer_claim(self, command: Command, key: ClaimKey, header: ClaimQueue) -> Command:
        """The fence is confirmed: begin a pull log, or go on with the one that `pulledTo` is of."""
        queue = self._ordered.claims.shared.get(key)
        known = None if queue is None else queue.logs.get(header.session)
        code, text = int(ResponseCode.SUCCESS), None
        if header.pulled_to < 0:
            queue = self._queue(key, header)
            known = queue.begin(header.session, self._draw_start(), self._clock.monotonic())
            self._parked_pulls.wake_queue(key.topic, key.queue_id)
        elif known is None or not known.start <= header.pulled_to <= known.end:
            code = ResponseCode.BROKERSET_OFFSET_OUT_OF_RANGE
            text = (
                f"{header.pulled_to} is of no pull log that this master has of {key} for the session: drop "
                "what was pulled, and claim again with pulledTo -1"
            )
        position = self._access.position(key) if queue is None else queue.confirmed_position
        answer = ClaimQueueResponse(
            position=-1 if known is None else known.position,
            max_offset=self._store.queue_max(key.topic, key.queue_id),
            sealed_end=self._ordered.sealed_end(key.topic, key.queue_id),
            group_position=position,
        )
        return command.reply(code, text, ext=answer.to_ext())

    def _queue(self, key: ClaimKey, header: ClaimQueue) -> SharedQueue:
        """The queue's pull logs, with room for the session's. Raises `Rejected`."""
        shared = self._ordered.claims.shared
        queue = shared.get(key)
        if queue is None:
            acked = AckedRanges(self._access.position(key), self._ordered.state.shared_acks.get(key, ()))
            if not self._offsets.commit(key.group, key.topic, key.queue_id, acked.position, header.session):
                raise Rejected(
                    ResponseCode.SYSTEM_BUSY,
                    f"the position of {key} cannot be stored: this broker has too many groups",
                )
            queue = shared[key] = SharedQueue(header.epoch, acked)
        elif len(queue.logs) >= SESSIONS_MAX and header.session not in queue.logs:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"{SESSIONS_MAX} sessions have claimed {key}, which is the limit: end some of them",
            )
        return queue

    # -- pulls --------------------------------------------------------------------------------------------

    def read(
        self,
        key: ClaimKey,
        pulls: PullLog,
        sequence: int,
        messages_max: int,
        bytes_max: int,
        codes: frozenset[int] | None,
    ) -> SharedRead:
        """Messages from a pull sequence on; behind the end of the log more are given to the session."""
        if sequence < pulls.position:
            return SharedRead(pulls.position, ResponseCode.PULL_OFFSET_MOVED, GetStatus.OFFSET_TOO_SMALL)
        if sequence < pulls.end:
            return self._read_given(key, pulls, sequence, messages_max, bytes_max)
        found = SharedRead(sequence)
        if self._offsets.is_held(key.group, key.topic):
            return found
        queue = pulls.queue
        queue.expire(self._store.queue_min(key.topic, key.queue_id))
        for _ in range(READS_MAX):
            candidate = queue.candidate()
            if found.count >= messages_max or candidate is None:
                break
            queue_offset, again = candidate
            got = self._store.get(key.topic, key.queue_id, queue_offset, 1, bytes_max, codes)
            if got.status not in _PASSED_BY:
                break
            following = got.next_queue_offset - got.message_count
            if following > queue_offset:
                queue.settle(queue_offset, queue_offset + 1 if again else following)
                continue
            if found.count and found.size + got.size > bytes_max:
                break
            pulls.give(queue_offset)
            found.add(got.parts, got.size)
            self._counters.given_again += again
        else:
            if not found.count:
                found.code, found.status = ResponseCode.PULL_RETRY_IMMEDIATELY, GetStatus.NO_MATCHED_MESSAGE
        self._save(key, queue)
        return found

    def _read_given(
        self, key: ClaimKey, pulls: PullLog, sequence: int, messages_max: int, bytes_max: int
    ) -> SharedRead:
        found = SharedRead(sequence)
        given = pulls.given_from(sequence)
        for queue_offset in given[:messages_max]:
            got = self._store.get(key.topic, key.queue_id, queue_offset, 1, bytes_max, None)
            is_there = got.status is GetStatus.FOUND and got.next_queue_offset == queue_offset + 1
            if not is_there or (found.count and found.size + got.size > bytes_max):
                break
            found.add(got.parts, got.size)
        if not found.count:
            found.code, found.status = ResponseCode.PULL_OFFSET_MOVED, GetStatus.OFFSET_TOO_SMALL
            found.next_sequence += 1
            oldest = self._store.queue_min(key.topic, key.queue_id)
            while found.next_sequence < pulls.end and given[found.next_sequence - sequence] < oldest:
                found.next_sequence += 1
        return found

    # -- acks ---------------------------------------------------------------------------------------------

    def acknowledge(
        self, command: Command, key: ClaimKey, header: Acknowledge, pulls: PullLog
    ) -> Coroutine[Any, Any, Command]:
        """ACKNOWLEDGE: all up to `last` counts at once, or when there are copies of what is missing before
        `first`."""
        if header.first < pulls.start or header.last >= pulls.end:
            text = (
                f"the pull log of {key} has the sequences from {pulls.start} to {pulls.end}, and not "
                f"those from {header.first} to {header.last}"
            )
            return self._answer_ack(command, pulls, ResponseCode.BROKERSET_ACK_REFUSED, text)
        if pulls.unacknowledged(header.first):
            return self._acknowledge_with_copies(command, key, header)
        self._count(key, pulls, header.last + 1)
        return self._answer_ack(command, pulls)

    async def _acknowledge_with_copies(self, command: Command, key: ClaimKey, header: Acknowledge) -> Command:
        """A copy may be lost with the end of the log until it is confirmed: then its message counts."""
        await self._send_back.make_retry_topic(key)
        pulls = self._log(key, header)
        missing = pulls.unacknowledged(header.first)
        ends = [self._send_back.copy_missing(key, pulls, queue_offset) for queue_offset in missing]
        await self._send_back.confirmed(max(ends, default=0))
        pulls = self._log(key, header)
        self._count(key, pulls, header.last + 1)
        return await self._answer_ack(command, pulls)

    def _log(self, key: ClaimKey, header: Acknowledge) -> PullLog:
        """The pull log that an ack is about, after a wait that may have changed much. Raises `Rejected`."""
        pulls = self._access.acknowledging(key, header.epoch, header.session)
        if not isinstance(pulls, PullLog) or not pulls.start <= header.first <= header.last < pulls.end:
            raise Rejected(
                ResponseCode.BROKERSET_NOT_CLAIMED, f"the session's pull log of {key} has ended: claim again"
            )
        return pulls

    def _count(self, key: ClaimKey, pulls: PullLog, end: int) -> None:
        queue = pulls.queue
        was_full = queue.is_full
        pulls.acknowledge(end)
        self._save(key, queue)
        if was_full and not queue.is_full:
            self._parked_pulls.wake_queue(key.topic, key.queue_id)

    async def _answer_ack(
        self, command: Command, pulls: PullLog, code: int = ResponseCode.SUCCESS, text: str | None = None
    ) -> Command:
        position = pulls.position
        await self._all_confirmed()
        answer = AcknowledgeResponse(position=position, group_position=pulls.queue.confirmed_position)
        return command.reply(code, text, ext=answer.to_ext())

    # -- what is replicated -------------------------------------------------------------------------------

    def _save(self, key: ClaimKey, queue: SharedQueue) -> None:
        """What is acknowledged counts at once, and gets its records in this turn of the loop."""
        position = queue.acked.position
        moved = position != self._offsets.query(key.group, key.topic, key.queue_id)
        if moved:
            self._offsets.commit(key.group, key.topic, key.queue_id, position, SHARED_SESSION)
        self._ordered.acknowledged(key, queue.acked.ranges, moved=moved)
        if position > queue.confirmed_position:
            self._changes.when_offsets_confirmed(partial(_confirm, queue, position))

    async def _all_confirmed(self) -> None:
        """Return when all that was acknowledged so far is confirmed. Raises `Rejected`."""
        done: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        self._changes.when_offsets_confirmed(lambda status: None if done.done() else done.set_result(status))
        status = await done
        if status is not PutStatus.PUT_OK:
            raise rejection(status)


def _confirm(queue: SharedQueue, position: int, status: PutStatus) -> None:
    if status is PutStatus.PUT_OK:
        queue.confirmed_position = max(queue.confirmed_position, position)
