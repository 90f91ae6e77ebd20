"""Carries out the steps of a registration: files, and requests to the controllers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import structlog

from brokerset_broker.member.membership import diagnosis
from brokerset_broker.member.membership.controllers import Controllers, NoAnswer
from brokerset_broker.member.membership.diagnosis import Names
from brokerset_broker.member.membership.group_answers import news_of
from brokerset_broker.member.membership.identity_folder import IdentityDamaged, IdentityFolder
from brokerset_broker.member.membership.registration import (
    TRANSIENT,
    ApplyId,
    AskNextId,
    DeleteTemp,
    FilesUnusable,
    FinishStart,
    IdGranted,
    NextIdReceived,
    ReadFiles,
    Refused,
    Register,
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
from brokerset_broker.member.role import GroupNews, LogEnd
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers import controller as headers
from brokerset_protocol.headers.codec import Header
from brokerset_runtime.clock import Clock
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)

T = TypeVar("T")


class RunBlocking(Protocol):
    """Runs something that blocks where it does not hold up the loop."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Return what `work` returned."""


async def ask_leader(controllers: Controllers, code: int, header: Header, body: bytes = b"") -> Command:
    """Ask the leader. Raises `NoAnswer`, also for answers that do not tell whether it was carried out."""
    reply = await controllers.ask(Command(code, header.to_ext(), body))
    if reply.code in TRANSIENT:
        raise NoAnswer(f"code {reply.code}: {reply.remark}")
    return reply


class RegistrationSteps:
    """Does what `Registration` says, one step after the other."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        names: Names,
        folder: IdentityFolder,
        controllers: Controllers,
        clock: Clock,
        log_end: Callable[[], LogEnd],
        own_address: Callable[[], str],
        append_age_ms: Callable[[], int | None],
        damaged_path: Callable[[str], str],
        run_blocking: RunBlocking,
    ) -> None:
        """`append_age_ms` tells for how long the log has taken nothing, as heartbeats do; `damaged_path` the
        path of an identity file by its name."""
        self._settings = settings
        self._names = names
        self._folder = folder
        self._controllers = controllers
        self._clock = clock
        self._log_end = log_end
        self._own_address = own_address
        self._append_age_ms = append_age_ms
        self._damaged_path = damaged_path
        self._run_blocking = run_blocking
        self._serve_ids = False
        """Whether the controllers answered to a request that only those with persistent ids serve."""

    async def carry_out(self, step: Step) -> tuple[Result, GroupNews | None]:
        """Do a step; returns what came of it, and what the controllers told of the master with it."""
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
            damaged = self._damaged_path(error.name)
            return FilesUnusable(diagnosis.damaged(damaged, error.reason, error.ways_out)), None
        except OSError as error:
            return FilesUnusable(diagnosis.disk(self._names.identity_path, str(error))), None
        except NoAnswer as error:
            self._serve_ids = False  # the next one to lead may be another
            return Unanswered(diagnosis.silent(self._controllers.addresses, str(error))), None
        except Rejected as rejected:  # an answer that cannot be read
            return Unanswered(diagnosis.silent(self._controllers.addresses, rejected.remark)), None
        return StepDone(), None

    async def _ask_next_id(self) -> Result:
        names = self._names
        header = headers.GetNextBrokerId(cluster_name=names.cluster_name, broker_name=names.broker_name)
        reply = await ask_leader(self._controllers, RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header)
        if reply.code != ResponseCode.SUCCESS:
            return Refused(reply.code, reply.remark)
        next_id = headers.GetNextBrokerIdResponse.from_ext(reply.ext).next_broker_id
        if next_id is None:
            raise NoAnswer("an answer to 1012 without nextBrokerId")
        self._serve_ids = True
        return NextIdReceived(next_id)

    async def _apply_id(self, step: ApplyId) -> Result:
        header = headers.ApplyBrokerId(
            cluster_name=self._names.cluster_name,
            broker_name=self._names.broker_name,
            applied_broker_id=step.broker_id,
            register_check_code=step.check_code,
            owner_uid=self._settings.owner_uid or None,
            expected_replicas=self._settings.expected_replicas or None,
        )
        reply = await ask_leader(self._controllers, RequestCode.CONTROLLER_APPLY_BROKER_ID, header)
        if reply.code != ResponseCode.SUCCESS:
            answer = headers.ApplyBrokerIdResponse.from_ext(reply.ext)
            return Refused(reply.code, reply.remark, answer.next_broker_id)
        log.info("id granted", broker_id=step.broker_id)
        return IdGranted()

    async def _register(self, step: Register) -> tuple[Result, GroupNews | None]:
        """Register, with controllers that know ids: RocketMQ's before 5.1.1 would take 1003 for their own,
        enter this broker by its address and make it master. They do not serve 1012, which changes nothing."""
        if not self._serve_ids:
            asked = await self._ask_next_id()
            if isinstance(asked, Refused) and asked.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return asked, None
        self._serve_ids = False
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
            append_age_ms=self._append_age_ms(),
            unclean_stop=step.unclean or None,
        )
        reply = await ask_leader(self._controllers, RequestCode.CONTROLLER_REGISTER_BROKER, header)
        if reply.code != ResponseCode.SUCCESS:
            return Refused(reply.code, reply.remark), None
        answer = headers.RegisterBrokerToControllerResponse.from_ext(reply.ext)
        epoch = answer.master_epoch if answer.master_epoch is not None else answer.group_epoch
        news = news_of(epoch, answer, reply.body)
        return StartCommitted(answer.incarnation, answer.next_broker_id, answer.group_epoch), news
