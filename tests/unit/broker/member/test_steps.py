"""Changes of role, carried out on replication in memory."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from brokerset_broker.member.core import Ask, Circumstances, Member, Serve, Step, SwitchEnded
from brokerset_broker.member.role import GroupNews, Role, RoleState
from brokerset_broker.member.shell import MemberShell, RoleOver, StepFailed
from brokerset_broker.member.steps import SwitchSteps
from brokerset_broker.services.role_services import RoleServices
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.store.replica_log import ReplicaLogFailed
from brokerset_rig.fake_ha import FakeBroker, FakeControllers, FakeNetwork
from brokerset_rig.waiting import until
from brokerset_runtime.clock import ManualClock

pytestmark = pytest.mark.virtual


class Metadata:
    """What a role does to metadata: written down, slow or failing."""

    covers_log = True

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.failing: Exception | None = None
        self.slow = 0.0

    async def run(self) -> None: ...

    async def lead(self, epoch: int) -> None:
        self.calls.append("apply")
        await asyncio.sleep(self.slow)
        if self.failing is not None:
            raise self.failing

    async def write_snapshot(self) -> bool:
        self.calls.append("snapshot")
        return True

    def stop_leading(self) -> None:
        self.calls.append("stop metadata")

    async def start_following(self) -> None:
        self.calls.append("follow metadata")

    def confirmed(self, offset: int) -> None: ...

    def flush(self) -> None: ...

    def trouble(self) -> tuple[str, str] | None:
        return None


class Service:
    """A service that follows the role."""

    name = "service"

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def start(self) -> None:
        self.calls.append("start")

    async def drain(self) -> None:
        self.calls.append("drain")

    def stop(self) -> None:
        self.calls.append("stop")


class Bench:
    """The member machine, its shell and its steps on replication in memory."""

    def __init__(self, broker_id: int) -> None:
        self.broker = FakeBroker(broker_id, FakeNetwork(), FakeControllers())
        self.broker.start()
        self.calls: list[str] = []
        self.roles: list[RoleState] = []
        self.ended: list[SwitchEnded] = []
        self.metadata = Metadata(self.calls)
        self.steps = SwitchSteps(
            replication=self.broker.replication,
            metadata=self.metadata,
            services=RoleServices([Service(self.calls)]),
            last_epoch=lambda: self.broker.epochs.history.last_epoch,
            tell_name_servers=lambda: self.calls.append("tell"),
            give_back=self.give_back,
        )
        self.core = Member("nonce", poll_seconds=1.0, heartbeat_seconds=0.5)
        self.shell = MemberShell(self.core, self, ManualClock())
        self.shell_task = asyncio.create_task(self.shell.run())
        self._tasks = [asyncio.create_task(self.steps.run()), self.shell_task]
        self.shell.registered(broker_id, 0)

    async def give_back(self, role: RoleState) -> None:
        self.calls.append("give back")

    async def switch(self, news: GroupNews) -> bool:
        """Hand over what a controller says; whether the change came about."""
        self.shell.received(news)
        await self.shell.settled()
        return not self.ended[-1].problem

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.broker.stop()

    # -- `MemberEffects` ----------------------------------------------------------------------------------

    def circumstances(self) -> Circumstances:
        return Circumstances()

    async def carry_out(self, step: Step, role: RoleState) -> None:
        await self.steps.carry_out(step, role)

    def ask(self, what: Ask) -> None: ...

    def role_taken(self, before: RoleState, after: RoleState) -> None:
        self.roles.append(after)

    def take_in_sync(self, role: RoleState) -> None:
        self.broker.replication.adopt(role.sync_state_set, role.set_epoch, role.epoch)

    def serve(self, service: Serve) -> None:
        kind = service.modes.writes.kind
        if not self.calls or self.calls[-1] != kind:
            self.calls.append(kind)

    def switch_ended(self, ended: SwitchEnded) -> None:
        self.ended.append(ended)


def master_of(epoch: int, set_epoch: int | None = None, members: tuple[int, ...] = (1,)) -> GroupNews:
    return GroupNews(epoch, 1, "1", epoch if set_epoch is None else set_epoch, frozenset(members))


def slave_of(epoch: int) -> GroupNews:
    return GroupNews(epoch, 2, "2", epoch, frozenset((2,)))


async def test_to_master_and_back() -> None:
    """The steps are done in order; who waits is answered when the mastership ends; times are kept."""

    bench = Bench(1)
    bench.calls.clear()

    assert await bench.switch(master_of(3))
    assert bench.calls == ["hold", "apply", "snapshot", "start", "hold", "tell"], "without a lease"
    assert bench.broker.epochs.history.last_epoch == 3
    assert bench.broker.send("a")[1].result() is PutStatus.PUT_OK
    assert "BeginEpoch" in bench.shell.last_switch_ms

    bench.calls.clear()
    assert await bench.switch(slave_of(4))
    await asyncio.sleep(0)
    assert bench.calls == ["hold", "drain", "stop", "stop metadata", "forward", "tell", "follow metadata"]
    assert bench.broker.replication.status().role is Role.SLAVE
    await bench.stop()


async def test_a_set_alone_interrupts_nothing() -> None:
    """Another in-sync set in the same epoch neither holds writes nor closes connections."""

    bench = Bench(1)
    await bench.switch(master_of(3))
    bench.calls.clear()

    await bench.switch(master_of(3, 8, (1, 2)))

    assert set(bench.calls) <= {"hold"}, "it still has no lease"
    assert bench.broker.replication.status().sync_state_set == {1, 2}
    await bench.stop()


async def test_an_epoch_that_the_log_has_passed_ends_the_change() -> None:
    """The broker stays without a role and says why."""

    bench = Bench(1)
    await bench.switch(slave_of(2))
    bench.broker.epochs.append(7, 0)
    bench.calls.clear()

    assert not await bench.switch(master_of(3))

    assert bench.ended[-1].step is Step.BEGIN_EPOCH
    assert bench.ended[-1].problem == "the log has passed the epoch 3"
    assert bench.roles[-1].role is Role.NONE
    assert [call for call in bench.calls if call != "follow metadata"] == ["hold", "refuse"]
    await bench.stop()


async def test_a_failing_step_ends_the_change_and_may_be_tried_again() -> None:
    """After a failure nothing is served, and the same news brings the broker into service later."""

    bench = Bench(1)
    bench.metadata.failing = ReplicaLogFailed("the disk is full")

    assert not await bench.switch(master_of(3))
    assert bench.ended[-1] == SwitchEnded(
        bench.ended[-1].after, Step.APPLY_METADATA, "ReplicaLogFailed: the disk is full"
    )
    assert bench.roles[-1] == RoleState(epoch=3, set_epoch=3)
    assert bench.roles[-1].reason == "ApplyMetadata: ReplicaLogFailed: the disk is full"

    bench.metadata.failing = None
    assert await bench.switch(master_of(3))
    assert bench.calls[-1] == "tell"
    await bench.stop()


@pytest.mark.parametrize(("failure", "level"), [(StepFailed, "error"), (RoleOver, "info")])
async def test_only_a_failure_that_an_administrator_must_see_is_an_error(
    failure: type[StepFailed], level: str
) -> None:
    """A role that was over before it was taken is none: nobody serves meanwhile, and the next news counts."""

    bench = Bench(1)
    take = bench.carry_out

    async def failing(step: Step, role: RoleState) -> None:
        if step is Step.BEGIN_EPOCH:
            raise failure("no")
        await take(step, role)

    bench.carry_out = failing  # type: ignore[method-assign]  # as a disk, or another leader, does
    with capture_logs() as lines:
        assert not await bench.switch(master_of(3))

    assert [line["log_level"] for line in lines if line["event"].startswith("a change of role failed")] == [
        level
    ]
    assert bench.roles[-1].role is Role.NONE
    bench.carry_out = take  # type: ignore[method-assign]
    assert await bench.switch(master_of(4))
    await bench.stop()


async def test_one_change_after_the_other() -> None:
    """A change that comes while another is carried out waits for its end."""

    bench = Bench(1)
    bench.metadata.slow = 1.0

    bench.shell.received(master_of(3))
    await until(lambda: "apply" in bench.calls)
    assert await bench.switch(slave_of(4))

    assert [role.role for role in bench.roles] == [Role.MASTER, Role.SLAVE]
    assert bench.calls.index("start") < bench.calls.index("stop")
    await bench.stop()


async def test_a_damaged_log_follows_but_does_not_lead() -> None:
    """What cannot be dispatched keeps nobody from following the next master, who sends it again."""

    bench = Bench(1)

    async def failing() -> int:
        raise ReplicaLogFailed("record at 16: wrong CRC")

    bench.broker.log.finish_received = failing  # type: ignore[method-assign]  # the log is damaged

    assert not await bench.switch(master_of(3))
    assert "wrong CRC" in bench.ended[-1].problem
    assert await bench.switch(slave_of(4))
    assert bench.roles[-1].role is Role.SLAVE
    await bench.stop()


async def test_the_times_of_a_change_are_its_own() -> None:
    """What was done because the one before it failed is not counted."""

    bench = Bench(1)
    sound = bench.broker.log.finish_received

    async def failing() -> int:
        raise ReplicaLogFailed("record at 16: wrong CRC")

    bench.broker.log.finish_received = failing  # type: ignore[method-assign]  # the log is damaged
    assert not await bench.switch(master_of(3))
    bench.broker.log.finish_received = sound  # type: ignore[method-assign]  # and is repaired

    assert await bench.switch(master_of(4))

    assert list(bench.shell.last_switch_ms)[:2] == ["StopFollowing", "FinishReceived"]
    await bench.stop()


async def test_an_effect_that_raises_ends_the_broker() -> None:
    """The actions behind it are lost, so no change of role could end any more."""

    bench = Bench(1)

    def broken(before: RoleState, after: RoleState) -> None:
        raise KeyError("a mistake")

    bench.role_taken = broken  # type: ignore[method-assign]  # a mistake of ours

    bench.shell.received(master_of(3))
    with pytest.raises(KeyError):
        await bench.shell_task

    await bench.stop()


async def test_a_mistake_of_ours_in_a_step_ends_the_broker() -> None:
    """Only what can go wrong outside is an answer; the rest must not be passed over."""

    bench = Bench(1)
    bench.metadata.failing = KeyError("a mistake")

    bench.shell.received(master_of(3))
    with pytest.raises(KeyError):
        await bench.shell_task

    await bench.stop()
