"""What happens to one broker, drawn at random: its settings, and bytes of several connections between other events.

An episode is a value: run twice, on the same or on another path of the same broker, it must leave the same trace.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from brokerset_rig.send_frames import Frame, FrameSource
from brokerset_rig.signed_frames import SignedSource

CONNECTIONS: Final = 3

CLIENTS: Final = ("10.0.0.1", "192.168.7.200", "fd00::7:1")
"""Addresses of the clients behind the connections."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What the broker of an episode is; files are so small that they are full often."""

    commit_log_bytes: int = 131_072
    queue_units: int = 50
    index: bool = True
    index_slots: int = 50
    index_units: int = 40
    appends_crc: bool = False
    ip: str = "10.1.2.3"
    port: int = 10_911
    region: str = "DefaultRegion"
    trace_on: bool = True
    body_max: int = 2_000
    sync_flush: bool = False
    replicated: bool = False
    """Whether answers wait for replicas, which an episode lets confirm; hosts of clients may be forwarded."""

    light_queues: bool = False
    """Whether messages are put into light queues, of which there may be two."""

    other_types_refused: bool = False
    signed: bool = False
    """Whether requests are signed and checked."""

    in_flight_max: int = 8192
    write_buffer_high: int = 1024 * 1024
    outgoing_max: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Chunks:
    """Bytes of one connection, as they arrive in one turn of the loop."""

    connection: int
    pieces: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """All that is ready runs, until nothing is."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Time passes; `jump_ms` is what the wall clock jumps besides."""

    ms: int
    jump_ms: int = 0


@dataclass(frozen=True, slots=True)
class Confirm:
    """What waits for replicas of the first `count` chunks gets a status, by its name."""

    count: int
    status: str


@dataclass(frozen=True, slots=True)
class Reading:
    """Whether a client reads its answers."""

    connection: int
    on: bool


