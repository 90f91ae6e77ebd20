"""Metadata over random changes, crashes and promotions, against a naive model of the log."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from brokerset_acl.policies import Acl
from brokerset_acl.users import User
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.tables.metadata import records, snapshot
from brokerset_broker.tables.metadata.records import (
    AccessPut,
    Change,
    ForbiddenPut,
    GroupsDeleted,
    GroupsPut,
    OffsetsPut,
    OffsetsRemoved,
    RequestModesPut,
    ResetsPut,
    SnapshotChunk,
    SnapshotEnd,
    TopicsDeleted,
    TopicsPut,
)
from brokerset_broker.tables.metadata.snapshot import MetadataState
from brokerset_broker.tables.ordered.live_producers import LiveQueue
from brokerset_broker.tables.ordered.sequences import Stamps
from brokerset_broker.tables.ordered.values import Fence, FencesPut, OrderedQueue, Subject, SubjectsPut
from brokerset_broker.tables.pop.order_lock import OrderLock
from brokerset_broker.tables.pop.values import RequestMode, mode_key
from brokerset_formats.config import SubscriptionGroupConfig, TopicConfig
from brokerset_protocol.bodies.metadata import MessageRequestMode
from brokerset_protocol.errors import Rejected
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus
from brokerset_rig.examples import examples
from brokerset_rig.metadata_parts import Replica, Stored, common_end, copy_records, settle

REPLICAS = 3
TOPICS = ("t", "u")
GROUPS = ("g", "h")

topics = st.sampled_from(TOPICS)
groups = st.sampled_from(GROUPS)
numbers = st.integers(1, 9)
replicas = st.integers(0, REPLICAS - 1)

steps = st.one_of(
    st.tuples(st.just("commit"), groups, topics, numbers, st.booleans()),
    st.tuples(st.just("commit"), groups, topics, numbers, st.booleans()),
    st.tuples(st.just("create"), topics, numbers),
    st.tuples(st.just("delete"), topics),
    st.tuples(st.just("group"), groups, numbers),
    st.tuples(st.just("drop group"), groups, st.booleans()),
    st.tuples(st.just("forbid"), groups, topics, numbers),
    st.tuples(st.just("reset"), groups, topics, numbers),
    st.tuples(st.just("clone"), topics),
    st.tuples(st.just("pull"), groups, topics),
    st.tuples(st.just("auto"), groups),
    st.tuples(st.just("retry"), groups, st.booleans()),
    st.tuples(st.just("delay"), numbers, numbers),
    st.tuples(st.just("mode"), groups, topics, numbers),
    st.tuples(st.just("user"), st.sampled_from("ab"), numbers, st.booleans()),
    st.tuples(st.just("order"), groups, topics, numbers, st.booleans()),
    st.tuples(st.just("subject"), topics, numbers),
    st.tuples(st.just("fence"), groups, topics, numbers, st.booleans()),
    st.tuples(st.just("produce"), topics, st.sampled_from("pq")),
    st.tuples(st.just("produce"), topics, st.sampled_from("pq")),
    st.tuples(st.just("flush")),
    st.tuples(st.just("copy"), replicas, st.integers(1, 5)),
    st.tuples(st.just("copy"), replicas, st.just(1_000)),
    st.tuples(st.just("confirm")),
    st.tuples(st.just("confirm")),
    st.tuples(st.just("leave"), replicas),
    st.tuples(st.just("join"), replicas),
    st.tuples(st.just("promote"), replicas, st.booleans()),
    st.tuples(st.just("restart"), replicas, st.booleans()),
    st.tuples(st.just("snapshot")),
    st.tuples(st.just("turn")),
)


def fold(base: MetadataState, log: Sequence[Stored], limit: int) -> MetadataState:
    """What the log below `limit` says, read from its beginning; every whole snapshot is taken."""
    state = copy_of(base)
    seen: list[tuple[Stored, records.Entry | records.Skipped]] = []
    for record in log:
        if record.body is None or record.end > limit:
            continue
        entry = records.decode(record.body)
        if isinstance(entry, Change):
            state.apply(entry)
        elif isinstance(entry, SnapshotEnd):
            state = MetadataState()
            for _, other in seen:
                if isinstance(other, SnapshotChunk) and other.begin == entry.begin:
                    state.add_chunk(other.payload)
            for stored, other in seen:
                if isinstance(other, Change) and stored.offset >= entry.replay_from:
                    state.apply(other)
            for topic in base.topics.values():
                state.topics.setdefault(topic.topic_name, topic)
            for group in base.groups.values():
                state.groups.setdefault(group.group_name, group)
        seen.append((record, entry))
    return state


def copy_of(state: MetadataState) -> MetadataState:
    return MetadataState(
        dict(state.topics),
        dict(state.groups),
        {key: dict(value) for key, value in state.forbidden.items()},
        {key: dict(value) for key, value in state.offsets.items()},
        {key: dict(value) for key, value in state.resets.items()},
        dict(state.delay),
        ordered=state.ordered.copy(),
        request_modes=dict(state.request_modes),
        order_locks={key: dict(value) for key, value in state.order_locks.items()},
        access=None if state.access is None else state.access.copy(),
    )


class Group:
    """Replicas of one broker group; the harness is network, disk and controllers in one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.members = [Replica(folder / str(number)) for number in range(REPLICAS)]
        self.base = self.members[0].state()
        self.master = 0
        self.epoch = 0
        self.in_sync = set(range(REPLICAS))
        self.tasks: list[asyncio.Task[object]] = []
        self.expected: dict[tuple[str, ...], object] = {}
        self.begun: dict[tuple[str, ...], int] = {}
        self.open: dict[tuple[str, ...], int] = {}
        self.history = [0] * REPLICAS
        """Where the log ended when each began to lead: all of that is applied then."""

    @property
    def leader(self) -> Replica:
        return self.members[self.master]

    # -- what must hold -----------------------------------------------------------------------------------

    def check(self) -> None:
        for number, member in enumerate(self.members):
            applied, confirmed = member.log.status().applied_offset, member.store.confirmed_offset
            if number != self.master:
                allowed = max(confirmed, min(self.history[number], member.store.max_offset))
                assert applied <= allowed, "a follower applied what is not confirmed"
                if member.log.status().exact:
                    assert member.state() == fold(self.base, member.store.records, applied)

    def check_same(self) -> None:
        """With everything written, copied and confirmed, all are what the log says."""
        wanted = fold(self.base, self.leader.store.records, self.leader.store.max_offset)
        for member in self.members:
            assert member.log.status().applied_offset == self.leader.store.max_offset
            assert member.state() == wanted

    def check_told(self) -> None:
        """Everything that somebody was told, and nobody touched since, is there."""
        state = self.leader.state()
        for key, value in sorted(self.expected.items(), key=str):
            assert self.look(state, key) == value, key

    @staticmethod
    def look(state: MetadataState, key: tuple[str, ...]) -> object:
        match key:
            case ("topic", name):
                return state.topics.get(name)
            case ("group", name):
                return state.groups.get(name)
            case ("forbidden", name):
                return state.forbidden.get(name)
            case ("user", name):
                return None if state.access is None else state.access.users.get(name)
            case (_, topic, group):
                return state.offsets.get(f"{topic}@{group}", {}).get(0)
        raise AssertionError(key)

    def begin(self, keys: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], int]:
        """Something may change these from now on."""
        for key in keys:
            self.expected.pop(key, None)
            self.begun[key] = self.begun.get(key, 0) + 1
        return {key: self.begun[key] for key in keys}

    def told(self, begun: dict[tuple[str, ...], int], values: dict[tuple[str, ...], object]) -> None:
        for key, value in values.items():
            if self.begun[key] == begun[key] and not self.open.get(key):
                self.expected[key] = value

    # -- steps --------------------------------------------------------------------------------------------

    def change(
        self,
        lock: Sequence[str],
        decide: Callable[[], Sequence[Change]],
        values: dict[tuple[str, ...], object],
        also: Sequence[tuple[str, ...]] = (),
    ) -> None:
        begun = self.begin([*values, *also])

        async def carry_out(leader: Replica) -> None:
            for key in begun:
                self.open[key] = self.open.get(key, 0) + 1
            try:
                await leader.log.change(lock, decide)
            except Rejected:
                return
            finally:
                for key in begun:
                    self.open[key] -= 1
            self.told(begun, values)

        self.tasks.append(asyncio.create_task(carry_out(self.leader)))

    def offsets_of(self, *, topic: str | None = None, group: str | None = None) -> list[tuple[str, ...]]:
        return [
            ("offset", one, other)
            for one in TOPICS
            for other in GROUPS
            if topic in (None, one) and group in (None, other)
        ]

    async def step(self, step: tuple[object, ...]) -> None:  # one table of steps
        leader = self.leader
        match step:
            case ("commit", str(group), str(topic), int(offset), bool(two_way)):
                begun = self.begin([("offset", topic, group)])
                if leader.offsets.is_held(group, topic) or leader.offsets.has_reset(group, topic, 0):
                    return
                leader.offsets.commit(group, topic, 0, offset)
                if two_way:

                    def answered(status: PutStatus) -> None:
                        if status is PutStatus.PUT_OK:
                            self.told(begun, {("offset", topic, group): offset})

                    leader.log.when_offsets_confirmed(answered)
            case ("create", str(topic), int(queues)):
                config = TopicConfig(topic, queues, queues)
                self.change(
                    [topic],
                    lambda: [] if leader.topics.get(topic) == config else [TopicsPut((config,))],
                    {("topic", topic): config},
                )
            case ("delete", str(topic)):
                self.change(
                    [topic],
                    lambda: [TopicsDeleted((topic,))],
                    {("topic", topic): None, **dict.fromkeys(self.offsets_of(topic=topic))},
                )
            case ("group", str(group), int(times)):
                wanted = SubscriptionGroupConfig(group, retry_max_times=times)
                self.change([group], lambda: [GroupsPut((wanted,))], {("group", group): wanted})
            case ("drop group", str(group), bool(clean)):
                gone: list[Change] = [GroupsDeleted((group,))]
                values: dict[tuple[str, ...], object] = {("group", group): None, ("forbidden", group): None}
                if clean:
                    gone.append(OffsetsRemoved((group,)))
                    values |= dict.fromkeys(self.offsets_of(group=group))
                self.change([group], lambda: gone, values)
            case ("forbid", str(group), str(topic), int(mask)):
                self.change(
                    [group],
                    lambda: [ForbiddenPut({group: {topic: mask}})],
                    {("forbidden", group): {topic: mask}},
                )
            case ("reset", str(group), str(topic), int(offset)):
                key = f"{topic}@{group}"
                self.change(
                    [key], lambda: [ResetsPut({key: {0: offset}})], {("offset", topic, group): offset}
                )
            case ("clone", str(topic)):
                source, target = f"{topic}@g", f"{topic}@h"

                def cloned() -> Sequence[Change]:
                    found = dict(leader.offsets.replicated.get(source, {}))
                    return [OffsetsPut({target: found})] if found else []

                self.change([target], cloned, {}, self.offsets_of(topic=topic, group="h"))
            case ("pull", str(group), str(topic)):
                leader.offsets.take_reset(group, topic, 0)
            case ("auto", str(group)):
                if leader.groups.get(group) is None:
                    self.begin([("group", group)])
                leader.groups.get_or_create(group)
            case ("retry", str(group), bool(order)):
                leader.topics.create_retry(group, 1, order=order)
            case ("delay", int(level), int(offset)):
                leader.delay.levels[level] = offset
            case ("mode", str(group), str(topic), int(share)):
                mode = RequestMode(MessageRequestMode.POP, share)
                key = mode_key(topic, group)
                self.change([topic, group], lambda: [RequestModesPut({key: mode})], {})
            case ("user", str(name), int(number), bool(goes)):
                user = None if goes else User(name, str(number))
                entry = {"resource": f"Topic:{number}", "actions": ["Pub"], "decision": "Deny"}
                acl = Acl.from_json({"subject": f"User:{name}", "policies": [{"entries": [entry]}]})
                put = AccessPut({name: user}, {} if goes else {f"User:{name}": acl})
                self.change([f"user:{name}"], lambda: [put], {("user", name): user})
            case ("order", str(group), str(topic), int(offset), bool(over)):
                if leader.offsets.is_held(group, topic) or group in leader.groups.going:
                    return
                lock = None if over else OrderLock("a", offset, 5, (offset, offset + 2), acked=offset % 4)
                leader.order_locks.put(topic, group, 0, lock)
            case ("subject", str(topic), int(version)):
                queue = OrderedQueue(version, PartitionStatus.OPEN)
                subject = Subject(OrderStrategy.STRICT, version, {0: queue})
                self.change([topic], lambda: [SubjectsPut({topic: subject})], {})
            case ("fence", str(group), str(topic), int(epoch), bool(released)):
                fence = Fence(epoch, "s", released)
                self.change([f"fence:{topic}"], lambda: [FencesPut({f"{topic}@{group}": {0: fence}})], {})
            case ("produce", str(topic), str(producer)) if topic not in leader.topics.going:
                self.produce(topic, producer)
            case ("flush",):
                leader.log.flush()
            case ("copy", int(number), int(count)) if number != self.master:
                copy_records(leader.store, self.members[number].store, count)
            case ("confirm",):
                self.confirm()
            case ("leave", int(number)) if number != self.master:
                self.in_sync.discard(number)
            case ("join", int(number)):
                copy_records(leader.store, self.members[number].store)
                self.in_sync.add(number)
            case ("promote", int(number), bool(crash)) if number in self.in_sync:
                await self.promote(number, crash=crash)
            case ("restart", int(number), bool(stamped)) if number != self.master:
                if stamped:
                    await self.members[number].log.write_stamp()
                await self.restart(number)
            case ("snapshot",):
                self.tasks.append(asyncio.create_task(self.snapshot(leader)))
            case _:
                await asyncio.sleep(0)

    def produce(self, topic: str, producer: str) -> None:
        """A message of a producer is stored; nothing is, once the deletion of the topic is in the log."""
        ordered = self.leader.ordered
        queue = ordered.live.get(topic, 0)
        if queue is None:
            known = ordered.state.producers.get(topic, {}).get(0)
            queue = LiveQueue(known, 0 if known is None else known.complete_to)
            ordered.live.put(topic, 0, queue)
        state = queue.producers.get(producer)
        following = 0 if state is None else state.next_sequence
        queue.stored(Stamps(1, producer, 1, following, 1), queue.complete_to, 0, 1)
        ordered.live.note(topic, 0)

    @staticmethod
    async def snapshot(leader: Replica) -> None:
        try:
            await leader.log.write_snapshot()
        except Rejected:
            return

    def confirm(self) -> None:
        end = min(self.members[number].store.max_offset for number in sorted(self.in_sync))
        self.leader.confirm(end)
        for number, member in enumerate(self.members):
            if number != self.master:
                member.confirm(self.leader.store.confirmed_offset)

    async def restart(self, number: int) -> None:
        self.members[number].log.stop_leading()
        self.members[number] = Replica(self.folder / str(number), self.members[number].store)
        await self.members[number].log.start_following()

    async def promote(self, number: int, *, crash: bool) -> None:
        before = self.leader
        if crash:
            await self.restart(self.master)
        before.log.stop_leading()
        self.master = number
        self.epoch += 1
        await self.leader.log.lead(self.epoch)
        self.history[number] = self.leader.store.max_offset
        await self.leader.log.write_snapshot()
        self.in_sync = {number}
        for other, member in enumerate(self.members):
            if other == number:
                continue
            cut = common_end(self.leader.store.records, member.store.records)
            member.store.records = [record for record in member.store.records if record.end <= cut]
            assert cut >= member.store.confirmed_offset
            member.log.truncated(cut)
            await member.log.start_following()
            copy_records(self.leader.store, member.store)
            self.in_sync.add(other)
        self.check_told()

    async def finish(self) -> None:
        rounds = 2
        while rounds:
            if all(task.done() for task in self.tasks):
                rounds -= 1
            self.leader.log.flush()
            for number in range(REPLICAS):
                copy_records(self.leader.store, self.members[number].store)
            self.confirm()
            await settle()


