"""Positions of pops become consumer offsets in waves, also of queues that are popped without a pause."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from brokerset_broker.pop.check_points import Source
from brokerset_broker.requests.pop.position_commits import PositionCommits
from brokerset_broker.store.errors import PutStatus


class Place:
    """One queue of a group, its consumer offset, and a log whose end is safe when the test says so."""

    def __init__(self, *, group: bool = True) -> None:
        self.offset: int | None = None
        self.end = self.flushed = 0
        self.asked: list[tuple[int, Callable[[PutStatus], None]]] = []
        when_durable = (lambda end, answer: self.asked.append((end, answer))) if group else None
        self.source = Source("t", "g", 0)
        self.admission = SimpleNamespace(when_durable=when_durable)
        self.commits = PositionCommits(
            store=cast(Any, SimpleNamespace(flushed_offset=0)),
            offsets=cast(Any, SimpleNamespace(query=lambda *_: self.offset, commit=self._commit)),
            admission=cast(Any, self.admission),
            end=lambda: self.end,
        )
        self.commits.lead()

    def _commit(self, _group: str, _topic: str, _queue_id: int, offset: int, _by: str) -> None:
        self.offset = offset

    def pop(self, position: int) -> None:
        self.end += 100
        self.source.position, self.source.position_end = position, self.end
        self.commits.moved(self.source)
        self.commits.go_on()

    def confirm(self, status: PutStatus = PutStatus.PUT_OK) -> None:
        self.asked.pop(0)[1](status)


def test_a_queue_that_is_popped_without_a_pause_has_its_offset_committed() -> None:
    """At no moment all its records are safe; each wave commits what was popped before it."""
    place = Place()
    found = []
    for number in range(1, 6):
        place.pop(number)
        place.pop(number * 10)
        place.confirm()
        found.append(place.offset)
    assert found == [1, 10, 20, 30, 40]


def test_a_position_is_not_committed_before_its_record_is_safe() -> None:
    """Nor when that fails: the next wave has it."""
    place = Place()
    place.pop(5)
    assert place.offset is None
    place.confirm(PutStatus.SLAVE_NOT_AVAILABLE)
    assert place.offset is None
    place.commits.go_on()
    place.confirm()
    assert place.offset == 5


def test_a_wave_that_began_before_there_were_replicas_waits_for_them() -> None:
    """A master that was alone in sync waits for its disk; then a replica comes, and all wait for that."""
    place = Place(group=False)
    place.pop(5)
    assert place.offset is None

    place.admission.when_durable = lambda end, answer: place.asked.append((end, answer))
    place.commits.go_on()
    place.confirm()

    assert place.offset == 5


def test_a_group_that_goes_back_does_not_get_the_position_of_before() -> None:
    """A reset between the beginning of a wave and its end."""
    place = Place()
    place.pop(50)
    place.commits.went_back(place.source)
    place.pop(0)
    place.confirm()
    assert place.offset is None
    place.confirm()
    assert place.offset == 0


def test_who_waits_for_all_positions_learns_of_the_wave_that_has_them() -> None:
    """The one under way may have begun too early; without positions it waits for the records alone."""
    place = Place()
    place.pop(1)
    place.pop(2)
    wave = place.commits.cover()
    place.confirm()
    assert (place.commits.done < wave, place.offset) == (True, 1)
    place.confirm()
    assert (place.commits.done, place.offset) == (wave, 2)
    alone = place.commits.cover()
    assert place.commits.done < alone
    place.confirm()
    assert place.commits.done == alone


def test_nothing_is_committed_after_the_lead_has_ended() -> None:
    """An answer that comes late belongs to another mastership."""
    place = Place()
    place.pop(1)
    place.commits.stop()
    place.commits.lead()
    place.confirm()
    assert place.offset is None


def test_a_broker_alone_commits_what_is_on_its_disk() -> None:
    """`go_on` is called from time to time."""
    place = Place(group=False)
    store = cast(Any, place.commits)._store
    place.pop(1)
    place.pop(2)
    assert place.offset is None
    store.flushed_offset = place.end
    place.commits.go_on()
    assert place.offset == 2


def test_the_progress_gets_its_wave_after_one_that_failed() -> None:
    """Also when nobody pops any more: else a new master would read what is done long ago."""
    place = Place()
    place.pop(5)
    place.confirm()
    wanted = place.commits.cover()
    place.confirm(PutStatus.FLUSH_SLAVE_TIMEOUT)
    assert place.commits.done < wanted

    place.commits.go_on()
    place.confirm()

    assert place.commits.done >= wanted
    assert place.asked == []
