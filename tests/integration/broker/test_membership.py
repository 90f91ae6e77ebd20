"""Brokers in controller mode with a real controller: what is served when, and as what."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.app import Broker
from brokerset_broker.member import group_member
from brokerset_broker.member.gateway import gateway as gateway_module
from brokerset_broker.member.ha import leader
from brokerset_broker.member.membership.membership import identity_path
from brokerset_broker.member.membership.registration import LOST_BOOT
from brokerset_broker.member.role import Role
from brokerset_broker.requests import pull
from brokerset_controller.app import Controller
from brokerset_formats.epochs import history_of
from brokerset_formats.identity import StartRecord
from brokerset_protocol.bodies.replicas import EpochEntryCache
from brokerset_protocol.bodies.routes import TopicRouteData
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import BrokerIdentityAnswer
from brokerset_rig.controller_group import ControllerGroup
from brokerset_rig.local_servers import Setup
from brokerset_rig.stack import free_ports
from brokerset_rig.waiting import until
from brokerset_runtime.remoting import connect

GOLDEN = Path(__file__).parents[2] / "peers" / "golden" / "wire"
PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def golden(name: str) -> tuple[dict[str, Any], Any]:
    """Header and body of what Java answered."""
    recorded = json.loads((GOLDEN / f"{name}.json").read_text())
    body = json.loads(recorded["body"]) if recorded["body"] else None
    return json.loads(recorded["header"]), body


class Place:
    """A controller with its name server, and brokers of one group."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self.setup = setup
        self.folder = folder
        self.namesrv_port, self.http_port = free_ports(2, below=1)
        self.group = ControllerGroup(
            folder / "controllers", 1, enable_name_server=True, namesrv_listen_port=self.namesrv_port,
            kv_config_path=folder / "kv.json", raft_tick=10,
        )  # fmt: skip

    @asynccontextmanager
    async def controllers(self) -> AsyncIterator[Controller]:
        try:
            yield await self.group.start(0)
        finally:
            await self.group.stop(0)

    def broker(self, name: str = "store", **changes: Any) -> Any:
        """A broker on a folder of its own, as an async context."""
        settings: dict[str, Any] = {
            "enable_controller_mode": True, "controller_addr": self.group.address(0),
            "namesrv_addr": f"127.0.0.1:{self.namesrv_port}", "store_path_root_dir": self.folder / name,
            "sync_broker_metadata_period": 100, "broker_heartbeat_interval": 100,
        }  # fmt: skip
        return self.setup.broker(**(settings | changes))

    async def route(self, topic: str) -> TopicRouteData | None:
        connection = await connect(f"127.0.0.1:{self.namesrv_port}")
        reply = await connection.call(Command(105, {"topic": topic}), 5)
        connection.close()
        await connection.wait_closed()
        return TopicRouteData.from_json(reply.body) if reply.code == 0 else None

    async def shown(self, topic: str, ids: dict[int, str]) -> None:
        """Wait until the name server shows exactly these ids of the group."""
        while True:
            found = await self.route(topic)
            if found is not None and [dict(b.broker_addrs) for b in found.broker_datas] == [ids]:
                return
            await asyncio.sleep(0.02)

    async def gone(self, topic: str) -> None:
        """Wait until no name server knows the topic."""
        while await self.route(topic) is not None:  # noqa: ASYNC110  # name servers tell nobody
            await asyncio.sleep(0.02)


@pytest.fixture
def place(setup: Setup, tmp_path: Path) -> Place:
    return Place(setup, tmp_path)


def member(broker: Broker) -> Any:
    assert broker.member is not None
    return broker.member.membership


async def test_a_crash_is_remembered_though_the_next_process_is_closed_in_order(place: Place) -> None:
    """A broker that is stopped before it has written down what the log lost leaves `abort` behind."""

    store = place.folder / "store"
    store.mkdir()
    (store / "abort").write_text("1\nan earlier boot\n")
    async with place.broker():
        pass  # without controllers it gets no id, so there is no start file yet
    assert (store / "abort").exists()
    async with place.controllers(), place.broker() as broker:
        await until(lambda: member(broker).role is Role.MASTER)
    assert not (store / "abort").exists()


