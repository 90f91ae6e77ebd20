"""What administrators ask of controllers, at any time: reads, elections, cleaning, members, rebuilding."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING

import orjson

from brokerset_protocol.bodies.controllers import ControllerStatus, GroupState, GroupStates, ReplicaState
from brokerset_protocol.bodies.replicas import BrokerReplicasInfo, EpochEntryCache
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.codec import Header
from brokerset_protocol.headers.controller import (
    BrokerIdentityAnswer,
    ChangeMembers,
    CleanControllerBrokerData,
    ElectMaster,
    FenceReplica,
    GetNextBrokerId,
    GetReplicaInfo,
    RegisterBrokerToController,
    SwitchOver,
    TransferLeader,
)
from brokerset_runtime.remoting.connection import ConnectionClosed, RequestTimeout
from brokerset_sim.broker_node import find_leader
from brokerset_sim.controller_node import ControllerNode
from brokerset_sim.history import Violation
from brokerset_sim.network import SimAsker
from brokerset_sim.process import Process
from brokerset_sim.survivors import members_of

if TYPE_CHECKING:
    from brokerset_sim.world import World

ASK_SECONDS = 2.0
REBUILD_SECONDS = 40.0
CONTROLLERS_MAX = 5


class Admin:
    """An administrator's machine."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.host = world.new_host("admin")
        self.dice: random.Random = world.random_for("admin")
        self.process: Process | None = None
        self._new_ids = itertools.count(10)

    def start(self) -> None:
        """Log in."""
        self.process = Process(self.world.loop, "admin", self.host, self.world.process_died)
        self.process.node = self
        self._asker = SimAsker(self.world.network, self.process)

    async def run(self) -> None:
        """Ask for this and that until cancelled."""
        plan = self.world.plan
        names, weights = list(plan.admin), list(plan.admin.values())
        if not names:
            return
        while True:
            await asyncio.sleep(self.dice.expovariate(1 / plan.admin_pause))
            if self.world.frozen:
                continue
            wish = self.dice.choices(names, weights)[0]
            self.world.note("admin", wish)
            await self._do(wish)

    async def read_everything(self) -> None:
        """Reads of a calm world, whose answers are checked like all others."""
        groups = list(self.world.witness.history.groups)
        for name in groups:
            await self._ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfo(broker_name=name))
        if groups:
            await self._ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=orjson.dumps(groups))
        await self._ask(RequestCode.BROKERSET_GROUP_STATES)

    async def unfence_all(self) -> None:
        """Let every replica serve again."""
        for _ in range(20):
            fenced = [
                (name, broker_id)
                for name, group in sorted(self.world.witness.history.groups.items())
                for broker_id in sorted(group.fenced)
            ]
            if not fenced:
                return
            for name, broker_id in fenced:
                header = FenceReplica(broker_name=name, broker_id=broker_id, fenced=False)
                await self._ask(RequestCode.BROKERSET_FENCE_REPLICA, header)
            await asyncio.sleep(0.5)

    async def rebuild(self) -> int:
        """Put every group together from what its brokers answer to 1007; returns how many."""
        world = self.world
        done: dict[str, None] = {}
        wanted = {
            name: None
            for name in dict.fromkeys(node.group for node in world.brokers)
            if members_of(world, name)
        }
        until = world.loop.time() + REBUILD_SECONDS
        while world.loop.time() < until and len(done) < len(wanted):
            await asyncio.sleep(0.5)
            for name in wanted:
                if name in done:
                    continue
                state = await self._state_of(name)
                if state is None:
                    continue
                reply = await self._ask(RequestCode.BROKERSET_REBUILD_GROUP, body=state.to_json())
                group = world.witness.history.groups.get(name)
                if reply is not None and group is not None and group.known:
                    done[name] = None
        if len(done) < len(wanted):
            raise Violation("14 lost controllers can be rebuilt", f"only {list(done)} of {list(wanted)}")
        return len(done)

    async def _state_of(self, name: str) -> GroupState | None:
        """A group as its brokers know it; None while one of them does not answer."""
        replicas: dict[int, ReplicaState] = {}
        next_id, epoch = 1, 0
        owner, expected = None, 0
        ranks: dict[int, int] = {}
        for node in members_of(self.world, name):
            try:
                reply = await self._asker.ask(node.address, Command(RequestCode.GET_BROKER_EPOCH_CACHE), 0.5)
            except (ConnectionClosed, RequestTimeout):
                return None
            answer = BrokerIdentityAnswer.from_ext(reply.ext)
            if answer.replica_id is None:
                return None
            cache = EpochEntryCache.from_json(reply.body)
            broker_id = answer.replica_id
            next_id = max(next_id, broker_id + 1, answer.next_broker_id or 0)
            epoch = max(epoch, answer.group_epoch or 0, *(each.epoch for each in cache.epoch_list), 0)
            owner, expected = answer.owner_uid, answer.expected_replicas or 0
            rank = answer.incarnation or 0
            if broker_id in replicas and ranks[broker_id] >= rank:
                continue
            ranks[broker_id] = rank
            replicas[broker_id] = ReplicaState(
                broker_id, node.address, answer.check_code or "adopted;", rank, answer.nonce, "unknown"
            )
        members = tuple(replicas[broker_id] for broker_id in sorted(replicas))
        return GroupState("sim", name, owner, expected, next_id, None, epoch, (), 0, (), (), members)

    # -- wishes -------------------------------------------------------------------------------------------

    async def _do(self, wish: str) -> None:
        world, dice = self.world, self.dice
        groups = world.witness.history.groups
        known = [name for name, group in groups.items() if group.known]
        name = dice.choice(known) if known else "group-0"
        group = groups.get(name)
        ids = sorted(group.replicas) if group is not None else [1]
        match wish:
            case "read":
                await self._ask(
                    RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfo(broker_name=name), anyone=True
                )
            case "read states":
                await self._ask(
                    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
                    body=orjson.dumps(known or ["none"]),
                    anyone=True,
                )
            case "status":
                reply = await self._ask(RequestCode.BROKERSET_CONTROLLER_STATUS, anyone=True)
                if reply is not None and reply.code == ResponseCode.SUCCESS:
                    ControllerStatus.from_json(reply.body)
                reply = await self._ask(
                    RequestCode.BROKERSET_GROUP_STATES, ext={"local": "true"}, anyone=True
                )
                if reply is not None and reply.code == ResponseCode.SUCCESS:
                    GroupStates.from_json(reply.body)
            case "elect" | "elect unclean":
                header = ElectMaster(
                    cluster_name="sim",
                    broker_name=name,
                    broker_id=dice.choice([*ids, -1]),
                    designate_elect=True,
                    unclean=True if wish == "elect unclean" else None,
                )
                await self._ask(RequestCode.CONTROLLER_ELECT_MASTER, header)
            case "switch over":
                master = group.replicas.get(group.master_id or 0) if group is not None else None
                if master is not None:
                    wanted = SwitchOver(broker_name=name, to_broker_id=dice.choice([None, *ids]))
                    await self._ask_at(master.address, RequestCode.BROKERSET_SWITCH_OVER, wanted)
            case "fence" | "unfence":
                await self._ask(
                    RequestCode.BROKERSET_FENCE_REPLICA,
                    FenceReplica(
                        broker_name=name,
                        broker_id=dice.choice(ids),
                        fenced=wish == "fence",
                        force=dice.choice((None, True)),
                    ),
                )
            case "clean":
                await self._clean(name, str(dice.choice(ids)))
            case "clean dead":
                dead = [
                    node.identity()
                    for node in world.brokers_of(name)
                    if not node.up and node.identity() is not None
                ]
                if dead and dead[0] is not None:
                    await self._clean(name, str(dead[0].broker_id))
            case "snapshot":
                await self._ask(RequestCode.BROKERSET_TAKE_SNAPSHOT, anyone=True)
            case "transfer":
                target = dice.choice(
                    [node.node_id for node in world.controllers.values() if not node.removed]
                )
                await self._ask(RequestCode.BROKERSET_TRANSFER_LEADER, TransferLeader(node_id=target))
            case "add controller":
                await self._add_controller()
            case "remove controller":
                await self._remove_controller()
            case "config":
                await self._ask(RequestCode.GET_CONTROLLER_CONFIG, anyone=True)
                await self._ask(RequestCode.UPDATE_CONTROLLER_CONFIG, body=b"probeTimeout=250\n", anyone=True)
            case "next id":
                header_next = GetNextBrokerId(cluster_name="sim", broker_name=dice.choice([name, "unknown"]))
                await self._ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header_next, anyone=True)
            case "nonsense":
                await self._talk_nonsense(name)

    async def _clean(self, name: str, ids: str) -> None:
        header = CleanControllerBrokerData(
            cluster_name="sim",
            broker_name=name,
            broker_controller_ids_to_clean=ids,
            is_clean_living_broker=False,
        )
        await self._ask(RequestCode.CLEAN_BROKER_DATA, header)

    async def _add_controller(self) -> None:
        world = self.world
        members = [node for node in world.controllers.values() if not node.removed]
        if len(members) >= CONTROLLERS_MAX:
            return
        node_id = next(self._new_ids)
        node = world.controllers[node_id] = ControllerNode(world, node_id)
        node.joins = True
        node.start()
        header = ChangeMembers(
            action="add",
            node_id=node_id,
            raft_address=node.raft_address,
            service_address=node.service_address,
        )
        await self._repeat(RequestCode.BROKERSET_CHANGE_MEMBERS, header)
        await self._repeat(
            RequestCode.BROKERSET_CHANGE_MEMBERS, ChangeMembers(action="promote", node_id=node_id)
        )

    async def _remove_controller(self) -> None:
        world = self.world
        members = [node for node in world.controllers.values() if not node.removed]
        if len(members) <= 2:
            return
        node = self.dice.choice(members)
        reply = await self._repeat(
            RequestCode.BROKERSET_CHANGE_MEMBERS, ChangeMembers(action="remove", node_id=node.node_id)
        )
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            world.note("removed", node.node_id)
            node.removed = True
            if self.dice.random() < 0.5:
                node.stop(power=False)

    async def _repeat(self, code: int, header: Header) -> Command | None:
        reply = None
        era = self.world.witness.history
        for _ in range(4):
            if self.world.frozen or self.world.witness.history is not era:
                return None  # the controllers that were meant are gone
            reply = await self._ask(code, header)
            if reply is not None and reply.code == ResponseCode.SUCCESS:
                return reply
            await asyncio.sleep(0.5)
        return reply

    async def _talk_nonsense(self, name: str) -> None:
        dice = self.dice
        requests: list[tuple[int, dict[str, str], bytes]] = [
            (RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, {}, b"{"),
            (RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, {}, b"[]"),
            (RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, {"brokerName": name, "masterBrokerId": "x"}, b""),
            (
                RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
                {"brokerName": name, "masterEpoch": "1"},
                b'{"syncStateSet":[99]}',
            ),
            (RequestCode.CONTROLLER_REGISTER_BROKER, {"brokerName": "unknown", "clusterName": "sim"}, b""),
            (RequestCode.CONTROLLER_REGISTER_BROKER, self._foreign(name), b""),
            (
                RequestCode.CONTROLLER_APPLY_BROKER_ID,
                {
                    "brokerName": name,
                    "appliedBrokerId": "77",
                    "registerCheckCode": "x;1",
                    "clusterName": "sim",
                },
                b"",
            ),
            (RequestCode.BROKERSET_CHANGE_MEMBERS, {"action": "grow", "nodeId": "1"}, b""),
            (RequestCode.BROKERSET_CHANGE_MEMBERS, {"action": "promote", "nodeId": "999"}, b""),
            (RequestCode.BROKERSET_TRANSFER_LEADER, {"nodeId": "999"}, b""),
            (RequestCode.BROKERSET_REBUILD_GROUP, {}, b"[]"),
            (
                RequestCode.BROKERSET_REBUILD_GROUP,
                {},
                GroupState("sim", name, None, 0, 1, None, 0, (), 0, (), (), ()).to_json(),
            ),
            (RequestCode.UPDATE_CONTROLLER_CONFIG, {}, b"nonsense=1\n"),
            (
                RequestCode.BROKER_HEARTBEAT,
                {"brokerName": name, "clusterName": "sim", "brokerAddr": "x:1"},
                b"",
            ),
            (
                RequestCode.CONTROLLER_ELECT_MASTER,
                {"brokerName": "unknown", "clusterName": "sim", "brokerId": "5"},
                b"",
            ),
            (RequestCode.CLEAN_BROKER_DATA, {"brokerName": name, "brokerControllerIdsToClean": "a;b"}, b""),
        ]
        code, ext, body = dice.choice(requests)
        await self._ask(code, ext=ext, body=body)

    def _foreign(self, name: str) -> dict[str, str]:
        """A broker of another owner with an id that nobody has."""
        return RegisterBrokerToController(
            cluster_name="sim",
            broker_name=name,
            broker_id=1,
            broker_address="stranger:1",
            invoke_time=0,
            next_nonce=f"stranger-{self.dice.getrandbits(32):x}",
            owner_uid="somebody else",
        ).to_ext()

    async def _ask(
        self,
        code: int,
        header: Header | None = None,
        *,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        anyone: bool = False,
    ) -> Command | None:
        world = self.world
        command = Command(code, header.to_ext() if header is not None else dict(ext or {}), body)
        try:
            if anyone and self.dice.random() < 0.5:
                address = self.dice.choice(world.controller_addresses())
            else:
                found = await find_leader(world, self._asker)
                if found is None:
                    return None
                address = found
            reply = await self._asker.ask(address, command, ASK_SECONDS)
        except (ConnectionClosed, RequestTimeout):
            return None
        if code == RequestCode.CONTROLLER_GET_SYNC_STATE_DATA and reply.code == ResponseCode.SUCCESS:
            BrokerReplicasInfo.from_json(reply.body)
        return reply

    async def _ask_at(self, address: str, code: int, header: Header) -> Command | None:
        """Ask one broker."""
        try:
            return await self._asker.ask(address, Command(code, header.to_ext()), 2 * ASK_SECONDS)
        except (ConnectionClosed, RequestTimeout):
            return None
