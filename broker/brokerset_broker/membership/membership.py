"""The task that makes a broker a member of its group: it registers, beats, asks who is master, and obeys.

One coroutine works on registration and role; notices and heartbeats run beside it, so that neither a slow
controller nor an unreachable one delays the others. A role is taken under a lock, one after the other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

import structlog

from brokerset_broker.membership import diagnosis, role
from brokerset_broker.membership.controllers import Controllers, NoAnswer
from brokerset_broker.membership.diagnosis import Diagnosis, Names, Problem, ProblemKind
from brokerset_broker.membership.epoch_file import EpochFile
from brokerset_broker.membership.heartbeats import Heartbeats
from brokerset_broker.membership.identity_folder import IdentityDamaged, IdentityFolder
from brokerset_broker.membership.registration import (
    TRANSIENT,
    ApplyId,
    AskNextId,
    DeleteTemp,
    FilesUnusable,
    FinishStart,
    IdGranted,
    NextIdTold,
    ReadFiles,
    Refused,
    Register,
    Registration,
    Result,
    Serve,
    StartCommitted,
    Step,
    StepDone,
    Unanswered,
    WriteIdentity,
    WriteStart,
    WriteTemp,
)
from brokerset_broker.membership.role import LogEnd, Role, RoleChange, Told
from brokerset_broker.registration import addresses
from brokerset_formats.epochs import END_UNBOUNDED
from brokerset_protocol.bodies.replicas import ElectMasterBody, EpochEntry, EpochEntryCache, SyncStateSet
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers import controller as headers
from brokerset_protocol.headers.codec import Header
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

NO_ROLE_ID: Final = -1
"""The role id that 1007 names before there is a role."""

_OVERTAKEN: Final = (
    ProblemKind.CONFLICT,
    ProblemKind.RETIRED,
    ProblemKind.OWNED,
)
"""Refusals after which a broker in service must stop serving: somebody else has its identity or its group."""


class RunBlocking(Protocol):
    """Runs something that blocks where it does not hold up the loop."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Return what `work` returned."""


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
    ) -> None:
        """`on_role` gets every change of the role or of what belongs to it, on the loop. `step_done` is told
        the name of every step of the registration that is done, for tests that crash there."""
        self._settings = settings
        self._folder = folder
        self._epochs = epochs
        self._clock = clock
        self._log_end = log_end
        self._own_address = own_address
        self._on_role = on_role
        self._run_blocking = run_blocking
        self._step_done = step_done
        self._identity_path = identity_path(settings)
        self._names = Names(settings.broker_cluster_name, settings.broker_name, str(self._identity_path))
        self.controllers = Controllers(
            addresses(settings.controller_addr), asker, use_dns=settings.fetch_controller_addr_by_dns_lookup
        )
        self._registration = Registration(
            names=self._names,
            nonce=f"{random_source.getrandbits(128):032x}",
            boot_id=boot_id,
            closed_cleanly=closed_cleanly,
            new_check_code=lambda: f"{own_address()};{clock.now_ms()}",
        )
        self._now = RoleChange()
        self._taking = asyncio.Lock()
        self._notice: Told | None = None
        self._noticed = asyncio.Event()
        self._wake = asyncio.Event()
        self._problem: Problem | None = None
        self._logged: tuple[object, ...] = ()
        self._overtaken = False
        self._suspected = False
        self._told: Told | None = None
        self._heartbeats = Heartbeats(
            self.controllers,
            asker,
            clock,
            interval_seconds=settings.broker_heartbeat_interval / 1000,
            timeout_seconds=settings.send_heartbeat_timeout_millis / 1000,
            header=self._heartbeat,
            on_conflict=self._suspect,
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
        return self._registration.problem or self._problem

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
        found = self.diagnosis()
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
        )
        return command.reply(ext=header.to_ext(), body=body.to_json())

    def role_changed(self, connection: Connection, command: Command) -> Command:
        """NOTIFY_BROKER_ROLE_CHANGED (1008): of several notices the one with the highest epoch counts."""
        header = headers.NotifyBrokerRoleChanged.from_ext(command.ext)
        told = _told_of(header.master_epoch, header, command.body)
        if told.master_id is not None and (told.epoch or 0) > max(
            self._now.epoch, (self._notice.epoch or 0) if self._notice is not None else 0
        ):
            self._notice = told
            self._noticed.set()
        return command.reply()

    # -- tasks --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Be a member for as long as this task runs; raises what an unexpected failure raised."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.controllers.run(self._settings.sync_controller_metadata_period / 1000))
            group.create_task(self._work())
            group.create_task(self._obey())
            group.create_task(self._heartbeats.run())

    async def _work(self) -> None:
        pause, refused_pause = PAUSE_SECONDS_MIN, REFUSED_PAUSE_SECONDS_MIN
        while True:
            if self.registered:
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
        result, told = await self._result_of(step)
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

    async def _result_of(self, step: Step) -> tuple[Result, Told | None]:
        try:
            match step:
                case ReadFiles():
                    return await self._run_blocking(self._folder.read), None
                case WriteTemp(identity):
                    await self._run_blocking(lambda: self._folder.write_temp(identity))
                case WriteIdentity(identity):
                    await self._run_blocking(lambda: self._folder.write_identity(identity))
                case WriteStart(record) | FinishStart(record):
                    await self._run_blocking(lambda: self._folder.write_start(record))
                case DeleteTemp():
                    await self._run_blocking(self._folder.delete_temp)
                case AskNextId():
                    return await self._ask_next_id(), None
                case ApplyId():
                    return await self._apply_id(step), None
                case Register():
                    return await self._register(step)
                case Serve():
                    raise AssertionError("nothing is left to do")
        except IdentityDamaged as error:
            damaged = str(self._identity_path.with_name(error.name))
            return FilesUnusable(diagnosis.damaged(damaged, error.reason, error.ways_out)), None
        except OSError as error:
            return FilesUnusable(diagnosis.disk(self._names.identity_path, str(error))), None
        except NoAnswer as error:
            return Unanswered(diagnosis.silent(self.controllers.addresses, str(error))), None
        except Rejected as rejected:  # an answer that cannot be read
            return Unanswered(diagnosis.silent(self.controllers.addresses, rejected.remark)), None
        return StepDone(), None

    async def _ask(self, code: int, header: Header) -> Command:
        """Ask the leader. Raises `NoAnswer`, also for answers that do not tell whether it was carried out."""
        reply = await self.controllers.ask(Command(code, header.to_ext()))
        if reply.code in TRANSIENT:
            raise NoAnswer(f"code {reply.code}: {reply.remark}")
        return reply

    async def _ask_next_id(self) -> Result:
        names = self._names
        header = headers.GetNextBrokerId(cluster_name=names.cluster_name, broker_name=names.broker_name)
        reply = await self._ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header)
        if reply.code != ResponseCode.SUCCESS:
            return Refused(reply.code, reply.remark)
        next_id = headers.GetNextBrokerIdResponse.from_ext(reply.ext).next_broker_id
        if next_id is None:
            raise NoAnswer("an answer to 1012 without nextBrokerId")
        return NextIdTold(next_id)

    async def _apply_id(self, step: ApplyId) -> Result:
        header = headers.ApplyBrokerId(
            cluster_name=self._names.cluster_name,
            broker_name=self._names.broker_name,
            applied_broker_id=step.broker_id,
            register_check_code=step.check_code,
            owner_uid=self._settings.owner_uid or None,
            expected_replicas=self._settings.expected_replicas or None,
        )
        reply = await self._ask(RequestCode.CONTROLLER_APPLY_BROKER_ID, header)
        if reply.code != ResponseCode.SUCCESS:
            answer = headers.ApplyBrokerIdResponse.from_ext(reply.ext)
            return Refused(reply.code, reply.remark, answer.next_broker_id)
        log.info("id granted", broker_id=step.broker_id)
        return IdGranted()

    async def _register(self, step: Register) -> tuple[Result, Told | None]:
        end = self._log_end()
        header = headers.RegisterBrokerToController(
            cluster_name=self._names.cluster_name,
            broker_name=self._names.broker_name,
            broker_id=step.broker_id,
            broker_address=self._own_address(),
            invoke_time=self._clock.now_ms(),
            last_nonce=step.last_nonce,
            tried_nonces=";".join(step.tried_nonces) or None,
            next_nonce=step.next_nonce,
            owner_uid=self._settings.owner_uid or None,
            expected_replicas=self._settings.expected_replicas or None,
            log_epoch=end.epoch,
            log_offset=end.offset,
            lost_cache=step.lost_cache,
            adopt=step.adopt or None,
        )
        reply = await self._ask(RequestCode.CONTROLLER_REGISTER_BROKER, header)
        if reply.code != ResponseCode.SUCCESS:
            return Refused(reply.code, reply.remark), None
        answer = headers.RegisterBrokerToControllerResponse.from_ext(reply.ext)
        epoch = answer.master_epoch if answer.master_epoch is not None else answer.group_epoch
        told = _told_of(epoch, answer, reply.body)
        return StartCommitted(answer.incarnation, answer.next_broker_id, answer.group_epoch), told

    async def _registered(self) -> None:
        registration = self._registration
        again = self._heartbeats.begun.is_set()
        self._overtaken = False
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

    async def _stand_down(self) -> None:
        """Another process has this broker's identity: serve nothing."""
        self._overtaken = True
        async with self._taking:
            if self._now.role is not Role.NONE:
                log.error("overtaken: this broker serves nothing any more", reason=self.problem)
                self._change(role.stood_down(self._now))

    # -- role ---------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        """Ask who is master (1004); without one, ask for an election."""
        if self._suspected:
            self._suspected = False
            self._registration.register_again()
            return
        header = headers.GetReplicaInfo(broker_name=self._names.broker_name)
        try:
            reply = await self._ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, header)
            if reply.code == ResponseCode.SUCCESS:
                answer = headers.GetReplicaInfoResponse.from_ext(reply.ext)
                told = _told_of(answer.master_epoch, answer, reply.body)
                if await self._take(told):
                    await self._elect()
                elif self._problem is not None and self._problem.kind is not ProblemKind.EPOCH:
                    self._problem = None
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
            reply = await self._ask(RequestCode.CONTROLLER_ELECT_MASTER, header)
            if reply.code not in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST):
                self._problem = diagnosis.no_master(self._names, reply.remark)
                if reply.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
                    self._registration.register_again()
                return
            answer = headers.ElectMasterResponse.from_ext(reply.ext)
            body = ElectMasterBody.from_json(reply.body)
            self._problem = None
            await self._take(
                Told(
                    answer.master_epoch,
                    answer.master_broker_id,
                    answer.master_address,
                    answer.sync_state_set_epoch or 0,
                    body.sync_state_set,
                    answer.master_nonce,
                )
            )
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
            verdict = role.decide_role(self._now, told, self.broker_id, self.nonce)
            if verdict.suspect:
                self._suspect()
                return False
            if verdict.change is not None:
                change = verdict.change
                if change.role is Role.MASTER and change.epoch != self._epochs.history.last_epoch:
                    try:
                        if not await self._begin_epoch(change.epoch):
                            return False
                    except OSError as error:
                        self._problem = diagnosis.disk(self._epochs.name, str(error))
                        return False
                self._change(change)
            return verdict.elect

    async def _begin_epoch(self, epoch: int) -> bool:
        """Write down where the epoch begins; False if the log has passed it already."""
        offset = self._log_end().offset
        if await self._run_blocking(lambda: self._epochs.append(epoch, offset)):
            if self._problem is not None and self._problem.kind is ProblemKind.EPOCH:
                self._problem = None
            return True
        self._problem = diagnosis.epoch_behind_log(self._names, epoch, self._epochs.history.last_epoch)
        return False

    def _change(self, change: RoleChange) -> None:
        before, self._now = self._now, change
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

    # -- heartbeats ---------------------------------------------------------------------------------------

    def _heartbeat(self) -> headers.BrokerHeartbeat | None:
        if self.broker_id is None or self._overtaken:
            return None
        end, settings = self._log_end(), self._settings
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
        )

    def _suspect(self) -> None:
        """A controller refused a heartbeat: the leader must confirm it, for a follower may lag behind."""
        if self.registered:
            self._suspected = True
            self._wake.set()


def _told_of(
    epoch: int | None,
    header: headers.NotifyBrokerRoleChanged
    | headers.RegisterBrokerToControllerResponse
    | headers.GetReplicaInfoResponse,
    body: bytes,
) -> Told:
    """What a header and the set behind it say. Raises `Rejected` for a body that is no set."""
    found = SyncStateSet.from_json(body)
    return Told(
        epoch,
        header.master_broker_id,
        header.master_address,
        found.sync_state_set_epoch,
        found.sync_state_set,
        header.master_nonce,
    )
