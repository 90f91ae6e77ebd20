"""What a run consists of, drawn from its seed: sizes, faults, and what administrators do."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

SIZES = (3, 3, 3, 5, 5, 1, 2, 4, 7)
"""Controllers of a run; even sizes see an off-by-one in a majority, odd ones do not."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything but the dice themselves. Chances are per fault drawn, rates per second."""

    controllers: int = 3
    brokers: tuple[int, ...] = (2,)
    """Our brokers in each group."""

    java_brokers: int = 0
    """Brokers without nonces, in a group of their own."""

    seconds: float = 16.0
    """Length of the phase with faults."""

    tick_ms: int = 150
    snapshot_entries: int = 100
    unclean: bool = False
    pause_between: float = 1.0
    """Mean seconds between two faults."""

    faults: dict[str, float] = field(default_factory=dict)
    """Weight of each fault; those that are missing do not happen."""

    admin: dict[str, float] = field(default_factory=dict)
    """Weight of each thing that administrators do."""

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    reset: float = 0.0
    stalls: float = 0.0
    admin_pause: float = 0.4
    """Mean seconds between two wishes of administrators."""

    append_bytes: int = 1 << 20
    """Most bytes of entries in one raft message; small, so that a log travels in pieces."""

    chunk_bytes: int = 1 << 20
    """Likewise for snapshots."""

    rebuild: bool = False
    """Whether the controllers' data is lost altogether, once."""

    replicating: bool = False
    """Whether brokers have logs that they replicate, and clients."""

    min_in_sync: int = 1
    sync_flush: bool = False
    clients: int = 2
    """In each group."""

    lanes: int = 1
    """Sends of one client on their way at a time."""

    send_pause: float = 0.05
    """Mean seconds between two sends of a lane."""

    acknowledges_alone: bool = False
    """Whether the master acknowledges without waiting for others."""

    record_bytes: int = 200
    """Most bytes of a record beyond its head."""

    disk_checks: float = 0.15
    """Chance that a promise is compared with the disk as it leaves."""

    drill: str = ""
    """Name of a directed schedule (`drills`) in place of faults; then `seconds` does not count."""

    metadata_clients: int = 0
    """In each group, who change topics and groups and commit offsets; without them there is no metadata."""

    metadata_pause: float = 0.15
    """Mean seconds between two changes of one such client, of each kind."""

    snapshot_each_bytes: int = 12_000
    """Growth of the log after which a master writes all metadata once more."""


ALL_FAULTS = {
    "kill controller": 3.0,
    "power controller": 3.0,
    "crash controller at a write": 2.0,
    "pause controller": 1.5,
    "pause leader": 1.0,
    "cut off controller": 1.0,
    "kill broker": 3.0,
    "reboot broker host": 2.0,
    "crash broker at a write": 2.0,
    "crash broker after a step": 2.0,
    "close broker": 0.7,
    "pause broker": 1.5,
    "move broker": 1.0,
    "isolate": 2.0,
    "split": 1.5,
    "one way": 1.5,
    "isolate leader": 1.5,
    "jump clock": 1.0,
    "fail sync": 0.4,
    "copy broker": 0.8,
    "roll back broker": 0.6,
    "power everything": 0.5,
    "empty broker": 0.5,
    "new broker": 0.5,
    "foreign volume": 0.4,
}

WRONG_FOLDERS = {
    "copy broker": 2.0,
    "roll back broker": 4.0,
    "empty broker": 4.0,
    "kill broker": 3.0,
    "move Java broker": 2.0,
}
"""What a part of the seeds does besides: it takes several of these in a row for most of it to happen."""

WRONG_FOLDERS_CHANCE = 0.25

ALL_ADMIN = {
    "read": 4.0,
    "read states": 4.0,
    "status": 1.0,
    "elect": 1.0,
    "elect unclean": 0.3,
    "clean": 0.7,
    "clean dead": 0.5,
    "snapshot": 1.0,
    "transfer": 1.0,
    "add controller": 0.7,
    "remove controller": 0.5,
    "config": 0.3,
    "nonsense": 0.7,
    "next id": 0.5,
}


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    dice = random.Random(f"plan {seed}")
    faults = {name: weight for name, weight in ALL_FAULTS.items() if dice.random() < 0.6}
    admin = {name: weight for name, weight in ALL_ADMIN.items() if dice.random() < 0.7}
    rough = dice.random()
    if random.Random(f"folders {seed}").random() < WRONG_FOLDERS_CHANCE:
        faults |= WRONG_FOLDERS
    return Plan(
        controllers=dice.choice(SIZES),
        brokers=tuple(dice.randint(1, 4 if number == 0 else 2) for number in range(dice.choice((1, 1, 2)))),
        java_brokers=dice.choice((0, 0, 0, 1, 2)),
        seconds=dice.choice((10.0, 14.0, 18.0)),
        snapshot_entries=dice.choice((10, 25, 100)),
        unclean=dice.random() < 0.15,
        pause_between=dice.choice((0.5, 0.8, 1.2)),
        faults=faults,
        admin=admin,
        lost=rough * dice.choice((0.0, 0.02, 0.1)),
        doubled=rough * dice.choice((0.0, 0.05, 0.2)),
        late=rough * dice.choice((0.0, 0.05, 0.2)),
        reset=rough * dice.choice((0.0, 0.02, 0.05)),
        stalls=dice.choice((0.0, 0.0, 0.01, 0.03)),
        rebuild=dice.random() < 0.1,
        admin_pause=dice.choice((0.1, 0.4)),
        append_bytes=dice.choice((1, 300, 1 << 20)),
        chunk_bytes=dice.choice((64, 1 << 20)),
    )


