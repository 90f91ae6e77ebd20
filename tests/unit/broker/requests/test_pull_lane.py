"""The native way of plain pulls against the Python one: the same answers, offsets and counters."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.parked_pull_table import ParkedPull
from brokerset_broker.requests.pull import PullProcessor
from brokerset_broker.requests.pull_lane import PullLane, begins_with_pull
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.store import MessageStore
from brokerset_broker.store.results import GetStatus
from brokerset_broker.tables.consumers import ConsumerGroup, make_subscription
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats import native
from brokerset_formats.config import SubscriptionGroupConfig, TopicConfig
from brokerset_protocol.commands import CommandReader
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.ordered import PULL_EPOCH
from brokerset_protocol.subscriptions import parse
from brokerset_runtime.clock import ManualClock
from brokerset_runtime.remoting import DEFERRED
from brokerset_spec.broker_settings import BrokerSettings

pytestmark = pytest.mark.skipif(native.core is None, reason="there is no native core here")

PLAIN = {
    "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "3", "maxMsgNums": "32",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*",
    "subVersion": "0", "expressionType": "TAG",
}  # fmt: skip
CHOICES: dict[str, list[Any]] = {
    "consumerGroup": ["G", "G", "stopped", "tagged", "unknown", "", 7],
    "topic": ["T", "T", "T", "closed", "none", "\u00e4"],
    "queueId": ["0", "1", "2", "3", "4", "-1", "+1", "01", 1, "x", None],
    "queueOffset": [
        *(str(n) for n in range(0, 90, 3)),
        "end",
        "end",
        "end",
        "-1",
        "1000",
        "",
        None,
        5,
        2.5,
        str(1 << 70),
    ],
    "maxMsgNums": ["1", "2", "7", "32", "32", "500", "0", "-3"],
    "sysFlag": ["0", "1", "2", "4", "5", "6", "7", "12", "-4"],
    "commitOffset": ["0", "5", "-1", "17", "many", "-0", "007", "0-7"],
    "suspendTimeoutMillis": ["15000", "0", None],
    "subscription": ["*", "*", "", "A", "A || B", None],
    "subVersion": ["0", "5", "99", "", None, "x"],
    "expressionType": ["TAG", "SQL92", "", None],
    "maxMsgBytes": ["0", "1", "700", "100000", "-1", ""],
    "bname": ["broker-a"],
    "unheardOf": ["1"],
}


class Claims:
    """As `OrderedAccess`, as far as plain pulls look at it: topics in `fences` are claimed by sessions."""

    def __init__(self) -> None:
        self.ordered = self.state = self.claims = self
        self.fences: set[str] = set()
        self.raised = False

    def has_fences(self, topic: str) -> bool:
        return topic in self.fences

    def admit_pull(self, key: Any, queue_offset: int, ext: Any) -> None:
        assert PULL_EPOCH not in ext
        raise Rejected(2125, f"{key} is claimed, {queue_offset}")


class Side:
    """One of both brokers: its own offsets and counters, next to tables that both read."""

    def __init__(self, world: World, *, lane: bool) -> None:
        live, clock = world.live, world.clock
        self.peer = ("10.0.0.1", 54321)
        self.in_flight = 0
        self.in_flight_max = 8_192
        self.waiting: list[ParkedPull] = []
        self.parked_max = 1 << 20
        self.answers_room = 1 << 20
        self.sent: list[Any] = []
        self.parked: list[tuple[Any, ...]] = []
        self.offsets = OffsetManager(live, clock)
        self.stats = BrokerStats(clock)
        shared: dict[str, Any] = {
            "live": live, "store": world.store, "topics": world.topics, "groups": world.groups,
            "consumers": world, "offsets": self.offsets, "admission": world.admission, "stats": self.stats,
            "access": world.access,
        }  # fmt: skip
        self.processor = PullProcessor(**shared, parked_pulls=self)  # type: ignore[arg-type]  # the part of it that pulls use
        self.lane: PullLane | None = None
        if lane:
            assert native.core is not None
            self.lane = PullLane(native.core, **shared, parked_pulls=self, processor=self.processor)  # type: ignore[arg-type]  # as above
            self.lane.is_open = lambda: True

    @property
    def in_flight_room(self) -> int:
        return self.in_flight_max - self.in_flight

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def answer_at_once(self, data: Any) -> None:
        self.in_flight -= 1
        self.sent.append(data)

    def park(self, pull: ParkedPull, timeout_ms: int) -> bool:
        """As `ParkedPulls.park`."""
        if len(self.waiting) >= self.parked_max:
            return False
        self.parked.append((*pull.key, pull.queue_offset, pull.codes, timeout_ms))
        self.waiting.append(pull)
        return True

    def resume(self) -> list[Any]:
        """What those that wait are answered, in the order in which they came."""
        begun = len(self.sent)
        waiting, self.waiting = self.waiting, []
        for pull in waiting:
            pull.resume()
        return self.sent[begun:]

    def serve(self, data: bytes) -> list[Any]:
        """What becomes of the requests in a chunk."""
        begun = len(self.sent)
        connection: Any = self
        if self.lane is not None:
            data = data[self.lane.serve(connection, data) :]
        found: list[Any] = list(self.sent[begun:])
        for command in CommandReader().feed(data):
            try:
                answer = self.processor.pull(connection, command)
                if answer is DEFERRED:
                    self.in_flight += 1
                else:
                    found.append(answer)
            except Rejected as rejected:
                found.append((rejected.code, rejected.remark))
            except (KeyError, ValueError, TypeError) as error:
                found.append(repr(error))
        return found

    def noted(self) -> tuple[Any, ...]:
        table = self.offsets.table()
        flows = [(*name, flow.messages, flow.size, flow.calls) for *name, flow in self.stats.groups()]
        stats = self.stats
        return (
            table.offsets,
            table.pull_offsets,
            flows,
            stats.get_messages,
            stats.found_calls,
            stats.missed_calls,
        )


class World:
    """A store whose log and queues roll often, with three queues of a topic, and who reads them."""

    def __init__(self, folder: Path, *, long_polling: bool = True) -> None:
        self.clock = ManualClock()
        settings = BrokerSettings(
            store_path_root_dir=folder,
            mapped_file_size_commit_log=16_384,
            mapped_file_size_consume_queue=600,
            auto_create_subscription_group=False,
            long_polling_enable=long_polling,
            short_polling_time_mills=700,
        )
        self.live = LiveSettings(settings)
        self.store = MessageStore(settings, self.clock)
        self.store.load()
        self.topics = TopicManager(self.live, self.clock)
        self.topics.update(TopicConfig("T", 4, 4))
        self.topics.update(TopicConfig("closed", 4, 4, perm=2))
        self.groups = GroupManager(self.live, self.clock)
        for group in (
            SubscriptionGroupConfig("G"),
            SubscriptionGroupConfig("tagged"),
            SubscriptionGroupConfig("stopped", consume_enable=False),
        ):
            self.groups.update(group)
        self.admission = Admission("127.0.0.1", 6)
        self.members: dict[str, ConsumerGroup] = {}
        for name, expression in (("G", "*"), ("tagged", "A")):
            self.members[name] = ConsumerGroup(name)
            self.members[name].subscriptions["T"] = make_subscription(parse("T", expression))
        self.access = Claims()
        self.python, self.native = Side(self, lane=False), Side(self, lane=True)

    def group(self, name: str) -> ConsumerGroup | None:
        """As `ConsumerTable.group`."""
        return self.members.get(name)

    def fill(self, rng: random.Random, count: int = 240, size_max: int = 300) -> None:
        for _ in range(count):
            properties = rng.choice([b"", b"TAGS\x01A\x02", b"TAGS\x01B\x02"])
            self.store.append(
                "T", rng.choice([0, 0, 0, 1, 2]), rng.randbytes(rng.randrange(1, size_max)), properties,
                flag=0, sys_flag=0, born_timestamp=0, born_host=bytes(8),
            )  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.abandon()


def request(ext: dict[str, Any], *, opaque: int = 7, code: int = 11, flag: int = 0) -> bytes:
    header = orjson.dumps(
        {"code": code, "extFields": ext, "flag": flag, "language": "JAVA", "opaque": opaque,
         "serializeTypeCurrentRPC": "JSON", "version": 513}
    )  # fmt: skip
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


def served(world: World) -> int:
    assert world.native.lane is not None
    return world.native.lane.served


def test_a_pull_that_finds_messages_is_answered_byte_for_byte_as_by_the_python_path(world: World) -> None:
    """From every offset of queues whose records are in many files, with and without neighbours in the log."""
    world.fill(random.Random(1))
    for queue_id in range(3):
        for queue_offset in range(world.store.queue_max("T", queue_id)):
            data = request(PLAIN | {"queueId": str(queue_id), "queueOffset": str(queue_offset)})

            assert world.native.serve(data) == world.python.serve(data)

    assert served(world) > 100
    assert world.native.noted() == world.python.noted()


@pytest.mark.parametrize(("code", "pull"), [(11, True), (1, False), (110, False), (310, False), (361, False)])
def test_a_chunk_begins_with_a_pull_if_its_first_code_is_the_one_of_pulls(code: int, pull: bool) -> None:
    """Others are offered to the lane of sends first; that finds nothing in a pull, whichever code it has."""
    assert begins_with_pull(request(PLAIN, code=code)) is pull
    assert begins_with_pull(request(PLAIN, code=code)[:16]) is False


def test_zeros_before_the_numbers_of_a_pull_change_nothing(world: World) -> None:
    """The load generator writes numbers of a fixed width; its pulls are served by the lane, too."""
    world.fill(random.Random(5))
    for queue_offset in ("0000000000000003", "00", "0000000000000100"):
        data = request(PLAIN | {"queueOffset": queue_offset, "maxMsgNums": "032"})

        assert world.native.serve(data) == world.python.serve(data)

    assert served(world) == 3
    assert world.native.noted() == world.python.noted()


@pytest.mark.parametrize("seed", range(8))
def test_any_pull_has_the_same_outcome_on_both_paths(world: World, seed: int) -> None:
    """Fields of all kinds, missing and mutated bytes, several pulls in a chunk, frames that are cut off."""
    rng = random.Random(seed)
    world.fill(rng)
    for opaque in range(600):
        frames = []
        for _ in range(rng.choice([1, 1, 1, 3])):
            ext = dict(PLAIN)
            for name in rng.sample(sorted(CHOICES), rng.choice([0, 1, 1, 2, 4])):
                ext[name] = rng.choice(CHOICES[name])
                if rng.random() < 0.05:
                    del ext[name]
            if rng.random() < 0.2:
                queue_id = rng.randrange(3)
                end = world.store.queue_max("T", queue_id)
                ext |= {"queueId": str(queue_id), "queueOffset": str(end), "sysFlag": rng.choice("6672")}
            flag, code = rng.choice([0, 0, 0, 0, 0, 2]), rng.choice([11, 11, 11, 361])
            frames.append(request(ext, opaque=opaque, code=code, flag=flag))
        data = bytearray(b"".join(frames))
        if rng.random() < 0.2:
            data[rng.randrange(8, len(data))] = rng.randrange(256)
        if rng.random() < 0.1:
            del data[rng.randrange(len(data)) :]
        if rng.random() < 0.02:
            for side in (world.python, world.native):
                side.offsets.reset("G", "T", 0, 2)
        if rng.random() < 0.1:
            if rng.random() < 0.7:
                world.fill(rng, rng.randrange(1, 12))
            assert world.native.resume() == world.python.resume()

        assert world.native.serve(bytes(data)) == world.python.serve(bytes(data)), bytes(data)

    assert served(world) > 100
    assert len(world.native.parked) > 5
    assert world.native.parked == world.python.parked
    assert world.native.in_flight == world.python.in_flight == len(world.native.waiting)
    assert world.native.noted() == world.python.noted()


def test_records_that_are_not_confirmed_are_not_given(world: World) -> None:
    """The lane stops where consumers may not read on, and says so as the Python path does."""
    world.fill(random.Random(2))
    end = world.store.unit("T", 0, 9)
    assert end is not None
    world.store._readable_end = end[0]  # the tenth message is not confirmed
    for queue_offset in range(world.store.queue_end("T", 0) + 3):
        status = world.store.get("T", 0, queue_offset, 1, 1).status
        is_next = world.store.is_next("T", 0, queue_offset)
        assert is_next == (status is GetStatus.OFFSET_OVERFLOW_ONE)
    for queue_offset in (5, 8, 9, 10):
        for flags in ("4", "6"):
            data = request(PLAIN | {"queueOffset": str(queue_offset), "sysFlag": flags})

            assert world.native.serve(data) == world.python.serve(data)

    assert served(world) == 6  # two that find messages and a pull that waits for each of two numbers
    assert world.native.parked == world.python.parked


@pytest.mark.parametrize("closed", ["role", "permission", "requests", "answers"])
def test_where_pulls_may_not_be_served_now_nothing_is_served_this_way(world: World, closed: str) -> None:
    """Role, permission, and the connection's room for requests and answers are asked for each chunk."""
    world.fill(random.Random(3))
    assert world.native.lane is not None
    data = request(PLAIN)
    connection: Any = world.native
    assert world.native.lane.serve(connection, data) == len(data)

    if closed == "role":
        world.native.lane.is_open = lambda: False
    elif closed == "permission":
        world.admission.permission = 2
    elif closed == "requests":
        world.native.in_flight_max = 0
    else:
        world.native.answers_room = 0

    assert world.native.lane.serve(connection, data) == 0