@examples(300, suppress_health_check=[HealthCheck.too_slow])
@example(  # a consumer is told of a reset while another one is on its way
    script=[
        *([("commit", "g", "t", 1, False)] * 6),
        ("reset", "g", "t", 1),
        ("promote", 0, False),
        ("reset", "g", "t", 1),
        ("commit", "g", "t", 1, False),
        ("commit", "g", "t", 1, False),
        ("pull", "g", "t"),
    ]
)
@example(  # an offset is committed while a snapshot is written, and the master leads again before its record
    script=[
        ("snapshot",),
        *([("commit", "g", "t", 1, False)] * 3),
        ("pull", "g", "t"),
        ("confirm",),
        ("turn",),
        ("copy", 0, 1000),
        ("promote", 0, False),
    ]
)
@given(st.lists(steps, min_size=5, max_size=60))
def test_replicas_agree_and_nothing_told_is_lost(script: list[tuple[object, ...]]) -> None:
    """Replicas that applied the same log are the same, and every later leader has what clients were told."""

    async def main(folder: Path) -> None:
        group = Group(folder)
        await group.promote(0, crash=False)
        for step in script:
            await group.step(step)
            await asyncio.sleep(0)
            group.check()
        await group.finish()
        await asyncio.gather(*group.tasks)
        group.check_same()
        await group.promote(min(group.in_sync), crash=False)
        await group.finish()
        group.check()
        group.check_told()
        group.check_same()

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(snapshot, "CHUNK_ENTRIES_MAX", 3),
    ):
        asyncio.run(main(Path(folder)))
