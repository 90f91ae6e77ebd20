"""Directed schedules: a few steps that bring a rare situation about, in a world whose timing is still drawn.

A drill takes the place of the faults of a run (`Plan.drill`). It waits for what each of its steps needs, and
returns whether it was carried to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from brokerset_broker.member.role import Role
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import ElectMaster, GetReplicaInfo
from brokerset_runtime.remoting.connection import ConnectionClosed, RequestTimeout
from brokerset_sim.history import Violation
from brokerset_sim.network import SimAsker
from brokerset_sim.replica_node import ReplicaNode

if TYPE_CHECKING:
    from brokerset_sim.controller_node import ControllerNode
    from brokerset_sim.world import World

GROUP: Final = "group-0"
"""The group that drills are about."""

STEP_SECONDS: Final = 10.0
"""Time that each step has."""

ANSWER_SECONDS: Final = 2.0
"""For an administrator's request."""

LOOK_SECONDS: Final = 0.0005
"""Between two looks at the world: shorter than any message takes."""

TRAFFIC_SECONDS: Final = 0.6
"""Time in which clients send something, between two steps."""

IN_DOUBT_SECONDS: Final = 1.5
"""Half of what a proposal waits for its answer: sends that begin to wait then still do at its end."""

REFUSED_SECONDS: Final = 3.0
"""In which the proposal is given up, and the next one is refused."""

OUT_OF_REACH_SECONDS: Final = 4.0
"""Longer than a lease, a replica's lag, and what a send waits for replicas."""

JOINING_SECONDS: Final = 1.0
"""For a join that should not happen."""

ON_ITS_WAY_SECONDS: Final = 0.2
"""Longer than it takes to connect and to send something."""

RELIEVED: Final = "a master that hears no slave is relieved, once in a while"
MENDED: Final = "sends are acknowledged soon after the network is mended"

RELIEVED_SECONDS_MAX: Final = 4.0
"""Of `haMaxTimeSlaveNotCatchup` (2 s), the election, and a slave that follows the next master."""

RELIEF_PAUSE_SECONDS: Final = 10.0
"""Between two reliefs, at the least."""

MENDED_SECONDS_MAX: Final = 1.0
"""Until slaves of a master that stayed are in sync again."""

READS: Final = 3
"""Requests that wait at a stopped controller."""

ROUNDS: Final = 3
"""How often what depends on dice is tried."""

Drill = Callable[["World"], Awaitable[bool]]


async def join_in_doubt(world: World) -> bool:
    """A master does not hear that a join is in force; who has joined takes over; then the master is refused.

    The third replica goes on following the old master, which hears of no election: whatever is settled there
    without the replica that has joined, is lost.
    """
    roles = await _in_sync(world)
    if roles is None:
        return False
    master, follower, joining = roles
    joining_id, others = joining.role_id, frozenset((master.role_id, follower.role_id))
    _cut(world, master, joining)
    if not await _until(lambda: _settled(world, master) == others):
        return False
    world.network.heal()
    answers = (RequestCode.CONTROLLER_GET_REPLICA_INFO, RequestCode.NOTIFY_BROKER_ROLE_CHANGED)
    for node in (master, follower):
        for code in answers:
            world.network.deaf[(node.host.name, code)] = None
    proposals = (master.host.name, RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET)
    world.network.deaf[proposals] = None
    if not await _until(lambda: joining_id in _in_force(world)):
        return False
    await asyncio.sleep(IN_DOUBT_SECONDS)
    if not await _elect(world, joining_id) or not await _until(lambda: joining.role.role is Role.MASTER):
        return False
    del world.network.deaf[proposals]
    await asyncio.sleep(REFUSED_SECONDS)
    world.network.heal()
    return True


async def tail_lost(world: World) -> bool:
    """A slave's host loses power; it comes back with less, and the master's bytes are late.

    Clients rest meanwhile: the slave has once acknowledged all there is.
    """
    for _ in range(ROUNDS):
        roles = await _in_sync(world)
        if roles is None:
            return False
        await asyncio.sleep(TRAFFIC_SECONDS)
        _rest(world, True)
        try:
            if not await _lose_tail(world, *roles):
                return False
        finally:  # a run that ends waits for its clients
            _rest(world, False)
    return True


async def _lose_tail(world: World, master: ReplicaNode, slave: ReplicaNode) -> bool:
    slave_id, alone = slave.role_id, frozenset((master.role_id,))
    await asyncio.sleep(TRAFFIC_SECONDS / 3)
    slave.stop(power=True)
    has_left = await _until(lambda: _settled(world, master) == alone)
    acknowledgements = world.witness.counts["ack"]
    slave.start()
    follows = await _until(lambda: world.witness.counts["ack"] > acknowledgements)
    world.network.cut(master.host.name, slave.host.name)
    await _until(lambda: slave_id in _in_force(world), seconds=JOINING_SECONDS)
    world.network.heal()
    return has_left and follows


