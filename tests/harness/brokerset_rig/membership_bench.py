"""A broker's membership against scripted controllers, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from brokerset_broker.member.core import Circumstances, Serve, Step
from brokerset_broker.member.epoch_file import EpochFile
from brokerset_broker.member.membership.diagnosis import ProblemKind
from brokerset_broker.member.membership.identity_folder import IdentityFolder
from brokerset_broker.member.role import LogEnd, RoleState
from brokerset_protocol.bodies.replicas import ElectMasterBody, EpochEntryCache, SyncStateSet
from brokerset_protocol.commands import Command
from brokerset_protocol.headers import controller as headers
from brokerset_runtime.clock import Clock, ManualClock
from brokerset_runtime.disk import RealDisk
from brokerset_runtime.remoting import Connection, ConnectionClosed, RequestTimeout
from brokerset_sim.lone_member import LoneMember
from brokerset_spec.broker_settings import BrokerSettings

T = TypeVar("T")
OWN = "10.0.0.1:10911"
C0, C1, DEAD = "c0:9878", "c1:9878", "dead:9878"
CONNECTION: Connection = None  # type: ignore[assignment]  # handlers of the membership do not look at it


class World:
    """Controllers of one group: c0 leads, c1 follows, the third cannot be reached."""

    def __init__(self) -> None:
        self.java = False
        self.next_id = 1
        self.codes: dict[int, str] = {}
        self.nonce: str | None = None
        self.incarnation = 0
        self.master: int | None = None
        self.epoch = 0
        self.set_epoch = 0
        self.refuse: dict[int, tuple[int, str]] = {}
        self.lose: list[tuple[int, str]] = []
        self.hang: set[int] = set()
        self.follower_answers = 0
        self.lease_ms = 2_000
        self.fenced: bool | None = False
        self.sets: list[tuple[headers.AlterSyncStateSet, SyncStateSet]] = []
        self.members: frozenset[int] | None = None
        """In sync; None: the master alone."""
        self.refuse_sets: list[frozenset[int]] = []
        self.elections: list[headers.ElectMaster] = []
        self.elsewhere: dict[str, Callable[[Command], Command]] = {}
        """Who else answers, by address."""
        self.beats: dict[str, list[headers.BrokerHeartbeat]] = {C0: [], C1: [], DEAD: []}
        self.asked: list[int] = []
        self.registrations: list[headers.RegisterBrokerToController] = []

    async def ask(self, address: str, command: Command, timeout: float) -> Command:
        code = command.code
        if address == DEAD or code in self.hang:
            await asyncio.sleep(timeout)
            raise RequestTimeout(f"no answer from {address}")
        if address in self.elsewhere:
            return self.elsewhere[address](command)
        if code == 1005:
            leads = {C0: "true", C1: "false"}[address]
            return Command(0, {"isLeader": leads, "controllerLeaderAddress": C0})
        if code == 904:
            return self._beat(address, command)
        assert address == C0
        self.asked.append(code)
        if (code, "request") in self.lose:
            self.lose.remove((code, "request"))
            raise ConnectionClosed("lost")
        if code in self.refuse:
            refusal, remark = self.refuse[code]
            return Command(refusal, {}, remark=remark)
        reply = {
            1012: self._next,
            1013: self._apply,
            1003: self._register,
            1004: self._info,
            1002: self._elect,
            1001: self._alter,
        }[code](command)
        if (code, "reply") in self.lose:
            self.lose.remove((code, "reply"))
            raise ConnectionClosed("lost")
        return reply

    async def tell(self, address: str, command: Command, timeout: float) -> None:
        raise AssertionError("heartbeats wait for their answer")

    def notice(self, master_id: int, epoch: int, set_epoch: int = 1) -> Command:
        self.master, self.epoch, self.set_epoch = master_id, epoch, set_epoch
        header = headers.NotifyBrokerRoleChanged(
            master_address=f"10.0.0.{master_id}:10911", master_epoch=epoch, sync_state_set_epoch=set_epoch,
            master_broker_id=master_id,
        )  # fmt: skip
        return Command(1008, header.to_ext(), self._set())

    def _set(self) -> bytes:
        members = self.members or frozenset({self.master} if self.master is not None else ())
        return SyncStateSet(members, self.set_epoch).to_json()

    def _beat(self, address: str, command: Command) -> Command:
        header = headers.BrokerHeartbeat.from_ext(command.ext)
        self.beats[address].append(header)
        if address == C1:
            return Command(self.follower_answers)
        if self.java:
            return Command(0)
        if header.nonce != self.nonce:
            return Command(2100, remark="overtaken")
        leads = self.master == header.broker_id and self.lease_ms > 0
        answer = headers.BrokerHeartbeatAnswer(
            lease_ms=self.lease_ms if leads else None,
            lease_epoch=self.epoch if leads else None,
            fenced=self.fenced,
        )
        return Command(0, answer.to_ext())

    def _next(self, command: Command) -> Command:
        return Command(0, {"nextBrokerId": str(self.next_id)})

    def _apply(self, command: Command) -> Command:
        header = headers.ApplyBrokerId.from_ext(command.ext)
        wanted, code = header.applied_broker_id or 0, header.register_check_code or ""
        if self.codes.get(wanted) == code:
            return Command(0)
        if wanted != self.next_id:
            return Command(2014, {"nextBrokerId": str(self.next_id)}, remark="taken")
        self.codes[wanted], self.next_id = code, wanted + 1
        return Command(0)

    def _register(self, command: Command) -> Command:
        header = headers.RegisterBrokerToController.from_ext(command.ext)
        self.registrations.append(header)
        known = [header.last_nonce, *(header.tried_nonces or "").split(";")]
        if not self.java and self.nonce != header.next_nonce:
            if self.nonce is not None and self.nonce not in known:
                return Command(2100, remark="this folder is a copy")
            if self.master == header.broker_id:
                self.master, self.epoch = None, self.epoch + 1
            self.nonce, self.incarnation = header.next_nonce, self.incarnation + 1
        reply = headers.RegisterBrokerToControllerResponse(
            master_broker_id=self.master,
            master_address=None if self.master is None else f"10.0.0.{self.master}:10911",
            master_epoch=None if self.master is None else self.epoch,
            sync_state_set_epoch=self.set_epoch,
            incarnation=None if self.java else self.incarnation,
            next_broker_id=None if self.java else self.next_id,
            group_epoch=None if self.java else self.epoch,
        )
        return Command(0, reply.to_ext(), self._set())

    def _info(self, command: Command) -> Command:
        reply = headers.GetReplicaInfoResponse(
            master_broker_id=self.master, master_epoch=self.epoch,
            master_address=None if self.master is None else f"10.0.0.{self.master}:10911",
        )  # fmt: skip
        return Command(0, reply.to_ext(), self._set())

    def _alter(self, command: Command) -> Command:
        header = headers.AlterSyncStateSet.from_ext(command.ext)
        wanted = SyncStateSet.from_json(command.body)
        self.sets.append((header, wanted))
        if wanted.sync_state_set_epoch != self.set_epoch:
            return Command(2002, remark="another set is in force")
        if wanted.sync_state_set in self.refuse_sets:
            return Command(2005, remark="a replica is dead, not alive")
        self.set_epoch += 1
        return Command(0, {}, SyncStateSet(wanted.sync_state_set, self.set_epoch).to_json())

    def _elect(self, command: Command) -> Command:
        header = headers.ElectMaster.from_ext(command.ext)
        self.elections.append(header)
        code = 2011
        if header.handover_epoch is not None:
            self.master, self.epoch, self.set_epoch, code = 2, self.epoch + 1, self.set_epoch + 1, 0
        elif self.master is None:
            self.master, self.epoch, self.set_epoch, code = (
                header.broker_id,
                self.epoch + 1,
                self.set_epoch + 1,
                0,
            )
        reply = headers.ElectMasterResponse(
            master_broker_id=self.master, master_address=f"10.0.0.{self.master}:10911",
            master_epoch=self.epoch, sync_state_set_epoch=self.set_epoch,
        )  # fmt: skip
        return Command(code, reply.to_ext(), ElectMasterBody(None, frozenset({self.master or 0})).to_json())


class LoopClock:
    """The virtual loop's time on both clocks."""

    def now_ms(self) -> int:
        return int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


