"""What brokers know when all controllers' data is lost: read off disks and roles, not from answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokerset_formats.epochs import EpochHistory, decode_epoch_file
from brokerset_formats.identity import StartRecord

if TYPE_CHECKING:
    from brokerset_sim.broker_node import BrokerNode
    from brokerset_sim.world import World


@dataclass(frozen=True, slots=True)
class Survived:
    """The highest numbers of a group that any of its brokers knows."""

    epoch: int = 0
    next_id: int = 1


def members_of(world: World, name: str) -> list[BrokerNode]:
    """Brokers whose folders belong to the group and are in use: those that are asked before it is rebuilt."""
    return [
        node
        for node in world.brokers_of(name)
        if node.disk.durable().get("brokerIdentity") is not None
        and not node.is_stranger()
        and not (node.retired and not node.up)
    ]


def epoch_on_disk(node: BrokerNode) -> int:
    """The last epoch of the log, 0 without any; one that begins behind its end went with the page cache."""
    data = node.disk.durable().get("epochFileCheckpoint")
    history = decode_epoch_file(data) if data is not None else EpochHistory()
    return max((each.epoch for each in history.entries if each.start_offset <= node.log_end), default=0)


def survived(world: World, name: str) -> Survived:
    """What the group's brokers know. What only emptied or rolled back folders knew is nobody's knowledge."""
    epoch, next_id = 0, 1
    for node in members_of(world, name):
        files = node.disk.durable()
        identity = node.identity()
        assert identity is not None
        next_id = max(next_id, identity.broker_id + 1)
        if "brokerIdentity-start" in files:
            record = StartRecord.decode(files["brokerIdentity-start"])
            epoch, next_id = max(epoch, record.group_epoch), max(next_id, record.next_broker_id)
        epoch = max(epoch, epoch_on_disk(node))
        if node.up:
            epoch = max(epoch, node.role.epoch)
    return Survived(epoch, next_id)
