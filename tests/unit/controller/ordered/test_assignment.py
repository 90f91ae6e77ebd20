"""Who owns which partition: statements 11, 12, 14, 15 and 17 of the ordered subjects."""

from __future__ import annotations

from collections import Counter
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from brokerset_controller.ordered.assignment import wanted_owners

members = st.sets(st.sampled_from([f"session-{number}" for number in range(12)]), min_size=1)
partitions = st.sets(st.integers(0, 60), max_size=40)
owners = st.dictionaries(st.integers(0, 60), st.sampled_from([f"session-{number}" for number in range(14)]))


@given(partitions, members, owners)
def test_each_partition_has_one_owner_and_counts_differ_by_one(
    wanted: set[int], group: set[str], before: dict[int, str]
) -> None:
    """Statements 11 and 12: with more members than partitions some own nothing."""
    assigned = wanted_owners(wanted, group, before)
    counts = Counter(assigned.values())

    assert set(assigned) == wanted
    assert set(assigned.values()) <= group
    assert max((counts[member] for member in group), default=0) - min(counts[member] for member in group) <= 1


@given(partitions, members, owners)
def test_nothing_moves_while_nothing_changes(
    wanted: set[int], group: set[str], before: dict[int, str]
) -> None:
    """Statement 14."""
    assigned = wanted_owners(wanted, group, before)

    assert wanted_owners(wanted, group, assigned) == assigned


@given(partitions, members, st.sampled_from([f"session-{number}" for number in range(12)]))
def test_one_member_more_or_less_moves_no_more_than_it_must(
    wanted: set[int], group: set[str], other: str
) -> None:
    """Statement 15: at most the partitions divided by the smaller number of members, rounded up."""
    assigned = wanted_owners(wanted, group, {})
    changed = group ^ {other}
    if not changed:
        return
    after = wanted_owners(wanted, changed, assigned)
    moved = sum(after[partition] != assigned[partition] for partition in wanted)

    assert moved <= ceil(len(wanted) / min(len(group), len(changed)))


def test_without_members_nobody_is_wanted() -> None:
    """Statement 17: what was owned stays known until somebody returns."""
    assert wanted_owners({1, 2}, (), {1: "gone"}) == {}
