"""Subjects against an API server and the controllers' own service: what is asked, written and said."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from brokerset_kube.client import KubeClient
from brokerset_kube.credentials import Access
from brokerset_operator.apply import Means
from brokerset_operator.claims import ClaimIndex
from brokerset_operator.events import Events
from brokerset_operator.model import claim_reasons, names
from brokerset_operator.model.verdict import WAIT_SECONDS
from brokerset_operator.ordered_subjects import plan, reasons
from brokerset_operator.reconcile_queue import GONE, Key, RetryAfter
from brokerset_operator.subjects import FINALIZER, SUBJECT, SubjectReconciler
from brokerset_protocol.bodies.controllers import (
    ControllerMember,
    ControllerStatus,
    GroupState,
    GroupStates,
    ReplicaState,
)
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.controller import GetMetaDataResponse
from brokerset_protocol.headers.ordered import ConsumerHeartbeat, CreateSubject
from brokerset_rig.fake_kube import FakeKube
from brokerset_rig.operator_parts import NAMESPACE, a_pod, broker_set, condition, until
from brokerset_rig.subject_bench import SubjectBench, make_subject_bench
from brokerset_runtime.clock import SystemClock
from brokerset_runtime.remoting import Connection, RemotingServer

CONTROLLER: Final = f"127.{80 + os.getpid() % 100}.{os.getpid() // 100 % 250}.31"
"""Of this process alone: its port is fixed, and several workers run these tests at the same time."""
"""A loopback address of this file's own: controllers have fixed ports."""

REGULAR: Final = 300.0
DELETED: Final = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def subject(name: str = "events", **spec: Any) -> dict[str, Any]:
    """A Subject as somebody applies it."""
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "Subject",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"brokerSetRef": {"name": "orders"}, **spec},
    }


class Controller:
    """One that leads: the real service of subjects, with brokers that a test scripts."""

    def __init__(self, bench: SubjectBench) -> None:
        self.bench = bench
        self.owners: dict[str, str | None] = dict.fromkeys(bench.net.brokers)
        """By broker group: UID of the set that it belongs to."""

        self.asked: list[int] = []
        self.too_old = False
        """Whether it is one that knows nothing of subjects."""

        self.fails_after = False
        """Whether answers to what changes something are lost, when it was done."""

        self.server = RemotingServer(
            {
                RequestCode.BROKERSET_CONTROLLER_STATUS: self._status,
                RequestCode.CONTROLLER_GET_METADATA_INFO: self._metadata,
                RequestCode.BROKERSET_GROUP_STATES: self._groups,
                **{code: self._about_subjects(code) for code in bench.handlers},
            }
        )

    def _about_subjects(self, code: RequestCode) -> Callable[[Connection, Command], Any]:
        async def answered(connection: Connection, command: Command) -> Command:
            if self.too_old:
                return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "unknown code")
            if code != RequestCode.BROKERSET_DESCRIBE_SUBJECTS:
                self.asked.append(code)
            try:
                answer = await self.bench.handlers[code](connection, command)
            except Rejected as rejected:
                return command.reply(rejected.code, rejected.remark)
            if self.fails_after and code != RequestCode.BROKERSET_DESCRIBE_SUBJECTS:
                return command.reply(ResponseCode.SYSTEM_ERROR, "nobody knows")
            return answer

        return answered

    def _status(self, connection: Connection, command: Command) -> Command:
        member = ControllerMember(0, "x:1", f"{CONTROLLER}:9878", True, 5)
        status = ControllerStatus(0, "leader", 1, 0, True, 5, 5, 5, 0, (member,))
        return command.reply(body=status.to_json())

    def _metadata(self, connection: Connection, command: Command) -> Command:
        return command.reply(ext=GetMetaDataResponse(group="g", is_leader=True).to_ext())

    def _groups(self, connection: Connection, command: Command) -> Command:
        found = []
        for name, owner in self.owners.items():
            replica = ReplicaState(1, f"{name}:10911", "", 1, None, "alive")
            master = None if self.bench.net.master(name) is None else 1
            found.append(GroupState("Shop", name, owner, 1, 2, master, 1, (1,), 1, (), (), (replica,)))
        return command.reply(body=GroupStates(tuple(found)).to_json())


