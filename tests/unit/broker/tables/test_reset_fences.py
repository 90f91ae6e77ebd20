"""Commits from before a reset are ignored until the consumer has moved, and no longer than a bound."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.tables import reset_fences
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.reset_fences import FENCE_SECONDS, ResetFences
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings


@pytest.fixture
def clock() -> ManualClock:
    """A clock that the test moves."""
    return ManualClock()


@pytest.fixture
def offsets(tmp_path: Path, clock: ManualClock) -> OffsetManager:
    """A table in which group g is at 10 of queue 0, and was reset to 3; a pull was answered with that."""
    table = OffsetManager(LiveSettings(BrokerSettings(store_path_root_dir=tmp_path)), clock)
    table.commit("g", "t", 0, 10)
    table.reset("g", "t", 0, 3)
    assert table.take_reset("g", "t", 0, pulled_from=10) == 3
    return table


def test_an_old_commit_after_the_answer_does_not_take_the_group_back(offsets: OffsetManager) -> None:
    """It was on its way when the consumer's pull was answered with the reset; it counts as taken, and is
    said so."""
    assert offsets.ignores_commit("g", "t", 0, 11)

    assert offsets.commit("g", "t", 0, 11)

    assert offsets.query("g", "t", 0) == 3


@pytest.mark.parametrize("how", ["commit", "pull", "native pull"])
def test_a_consumer_that_moved_commits_as_before(offsets: OffsetManager, how: str) -> None:
    """A commit of the reset's offset, or a pull from it, shows that the consumer moved."""
    if how == "commit":
        offsets.commit("g", "t", 0, 3)
    elif how == "pull":
        assert offsets.take_reset("g", "t", 0, pulled_from=3) is None
    else:
        assert not offsets.must_move("g", "t", 0, 3)

    offsets.commit("g", "t", 0, 5)

    assert offsets.query("g", "t", 0) == 5


def test_a_pull_from_elsewhere_shows_nothing(offsets: OffsetManager) -> None:
    """One that was sent before the answer came ends no fence."""
    assert offsets.take_reset("g", "t", 0, pulled_from=12) is None

    offsets.commit("g", "t", 0, 12)

    assert offsets.query("g", "t", 0) == 3


def test_a_consumer_that_never_moves_is_believed_in_the_end(
    offsets: OffsetManager, clock: ManualClock
) -> None:
    """Some clients go on where they are; after the bound their commits count again."""
    clock.advance(int(FENCE_SECONDS * 1000))

    offsets.commit("g", "t", 0, 12)

    assert offsets.query("g", "t", 0) == 12


def test_the_next_reset_and_other_changes_replace_the_fence(offsets: OffsetManager) -> None:
    """A second reset waits for a pull of its own, offsets that an administrator sets are those that count."""
    offsets.reset("g", "t", 0, 7)
    assert offsets.query("g", "t", 0) == 7
    assert offsets.take_reset("g", "t", 0, pulled_from=3) == 7

    offsets.put({"t@g": {0: 9}})
    offsets.commit("g", "t", 0, 10)

    assert offsets.query("g", "t", 0) == 10


def test_fences_go_with_topic_and_group(offsets: OffsetManager) -> None:
    """A topic of the same name that is made again knows nothing of the old reset."""
    offsets.forget_topic("t")

    offsets.commit("g", "t", 0, 1)

    assert offsets.query("g", "t", 0) == 1


def test_fences_are_bounded(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old ones make room; while there is none a further queue is not fenced, and nothing else changes."""
    monkeypatch.setattr(reset_fences, "FENCES_MAX", 2)
    fences = ResetFences(clock)
    fences.put("t@g", 0, 5)
    fences.put("t@g", 1, 5)
    fences.put("t@g", 2, 5)
    assert not fences.has("t@g", 2)

    clock.advance(int(FENCE_SECONDS * 1000))
    fences.put("t@g", 2, 5)

    assert fences.has("t@g", 2)
    assert not fences.has("t@g", 0)
    fences.clear()
    assert not fences.by_key


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["commit", "pull", "reset", "advance"]), st.integers(0, 1), st.integers(0, 4)
        ),
        max_size=40,
    )
)
def test_a_naive_model_agrees(steps: list[tuple[str, int, int]]) -> None:
    """Whatever commits, pulls and resets come in which order, a list of rules says which commit counts."""
    clock = ManualClock()
    fences = ResetFences(clock)
    model: dict[int, tuple[int, float]] = {}
    for what, queue, offset in steps:
        fence = model.get(queue)
        open_now = fence is None or clock.monotonic() >= fence[1] or offset == fence[0]
        if what == "commit":
            assert fences.ignores("t@g", queue, offset) == (not open_now)
        elif what == "pull":
            fences.pulled("t@g", queue, offset)
        elif what == "reset":
            fences.put("t@g", queue, offset)
            model[queue] = (offset, clock.monotonic() + FENCE_SECONDS)
            continue
        else:
            clock.advance(offset * 10_000)
            continue
        if open_now:
            model.pop(queue, None)
    for queue in range(2):
        assert fences.has("t@g", queue) == (queue in model)
