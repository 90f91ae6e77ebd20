"""The conversation with the controllers: registration, heartbeats, polls, elections, notices, proposals.

What controllers say goes to the member machine (`core`), which decides; what it wants asked comes back by
`ask`. One coroutine works on registration and polls; heartbeats run next to it, so that neither a slow
controller nor an unreachable one delays the others.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import structlog

from brokerset_broker.member.core import Ask, Member, SwitchEnded
from brokerset_broker.member.epoch_file import EpochFile
from brokerset_broker.member.group_link import MasterTarget, ProposalEnd, ProposalResult
from brokerset_broker.member.membership import diagnosis
from brokerset_broker.member.membership.controllers import Controllers, NoAnswer
from brokerset_broker.member.membership.diagnosis import Diagnosis, Names, Problem, ProblemKind
from brokerset_broker.member.membership.group_answers import news_of, news_of_election
from brokerset_broker.member.membership.heartbeats import Heartbeats
from brokerset_broker.member.membership.identity_answer import identity_answer
from brokerset_broker.member.membership.identity_folder import IdentityFolder
from brokerset_broker.member.membership.master_finder import find_master
from brokerset_broker.member.membership.registration import (
    FilesUnusable,
    FinishStart,
    Register,
    Registration,
    Serve,
    Step,
    StepDone,
)
from brokerset_broker.member.membership.registration_steps import RegistrationSteps, RunBlocking, ask_leader
from brokerset_broker.member.refused_mastership import CANNOT_LEAD_AGE_MS, RETRY_SECONDS
from brokerset_broker.member.role import GroupNews, LogEnd, Role, RoleState
from brokerset_broker.member.shell import MemberShell
from brokerset_protocol.bodies.replicas import SyncStateSet
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers import controller as headers
from brokerset_runtime.clock import Clock
from brokerset_runtime.peer_requests import Asker
from brokerset_runtime.remoting import Connection, Handler
from brokerset_spec.addresses import addresses
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)

PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 1.0
"""Waits before a request is repeated double from the first to the second."""

REFUSED_PAUSE_SECONDS_MIN: Final = 0.1
REFUSED_PAUSE_SECONDS_MAX: Final = 5.0
"""The same after a refusal. Most only people can change, but the process before this one, killed a moment
ago, is still taken for alive at first. Java's broker waits 5 s after any failure."""

NOBODY: Final = -1
"""The broker id of an election that names no broker."""

_OVERTAKEN: Final = (
    ProblemKind.CONFLICT,
    ProblemKind.RETIRED,
    ProblemKind.OWNED,
)
"""Refusals after which a broker in service must stop serving: somebody else has its identity or its group."""


def identity_path(settings: BrokerSettings) -> Path:
    """Where the identity is; its other files lie next to it."""
    return settings.store_path_broker_identity or settings.store_path_root_dir / "brokerIdentity"


def epoch_path(settings: BrokerSettings) -> Path:
    """Where the master epochs are."""
    return settings.store_path_epoch_file or settings.store_path_root_dir / "epochFileCheckpoint"


class MemberBroker(Protocol):
    """What the controllers are told about the rest of the broker."""

    def log_end(self) -> LogEnd:
        """What the log has."""

    def own_address(self) -> str:
        """Of the remoting port, as others reach it."""

    def ha_address(self) -> str:
        """Where slaves connect; empty if nowhere."""

    def append_age_ms(self) -> int | None:
        """Milliseconds since the log last took an append that was asked for; None when nothing waits."""

    def all_ack(self) -> bool:
        """Whether sends wait for all in-sync replicas."""

    def replication_problem(self) -> tuple[str, str] | None:
        """Why this broker cannot follow its master, and what to do; None when it can."""

    def log_damage(self) -> str:
        """What is wrong with the log, so that this broker cannot lead; empty when nothing is."""

    def java_ha_address(self, address: str) -> str | None:
        """The HA address that name servers tell for a Java master's remoting address."""


def new_nonce(random_source: random.Random) -> str:
    """What tells this start of a broker from all others."""
    return f"{random_source.getrandbits(128):032x}"


