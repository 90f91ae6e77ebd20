"""What a controller answers to each request code: wire to service, and back.

Source: RocketMQ's `ControllerRequestProcessor`. Of a connection handlers use its identity, as a key, and the
peer's address, for the log.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import structlog

from brokerset_controller.access_processors import AccessProcessors
from brokerset_controller.config_updates import changed_settings, sorted_text
from brokerset_controller.engine_errors import TimedOut
from brokerset_controller.measurements import Status, timed
from brokerset_controller.members import MemberChanges, metadata, own_status
from brokerset_controller.old_releases import SHOWN_MAX, WAY_OUT, OldPeerLines, old_peer
from brokerset_controller.rebuilding import wanted_group
from brokerset_controller.replicas.decisions import Decision
from brokerset_controller.request_limits import (
    broker_names,
    check_address,
    check_body,
    check_nonces,
    refuse,
)
from brokerset_controller.service import ControllerService
from brokerset_controller.subject_processors import SubjectProcessors
from brokerset_protocol.bodies.replicas import SyncStateSet
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.controller import (
    AlterSyncStateSet,
    ApplyBrokerId,
    BrokerHeartbeat,
    BrokerHeartbeatAnswer,
    ChangeMembers,
    CleanControllerBrokerData,
    ElectMaster,
    FenceReplica,
    GetNextBrokerId,
    GetReplicaInfo,
    RegisterBrokerToController,
    TakeSnapshotResponse,
    TransferLeader,
)
from brokerset_runtime.remoting import Connection, Handler
from brokerset_runtime.settings import settings_values
from brokerset_spec.controller_settings import ControllerSettings

log = structlog.get_logger(__name__)

Answer = Command | Coroutine[Any, Any, Command]

REQUEST_TYPES: Final = {
    RequestCode.BROKER_HEARTBEAT: "CONTROLLER_BROKER_HEARTBEAT",
    RequestCode.CLEAN_BROKER_DATA: "CONTROLLER_CLEAN_BROKER_DATA",
    RequestCode.UPDATE_CONTROLLER_CONFIG: "CONTROLLER_UPDATE_CONTROLLER_CONFIG",
    RequestCode.GET_CONTROLLER_CONFIG: "CONTROLLER_GET_CONTROLLER_CONFIG",
}
"""Names in RocketMQ's metrics (ControllerRequestType) where they are not the code's own."""

FENCING: Final[Mapping[bool | None, Mapping[str, str]]] = {
    None: {},
    False: {"fenced": "false"},
    True: {"fenced": "true"},
}
"""What the leader answers to heartbeats that get no lease, by whether the sender is fenced."""

LOCAL: Final = "local"
"""Header field of 21005: `true` asks for this node's own state, which may lag."""