class World:
    """The set `orders`, its controller, and the reconciles of its Subjects."""

    def __init__(self, kube: FakeKube, client: KubeClient, controller: Controller) -> None:
        self.kube = kube
        self.client = client
        self.controller = controller
        self.bench = controller.bench
        clock = SystemClock()
        means = Means(client=client, events=Events(client, clock, "test"), clock=clock, leads=lambda: True)
        self.index = ClaimIndex()
        self.reconciler = SubjectReconciler(means, self.index, REGULAR)

    async def reconcile(self, name: str = "events") -> float | None:
        return await self.reconciler.reconcile(Key(SUBJECT, NAMESPACE, name))

    async def settled(self, name: str = "events") -> None:
        """Reconcile until nothing waits any more."""
        await until(lambda: not self.bench.engine.status.leading or self._quiescent())
        again = await self.reconcile(name)
        assert again is not None
        assert again > REGULAR / 2, self.status(name)

    def _quiescent(self) -> bool:
        return all(
            each.status.value in ("Open", "Sealed")
            for one in self.bench.machine.subjects.values()
            for each in one.partitions.values()
        )

    def status(self, name: str = "events") -> dict[str, Any]:
        live = self.kube.get("subjects", name, NAMESPACE)
        assert live is not None
        found: dict[str, Any] = live["status"]
        return found

    def condition(self, kind: str, name: str = "events") -> tuple[str, str]:
        found = condition(self.kube.get("subjects", name, NAMESPACE), kind)
        return ("absent", "") if found is None else (found["status"], found["reason"])

    def change(self, name: str = "events", **spec: Any) -> None:
        self.kube.change("subjects", name, NAMESPACE, lambda live: live["spec"].update(spec))

    def delete(self, name: str = "events") -> None:
        self.kube.change("subjects", name, NAMESPACE, lambda live: live["metadata"].update(DELETED))

    def events(self) -> list[str]:
        return [item["reason"] for key, item in self.kube.objects.items() if key[1] == "events"]

    async def consume(self, *, leaving: bool = False) -> None:
        """A member of the group `readers`."""
        header = ConsumerHeartbeat(
            subject="events",
            consumer_group="readers",
            session="s1",
            client_id="c",
            consume_strategy="Exclusive",
            leaving=leaving,
        )
        answer = await self.bench.ask(RequestCode.BROKERSET_CONSUMER_HEARTBEAT, header)
        assert answer.code == 0, answer.remark


@asynccontextmanager
async def running(*more_groups: str) -> AsyncIterator[World]:
    controller = Controller(make_subject_bench("orders-0", "orders-1", *more_groups))
    await controller.server.listen(CONTROLLER, names.CONTROLLER_PORT)
    try:
        async with (
            controller.bench.running(),
            FakeKube() as kube,
            KubeClient(Access(kube.url), manager="tester") as client,
        ):
            uid = kube.put(broker_set(groups=2))["metadata"]["uid"]
            controller.owners |= {"orders-0": uid, "orders-1": uid}
            controller.owners |= dict.fromkeys(more_groups, "another")
            kube.put(a_pod("orders-controller-0", "controller", ip=CONTROLLER))
            yield World(kube, client, controller)
    finally:
        await controller.server.close(0.1)


@pytest.fixture
def world() -> Any:
    """A set with two groups, and its controller."""
    return running()


async def test_a_subject_is_created_and_then_left_alone(world: World) -> None:
    """The status says what the controllers agree on; a further reconcile asks once, and writes nothing."""
    world.kube.put(subject(partitions=4))

    await world.reconcile()
    await world.settled()

    assert world.condition("Ready") == ("True", claim_reasons.AS_WANTED)
    assert world.condition("Scaling") == ("False", reasons.SETTLED)
    assert world.condition("Refused") == ("absent", "")
    status = world.status()
    assert (status["partitions"], status["sealing"], status["generation"]) == (4, 0, 0)
    assert (status["route"], status["groups"]) == (["orders-0", "orders-1"], [])
    assert world.events() == ["SubjectCreated"]
    before = len(world.kube.calls)
    await world.settled()
    assert {call.verb for call in world.kube.calls[before:]} == {"get", "list"}
    assert world.controller.asked == [RequestCode.BROKERSET_CREATE_SUBJECT]


