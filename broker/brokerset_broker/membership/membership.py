"""The task that makes a broker a member of its group: it registers, beats, asks who is master, and obeys.

One coroutine works on registration and role; notices and heartbeats run beside it, so that neither a slow
controller nor an unreachable one delays the others. A role is taken under a lock, one after the other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import structlog

from brokerset_broker.ha.lease import Lease
from brokerset_broker.ha.replication import MasterTarget, ProposalEnd, ProposalResult
from brokerset_broker.membership import diagnosis, role
from brokerset_broker.membership.controllers import Controllers, NoAnswer
from brokerset_broker.membership.diagnosis import Diagnosis, Names, Problem, ProblemKind
from brokerset_broker.membership.epoch_file import EpochFile
from brokerset_broker.membership.heartbeats import Heartbeats
from brokerset_broker.membership.hooks import Hooks, Switch, TakeRole
from brokerset_broker.membership.identity_folder import IdentityFolder
from brokerset_broker.membership.lease_keeping import LeaseKeeper
from brokerset_broker.membership.master_finder import find_master
from brokerset_broker.membership.registration import (
    FilesUnusable,
    FinishStart,
    Register,
    Registration,
    Serve,
    Step,
    StepDone,
)
from brokerset_broker.membership.registration_steps import RegistrationSteps, RunBlocking, ask_leader
from brokerset_broker.membership.role import GivenBack, LogEnd, Role, RoleChange, Told
from brokerset_broker.membership.told import told_of, told_of_election
from brokerset_broker.membership.unable import RETRY_SECONDS, UNABLE_AGE_MS, SetsKnown, Unable
from brokerset_broker.registration import addresses
from brokerset_formats.epochs import END_UNBOUNDED
from brokerset_protocol.bodies.replicas import EpochEntry, EpochEntryCache, SyncStateSet
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers import controller as headers
from brokerset_runtime.asking import Asker
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import Connection, Handler
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)

T = TypeVar("T")

PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 1.0
"""Waits before a request is repeated double from the first to the second."""

REFUSED_PAUSE_SECONDS_MIN: Final = 0.1
REFUSED_PAUSE_SECONDS_MAX: Final = 5.0
"""The same after a refusal. Most only people can change, but the process before this one, killed a moment
ago, is still taken for alive at first. Java's broker waits 5 s after any failure."""

NOBODY: Final = -1
"""The broker id of an election that names no broker."""

NO_ROLE_ID: Final = -1
"""The role id that 1007 names before there is a role."""

_OVERTAKEN: Final = (
    ProblemKind.CONFLICT,
    ProblemKind.RETIRED,
    ProblemKind.OWNED,
)
"""Refusals after which a broker in service must stop serving: somebody else has its identity or its group."""


def identity_path(settings: BrokerSettings) -> Path:
    """Where the identity is; its other files lie beside it."""
    return settings.store_path_broker_identity or settings.store_path_root_dir / "brokerIdentity"


def epoch_path(settings: BrokerSettings) -> Path:
    """Where the master epochs are."""
    return settings.store_path_epoch_file or settings.store_path_root_dir / "epochFileCheckpoint"


