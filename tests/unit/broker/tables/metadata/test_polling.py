"""Asking a master for its tables: a Java one again and again, one of ours when records are missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brokerset_acl.users import FormerPassword, User
from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admin import AdminProcessor
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.groups import GroupProcessor
from brokerset_broker.requests.offsets import OffsetProcessor
from brokerset_broker.requests.pop.assignments import AssignmentProcessor
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.requests.topics import TopicProcessor
from brokerset_broker.tables.consumers import ConsumerTable
from brokerset_broker.tables.locks import QueueLocks
from brokerset_broker.tables.metadata.metadata_log import MetadataLog
from brokerset_broker.tables.metadata.polling import FAILED_SECONDS, Master, PollFailed, Polls, poll
from brokerset_broker.tables.pop.values import RequestMode
from brokerset_formats.config import TopicConfig
from brokerset_formats.timer_files import TimerCheckpoint
from brokerset_protocol.bodies.metadata import MessageRequestMode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_rig.metadata_parts import Delay, MemoryStore, Replica, settle
from brokerset_runtime.clock import ManualClock
from brokerset_runtime.remoting import ConnectionClosed

WIRE = Path(__file__).parents[4] / "peers/golden/wire"


class JavaMaster:
    """Answers as a Java broker did."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answers: dict[int, tuple[dict[str, str], bytes]] = {}
        for name in (
            "21-all-topic-config",
            "43-all-consumer-offsets",
            "45-all-delay-offsets",
            "201-all-groups",
        ):
            golden = json.loads((WIRE / f"broker-{name}.json").read_text())
            header = json.loads(golden["header"])
            self.answers[golden["request"]["code"]] = (header.get("extFields", {}), golden["body"].encode())
        checkpoint = TimerCheckpoint(1_795_251_873_000, 52, 1, 1)
        self.answers[60] = ({}, checkpoint.encode_body())
        modes = b'{"messageRequestModeMap":{"t":{"g":{"consumerGroup":"g","mode":"POP","topic":"t"}}}}'
        self.answers[402] = ({}, modes)
        user = b'{"password":"k","userStatus":"enable","userType":"Normal","username":"ak"}'
        entry = b'{"actions":["Pub"],"decision":"Allow","resource":"Topic:t","sourceIps":["10.0.0.0/8"]}'
        policies = b'[{"entries":[' + entry + b'],"policyType":"Custom"}]'
        self.answers[3005] = ({}, b"[" + user + b"]")
        self.answers[3010] = ({}, b'[{"policies":' + policies + b',"subject":"User:ak"}]')

    async def ask(self, address: str, command: Command, timeout: float) -> Command:
        self.asked.append(command.code)
        ext, body = self.answers[command.code]
        return command.reply(ext=dict(ext), body=body)

    async def tell(self, address: str, command: Command, timeout: float) -> None:
        raise AssertionError("polling tells nothing")


async def test_former_passwords_are_asked_for_with_the_users() -> None:
    """A slave that takes users over from a master of ours goes by both passwords, as its master does."""
    master, asked = JavaMaster(), []

    class Listening(JavaMaster):
        async def ask(self, address: str, command: Command, timeout: float) -> Command:
            asked.append((command.code, dict(command.ext)))
            return await master.ask(address, command, timeout)

    former = b'"formerPassword":"old","formerUntil":9,"formerLastUsed":8,"formerLastUsedFrom":"h"'
    ext, users = master.answers[3005]
    master.answers[3005] = (ext, users.replace(b'"username"', former + b',"username"'))

    polled = await poll(Listening(), "m")

    assert (3005, {"formerPasswords": "true"}) in asked
    assert polled.state.access is not None
    assert polled.state.access.users["ak"].former == FormerPassword("old", 9)