async def test_a_broker_that_does_not_close_its_partitions_is_named(world: World) -> None:
    """Only its keys wait: the condition says whose they are, until all partitions are open."""
    world.kube.put(subject(partitions=2))
    await world.reconcile()
    await world.settled()
    world.bench.net.brokers["orders-1"].refusing = "no room"
    world.change(partitions=4)

    await world.reconcile()
    await until(lambda: world.bench.net.brokers["orders-0"].states("events").get(0) == "Sealed")
    again = await world.reconcile()

    assert again == plan.SCALING_SECONDS
    assert world.condition("Ready") == ("False", reasons.PARTITIONS_WAIT)
    assert world.condition("Scaling") == ("True", reasons.SEALING)
    said = condition(world.kube.get("subjects", "events", NAMESPACE), "Scaling")
    assert said is not None
    assert "not yet closed are older ones on orders-1: orders-1 refuses: no room" in said["message"]
    assert world.status()["sealing"] == 1

    world.bench.net.brokers["orders-1"].refusing = None
    await world.settled()
    assert world.condition("Ready") == ("True", claim_reasons.AS_WANTED)
    assert (world.status()["partitions"], world.status()["generation"]) == (4, 1)
    assert world.events() == ["SubjectCreated", "SubjectScaled"]


async def test_a_scale_that_comes_while_another_is_under_way_waits_and_goes_on(world: World) -> None:
    """Controllers are not asked before they can do it."""
    world.kube.put(subject(partitions=2))
    await world.reconcile()
    await world.settled()
    world.bench.net.brokers["orders-1"].refusing = "no room"
    world.change(partitions=4)
    await world.reconcile()
    world.change(partitions=3)

    await world.reconcile()

    assert world.condition("Scaling") == ("True", reasons.NEXT_WAITS)
    assert world.controller.asked.count(RequestCode.BROKERSET_SCALE_SUBJECT) == 1
    world.bench.net.brokers["orders-1"].refusing = None
    await until(world._quiescent)
    await world.reconcile()
    await world.settled()
    assert world.condition("Ready") == ("True", claim_reasons.AS_WANTED)
    assert (world.status()["partitions"], world.status()["generation"]) == (3, 2)


async def test_another_route_moves_the_subject(world: World) -> None:
    """With the partitions that it has."""
    world.kube.put(subject(partitions=2))
    await world.reconcile()
    await world.settled()
    world.change(route=["orders-1"])

    await world.reconcile()
    await world.settled()

    assert (world.status()["route"], world.status()["partitions"]) == (["orders-1"], 2)


async def test_what_controllers_refuse_is_said_in_their_words(world: World) -> None:
    """And tried again: it may be possible later, as here when the broker group has a master again."""
    world.bench.net.brokers["orders-1"].masterless = True
    world.kube.put(subject(route=["orders-1"]))

    again = await world.reconcile()

    assert again == plan.REFUSED_SECONDS
    assert world.condition("Ready") == ("False", reasons.REFUSED_BY_CONTROLLERS)
    assert world.condition("Refused") == ("True", reasons.REFUSED_BY_CONTROLLERS)
    said = condition(world.kube.get("subjects", "events", NAMESPACE), "Refused")
    assert said is not None
    assert "orders-1 take no sends" in said["message"]
    assert world.events() == ["Refused"]
    assert "partitions" not in world.status()

    world.bench.net.brokers["orders-1"].masterless = False
    await world.reconcile()
    await world.settled()
    assert world.condition("Refused") == ("absent", "")


async def test_an_answer_that_was_lost_is_no_second_generation(world: World) -> None:
    """What was agreed on is seen at the next reconcile."""
    world.kube.put(subject(partitions=2))
    world.controller.fails_after = True
    assert await world.reconcile() == WAIT_SECONDS
    assert world.condition("Ready") == ("False", claim_reasons.CONTROLLERS_SILENT)

    world.controller.fails_after = False
    await world.settled()

    assert world.condition("Ready") == ("True", claim_reasons.AS_WANTED)
    assert world.status()["generation"] == 0


