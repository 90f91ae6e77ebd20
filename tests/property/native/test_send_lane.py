"""Plain sends through the native core leave what the Python path leaves: answers, files, counters, errors.

So do the runs of sends that the Python path stores by one call. `run.py` does the same at full size; where
there is no native core it compares these runs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.store.errors import StoreCorrupt
from brokerset_formats import native
from brokerset_rig.broken_sends import BROKEN
from brokerset_rig.examples import examples
from brokerset_rig.send_episodes import (
    Chunks,
    Episode,
    Setup,
    Turn,
    draw_actions,
    draw_aside_episode,
    draw_episode,
    draw_nearly_plain_episode,
    draw_plain_aside_episode,
    draw_plain_episode,
    draw_setup,
)
from brokerset_rig.send_frames import FrameSource, java
from brokerset_rig.send_reference import Broken, Reference, run_pair, shrunk
from brokerset_rig.send_side import request_by_request, served_natively

EPISODES = 8
BROKEN_EPISODES = 40
SHARE_MIN = 0.3

RUNS_SHARE_MIN = 0.1
"""Most chunks of these episodes have one frame, which is left to the handler."""


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    with Reference() as process:
        yield process


def _compare(reference: Reference, episode: Episode) -> None:
    theirs, ours = run_pair(reference, episode)
    if theirs.observed != ours.observed:
        pytest.fail(str(shrunk(reference, episode)))


@pytest.mark.parametrize("seed", range(EPISODES))
def test_every_episode_leaves_the_same_trace_on_both_paths(reference: Reference, seed: int) -> None:
    """Unusual and spoilt requests, restarts, refusals, full disks: nobody can tell the paths apart."""
    _compare(reference, draw_episode(seed))


def test_plain_sends_take_the_native_path_and_leave_the_same_trace(reference: Reference) -> None:
    """At least a third of plain sends are served natively, where there is a native core."""
    served_of_all = sends = 0

    for seed in range(4):
        episode = draw_plain_episode(seed)
        theirs, ours = run_pair(reference, episode)
        assert theirs.observed == ours.observed
        served, total = served_natively(episode, theirs, ours)
        served_of_all += served.total()
        sends += total.total()

    assert sends > 1_000
    assert native.core is None or served_of_all > SHARE_MIN * sends


@pytest.mark.parametrize("seed", range(EPISODES))
def test_runs_of_sends_leave_the_same_trace_as_single_ones(reference: Reference, seed: int) -> None:
    """Without the native core sends of a chunk are stored by one call, and nobody can tell."""
    episode = draw_episode(seed)

    theirs, ours = run_pair(reference, episode, _without_core)

    assert theirs.observed == ours.observed


def test_plain_sends_are_stored_in_runs(reference: Reference) -> None:
    """Without the native core plain sends that share a chunk do not come to a handler."""
    served_of_all = sends = 0

    for seed in range(4):
        episode = draw_plain_episode(seed)
        theirs, ours = run_pair(reference, episode, _without_core)
        assert theirs.observed == ours.observed
        served, total = served_natively(episode, theirs, ours)
        served_of_all += served.total()
        sends += total.total()

    assert sends > 1_000
    assert served_of_all > RUNS_SHARE_MIN * sends


@pytest.mark.parametrize("seed", range(4))
def test_requests_that_are_nearly_plain_leave_the_same_trace_on_both_paths(
    reference: Reference, seed: int
) -> None:
    """What differs from a plain send in little is served by neither path as the other would not."""
    _compare(reference, draw_nearly_plain_episode(seed))


@pytest.mark.parametrize("seed", range(EPISODES))
def test_messages_that_are_put_aside_leave_the_same_trace_on_both_paths(
    reference: Reference, seed: int
) -> None:
    """Halves and timers: records, answers, the index, which transactions are open."""
    _compare(reference, draw_aside_episode(seed))


def test_messages_that_are_put_aside_take_the_native_path(reference: Reference) -> None:
    """At least a third of plain halves and timers are served natively, where there is a native core."""
    served_of_all: Counter[str] = Counter()
    sends: Counter[str] = Counter()

    for seed in range(4):
        episode = draw_plain_aside_episode(seed)
        served, total = served_natively(episode, *run_pair(reference, episode))
        served_of_all += served
        sends += total

    for kind in ("half", "timer"):
        assert sends[kind] > 100
        assert native.core is None or served_of_all[kind] > SHARE_MIN * sends[kind]


def test_a_half_of_a_topic_that_is_deleted_in_this_turn_leaves_no_counter(reference: Reference) -> None:
    """What the native lane has counted is added at the end of the turn, when its counters are gone."""
    frames = FrameSource(random.Random(1), 500)

    def chunk(connection: int, code: int, ext: dict[str, Any], body: bytes) -> Chunks:
        return Chunks(connection, (frames._sent("one", java, code, ext, body)[1],))

    def half(topic: str) -> dict[str, Any]:
        text = f"UNIQ_KEY\x01{frames.unique_key()}\x02TRAN_MSG\x01true\x02PGROUP\x01pg\x02"
        return frames._ext(topic, text) | {"e": "0", "f": "4", "h": "0"}

    plain = frames._ext("t", f"UNIQ_KEY\x01{frames.unique_key()}\x02") | {"e": "0"}
    actions = (
        Turn(),
        chunk(1, 310, plain, b"plain"),
        chunk(2, 310, half("orders"), b"half"),
        chunk(2, 215, {"topic": "t"}, b""),
        chunk(1, 310, half("t"), b"half"),
        Turn(),
    )

    theirs, ours = run_pair(reference, Episode(1, Setup(replicated=True), actions, {}))

    assert theirs.observed == ours.observed


@pytest.mark.long
@examples(150)
@given(seed=st.integers(0, 2**48))
def test_drawn_episodes_leave_the_same_trace_on_both_paths(reference: Reference, seed: int) -> None:
    """As above, with others in each run."""
    _compare(reference, draw_episode(seed, actions=40))


@pytest.mark.long
@examples(100)
@given(source=st.randoms(use_true_random=False))
def test_short_episodes_leave_the_same_trace_on_both_paths(
    reference: Reference, source: random.Random
) -> None:
    """As above, with few frames, which Hypothesis makes as simple as a difference allows."""
    setup = draw_setup(source)

    theirs, ours = run_pair(reference, draw_actions(0, source, setup, 5, FrameSource.frame))

    assert theirs.observed == ours.observed


def _without_core() -> AbstractContextManager[Any]:
    return mock.patch.object(native, "core", None)


@contextmanager
def _in_python(broken: Broken) -> Iterator[Any]:
    """Something is wrong with the Python path, and nothing goes another way."""
    with _without_core(), request_by_request(), broken() as entered:
        yield entered


@pytest.mark.long
@pytest.mark.parametrize("name", BROKEN)
def test_a_broker_that_is_wrong_in_one_way_is_found(reference: Reference, name: str) -> None:
    """The comparison notices each mistake that a native path could make."""

    def broken() -> AbstractContextManager[Any]:
        return _in_python(BROKEN[name])

    for seed in range(BROKEN_EPISODES):
        try:
            theirs, ours = run_pair(reference, draw_episode(seed), broken)
        except StoreCorrupt:
            return  # it does not start again on what it has written
        if theirs.observed != ours.observed:
            return

    pytest.fail(f"{BROKEN_EPISODES} episodes have not shown that {name}")
