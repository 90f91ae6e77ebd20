"""Signed sends that go past the handlers leave what these would leave, and who may not send gets nowhere.

Right ones, forged and altered ones, of users that are unknown, disabled, changed or without the right, with
JSON and binary headers. `run.py` does the same at full size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import pytest

from brokerset_acl.users import User
from brokerset_broker.requests import signed_sends
from brokerset_broker.requests.core_decisions import CoreDecisions
from brokerset_broker.requests.send_lane import SendLane
from brokerset_broker.requests.signed_sends import SignedSends
from brokerset_formats import native
from brokerset_rig.send_episodes import CLIENTS, draw_plain_signed_episode, draw_signed_episode
from brokerset_rig.send_reference import Reference, run_pair, shrunk
from brokerset_rig.send_side import served_natively

EPISODES = 10
BROKEN_EPISODES = 100
SHARE_MIN = 0.3
RUNS_SHARE_MIN = 0.1
"""Most chunks of these episodes have one frame, which is left to the handler."""


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    with Reference() as process:
        yield process


def _without_core() -> AbstractContextManager[Any]:
    return mock.patch.object(native, "core", None)


@pytest.mark.parametrize("seed", range(EPISODES))
def test_signed_requests_leave_the_same_trace_on_both_paths(reference: Reference, seed: int) -> None:
    """Answers, refusals and their number, records: nobody can tell the paths apart."""
    episode = draw_signed_episode(seed)

    theirs, ours = run_pair(reference, episode)

    if theirs.observed != ours.observed:
        pytest.fail(str(shrunk(reference, episode)))


@pytest.mark.parametrize("seed", range(EPISODES))
def test_signed_sends_in_runs_leave_the_same_trace(reference: Reference, seed: int) -> None:
    """The same where there is no native core, and sends of a chunk are stored by one call."""
    theirs, ours = run_pair(reference, draw_signed_episode(seed), _without_core)

    assert theirs.observed == ours.observed


@pytest.mark.parametrize(
    ("way", "share_min"), [("native", SHARE_MIN), ("runs", RUNS_SHARE_MIN)], ids=["native", "runs"]
)
def test_rightly_signed_sends_go_past_the_handlers(reference: Reference, way: str, share_min: float) -> None:
    """Their share is that of unsigned ones at a broker that checks nobody."""
    if way == "native" and native.core is None:
        pytest.skip("there is no native core")
    served_of_all = sends = 0

    for seed in range(4):
        episode = draw_plain_signed_episode(seed)
        pair = run_pair(reference, episode, _without_core) if way == "runs" else run_pair(reference, episode)
        served, total = served_natively(episode, *pair)
        assert pair[0].observed == pair[1].observed
        served_of_all += served.total()
        sends += total.total()

    assert sends > 1_000
    assert served_of_all > share_min * sends


# -- mistakes that must be noticed --------------------------------------------------------------------------


def _of_any_topic(allow: Callable[..., None], lane: object, user: User, _topic: str, source: str) -> None:
    for topic in ("t", "orders"):
        allow(lane, user, topic, source)


def _of_any_address(allow: Callable[..., None], lane: object, user: User, topic: str, _source: str) -> None:
    for source in CLIENTS:
        allow(lane, user, topic, source)


def _kept(_lane: object) -> None:
    """Decisions are kept although users or policies have changed."""


@contextmanager
def _changed(kind: type[SendLane | SignedSends], mistake: str) -> Iterator[None]:
    if mistake == "decisions are kept":
        keeper: tuple[type, str] = (CoreDecisions, "drop_old")
        if kind is SignedSends:
            keeper = (SignedSends, "_drop_what_is_old")
        with mock.patch.object(*keeper, _kept):
            yield
        return
    wrong = _of_any_topic if mistake == "any topic is allowed" else _of_any_address
    real = kind.allow
    with mock.patch.object(kind, "allow", lambda lane, *args: wrong(real, lane, *args)):
        yield


@contextmanager
def _in_runs(mistake: str) -> Iterator[None]:
    with _without_core():
        if mistake == "no signature is checked":
            with mock.patch.object(signed_sends, "is_signed_by", return_value=True):
                yield
        else:
            with _changed(SignedSends, mistake):
                yield


MISTAKES = ("decisions are kept", "any topic is allowed", "any address is allowed")


@pytest.mark.long
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_native_path_that_admits_too_many_is_found(reference: Reference, mistake: str) -> None:
    """The comparison notices decisions that are kept for too long, or for too much."""
    if native.core is None:
        pytest.skip("there is no native core")
    _must_differ(reference, partial(_changed, SendLane, mistake), mistake)


@pytest.mark.long
@pytest.mark.parametrize("mistake", [*MISTAKES, "no signature is checked"])
def test_runs_that_admit_too_many_are_found(reference: Reference, mistake: str) -> None:
    """The same where there is no native core."""
    _must_differ(reference, partial(_in_runs, mistake), mistake)


def _must_differ(
    reference: Reference, broken: Callable[[], AbstractContextManager[Any]], mistake: str
) -> None:
    for seed in range(BROKEN_EPISODES):
        theirs, ours = run_pair(reference, draw_signed_episode(seed), broken)
        if theirs.observed != ours.observed:
            return
    pytest.fail(f"{BROKEN_EPISODES} episodes have not shown that {mistake}")
