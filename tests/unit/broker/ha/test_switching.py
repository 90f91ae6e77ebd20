"""Changes of role, carried out on replication in memory."""

from __future__ import annotations

import asyncio

from brokerset_broker.ha.replica_log import ReplicaLogFailed
from brokerset_broker.ha.switching import Switching
from brokerset_broker.membership.role import Role, RoleChange
from brokerset_broker.store.errors import PutStatus
from brokerset_rig.fake_ha import FakeBroker, FakeControllers, FakeNetwork, until
from brokerset_runtime.clock import ManualClock
from brokerset_sim.loop import run

NONE = RoleChange()


class Targets:
    """Implements `SwitchTargets`: writes down what was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing: Exception | None = None
        self.slow = 0.0

    def hold_writes(self) -> None:
        self.calls.append("hold")

    async def stop_services(self) -> None:
        self.calls.append("stop")

    async def apply_metadata(self) -> None:
        self.calls.append("apply")
        await asyncio.sleep(self.slow)
        if self.failing is not None:
            raise self.failing

    async def write_snapshot(self) -> None:
        self.calls.append("snapshot")

    def start_services(self) -> None:
        self.calls.append("start")

    def serve(self, change: RoleChange) -> None:
        self.calls.append(f"serve {change.role}")

    def tell_name_servers(self) -> None:
        self.calls.append("tell")


class Bench:
    def __init__(self, broker_id: int, network: FakeNetwork, controllers: FakeControllers) -> None:
        self.broker = FakeBroker(broker_id, network, controllers)
        self.broker.start()
        self.targets = Targets()
        self.switching = Switching(self.broker.replication, self.targets, ManualClock())
        self.roles: list[RoleChange] = []

    async def switch(self, after: RoleChange) -> bool:
        return await self.switching.switch(self.roles[-1] if self.roles else NONE, after, self.roles.append)


def master_of(epoch: int) -> RoleChange:
    return RoleChange(Role.MASTER, epoch, epoch, 1, "1", frozenset((1,)))


def slave_of(epoch: int) -> RoleChange:
    return RoleChange(Role.SLAVE, epoch, epoch, 2, "2", frozenset((2,)))


def test_to_master_and_back() -> None:
    """The steps are done in order; who waits is answered when the mastership ends; times are kept."""

    async def main() -> None:
        bench = Bench(1, FakeNetwork(), FakeControllers())

        assert await bench.switch(master_of(3))
        assert bench.targets.calls == ["hold", "apply", "snapshot", "start", "serve master", "tell"]
        assert bench.broker.epochs.history.last_epoch == 3
        assert bench.broker.send("a")[1].result() is PutStatus.PUT_OK
        assert next(iter(bench.switching.last_switch_ms)) == "HoldWrites"

        bench.targets.calls.clear()
        assert await bench.switch(slave_of(4))
        assert bench.targets.calls == ["hold", "stop", "serve slave", "tell"]
        assert bench.broker.replication.status().role is Role.SLAVE
        await bench.broker.stop()

    run(main())


def test_a_set_alone_interrupts_nothing() -> None:
    """Another in-sync set in the same epoch neither holds writes nor closes connections."""

    async def main() -> None:
        bench = Bench(1, FakeNetwork(), FakeControllers())
        await bench.switch(master_of(3))
        bench.targets.calls.clear()
        grown = RoleChange(Role.MASTER, 3, 8, 1, "1", frozenset((1, 2)))

        assert await bench.switch(grown)

        assert bench.targets.calls == []
        assert bench.broker.replication.status().sync_state_set == {1, 2}
        await bench.broker.stop()

    run(main())


def test_a_passed_epoch_ends_the_change() -> None:
    """When the log has passed the epoch the broker stays without a role and says why."""

    async def main() -> None:
        bench = Bench(1, FakeNetwork(), FakeControllers())
        await bench.switch(master_of(3))
        await bench.switch(slave_of(4))
        bench.targets.calls.clear()

        assert not await bench.switch(master_of(2))

        assert bench.switching.problem == "BeginEpoch: the log has passed the epoch 2"
        assert bench.roles[-1].role is Role.NONE
        assert bench.targets.calls == ["hold", "serve none"]
        assert bench.broker.epochs.history.last_epoch == 3
        await bench.broker.stop()

    run(main())


def test_a_failing_step_ends_the_change_and_may_be_tried_again() -> None:
    """After a failure nothing is served, and the same news brings the broker into service later."""

    async def main() -> None:
        bench = Bench(1, FakeNetwork(), FakeControllers())
        bench.targets.failing = ReplicaLogFailed("the disk is full")

        assert not await bench.switch(master_of(3))
        assert "ApplyMetadata: ReplicaLogFailed: the disk is full" in bench.switching.problem
        assert bench.roles[-1] == RoleChange(epoch=3, set_epoch=3)

        bench.targets.failing = None
        assert await bench.switch(master_of(3))
        assert bench.switching.problem == ""
        assert bench.targets.calls[-1] == "tell"
        await bench.broker.stop()

    run(main())


def test_one_change_after_the_other() -> None:
    """A change that comes while another is carried out waits for its end."""

    async def main() -> None:
        bench = Bench(1, FakeNetwork(), FakeControllers())
        bench.targets.slow = 1.0

        first = asyncio.create_task(bench.switching.switch(NONE, master_of(3), bench.roles.append))
        await until(lambda: "apply" in bench.targets.calls)
        assert await bench.switching.switch(master_of(3), slave_of(4), bench.roles.append)
        await first

        assert [change.role for change in bench.roles] == [Role.MASTER, Role.SLAVE]
        assert bench.targets.calls.index("start") < bench.targets.calls.index("stop")
        await bench.broker.stop()

    run(main())


def test_the_reason_of_a_failure_goes_with_the_role() -> None:
    """Whoever takes the absence of a role learns why."""

    async def main() -> None:
        bench = Bench(1, FakeNetwork(), FakeControllers())
        bench.targets.failing = ReplicaLogFailed("the disk is full")

        assert not await bench.switch(master_of(3))

        assert bench.roles[-1].reason == bench.switching.problem != ""
        await bench.broker.stop()

    run(main())


def test_a_damaged_log_follows_but_does_not_lead() -> None:
    """What cannot be dispatched keeps nobody from following the next master, who sends it again."""

    async def main() -> None:
        bench = Bench(1, FakeNetwork(), FakeControllers())

        async def failing() -> int:
            raise ReplicaLogFailed("record at 16: wrong CRC")

        bench.broker.log.finish_received = failing  # type: ignore[method-assign]  # the log is damaged

        assert not await bench.switch(master_of(3))
        assert "wrong CRC" in bench.switching.problem
        assert await bench.switch(slave_of(4))
        assert bench.roles[-1].role is Role.SLAVE
        await bench.broker.stop()

    run(main())