def test_pulls_behind_much_that_was_answered_are_left_to_the_path_that_waits_for_the_peer(
    world: World,
) -> None:
    """One chunk of pulls cannot make the broker hold more than a bounded number of answers."""
    world.fill(random.Random(4), 60, 4_000)
    data = request(PLAIN | {"queueOffset": "0", "maxMsgNums": "1"})
    connection: Any = world.native
    assert world.native.lane is not None

    done = world.native.lane.serve(connection, data * 5_000)

    answered = sum(map(len, world.native.sent))
    room = world.native.answers_room
    assert 0 < done < len(data) * 5_000
    assert room <= answered < room + 16_384


def waiting_pull(world: World, **fields: str) -> bytes:
    """A pull of the next message of queue 0 that may wait."""
    return request(
        PLAIN
        | {"queueOffset": str(world.store.queue_max("T", 0)), "sysFlag": "7", "commitOffset": "1"}
        | fields
    )


@pytest.mark.parametrize(
    "then", ["a message", "several", "nothing", "a reset", "a claim", "a topic without the queue"]
)
def test_a_pull_that_waits_for_the_next_message_is_answered_as_by_the_python_path(
    world: World, then: str
) -> None:
    """The lane parks it, with the same offset and time; whatever wakes it, the answer has the same bytes."""
    world.fill(random.Random(5), 30)
    data = waiting_pull(world)

    assert world.native.serve(data) == world.python.serve(data) == []
    assert served(world) == 1
    assert world.native.parked == world.python.parked
    assert world.native.in_flight == 1
    if then in ("a message", "several"):
        world.fill(random.Random(6), 4 if then == "a message" else 40)
    elif then == "a reset":
        for side in (world.python, world.native):
            side.offsets.reset("G", "T", 0, 2)
    elif then == "a claim":
        world.fill(random.Random(6), 4)
        world.access.fences.add("T")
    elif then == "a topic without the queue":
        world.store.delete_topic("T")
    answers = world.native.resume()

    assert answers == world.python.resume()
    assert len(answers) == 1
    assert world.native.in_flight == 0
    assert world.native.noted() == world.python.noted()


def test_a_pull_waits_as_long_as_the_settings_say_when_long_polling_is_off(tmp_path: Path) -> None:
    """The time that the client asks for does not count."""
    world = World(tmp_path, long_polling=False)
    world.fill(random.Random(7), 30)
    data = waiting_pull(world)

    assert world.native.serve(data) == world.python.serve(data)

    assert world.native.parked == world.python.parked
    assert [parked[-1] for parked in world.native.parked] == [700]
    assert served(world) == 1
    world.store.abandon()


@pytest.mark.parametrize("full", ["table", "connection"])
def test_no_more_pulls_wait_than_may(world: World, full: str) -> None:
    """What comes when the table or the connection is full is left to the Python path, which says so."""
    world.fill(random.Random(8), 30)
    if full == "table":
        world.native.parked_max = 3
    else:
        world.native.in_flight_max = 3
    data = waiting_pull(world)
    connection: Any = world.native
    assert world.native.lane is not None

    assert world.native.lane.serve(connection, data * 5) == len(data) * 3
    assert world.native.lane.serve(connection, data * 2) == 0
    assert len(world.native.waiting) == world.native.in_flight == 3
