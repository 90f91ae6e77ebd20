"""Sessions claim queues of ordered subjects, acknowledge their messages and release them (21032 to 21034).

What is decided here counts at once: a fence is raised before its record is written, a session that releases
acknowledges nothing any more. What is answered is confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final

import structlog

from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.changes import ChangeLog, topic_key
from brokerset_broker.requests.ordered_access import OrderedAccess
from brokerset_broker.requests.ordered_counters import OrderedCounters
from brokerset_broker.requests.ordered_parts import QueueReads
from brokerset_broker.requests.ordered_shared import SharedGroups
from brokerset_broker.requests.parked_pulls import ParkedPulls
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.metadata.metadata_log import rejection
from brokerset_broker.tables.metadata.records import Change, OffsetsPut, TopicsPut
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.ordered.claims import AckVerdict, decide_ack, may_claim
from brokerset_broker.tables.ordered.shared_pulls import PullLog
from brokerset_broker.tables.ordered.values import (
    SESSION_SIZE_MAX,
    SHARED_SESSION,
    ClaimKey,
    Fence,
    FencesPut,
    SharedAcksPut,
)
from brokerset_broker.tables.topics import READ_WRITE, TopicManager
from brokerset_formats.config import TopicConfig
from brokerset_formats.names import check_group, is_retry_topic, split_ordered_retry_topic
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.ordered import (
    Acknowledge,
    AcknowledgeResponse,
    ClaimQueue,
    ClaimQueueResponse,
    ReleaseQueue,
    ReleaseQueueResponse,
)
from brokerset_runtime.remoting import Connection, Handler

log = structlog.get_logger(__name__)

FENCES_MAX: Final = 200_000
"""Pairs of a queue and a group with a fence; a claim of a further one is refused."""

Owned = ClaimQueue | Acknowledge | ReleaseQueue


class ClaimProcessor:
    """Serves the owners of queues."""

    def __init__(
        self,
        *,
        access: OrderedAccess,
        store: QueueReads,
        topics: TopicManager,
        groups: GroupManager,
        offsets: OffsetManager,
        parked_pulls: ParkedPulls,
        admission: Admission,
        changes: ChangeLog,
        counters: OrderedCounters,
        shared: SharedGroups,
    ) -> None:
        self._shared = shared
        self._access = access
        self._ordered = access.ordered
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._parked_pulls = parked_pulls
        self._admission = admission
        self._changes = changes
        self._counters = counters

    def handlers(self) -> dict[int, Handler]:
        """What this processor serves, by request code."""
        return {
            RequestCode.BROKERSET_CLAIM_QUEUE: self.claim,
            RequestCode.BROKERSET_ACKNOWLEDGE: self.acknowledge,
            RequestCode.BROKERSET_RELEASE_QUEUE: self.release,
        }

    # -- claims -------------------------------------------------------------------------------------------

    def claim(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """CLAIM_QUEUE: lower epochs are refused from here on, even if this claim is never confirmed."""
        header = ClaimQueue.from_ext(command.ext)
        key = self._key(header)
        self._check_queue(key)
        if header.pulled_to < -1:
            raise Rejected(ResponseCode.INVALID_PARAMETER, f"pulledTo={header.pulled_to}: -1 means none")
        if self._groups.get_or_create(key.group) is None:
            raise Rejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {key.group}"
            )
        fence = self._ordered.fence(key)
        wanted = _wanted_fence(header)
        self._check_claim(key, fence, wanted, header.session)
        if header.shared and self._shared.is_known(key, header):
            return self._shared.repeat_claim(command, key, header)
        if fence is None and self._ordered.state.fence_count() >= FENCES_MAX:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"{FENCES_MAX} queues and groups have a fence here, which is the limit: delete subjects",
            )
        self._access.lock(key, header.epoch, wanted.session)
        self._ordered.claims.raise_fence(key, wanted)
        self._parked_pulls.wake_queue(key.topic, key.queue_id)
        return self._claim(command, key, header)

    def _check_claim(self, key: ClaimKey, fence: Fence | None, wanted: Fence, session: str) -> None:
        if not may_claim(fence, wanted):
            self._counters.fenced_request("claim")
            raise Rejected(
                ResponseCode.BROKERSET_STALE_EPOCH,
                f"epoch {wanted.epoch} of session {session} cannot claim {key} (any more): "
                f"{0 if fence is None else fence.epoch} is the newest; ask the controllers",
            )

    async def _claim(self, command: Command, key: ClaimKey, header: ClaimQueue) -> Command:
        keys = [_fence_key(key)]
        if self._wanted_retry_topic(key) is not None:
            keys.append(topic_key(key.topic))
        await self._changes.change(keys, partial(self._decide_claim, key, header))
        self._check_queue(key)
        self._check_claim(key, self._ordered.fence(key), _wanted_fence(header), header.session)
        self._counters.claims += 1
        claims = self._ordered.claims
        # A reset that waits is told by this answer.
        reset = claims.was_reset(key) or self._offsets.has_reset(key.group, key.topic, key.queue_id)
        self._offsets.take_reset(key.group, key.topic, key.queue_id)
        if header.shared:
            return self._shared.answer_claim(command, key, header)
        position = self._access.position(key)
        end = self._store.queue_max(key.topic, key.queue_id)
        answer = ClaimQueueResponse(
            position=position,
            max_offset=end,
            sealed_end=self._ordered.sealed_end(key.topic, key.queue_id),
        ).to_ext()
        if header.pulled_to > max(end, position):
            return command.reply(
                ResponseCode.BROKERSET_OFFSET_OUT_OF_RANGE,
                f"{key} ends at {end}, and the session was given it up to {header.pulled_to}: the log has "
                "lost messages. Drop those, claim again with pulledTo -1, and go on at the position",
                ext=answer,
            )
        claims.begin(
            key, header.epoch, header.session, position if reset else max(position, header.pulled_to)
        )
        return command.reply(ext=answer)

    def _decide_claim(self, key: ClaimKey, header: ClaimQueue) -> Sequence[Change]:
        """The fence, always: a repeated claim is answered by a master that can confirm something, too.

        A position behind the end of the queue comes back to it. The messages that it was about are lost;
        those that get their numbers are not skipped.
        """
        self._check_queue(key)
        wanted = _wanted_fence(header)
        self._check_claim(key, self._ordered.fence(key), wanted, header.session)
        changes: list[Change] = []
        name = f"{key.topic}@{key.group}"
        acknowledged = self._offsets.query(key.group, key.topic, key.queue_id)
        end, _ = self._store.tail(key.topic, key.queue_id)
        if acknowledged is not None and acknowledged > end:
            log.error(
                "position is behind the end of the queue, whose last messages are lost",
                topic=key.topic, group=key.group, queue_id=key.queue_id, position=acknowledged, end=end,
            )  # fmt: skip
            self._counters.loss("position")
            changes.append(OffsetsPut({name: {key.queue_id: end}}))
        acks = self._ordered.state.shared_acks.get(key, ())
        if acks and acks[-1][1] > end:
            changes.append(SharedAcksPut({key: tuple((a, min(b, end)) for a, b in acks if a < end)}))
        retry = self._wanted_retry_topic(key)
        if retry is not None:
            changes.append(TopicsPut((retry,)))
        changes.append(FencesPut({name: {key.queue_id: wanted}}))
        return changes

    def _wanted_retry_topic(self, key: ClaimKey) -> TopicConfig | None:
        """The retry topic that is claimed, if it does not exist yet or has too few queues."""
        if not is_retry_topic(key.topic):
            return None
        config = self._topics.get(key.topic)
        queues = key.queue_id + 1
        if config is not None and min(config.read_queue_nums, config.write_queue_nums) >= queues:
            return None
        subject = self._topics.get(_subject(key))
        queues = max(queues, 0 if subject is None else subject.read_queue_nums)
        return self._topics.plan_update(TopicConfig(key.topic, queues, queues, READ_WRITE))

    # -- acks ---------------------------------------------------------------------------------------------

    def acknowledge(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """ACKNOWLEDGE: the position counts in memory at once, so that the next ack can build on it."""
        header = Acknowledge.from_ext(command.ext)
        key = self._key(header)
        if not 0 <= header.first <= header.last:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER, f"messages from {header.first} to {header.last}: none"
            )
        pulls = self._access.acknowledging(key, header.epoch, header.session)
        if isinstance(pulls, PullLog):
            return self._shared.acknowledge(command, key, header, pulls)
        position = self._access.position(key)
        verdict = decide_ack(position, pulls.given_end, header.first, header.last)
        code, text = int(ResponseCode.SUCCESS), None
        match verdict:
            case AckVerdict.ADVANCE:
                position = header.last + 1
                if not self._offsets.commit(key.group, key.topic, key.queue_id, position, header.session):
                    raise Rejected(
                        ResponseCode.SYSTEM_BUSY,
                        f"the position of {key} cannot be stored: this broker has too many groups",
                    )
                for queue_offset in [offset for offset in pulls.sent_back if offset < position]:
                    del pulls.sent_back[queue_offset]
            case AckVerdict.KNOWN:
                pass
            case AckVerdict.GAP:
                code = ResponseCode.BROKERSET_ACK_REFUSED
                text = f"the position of {key} is {position}: what lies before {header.first} is missing"
            case AckVerdict.NOT_GIVEN:
                code = ResponseCode.BROKERSET_ACK_REFUSED
                text = f"the session was given {key} up to {pulls.given_end}, and not {header.last}"
        answer = command.reply(code, text, ext=AcknowledgeResponse(position=position).to_ext())
        return self._confirmed(self._offsets_confirmed(), answer)

    def _offsets_confirmed(self) -> asyncio.Future[PutStatus]:
        """Done when all positions of now are confirmed, or cannot be."""
        done: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        self._changes.when_offsets_confirmed(lambda status: None if done.done() else done.set_result(status))
        return done

    @staticmethod
    async def _confirmed(done: asyncio.Future[PutStatus], answer: Command) -> Command:
        status = await done
        if status is not PutStatus.PUT_OK:
            raise rejection(status)
        return answer

    # -- releases -----------------------------------------------------------------------------------------

    def release(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """RELEASE_QUEUE: repeated it is answered alike; of who does not own the queue it changes nothing."""
        header = ReleaseQueue.from_ext(command.ext)
        key = self._key(header)
        fence = self._ordered.fence(key)
        if fence == Fence(header.epoch, SHARED_SESSION):
            self._shared.release(key, header.session)
            return self._confirmed(self._offsets_confirmed(), self._released(command, key, released=True))
        if fence is None or (fence.epoch, fence.session) != (header.epoch, header.session):
            return self._confirmed(self._offsets_confirmed(), self._released(command, key, released=False))
        self._ordered.claims.raise_fence(key, fence._replace(released=True))
        self._access.unlock(key, header.session)
        self._parked_pulls.wake_queue(key.topic, key.queue_id)
        return self._release(command, key, fence._replace(released=True))

    async def _release(self, command: Command, key: ClaimKey, fence: Fence) -> Command:
        """The record comes behind those of all acks."""

        def decide() -> Sequence[Change]:
            known = self._ordered.state.fence(*key)
            gone = known is None and (
                self._topics.get(key.topic) is None
                or key.topic in self._topics.going
                or self._ordered.is_retired(key.topic, key.queue_id)
            )
            if gone or not fence.overtakes(known):  # or taken over, or released before
                self._ordered.claims.confirmed(key, fence)  # without a record: it is not on its way any more
                return ()
            return [FencesPut({f"{key.topic}@{key.group}": {key.queue_id: fence}})]

        await self._changes.change([_fence_key(key)], decide)
        return self._released(command, key, released=True)

    def _released(self, command: Command, key: ClaimKey, *, released: bool) -> Command:
        answer = ReleaseQueueResponse(released=released, position=self._access.position(key))
        return command.reply(ext=answer.to_ext())

    # -- checks -------------------------------------------------------------------------------------------

    def _key(self, header: Owned) -> ClaimKey:
        """The queue that a request is about. Raises `Rejected` for what cannot be."""
        self._admission.check_writes()
        problem = check_group(header.consumer_group)
        if problem is None and not 0 < len(header.session) <= SESSION_SIZE_MAX:
            problem = f"session has 1 to {SESSION_SIZE_MAX} characters, not {len(header.session)}"
        if problem is None and header.session == SHARED_SESSION:
            problem = f"session={SHARED_SESSION}: that stands for all sessions of a group"
        if problem is None and header.epoch < 0:
            problem = f"epoch={header.epoch}: epochs are not negative"
        if problem is None and header.queue_id < 0:
            problem = f"queueId={header.queue_id}: queues count from 0"
        if problem is not None:
            raise Rejected(ResponseCode.INVALID_PARAMETER, problem)
        return ClaimKey(header.topic, header.consumer_group, header.queue_id)

    def _check_queue(self, key: ClaimKey) -> None:
        """Raise `Rejected` unless the queue is one of a subject, or of its retry topic for the group."""
        subject = _subject(key)
        if not self._changes.replicated or subject not in self._ordered.state.subjects:
            raise Rejected(
                ResponseCode.BROKERSET_SUBJECT_UNKNOWN,
                f"{subject} is no ordered subject on this broker (yet); ask the controllers where it is",
            )
        config = self._topics.get(subject)
        if config is None or key.queue_id >= config.read_queue_nums or subject in self._topics.going:
            raise Rejected(
                ResponseCode.INVALID_PARAMETER,
                f"queueId={key.queue_id}: {subject} has no such queue here",
            )
        if self._ordered.is_retired(subject, key.queue_id):
            self._counters.fenced_request("claim")
            raise Rejected(
                ResponseCode.BROKERSET_STALE_EPOCH,
                f"{key} is retired: all groups have handled it; ask the controllers for the assignment",
            )


def _subject(key: ClaimKey) -> str:
    """The subject whose queue, or whose group's retry queue, is meant; another topic is what it is."""
    split = split_ordered_retry_topic(key.topic)
    return split[1] if split is not None and split[0] == key.group else key.topic


def _wanted_fence(header: ClaimQueue) -> Fence:
    return Fence(header.epoch, SHARED_SESSION if header.shared else header.session)


def _fence_key(key: ClaimKey) -> str:
    """The name under which changes of a fence take turns; those of other queues go on next to it."""
    return f"fence:{key.topic}@{key.group}:{key.queue_id}"