async def test_nothing_is_served_before_the_role_is_known(setup: Setup, place: Place) -> None:
    """The port answers who is there and why it does not serve; no name server hears of the broker."""

    async with place.broker() as broker, setup.client(broker) as client:
        await until(lambda: member(broker).problem is not None)
        sent = await client.send("t")
        pulled = await client.pull("t", 0)
        who = await client.call(1007)
        info = json.loads((await client.call(28)).body)["table"]

        assert sent.code == pulled.code == 14
        assert "is not in service: no controller at" in (sent.remark or "")
        assert "check controllerAddr" in (pulled.remark or "")
        header = BrokerIdentityAnswer.from_ext(who.ext)
        assert (header.replica_id, header.nonce) == (None, member(broker).nonce)
        assert "no controller at" in (header.registration or "")
        assert info["brokersetRole"] == "none"
        assert "no controller at" in info["brokersetProblem"]
        assert info["brokerActive"] == "false"
        async with place.controllers():
            await until(lambda: member(broker).role is Role.MASTER)
            assert (await client.send("t")).code == 0
            await place.shown("t", {0: f"127.0.0.1:{broker.port}"})


async def test_a_master_serves_and_says_so(setup: Setup, place: Place) -> None:
    """1007 and 907 as Java's; topics carry the master epoch; the epoch begins at the end of the log."""

    async with place.controllers(), place.broker() as broker, setup.client(broker) as client:
        await until(lambda: member(broker).role is Role.MASTER)
        await client.send("t")
        epochs = await client.call(1007)
        status = await client.call(907)

        cache = EpochEntryCache.from_json(epochs.body)
        assert json.loads(epochs.body).keys() == golden("broker-1007-epoch-cache")[1].keys()
        assert (cache.broker_id, cache.broker_name, cache.max_offset) == (
            0, "broker-a", broker.store.max_offset,
        )  # fmt: skip
        assert [(e.epoch, e.start_offset) for e in cache.epoch_list] == [(1, 0)]
        expected = golden("broker-907-ha-status")[1]
        shown = json.loads(status.body)
        assert shown == expected | {
            "haConnectionInfo": [], "inSyncSlaveNums": 0,
            "masterCommitLogMaxOffset": broker.store.max_offset,
        }  # fmt: skip
        assert broker.topics.data_version.state_version == 1


async def test_how_sends_are_acknowledged_is_told_as_it_is_now(place: Place) -> None:
    """A changed `allAckInSyncStateSet` reaches the controllers with the next heartbeat: elections of a group
    whose master acknowledges alone have to wait for its lease."""

    async with place.controllers() as controller, place.broker() as broker:

        def told() -> list[bool | None]:
            return [live.all_ack for live in controller.service.view("broker-a").lives.values()]

        await until(lambda: told() == [True])
        broker.live.update({"allAckInSyncStateSet": "false"})
        await until(lambda: told() == [False])


