"""The table of deliberate mistakes fits the code: each can be made, and what must notice it exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.mutation.run import ALL, chosen, problem
from tests.mutation.table import WORLDS, Mutation, Seeds

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: mutation.name)
def test_a_mutation_can_be_made_and_names_what_notices_it(mutation: Mutation) -> None:
    """Its text occurs once; whoever changes that text changes the table, in `tests/mutation`."""
    assert problem(mutation) is None
    assert mutation.old != mutation.new
    if isinstance(mutation.caught_by, Seeds):
        assert mutation.caught_by.world in WORLDS
        assert 0 < mutation.caught_by.count <= 200
    else:
        path, _, name = mutation.caught_by.partition("::")
        assert re.search(
            rf"^(async )?def {name.partition('[')[0] or 'test_'}", (ROOT / path).read_text(), re.M
        )


def test_there_are_enough_of_each_part() -> None:
    """Raft, controllers, replication, store, metadata, access control and TLS each have some, by names."""
    parts = ("brokerset_raft", "brokerset_controller", "/ha/", "/store/", "/metadata/", "_acl/", "/tls/")

    assert len({mutation.name for mutation in ALL}) == len(ALL) >= 36
    assert [part for part in parts if sum(part in mutation.path for mutation in ALL) < 5] == []


def test_turns_reach_every_mutation() -> None:
    """A few each day are all of them after some days."""
    turns = range(20_000, 20_000 + -(-len(ALL) // 7))

    assert {mutation.name for turn in turns for mutation in chosen(7, turn)} == {m.name for m in ALL}
    assert chosen(0, 5) == list(ALL)