class Processors:
    """The request handlers of one controller."""

    def __init__(self, service: ControllerService, settings: ControllerSettings) -> None:
        """`settings` are those in force, with the ports that were really taken."""
        self.settings = settings
        self._service = service
        self._members = MemberChanges(service.engine, lambda: self.settings.request_timeout / 1000)
        self._subjects = SubjectProcessors(service.subjects)
        self._access = AccessProcessors(service.access)
        self._old_lines = OldPeerLines()

    @property
    def members(self) -> MemberChanges:
        """Changes of the controllers' group, for who ends this process in order."""
        return self._members

    def handlers(self) -> dict[int, Handler]:
        """The handler of each request code."""
        code = RequestCode
        served: dict[RequestCode, Callable[[Connection, Command], Answer]] = {
            code.BROKER_HEARTBEAT: self.heartbeat,
            code.CONTROLLER_ALTER_SYNC_STATE_SET: self.alter_sync_state_set,
            code.CONTROLLER_ELECT_MASTER: self.elect_master,
            code.CONTROLLER_REGISTER_BROKER: self.register_broker,
            code.CONTROLLER_GET_REPLICA_INFO: self.replica_info,
            code.CONTROLLER_GET_METADATA_INFO: self.metadata,
            code.CONTROLLER_GET_SYNC_STATE_DATA: self.sync_states,
            code.UPDATE_CONTROLLER_CONFIG: self.update_config,
            code.GET_CONTROLLER_CONFIG: self.get_config,
            code.CLEAN_BROKER_DATA: self.clean,
            code.CONTROLLER_GET_NEXT_BROKER_ID: self.next_broker_id,
            code.CONTROLLER_APPLY_BROKER_ID: self.apply_broker_id,
            code.BROKERSET_CONTROLLER_STATUS: self.status,
            code.BROKERSET_CHANGE_MEMBERS: self.change_members,
            code.BROKERSET_TRANSFER_LEADER: self.transfer_leader,
            code.BROKERSET_TAKE_SNAPSHOT: self.take_snapshot,
            code.BROKERSET_GROUP_STATES: self.group_states,
            code.BROKERSET_REBUILD_GROUP: self.rebuild_group,
            code.BROKERSET_FENCE_REPLICA: self.fence,
            **self._subjects.handlers(),
            **self._access.handlers(),
        }
        return {number: self._counted(number, handler) for number, handler in served.items()}

    # -- brokers ------------------------------------------------------------------------------------------

    def heartbeat(self, connection: Connection, command: Command) -> Answer:
        """904: every controller takes it, whether it leads or not."""
        header = BrokerHeartbeat.from_ext(command.ext)
        if header.broker_id is None:
            raise Rejected(
                ResponseCode.CONTROLLER_INVALID_REQUEST,
                "the heartbeat has no brokerId; register first (1003)",
            )
        check_address(header.broker_addr, "brokerAddr")
        check_nonces(header.nonce, "nonce")
        counted = self._service.heartbeat(header, header.broker_id, connection)
        if header.nonce is None or command.is_oneway:
            return command.reply()
        if not counted:
            return self._overtaken(command, header, header.broker_id)
        if self._service.may_have_lease(header, header.broker_id):
            return self._with_lease(command, header, header.broker_id)
        ext = {**FENCING[self._service.fenced(header, header.broker_id)], **self._access_ext()}
        group = self._service.machine.groups.get(header.broker_name)
        if group is not None:
            ext["masterEpoch"] = str(group.master_epoch)
        return command.reply(ext=ext)

    async def _with_lease(self, command: Command, header: BrokerHeartbeat, broker_id: int) -> Command:
        answer = await self._service.lease(header, broker_id)
        return command.reply(ext={**answer.to_ext(), **self._access_ext()})

    def _access_ext(self) -> dict[str, str]:
        version = self._service.access.heartbeat_version
        return {} if version is None else BrokerHeartbeatAnswer(access_version=version).to_ext()

    async def _overtaken(self, command: Command, header: BrokerHeartbeat, broker_id: int) -> Command:
        await self._service.check_overtaken(header, broker_id)
        return command.reply()

    async def next_broker_id(self, connection: Connection, command: Command) -> Command:
        """1012: the id that a new broker should apply for; nothing is reserved by it."""
        return _reply(command, await self._service.next_broker_id(GetNextBrokerId.from_ext(command.ext)))

    async def apply_broker_id(self, connection: Connection, command: Command) -> Command:
        """1013: an id for a new broker."""
        return _reply(command, await self._service.apply_broker_id(ApplyBrokerId.from_ext(command.ext)))

    async def register_broker(self, connection: Connection, command: Command) -> Command:
        """1003: a broker with an id starts."""
        header = RegisterBrokerToController.from_ext(command.ext)
        check_address(header.broker_address, "brokerAddress")
        check_nonces(header.tried_nonces, "triedNonces")
        check_nonces(header.last_nonce, "lastNonce")
        decision = await self._service.register_broker(header, connection)
        if not decision.accepted:
            log.info(
                "registration refused",
                broker=header.broker_name,
                id=header.broker_id,
                address=header.broker_address,
                code=int(decision.code),
                reason=decision.remark,
            )
        return _reply(command, decision)

    async def replica_info(self, connection: Connection, command: Command) -> Command:
        """1004: who is master of a group."""
        return _reply(command, await self._service.replica_info(GetReplicaInfo.from_ext(command.ext)))

    async def alter_sync_state_set(self, connection: Connection, command: Command) -> Command:
        """1001: a master says who has everything that is confirmed."""
        header = AlterSyncStateSet.from_ext(command.ext)
        body = SyncStateSet.from_json(check_body(command.body))
        return _reply(command, await self._service.alter_sync_state_set(header, body))

    async def elect_master(self, connection: Connection, command: Command) -> Command:
        """1002: a broker without master asks for one, or an administrator wants another."""
        header = ElectMaster.from_ext(command.ext)
        decision = await self._service.elect_master(header, connection)
        if header.handover_epoch is not None:
            log.info(
                "hand-over asked for by a master",
                broker=header.broker_name,
                epoch=header.handover_epoch,
                to=header.broker_id,
                peer=connection.peer,
                code=int(decision.code),
            )
        return _reply(command, decision)

    # -- administrators -----------------------------------------------------------------------------------

    def metadata(self, connection: Connection, command: Command) -> Answer:
        """1005: who leads the controllers; every one answers."""
        header = metadata(self._service.engine.status, self.settings.controller_group)
        return command.reply(ext=header.to_ext())

    async def sync_states(self, connection: Connection, command: Command) -> Command:
        """1006: who is in sync in some groups."""
        names = broker_names(command.body)
        if not names:
            raise refuse('the list of broker names is empty; send names, as ["broker-a"]')
        return command.reply(body=(await self._service.sync_states(names)).to_json())

    async def clean(self, connection: Connection, command: Command) -> Command:
        """1011: forget replicas that will not come back."""
        header = CleanControllerBrokerData.from_ext(command.ext)
        return _reply(command, await self._service.clean(header))

    async def fence(self, connection: Connection, command: Command) -> Command:
        """21007: take a replica out of service, or back."""
        header = FenceReplica.from_ext(command.ext)
        return _reply(command, await self._service.fence(header))

    def update_config(self, connection: Connection, command: Command) -> Answer:
        """1009: change settings of this controller, until its next start."""
        if command.body:
            before = settings_values(self.settings).items()
            self.settings = changed_settings(self.settings, command.body)
            self._service.use_settings(self.settings)
            after = settings_values(self.settings).items()
            log.info("settings changed", changed=dict(sorted(after - before)), by=connection.peer)
        return command.reply()

    def get_config(self, connection: Connection, command: Command) -> Answer:
        """1010: all settings as properties text."""
        return command.reply(body=sorted_text(self.settings).encode())

    # -- brokerset's own ----------------------------------------------------------------------------------

    def status(self, connection: Connection, command: Command) -> Answer:
        """21001: this node of the controllers' group."""
        return command.reply(body=own_status(self._service.engine.status).to_json())

    async def change_members(self, connection: Connection, command: Command) -> Command:
        """21002: add, promote or remove a controller."""
        await self._members.change(ChangeMembers.from_ext(command.ext))
        return command.reply()

    async def transfer_leader(self, connection: Connection, command: Command) -> Command:
        """21003: let another controller lead."""
        await self._members.transfer(TransferLeader.from_ext(command.ext).node_id)
        return command.reply()

    async def take_snapshot(self, connection: Connection, command: Command) -> Command:
        """21004: write a snapshot on this node and truncate its log."""
        index = await self._members.take_snapshot()
        return command.reply(ext=TakeSnapshotResponse(snapshot_index=index).to_ext())

    async def group_states(self, connection: Connection, command: Command) -> Command:
        """21005: everything that is agreed about some groups, or all."""
        names = broker_names(command.body) if command.body else ()
        local = command.ext.get(LOCAL) == "true"
        return command.reply(body=(await self._service.group_states(names, local=local)).to_json())

    async def rebuild_group(self, connection: Connection, command: Command) -> Command:
        """21006: take in a group that was put together from what its brokers hold."""
        wanted = wanted_group(command.body)
        decision = await self._service.rebuild(wanted)
        log.warning(
            "rebuilding asked for", broker=wanted.broker_name, peer=connection.peer, code=int(decision.code)
        )
        return _reply(command, decision)

    # -- inner parts --------------------------------------------------------------------------------------

    def _refuse_old(self, connection: Connection, command: Command, now: float) -> None:
        """Raise `Rejected` for what RocketMQ 5.0 and 5.1.0 send; who does not lead says so, as always."""
        found = old_peer(command)
        if found is None:
            return
        if found.request != RequestCode.BROKER_HEARTBEAT and not self._service.engine.status.leading:
            return
        left_out = self._old_lines.admit(found, now)
        if left_out is not None:
            log.warning(
                "a broker of an old release is refused",
                broker=found.broker_name[:SHOWN_MAX],
                address=found.address[:SHOWN_MAX],
                release=found.release,
                request=found.request,
                peer=connection.peer,
                way_out=WAY_OUT,
                left_out=left_out,
            )
        raise found.rejection()

    def _counted(self, code: RequestCode, handler: Callable[[Connection, Command], Answer]) -> Handler:
        """The handler with its time and its end counted."""
        name = REQUEST_TYPES.get(code, code.name)
        clock = self._service.clock.monotonic
        measurements = self._service.measurements

        async def finish(work: Coroutine[Any, Any, Command], since: float) -> Command:
            status: Status = "failed"
            try:
                reply = await work
                status = "success"
                return reply
            except TimedOut:
                status = "timeout"
                raise
            finally:
                measurements.request_done(name, status, timed(clock, since))

        def handle(connection: Connection, command: Command) -> Answer:
            since = clock()
            try:
                self._refuse_old(connection, command, since)
                answer = handler(connection, command)
            except Exception:
                measurements.request_done(name, "failed", timed(clock, since))
                raise
            if isinstance(answer, Command):
                measurements.request_done(name, "success", timed(clock, since))
                return answer
            return finish(answer, since)

        handle.__doc__ = handler.__doc__
        return handle


def _reply(command: Command, decision: Decision) -> Command:
    return command.reply(
        int(decision.code),
        decision.remark,
        ext=decision.header.to_ext() if decision.header is not None else None,
        body=decision.body.to_json() if decision.body is not None else b"",
    )