async def slaves_out_of_reach(world: World) -> bool:
    """A master reaches none of its slaves, for longer than a send waits and than they stay in sync."""
    roles = await _in_sync(world)
    if roles is None:
        return False
    master, *slaves = roles
    for slave in slaves:
        _cut(world, master, slave)
    await asyncio.sleep(OUT_OF_REACH_SECONDS)
    world.network.heal()
    return True


async def controllers_out_of_reach(world: World) -> bool:
    """A master that clients and slaves reach does not reach the controllers, for longer than its lease."""
    for _ in range(ROUNDS):
        roles = await _in_sync(world)
        if roles is None:
            return False
        await asyncio.sleep(TRAFFIC_SECONDS)
        for controller in world.controllers.values():
            _cut(world, roles[0], controller)
        await asyncio.sleep(OUT_OF_REACH_SECONDS)
        world.network.heal()
    return True


async def deposed_controller(world: World) -> bool:
    """A leading controller is stopped and cut off; behind another one's back it goes on, and is read from.

    What the new leader has committed meanwhile is not in its state; nothing has told it so.
    """
    if not await _until(lambda: bool(_in_force(world)) and world.leader() is not None):
        return False
    old = world.leader()
    assert old is not None
    assert old.process is not None
    for other in world.controllers.values():
        if other is not old:
            _cut(world, old, other)
    old.process.pause()
    reads: list[asyncio.Task[Command | None]] = []
    try:
        if not await _until(lambda: world.leader() not in (None, old)):
            return False
        before = world.witness.history.groups.get(GROUP)
        node = next(node for node in world.brokers_of(GROUP) if node.up)
        node.stop(power=False)
        node.start()
        if not await _until(lambda: world.witness.history.groups.get(GROUP) != before):
            return False
        header = GetReplicaInfo(broker_name=GROUP).to_ext()
        for _ in range(READS):
            command = Command(RequestCode.CONTROLLER_GET_REPLICA_INFO, dict(header))
            reads.append(world.loop.create_task(_ask(world, old.service_address, command)))
        await asyncio.sleep(ON_ITS_WAY_SECONDS)
    finally:
        old.process.unpause()
    await asyncio.gather(*reads)
    world.network.heal()
    return True


async def everything_lost(world: World) -> bool:
    """The only broker in sync loses its power, and all controllers lose their data; all are started again.

    Nobody but that broker had what it acknowledged last.
    """
    roles = await _in_sync(world)
    if roles is None:
        return False
    master, *slaves = roles
    for slave in slaves:
        slave.stop(power=False)
    if not await _until(lambda: _settled(world, master) == frozenset((master.role_id,))):
        return False
    await asyncio.sleep(TRAFFIC_SECONDS)
    master.stop(power=True)
    await world.chaos.lose_controllers()
    return True


async def rolled_back(world: World) -> bool:
    """Everybody is killed at once, and a slave's volume is rolled back to a copy from since its start.

    No controller remembers how long the slave's log was. The slave is there first; the master, which has
    everything, comes later.
    """
    roles = await _in_sync(world)
    if roles is None:
        return False
    master, slave = roles
    slave.back_up()
    await asyncio.sleep(TRAFFIC_SECONDS)
    controllers: list[ControllerNode | ReplicaNode] = list(world.controllers.values())
    for each in (*controllers, master, slave):
        each.stop(power=False)
    world.rolled_back(slave, slave.role_id)
    slave.roll_back(*slave.backups[-1])
    for each in (*controllers, slave):
        each.start()
    came_back = await _until(lambda: slave.membership is not None and slave.membership.registered)
    await asyncio.sleep(OUT_OF_REACH_SECONDS)
    master.start()
    return came_back and await _until(lambda: master.role.role is Role.MASTER)


async def cut_off_from_slaves(world: World) -> bool:
    """A master that clients and controllers reach does not reach its slaves, who reach each other; later the
    next one does not.

    The first time another one leads, and sends are acknowledged during the cut. That soon after it the second
    one stays master, and sends are acknowledged soon when its network is mended.
    """
    first = 0.0
    for number in range(2):
        roles = await _in_sync(world)
        if roles is None:
            return False
        await asyncio.sleep(TRAFFIC_SECONDS)
        master, *slaves = roles
        for slave in slaves:
            _cut(world, master, slave)
        if number == 0:
            first = world.loop.time()
            await _demand_service(world, RELIEVED, RELIEVED_SECONDS_MAX, other_than=master)
        else:
            await asyncio.sleep(OUT_OF_REACH_SECONDS)
        allowed = 1 + (world.loop.time() - first) // RELIEF_PAUSE_SECONDS
        if world.witness.counts["elected: relieved"] > allowed:
            raise Violation(RELIEVED, "masters are relieved one after the other")
        world.network.heal()
        await _demand_service(world, MENDED, MENDED_SECONDS_MAX)
    return True