class Membership:
    """The broker's part in its group. `run` is the task; everything else answers at once."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        folder: IdentityFolder,
        epochs: EpochFile,
        asker: Asker,
        clock: Clock,
        random_source: random.Random,
        log_end: Callable[[], LogEnd],
        own_address: Callable[[], str],
        closed_cleanly: bool,
        boot_id: str,
        on_role: Callable[[RoleChange], None],
        run_blocking: RunBlocking,
        step_done: Callable[[str], None] | None = None,
        switch: Switch | None = None,
        ha_address: Callable[[], str] = str,
        hooks: Hooks | None = None,
    ) -> None:
        """`on_role` gets every change of the role or of what belongs to it, on the loop. `step_done` is told
        the name of every step of the registration that is done, for tests that crash there.

        `switch` carries out changes of role; without it the epoch is begun and the role taken, no more.
        `ha_address` is where slaves connect, empty if nowhere.
        """
        self._settings = settings
        self._epochs = epochs
        self._clock = clock
        self._log_end = log_end
        self._own_address = own_address
        self._on_role = on_role
        self._asker = asker
        self._ha_address = ha_address
        self.hooks = hooks if hooks is not None else Hooks()
        """Who wants to know what; may be set until `run` begins."""

        self.switch: Switch = switch if switch is not None else self._begin_and_take
        """Carries out changes of role; may be set until `run` begins."""
        self._run_blocking = run_blocking
        self._step_done = step_done
        self._names = Names(settings.broker_cluster_name, settings.broker_name, str(identity_path(settings)))
        self.controllers = Controllers(
            addresses(settings.controller_addr), asker, use_dns=settings.fetch_controller_addr_by_dns_lookup
        )
        self._registration = Registration(
            names=self._names,
            nonce=f"{random_source.getrandbits(128):032x}",
            boot_id=boot_id,
            closed_cleanly=closed_cleanly,
            new_check_code=lambda: f"{own_address()};{clock.now_ms()}",
            known_epoch=epochs.highest_read,
        )
        self._steps = RegistrationSteps(
            settings=settings,
            names=self._names,
            folder=folder,
            controllers=self.controllers,
            clock=clock,
            log_end=log_end,
            own_address=own_address,
            append_age_ms=self._append_age_ms,
            damaged_path=lambda name: str(identity_path(settings).with_name(name)),
            run_blocking=run_blocking,
        )
        self._now = RoleChange()
        self._taking = asyncio.Lock()
        self._notice: Told | None = None
        self._noticed = asyncio.Event()
        self._wake = asyncio.Event()
        self._problem: Problem | None = None
        self._switch_problem: Problem | None = None
        self._fenced = False
        self._logged: tuple[object, ...] = ()
        self._overtaken = False
        self._suspected = False
        self._told: Told | None = None
        self._asked = False
        self._unable = Unable(settings.sync_broker_metadata_period / 1000)
        self._sets = SetsKnown()
        self._given_back: dict[int, tuple[GivenBack, ...]] = {}
        """What was proposed without leading, by master epoch; of the newest one only."""
        self._led_epoch = -1
        """The last epoch in which this broker took the role of the master: since then replicas may have
        followed it, and messages may be confirmed, so no set of before is given back in it."""
        self.lease = Lease()
        """Until when this broker may serve as master; `may_serve` is what decides."""

        self._leases = LeaseKeeper(
            self.lease,
            clock,
            master_epoch=lambda: self._now.epoch if self._now.role is Role.MASTER else None,
            interval_seconds=settings.broker_heartbeat_interval / 1000,
        )
        self._leases.on_change = self._lease_changed
        self._heartbeats = Heartbeats(
            self.controllers,
            asker,
            clock,
            pause_seconds=self._leases.pause_seconds,
            timeout_seconds=settings.send_heartbeat_timeout_millis / 1000,
            header=self._heartbeat,
            on_conflict=self._suspect,
            on_answer=self._heartbeat_answered,
        )

    # -- what others may know -----------------------------------------------------------------------------

    @property
    def now(self) -> RoleChange:
        """The role, and what belongs to it."""
        return self._now

    @property
    def role(self) -> Role:
        """The role."""
        return self._now.role

    @property
    def broker_id(self) -> int | None:
        """The persistent id; None until it is granted."""
        return self._registration.broker_id

    @property
    def incarnation(self) -> int | None:
        """How many starts of this broker were committed; None before, and with Java's controllers."""
        return self._registration.incarnation

    @property
    def nonce(self) -> str:
        """The nonce of this start."""
        return self._registration.nonce

    @property
    def registered(self) -> bool:
        """Whether the controllers know this start."""
        return isinstance(self._registration.step, Serve)

    @property
    def loss_is_known(self) -> bool:
        """Whether the log may be marked as closed in order. Not when the process before crashed and the start
        file does not have it yet: the next start would take the log for whole."""
        return self._registration.loss_is_known

    @property
    def problem(self) -> Problem | None:
        """What keeps the broker out of service, or would after its next start; None when nothing does."""
        first = self._registration.problem or self._switch_problem
        if first is None and (self._problem is None or self._problem.kind is ProblemKind.NO_MASTER):
            first = self._damage_without_master()
        return first or self._problem or self._service_problem()

    @property
    def fenced(self) -> bool:
        """Whether an administrator took this broker out of service, as the controllers said last."""
        return self._fenced

    def may_serve(self) -> bool:
        """Whether this broker is master, and has a lease if its controllers give any. Ask each time."""
        return self._leases.may_serve()

    @property
    def heartbeat_ages(self) -> dict[str, float]:
        """Seconds since each controller last answered a heartbeat, by address."""
        return self._heartbeats.ages

    def diagnosis(self) -> Diagnosis:
        """Why the broker is not in service, and what to do."""
        return diagnosis.diagnose(self._now.role, self.registered, self.problem)

    def handlers(self) -> dict[int, Handler]:
        """Requests that are answered whatever the role is."""
        return {
            RequestCode.GET_BROKER_EPOCH_CACHE: self.epoch_cache,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self.role_changed,
        }

    def epoch_cache(self, connection: Connection, command: Command) -> Command:
        """GET_BROKER_EPOCH_CACHE (1007): the epochs, and who really answers here."""
        entries = self._epochs.entries()
        ends = [entry.start_offset for entry in entries[1:]] + [END_UNBOUNDED]
        end = self._log_end()
        role_id = {Role.MASTER: 0, Role.SLAVE: self.broker_id, Role.NONE: self.broker_id}[self._now.role]
        body = EpochEntryCache(
            self._names.cluster_name,
            self._names.broker_name,
            NO_ROLE_ID if role_id is None else role_id,
            tuple(
                EpochEntry(e.epoch, e.start_offset, until) for e, until in zip(entries, ends, strict=False)
            ),
            end.offset,
        )
        record = self._registration.record
        found, problem = self.diagnosis(), self.problem
        header = headers.BrokerIdentityAnswer(
            replica_id=self.broker_id,
            nonce=self.nonce,
            incarnation=self.incarnation,
            check_code=record.check_code or None,
            owner_uid=self._settings.owner_uid or None,
            expected_replicas=self._settings.expected_replicas or None,
            next_broker_id=record.next_broker_id or None,
            group_epoch=max(record.group_epoch, self._now.epoch),
            log_epoch=end.epoch,
            log_offset=end.offset,
            registration=found.problem or f"registered, {self._now.role}",
            problem=problem.kind.value if problem is not None and found.problem is not None else None,
            ha_address=self._ha_address() or None,
            master_epoch=self._now.epoch if self._now.role is Role.MASTER else None,
            fenced=True if self._fenced else None,
            append_age_ms=self._append_age_ms(),
            lost_cache=self._registration.tells_loss or None,
        )
        return command.reply(ext=header.to_ext(), body=body.to_json())

    def role_changed(self, connection: Connection, command: Command) -> Command:
        """NOTIFY_BROKER_ROLE_CHANGED (1008): of several notices the one with the highest epochs counts."""
        header = headers.NotifyBrokerRoleChanged.from_ext(command.ext)
        told = told_of(header.master_epoch, header, command.body)
        known = self._now.epoch, self._now.set_epoch
        if self._notice is not None:
            known = max(known, (self._notice.epoch or 0, self._notice.set_epoch))
        if told.master_id is not None and (told.epoch or 0, told.set_epoch) > known:
            self._obey_soon(told)
        return command.reply()

    def _obey_soon(self, told: Told) -> None:
        self._notice = told
        self._noticed.set()

    # -- what replication asks (`brokerset_broker.ha.replication.GroupLink`) ------------------------------

    async def find_master(self, change: RoleChange) -> MasterTarget:
        """Ask the master who it is, and where slaves connect. Raises `LinkClosed` with the reason."""
        return await find_master(self._asker, self._names, change, self.hooks.java_ha_address)

    async def propose(
        self, sync_state_set: frozenset[int], set_epoch: int, master_epoch: int, nonces: Mapping[int, str]
    ) -> ProposalResult:
        """Ask for another in-sync set (1001); after a refusal the controllers are asked what is in force."""
        header = headers.AlterSyncStateSet(
            broker_name=self._names.broker_name,
            master_broker_id=self.broker_id,
            master_epoch=master_epoch,
            invoke_time=self._clock.now_ms(),
            member_nonces=";".join(f"{key}:{nonce}" for key, nonce in sorted(nonces.items())),
        )
        body = SyncStateSet(sync_state_set, set_epoch).to_json()
        try:
            reply = await ask_leader(
                self.controllers, RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, body
            )
            if reply.code == ResponseCode.SUCCESS:
                made = SyncStateSet.from_json(reply.body)
                self._set_made(made, master_epoch)
                return ProposalResult(ProposalEnd.ACCEPTED, made.sync_state_set, made.sync_state_set_epoch)
        except NoAnswer as error:
            self.ask_soon()
            return ProposalResult(ProposalEnd.UNKNOWN, remark=str(error))
        except Rejected as rejected:  # an answer that cannot be read
            self.ask_soon()
            return ProposalResult(ProposalEnd.UNKNOWN, remark=rejected.remark)
        self.ask_soon()
        # Another set epoch says nothing about the members: somebody was started, or left, meanwhile.
        outdated = reply.code == ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
        end = ProposalEnd.UNKNOWN if outdated else ProposalEnd.REFUSED
        return ProposalResult(end, remark=f"code {reply.code}: {reply.remark}")

    def _set_made(self, made: SyncStateSet, epoch: int) -> None:
        """The set that this master proposed is in force; replication knows it from the answer."""
        now = self._now
        if now.role is Role.MASTER and now.epoch == epoch and now.set_epoch < made.sync_state_set_epoch:
            self._now = replace(now, sync_state_set=made.sync_state_set, set_epoch=made.sync_state_set_epoch)

    def ask_soon(self) -> None:
        """Ask the controllers soon what is in force (1004); `hooks.on_news` hears it, changed or not."""
        self._asked = True
        self._wake.set()

    async def hand_over(self, to_broker_id: int | None, epoch: int, *, relief: int | None = None) -> Told:
        """As the master of `epoch`, which has stopped serving, ask for a successor (1002).

        None: whoever is the furthest. `relief`: as no replica is heard; whoever leads needs so many. This
        broker may serve again only with a lease that it asked for later, so also when the outcome stays
        unknown. Raises `NoAnswer` (nobody knows), or `Rejected`: this broker is still master.
        """
        self._leases.give_up()
        header = headers.ElectMaster(
            cluster_name=self._names.cluster_name,
            broker_name=self._names.broker_name,
            broker_id=NOBODY if to_broker_id is None else to_broker_id,
            designate_elect=True,
            invoke_time=self._clock.now_ms(),
            handover_epoch=epoch,
            nonce=self.nonce,
            relief=relief,
        )
        try:
            reply = await ask_leader(self.controllers, RequestCode.CONTROLLER_ELECT_MASTER, header)
            if reply.code != ResponseCode.SUCCESS:
                raise Rejected(reply.code, reply.remark or "the controllers refuse the hand-over")
            told = told_of_election(reply)
        except (NoAnswer, Rejected):
            self._leases.give_up()
            self.ask_soon()
            self._heartbeats.hurry()
            raise
        log.info("handed over", epoch=epoch, master_id=told.master_id, new_epoch=told.epoch)
        self._obey_soon(told)
        return told

    # -- tasks --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Be a member for as long as this task runs; raises what an unexpected failure raised."""
        await self._accept_damage()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.controllers.run(self._settings.sync_controller_metadata_period / 1000))
            group.create_task(self._work())
            group.create_task(self._obey())
            group.create_task(self._heartbeats.run())
            group.create_task(self._leases.run())

    async def _accept_damage(self) -> None:
        """Somebody wants to go on without what the log lacks."""
        if not self._settings.accept_damaged_store or not self._epochs.incomplete:
            return
        log.warning("the log counts as complete from now on, as acceptDamagedStore says")
        try:
            await self._run_blocking(lambda: self._epochs.set_incomplete(""))
        except OSError as error:
            self._problem = diagnosis.disk(self._epochs.name, str(error))

    async def _work(self) -> None:
        pause, refused_pause = PAUSE_SECONDS_MIN, REFUSED_PAUSE_SECONDS_MIN
        while True:
            if self.registered:
                await self._settle_loss()
                await self._poll()
                pause, refused_pause = PAUSE_SECONDS_MIN, REFUSED_PAUSE_SECONDS_MIN
                await self._rest(self._settings.sync_broker_metadata_period / 1000)
                continue
            before = self._registration.step
            await self._do_step(before)
            self._report()
            if self._registration.problem is None:
                pause = PAUSE_SECONDS_MIN
            elif self._registration.waits:
                await asyncio.sleep(refused_pause)
                refused_pause = min(2 * refused_pause, REFUSED_PAUSE_SECONDS_MAX)
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _report(self) -> None:
        """Log a new reason for being out of service once, and that it is gone."""
        problem = self.problem
        shown: tuple[object, ...] = (problem.kind, problem.text) if problem is not None else ()
        if shown == self._logged:
            return
        self._logged = shown
        self.hooks.on_problem()
        if problem is None:
            log.info("nothing is wrong with the membership any more", registered=self.registered)
            return
        log.warning(
            "membership has a problem",
            problem=problem.text,
            advice=problem.advice,
            detail=problem.detail,
            role=self._now.role,
        )

    # -- registration -------------------------------------------------------------------------------------

    async def _do_step(self, step: Step) -> None:
        result, told = await self._steps.carry_out(step)
        self._registration.feed(result)
        if self._registration.problem is None:
            if self._step_done is not None:
                self._step_done(type(step).__name__)
        elif self._registration.problem.kind in _OVERTAKEN:
            await self._stand_down()
        if isinstance(step, Register) and told is not None:
            self._told = told
        if isinstance(step, FinishStart) and self.registered:
            await self._registered()

    async def _registered(self) -> None:
        registration = self._registration
        again = self._heartbeats.begun.is_set()
        self._overtaken = False
        self.lease.required = registration.group_epoch is not None
        self._now = role.registered(self._now, registration.group_epoch)
        self._heartbeats.begun.set()
        (log.debug if again else log.info)(
            "registered with the controllers",
            broker_id=registration.broker_id,
            incarnation=registration.incarnation,
            group_epoch=registration.group_epoch,
        )
        told, self._told = self._told, None
        if told is not None and await self._take(told):
            await self._elect()
        self._report()

    async def _settle_loss(self) -> None:
        """Once a master is known, what this log lost is recorded, or another one had it: it is told no more.

        Before that the controllers' record of it may be lost with all their data, so it is kept here, too.
        """
        registration = self._registration
        if not registration.lost_cache or self._now.master_id is None:
            return
        result, _ = await self._steps.carry_out(FinishStart(registration.settled))
        if isinstance(result, StepDone):
            registration.loss_settled()
            log.info("the lost page cache is accounted for", broker_id=self.broker_id)
        elif isinstance(result, FilesUnusable):
            log.warning("the start file cannot be written", problem=result.problem.text)

    async def _stand_down(self) -> None:
        """Another process has this broker's identity: serve nothing."""
        self._overtaken = True
        async with self._taking:
            if self._now.role is not Role.NONE:
                log.error("overtaken: this broker serves nothing any more", reason=self.problem)
                await self._switch_to(role.stood_down(self._now))

    # -- role ---------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        """Ask who is master (1004); without one, ask for an election."""
        if self._suspected:
            self._suspected = False
            self._registration.register_again()
            return
        header = headers.GetReplicaInfo(broker_name=self._names.broker_name)
        asked, self._asked = self._asked, False
        try:
            reply = await ask_leader(self.controllers, RequestCode.CONTROLLER_GET_REPLICA_INFO, header)
            if reply.code == ResponseCode.SUCCESS:
                answer = headers.GetReplicaInfoResponse.from_ext(reply.ext)
                told = told_of(answer.master_epoch, answer, reply.body)
                if await self._take(told):
                    await self._elect()
                else:
                    self._problem = None
                    if asked and self._now.role is Role.SLAVE and self._now.epoch == told.epoch:
                        self.hooks.on_news(self._now)
            else:
                self._registration.register_again()
        except NoAnswer as error:
            self._problem = diagnosis.silent(self.controllers.addresses, str(error))
        except Rejected as rejected:
            self._problem = diagnosis.silent(self.controllers.addresses, rejected.remark)
        self._report()

    async def _elect(self) -> None:
        """Ask for an election (1002), after a heartbeat: who is not known to be alive is not elected."""
        leader = self.controllers.leader
        try:
            await self._heartbeats.beat(leader or await self.controllers.look_up())
            header = headers.ElectMaster(
                cluster_name=self._names.cluster_name,
                broker_name=self._names.broker_name,
                broker_id=self.broker_id or 0,
                invoke_time=self._clock.now_ms(),
            )
            reply = await ask_leader(self.controllers, RequestCode.CONTROLLER_ELECT_MASTER, header)
            if reply.code not in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST):
                self._problem = diagnosis.no_master(self._names, reply.remark)
                if reply.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
                    self._registration.register_again()
                return
            told = told_of_election(reply)
            self._problem = None
            await self._take(told)
        except NoAnswer as error:
            self._problem = diagnosis.silent(self.controllers.addresses, str(error))
        except Rejected as rejected:
            self._problem = diagnosis.silent(self.controllers.addresses, rejected.remark)

    async def _obey(self) -> None:
        """Take the roles that notices tell of; before the registration they are about an earlier process."""
        while True:
            await self._noticed.wait()
            self._noticed.clear()
            told, self._notice = self._notice, None
            if told is not None and self.registered and not self._overtaken:
                await self._take(told)
                self._report()

    async def _take(self, told: Told) -> bool:
        """Act on what a controller said; returns whether an election should be asked for."""
        if self.broker_id is None:
            return False
        async with self._taking:
            if self._overtaken:
                return False
            self._sets.note(told)
            verdict = role.decide_role(self._now, told, self.broker_id, self.nonce)
            if verdict.suspect:
                self._suspect()
                return False
            change = verdict.change
            if change is not None and role.is_switch(self._now, change):
                await self._switch_to(change)
            elif change is not None:
                self._change(change)
                self.hooks.on_news(change)
            return verdict.elect

    async def _switch_to(self, change: RoleChange) -> None:
        """Have a change of role carried out; without success the broker has none until the next try."""
        before = self._now
        if change.role is Role.MASTER:
            self._heartbeats.hurry()  # the lease may come while the switch is under way
            change = replace(change, given_back=self._given_back.get(change.epoch, ()))
        reason = ""
        try:
            done = await self.switch(before, change, self._change)
        except OSError as error:
            done = False
            self._switch_problem = diagnosis.disk(self._epochs.name, str(error))
        else:
            reason = "" if done or self._now.role is not Role.NONE else self._now.reason
            self._switch_problem = None if done else self._why_not(change, reason)
        if done:
            self._unable.took(change.role)
            return
        gone = RoleChange(epoch=change.epoch, set_epoch=change.set_epoch)
        if self._now.role is Role.NONE:
            self._now = gone
        else:
            self._change(gone)
        if change.role is Role.MASTER:
            await self._cannot_lead(change)

    async def _cannot_lead(self, change: RoleChange) -> None:
        """Try again soon; then give back what the election took from the others, and tell the controllers."""
        loop = asyncio.get_running_loop()
        if self._unable.failed(change.epoch, self._clock.monotonic()):
            loop.call_later(RETRY_SECONDS, self.ask_soon)
        if self._unable.gives_up:
            await self._give_back(change)
            self._wake.clear()  # a refusal has controllers asked at once: all of this would be repeated
            self._heartbeats.hurry()

    async def _give_back(self, change: RoleChange) -> None:
        """Propose the set of before the election, as nothing was acknowledged since."""
        if not self.lease.required or self.broker_id is None:
            return  # RocketMQ's controllers do not take the mastership from who lives
        if change.epoch == self._led_epoch:
            return
        for wanted in self._sets.before(change, self.broker_id):
            proposed = GivenBack(wanted, change.set_epoch)
            before = self._given_back.get(change.epoch, ())
            self._given_back = {change.epoch: tuple(dict.fromkeys((*before, proposed)))}
            result = await self.propose(wanted, change.set_epoch, change.epoch, {})
            log.warning(
                "this broker cannot lead, and proposes the in-sync set of before its election",
                proposed=sorted(wanted),
                end=result.end.value,
                remark=result.remark,
                epoch=change.epoch,
            )
            if result.end is not ProposalEnd.REFUSED:
                return

    def _why_not(self, change: RoleChange, reason: str) -> Problem:
        log_epoch = self._epochs.history.last_epoch
        if change.role is Role.MASTER and change.epoch < log_epoch:
            return diagnosis.epoch_behind_log(self._names, change.epoch, log_epoch)
        return diagnosis.switch_failed(self._names, change.role, change.epoch, reason)

    async def _begin_and_take(self, before: RoleChange, after: RoleChange, take_role: TakeRole) -> bool:
        """The switch of a broker that replicates nothing: as master it writes down where its epoch begins."""
        if after.role is Role.MASTER and after.epoch != self._epochs.history.last_epoch:
            offset = self._log_end().offset
            if not await self._run_blocking(lambda: self._epochs.append(after.epoch, offset)):
                return False
        take_role(after)
        return True

    def _change(self, change: RoleChange) -> None:
        before, self._now = self._now, change
        if change.role is Role.MASTER:
            self._led_epoch = change.epoch
        if (before.role, before.epoch, before.master_id) != (change.role, change.epoch, change.master_id):
            log.info(
                "role changed",
                role=change.role,
                before=before.role,
                epoch=change.epoch,
                master_id=change.master_id,
                master_address=change.master_address,
                broker_id=self.broker_id,
            )
        self._on_role(change)
        self._leases.look()
        if change.role is Role.MASTER and (before.role, before.epoch) != (change.role, change.epoch):
            self._heartbeats.hurry()
        if self._registration.lost_cache and change.master_id is not None:
            self._wake.set()

    # -- heartbeats ---------------------------------------------------------------------------------------

    def _heartbeat(self) -> headers.BrokerHeartbeat | None:
        if self.broker_id is None or self._overtaken:
            return None
        end, settings, all_ack = self._log_end(), self._settings, self.hooks.all_ack()
        return headers.BrokerHeartbeat(
            cluster_name=self._names.cluster_name,
            broker_addr=self._own_address(),
            broker_name=self._names.broker_name,
            broker_id=self.broker_id,
            epoch=end.epoch,
            max_offset=end.offset,
            confirm_offset=end.confirmed,
            heartbeat_timeout_mills=settings.controller_heart_beat_timeout_mills,
            election_priority=settings.broker_election_priority,
            nonce=self.nonce,
            append_age_ms=self._append_age_ms(),
            all_ack=settings.all_ack_in_sync_state_set if all_ack is None else all_ack,
            lost_cache=self._registration.tells_loss or None,
        )

    def _append_age_ms(self) -> int | None:
        """For how long the log has taken nothing; without end when this broker could not lead."""
        unable = self._unable.told(self._clock.monotonic()) or bool(self._epochs.incomplete)
        return UNABLE_AGE_MS if unable else self.hooks.append_age_ms()

    def _heartbeat_answered(self, answer: headers.BrokerHeartbeatAnswer, sent_at: float) -> None:
        """What a controller of ours that leads says about a heartbeat."""
        if answer.lease_ms is not None and answer.lease_epoch is not None:
            self._leases.granted(sent_at, answer.lease_ms, answer.lease_epoch)
        if answer.fenced is not None and answer.fenced is not self._fenced:
            self._fenced = answer.fenced
            log.info("fenced" if answer.fenced else "no longer fenced", broker_id=self.broker_id)
            self.hooks.on_fenced(answer.fenced)

    def _lease_changed(self) -> None:
        now = self._now
        if self.may_serve():
            log.info("serves with a lease", epoch=now.epoch)
        elif now.role is Role.MASTER:
            log.warning("serves no more: it has no lease", epoch=now.epoch)
        self.hooks.on_lease_change()

    def _damage_without_master(self) -> Problem | None:
        """What is wrong with the log of who has no master to get it from: why it is not elected."""
        if self._now.role is Role.SLAVE and self._now.master_id is not None:
            return None
        lacking = self.hooks.log_damage() or self._epochs.incomplete
        return diagnosis.log_incomplete(self._names, lacking) if lacking else None

    def _service_problem(self) -> Problem | None:
        """What is wrong with a broker that is a member and has a role."""
        if self._leases.missing:
            return diagnosis.lease_lost(self._names, self._now.epoch, self.controllers.addresses)
        if self._fenced:
            return diagnosis.fenced(self._names, self.broker_id)
        found = self.hooks.replication_problem()
        if found is not None:
            return diagnosis.replication_refused(*found)
        if self._epochs.incomplete:
            return diagnosis.log_incomplete(self._names, self._epochs.incomplete)
        return None

    def _suspect(self) -> None:
        """A controller refused a heartbeat: the leader must confirm it, for a follower may lag behind."""
        if self.registered:
            self._suspected = True
            self._wake.set()