async def test_a_subject_with_consumers_is_deleted_when_they_have_gone(world: World) -> None:
    """Until then the object says why it is still there, and the messages are."""
    world.kube.put(subject(partitions=2, deletionPolicy="Delete"))
    await world.reconcile()
    await world.settled()
    await world.consume()
    await world.reconcile()
    assert world.status()["groups"] == [
        {"name": "readers", "strategy": "Exclusive", "members": 1, "undrained": 0}
    ]
    live = world.kube.get("subjects", "events", NAMESPACE)
    assert live is not None
    assert live["metadata"]["finalizers"] == [FINALIZER]
    world.delete()

    with pytest.raises(RetryAfter):
        await world.reconcile()
    assert world.condition("Ready") == ("False", claim_reasons.DELETION_WAITS)
    assert world.condition("Refused") == ("True", claim_reasons.DELETION_WAITS)
    assert "events" in world.bench.machine.subjects

    await world.consume(leaving=True)
    await world.reconcile()
    assert world.kube.get("subjects", "events", NAMESPACE) is None
    assert "events" not in world.bench.machine.subjects
    assert await world.reconcile() == GONE


async def test_a_subject_that_is_to_stay_outlives_its_object(world: World) -> None:
    """With Retain nothing is deleted; nor when somebody chose Retain before deleting the object."""
    world.kube.put(subject("kept"))
    world.kube.put(subject("chosen", deletionPolicy="Delete"))
    for name in ("kept", "chosen"):
        await world.reconcile(name)
        await world.settled(name)
    world.change("chosen", deletionPolicy="Retain")
    world.delete("chosen")
    world.kube.remove("subjects", "kept", NAMESPACE)

    await world.reconcile("chosen")

    assert world.kube.get("subjects", "chosen", NAMESPACE) is None
    assert await world.reconcile("kept") == GONE
    assert sorted(world.bench.machine.subjects) == ["chosen", "kept"]


async def test_a_subject_that_another_object_stands_for_is_kept(world: World) -> None:
    """Also while the other object's event is still on its way, as right after the operator's start."""
    world.kube.put(subject(deletionPolicy="Delete"))
    await world.reconcile()
    world.kube.put(subject("other", subject="events"))
    world.delete()

    await world.reconcile()

    assert world.kube.get("subjects", "events", NAMESPACE) is None
    assert "events" in world.bench.machine.subjects


async def test_a_subject_that_is_made_again_comes_when_the_old_one_is_deleted(world: World) -> None:
    """Until brokers have dropped the old messages the new one is refused, and then made."""
    world.kube.put(subject(partitions=2, deletionPolicy="Delete"))
    await world.reconcile()
    await world.settled()
    world.bench.net.brokers["orders-1"].down = True
    world.delete()
    await world.reconcile()
    world.kube.put(subject(partitions=2))

    await world.reconcile()
    assert world.condition("Ready") == ("False", reasons.REFUSED_BY_CONTROLLERS)

    world.bench.net.brokers["orders-1"].down = False
    await until(lambda: any(each.deleted for each in world.bench.net.brokers["orders-1"].pushed))

    async def made() -> bool:
        await world.reconcile()
        return world.condition("Ready") == ("True", claim_reasons.AS_WANTED)

    for _ in range(50):
        if await made():
            break
        await world.bench.settle(0.1)
    assert world.condition("Ready") == ("True", claim_reasons.AS_WANTED)
    assert world.status()["generation"] == 1


