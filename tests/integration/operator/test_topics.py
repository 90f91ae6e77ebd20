from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.app import Broker
from brokerset_formats.config import TopicConfig
from brokerset_kube.client import KubeClient
from brokerset_kube.credentials import Access
from brokerset_operator.apply import Means
from brokerset_operator.brokers_view import Brokers, observe_drain
from brokerset_operator.claims import ClaimIndex
from brokerset_operator.events import Events
from brokerset_operator.model import names
from brokerset_operator.reconcile_queue import GONE, Key, RetryAfter
from brokerset_operator.topics import FINALIZER, TOPIC, TopicReconciler
from brokerset_protocol.bodies.controllers import (
    ControllerMember,
    ControllerStatus,
    GroupState,
    GroupStates,
    ReplicaState,
)
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import GetMetaDataResponse
from brokerset_rig.fake_kube import FakeKube
from brokerset_rig.operator_parts import NAMESPACE, a_pod, broker_set, condition
from brokerset_rig.process_loopback import PROCESS_LOOPBACK
from brokerset_runtime.clock import SystemClock
from brokerset_runtime.remoting import Connection, RemotingServer
from brokerset_spec.broker_settings import BrokerSettings

CONTROLLER = PROCESS_LOOPBACK

KEY = Key(TOPIC, NAMESPACE, "payments")


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


def topic(name: str = "payments", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"brokerSetRef": {"name": "orders"}, **spec},
    }


class Controller:
    """One that leads, and knows one group with one living broker."""

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.master: int | None = 1
        self.owner: str | None = None
        self.others: tuple[GroupState, ...] = ()
        """Groups of sets that share this controller."""

        self.forgotten: list[tuple[str, str]] = []
        self.name_server = RemotingServer({RequestCode.DELETE_TOPIC_IN_NAMESRV: self._forget})
        self.server = RemotingServer(
            {
                RequestCode.BROKERSET_CONTROLLER_STATUS: self._status,
                RequestCode.CONTROLLER_GET_METADATA_INFO: self._metadata,
                RequestCode.BROKERSET_GROUP_STATES: self._groups,
            }
        )

    @property
    def state(self) -> GroupState:
        replica = ReplicaState(1, self.broker, "", 1, None, "alive")
        return GroupState(
            "DefaultCluster", "orders-0", self.owner, 1, 2, self.master, 1, (1,), 1, (), (), (replica,)
        )

    def _forget(self, connection: Connection, command: Command) -> Command:
        self.forgotten.append((command.ext["topic"], command.ext["clusterName"]))
        return command.reply()

    def _status(self, connection: Connection, command: Command) -> Command:
        member = ControllerMember(0, "x:1", f"{CONTROLLER}:9878", True, 5)
        status = ControllerStatus(0, "leader", 1, 0, True, 5, 5, 5, 0, (member,))
        return command.reply(body=status.to_json())

    def _metadata(self, connection: Connection, command: Command) -> Command:
        return command.reply(ext=GetMetaDataResponse(group="g", is_leader=True).to_ext())

    def _groups(self, connection: Connection, command: Command) -> Command:
        return command.reply(body=GroupStates((self.state, *self.others)).to_json())


class Bench:
    """The set `orders` with one real broker, and the reconciles of its Topics."""

    def __init__(self, kube: FakeKube, client: KubeClient, controller: Controller) -> None:
        self.kube = kube
        self.controller = controller
        clock = SystemClock()
        means = Means(client=client, events=Events(client, clock, "test"), clock=clock, leads=lambda: True)
        self.index = ClaimIndex()
        self.reconciler = TopicReconciler(means, self.index, 300.0)

    async def reconcile(self, name: str = "payments") -> float | None:
        return await self.reconciler.reconcile(Key(TOPIC, NAMESPACE, name))

    def ready(self, name: str = "payments") -> tuple[str, str]:
        found = condition(self.kube.get("topics", name, NAMESPACE), "Ready")
        assert found is not None
        return found["status"], found["reason"]

    def events(self) -> list[str]:
        return [item["reason"] for key, item in self.kube.objects.items() if key[1] == "events"]

    async def config(self, name: str = "payments") -> TopicConfig | None:
        async with Brokers() as brokers:
            return await brokers.topic(self.controller.broker, name)


