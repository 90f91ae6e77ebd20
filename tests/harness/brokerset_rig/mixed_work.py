"""The clients that work while the master of a group of both makes changes, and what is remembered of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from brokerset_rig.replicated_group import Group, Load
from brokerset_rig.replication_clients import Flow

WAYS = (
    {"ours": ("switchover", "kill", "elect", "stop"), "Java": ("relieve", "stop", "relieve", "kill")},
    {"ours": ("elect", "stop", "switchover", "kill"), "Java": ("relieve", "kill", "relieve", "stop")},
)
"""How a master of each make loses its role, in turn; every second mix in the other order, for a Java broker that starts again takes long.

switchover: it hands over by itself (21011); elect: the controllers elect another one while it lives; relieve: it is told to refuse
sends, the heir gets everything, then the controllers elect, which is how a living Java master hands over without losing anything;
stop: it ends in order; kill: `kill -9` after the others stood still for a moment, so that what it acknowledged alone is gone and missed.
"""

CROSSINGS_MIN = 4
"""So many of the switches at least go from one make to the other."""

LOAD_MESSAGES, CLIENT_MESSAGES = 200, 100
"""Sends that are acknowledged to the load and to the Java producer after each switch."""

LOAD_PAUSE_SECONDS = 0.01
FLOW_TOPIC = "mixed-flow"
CONSUMERS = "mixed"
KEPT = "kept"
"""Topic, group and offset that are made before the first switch."""

POLL_MS = "1000"
"""The Java clients read routes so often, instead of every 30 s, so that a switch costs the suite little time."""

CLIENT_SECONDS_MAX = 30.0
CLIENT_START_SECONDS_MAX = 120.0
"""A Java consumer that is new may wait for two rounds of its own timers, 30 s each, before it reads (`tests/peers/README.md`)."""


@dataclass(slots=True)
class Work:
    """The clients, and what was seen of them."""

    load: Load
    producer: Flow
    consumer: Flow
    turns: dict[str, Iterator[str]]
    pauses: dict[str, list[float]] = field(default_factory=dict)
    """Seconds without an acknowledgement to the Java producer, by way."""

    switches: int = 0
    crossings: int = 0


def start_clients(found: Group, clients: ExitStack, ways: Mapping[str, Sequence[str]]) -> Work:
    load = clients.enter_context(Load(found, pause=LOAD_PAUSE_SECONDS))
    reading = {"mode": "consume", "topic": FLOW_TOPIC, "group": CONSUMERS, "poll": POLL_MS}
    consumer = clients.enter_context(Flow(found, **reading))
    producer = clients.enter_context(Flow(found, mode="produce", topic=FLOW_TOPIC, pause="4", poll=POLL_MS))
    work = Work(load, producer, consumer, {make: itertools.cycle(each) for make, each in ways.items()})
    load.wait_more(LOAD_MESSAGES)
    producer.wait_lines("ack", CLIENT_MESSAGES)
    consumer.wait_lines("got", CLIENT_MESSAGES, CLIENT_START_SECONDS_MAX)
    return work
