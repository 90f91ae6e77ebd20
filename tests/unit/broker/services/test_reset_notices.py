"""Members of a group are sent a reset that no pull takes in time: once, and each in a form that it can
read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.services import reset_notices
from brokerset_broker.services.reset_notices import ResetNotices
from brokerset_broker.tables.consumers import ConsumerTable
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_protocol.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel
from brokerset_protocol.codes import Language, RequestCode
from brokerset_protocol.commands import Command
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings


class Line:
    """A channel that notes what it is sent."""

    def __init__(self) -> None:
        self.got: list[Command] = []
        self.arrived = asyncio.Event()

    @property
    def peer(self) -> tuple[str, int]:
        """Somewhere."""
        return ("127.0.0.1", 1)

    @property
    def unsent_bytes(self) -> int:
        """Everything is sent."""
        return 0

    def notify(self, command: Command) -> None:
        """Note it."""
        self.got.append(command)
        self.arrived.set()

    async def call(self, command: Command, timeout: float) -> Command:
        """Nothing is asked here."""
        raise AssertionError(command)


class World:
    """A service with its tables, that waits for a millisecond."""

    def __init__(self, folder: Path, wait_ms: int = 1) -> None:
        live = LiveSettings(BrokerSettings(store_path_root_dir=folder, reset_notice_millis=wait_ms))
        clock = ManualClock()
        self.broker_name = live.current.broker_name
        self.offsets = OffsetManager(live, clock)
        self.consumers = ConsumerTable(clock)
        self.woken: list[tuple[str, int]] = []
        self.service = ResetNotices(
            live=live,
            offsets=self.offsets,
            consumers=self.consumers,
            wake=lambda topic, queue_id: self.woken.append((topic, queue_id)),
        )

    def member(
        self,
        language: int = Language.JAVA,
        model: MessageModel = MessageModel.CLUSTERING,
        kind: ConsumeType = ConsumeType.CONSUME_PASSIVELY,
    ) -> Line:
        """A consumer of group g."""
        line = Line()
        entry = self.consumers.group("g")
        self.consumers.register(
            "g", line, f"client-{len(entry.members) if entry is not None else 0}",
            language=language, version=1, consume_type=kind, message_model=model,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, subscriptions=None,
        )  # fmt: skip
        return line

    def reset(self, queues: dict[int, int]) -> None:
        """An administrator resets queues of topic t."""
        self.offsets.put_resets({"t@g": queues})
        self.service.reset({"t@g": queues})


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world of its own."""
    return World(tmp_path)


async def test_members_are_sent_what_no_pull_took(world: World) -> None:
    """Only the queues that still wait; a client in C++ gets a list, as it reads no queues as keys."""
    world.service.start()
    java, cpp = world.member(), world.member(Language.CPP)

    world.reset({0: 5, 1: 6})
    world.offsets.take_reset("g", "t", 0, pulled_from=9)
    await asyncio.wait_for(asyncio.gather(java.arrived.wait(), cpp.arrived.wait()), 5)

    assert [command.code for command in java.got] == [RequestCode.RESET_CONSUMER_CLIENT_OFFSET]
    assert java.got[0].ext["topic"] == "t"
    assert java.got[0].ext["group"] == "g"
    assert b'"queueId":1,"topic":"t"}:6' in java.got[0].body
    assert b'"queueId":0' not in java.got[0].body
    (queue,) = json.loads(cpp.got[0].body)["offsetTable"]
    assert queue == {"topic": "t", "brokerName": world.broker_name, "queueId": 1, "offset": 6}
    assert world.service.sent == 2


async def test_what_was_taken_is_not_sent(world: World) -> None:
    """The usual case: the pull of each queue took its reset."""
    world.service.start()
    line = world.member()

    world.reset({0: 5})
    world.offsets.take_reset("g", "t", 0, pulled_from=9)
    world.reset({1: 5})
    await asyncio.wait_for(line.arrived.wait(), 5)

    assert len(line.got) == 1
    assert b'"queueId":1' in line.got[0].body


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (MessageModel.BROADCASTING, ConsumeType.CONSUME_PASSIVELY),
        (MessageModel.CLUSTERING, ConsumeType.CONSUME_ACTIVELY),
    ],
)
async def test_whom_the_broker_s_offset_does_not_concern_is_sent_nothing(
    world: World, model: MessageModel, kind: ConsumeType
) -> None:
    """Members that broadcast keep offsets of their own, pull consumers move by themselves."""
    world.service.start()
    line = world.member(model=model, kind=kind)
    world.offsets.put_resets({"t@g": {0: 5}})

    world.service._send("t@g", {0: 5})

    assert line.got == []


async def test_a_new_master_sends_what_waited_at_the_old_one(world: World) -> None:
    """The resets that wait are in the log; the service starts with the role."""
    line = world.member()
    world.reset({0: 5})

    world.service.start()
    await asyncio.wait_for(line.arrived.wait(), 5)

    assert len(line.got) == 1


async def test_a_new_master_has_parked_pulls_run_again(world: World) -> None:
    """Those that came while it followed: they are told of the resets that wait now."""
    world.offsets.put_resets({"t@g": {0: 5, 3: 6}})

    world.service.start()

    assert world.woken == [("t", 0), ("t", 3)]


async def test_a_large_group_is_sent_notices_in_several_turns(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One turn of the loop serves some members only, and each gets one notice."""
    monkeypatch.setattr(reset_notices, "MEMBERS_AT_ONCE", 2)
    world.service.start()
    lines = [world.member() for _ in range(5)]

    world.offsets.put_resets({"t@g": {0: 5}})
    world.service._send("t@g", {0: 5})
    at_once = sum(len(line.got) for line in lines)
    await asyncio.wait_for(asyncio.gather(*(line.arrived.wait() for line in lines)), 5)

    assert at_once == 2
    assert [len(line.got) for line in lines] == [1] * 5


async def test_nothing_is_sent_after_the_role_ended(world: World) -> None:
    """No timer is left behind."""
    world.service.start()
    line = world.member()
    world.reset({0: 5})

    world.service.stop()
    world.service._turn()

    assert line.got == []
    assert world.service._timer is None


async def test_notices_can_be_turned_off(tmp_path: Path) -> None:
    """0 is as RocketMQ: consumers hear of a reset when they pull."""
    world = World(tmp_path, wait_ms=0)
    world.service.start()
    world.member()

    world.reset({0: 5})

    assert world.service._timer is None
