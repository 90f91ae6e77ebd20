"""The log agrees with a plain list, and two logs always find where they agree."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from brokerset_raft.configuration import Configuration
from brokerset_raft.log import RaftLog
from brokerset_raft.messages import (
    AppendReply,
    AppendRequest,
    Entry,
    EntryKind,
    HardState,
    Message,
    SnapshotMeta,
)
from brokerset_raft.node import Node, NodeConfig
from brokerset_sim.core_cluster import member

TERMS = st.lists(st.integers(1, 4), max_size=12).map(sorted)


def entries_of(terms: list[int], start: int = 1) -> list[Entry]:
    """Entries whose data tell index and term, as log matching wants it."""
    return [Entry(start + i, t, EntryKind.DATA, b"%d/%d" % (start + i, t)) for i, t in enumerate(terms)]


@given(TERMS, st.data())
def test_log_is_a_list_with_a_base(terms: list[int], data: st.DataObject) -> None:
    """Whatever is cut and compacted, bounds, terms and slices are those of the list."""
    model = entries_of(terms)
    log = RaftLog(None, model)
    cut = data.draw(st.integers(1, len(model) + 1))
    log.truncate(cut)
    del model[cut - 1 :]
    base = data.draw(st.integers(0, len(model)))
    keep = data.draw(st.integers(0, 3))

    if base > 0:
        log.compact(SnapshotMeta(base, model[base - 1].term, Configuration(), 0, 0), keep, 100)

    assert log.last_index == len(model)
    assert log.first_index == (max(base - keep, 0) if base else 0) + 1
    for entry in model[log.first_index - 1 :]:
        assert log.term(entry.index) == entry.term
    assert list(log.slice(log.first_index, log.last_index, 1 << 20)) == model[log.first_index - 1 :]


@given(TERMS, TERMS, st.integers(0, 4))
def test_follower_ends_with_the_leaders_log(mine: list[int], theirs: list[int], common: int) -> None:
    """From any two logs, refusals and hints lead to the agreement, each refusal strictly further down."""
    shared = mine[:common]  # after it one log has odd terms and the other even ones: no term had two leaders
    mine = shared + [2 * t + 5 for t in mine[common:]]
    theirs = shared + [2 * t + 4 for t in theirs]
    leader = RaftLog(None, entries_of(theirs))
    node = Node(
        NodeConfig(1),
        hard_state=HardState(13),
        log=RaftLog(None, entries_of(mine)),
        configuration=Configuration((member(1), member(2))),
        applied=0,
        random_source=random.Random(0),
    )
    previous = leader.last_index

    for _ in range(leader.last_index + 2):
        term = leader.term(previous)
        assert term is not None
        entries = leader.slice(previous + 1, leader.last_index, 1 << 20)
        node.step(Message(2, 1, AppendRequest(14, previous, term, entries, 0)))
        reply = node.take_ready().messages[-1].body
        assert isinstance(reply, AppendReply)
        if reply.success:
            assert reply.match_index == leader.last_index
            break
        hint, _ = leader.agreement(reply.hint_index, reply.hint_term)
        assert hint < previous
        previous = hint

    assert node.log.slice(1, leader.last_index, 1 << 20) == leader.slice(1, leader.last_index, 1 << 20)
