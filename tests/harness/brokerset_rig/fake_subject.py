"""An ordered subject in memory, as its consumers see it: brokers and controllers behind `OrderedTransport`.

Written from docs/ordered-protocol.md, and strict about it: what a consumer must not do ends in `violations`.
Its time is the loop's, so it belongs on a virtual one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from brokerset_client.errors import AnswerTimeout, BrokerUnreachable, NameServerUnavailable
from brokerset_client.messages import MessageView
from brokerset_formats.hosts import Host
from brokerset_formats.names import ordered_retry_topic
from brokerset_formats.order_keys import logical_partition, partition_ranges
from brokerset_formats.order_stamps import OrderStamp
from brokerset_formats.properties import Property, encode_properties
from brokerset_formats.records import Record, encode_record
from brokerset_protocol.bodies.ordered import AssignedPartition, AssignmentBody, OwnedReport
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers import ordered as wire
from brokerset_protocol.headers.pull import PullMessage, PullMessageResponse
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy
from brokerset_rig.fake_pull_logs import FakeSharing

HOST = Host(bytes((127, 0, 0, 1)), 10_911)
GROUP = "billing"
SHARED_EPOCH = 7
"""Of a Shared group, and all its members."""

DELAY_SECONDS = 5.0
"""Of copies for retry."""


@dataclass
class FakeQueue:
    """A queue of a topic on one broker group; `None` is a message that retention has taken."""

    topic: str
    queue_id: int
    records: list[bytes | None] = field(default_factory=list)
    sealed_end: int | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def minimum(self) -> int:
        return next((n for n, record in enumerate(self.records) if record is not None), len(self.records))

    def append(self, body: bytes, properties: dict[str, str], reconsume_times: int = 0) -> int:
        """Its queue offset."""
        queue_offset = len(self.records)
        record = Record(
            queue_id=self.queue_id,
            queue_offset=queue_offset,
            offset=queue_offset * 1000,
            born_timestamp=0,
            born_host=HOST,
            store_timestamp=0,
            store_host=HOST,
            reconsume_times=reconsume_times,
            body=body,
            topic=self.topic,
            properties=encode_properties(properties),
        )
        self.records.append(encode_record(record))
        self.arrived.set()
        self.arrived = asyncio.Event()
        return queue_offset


@dataclass
class FakeProgress:
    """Of one group in one queue."""

    position: int = 0
    epoch: int = 0
    session: str = ""
    claimed: bool = False
    given_to: int = 0
    sharing: FakeSharing = field(default_factory=FakeSharing)
    reset_to: int | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def end_pulls(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass
class FakeMember:
    """A session, as the leader of the controllers knows it."""

    client_id: str
    until: float


@dataclass
class FakeOwnership:
    session: str
    epoch: int
    revoked: bool = False


class FakeSubject:
    """One subject with `partitions`, all on the broker group `broker-a`."""

    def __init__(
        self,
        partitions: int = 1,
        *,
        name: str = "orders",
        strategy: OrderStrategy = OrderStrategy.STRICT,
        consume: ConsumeStrategy = ConsumeStrategy.EXCLUSIVE,
        permission_ms: int = 30_000,
        margin_ms: int = 5_000,
        heartbeat_ms: int = 5_000,
    ) -> None:
        self.name = name
        self.strategy = strategy
        self.consume = consume
        self.shared = consume is ConsumeStrategy.SHARED
        self.permission_ms = permission_ms
        self.margin_ms = margin_ms
        self.heartbeat_ms = heartbeat_ms
        self.generation = 1
        self.version = 1
        self.exists = True
        self.ranges = dict(enumerate(partition_ranges(partitions)))
        self.queues: dict[tuple[str, int], FakeQueue] = {}
        for number in range(partitions):
            self.queue(name, number)
        self.progress: dict[tuple[str, int], FakeProgress] = {}
        self.filters = False
        """Whether the broker drops messages with other tags, too."""

        self.members: dict[str, FakeMember] = {}
        self.owners: dict[int, FakeOwnership] = {}
        self.drained: dict[int, int] = {}
        self.finished: set[int] = set()
        self.wanted_owner: dict[int, str] = {}
        self.epochs = 0
        self.changed = asyncio.Event()
        self.dead: list[bytes] = []
        self.sequences: dict[int, int] = {}
        self.violations: list[str] = []
        self.acks: list[tuple[str, int, int, int]] = []
        """Session, queue id, first, last; of the subject's own queues."""

        self.requests: list[tuple[float, str, str]] = []
        """Time, session, what."""

        self.stale_routes = 0

    # -- what tests do ------------------------------------------------------------------------------------

    def queue(self, topic: str, queue_id: int) -> FakeQueue:
        return self.queues.setdefault((topic, queue_id), FakeQueue(topic, queue_id))

    def send(self, key: str | None, body: bytes, *, partition: int | None = None, tags: str = "") -> int:
        """Send as a producer does; its queue offset."""
        logical = 0 if key is None else logical_partition(key)
        if partition is None:
            partition = next(n for n, (first, end) in self.ranges.items() if first <= logical < end)
        sequence = self.sequences.get(partition, 0)
        self.sequences[partition] = sequence + 1
        stamp = OrderStamp(partition, logical, "p-1", 1, sequence)
        properties = {Property.ORDER_STAMP: stamp.encode()}
        if key is not None:
            properties[Property.SHARDING_KEY] = key
        if tags:
            properties[Property.TAGS] = tags
        return self.queue(self.name, partition).append(body, properties)

    def group_progress(self, partition: int = 0, topic: str | None = None) -> FakeProgress:
        return self.progress.setdefault((topic or self.name, partition), FakeProgress())

    def seal(self, partition: int) -> None:
        """Close its queue; the assignment says so."""
        queue = self.queue(self.name, partition)
        queue.sealed_end = len(queue.records)
        self.change()

    def new_master(self) -> None:
        """Another broker is master: it knows the epochs, and no claims."""
        for progress in self.progress.values():
            progress.claimed = False
            progress.sharing.end_all()
            progress.end_pulls()

    def lose_tail(self, partition: int, end: int) -> None:
        """A new master without the last messages."""
        del self.queue(self.name, partition).records[end:]
        progress = self.group_progress(partition)
        progress.position = min(progress.position, end)
        self.new_master()

    def reset(self, partition: int, position: int) -> None:
        """As an administrator does."""
        progress = self.group_progress(partition)
        progress.reset_to = position
        progress.end_pulls()

    def hand_over(self, partition: int) -> None:
        """Revoke it, for the member that does not own it."""
        owner = self.owners[partition]
        owner.revoked = True
        self.wanted_owner[partition] = next(each for each in self.members if each != owner.session)
        self.change()

    def expire_members(self) -> None:
        """What the leader's timer does: who was not heard for its permission and the margin leaves."""
        now = asyncio.get_running_loop().time()
        for session in [session for session, member in self.members.items() if member.until <= now]:
            self._leave(session)

    def _leave(self, session: str) -> None:
        del self.members[session]
        self.owners = {number: each for number, each in self.owners.items() if each.session != session}
        self._divide()

    def _divide(self) -> None:
        """Sticky: revoke what is too much, grant what nobody owns."""
        if self.shared:
            return
        before = {number: (each.session, each.revoked) for number, each in self.owners.items()}
        wanted = [number for number in sorted(self.ranges) if number not in self.finished]
        members = sorted(self.members)
        if members:
            most = -(-len(wanted) // len(members))
            counts = dict.fromkeys(members, 0)
            for number in wanted:
                owner = self.owners.get(number)
                if owner is None or owner.revoked:
                    continue
                if counts[owner.session] >= most:
                    owner.revoked = True
                else:
                    counts[owner.session] += 1
            for number in wanted:
                if number not in self.owners:
                    wish = self.wanted_owner.pop(number, "")
                    session = wish if wish in counts else min(members, key=lambda each: (counts[each], each))
                    if counts[session] < most:
                        counts[session] += 1
                        self.epochs += 1
                        self.owners[number] = FakeOwnership(session, self.epochs)
        if before != {number: (each.session, each.revoked) for number, each in self.owners.items()}:
            self.change()

    def change(self) -> None:
        """Another version of the assignments."""
        self.version += 1
        self.changed.set()
        self.changed = asyncio.Event()

    # -- controllers --------------------------------------------------------------------------------------

    async def controllers(self, command: Command) -> Command:
        """The answer of the controller that leads."""
        if not self.exists:
            return command.reply(ResponseCode.BROKERSET_SUBJECT_UNKNOWN, "no such subject")
        self.expire_members()
        match command.code:
            case RequestCode.BROKERSET_CONSUMER_HEARTBEAT:
                return self._heartbeat(command)
            case RequestCode.BROKERSET_ASSIGNMENT_CHANGED:
                asked = wire.AssignmentChanged.from_ext(command.ext)
                if asked.version == self.version:
                    try:
                        async with asyncio.timeout(asked.wait_ms / 1000):
                            await self.changed.wait()
                    except TimeoutError:
                        pass
                return command.reply(ext=wire.AssignmentChangedResponse(version=self.version).to_ext())
        self.violations.append(f"request {command.code} to the controllers")
        return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    def _heartbeat(self, command: Command) -> Command:
        header = wire.ConsumerHeartbeat.from_ext(command.ext)
        report = OwnedReport.from_json(command.body)
        if header.order_strategy not in (None, self.strategy):
            return command.reply(ResponseCode.BROKERSET_SUBJECT_REFUSED, "the subject is ordered otherwise")
        if header.consume_strategy != self.consume:
            return command.reply(ResponseCode.BROKERSET_SUBJECT_REFUSED, f"the group is {self.consume}")
        now = asyncio.get_running_loop().time()
        self.requests.append((now, header.session, "leave" if header.leaving else "heartbeat"))
        for released in report.released:
            owner = self.owners.get(released.partition_id)
            if owner is not None and (owner.session, owner.epoch) == (header.session, released.epoch):
                if not owner.revoked:
                    self.violations.append(f"released {released} that was not revoked")
                del self.owners[released.partition_id]
        for drained in report.drained:
            if self._consumes(drained.partition_id, header.session, drained.epoch):
                end = self.queue(self.name, drained.partition_id).sealed_end
                if end is None or drained.position < end:
                    self.violations.append(f"drained {drained}, sealed end {end}")
                if drained.partition_id not in self.drained:
                    self.drained[drained.partition_id] = drained.position
                    if self.strategy is OrderStrategy.STRICT and not self.shared:
                        self._finish(drained.partition_id)
                    self.change()
        for finished in report.finished:
            if self._consumes(finished.partition_id, header.session, finished.epoch):
                if finished.partition_id not in self.drained:
                    self.violations.append(f"finished {finished} that is not drained")
                self._finish(finished.partition_id)
        if header.leaving:
            if header.session in self.members:
                self._leave(header.session)
        else:
            until = now + (self.permission_ms + self.margin_ms) / 1000
            self.members[header.session] = FakeMember(header.client_id, until)
            self._divide()
        answer = wire.ConsumerHeartbeatResponse(
            permission_ms=self.permission_ms,
            margin_ms=self.margin_ms,
            heartbeat_ms=self.heartbeat_ms,
            version=self.version,
        )
        return command.reply(ext=answer.to_ext(), body=self.assignment_of(header.session).to_json())

    def _finish(self, partition: int) -> None:
        self.finished.add(partition)
        self.owners.pop(partition, None)
        self.change()

    def _consumes(self, partition: int, session: str, epoch: int) -> bool:
        if self.shared:
            return partition not in self.finished and epoch == SHARED_EPOCH
        owner = self.owners.get(partition)
        return owner is not None and (owner.session, owner.epoch) == (session, epoch)

    def assignment_of(self, session: str) -> AssignmentBody:
        owners = self.owners
        if self.shared:
            each = FakeOwnership(session, SHARED_EPOCH)
            owners = {number: each for number in self.ranges if number not in self.finished}
        return AssignmentBody(
            self.generation,
            self.version,
            self.strategy,
            self.consume,
            tuple(
                AssignedPartition(
                    number,
                    owner.epoch,
                    owner.revoked,
                    "broker-a",
                    number,
                    *self.ranges[number],
                    sealed_end=self.queue(self.name, number).sealed_end,
                    retries_only=number in self.drained,
                )
                for number, owner in sorted(owners.items())
                if owner.session == session
            ),
        )

    # -- brokers ------------------------------------------------------------------------------------------

    async def broker(self, command: Command) -> Command:
        """The answer of the master of the broker group."""
        if command.code == RequestCode.PULL_MESSAGE:
            return await self._pull(command)
        kinds: dict[int, tuple[type[Any], Callable[[Command, Any], Command]]] = {
            RequestCode.BROKERSET_CLAIM_QUEUE: (wire.ClaimQueue, self._claim),
            RequestCode.BROKERSET_ACKNOWLEDGE: (wire.Acknowledge, self._acknowledge),
            RequestCode.BROKERSET_RELEASE_QUEUE: (wire.ReleaseQueue, self._release),
            RequestCode.BROKERSET_SEND_BACK: (wire.SendBack, self._send_back),
        }
        kind, serve = kinds[command.code]
        header = kind.from_ext(command.ext)
        now = asyncio.get_running_loop().time()
        self.requests.append((now, header.session, kind.__name__))
        if kind is wire.ClaimQueue and header.topic == ordered_retry_topic(header.consumer_group, self.name):
            self.queue(header.topic, header.queue_id)
        if (header.topic, header.queue_id) not in self.queues:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, f"no topic {header.topic}")
        progress = self.group_progress(header.queue_id, header.topic)
        if header.epoch < progress.epoch:
            return command.reply(ResponseCode.BROKERSET_STALE_EPOCH, f"epoch {progress.epoch} is known")
        if self.shared:
            return self._serve_shared(command, header, progress)
        if kind is not wire.ClaimQueue and (header.epoch, header.session, True) != (
            progress.epoch,
            progress.session,
            progress.claimed,
        ):
            if kind is wire.ReleaseQueue:
                answer = wire.ReleaseQueueResponse(released=False, position=progress.position)
                return command.reply(ext=answer.to_ext())
            return command.reply(ResponseCode.BROKERSET_NOT_CLAIMED, "claim it first")
        return serve(command, header)

    def _serve_shared(self, command: Command, header: Any, progress: FakeProgress) -> Command:
        sharing = progress.sharing
        now = asyncio.get_running_loop().time()
        sharing.forget_silent(now)
        progress.epoch = header.epoch
        queue = self.queue(header.topic, header.queue_id)
        log = sharing.logs.get(header.session)
        if isinstance(header, wire.ClaimQueue):
            if not header.shared:
                self.violations.append("a claim that is not shared")
            if header.pulled_to < 0:
                log = sharing.begin(header.session, now)
                progress.end_pulls()
            elif log is None or not log.start <= header.pulled_to <= log.end:
                return command.reply(ResponseCode.BROKERSET_OFFSET_OUT_OF_RANGE, "not of this pull log")
            log.heard = now
            answer: Any = wire.ClaimQueueResponse(
                position=log.start + log.position,
                max_offset=len(queue.records),
                sealed_end=-1 if queue.sealed_end is None else queue.sealed_end,
                group_position=sharing.group_position,
            )
            return command.reply(ext=answer.to_ext())
        if isinstance(header, wire.ReleaseQueue):
            sharing.end(header.session)
            progress.end_pulls()
            answer = wire.ReleaseQueueResponse(released=log is not None, position=sharing.group_position)
            return command.reply(ext=answer.to_ext())
        if log is None:
            return command.reply(ResponseCode.BROKERSET_NOT_CLAIMED, "claim it first")
        if isinstance(header, wire.SendBack):
            if header.queue_offset not in log.offsets[log.position :]:
                self.violations.append(f"sent back {header.queue_offset}, which the session does not have")
            return self._send_back(command, header)
        log.heard = now
        if not log.start <= header.first <= log.start + log.position or header.last >= log.end:
            self.violations.append(f"ack {header.first} to {header.last} at {log.start + log.position}")
            answer = wire.AcknowledgeResponse(position=log.start + log.position)
            return command.reply(ResponseCode.BROKERSET_ACK_REFUSED, "a gap", ext=answer.to_ext())
        sharing.acknowledge(log, header.last)
        answer = wire.AcknowledgeResponse(
            position=log.start + log.position, group_position=sharing.group_position
        )
        return command.reply(ext=answer.to_ext())

    def _pull_shared(self, command: Command, header: PullMessage, session: str) -> Command | None:
        """What a pull of a Shared group finds now; None: nothing."""
        queue = self.queue(header.topic, header.queue_id)
        sharing = self.group_progress(header.queue_id, header.topic).sharing
        sharing.forget_silent(asyncio.get_running_loop().time())
        log = sharing.logs.get(session)
        if log is None:
            return command.reply(ResponseCode.BROKERSET_NOT_CLAIMED, "claim it first")
        start, count = header.queue_offset, header.max_msg_nums
        if not log.start <= start <= log.end:
            return command.reply(ResponseCode.BROKERSET_OFFSET_OUT_OF_RANGE, "not of this pull log")
        if start == log.end:
            for offset in sharing.next_offsets(count, len(queue.records)):
                record = queue.records[offset]
                if record is None or (self.filters and MessageView(record).tags != header.subscription):
                    sharing.acknowledged.add(offset)
                else:
                    log.offsets.append(offset)
        found = [queue.records[each] for each in log.offsets[start - log.start :][:count]]
        if not found:
            return None
        if found[0] is None:
            gone = next(number for number, each in enumerate([*found, b""]) if each is not None)
            return self._found(command, ResponseCode.PULL_OFFSET_MOVED, start + gone, queue)
        given = found[: next((number for number, each in enumerate(found) if each is None), count)]
        body = b"".join(each for each in given if each is not None)
        return self._found(command, ResponseCode.SUCCESS, start + len(given), queue, body)

    def _claim(self, command: Command, header: wire.ClaimQueue) -> Command:
        queue = self.queue(header.topic, header.queue_id)
        progress = self.group_progress(header.queue_id, header.topic)
        if header.pulled_to > len(queue.records):
            return command.reply(ResponseCode.BROKERSET_OFFSET_OUT_OF_RANGE, f"ends at {len(queue.records)}")
        if header.epoch > progress.epoch:
            progress.end_pulls()
        progress.epoch, progress.session, progress.claimed = header.epoch, header.session, True
        if progress.reset_to is not None:
            progress.position, progress.reset_to = progress.reset_to, None
        progress.given_to = max(progress.position, header.pulled_to)
        answer = wire.ClaimQueueResponse(
            position=progress.position,
            max_offset=len(queue.records),
            sealed_end=-1 if queue.sealed_end is None else queue.sealed_end,
        )
        return command.reply(ext=answer.to_ext())

    async def _pull(self, command: Command) -> Command:
        header = PullMessage.from_ext(command.ext)
        epoch, session = int(command.ext[wire.PULL_EPOCH]), command.ext[wire.PULL_SESSION]
        loop = asyncio.get_running_loop()
        self.requests.append((loop.time(), session, "pull"))
        queue = self.queue(header.topic, header.queue_id)
        progress = self.group_progress(header.queue_id, header.topic)
        until = loop.time() + header.suspend_timeout_millis / 1000
        start = header.queue_offset
        if self.shared and session in progress.sharing.logs:
            progress.sharing.logs[session].heard = loop.time()
        while True:
            if epoch < progress.epoch:
                return command.reply(ResponseCode.BROKERSET_STALE_EPOCH, f"epoch {progress.epoch} is known")
            if self.shared:
                answer = self._pull_shared(command, header, session)
                if answer is not None:
                    return answer
            elif (epoch, session, True) != (progress.epoch, progress.session, progress.claimed):
                return command.reply(ResponseCode.BROKERSET_NOT_CLAIMED, "claim it first")
            elif progress.reset_to is not None:
                return self._found(command, ResponseCode.PULL_OFFSET_MOVED, progress.reset_to, queue)
            elif start > len(queue.records):
                return command.reply(ResponseCode.BROKERSET_OFFSET_OUT_OF_RANGE, "behind the end")
            elif start < queue.minimum:
                return self._found(command, ResponseCode.PULL_OFFSET_MOVED, queue.minimum, queue)
            elif records := queue.records[start : start + header.max_msg_nums]:
                progress.given_to = max(progress.given_to, start + len(records))
                body = b"".join(record for record in records if record is not None)
                return self._found(command, ResponseCode.SUCCESS, start + len(records), queue, body)
            changes = [loop.create_task(event.wait()) for event in (queue.arrived, progress.changed)]
            left = until - loop.time()
            try:
                if left <= 0.000_001:
                    return self._found(command, ResponseCode.PULL_NOT_FOUND, start, queue)
                await asyncio.wait(
                    changes,
                    timeout=min(left, 1.0) if self.shared else left,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                for change in changes:
                    change.cancel()

    def _found(
        self, command: Command, code: int, next_offset: int, queue: FakeQueue, body: bytes = b""
    ) -> Command:
        answer = PullMessageResponse(
            suggest_which_broker_id=0,
            next_begin_offset=next_offset,
            min_offset=queue.minimum,
            max_offset=len(queue.records),
            group_position=self._group_position(queue) if self.shared else None,
        )
        return command.reply(code, ext=answer.to_ext(), body=body)

    def _group_position(self, queue: FakeQueue) -> int:
        return self.group_progress(queue.queue_id, queue.topic).sharing.group_position

    def _acknowledge(self, command: Command, header: wire.Acknowledge) -> Command:
        progress = self.group_progress(header.queue_id, header.topic)
        if header.first > progress.position or header.last >= progress.given_to:
            self.violations.append(f"ack {header.first} to {header.last} at {progress.position}")
            answer = wire.AcknowledgeResponse(position=progress.position)
            return command.reply(ResponseCode.BROKERSET_ACK_REFUSED, "a gap", ext=answer.to_ext())
        progress.position = max(progress.position, header.last + 1)
        if header.topic == self.name:
            self.acks.append((header.session, header.queue_id, header.first, header.last))
        answer = wire.AcknowledgeResponse(position=progress.position)
        return command.reply(ext=answer.to_ext())

    def _release(self, command: Command, header: wire.ReleaseQueue) -> Command:
        progress = self.group_progress(header.queue_id, header.topic)
        progress.claimed = False
        progress.end_pulls()
        answer = wire.ReleaseQueueResponse(released=True, position=progress.position)
        return command.reply(ext=answer.to_ext())

    def _send_back(self, command: Command, header: wire.SendBack) -> Command:
        stored = self.queue(header.topic, header.queue_id).records[header.queue_offset]
        assert stored is not None
        view = MessageView(stored)
        if header.dead:
            self.dead.append(view.body)
            return command.reply()
        properties = {**view.properties, Property.RETRY_TOPIC: self.name}
        queue = self.queue(ordered_retry_topic(header.consumer_group, self.name), header.queue_id)
        asyncio.get_running_loop().call_later(
            DELAY_SECONDS, queue.append, view.body, properties, view.reconsume_times + 1
        )
        return command.reply()


class FakeTransport:
    """One process's way to the subjects; each link can be cut, and answers can be lost or late."""

    def __init__(self, *subjects: FakeSubject) -> None:
        self._subjects = {subject.name: subject for subject in subjects}
        self.controllers_cut = False
        self.brokers_cut = False
        self.lose_answers: set[int] = set()
        """Codes of requests that are carried out, and whose next answer is lost."""

        self.answer_late: dict[int, float] = {}
        """Seconds by which answers to a code come later."""

        self.refuse: dict[int, int] = {}
        """Codes of requests that are answered with another code, always."""

        self.refused_ext: dict[str, str] = {}
        self.asked: Counter[int] = Counter()
        self.cut_tries = 0
        self.slow_subjects: set[str] = set()
        """Whose controllers never answer."""

    async def ask_controllers(self, command: Command, timeout: float) -> Command:
        subject = self._subjects[command.ext["subject"]]
        if self.controllers_cut or subject.name in self.slow_subjects:
            await asyncio.sleep(timeout)
            raise NameServerUnavailable(["controllers are cut off"])
        return await self._answer(subject.controllers, command, timeout)

    async def ask_master(self, topic: str, broker_group: str, command: Command, timeout: float) -> Command:
        assert broker_group == "broker-a"
        if self.brokers_cut:
            self.cut_tries += 1
            await asyncio.sleep(0.01)
            raise BrokerUnreachable(broker_group, "it is cut off")
        return await self._answer(self._subjects[topic].broker, command, timeout)

    def route_is_stale(self, topic: str) -> None:
        self._subjects[topic].stale_routes += 1

    async def _answer(self, serve: Any, command: Command, timeout: float) -> Command:
        self.asked[command.code] += 1
        refused = self.refuse.get(command.code)
        if refused is not None:
            await asyncio.sleep(0.001)
            return command.reply(refused, "for the test", ext=self.refused_ext)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.sleep(0.001)
                answer: Command = await serve(command)
                await asyncio.sleep(self.answer_late.get(command.code, 0.0) + 0.001)
                if command.code in self.lose_answers:
                    self.lose_answers.discard(command.code)
                    await asyncio.sleep(timeout)
                return answer
        except TimeoutError:
            raise AnswerTimeout("no answer in time") from None
