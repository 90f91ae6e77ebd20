"""A broker without nonces, as RocketMQ's: claims an id once, registers, sends heartbeats, answers 1007."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from brokerset_protocol.bodies.replicas import EpochEntry, EpochEntryCache
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import (
    ApplyBrokerId,
    BrokerHeartbeat,
    ElectMaster,
    GetNextBrokerId,
    GetNextBrokerIdResponse,
    GetReplicaInfo,
    GetReplicaInfoResponse,
    RegisterBrokerToController,
)
from brokerset_runtime.remoting.connection import ConnectionClosed, RequestTimeout
from brokerset_sim.broker_node import ASK_SECONDS, find_leader
from brokerset_sim.network import Endpoint, SimAsker
from brokerset_sim.process import Process

if TYPE_CHECKING:
    from brokerset_sim.world import World


class JavaBroker:
    """One folder of a Java broker; only its id and check code outlive its processes."""

    def __init__(self, world: World, name: str, group: str) -> None:
        self.world = world
        self.name = name
        self.group = group
        self.host = world.new_host(name)
        self.port = 10911
        self.broker_id: int | None = None
        self.code = ""
        self.registered = False
        self.epoch = -1
        self.offset = 0
        self.process: Process | None = None
        self.starts = 0

    @property
    def address(self) -> str:
        """Where it listens now."""
        return f"{self.host.name}:{self.port}"

    @property
    def up(self) -> bool:
        """Whether its process lives."""
        return self.process is not None and self.process.alive

    def start(self) -> None:
        """Run the process."""
        world = self.world
        self.starts += 1
        self.registered = False
        process = Process(world.loop, f"{self.name}.{self.starts}", self.host, world.process_died)
        process.node = self
        self.process = process
        asker = SimAsker(world.network, process)
        world.note("start", process.name)
        world.network.listen(
            Endpoint(process, self.address, {RequestCode.GET_BROKER_EPOCH_CACHE: self._answer_epochs})
        )
        process.spawn(process.call(self._main, asker), vital=True)

    def stop(self, *, power: bool) -> None:
        """Kill the process."""
        process = self.process
        if process is not None and process.alive:
            self.world.note("kill", process.name, power)
            process.kill()
            self.world.network.gone(process, silent=power)
            self.world.graveyard.append(process)

    def _answer_epochs(self, connection: Any, command: Command) -> Command:
        entries = (EpochEntry(self.epoch, 0, 2**63 - 1),) if self.epoch >= 0 else ()
        body = EpochEntryCache("sim", self.group, self.broker_id or 0, entries, self.offset)
        return command.reply(body=body.to_json())

    async def _main(self, asker: SimAsker) -> None:
        while True:
            await asyncio.sleep(0.5)
            try:
                leader = await find_leader(self.world, asker)
                if leader is None:
                    continue
                if self.broker_id is None:
                    await self._claim(asker, leader)
                elif not self.registered:
                    await self._register(asker, leader)
                else:
                    await self._live(asker, leader)
            except (ConnectionClosed, RequestTimeout):
                continue

    async def _claim(self, asker: SimAsker, leader: str) -> None:
        header = GetNextBrokerId(cluster_name="sim", broker_name=self.group)
        reply = await asker.ask(
            leader, Command(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header.to_ext()), ASK_SECONDS
        )
        if reply.code != ResponseCode.SUCCESS:
            return
        wanted = GetNextBrokerIdResponse.from_ext(reply.ext).next_broker_id
        self.code = f"{self.address};{round(self.world.loop.time() * 1000)}"
        apply = ApplyBrokerId(
            cluster_name="sim",
            broker_name=self.group,
            applied_broker_id=wanted,
            register_check_code=self.code,
        )
        reply = await asker.ask(
            leader, Command(RequestCode.CONTROLLER_APPLY_BROKER_ID, apply.to_ext()), ASK_SECONDS
        )
        if reply.code == ResponseCode.SUCCESS:
            self.broker_id = wanted

    async def _register(self, asker: SimAsker, leader: str) -> None:
        header = RegisterBrokerToController(
            cluster_name="sim",
            broker_name=self.group,
            broker_id=self.broker_id,
            broker_address=self.address,
            invoke_time=0,
        )
        reply = await asker.ask(
            leader, Command(RequestCode.CONTROLLER_REGISTER_BROKER, header.to_ext()), ASK_SECONDS
        )
        self.registered = reply.code == ResponseCode.SUCCESS

    async def _live(self, asker: SimAsker, leader: str) -> None:
        beat = BrokerHeartbeat(
            cluster_name="sim",
            broker_addr=self.address,
            broker_name=self.group,
            broker_id=self.broker_id,
            epoch=self.epoch,
            max_offset=self.offset,
            confirm_offset=self.offset,
            heartbeat_timeout_mills=2_000,
            election_priority=2**31 - 1,
        )
        for address in self.world.controller_addresses():
            try:
                await asker.tell(address, Command(RequestCode.BROKER_HEARTBEAT, beat.to_ext()), 0.2)
            except ConnectionClosed:
                continue
        ask = Command(
            RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfo(broker_name=self.group).to_ext()
        )
        reply = await asker.ask(leader, ask, ASK_SECONDS)
        if reply.code != ResponseCode.SUCCESS:
            self.registered = False
            return
        info = GetReplicaInfoResponse.from_ext(reply.ext)
        if info.master_broker_id is None:
            elect = ElectMaster(cluster_name="sim", broker_name=self.group, broker_id=self.broker_id or -1)
            await asker.ask(leader, Command(RequestCode.CONTROLLER_ELECT_MASTER, elect.to_ext()), ASK_SECONDS)
        elif info.master_broker_id == self.broker_id:
            self.epoch = max(self.epoch, info.master_epoch or 0)
            self.offset += 100
