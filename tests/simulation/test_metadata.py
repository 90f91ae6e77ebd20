"""Metadata of simulated groups: what its checker demands, and runs in which everything goes well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from brokerset_sim.history import Violation
from brokerset_sim.metadata_checker import Key, MetadataChecker
from brokerset_sim.plan import Plan
from brokerset_sim.world import simulate

T: Key = ("topic", "t")
OFFSET: Key = ("offset", "t", "g", "0")


class Story:
    """Changes with times and numbers of their own."""

    def __init__(self, *, echo_seconds: float = 0.0) -> None:
        self.checker = MetadataChecker("group-0", Counter(), echo_seconds=echo_seconds)
        self._number = 0

    def change(
        self,
        key: Key,
        value: int | None,
        begun: float,
        client_answered: float | None = None,
        *,
        epoch: int = 1,
        end: int = 100,
    ) -> None:
        """A change, and when its client was told, if it was."""
        self._number += 1
        change = self.checker.begin(self._number, key, value, begun)
        if client_answered is not None:
            self.checker.promised(self._number, epoch, end)
            self.checker.client_answered(change, client_answered)

    def may_be(self, key: Key, *values: int | None) -> list[int | None]:
        """Which of some values a master may have."""
        return [value for value in values if self._holds({key: value})]

    def _holds(self, tables: Mapping[Key, int | None]) -> bool:
        try:
            self.checker.check("b", tables.get, list(tables))
        except Violation:
            return False
        return True


def test_what_was_told_replaces_what_was_told_before() -> None:
    """After two changes, one after the other, only the second is allowed."""
    story = Story()
    story.change(T, 1, 0.0, 1.0)
    story.change(T, 2, 2.0, 3.0)

    assert story.may_be(T, None, 1, 2) == [2]


def test_changes_at_the_same_time_and_without_an_end_are_both_allowed() -> None:
    """Nobody knows which of two came last, nor whether one came about whose client was told nothing."""
    story = Story()
    story.change(T, 1, 0.0, 2.0)
    story.change(T, 2, 1.0, 3.0)
    story.change(T, None, 0.5)

    assert story.may_be(T, None, 1, 2, 3) == [None, 1, 2]


def test_before_anything_was_told_nothing_is_demanded() -> None:
    """A change on its way may be there, or not."""
    story = Story()
    story.change(T, 1, 0.0)

    assert story.may_be(T, None, 1) == [None, 1]


def test_a_deleted_topic_takes_its_offsets_along() -> None:
    """A told deletion replaces offsets that were told before; one without an end may have done so."""
    story = Story()
    story.change(OFFSET, 5, 0.0, 1.0)
    story.change(T, None, 2.0)

    assert story.may_be(OFFSET, None, 5) == [None, 5]

    story.change(T, None, 3.0, 4.0)

    assert story.may_be(OFFSET, None, 5) == [None]


def test_an_open_deletion_counts_for_offsets_that_come_later() -> None:
    """It may be carried out behind the first commit."""
    story = Story()
    story.change(T, None, 0.0)
    story.change(OFFSET, 5, 1.0, 2.0)

    assert story.may_be(OFFSET, None, 5, 6) == [None, 5]


@pytest.mark.parametrize(("epoch", "end", "allowed"), [(1, 100, [None, 1]), (1, 50, [1]), (2, 100, [1])])
def test_a_recorded_loss_forgives_what_lay_behind_it(epoch: int, end: int, allowed: list[int | None]) -> None:
    """Changes of older epochs behind the offset need not be there any more; others must."""
    story = Story()
    story.change(T, 1, 0.0, 1.0, epoch=epoch, end=end)

    story.checker.loss_recorded(2, 50)

    assert story.may_be(T, None, 1) == allowed


def test_a_doubled_request_may_come_about_again() -> None:
    """Within that time the older value is allowed, later it is not."""
    story = Story(echo_seconds=5.0)
    story.change(T, 1, 0.0, 1.0)
    story.change(T, 2, 3.0, 3.5)

    assert story.may_be(T, 1, 2) == [1, 2]

    story.change(T, 3, 9.0, 9.5)

    assert story.may_be(T, 1, 2, 3) == [3]


def test_what_no_master_said_is_told_to_nobody() -> None:
    """A success that no broker has answered is a violation."""
    checker = MetadataChecker("group-0", Counter())
    change = checker.begin(1, T, 1, 0.0)

    with pytest.raises(Violation):
        checker.client_answered(change, 1.0)


@pytest.mark.parametrize("replicas", [1, 3])
def test_calm_groups_tell_everything(replicas: int) -> None:
    """Without faults changes are told, and every replica has the same tables in the end."""
    plan = Plan(
        brokers=(replicas,),
        seconds=8.0,
        replicating=True,
        min_in_sync=min(2, replicas),
        metadata_clients=2,
        metadata_pause=0.05,
    )

    outcome = simulate(1, plan)

    assert outcome.failure is None
    assert outcome.counts["metadata told"] > 200
    assert outcome.counts["metadata compared"] == replicas - 1


def test_the_same_seed_gives_the_same_trace() -> None:
    """A run with metadata depends on its seed alone."""
    plan = Plan(brokers=(3,), seconds=6.0, replicating=True, metadata_clients=2, faults={"kill master": 1.0})

    assert simulate(7, plan).trace == simulate(7, plan).trace
