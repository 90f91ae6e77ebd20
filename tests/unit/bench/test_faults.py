"""Which paths a cut between two parts takes away."""

from __future__ import annotations

import pytest

from brokerset_bench.faults import CUTS, Part

ADDRESSES = {
    Part.MASTER: ("m",),
    Part.SLAVES: ("s", "t"),
    Part.CONTROLLERS: ("x", "y"),
    Part.LEADER: ("x",),
    Part.FOLLOWERS: ("y",),
    Part.CLIENTS: ("c",),
}


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("master-slaves-both", {("m", "s"), ("s", "m"), ("m", "t"), ("t", "m")}),
        ("master-slaves-in", {("s", "m"), ("t", "m")}),
        ("master-slaves-out", {("m", "s"), ("m", "t")}),
        ("leader-followers-both", {("x", "y"), ("y", "x")}),
        ("slaves-clients-out", {("s", "c"), ("t", "c")}),
    ],
)
def test_a_cut_takes_the_paths_between_two_parts_away(name: str, paths: set[tuple[str, str]]) -> None:
    """One way in is what the first part would receive; everything else stays as it is."""
    assert set(CUTS[name].paths(ADDRESSES)) == paths


def test_every_pair_is_cut_each_way() -> None:
    """No part is cut off from itself, and no two cuts are the same."""
    assert len({cut.paths(ADDRESSES) for cut in CUTS.values()}) == len(CUTS)
    assert all(sender != receiver for cut in CUTS.values() for sender, receiver in cut.paths(ADDRESSES))