@dataclass(frozen=True, slots=True)
class Leave:
    """A client closes its connection; its next bytes come on a new one."""

    connection: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something about the broker that is switched, by the names of `EVENTS`."""

    name: str


EVENTS: Final = (
    "refuse writes", "accept writes", "disk nearly full", "disk has room", "no blocks", "blocks", "flush paused", "flush resumed",
    "store follows", "store leads", "forget facts", "ordered subject",
)  # fmt: skip
"""The first of each pair is undone by the second."""


@dataclass(frozen=True, slots=True)
class Restart:
    """The process ends, in order or killed, and the next one begins on its files."""

    cleanly: bool


ACCESS_EVENTS: Final = (
    "password changed", "password back", "user disabled", "user enabled", "topic denied", "topic allowed",
    "user deleted", "user back", "book taken over",
)  # fmt: skip
"""Changes of users and policies, as other brokers of a group tell them."""

Action = Chunks | Turn | Sleep | Confirm | Reading | Leave | Event | Restart


@dataclass(frozen=True, slots=True)
class Episode:
    """Settings, actions in their order, and what kind of frame each opaque stands for."""

    seed: int
    setup: Setup
    actions: tuple[Action, ...]
    kinds: dict[int, str]

    @property
    def chunks(self) -> int:
        """How often bytes arrive."""
        return sum(len(action.pieces) for action in self.actions if isinstance(action, Chunks))


def draw_setup(source: random.Random) -> Setup:
    """A broker; half of them have files in which all that an episode stores may find room."""
    choose, sometimes = source.choice, source.random
    limited = sometimes() < 0.15
    roomy = sometimes() < 0.5
    return Setup(
        commit_log_bytes=1 << 20 if roomy else choose((131_072, 196_608)),
        queue_units=1000 if roomy else choose((3, 50, 300)),
        index=sometimes() < 0.9,
        index_slots=choose((1, 3, 50, 400)),
        index_units=4000 if roomy else choose((5, 40, 400)),
        appends_crc=sometimes() < 0.4,
        ip=choose(("10.1.2.3", "10.1.2.3", "fd00::1")),
        port=choose((10_911, 30_000)),
        region=choose(("DefaultRegion", "DefaultRegion", 'a"b%s', "ü€")),
        trace_on=sometimes() < 0.7,
        body_max=choose((500, 5_000, 20_000)),
        sync_flush=sometimes() < 0.2,
        replicated=sometimes() < 0.25,
        light_queues=sometimes() < 0.5,
        other_types_refused=sometimes() < 0.05,
        in_flight_max=5 if limited else 8192,
        write_buffer_high=choose((500, 3_000)) if limited else 1024 * 1024,
        outgoing_max=choose((4_000, 1 << 20)) if limited else 64 * 1024 * 1024,
    )


def draw_episode(seed: int, *, actions: int = 120) -> Episode:
    """An episode of everything that there is."""
    source = random.Random(seed)
    setup = draw_setup(source)
    return draw_actions(seed, source, setup, actions, FrameSource.frame)


def draw_plain_episode(seed: int, *, actions: int = 120) -> Episode:
    """An episode of a broker at its work: plain sends, and files that have room for them."""
    source = random.Random(seed)
    setup = replace(
        draw_setup(source), commit_log_bytes=1 << 20, queue_units=1000, index_units=4000, body_max=20_000
    )
    return _draw_undisturbed(seed, source, setup, actions, FrameSource.plain)


def draw_nearly_plain_episode(seed: int, *, actions: int = 300) -> Episode:
    """The same with requests that are nearly plain: what a native path may serve, and what it must not."""
    source = random.Random(seed)
    return _draw_undisturbed(
        seed, source, draw_setup(source), actions, FrameSource.nearly_plain, frames_max=2
    )


def draw_plain_aside_episode(seed: int, *, actions: int = 120) -> Episode:
    """A broker at its work that gets halves, timers and plain sends, and has room for them."""
    source = random.Random(seed)
    setup = replace(
        draw_setup(source), commit_log_bytes=1 << 20, queue_units=1000, index_units=4000, body_max=20_000
    )
    return _draw_undisturbed(seed, source, setup, actions, FrameSource.plain_asides)


def draw_aside_episode(seed: int, *, actions: int = 120) -> Episode:
    """Halves and timers among other requests; time passes, and the broker starts again."""
    source = random.Random(seed)
    drawn = _draw_undisturbed(seed, source, draw_setup(source), actions, FrameSource.mixed_asides)
    mixed: list[Action] = []
    for action in drawn.actions:
        mixed.append(action)
        pick = source.random()
        if pick < 0.06:
            mixed.append(Sleep(source.choice((7, 999, 5_000, 61_000)), source.choice((0, 0, 0, -5_000))))
        elif pick < 0.07:
            mixed.append(Restart(cleanly=source.random() < 0.6))
        elif pick < 0.09:
            mixed += [Event(name) for name in source.choice((("forget facts",), EVENTS[:2], EVENTS[4:6]))]
    return replace(drawn, actions=tuple(mixed))


def draw_signed_episode(seed: int, *, actions: int = 120) -> Episode:
    """Signed requests of all kinds, among changes of users and policies."""
    source = random.Random(seed)
    setup = replace(draw_setup(source), signed=True)
    if source.random() < 0.3:
        return draw_actions(seed, source, setup, actions, FrameSource.frame)
    drawn = _draw_undisturbed(seed, source, setup, actions, _plain_or_administering)
    mixed: list[Action] = []
    for action in drawn.actions:
        mixed.append(action)
        pick = source.random()
        if pick < 0.06:
            mixed.append(Event(source.choice((*ACCESS_EVENTS, *ACCESS_EVENTS[1::2]))))
        elif pick < 0.065:
            mixed.append(Restart(cleanly=source.random() < 0.6))
    return replace(drawn, actions=tuple(mixed))


def draw_plain_signed_episode(seed: int, *, actions: int = 120) -> Episode:
    """Plain sends, all signed by somebody who may send them, and room for them."""
    source = random.Random(seed)
    setup = replace(
        draw_setup(source),
        commit_log_bytes=1 << 20,
        queue_units=1000,
        index_units=4000,
        body_max=20_000,
        signed=True,
    )
    return _draw_undisturbed(seed, source, setup, actions, _plain_rightly_signed)


def _plain_or_administering(frames: FrameSource) -> Frame:
    assert isinstance(frames, SignedSource)
    return frames.plain_or_administering()


def _plain_rightly_signed(frames: FrameSource) -> Frame:
    assert isinstance(frames, SignedSource)
    frames.spoils = False
    return frames.plain()


def _frames_of(source: random.Random, setup: Setup) -> FrameSource:
    kind = SignedSource if setup.signed else FrameSource
    return kind(source, setup.body_max, setup.replicated or setup.sync_flush)


def draw_crowded_episode(seed: int, *, actions: int = 150) -> Episode:
    """Plain sends among pulls that wait, of clients that do not read, at a server with low limits."""
    source = random.Random(seed)
    setup = replace(
        draw_setup(source),
        in_flight_max=source.choice((2, 5)),
        outgoing_max=source.choice((4_000, 1 << 20)),
    )
    drawn = _draw_undisturbed(seed, source, setup, actions, FrameSource.crowding)
    crowded: list[Action] = []
    for action in drawn.actions:
        crowded.append(action)
        if source.random() < 0.1:
            crowded.append(Reading(source.randrange(CONNECTIONS), source.random() < 0.6))
        elif source.random() < 0.1:
            crowded.append(Sleep(source.choice((7, 999))))
    return replace(drawn, actions=tuple(crowded))


def _draw_undisturbed(
    seed: int,
    source: random.Random,
    setup: Setup,
    actions: int,
    draw_frame: Callable[[FrameSource], Frame],
    *,
    frames_max: int = 20,
) -> Episode:
    frames = _frames_of(source, setup)
    drawn: list[Action] = []
    kinds: dict[int, str] = {}
    for _ in range(actions):
        drawn.append(_draw_chunks(source, frames, kinds, draw_frame, frames_max))
        if source.random() < 0.5:
            drawn.append(Turn())
        if setup.replicated:
            drawn.append(Confirm(100, "PUT_OK"))
    return Episode(seed, setup, (*drawn, Turn()), kinds)


def draw_actions(
    seed: int, source: random.Random, setup: Setup, count: int, draw_frame: Callable[[FrameSource], Frame]
) -> Episode:
    """So many actions; most are bytes."""
    frames = _frames_of(source, setup)
    drawn: list[Action] = []
    kinds: dict[int, str] = {}
    for _ in range(count):
        pick = source.random()
        if pick < 0.62:
            drawn.append(_draw_chunks(source, frames, kinds, draw_frame))
        elif pick < 0.86:
            drawn.append(Turn())
        elif pick < 0.92 and setup.replicated:
            drawn.append(
                Confirm(
                    source.choice((1, 3, 100)),
                    source.choice(
                        (
                            *["PUT_OK"] * 5,
                            "FLUSH_SLAVE_TIMEOUT",
                            "FLUSH_DISK_TIMEOUT",
                            "SERVICE_NOT_AVAILABLE",
                        )
                    ),
                )
            )
        elif pick < 0.95:
            drawn.append(
                Sleep(source.choice((1, 7, 999, 1000, 61_000)), source.choice((0, 0, 0, -5_000, 86_400_000)))
            )
        else:
            drawn += _draw_event(source, setup)
    return Episode(seed, setup, (*drawn, Turn()), kinds)


def _draw_event(source: random.Random, setup: Setup) -> list[Action]:
    pick = source.random()
    if pick < 0.08:
        return [Restart(cleanly=source.random() < 0.6)]
    if pick < 0.2:
        return [Leave(source.randrange(CONNECTIONS))]
    if pick < 0.45 and setup.write_buffer_high < 1 << 20:
        return [Reading(source.randrange(CONNECTIONS), source.random() < 0.5)]
    name = source.choice((*EVENTS, *EVENTS[1:10:2]))  # rather undone than done: else few sends are served
    return [Event(name)]


def _draw_chunks(
    source: random.Random,
    frames: FrameSource,
    kinds: dict[int, str],
    draw_frame: Callable[[FrameSource], Frame],
    frames_max: int = 20,
) -> Chunks:
    data = bytearray()
    for _ in range(min(frames_max, source.choice((1, 1, 1, 1, 2, 3, 6, 20)))):
        kind, frame = draw_frame(frames)
        kinds[frames.opaque] = kind
        data += frame
    return Chunks(source.randrange(CONNECTIONS), _cut(bytes(data), source))


def _cut(data: bytes, source: random.Random) -> tuple[bytes, ...]:
    """The bytes in one piece, in a few, or, if they are few, one by one."""
    pick = source.random()
    if pick < 0.55 or len(data) < 2:
        return (data,)
    if pick < 0.58 and len(data) < 700:
        return tuple(data[at : at + 1] for at in range(len(data)))
    places = sorted(source.randrange(1, len(data)) for _ in range(source.choice((1, 1, 2, 5))))
    return tuple(
        data[begin:end] for begin, end in zip([0, *places], [*places, len(data)], strict=True) if begin < end
    )
