"""How many cores a process may use."""

from __future__ import annotations

import os

import pytest

from brokerset_runtime.cores import cores_of, usable_cores


@pytest.mark.parametrize(
    ("quotas", "cores"),
    [
        ([], 8),
        (["max 100000\n"], 8),
        (["400000 100000\n"], 4),
        (["max 100000\n", "250000 100000\n"], 2),
        (["50000 100000\n"], 1),
        (["1600000 100000\n"], 8),
        (["nonsense", "100000 0", ""], 8),
    ],
)
def test_the_smallest_quota_counts_in_whole_cores_and_at_least_one(quotas: list[str], cores: int) -> None:
    assert cores_of(8, quotas) == cores


def test_a_process_that_may_run_on_one_core_uses_one() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})

        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