class Membership:
    """The broker's part in its group. `run` is the task; everything else answers at once."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        member: Member,
        shell: MemberShell,
        broker: MemberBroker,
        folder: IdentityFolder,
        epochs: EpochFile,
        asker: Asker,
        clock: Clock,
        closed_cleanly: bool,
        boot_id: str,
        run_blocking: RunBlocking,
        step_done: Callable[[str], None] | None = None,
    ) -> None:
        """`step_done` is told the name of every step of the registration that is done, for tests that crash
        there."""
        self._settings = settings
        self._member = member
        self._shell = shell
        self._broker = broker
        self._epochs = epochs
        self._clock = clock
        self._asker = asker
        self._run_blocking = run_blocking
        self._step_done = step_done
        self._names = Names(settings.broker_cluster_name, settings.broker_name, str(identity_path(settings)))
        self.controllers = Controllers(
            addresses(settings.controller_addr), asker, use_dns=settings.fetch_controller_addr_by_dns_lookup
        )
        self._registration = Registration(
            names=self._names,
            nonce=member.nonce,
            boot_id=boot_id,
            closed_cleanly=closed_cleanly,
            new_check_code=lambda: f"{broker.own_address()};{clock.now_ms()}",
            known_epoch=epochs.highest_read,
        )
        self._steps = RegistrationSteps(
            settings=settings,
            names=self._names,
            folder=folder,
            controllers=self.controllers,
            clock=clock,
            log_end=broker.log_end,
            own_address=broker.own_address,
            append_age_ms=self._append_age_ms,
            damaged_path=lambda name: str(identity_path(settings).with_name(name)),
            run_blocking=run_blocking,
        )
        self._wake = asyncio.Event()
        self._problem: Problem | None = None
        self._switch_problem: Problem | None = None
        self._logged: tuple[object, ...] = ()
        self._suspected = False
        self._election_wanted = False
        self._answered: GroupNews | None = None
        """What the answer to the registration said, until the start is finished."""

        self.on_access_version: Callable[[int], None] | None = None
        """Hears the version of the leading controller's users and policies, with each heartbeat."""

        self._asked = False
        self._heartbeats = Heartbeats(
            self.controllers,
            asker,
            clock,
            pause_seconds=lambda: member.heartbeat_pause_seconds(clock.monotonic()),
            timeout_seconds=settings.send_heartbeat_timeout_millis / 1000,
            header=self._heartbeat,
            on_conflict=self._suspect,
            on_answer=self._heartbeat_answered,
        )

    # -- what others may know -----------------------------------------------------------------------------

    @property
    def now(self) -> RoleState:
        """The role, and what belongs to it."""
        return self._member.role

    @property
    def role(self) -> Role:
        """The role."""
        return self._member.role.role

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
        return self._member.nonce

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
        return self._member.fenced

    def may_serve(self) -> bool:
        """Whether this broker is master, and has a lease if its controllers give any. Ask each time."""
        return self._shell.may_serve()

    @property
    def heartbeat_ages(self) -> dict[str, float]:
        """Seconds since each controller last answered a heartbeat, by address."""
        return self._heartbeats.ages

    def diagnosis(self) -> Diagnosis:
        """Why the broker is not in service, and what to do."""
        return diagnosis.diagnose(self._member.role.role, self.registered, self.problem)

    def handlers(self) -> dict[int, Handler]:
        """Requests that are answered whatever the role is."""
        return {
            RequestCode.GET_BROKER_EPOCH_CACHE: self.epoch_cache,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self.role_changed,
        }

    def epoch_cache(self, connection: Connection, command: Command) -> Command:
        """GET_BROKER_EPOCH_CACHE (1007): the epochs, and who really answers here."""
        return identity_answer(
            command,
            settings=self._settings,
            role=self._member.role,
            fenced=self._member.fenced,
            registration=self._registration,
            entries=self._epochs.entries(),
            log_end=self._broker.log_end(),
            append_age_ms=self._append_age_ms(),
            ha_address=self._broker.ha_address(),
            found=self.diagnosis(),
            problem=self.problem,
        )

    def role_changed(self, connection: Connection, command: Command) -> Command:
        """NOTIFY_BROKER_ROLE_CHANGED (1008). Before the registration it is about an earlier process."""
        header = headers.NotifyBrokerRoleChanged.from_ext(command.ext)
        news = news_of(header.master_epoch, header, command.body)
        if news.master_id is not None and self.registered:
            self._shell.received(news)
            self._report()
        return command.reply()

    # -- what replication asks (`group_link.GroupLink`) ----------------------------------------------------

    async def find_master(self, change: RoleState) -> MasterTarget:
        """Ask the master who it is, and where slaves connect. Raises `LinkClosed` with the reason."""
        return await find_master(self._asker, self._names, change, self._broker.java_ha_address)

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
                self._member.set_made(made.sync_state_set, made.sync_state_set_epoch, master_epoch)
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

    def ask_soon(self) -> None:
        """Ask the controllers soon what is in force (1004); replication hears it, changed or not."""
        self._asked = True
        self._wake.set()

    async def hand_over(
        self, to_broker_id: int | None, epoch: int, *, relief: int | None = None
    ) -> GroupNews:
        """As the master of `epoch`, which has stopped serving, ask for a successor (1002).

        None: whoever is the furthest. `relief`: as no replica is heard; whoever leads needs so many. This
        broker may serve again only with a lease that it asked for when this is over: the request may be
        repeated, and a heartbeat between two tries says nothing about the second one. Raises `NoAnswer`
        (nobody knows), or `Rejected`: this broker is still master.
        """
        self._shell.give_up_lease(asking=True)
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
            news = news_of_election(reply)
        except (NoAnswer, Rejected):
            self.ask_soon()
            self._heartbeats.hurry()
            raise
        finally:
            self._shell.give_up_lease()
        log.info("handed over", epoch=epoch, master_id=news.master_id, new_epoch=news.epoch)
        self._shell.received(news)
        return news

    # -- tasks --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Be a member for as long as this task runs; raises what an unexpected failure raised."""
        await self._accept_damage()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.controllers.run(self._settings.sync_controller_metadata_period / 1000))
            group.create_task(self._shell.run())
            group.create_task(self._work())
            group.create_task(self._heartbeats.run())

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
        self._shell.tick()  # what clients are told may change
        if problem is None:
            log.info("nothing is wrong with the membership any more", registered=self.registered)
            return
        log.warning(
            "membership has a problem",
            problem=problem.text,
            advice=problem.advice,
            detail=problem.detail,
            role=self._member.role.role,
        )

    # -- registration -------------------------------------------------------------------------------------

    async def _do_step(self, step: Step) -> None:
        result, news = await self._steps.carry_out(step)
        self._registration.feed(result)
        if self._registration.problem is None:
            if self._step_done is not None:
                self._step_done(type(step).__name__)
        elif self._registration.problem.kind in _OVERTAKEN:
            self._shell.lost_identity()
            await self._shell.settled()
        if isinstance(step, Register) and news is not None:
            self._answered = news
        if isinstance(step, FinishStart) and self.registered:
            await self._registered()

    async def _registered(self) -> None:
        registration = self._registration
        assert registration.broker_id is not None, "who is registered has an id"
        again = self._heartbeats.begun.is_set()
        self._shell.registered(registration.broker_id, registration.group_epoch)
        self._heartbeats.begun.set()
        (log.debug if again else log.info)(
            "registered with the controllers",
            broker_id=registration.broker_id,
            incarnation=registration.incarnation,
            group_epoch=registration.group_epoch,
        )
        news, self._answered = self._answered, None
        if news is not None and not await self._settled_by(news):
            await self._elect()
        self._report()

    async def _settled_by(self, news: GroupNews, *, asked: bool = False) -> bool:
        """Hand over what was said, and wait for what follows; False if an election should be asked for."""
        self._election_wanted = False
        self._shell.received(news, may_elect=True, asked=asked)
        await self._shell.settled()
        return not self._election_wanted

    async def _settle_loss(self) -> None:
        """Once a master is known, what this log lost is recorded, or another one had it: it is told no more.

        Before that the controllers' record of it may be lost with all their data, so it is kept here, too.
        """
        registration = self._registration
        if not registration.lost_cache or self._member.role.master_id is None:
            return
        result, _ = await self._steps.carry_out(FinishStart(registration.settled))
        if isinstance(result, StepDone):
            registration.loss_settled()
            log.info("the lost page cache is accounted for", broker_id=self.broker_id)
        elif isinstance(result, FilesUnusable):
            log.warning("the start file cannot be written", problem=result.problem.text)

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
                news = news_of(answer.master_epoch, answer, reply.body)
                if await self._settled_by(news, asked=asked):
                    self._problem = None
                else:
                    await self._elect()
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
            await self._heartbeats.beat(leader or await self.controllers.find_leader())
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
            news = news_of_election(reply)
            self._problem = None
            self._shell.received(news)
            await self._shell.settled()
        except NoAnswer as error:
            self._problem = diagnosis.silent(self.controllers.addresses, str(error))
        except Rejected as rejected:
            self._problem = diagnosis.silent(self.controllers.addresses, rejected.remark)

    # -- what the member machine wants ------------------------------------------------------------------

    def ask(self, what: Ask) -> None:
        """Ask the controllers, soon; an election only by who handed over what was said."""
        match what:
            case Ask.HEARTBEAT:
                self._heartbeats.hurry()
            case Ask.STATE:
                self.ask_soon()
            case Ask.STATE_LATER:
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self.ask_soon)
            case Ask.ELECTION:
                self._election_wanted = True
            case Ask.CONFIRMATION:
                self._suspect()

    def role_taken(self, role: RoleState) -> None:
        """The role is another one."""
        if self._registration.lost_cache and role.master_id is not None:
            self._wake.set()

    def switch_ended(self, ended: SwitchEnded) -> None:
        """A change of role is over, or failed: then that is this broker's problem."""
        self._switch_problem = self._why_not(ended) if ended.problem else None
        self._report()

    def _why_not(self, ended: SwitchEnded) -> Problem:
        after, log_epoch = ended.after, self._epochs.history.last_epoch
        if after.role is Role.MASTER and after.epoch < log_epoch:
            return diagnosis.epoch_behind_log(self._names, after.epoch, log_epoch)
        return diagnosis.switch_failed(self._names, after.role, after.epoch, f"{ended.step}: {ended.problem}")

    async def give_back(self, role: RoleState) -> None:
        """This broker cannot lead: have the in-sync set of before its election in force again."""
        for members in self._member.to_give_back:
            proposed = self._member.gives_back(members)
            result = await self.propose(members, proposed.set_epoch, role.epoch, {})
            log.warning(
                "this broker cannot lead, and proposes the in-sync set of before its election",
                proposed=sorted(members),
                end=result.end.value,
                remark=result.remark,
                epoch=role.epoch,
            )
            if result.end is not ProposalEnd.REFUSED:
                break
        self._wake.clear()  # a refusal has controllers asked at once: all of this would be repeated
        self._heartbeats.hurry()

    # -- heartbeats ---------------------------------------------------------------------------------------

    def _heartbeat(self) -> headers.BrokerHeartbeat | None:
        if self.broker_id is None or self._member.overtaken:
            return None
        end, settings = self._broker.log_end(), self._settings
        return headers.BrokerHeartbeat(
            cluster_name=self._names.cluster_name,
            broker_addr=self._broker.own_address(),
            broker_name=self._names.broker_name,
            broker_id=self.broker_id,
            epoch=end.epoch,
            max_offset=end.offset,
            confirm_offset=end.confirmed,
            heartbeat_timeout_mills=settings.controller_heart_beat_timeout_mills,
            election_priority=settings.broker_election_priority,
            nonce=self.nonce,
            append_age_ms=self._append_age_ms(),
            all_ack=self._broker.all_ack(),
            lost_cache=self._registration.reports_loss or None,
        )

    def _append_age_ms(self) -> int | None:
        """For how long the log has taken nothing; without end when this broker could not lead."""
        cannot = self._member.cannot_lead(self._clock.monotonic()) or bool(self._epochs.incomplete)
        return CANNOT_LEAD_AGE_MS if cannot else self._broker.append_age_ms()

    def _heartbeat_answered(self, answer: headers.BrokerHeartbeatAnswer, sent_at: float) -> None:
        """What a controller of ours says about a heartbeat; one that does not lead tells the epoch alone."""
        if answer.lease_ms is not None and answer.lease_epoch is not None:
            self._shell.lease_granted(sent_at, answer.lease_ms, answer.lease_epoch)
        elif answer.master_epoch is not None:
            self._shell.epoch_known(answer.master_epoch)
        if answer.fenced is not None:
            self._shell.fence(answer.fenced)
        if answer.access_version is not None and self.on_access_version is not None:
            self.on_access_version(answer.access_version)

    def _damage_without_master(self) -> Problem | None:
        """What is wrong with the log of who has no master to get it from: why it is not elected."""
        if self._member.role.role is Role.SLAVE and self._member.role.master_id is not None:
            return None
        lacking = self._broker.log_damage() or self._epochs.incomplete
        return diagnosis.log_incomplete(self._names, lacking) if lacking else None

    def _service_problem(self) -> Problem | None:
        """What is wrong with a broker that is a member and has a role."""
        if self._member.lease_missing(self._clock.monotonic()):
            return diagnosis.lease_lost(self._names, self._member.role.epoch, self.controllers.addresses)
        if self._member.fenced:
            return diagnosis.fenced(self._names, self.broker_id)
        found = self._broker.replication_problem()
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