async def _demand_service(
    world: World, promise: str, seconds: float, other_than: ReplicaNode | None = None
) -> None:
    """A master that has enough replicas is there in time, and clients, who may know an old one, find it."""

    def serves() -> bool:
        found = [node for node in world.brokers_of(GROUP) if node is not other_than and node.up]
        masters = [node for node in found if isinstance(node, ReplicaNode) and node.serves_with_enough()]
        return bool(masters)

    if not await _until(serves, seconds):
        raise Violation(promise, f"no master had enough replicas in {seconds} s: {_in_force(world)}")
    begun = world.loop.time()
    if not await _until(lambda: any(each.last_acknowledged > begun for each in world.clients)):
        raise Violation(promise, f"nothing was acknowledged in {STEP_SECONDS} s")


DRILLS: Final[dict[str, Drill]] = {
    "join in doubt": join_in_doubt,
    "tail lost": tail_lost,
    "slaves out of reach": slaves_out_of_reach,
    "controllers out of reach": controllers_out_of_reach,
    "deposed controller": deposed_controller,
    "everything lost": everything_lost,
    "rolled back": rolled_back,
    "cut off from slaves": cut_off_from_slaves,
}
"""By the name that plans use."""


# -- what there is -------------------------------------------------------------------------------------


async def _until(condition: Callable[[], bool], seconds: float = STEP_SECONDS) -> bool:
    """Wait until something is so; False if it is not in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():  # the world tells nobody, and virtual time costs little
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(LOOK_SECONDS)
    return True


def _in_force(world: World) -> frozenset[int]:
    """The in-sync set that the controllers have committed."""
    group = world.witness.history.groups.get(GROUP)
    return frozenset() if group is None else group.sync_state_set


def _settled(world: World, master: ReplicaNode) -> frozenset[int]:
    """The in-sync set in force, if the master knows it and has proposed no other; else nothing."""
    if master.running is None:
        return frozenset()
    status = master.running.replication.status()
    in_force = _in_force(world)
    return in_force if status.sync_state_set == in_force and not status.pending_sets else frozenset()


async def _in_sync(world: World) -> list[ReplicaNode] | None:
    """The master and its slaves by id, as soon as all are in sync; None if that takes too long."""
    nodes = [node for node in world.brokers_of(GROUP) if isinstance(node, ReplicaNode)]
    found: list[ReplicaNode] = []

    def whole() -> bool:
        group = world.witness.history.groups.get(GROUP)
        if group is None or group.master_id is None or not all(node.up for node in nodes):
            return False
        found[:] = [n for n in nodes if (n.role.role, n.role.epoch) == (Role.MASTER, group.master_epoch)]
        return bool(found) and len(_settled(world, found[0])) == len(nodes)

    if not await _until(whole):
        return None
    slaves = sorted((node for node in nodes if node is not found[0]), key=lambda node: node.role_id)
    return [*found, *slaves]


# -- what is done --------------------------------------------------------------------------------------


def _cut(world: World, one: ReplicaNode | ControllerNode, other: ReplicaNode | ControllerNode) -> None:
    """Lose everything between two hosts."""
    world.network.cut(one.host.name, other.host.name)
    world.network.cut(other.host.name, one.host.name)


def _rest(world: World, on: bool) -> None:
    """Stop all clients, or let them go on."""
    for client in world.clients:
        if on:
            client.process.pause()
        else:
            client.process.unpause()


async def _elect(world: World, broker_id: int) -> bool:
    """An administrator names a master; whether the controllers take it."""
    leader = world.leader()
    if leader is None:
        return False
    header = ElectMaster(cluster_name="sim", broker_name=GROUP, broker_id=broker_id, designate_elect=True)
    command = Command(RequestCode.CONTROLLER_ELECT_MASTER, header.to_ext())
    reply = await _ask(world, leader.service_address, command)
    return reply is not None and reply.code == ResponseCode.SUCCESS


async def _ask(world: World, address: str, command: Command) -> Command | None:
    """An administrator asks; None without an answer."""
    process = world.admin.process
    assert process is not None
    try:
        return await SimAsker(world.network, process).ask(address, command, ANSWER_SECONDS)
    except (ConnectionClosed, RequestTimeout):
        return None
