"""What a seed of the world `ordered` draws: sizes, times, people, faults."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

CONTROLLER_FAULTS: Final = (
    "elect",
    "cut controller leader",
    "cut controller leader one way",
    "pause controller leader",
    "kill controller",
    "kill controllers",
    "slow agreement",
)
BROKER_FAULTS: Final = (
    "kill master",
    "pause master",
    "cut off master",
    "cut master from controllers",
    "switch over",
    "kill slave",
    "kill group",
    "slow replication",
)
CONSUMER_FAULTS: Final = (
    "pause consumer",
    "pause consumer shortly",
    "kill consumer",
    "restart consumer",
    "storm",
    "cut consumer from controllers",
    "cut consumer from brokers",
    "cut consumer from one broker",
    "cut off consumer",
    "cut consumer one way",
)
PRODUCER_FAULTS: Final = (
    "kill producer",
    "pause producer",
    "replace producer",
    "cut producer from controllers",
    "cut producer from brokers",
    "idle producer",
)
OTHER_FAULTS: Final = ("wall jump", "scale", "weather", "handlers fail", "handlers are slow")
FAULTS: Final = (*CONTROLLER_FAULTS, *BROKER_FAULTS, *CONSUMER_FAULTS, *PRODUCER_FAULTS, *OTHER_FAULTS)

COPY_SECONDS_MAX: Final = 8
DELAY_LEVELS: Final = "1s 1s 1s 2s 4s 6s" + f" {COPY_SECONDS_MAX}s" * 12
"""Of brokers: copies for retry are delayed by the third level, and then by one more each time."""

SHARED_CHANCE: Final = 0.3
"""Of a seed to have a Shared group besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedPlan:
    """One run."""

    seconds: float = 30.0
    """Of faults."""

    controllers: int = 3
    groups: tuple[int, ...] = (2, 2)
    """Brokers of each broker group."""

    strict: bool = True
    producers: int = 2
    keys: int = 4
    """Of each producer; nobody else sends with them."""

    consumers: int = 3
    """Of each group, at first."""

    consumer_groups: int = 1
    shared_groups: int = 0
    """Groups whose members consume all partitions; `consumers` is how many each has at first, too."""

    partitions: int = 4
    permission: float = 6.0
    """Seconds; the margins are a sixth of it, as in the defaults."""

    heartbeat: float = 1.0
    drift: float = 0.05
    """Clocks run so much faster or slower, at most. The margin is a sixth of the permission, so those of two
    hosts may differ by that; by no more, or the promise does not hold."""

    slow_consumers: float = 0.0
    """Clocks of consumers are slower by this besides."""

    fast_controllers: float = 0.0
    """Clocks of controllers are faster by this besides."""

    send_pause: float = 0.15
    """Of a producer between two sends, in the mean."""

    handler_seconds: float = 0.03
    faults: tuple[str, ...] = ()
    pause: float = 1.5
    """Between two faults, in the mean."""

    hold: float = 4.0
    """How long faults last, at most; those that shall outlast a permission take that besides."""

    lost: float = 0.0
    late: float = 0.0
    late_max: float = 3.0
    """How long late packets take at most."""

    doubled: float = 0.0
    repeated: float = 0.0
    """Chance of a request to come again, up to two permissions later."""

    reset: float = 0.0
    fails: float = 0.05
    """Chance of a handler to fail, at first."""

    poisoned: bool = False
    """Whether each group has a key whose messages fail for a while."""

    @property
    def finished_seconds(self) -> float:
        """How long the retry queue of a drained partition stays empty first: longer than copies are delayed,
        and brokers are out."""
        return COPY_SECONDS_MAX + 2 * self.permission + self.hold

    @property
    def has_copies(self) -> bool:
        """Whether there are copies for retry."""
        return not self.strict or self.shared_groups > 0


def draw_ordered(seed: int) -> OrderedPlan:
    """The plan of a seed."""
    dice = random.Random(f"{seed}/ordered/plan")
    real_times = dice.random() < 0.12
    permission = 30.0 if real_times else dice.choice((4.0, 6.0, 6.0, 9.0))
    kinds = [CONTROLLER_FAULTS, BROKER_FAULTS, CONSUMER_FAULTS, PRODUCER_FAULTS, OTHER_FAULTS]
    faults: list[str] = []
    if dice.random() < 0.4:
        faults += FAULTS
    else:
        for kind in kinds:
            faults += dice.sample(kind, dice.randint(0, min(4, len(kind))))
        faults.append("scale")
    # A stopped producer that is replaced may send what it had not sent yet to a newer partition.
    without = "scale" if dice.random() < 0.2 else "replace producer"
    faults = [fault for fault in faults if fault != without]
    strict = dice.random() < 0.85
    shared = random.Random(f"{seed}/ordered/shared").random() < SHARED_CHANCE
    if shared or not strict:  # the delays of copies for retry go by walls
        faults = [fault for fault in faults if fault != "wall jump"]
    clocks = dice.choice((0, 0, 0, 1, 1, 2, 2, 3))
    rough = dice.random() < 0.6
    return OrderedPlan(
        seconds=90.0 if real_times else dice.uniform(15.0, 35.0),
        groups=dice.choice(((2, 2), (2, 2), (3, 2), (1, 2), (2, 2, 2))),
        strict=strict,
        producers=dice.choice((1, 2, 2, 3)),
        keys=dice.choice((1, 3, 5)),
        consumers=dice.choice((1, 2, 3, 4)),
        consumer_groups=dice.choice((1, 1, 1, 2)),
        shared_groups=int(shared),
        partitions=dice.choice((1, 2, 3, 4)),
        permission=permission,
        heartbeat=permission / 6,
        drift=(0.07, 0.02, 0.02, 0.0)[clocks],
        slow_consumers=0.08 if clocks == 1 else 0.0,
        fast_controllers=0.08 if clocks == 2 else 0.0,
        send_pause=(3.0 if real_times else 1.0) * dice.choice((0.1, 0.2, 0.4)),
        handler_seconds=dice.choice((0.0, 0.02, 0.1, 0.3)),
        faults=tuple(dict.fromkeys(faults)),
        pause=(3.0 if real_times else 1.0) * dice.choice((0.5, 1.0, 2.0)),
        hold=dice.choice((1.0, 3.0, 6.0)),
        lost=dice.choice((0.0, 0.01, 0.05)) if rough else 0.0,
        late=dice.choice((0.0, 0.02, 0.1)) if rough else 0.0,
        late_max=permission * dice.choice((0.3, 0.5, 1.5)),
        doubled=dice.choice((0.0, 0.02, 0.1)) if rough else 0.0,
        repeated=dice.choice((0.0, 0.02, 0.1)) if rough else 0.0,
        reset=dice.choice((0.0, 0.01, 0.03)) if rough else 0.0,
        fails=dice.choice((0.0, 0.02, 0.1 if strict else 0.02)),
        poisoned=strict and dice.random() < 0.2,
    )