Switch = Callable[[Step, RoleState, RoleState], Awaitable[None]]
"""Carries out a step of a change, before and after; raises `StepFailed`."""


class Broker(LoneMember):
    """One process with a membership; what a test wants to differ it sets as attributes, or overrides."""

    def __init__(
        self,
        world: World,
        folder: Path,
        seed: int = 1,
        *,
        clock: Clock | None = None,
        switch: Switch | None = None,
        closed_cleanly: bool = True,
        boot_id: str = "boot",
        **changes: Any,
    ) -> None:
        settings: dict[str, Any] = {
            "enable_controller_mode": True, "controller_addr": f"{DEAD};{C0};{C1}",
            "store_path_root_dir": folder, "broker_name": "b", "broker_cluster_name": "c",
        }  # fmt: skip
        disk = RealDisk(folder)
        epochs = EpochFile(disk)
        epochs.load(1000)
        self.changes: list[RoleState] = []
        self.news: list[RoleState] = []
        """In-sync sets for replication."""

        self.leases: list[tuple[bool, float]] = []
        """Whether a master served, from when on."""

        self.steps: list[str] = []
        self.on_circumstances: Callable[[ProblemKind | None], None] = lambda _: None
        self._switch = switch
        self.damage = ""
        self.trouble: tuple[str, str] | None = None
        self.append_age: int | None = None
        self.acks: bool | None = None
        self.java: str | None = None
        super().__init__(
            settings=BrokerSettings(**(settings | changes)),
            folder=IdentityFolder(disk),
            epochs=epochs,
            asker=world,
            clock=clock or ManualClock(),
            random_source=random.Random(seed),
            closed_cleanly=closed_cleanly,
            boot_id=boot_id,
            run_blocking=at_once,
            log_end=lambda: LogEnd(epochs.history.last_epoch, 700, 600),
            own_address=lambda: OWN,
            on_role=self.changes.append,
            step_done=self.steps.append,
        )
        self.member = self.membership

    def circumstances(self) -> Circumstances:
        problem = self.membership.problem
        self.on_circumstances(None if problem is None else problem.kind)
        return super().circumstances()

    async def carry_out(self, step: Step, role: RoleState) -> None:
        if self._switch is None or step is Step.GIVE_BACK:
            await super().carry_out(step, role)
        else:
            await self._switch(step, self.core.role, role)

    def take_in_sync(self, role: RoleState) -> None:
        self.news.append(role)

    def serve(self, service: Serve) -> None:
        serves = self.shell.may_serve()
        if serves is not (bool(self.leases) and self.leases[-1][0]):
            self.leases.append((serves, asyncio.get_running_loop().time()))

    def ha_address(self) -> str:
        return "10.0.0.1:10912"

    def append_age_ms(self) -> int | None:
        return self.append_age

    def all_ack(self) -> bool:
        return super().all_ack() if self.acks is None else self.acks

    def replication_problem(self) -> tuple[str, str] | None:
        return self.trouble

    def log_damage(self) -> str:
        return self.damage

    def java_ha_address(self, address: str) -> str | None:
        return self.java

    def notice(self, command: Command) -> None:
        self.member.handlers()[1008](CONNECTION, command)

    def epoch_cache(self) -> tuple[headers.BrokerIdentityAnswer, EpochEntryCache]:
        reply = self.member.handlers()[1007](CONNECTION, Command(1007))
        assert isinstance(reply, Command)
        return headers.BrokerIdentityAnswer.from_ext(reply.ext), EpochEntryCache.from_json(reply.body)

    async def until(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  # virtual time costs nothing
                await asyncio.sleep(0.01)


async def at_once(work: Callable[[], T]) -> T:
    return work()


@asynccontextmanager
async def running(broker: Broker) -> AsyncIterator[Broker]:
    task = asyncio.create_task(broker.member.run())
    try:
        yield broker
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    if not task.cancelled() and task.exception() is not None:
        raise AssertionError from task.exception()