@asynccontextmanager
async def bench(folder: Path) -> AsyncIterator[Bench]:
    settings = BrokerSettings(
        store_path_root_dir=folder,
        bind_address="127.0.0.1",
        listen_port=0,
        http_port=0,
        broker_name="orders-0",
        broker_ip1="127.0.0.1",
        mapped_file_size_commit_log=64 * 1024 * 1024,
    )
    broker = Broker(settings)
    await broker.start()
    running = asyncio.create_task(broker.run())
    controller = Controller(f"127.0.0.1:{broker.port}")
    await controller.server.listen(CONTROLLER, names.CONTROLLER_PORT)
    await controller.name_server.listen(CONTROLLER, names.NAMESRV_PORT)
    try:
        async with FakeKube() as kube, KubeClient(Access(kube.url), manager="tester") as client:
            controller.owner = kube.put(broker_set())["metadata"]["uid"]
            kube.put(a_pod("orders-controller-0", "controller", ip=CONTROLLER))
            yield Bench(kube, client, controller)
    finally:
        await controller.server.close(0.1)
        await controller.name_server.close(0.1)
        await broker.close()
        await running


def test_a_topic_is_created_and_told(tmp_path: Path) -> None:
    """The broker has the topic as the manifest says, and the status says so."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            found.kube.put(topic(queues={"read": 6, "write": 4}, order=True))

            again = await found.reconcile()

            assert again is not None
            assert again > 200
            assert found.ready() == ("True", "AsWanted")
            config = await found.config()
            assert config is not None
            assert (config.read_queue_nums, config.write_queue_nums, config.order) == (6, 4, True)
            live = found.kube.get("topics", "payments", NAMESPACE)
            assert live is not None
            assert live["status"]["groups"] == [
                {"name": "orders-0", "readQueues": 6, "writeQueues": 4, "permission": "rw"}
            ]
            assert found.events() == ["TopicCreated"]
            before = len(found.kube.calls)
            await found.reconcile()
            assert {call.verb for call in found.kube.calls[before:]} == {"get", "list"}

    run(work())


def test_drift_is_corrected(tmp_path: Path) -> None:
    """What somebody changed with mqadmin is put back at the next look, with an Event."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            found.kube.put(topic(permission="rw"))
            await found.reconcile()
            async with Brokers() as brokers:
                await brokers.put_topic(found.controller.broker, TopicConfig("payments", 8, 8, 4))

            await found.reconcile()

            config = await found.config()
            assert config is not None
            assert config.perm == 6
            assert found.events() == ["TopicCreated", "TopicCorrected"]

    run(work())


def test_a_message_type_becomes_the_attribute_and_may_change(tmp_path: Path) -> None:
    """Without one in the manifest, what the brokers have stays."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            found.kube.put(topic(messageType="LITE", liteTopicExpirationMinutes=30))
            await found.reconcile()
            config = await found.config()
            assert config is not None
            assert config.attributes == {"message.type": "LITE", "lite.topic.expiration": "30"}
            live = found.kube.get("topics", "payments", NAMESPACE)
            assert live is not None
            assert live["status"]["messageType"] == "LITE"

            found.kube.put(topic(messageType="FIFO"))
            await found.reconcile()
            config = await found.config()
            assert config is not None
            assert config.attributes["message.type"] == "FIFO"

            found.kube.put(topic(permission="r"))
            await found.reconcile()
            config = await found.config()
            assert config is not None
            assert (config.attributes["message.type"], config.perm) == ("FIFO", 4)

    run(work())


def test_queues_with_messages_that_nobody_has_read_stay_readable(tmp_path: Path) -> None:
    """Fewer write queues take effect at once and loudly; read queues go when nothing is left in them."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            found.kube.put(topic(queues={"read": 4, "write": 4}))
            await found.reconcile()
            async with Brokers() as brokers:
                address = found.controller.broker
                for queue in range(4):
                    await send(address, queue)
                assert sum((await brokers.ends(address, "payments")).values()) == 4

            found.kube.change(
                "topics",
                "payments",
                NAMESPACE,
                lambda live: live["spec"].update(queues={"read": 2, "write": 2}),
            )
            again = await found.reconcile()

            assert again == 5.0
            assert found.ready() == ("False", "QueuesNotEmpty")
            config = await found.config()
            assert config is not None
            assert (config.read_queue_nums, config.write_queue_nums) == (4, 2)
            assert "QueuesShrunk" in found.events()

    run(work())