async def test_epochs_of_deleted_files_are_forgotten(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """When retention has deleted files, epochs that ended in them leave the epoch file."""

    async with place.controllers(), place.broker() as broker:
        await until(lambda: member(broker).role is Role.MASTER)
        epochs, log = broker.member._epochs, broker.member.log
        last = epochs.history.last_epoch
        epochs.replace(history_of([(1, 0), (last + 1, log.max_offset)]))
        end = log.max_offset
        monkeypatch.setattr(type(log), "min_offset", property(lambda _: end))
        assert broker.store.retention.after_delete is not None
        broker.store.retention.after_delete()
        await until(lambda: [e.epoch for e in epochs.entries()] == [last + 1])


async def test_a_restarted_master_keeps_its_id_and_gets_a_later_epoch(setup: Setup, place: Place) -> None:
    """Its messages are there, and its epoch file shows where each of its terms began."""

    async with place.controllers():
        async with place.broker() as first, setup.client(first) as client:
            await until(lambda: member(first).role is Role.MASTER)
            assert (await client.send("t", b"kept")).code == 0
            end, epoch = first.store.max_offset, member(first).now.epoch
            identity = (place.folder / "store" / "brokerIdentity").read_bytes()
        async with place.broker() as second, setup.client(second) as client:
            await until(lambda: member(second).role is Role.MASTER)

            assert identity == b"DefaultCluster#broker-a#1"
            assert (place.folder / "store" / "brokerIdentity").read_bytes() == identity
            assert member(second).incarnation == 2
            assert member(second).now.epoch > epoch
            assert setup.bodies(await client.pull("t", 0)) == [b"kept"]
            entries = second.member.membership._epochs.entries()
            assert [e.start_offset for e in entries] == [0, end]


async def test_a_slave_follows_and_forwards(setup: Setup, place: Place) -> None:
    """It passes sends and changes on to its master, has their messages, is shown under its id, and tells 907
    that it is no master."""

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(place.controllers())
        first = await stack.enter_async_context(place.broker("a"))
        await until(lambda: member(first).role is Role.MASTER)
        second = await stack.enter_async_context(place.broker("b"))
        await until(lambda: member(second).role is Role.SLAVE)
        client = await stack.enter_async_context(setup.client(second))
        sent = await client.send("TBW102")
        await until(lambda: second.store.confirmed_offset == first.store.max_offset)
        status = json.loads((await client.call(907)).body)
        epochs = EpochEntryCache.from_json((await client.call(1007)).body)
        created = await client.call(
            17, topic="x", defaultTopic="TBW102", readQueueNums=1, writeQueueNums=1, perm=6,
            topicFilterType="SINGLE_TAG", topicSysFlag=0, order="false",
        )  # fmt: skip

        assert (sent.code, created.code) == (0, 0)
        assert second.store.queue_max("TBW102", 0) == 1
        await until(lambda: second.topics.get("x") is not None)
        assert member(second).broker_id == 2
        assert epochs.broker_id == 2
        assert [(each.epoch, each.start_offset) for each in epochs.epoch_list] == [(1, 0)]
        assert status["master"] is False
        assert status.keys() == golden("broker-907-ha-status-slave")[1].keys()
        assert member(second).now.master_address == f"127.0.0.1:{first.port}"
        await place.shown("TBW102", {0: f"127.0.0.1:{first.port}", 2: f"127.0.0.1:{second.port}"})


async def test_an_overtaken_broker_leaves_the_name_servers(setup: Setup, place: Place) -> None:
    """A copy of its folder was taken for it while it could not be heard: it refuses everything."""

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(place.controllers())
        broker = await stack.enter_async_context(place.broker())
        await until(lambda: member(broker).role is Role.MASTER)
        client = await stack.enter_async_context(setup.client(broker))
        await place.shown("TBW102", {0: f"127.0.0.1:{broker.port}"})
        registration = member(broker)._registration  # as if the controllers knew a later start
        registration.nonce = "older"
        assert broker.member is not None
        broker.member.core.nonce = "older"
        registration._record = replace(registration.record, last_nonce="older")
        await until(lambda: member(broker).role is Role.NONE)

        assert (await client.send("t")).code == 14
        assert (await client.pull("t", 0)).code == 14
        assert not broker.delay._running
        await place.gone("TBW102")


async def test_readiness_and_metrics(setup: Setup, place: Place) -> None:
    """Not ready while there is no role, with the reason; the page lists the metrics of controller mode."""

    def get(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{place.http_port}{path}", timeout=5) as answer:
                return int(answer.status), str(answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    async with place.broker(http_port=place.http_port) as broker:
        await until(lambda: member(broker).problem is not None and bool(broker.http_port))
        code, text = await asyncio.to_thread(get, "/readyz")
        assert code == 503
        assert "no controller at" in text
        async with place.controllers():
            await until(lambda: member(broker).role is Role.MASTER and bool(broker.registrar.registered))
            await until(lambda: bool(member(broker).heartbeat_ages))
            assert (await asyncio.to_thread(get, "/readyz"))[0] == 200
            scraped = (await asyncio.to_thread(get, "/metrics"))[1]

    section = PAGE.read_text().split("\n## Broker in controller mode\n")[1].split("\n## ")[0]
    documented = re.findall(r"^\| `(\w+)` \| (\w+) \| (?:`(\w+)` )?\| (.+) \|$", section, re.M)
    exported = re.findall(r"^# HELP (brokerset_broker_\w+) ", scraped, re.M)
    assert {row[0] for row in documented} <= set(exported)
    for name, kind, label, meaning in documented:
        shown = re.search(rf"^# HELP {name} (.+)$", scraped, re.M)
        assert shown is not None, name
        assert f"# TYPE {name} {kind}\n" in scraped
        assert meaning.startswith(shown[1])
        sample = scraped.partition(f"\n{name}{{")[2].partition("}")[0]
        assert not label or not sample or f'{label}="' in sample, name
    assert re.search(r'brokerset_broker_role\{.*role="master"\} 1.0', scraped)
    assert re.search(r"brokerset_broker_master_epoch\{.*\} 1.0", scraped)


async def test_a_slave_that_is_not_in_sync_is_not_ready_where_that_counts(setup: Setup, place: Place) -> None:
    """With `readyOnlyInSync` it says so until it has caught up; a fenced one is ready, and without it all."""

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(place.controllers())
        first = await stack.enter_async_context(place.broker("a", ready_only_in_sync=True))
        await until(lambda: member(first).role is Role.MASTER)
        assert first.member is not None
        assert first.member.problem() is None
        second = await stack.enter_async_context(place.broker("b", ready_only_in_sync=True))
        assert second.member is not None
        await until(lambda: second.member.replication.status().sync_state_set == {1, 2})
        assert second.member.problem() is None

        status = second.member.replication.status()
        alone = replace(status, sync_state_set=frozenset({1}))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(second.member.replication, "status", lambda: alone)
            problem = second.member.problem()
            assert problem is not None
            assert problem.startswith("broker 2 is not in sync, only 1 are: ")
            assert problem in second._ready_problems()
            patch.setattr(second.member.core, "fenced", True)
            assert second.member.problem() is None
            patch.setattr(second.member.core, "fenced", False)


async def test_a_slave_changes_nothing_of_its_clients(setup: Setup, place: Place) -> None:
    """It moves no consumer to where its own queues begin or end, commits nothing that comes with a pull, and
    makes neither groups nor retry topics of those who greet it."""

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(place.controllers())
        first = await stack.enter_async_context(place.broker("a"))
        await until(lambda: member(first).role is Role.MASTER)
        second = await stack.enter_async_context(place.broker("b"))
        await until(lambda: member(second).role is Role.SLAVE)
        master = await stack.enter_async_context(setup.client(first))
        slave = await stack.enter_async_context(setup.client(second))
        await master.send("TBW102")
        await until(lambda: second.store.confirmed_offset == first.store.max_offset)

        moved = await master.pull("TBW102", 100)
        kept = [
            await slave.pull("TBW102", 100, group="new", sysFlag=1 | 4, commitOffset=7),
            await slave.pull("TBW102", 100, suspend_ms=20),
            await slave.pull("TBW102", 5, queue_id=3),
        ]
        found = await slave.pull("TBW102", 0, group="new", sysFlag=1 | 4, commitOffset=1)
        greeted = await slave.heartbeat("greeted", "TBW102")

        assert (moved.code, moved.ext["nextBeginOffset"]) == (21, "1")
        assert [(r.code, r.ext["nextBeginOffset"]) for r in kept] == [(19, "100"), (19, "100"), (19, "5")]
        assert {reply.ext["suggestWhichBrokerId"] for reply in kept} == {"0"}
        assert (found.code, greeted.code) == (0, 0)
        assert second.offsets.query("new", "TBW102", 0) is None
        assert second.groups.get("new") is None
        assert second.groups.get("greeted") is None
        assert second.topics.get("%RETRY%greeted") is None
        assert first.offsets.query("new", "TBW102", 0) is None


async def test_a_replica_that_begins_late_in_the_log_joins_with_all_metadata(
    setup: Setup, place: Place
) -> None:
    """It copies the last file only, in which no record tells of older topics: it is a learner until its
    master has told them, and in sync afterwards."""

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(place.controllers())
        small = {"mapped_file_size_commit_log": 262_144, "max_message_size": 65_536}
        first = await stack.enter_async_context(place.broker("a", **small))
        await until(lambda: member(first).role is Role.MASTER)
        master = await stack.enter_async_context(setup.client(first))
        await master.create_topic("early")
        while first.store.max_offset < 3 * 262_144 + 1_000:
            await master.send("early", b"x" * 60_000)
        second = await stack.enter_async_context(place.broker("b", sync_from_last_file=True, **small))
        assert first.member is not None
        assert second.member is not None
        replication, metadata = first.member.replication, second.member.metadata
        learners: list[bool] = []

        def joined() -> bool:
            learners.extend(view.learner for view in replication.status().replicas)
            return bool(replication.status().sync_state_set == {1, 2})

        await until(joined)

        assert second.topics.get("early") is not None
        assert metadata.status().complete
        assert True in learners
        assert second.store.min_offset > 0


async def test_a_master_whose_disk_fails_loses_its_mastership(setup: Setup, place: Place) -> None:
    """After a failed fsync it can store nothing more; the controllers hear of it and elect the other one."""

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(place.controllers())
        first = await stack.enter_async_context(place.broker("a"))
        await until(lambda: member(first).role is Role.MASTER)
        second = await stack.enter_async_context(place.broker("b"))
        await until(lambda: len(member(first).now.sync_state_set) == 2)
        client = await stack.enter_async_context(setup.client(second))

        def fail(begin: int, end: int) -> None:
            raise OSError(5, "Input/output error")

        first.store.log.files.sync = fail
        assert (await client.send("TBW102")).code == 0
        await first.store.flush()
        await until(lambda: member(second).role is Role.MASTER)

        assert member(first).role is not Role.MASTER
        sent = await client.send("TBW102")
        while sent.code != 0:  # until the in-sync set is what it has to be
            sent = await client.send("TBW102")
        assert second.store.queue_max("TBW102", 0) >= 1


async def test_a_replica_whose_sync_failed_has_lost_its_page_cache(place: Place) -> None:
    """It notes so before it registers, so that the controllers hear of it from whatever start comes next."""

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(place.controllers())
        async with place.broker("a") as first:
            await until(lambda: first.member.membership.role is Role.MASTER)

            def fail(begin: int, end: int) -> None:
                raise OSError(5, "Input/output error")

            first.store.log.files.sync = fail
            first.store.append("T", 0, b"body", b"", flag=0, sys_flag=0, born_timestamp=1, born_host=bytes(8))
            assert not await first.store.flush()
            start_file = identity_path(first.settings)
            start_file = start_file.with_name(start_file.name + "-start")
            assert StartRecord.decode(start_file.read_bytes()).boot_id != LOST_BOOT
    async with place.broker("a") as again:  # no controller answers
        assert again.store.cache_lost
        assert StartRecord.decode(start_file.read_bytes()).boot_id == LOST_BOOT


async def test_a_master_that_cannot_lead_is_replaced(setup: Setup, place: Place) -> None:
    """Who is elected and cannot finish its change of role says so: another one of before is elected, and when
    the cause is gone it may lead again."""

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(place.controllers())
        first = await stack.enter_async_context(place.broker("a"))
        await until(lambda: member(first).role is Role.MASTER)
        second = await stack.enter_async_context(place.broker("b"))
        await until(lambda: len(member(first).now.sync_state_set) == 2)
        await until(lambda: len(member(second).now.sync_state_set) == 2)
        client = await stack.enter_async_context(setup.client(first))
        assert (await client.send("TBW102")).code == 0
        epochs = second.member.replication._epochs
        begin_at, tries = epochs.begin_at, []

        def fail(epoch: int, *, log_begin: int, log_end: int) -> bool:
            tries.append(epoch)
            raise OSError(30, "Read-only file system")

        epochs.begin_at = fail
        before = member(first).now.epoch
        await first.member.switch_over.hand_over(1.5)
        await until(lambda: member(first).role is Role.MASTER and member(first).now.epoch > before)
        await until(lambda: member(second).role is Role.SLAVE)

        assert 2 <= len(tries) <= 4
        assert len(set(tries)) == 1
        sent = await client.send("TBW102")
        while sent.code != 0:  # until the lease and the in-sync set are what they have to be
            sent = await client.send("TBW102")
        epochs.begin_at = begin_at
        await until(lambda: len(member(first).now.sync_state_set) == 2)
        while member(second).role is not Role.MASTER:  # it is let be for some seconds
            await first.member.switch_over.hand_over(1.5)
            await asyncio.sleep(0.2)
        assert second.store.queue_max("TBW102", 0) >= 1


async def no_hand_over() -> None:
    """The end of a master that dies."""


async def test_a_new_master_tells_no_end_from_before_what_was_acknowledged(
    setup: Setup, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until what it took over is confirmed it refuses requests for the ends of queues, and pulls that find
    nothing, so that clients try again; then every answer has all that was acknowledged."""

    # So the slave does not hear that the last message is confirmed, as when its master dies at once.
    monkeypatch.setattr(leader, "PUSH_SECONDS", 3600.0)
    monkeypatch.setattr(pull, "ENDS_PARK_MS", 100)
    monkeypatch.setattr(gateway_module, "HELD_SECONDS_MAX", 0.1)
    asked: dict[str, Any] = {"topic": "TBW102", "queueId": 0}

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(place.controllers())
        first = await stack.enter_async_context(place.broker("a", min_in_sync_replicas=2))
        await until(lambda: member(first).role is Role.MASTER)
        second = await stack.enter_async_context(place.broker("b", min_in_sync_replicas=2))
        await until(lambda: first.member.replication.enough_in_sync)
        await until(lambda: first.member.replication.epoch_confirmed)
        client = await stack.enter_async_context(setup.client(first))
        for _ in range(3):
            assert (await client.send("TBW102")).code == 0
        await until(lambda: second.store.queue_end("TBW102", 0) == 3)
        assert second.store.queue_max("TBW102", 0) < 3
        monkeypatch.setattr(first.part, "hand_over_at_end", no_hand_over)  # or it follows, and confirms all
        await first.close()
        await until(lambda: member(second).role is Role.MASTER)
        other = await stack.enter_async_context(setup.client(second))

        late = [
            await other.call(30, **asked),
            await other.call(29, **asked, timestamp=1 << 50),
            await other.pull("TBW102", 3),
            await other.pull("TBW102", 2),
            await other.pull("TBW102", 2, suspend_ms=300),
            await other.pull("TBW102", 7),
        ]
        readable = await other.pull("TBW102", 0)
        waiting = [asyncio.create_task(other.pull("TBW102", 3, suspend_ms=15_000))]
        await stack.enter_async_context(place.broker("a", min_in_sync_replicas=2))
        await until(lambda: second.member.replication.epoch_confirmed)
        ends = [await other.call(30, **asked), await other.call(29, **asked, timestamp=1 << 50)]
        found = await other.pull("TBW102", 2)
        nothing = await other.pull("TBW102", 3)
        assert (await other.send("TBW102")).code == 0

        assert [reply.code for reply in late] == [14] * 6
        assert all("does not know yet where its queues end" in (reply.remark or "") for reply in late)
        assert readable.code == 0
        assert [reply.ext["offset"] for reply in ends] == ["3", "3"]
        assert (found.code, nothing.code) == (0, 19)
        assert [(await task).code for task in waiting] == [0]


async def test_a_slave_asks_its_master_where_queues_end(
    setup: Setup, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears later than clients what was acknowledged, so its own answer could be from before that."""

    monkeypatch.setattr(leader, "PUSH_SECONDS", 3600.0)

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(place.controllers())
        first = await stack.enter_async_context(place.broker("a"))
        await until(lambda: member(first).role is Role.MASTER)
        second = await stack.enter_async_context(place.broker("b"))
        await until(lambda: len(member(first).now.sync_state_set) == 2)
        client = await stack.enter_async_context(setup.client(first))
        assert (await client.send("TBW102")).code == 0
        assert second.store.queue_max("TBW102", 0) == 0
        at_slave = await stack.enter_async_context(setup.client(second))

        end = await at_slave.call(30, topic="TBW102", queueId=0)
        at_a_time = await at_slave.call(29, topic="TBW102", queueId=0, timestamp=1 << 50)

        assert (end.ext["offset"], at_a_time.ext["offset"]) == ("1", "1")


async def test_a_master_that_ends_with_its_slaves_answers_who_waits_for_them_soon(
    setup: Setup, place: Place
) -> None:
    """A send that no slave has is neither said to be stored nor held until `slaveTimeout`: clients try again
    elsewhere."""

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(place.controllers())
        first = await stack.enter_async_context(place.broker("a", min_in_sync_replicas=1))
        await until(lambda: member(first).role is Role.MASTER)
        second = await stack.enter_async_context(place.broker("b", min_in_sync_replicas=1))
        await until(lambda: len(member(first).now.sync_state_set) == 2)
        client = await stack.enter_async_context(setup.client(first))
        assert (await client.send("TBW102")).code == 0
        replication = first.member.replication
        replication.keep_set(True)
        await second.close()
        sent = asyncio.create_task(client.send("TBW102"))
        await until(lambda: replication.status().waiting == 1)

        began = asyncio.get_running_loop().time()
        await first.close()

        assert (await sent).code == 14
        assert asyncio.get_running_loop().time() - began < first.settings.slave_timeout / 1000 / 2


@pytest.mark.parametrize("handed_over", [False, True], ids=["while it leads", "after a switchover"])
async def test_behind_a_service_a_master_that_ends_passes_requests_on_until_it_leads_elsewhere(
    setup: Setup, place: Place, monkeypatch: pytest.MonkeyPatch, handed_over: bool
) -> None:
    """Clients keep the Service's address, and for a moment it still leads here: no send fails."""

    monkeypatch.setattr(group_member, "PASS_ON_SECONDS", 0.5)

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(place.controllers())
        first = await stack.enter_async_context(
            place.broker("a", min_in_sync_replicas=1, master_endpoint_slice="shop/orders-0-master")
        )
        await until(lambda: member(first).role is Role.MASTER)
        second = await stack.enter_async_context(place.broker("b", min_in_sync_replicas=1))
        await until(lambda: len(member(first).now.sync_state_set) == 2)
        client = await stack.enter_async_context(setup.client(first))
        assert (await client.send("TBW102")).code == 0
        if handed_over:
            await first.member.switch_over.hand_over(1.5)
            await until(lambda: member(first).role is Role.SLAVE)

        ending = asyncio.create_task(first.close())
        await until(lambda: member(second).role is Role.MASTER)
        assert (await client.send("TBW102")).code == 0
        newcomer = await stack.enter_async_context(setup.client(first))
        assert (await newcomer.send("TBW102")).code == 0
        assert not ending.done()
        await ending


async def test_a_replica_with_a_damaged_log_gets_it_again(setup: Setup, place: Place) -> None:
    """A start that finds flipped bits in what was surely on the disk is no end of it: it follows, cuts the
    damage off with a copy, and is in sync again with the same log."""

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(place.controllers())
        first = await stack.enter_async_context(place.broker("a", min_in_sync_replicas=1))
        await until(lambda: member(first).role is Role.MASTER)
        async with place.broker("b") as second:
            await until(lambda: len(member(first).now.sync_state_set) == 2)
            client = await stack.enter_async_context(setup.client(first))
            for _ in range(20):
                assert (await client.send("TBW102")).code == 0
            await until(lambda: second.store.max_offset == first.store.max_offset)
            await second.store.checkpoint()
            offset = _offset(second, 10)
        path = place.folder / "b" / "commitlog" / f"{0:020d}"
        with path.open("r+b") as stream:
            stream.seek(offset + 88)
            stream.write(b"\xff")
        (place.folder / "b" / "abort").write_text("")  # not closed in order: the end of the log is read

        third = await stack.enter_async_context(place.broker("b"))
        assert third.store.damage is not None
        await until(lambda: third.store.max_offset == first.store.max_offset)
        await until(lambda: len(member(first).now.sync_state_set) == 2)

        assert third.store.damage is None
        assert list((place.folder / "b" / "commitlog.damaged").iterdir())
        await until(lambda: not third.member.replication.status().incomplete)
        data = first.store.read(0, first.store.max_offset)
        assert third.store.read(0, first.store.max_offset) == data


async def test_the_last_replica_with_a_damaged_log_keeps_everything(setup: Setup, place: Place) -> None:
    """Nobody else has what it lacks: it has no role, says where the damage is and what people can do, and
    goes on without only when it is told so."""

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(place.controllers())
        async with place.broker("a") as first:
            await until(lambda: member(first).role is Role.MASTER)
            async with setup.client(first) as client:
                for _ in range(20):
                    assert (await client.send("TBW102")).code == 0
            await first.store.checkpoint()
            offset = _offset(first, 10)
        path = place.folder / "a" / "commitlog" / f"{0:020d}"
        with path.open("r+b") as stream:
            stream.seek(offset + 88)
            stream.write(b"\xff")
        (place.folder / "a" / "abort").write_text("")  # not closed in order: the end of the log is read
        before = path.read_bytes()

        async with place.broker("a") as second:
            await until(lambda: "acceptDamagedStore" in (member(second).diagnosis().advice or ""))
            assert member(second).role is Role.NONE
            assert f"offset {offset} of the log" in (member(second).diagnosis().problem or "")
            assert str(path) in (member(second).diagnosis().problem or "")
        assert path.read_bytes() == before

        third = await stack.enter_async_context(place.broker("a", accept_damaged_store=True))
        await until(lambda: member(third).role is Role.MASTER)
        assert list((place.folder / "a" / "commitlog.damaged").iterdir())


def _offset(broker: Broker, number: int) -> int:
    """Where a message of the topic is."""
    for queue_id in broker.store.queues()["TBW102"]:
        found = broker.store.unit("TBW102", queue_id, number)
        if found is not None:
            return found[0]
    raise AssertionError("no such message")


async def test_a_group_that_is_stopped_together_keeps_its_set(setup: Setup, place: Place) -> None:
    """Afterwards each of its replicas may lead."""

    async with AsyncExitStack() as stack:
        controller = await stack.enter_async_context(place.controllers())
        async with AsyncExitStack() as brokers:
            made = []
            for name in ("a", "b", "c"):
                made.append(await brokers.enter_async_context(place.broker(name)))
                await until(lambda: member(made[0]).role is Role.MASTER)
            await until(lambda: len(member(made[0]).now.sync_state_set) == 3)
            await asyncio.gather(*(each.close() for each in made))
        group = controller.service.machine.groups["broker-a"]
        assert group.sync_state_set == {1, 2, 3}
        third = await stack.enter_async_context(place.broker("c"))
        await until(lambda: member(third).role is Role.MASTER)