class OwnMaster:
    """A replica with the processors that answer."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        live, clock = LiveSettings(replica.settings), ManualClock()
        admission, consumers, stats = Admission("b", 6), ConsumerTable(clock), BrokerStats(clock)
        store: object = MemoryStore()
        common = {
            "live": live, "admission": admission, "store": store, "topics": replica.topics,
            "consumers": consumers, "stats": stats, "changes": replica.log,
        }  # fmt: skip
        self.handlers = {}
        for processor in (
            TopicProcessor(offsets=replica.offsets, **common),  # type: ignore[arg-type]  # parts by name
            GroupProcessor(
                clock=clock,
                groups=replica.groups,
                offsets=replica.offsets,
                locks=QueueLocks(clock),
                **common,  # type: ignore[arg-type]  # parts by name
            ),
            AdminProcessor(clock=clock, groups=replica.groups, delay=_delay(replica.delay), **common),  # type: ignore[arg-type]  # parts by name
        ):
            self.handlers.update(processor.handlers())
        modes = AssignmentProcessor(
            live=live, admission=admission, topics=replica.topics, groups=replica.groups, consumers=consumers,
            modes=replica.request_modes, changes=replica.log, queues=_no_route,
        )  # fmt: skip
        self.handlers.update(modes.handlers())
        del common["stats"]
        offsets = OffsetProcessor(groups=replica.groups, offsets=replica.offsets, **common)  # type: ignore[arg-type]  # parts by name
        self.handlers.update(offsets.handlers())

    async def ask(self, address: str, command: Command, timeout: float) -> Command:
        if address == "closed":
            raise ConnectionClosed("nobody listens")
        if command.code not in self.handlers:
            return command.reply(3, "not supported")
        try:
            reply = self.handlers[command.code](None, command)  # type: ignore[arg-type]  # no connection
        except Rejected as refused:
            return command.reply(refused.code, refused.remark)
        assert isinstance(reply, Command)
        return reply

    async def tell(self, address: str, command: Command, timeout: float) -> None:
        raise AssertionError("polling tells nothing")


async def _no_route(topic: str) -> None:
    return None


def _delay(delay: Delay) -> Delay:
    return delay


async def leading(folder: Path) -> Replica:
    replica = Replica(folder)
    await replica.log.start_following()
    await replica.log.lead(1)
    await replica.log.write_snapshot()
    replica.confirm()
    return replica


async def test_a_java_master_is_copied(tmp_path: Path) -> None:
    """Its tables are taken over; asked again, nothing changes; what the log has counts as older.

    Offsets that it lacks stay: it may never have got them from its own master.
    """

    java = JavaMaster()
    master = Master("java:10911", is_ours=False)
    slave = Replica(tmp_path, asker=java, master=lambda: master)
    await slave.log.start_following()
    slave.store.append_message()
    slave.store.confirmed_offset = 500
    slave.offsets.put({"t@g": {0: 7}})

    await slave.log.poll_master(master)
    assert slave.offsets.query("g", "t", 0) == 7
    version = slave.topics.data_version
    await slave.log.poll_master(master)

    assert slave.topics.get("wire") == TopicConfig("wire", 4, 4)
    assert slave.groups.get("adm-group") is not None
    assert slave.offsets.query("adm-group", "adm-topic", 3) == 0
    assert slave.request_modes.get("t", "g") == RequestMode(MessageRequestMode.POP, 0)
    assert slave.topics.data_version == version
    assert slave.access.book.users == {"ak": User("ak", "k")}
    assert [entry.resource.key for entry in slave.access.book.acls["User:ak"].custom] == ["Topic:t"]
    assert set(java.asked) == {21, 43, 45, 60, 201, 402, 3005, 3010}
    assert slave.log.status().applied_offset == slave.store.max_offset
    slave.log.truncated(0)
    assert slave.topics.get("wire") is not None

    await slave.log.lead(2)
    await slave.log.write_snapshot()
    assert slave.topics.get("wire") == TopicConfig("wire", 4, 4)


async def test_an_empty_slave_that_starts_late_asks_once(tmp_path: Path) -> None:
    """Without a snapshot in its part of the log it takes the master's tables and goes on from there."""

    own = await leading(tmp_path / "a")
    for number in range(2_500):
        own.topics.create_retry(f"g{number}", 1)
    own.confirm()
    await settle(100)
    own.groups.get_or_create("g")
    own.offsets.commit("g", "t", 0, 5)
    own.offsets.commit("g@broadcast", "t", 0, 5)
    own.log.flush()
    own.confirm()
    begin = len(own.store.records)
    own.offsets.commit("g", "t", 0, 6)
    own.log.flush()

    asker, master = OwnMaster(own), Master("own:10911", is_ours=True)
    late_store = MemoryStore()
    late_store.records = own.store.records[begin - 1 :]
    late_store.confirmed_offset = late_store.records[0].end
    late = Replica(tmp_path / "b", late_store, asker=asker, master=lambda: master)
    await late.log.start_following()
    assert not late.log.status().complete
    await late.log.write_stamp()
    assert not (tmp_path / "b/config/brokersetMetadata.json").exists()

    await late.log.poll_master(master)
    own.confirm()
    late.confirm()
    await settle()

    assert late.log.status().complete
    assert late.state() == own.state()
    assert late.offsets.query("g", "t", 0) == 6


@pytest.mark.parametrize("harm", ["closed", "not leading", "damaged", "refused"])
async def test_a_master_that_does_not_tell_changes_nothing(tmp_path: Path, harm: str) -> None:
    """Half of an answer is none; it is asked again later."""

    java = JavaMaster()
    master = Master("closed" if harm == "closed" else "java:10911", is_ours=harm == "not leading")
    own = await leading(tmp_path / "a")
    slave = Replica(tmp_path / "b", asker=OwnMaster(own) if harm == "closed" else java, master=lambda: master)
    await slave.log.start_following()
    if harm == "damaged":
        java.answers[45] = ({}, b'{"offsetTable":[]}')
    if harm == "refused":
        del java.answers[21]
        java.answers[21] = ({}, b"{]")
    before = slave.state()

    with pytest.raises(PollFailed):
        await slave.log.poll_master(master)

    assert slave.state() == before


async def test_tables_come_in_pages(tmp_path: Path) -> None:
    """More topics than a page has are read whole, with the offset that the master has applied."""

    own = await leading(tmp_path)
    for number in range(2_100):
        own.topics.create_retry(f"g{number}", 1)
    own.confirm()
    await settle(100)

    polled = await poll(OwnMaster(own), "own")

    assert len(polled.state.topics) == len(own.topics)
    assert polled.applied_offset == own.store.max_offset


async def test_only_a_leader_names_an_offset(tmp_path: Path) -> None:
    """A follower's tables may be behind, so its answers carry none."""

    own = await leading(tmp_path)
    log: MetadataLog = own.log
    assert log.answer_ext() == {"brokersetAppliedOffset": str(own.store.max_offset)}
    log.stop_leading()
    assert log.answer_ext() == {}


def test_what_does_not_pass_is_a_problem() -> None:
    """A master that does not tell its tables for a while is named, with what to do; until it does."""
    polls = Polls()
    assert polls.problem(0.0) is None

    assert polls.failed("refused", 10.0)
    assert not polls.failed("refused", 20.0)
    assert polls.problem(10.0 + FAILED_SECONDS - 1) is None
    problem = polls.problem(10.0 + FAILED_SECONDS)
    assert problem is not None
    assert "refused" in problem[0]
    assert "remoting port" in problem[1]

    polls.ended_well()
    assert polls.problem(1_000.0) is None
    assert polls.failed("refused", 1_000.0)
    assert polls.failures == 3