async def send(address: str, queue: int) -> None:
    """One message to a queue of the topic."""
    from brokerset_protocol.headers.send import SendMessage
    from brokerset_runtime.remoting import connect

    connection = await connect(address)
    try:
        header = SendMessage(
            producer_group="g",
            topic="payments",
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=queue,
            sys_flag=0,
            born_timestamp=1,
            flag=0,
            properties="",
            reconsume_times=0,
            unit_mode=False,
            batch=False,
        )
        answer = await connection.call(Command(RequestCode.SEND_MESSAGE, header.to_ext(), b"x"), 5)
        assert answer.code == 0, answer.remark
    finally:
        connection.close()
        await connection.wait_closed()


def test_a_topic_is_deleted_only_if_its_policy_says_so(tmp_path: Path) -> None:
    """With Delete a finalizer holds the object until the brokers let go; with Retain nothing is deleted."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            found.kube.put(topic(deletionPolicy="Delete"))
            found.kube.put(topic("kept"))
            await found.reconcile()
            await found.reconcile("kept")
            live = found.kube.get("topics", "payments", NAMESPACE)
            assert live is not None
            assert live["metadata"]["finalizers"] == [FINALIZER]
            kept = found.kube.get("topics", "kept", NAMESPACE)
            assert kept is not None
            assert not kept["metadata"].get("finalizers")

            found.kube.change(
                "topics",
                "payments",
                NAMESPACE,
                lambda live: live["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
            )
            found.kube.remove("topics", "kept", NAMESPACE)
            await found.reconcile()

            assert found.kube.get("topics", "payments", NAMESPACE) is None
            assert await found.config() is None
            assert found.controller.forgotten == [("payments", "DefaultCluster")]
            assert await found.reconcile() == GONE
            assert await found.reconcile("kept") == GONE
            assert await found.config("kept") is not None

    run(work())


def test_messages_that_another_topic_object_stands_for_are_kept(tmp_path: Path) -> None:
    """Also while the other object's event is still on its way, as right after the operator's start."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            found.kube.put(topic(deletionPolicy="Delete"))
            await found.reconcile()
            found.kube.put(topic("other", topicName="payments"))  # nobody has told the index of it
            found.kube.change(
                "topics",
                "payments",
                NAMESPACE,
                lambda live: live["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
            )

            await found.reconcile()

            assert found.kube.get("topics", "payments", NAMESPACE) is None
            assert await found.config() is not None

    run(work())


def test_topics_of_other_sets_with_the_same_controllers_are_left_alone(tmp_path: Path) -> None:
    """Only the set's own groups lose a deleted topic; its route goes unless others of the cluster have it."""

    async def work() -> None:
        deleted: list[str] = []

        def delete(connection: Connection, command: Command) -> Command:
            deleted.append(command.ext["topic"])
            return command.reply()

        def config(connection: Connection, command: Command) -> Command:
            body = b'{"topicName":"payments","readQueueNums":8,"writeQueueNums":8,"perm":6}'
            return command.reply(body=body)

        other = RemotingServer(
            {RequestCode.DELETE_TOPIC_IN_BROKER: delete, RequestCode.GET_TOPIC_CONFIG: config}
        )
        port = await other.listen("127.0.0.1", 0)
        try:
            async with bench(tmp_path) as found:
                found.kube.put(broker_set("bills", controllers={"ref": {"name": "orders"}}))
                bills = replace(
                    found.controller.state,
                    broker_name="bills-0",
                    owner="uid-of-bills",
                    replicas=(ReplicaState(1, f"127.0.0.1:{port}", "", 1, None, "alive"),),
                )
                for cluster, forgotten in (("DefaultCluster", []), ("Bills", ["payments"])):
                    found.controller.others = (replace(bills, cluster_name=cluster),)
                    found.kube.put(topic(deletionPolicy="Delete"))
                    await found.reconcile()
                    found.kube.change(
                        "topics",
                        "payments",
                        NAMESPACE,
                        lambda live: live["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
                    )
                    await found.reconcile()

                    assert found.kube.get("topics", "payments", NAMESPACE) is None
                    assert await found.config() is None
                    assert deleted == []
                    assert [name for name, _ in found.controller.forgotten] == forgotten
        finally:
            await other.close(0.1)

    run(work())


def test_a_topic_of_a_set_that_shares_controllers_reaches_its_brokers(tmp_path: Path) -> None:
    """The controllers that the set refers to say who is master; a group of somebody else is left alone."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            live = found.kube.put(
                broker_set("bills", brokerNames=["orders-0"], controllers={"ref": {"name": "orders"}})
            )
            found.kube.put(topic("bill", brokerSetRef={"name": "bills"}))

            await found.reconcile("bill")
            assert found.ready("bill") == ("False", "BrokerSetInvalid")
            assert await found.config("bill") is None

            found.controller.owner = live["metadata"]["uid"]
            await found.reconcile("bill")
            assert found.ready("bill") == ("True", "AsWanted")
            assert await found.config("bill") is not None

    run(work())


def test_the_finalizer_goes_with_the_policy(tmp_path: Path) -> None:
    """Whoever changes the policy to Retain can delete the object without the operator."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            found.kube.put(topic(deletionPolicy="Delete"))
            await found.reconcile()
            found.kube.change(
                "topics", "payments", NAMESPACE, lambda live: live["spec"].update(deletionPolicy="Retain")
            )
            await found.reconcile()

            live = found.kube.get("topics", "payments", NAMESPACE)
            assert live is not None
            assert live["metadata"]["finalizers"] == []

    run(work())


def test_a_topic_of_a_set_that_is_gone_can_be_deleted(tmp_path: Path) -> None:
    """Without the set there is nothing to delete, and nothing to wait for."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            found.kube.put(topic(deletionPolicy="Delete"))
            await found.reconcile()
            found.kube.remove("brokersets", "orders", NAMESPACE)
            found.kube.change(
                "topics",
                "payments",
                NAMESPACE,
                lambda live: live["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
            )
            await found.reconcile()

            assert found.kube.get("topics", "payments", NAMESPACE) is None

    run(work())


def test_a_deletion_waits_for_masters_and_says_so_but_not_for_groups_that_are_wanted_no_more(
    tmp_path: Path,
) -> None:
    """A group that the manifest has must let go; of one that it has no more, only volumes are left."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            controller = found.controller
            live = found.kube.get("brokersets", "orders", NAMESPACE)
            assert live is not None
            controller.owner = live["metadata"]["uid"]
            controller.others = (replace(controller.state, broker_name="orders-1", master_id=None),)
            found.kube.put(topic(deletionPolicy="Delete"))
            await found.reconcile()
            found.kube.change(
                "topics",
                "payments",
                NAMESPACE,
                lambda live: live["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
            )
            controller.master = None
            with pytest.raises(RetryAfter, match="orders-0 has no living master"):
                await found.reconcile()
            assert found.ready() == ("False", "DeletionWaits")

            controller.master = 1
            await found.reconcile()
            assert found.kube.get("topics", "payments", NAMESPACE) is None
            assert await found.config() is None

    run(work())


def test_what_keeps_a_topic_from_being_ready_is_said(tmp_path: Path) -> None:
    """Each reason has a word and a text; what can pass by itself is looked at again soon."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            kube = found.kube
            kube.put(topic("missing", brokerSetRef={"name": "nobody"}))
            kube.put(topic("bad", queues={"read": 1, "write": 2}))
            kube.put(topic("elsewhere", groups=["orders-7"]))
            kube.put(topic("first", topicName="shared"))
            kube.put(topic("second", topicName="shared"))
            for name in ("first", "second"):
                live = kube.get("topics", name, NAMESPACE)
                assert live is not None
                found.index.saw(TOPIC, live)
            reasons = {}
            for name in ("missing", "bad", "elsewhere", "first", "second"):
                await found.reconcile(name)
                reasons[name] = found.ready(name)
            assert reasons == {
                "missing": ("False", "BrokerSetMissing"),
                "bad": ("False", "InvalidSpec"),
                "elsewhere": ("False", "GroupUnknown"),
                "first": ("True", "AsWanted"),
                "second": ("False", "NameTaken"),
            }

            kube.put(topic())
            found.controller.master = None
            assert await found.reconcile() == 5.0
            assert found.ready() == ("False", "NoMaster")
            kube.remove("pods", "orders-controller-0", NAMESPACE)
            assert await found.reconcile() == 5.0
            assert found.ready() == ("False", "ControllersSilent")

    run(work())


def test_a_drain_counts_what_is_unread_and_what_is_delayed(tmp_path: Path) -> None:
    """A group that is to go tells its permission and what somebody has not read."""

    async def work() -> None:
        async with bench(tmp_path) as found:
            state = found.controller.state
            drain = await observe_drain(state)
            assert drain is not None
            assert (drain.unread, drain.permission) == (0, 6)

            async with Brokers() as brokers:
                await brokers.set_permission(found.controller.broker, 4)
            drain = await observe_drain(state)
            assert drain is not None
            assert drain.permission == 4

            found.controller.master = None
            assert await observe_drain(found.controller.state) is None

    run(work())
