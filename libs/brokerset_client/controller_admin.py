"""What an administrator asks controllers: members, broker groups, elections; and brokers: who they are.

It needs no name server. A request that only the leader answers goes to the leader, wherever it is by now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from brokerset_acl.signatures import Sign
from brokerset_client.errors import BrokerUnreachable, ClientError, RequestRefused
from brokerset_client.instance import name_server_list, readable
from brokerset_client.server_requests import ASK_SECONDS, ServerRequests
from brokerset_protocol import headers
from brokerset_protocol.bodies.controllers import ControllerStatus, GroupState, GroupStates, ReplicaState
from brokerset_protocol.bodies.replicas import BrokerReplicasInfo, EpochEntryCache, ReplicasInfo
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers import controller as fields
from brokerset_runtime.tls import ClientTls

OBSERVE_SECONDS = 1.0
"""Time-out of a request whose only purpose is to see who is there."""

SWITCH_OVER_SECONDS = 5.0
"""How long a master may take to hand over; it gives up then, and serves on."""

ALIVE = "alive"
"""Standing of a replica that the leading controller hears."""

LEADER_PAUSE_SECONDS = 0.05
"""Pause between two attempts to find who leads."""

NOT_SERVED = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED,)
"""Codes of those who do not know the question, so they are something else."""


class ControllersUnavailable(ClientError):
    """No controller of the list answered, or none of them leads; `problems` has one text for each address."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("no leading controller was found: " + "; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class ControllerObservation:
    """What one controller says about itself."""

    address: str
    status: ControllerStatus | None
    """None when it does not answer."""

    problem: str | None = None
    """Why there is no status."""


@dataclass(frozen=True, slots=True)
class BrokerObservation:
    """Who a broker says it is."""

    address: str
    cluster_name: str
    broker_name: str
    identity: fields.BrokerIdentityAnswer
    """Without an id for brokers that have none yet, and for Java's."""


