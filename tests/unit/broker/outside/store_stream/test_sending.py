"""Sending parts of files from a thread, at a rate, to peers that may do anything."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerset_broker.outside.store_stream import sending
from brokerset_broker.outside.store_stream.pace import BURST_SECONDS, Pace
from brokerset_broker.outside.store_stream.sending import STEP_BYTES, SendingEnded, send_part

CONTENT = os.urandom(3 * STEP_BYTES + 17)
FAST = 2**40


@pytest.fixture
def source(tmp_path: Path) -> Iterator[int]:
    """An open file with `CONTENT`."""
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    descriptor = os.open(path, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection; the first does not block."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def send(
    target: socket.socket, source: int, start: int = 0, end: int = len(CONTENT), **changes: object
) -> None:
    options: dict[str, object] = {
        "pace": Pace(FAST),
        "stop": threading.Event(),
        "still_there": lambda _: True,
        "forget": True,
    }
    send_part(target.fileno(), source, start, end, **(options | changes))  # type: ignore[arg-type]


def received(peer: socket.socket, into: bytearray) -> threading.Thread:
    """A thread that reads all there is."""

    def read() -> None:
        while piece := peer.recv(70_000):
            into.extend(piece)

    thread = threading.Thread(target=read)
    thread.start()
    return thread


@pytest.mark.parametrize(("start", "end"), [(0, len(CONTENT)), (5, 6), (STEP_BYTES - 1, 2 * STEP_BYTES + 1)])
def test_a_part_arrives_as_it_is(
    pair: tuple[socket.socket, socket.socket], source: int, start: int, end: int
) -> None:
    """The peer gets the bytes of the part, whatever the kernel takes at once."""
    got = bytearray()
    reader = received(pair[1], got)

    send(pair[0], source, start, end)

    pair[0].shutdown(socket.SHUT_WR)
    reader.join()
    assert bytes(got) == CONTENT[start:end]


def test_a_log_that_was_cut_ends_the_part(pair: tuple[socket.socket, socket.socket], source: int) -> None:
    """After the step during which the log was cut nothing more is sent."""
    got = bytearray()
    reader = received(pair[1], got)

    with pytest.raises(SendingEnded, match="was truncated"):
        send(pair[0], source, still_there=lambda position: position <= STEP_BYTES)

    pair[0].shutdown(socket.SHUT_WR)
    reader.join()
    assert len(got) == 2 * STEP_BYTES


def test_a_file_that_shrinks_ends_the_part(pair: tuple[socket.socket, socket.socket], source: int) -> None:
    """A file that is shorter than was promised is no endless loop."""
    os.ftruncate(source, 1_000)
    got = bytearray()
    reader = received(pair[1], got)

    with pytest.raises(SendingEnded, match="shorter"):
        send(pair[0], source)

    pair[0].shutdown(socket.SHUT_WR)
    reader.join()
    assert bytes(got) == CONTENT[:1_000]


def test_a_peer_that_takes_nothing_is_given_up(
    pair: tuple[socket.socket, socket.socket], source: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that stalls does not keep its turn permanently."""
    monkeypatch.setattr(sending, "STALL_SECONDS_MAX", 0.05)
    monkeypatch.setattr(sending, "_POLL_MS", 20)

    with pytest.raises(SendingEnded, match="takes nothing"):
        send(pair[0], source)


def test_a_peer_that_is_gone_ends_the_part(pair: tuple[socket.socket, socket.socket], source: int) -> None:
    """A closed connection is an end, no error of the broker."""
    pair[1].close()

    with pytest.raises(SendingEnded, match="Broken pipe"):
        send(pair[0], source)


def test_a_broker_that_closes_does_not_wait_for_a_slow_reader(
    pair: tuple[socket.socket, socket.socket], source: int
) -> None:
    """The end is noticed both while waiting for the rate and for the peer."""
    stop = threading.Event()
    stop.set()
    slow = Pace(1)
    slow.take(1_000)

    for pace in (slow, Pace(FAST)):
        with pytest.raises(SendingEnded, match="closes"):
            send(pair[0], source, pace=pace, stop=stop)


def test_all_readers_share_one_rate() -> None:
    """Who asks while the budget is used up waits for as long as it takes to earn what was taken before."""
    now = 0.0
    pace = Pace(1_000, clock=lambda: now)

    assert pace.take(500) == 0
    assert pace.take(500) == pytest.approx(0.5)
    assert pace.take(1_000) == pytest.approx(1.0)
    now = 2.0
    assert pace.take(100) == 0
    now = 1_000.0
    assert pace.take(1_000) == 0
    assert pace.take(1) == pytest.approx(1 - BURST_SECONDS)