async def test_sets_that_share_controllers_do_not_share_subjects() -> None:
    """A new subject is put on the own groups; one of another set is neither scaled nor deleted."""
    async with running("bills-0", "bills-1") as world:
        header = CreateSubject(
            subject="bills", order_strategy="Strict", partitions=2, route="bills-0;bills-1"
        )
        assert (await world.bench.ask(RequestCode.BROKERSET_CREATE_SUBJECT, header)).code == 0
        for number in range(6):
            world.kube.put(subject(f"s{number}"))
            await world.reconcile(f"s{number}")
            assert world.bench.machine.subjects[f"s{number}"].route == ("orders-0", "orders-1")
        world.controller.asked.clear()
        world.kube.put(subject("bills", partitions=8, deletionPolicy="Delete"))

        await world.reconcile("bills")

        assert world.condition("Ready", "bills") == ("False", claim_reasons.NAME_TAKEN)
        world.delete("bills")
        await world.reconcile("bills")
        assert world.kube.get("subjects", "bills", NAMESPACE) is None
        assert world.controller.asked == []
        assert len(world.bench.machine.subjects["bills"].partitions) == 2


async def test_what_keeps_a_subject_from_being_ready_is_said(world: World) -> None:
    """Each reason has a word and a text; what can pass by itself is tried again soon."""
    kube = world.kube
    kube.put(broker_set("ledgers", replication={"mode": "dledger"}, replicas=3))
    kube.put(broker_set("bad", replicas=0))
    kube.put(subject("missing", brokerSetRef={"name": "nobody"}))
    kube.put(subject("ledger", brokerSetRef={"name": "ledgers"}, deletionPolicy="Delete"))
    kube.put(subject("invalid-set", brokerSetRef={"name": "bad"}))
    kube.put(subject("invalid", partitions=0))
    kube.put(subject("elsewhere", route=["orders-7"]))
    kube.put(subject("first", subject="shared"))
    kube.put(subject("second", subject="shared"))
    topic = subject("topic-first", topicName="taken")
    world.index.saw("Topic", {**topic, "metadata": {**topic["metadata"], "creationTimestamp": "2020"}})
    kube.put(subject("third", subject="taken"))
    for name in ("first", "second"):
        live = kube.get("subjects", name, NAMESPACE)
        assert live is not None
        world.index.saw(SUBJECT, live)

    found = {}
    for name in ("missing", "ledger", "invalid-set", "invalid", "elsewhere", "second", "third"):
        await world.reconcile(name)
        found[name] = world.condition("Ready", name)[1]

    assert found == {
        "missing": claim_reasons.SET_MISSING,
        "ledger": reasons.BROKER_SET_UNSUPPORTED,
        "invalid-set": claim_reasons.SET_INVALID,
        "invalid": claim_reasons.INVALID_SPEC,
        "elsewhere": reasons.GROUP_UNKNOWN,
        "second": claim_reasons.NAME_TAKEN,
        "third": claim_reasons.NAME_TAKEN,
    }
    assert "mode dledger" in world.status("ledger")["conditions"][0]["message"]
    assert world.status("third")["conditions"][0]["message"].startswith("Topic topic-first was there first")
    assert world.controller.asked == []
    world.delete("ledger")
    await world.reconcile("ledger")
    assert kube.get("subjects", "ledger", NAMESPACE) is None


async def test_controllers_that_are_silent_or_too_old_take_nothing_from_the_status(world: World) -> None:
    """An autoscaler sees the partitions that there are; a deletion waits for an answer."""
    world.kube.put(subject(partitions=2, deletionPolicy="Delete"))
    await world.reconcile()
    await world.settled()
    world.controller.too_old = True
    assert await world.reconcile() == plan.REFUSED_SECONDS
    assert world.condition("Ready") == ("False", reasons.CONTROLLERS_TOO_OLD)

    world.kube.remove("pods", "orders-controller-0", NAMESPACE)
    assert await world.reconcile() == WAIT_SECONDS
    assert world.condition("Ready") == ("False", claim_reasons.CONTROLLERS_SILENT)
    assert world.status()["partitions"] == 2

    world.delete()
    with pytest.raises(RetryAfter):
        await world.reconcile()
    assert world.condition("Ready") == ("False", claim_reasons.DELETION_WAITS)


async def test_an_operator_that_leads_no_more_asks_for_nothing(world: World) -> None:
    """Another one may be about to do something else."""
    world.kube.put(subject(partitions=2))
    world.reconciler.means = replace(world.reconciler.means, leads=lambda: False)

    with pytest.raises(Exception, match="leads no more"):
        await world.reconcile()

    assert world.controller.asked == []