class ControllerAdmin(ServerRequests):
    """Requests to a group of controllers; use it with `async with`."""

    def __init__(
        self,
        controllers: str | Sequence[str],
        *,
        timeout: float = ASK_SECONDS,
        tls: ClientTls | None = None,
        sign: Sign | None = None,
    ) -> None:
        super().__init__(timeout=timeout, tls=tls, sign=sign)
        self.addresses = name_server_list(controllers)
        self._leader: str | None = None

    # -- who is there -------------------------------------------------------------------------------------

    async def leader(self) -> str:
        """Address of the leading controller. Raises `ControllersUnavailable` when none is found in time.

        An election is waited for; controllers of which none answers are given up much sooner.
        """
        problems: list[str] = []
        loop = asyncio.get_running_loop()
        silent_until = loop.time() + OBSERVE_SECONDS
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    found, problems = await self._ask_who_leads()
                    if found is not None:
                        return found
                    if len(problems) < len(self.addresses):
                        silent_until = loop.time() + OBSERVE_SECONDS
                    elif loop.time() >= silent_until:
                        raise ControllersUnavailable(problems)
                    await asyncio.sleep(LEADER_PAUSE_SECONDS)
        except TimeoutError:
            nobody = "those that answer know no leader: more than half of the controllers must run"
            raise ControllersUnavailable([*problems, nobody]) from None

    async def observe(self) -> list[ControllerObservation]:
        """What every controller says about itself: those of the list, then members that it does not name."""
        found = await asyncio.gather(*(self._observe(address) for address in self.addresses))
        known = {each.address for each in found}
        more = dict.fromkeys(
            member.service_address
            for each in found
            if each.status is not None
            for member in each.status.members
            if member.service_address and member.service_address not in known
        )
        observed = [*found, *await asyncio.gather(*(self._observe(address) for address in more))]
        leaders = [
            (each.status.term, each.address)
            for each in observed
            if each.status is not None and each.status.leading
        ]
        if leaders:
            self._leader = max(leaders)[1]  # need not be looked for among those that are silent
        return observed

    async def status(self, address: str | None = None) -> ControllerStatus:
        """BROKERSET_CONTROLLER_STATUS (21001) of one controller, by default of the leader."""
        code = RequestCode.BROKERSET_CONTROLLER_STATUS
        if address is None:
            return readable(ControllerStatus.from_json, (await self.ask_leader(code)).body)
        return readable(ControllerStatus.from_json, (await self.request(address, code)).body)

    # -- members ------------------------------------------------------------------------------------------

    async def add_member(self, node_id: int, raft_address: str, service_address: str) -> None:
        """Add a controller, which waits for that, as a learner; or tell a member's new addresses."""
        header = fields.ChangeMembers(
            action="add", node_id=node_id, raft_address=raft_address, service_address=service_address
        )
        await self.ask_leader(RequestCode.BROKERSET_CHANGE_MEMBERS, header)

    async def promote_member(self, node_id: int) -> None:
        """Let a learner vote. Refused while it is too far behind."""
        header = fields.ChangeMembers(action="promote", node_id=node_id)
        await self.ask_leader(RequestCode.BROKERSET_CHANGE_MEMBERS, header)

    async def remove_member(self, node_id: int) -> None:
        """Remove a controller from the group; its process goes on until somebody stops it."""
        header = fields.ChangeMembers(action="remove", node_id=node_id)
        await self.ask_leader(RequestCode.BROKERSET_CHANGE_MEMBERS, header)

    async def transfer(self, node_id: int) -> None:
        """Make another controller lead."""
        await self.ask_leader(RequestCode.BROKERSET_TRANSFER_LEADER, fields.TransferLeader(node_id=node_id))
        self._leader = None

    async def take_snapshot(self, address: str) -> int:
        """Let one controller write a snapshot and truncate its log; returns the snapshot's index."""
        answer = await self.request(address, RequestCode.BROKERSET_TAKE_SNAPSHOT)
        return fields.TakeSnapshotResponse.from_ext(answer.ext).snapshot_index

    # -- broker groups ------------------------------------------------------------------------------------

    async def groups(self, names: Sequence[str] = ()) -> tuple[GroupState, ...]:
        """The groups of these names, or all, as agreed and as the leader hears them.

        Java's controllers know less of the groups that are named (`sync_states`), and cannot list them.
        """
        body = orjson.dumps(list(names)) if names else b""
        try:
            answer = await self.ask_leader(RequestCode.BROKERSET_GROUP_STATES, body=body)
        except RequestRefused as error:
            if error.code not in NOT_SERVED or not names:
                raise
            found = await self.sync_states(names)
            return tuple(
                [_as_group(name, found[name], await self._cluster_of(found[name])) for name in found]
            )
        return readable(GroupStates.from_json, answer.body).groups

    async def sync_states(self, names: Sequence[str]) -> dict[str, ReplicasInfo]:
        """CONTROLLER_GET_SYNC_STATE_DATA (1006): masters and replicas, from controllers of either make.

        By group; those that the controllers do not know are left out.
        """
        code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
        answer = await self.ask_leader(code, body=orjson.dumps(list(names)))
        return readable(BrokerReplicasInfo.from_json, answer.body).replicas_info_table

    async def groups_at(self, address: str) -> tuple[GroupState, ...]:
        """All groups as one controller knows them, which may lag; for times without a leader."""
        answer = await self.request(
            address, RequestCode.BROKERSET_GROUP_STATES, ext={"local": "true"}, timeout=OBSERVE_SECONDS
        )
        return readable(GroupStates.from_json, answer.body).groups

    async def _cluster_of(self, info: ReplicasInfo) -> str:
        """The cluster's name, which 1006 does not tell, from a replica (1007); empty when none answers."""
        for each in (*info.in_sync_replicas, *info.not_in_sync_replicas):
            try:
                return (await self.broker(each.broker_address)).cluster_name
            except ClientError:
                continue
        return ""

    async def clean(self, group: GroupState, ids: Sequence[int], *, living: bool = False) -> None:
        """Forget replicas of a group for good; with `living` also those whose heartbeats arrive.

        Refused for living ones at Java's controllers, which then ignore the ids and forget the whole group.
        """
        if not group.cluster_name:
            # With another name Java's controllers take every replica for dead, and forget living ones.
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"no replica of {group.broker_name} says which cluster it belongs to, so nothing was cleaned",
                self._leader or self.addresses[0],
            )
        if living and ids:
            body = orjson.dumps([group.broker_name])
            await self.ask_leader(RequestCode.BROKERSET_GROUP_STATES, body=body)
        header = fields.CleanControllerBrokerData(
            cluster_name=group.cluster_name,
            broker_name=group.broker_name,
            broker_controller_ids_to_clean=";".join(map(str, ids)),
            is_clean_living_broker=living,
        )
        await self.ask_leader(RequestCode.CLEAN_BROKER_DATA, header)

    async def elect(
        self, group: GroupState, broker_id: int | None, *, unclean: bool = False
    ) -> fields.ElectMasterResponse:
        """Elect a master; `broker_id` is the one that is wished for. Raises `RequestRefused`."""
        header = fields.ElectMaster(
            cluster_name=group.cluster_name,
            broker_name=group.broker_name,
            broker_id=-1 if broker_id is None else broker_id,
            designate_elect=True,  # so it comes from an administrator
            unclean=True if unclean else None,
        )
        answer = await self.ask_leader(RequestCode.CONTROLLER_ELECT_MASTER, header)
        return fields.ElectMasterResponse.from_ext(answer.ext)

    async def fence(self, group: str, broker_id: int, *, fenced: bool = True, force: bool = False) -> None:
        """Take a replica out of service (BROKERSET_FENCE_REPLICA, 21007), or back with `fenced=False`.

        `force` does it although only the master stays in sync. Raises `RequestRefused`.
        """
        header = fields.FenceReplica(
            broker_name=group, broker_id=broker_id, fenced=fenced, force=True if force else None
        )
        await self.ask_leader(RequestCode.BROKERSET_FENCE_REPLICA, header)

    async def switch_over(
        self, group: str, broker_id: int | None = None, *, timeout: float = SWITCH_OVER_SECONDS
    ) -> fields.SwitchOverResponse:
        """Have the living master hand over to another in-sync replica (BROKERSET_SWITCH_OVER, 21011).

        None: whoever is the furthest. `timeout` in seconds is the master's, which holds sends meanwhile.
        Raises `RequestRefused`, also when the group has no living master; `AnswerTimeout` when the outcome is
        unknown.
        """
        found = await self.groups([group])
        state = found[0] if found else None
        master = None
        if state is not None:
            living = (replica for replica in state.replicas if replica.standing == ALIVE)
            master = next((one for one in living if one.broker_id == state.master_id), None)
        if state is None or master is None:
            why = f"the group {group} is unknown" if state is None else state.advice or "its master is dead"
            raise RequestRefused(
                ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
                f"no living master of {group} can hand over: {why}",
                self._leader or self.addresses[0],
            )
        return await self.hand_over(master.address, group, broker_id, timeout=timeout)

    async def rebuild(self, group: GroupState) -> None:
        """Put a group together that the controllers have lost. Refused when they know replicas of it."""
        await self.ask_leader(RequestCode.BROKERSET_REBUILD_GROUP, body=group.to_json())

    async def broker(self, address: str) -> BrokerObservation:
        """Ask a broker who it is (1007)."""
        answer = await self.request(address, RequestCode.GET_BROKER_EPOCH_CACHE, timeout=OBSERVE_SECONDS)
        cache = readable(EpochEntryCache.from_json, answer.body)
        identity = fields.BrokerIdentityAnswer.from_ext(answer.ext)
        return BrokerObservation(address, cache.cluster_name, cache.broker_name, identity)

    # -- inside -------------------------------------------------------------------------------------------

    async def _ask_who_leads(self) -> tuple[str | None, list[str]]:
        """The leader's address if somebody knows it, and why each of those that do not answer does not."""
        problems = []
        for address in self.addresses:
            try:
                answer = await self.request(
                    address, RequestCode.CONTROLLER_GET_METADATA_INFO, timeout=OBSERVE_SECONDS
                )
            except RequestRefused as error:
                text = f"{address} is no controller" if error.code in NOT_SERVED else str(error)
                problems.append(text)
                continue
            except ClientError as error:
                problems.append(str(error))
                continue
            found = fields.GetMetaDataResponse.from_ext(answer.ext)
            if found.is_leader:
                return address, []
            if found.controller_leader_address:
                return found.controller_leader_address, []
        return None, problems

    async def _observe(self, address: str) -> ControllerObservation:
        try:
            answer = await self.request(
                address, RequestCode.BROKERSET_CONTROLLER_STATUS, timeout=OBSERVE_SECONDS
            )
            return ControllerObservation(address, readable(ControllerStatus.from_json, answer.body))
        except RequestRefused as error:
            text = "is no controller of brokerset" if error.code in NOT_SERVED else str(error)
            return ControllerObservation(address, None, text)
        except ClientError as error:
            return ControllerObservation(address, None, str(error))

    async def ask_leader(
        self, code: RequestCode, header: headers.Header | None = None, body: bytes = b""
    ) -> Command:
        """Ask the leader; again when it does not lead any more. Every such request may be repeated."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        while True:
            address = self._leader or await self.leader()
            try:
                answer = await self.request(address, code, header, body)
                self._leader = address
                return answer
            except RequestRefused as error:
                if error.code != ResponseCode.CONTROLLER_NOT_LEADER:
                    raise
                problem: ClientError = error
            except BrokerUnreachable as error:
                problem = error
            self._leader = None
            if asyncio.get_running_loop().time() >= deadline:
                raise problem
            await asyncio.sleep(LEADER_PAUSE_SECONDS)


def _as_group(name: str, info: ReplicasInfo, cluster_name: str) -> GroupState:
    """What 1006 tells, in the form of what our controllers tell; owner and check codes stay open."""
    replicas = sorted((*info.in_sync_replicas, *info.not_in_sync_replicas), key=lambda each: each.broker_id)
    return GroupState(
        cluster_name=cluster_name,
        broker_name=name,
        owner=None,
        expected_replicas=0,
        next_broker_id=max((each.broker_id for each in replicas), default=0) + 1,
        master_id=info.master_broker_id,
        master_epoch=info.master_epoch,
        sync_state_set=tuple(sorted(each.broker_id for each in info.in_sync_replicas)),
        sync_state_set_epoch=info.sync_state_set_epoch,
        suspects=(),
        losses=(),
        replicas=tuple(
            ReplicaState(
                broker_id=each.broker_id,
                address=each.broker_address,
                check_code="",
                incarnation=0,
                nonce=None,
                standing=ALIVE if each.alive else "dead",
            )
            for each in replicas
        ),
    )