REPLICA_FAULTS = {
    "kill controller": 1.0,
    "pause leader": 0.7,
    "crash controller at a write": 0.7,
    "kill broker": 2.0,
    "kill master": 3.0,
    "pause master": 2.0,
    "cut off master": 2.0,
    "cut replication": 2.0,
    "reboot broker host": 1.5,
    "reboot master": 1.5,
    "crash broker at a write": 1.5,
    "crash broker after a step": 0.5,
    "close broker": 1.0,
    "pause broker": 2.0,
    "move broker": 0.7,
    "swap brokers": 0.7,
    "isolate": 1.5,
    "split": 1.0,
    "one way": 1.5,
    "isolate leader": 0.7,
    "break replication": 2.0,
    "power everything": 0.3,
    "replace by copy": 0.4,
}
"""Faults of runs with replication."""

REPLICA_ADMIN = {
    "read": 1.0,
    "elect": 1.0,
    "switch over": 3.0,
    "fence": 0.7,
    "unfence": 1.0,
    "transfer": 0.3,
}

ROLLED_BACK = {"roll back replica": 6.0}
"""What a part of the seeds does besides, where controllers keep their data."""

ROLLED_BACK_CHANCE = 0.25

UNCLEAN_CHANCE = 0.05
"""Part of the seeds in which messages may be lost on purpose."""


def draw_replicating(seed: int) -> Plan:
    """The plan of a seed with replication. Half of them are mostly available."""
    dice = random.Random(f"replicas {seed}")
    faults = {name: weight for name, weight in REPLICA_FAULTS.items() if dice.random() < 0.6}
    admin = {name: weight for name, weight in REPLICA_ADMIN.items() if dice.random() < 0.6}
    unclean = dice.random() < UNCLEAN_CHANCE
    if unclean:
        admin["elect unclean"] = 0.5
    rough = dice.random()
    replicas = dice.choice((2, 3, 3, 3, 4))
    alone = dice.random() < 0.15
    quiescent = dice.random() < 0.5
    metadata = random.Random(f"metadata {seed}")
    plan = Plan(
        controllers=dice.choice((1, 3, 3)),
        brokers=(replicas,),
        seconds=dice.choice((16.0, 24.0)) if quiescent else dice.choice((8.0, 14.0)),
        unclean=unclean and dice.random() < 0.5,
        pause_between=dice.choice((3.0, 5.0)) if quiescent else dice.choice((0.8, 1.5)),
        faults=faults,
        admin=admin,
        lost=rough * dice.choice((0.0, 0.02)),
        doubled=rough * dice.choice((0.0, 0.0, 0.05)),
        late=rough * dice.choice((0.0, 0.05, 0.2)),
        reset=rough * dice.choice((0.0, 0.02)),
        stalls=dice.choice((0.0, 0.0, 0.01)),
        rebuild=dice.random() < 0.04,
        admin_pause=dice.choice((1.0, 3.0)),
        disk_checks=0.0,
        replicating=True,
        min_in_sync=dice.choice((1, 2, 2)) if replicas > 2 and not alone else 1,
        sync_flush=dice.random() < 0.3,
        acknowledges_alone=alone,
        clients=dice.choice((1, 2, 3)),
        lanes=dice.choice((1, 2, 4)),
        send_pause=dice.choice((0.005, 0.02, 0.05, 0.1)),
        record_bytes=dice.choice((1, 200, 700)),
        metadata_clients=metadata.choice((0, 1, 1, 2)),
        metadata_pause=metadata.choice((0.1, 0.3)),
    )
    if not plan.rebuild and random.Random(f"rolled back {seed}").random() < ROLLED_BACK_CHANCE:
        plan = replace(plan, faults=plan.faults | ROLLED_BACK)
    return plan
