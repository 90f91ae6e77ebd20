"""Corners of the core that scenes do not show: replaced entries, limits, outdated and foreign messages."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from brokerset_raft.configuration import Configuration, ConfigurationRefused, Member
from brokerset_raft.engine import NotLeader, Overloaded, Role
from brokerset_raft.log import RaftLog
from brokerset_raft.messages import (
    AppendReply,
    AppendRequest,
    Body,
    CampaignNow,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatReply,
    Message,
    Ready,
    SnapshotChunk,
    SnapshotMeta,
    SnapshotReply,
    VoteReply,
    VoteRequest,
)
from brokerset_raft.node import Node, NodeConfig
from brokerset_sim.core_cluster import member

GROUP = Configuration((member(1), member(2), member(3)))
META = SnapshotMeta(8, 2, GROUP, 4, 0)


def entry(index: int, term: int, data: bytes = b"x") -> Entry:
    return Entry(index, term, EntryKind.DATA, data)


def make(
    entries: list[Entry] | None = None, *, term: int = 1, group: Configuration = GROUP, **settings: int
) -> Node:
    return Node(
        replace(NodeConfig(1), **settings),
        hard_state=HardState(term),
        log=RaftLog(None, entries or []),
        configuration=group,
        applied=0,
        random_source=random.Random(1),
    )


def hear(node: Node, source: int, body: Body) -> None:
    node.step(Message(source, 1, body))


def work(node: Node) -> list[Ready]:
    """Carry out everything, as with a disk that syncs at once."""
    done: list[Ready] = []
    while node.has_ready():
        ready = node.take_ready()
        if ready.entries:
            node.persisted(ready.entries[-1].index, ready.entries[-1].term)
        if ready.committed:
            node.applied(ready.committed[-1].index)
        done.append(ready)
    return done


def sent(done: list[Ready], kind: type[Body] | None = None) -> list[Body]:
    bodies = [m.body for ready in done for m in (*ready.messages_now, *ready.messages)]
    return [body for body in bodies if kind is None or isinstance(body, kind)]


def lead(node: Node, *, committed: bool = True) -> Node:
    """Win an election with node 2's vote, and let it have the first entry."""
    for _ in range(12):
        if node.role is not Role.PRE_CANDIDATE:
            node.tick()
    hear(node, 2, VoteReply(node.term + 1, True, pre=True))
    work(node)
    hear(node, 2, VoteReply(node.term, True))
    work(node)
    if committed:
        hear(node, 2, AppendReply(node.term, True, node.log.last_index))
        work(node)
    assert node.role is Role.LEADER
    return node


def test_sync_of_a_replaced_entry_does_not_count() -> None:
    """An entry that was cut, and came back with the same term, is not on the disk because it once was."""
    node = make()
    hear(node, 2, AppendRequest(1, 0, 0, (entry(1, 1), entry(2, 1)), 0))
    node.take_ready()
    hear(node, 3, AppendRequest(2, 1, 1, (entry(2, 2),), 0))
    node.take_ready()
    node.persisted(2, 1)
    lead(node, committed=False)

    own = node.match_indexes[1]

    assert own == 3  # the no-op and all before it were synced by `work`
    other = make([entry(1, 1)])
    hear(other, 2, AppendRequest(1, 1, 1, (entry(2, 1),), 0))
    other.take_ready()
    hear(other, 3, AppendRequest(2, 1, 1, (entry(2, 2),), 0))
    hear(other, 2, AppendRequest(3, 1, 1, (entry(2, 1), entry(3, 3)), 0))
    other.persisted(2, 1)
    assert other._persisted_index == 1


def test_entries_that_are_cut_unsynced_are_not_acknowledged() -> None:
    """Two leaders are heard before the disk works: only what the second left is synced and acknowledged."""
    node = make([entry(1, 1)])
    hear(node, 2, AppendRequest(1, 1, 1, (entry(2, 1), entry(3, 1)), 0))

    hear(node, 3, AppendRequest(2, 1, 1, (entry(2, 2),), 0))

    assert sent(work(node), AppendReply) == [AppendReply(2, True, 2)]


def test_messages_that_show_an_unsynced_term_wait() -> None:
    """A leader alone is elected before its disk knows: its messages to learners leave afterwards."""
    group = Configuration((member(1), replace(member(2), voter=False)))
    node = make(group=group)

    while node.role is not Role.LEADER:
        node.tick()
    ready = node.take_ready()

    assert ready.hard_state == HardState(2, 1)
    assert ready.messages_now == ()
    assert any(isinstance(m.body, AppendRequest) for m in ready.messages)


def test_leader_counts_itself_only_when_synced() -> None:
    """A group of one commits when its own disk has the entry."""
    node = make(group=Configuration((member(1),)))
    while node.role is not Role.LEADER:
        node.tick()
    ready = node.take_ready()

    assert node.commit_index == 0
    node.persisted(ready.entries[-1].index, ready.entries[-1].term)
    assert node.commit_index == 1
    assert node.is_serving(1)
    assert not node.is_serving(0)


def test_each_effect_is_handed_out_once() -> None:
    """The second look finds nothing."""
    node = lead(make())
    node.propose([b"a"])

    assert node.has_ready()
    work(node)

    assert not node.has_ready()
    assert node.take_ready() == Ready((), (), None, (), None, (), (), (), ())


def test_proposals_are_bounded_by_bytes() -> None:
    """One may always wait, however large; more only while there is room. What is committed makes room."""
    node = lead(make(uncommitted_bytes_max=10))
    first, term = node.propose([b"x" * 100])

    with pytest.raises(Overloaded, match="100 bytes wait"):
        node.propose([b"y"])
    work(node)
    hear(node, 2, AppendReply(term, True, first))

    assert node.propose([b"y", b"z"]) == (first + 1, term)


def test_reads_are_bounded() -> None:
    """Beyond the limit a read is refused at once; a lost leadership refuses those that wait."""
    node = lead(make(reads_max=2))
    node.read(1)
    node.read(2)

    with pytest.raises(Overloaded, match="2 reads wait"):
        node.read(3)
    hear(node, 3, AppendReply(node.term + 5, False, 0))

    assert work(node)[0].reads_refused == (1, 2)
    with pytest.raises(NotLeader):
        node.read(4)


def test_answer_to_an_older_round_confirms_no_read() -> None:
    """A read needs an answer to a heartbeat that was sent after it."""
    node = lead(make())
    node.tick()
    node.read(7)
    work(node)

    hear(node, 2, HeartbeatReply(node.term, 1))
    first = work(node)
    hear(node, 2, HeartbeatReply(node.term, 2))
    second = work(node)

    assert not any(ready.reads for ready in first)
    assert [read.request_id for ready in second for read in ready.reads] == [7]


def test_follower_protects_a_leader_that_it_hears() -> None:
    """Neither pre-votes nor votes, unless the leader itself wants the election."""
    node = make([entry(1, 1)])
    hear(node, 2, Heartbeat(1, 0, 1))
    work(node)

    hear(node, 3, VoteRequest(2, 5, 1, pre=True))
    hear(node, 3, VoteRequest(9, 5, 1))
    assert work(node) == []
    assert node.term == 1
    hear(node, 3, VoteRequest(2, 5, 1, transfer=True))

    assert sent(work(node)) == [VoteReply(2, True)]


def test_pre_vote_changes_nothing_and_is_given_again() -> None:
    """Two candidates may both be told that they could win."""
    node = make([entry(1, 1)])

    hear(node, 2, VoteRequest(2, 1, 1, pre=True))
    hear(node, 3, VoteRequest(2, 1, 1, pre=True))

    assert sent(work(node)) == [VoteReply(2, True, True), VoteReply(2, True, True)]
    assert node.term == 1


def test_one_vote_a_term_also_after_a_restart() -> None:
    """The vote on the disk holds."""
    node = Node(
        NodeConfig(1),
        hard_state=HardState(4, voted_for=2),
        log=RaftLog(None, []),
        configuration=GROUP,
        applied=0,
        random_source=random.Random(1),
    )

    hear(node, 3, VoteRequest(4, 9, 3))
    hear(node, 2, VoteRequest(4, 9, 3))

    assert sent(work(node)) == [VoteReply(4, False), VoteReply(4, True)]


@pytest.mark.parametrize(
    ("last_index", "last_term", "granted"), [(2, 1, False), (1, 2, True), (3, 1, True), (4, 1, True)]
)
def test_vote_needs_a_log_that_is_as_complete(last_index: int, last_term: int, granted: bool) -> None:
    """The later term wins, then the longer log."""
    node = make([entry(1, 1), entry(2, 1), entry(3, 1)])

    hear(node, 2, VoteRequest(2, last_index, last_term))

    assert sent(work(node)) == [VoteReply(2, granted)]


@pytest.mark.parametrize(
    "body",
    [
        AppendRequest(1, 0, 0, (), 0),
        Heartbeat(1, 0, 1),
        SnapshotChunk(1, META, 0, b"ab"),
        VoteRequest(1, 0, 0),
    ],
)
def test_outdated_leaders_and_candidates_are_shown_the_newer_term(body: Body) -> None:
    """Otherwise they would go on permanently."""
    node = make(term=5)

    hear(node, 2, body)

    replies = sent(work(node))
    assert [reply.term for reply in replies] == [5]


@pytest.mark.parametrize(
    "body", [AppendReply(9, False, 0), VoteReply(9, False), HeartbeatReply(9, 1), SnapshotReply(9, 1, 1)]
)
def test_replies_of_strangers_end_no_leadership(body: Body) -> None:
    """A removed node may be at any term."""
    node = lead(make())

    hear(node, 7, body)

    assert node.role is Role.LEADER


def test_doubled_and_late_append_cuts_nothing() -> None:
    """An older message that holds less than the log has is no reason to forget the rest."""
    node = make()
    hear(node, 2, AppendRequest(1, 0, 0, (entry(1, 1), entry(2, 1)), 0))
    hear(node, 2, AppendRequest(1, 0, 0, (entry(1, 1),), 0))

    assert node.log.last_index == 2
    assert [body.match_index for body in sent(work(node), AppendReply) if isinstance(body, AppendReply)] == [
        2,
        1,
    ]


def test_heartbeat_commits_no_more_than_is_there() -> None:
    """Whatever a message says, what is not in the log is not committed."""
    node = make([entry(1, 1)])

    hear(node, 2, Heartbeat(1, 50, 1))

    assert node.commit_index == 1


def test_leader_without_a_majority_steps_down() -> None:
    """It cannot know whether another leads by now."""
    node = lead(make())

    for _ in range(12):
        node.tick()

    assert node.role is Role.FOLLOWER
    assert node.leader_id is None


def test_leader_says_whom_it_has_not_heard_lately() -> None:
    """What it knows of a log stays, though nothing of what its member sends may get through any more."""
    node = lead(make())
    hear(node, 3, AppendReply(node.term, True, node.log.last_index))
    assert node.heard == {1, 2, 3}

    for _ in range(3 * node_ticks()):
        node.tick()
        hear(node, 2, HeartbeatReply(node.term, 0))
        work(node)

    assert node.role is Role.LEADER
    assert node.heard == {1, 2}
    assert node.match_indexes[3] == node.log.last_index


def node_ticks() -> int:
    """Between two checks of the quorum."""
    return NodeConfig(1).election_ticks


def test_node_without_a_group_waits_and_follows_anybody() -> None:
    """A joining node campaigns never, and takes what a leader sends."""
    node = make(group=Configuration())
    for _ in range(100):
        node.tick()
    assert work(node) == []

    hear(node, 9, AppendRequest(3, 0, 0, (Entry(1, 3, EntryKind.CONFIGURATION, GROUP.encode()),), 1))

    assert node.configuration == GROUP
    assert node.role is Role.FOLLOWER
    assert sent(work(node)) == [AppendReply(3, True, 1)]


def test_membership_changes_wait_for_their_turn() -> None:
    """Not before the own no-op is committed, one node and one change at a time, never the last voter."""
    node = lead(make(), committed=False)
    learner = GROUP.with_learner(member(4))
    with pytest.raises(ConfigurationRefused, match="committed nothing"):
        node.propose_change(learner)
    hear(node, 2, AppendReply(node.term, True, 1))
    with pytest.raises(ConfigurationRefused, match="one at a time"):
        node.propose_change(GROUP.without(2).without(3))
    with pytest.raises(ConfigurationRefused, match="needs a voter"):
        node.propose_change(Configuration((replace(member(1), voter=False),)))
    with pytest.raises(ConfigurationRefused, match="learner first"):
        node.propose_change(Configuration((*GROUP.members, member(4))))

    index = node.propose_change(learner)

    assert node.configuration == learner
    with pytest.raises(ConfigurationRefused, match=f"index {index}"):
        node.propose_change(GROUP)


def test_learner_that_lags_is_not_promoted() -> None:
    """A voter without the log would be a hole in the majority."""
    node = lead(make(promote_lag_max=2))
    index = node.propose_change(GROUP.with_learner(member(4)))
    work(node)
    hear(node, 2, AppendReply(node.term, True, index))
    wanted = node.configuration.with_voter(4)

    with pytest.raises(ConfigurationRefused, match="lags by"):
        node.propose_change(wanted)
    hear(node, 4, AppendReply(node.term, True, index - 1))

    assert node.propose_change(wanted) == index + 1


def test_learner_that_is_not_there_is_not_promoted() -> None:
    """In a short log a node that has nothing lags by little, and would still cost the majority a voter."""
    node = lead(make())
    index = node.propose_change(GROUP.with_learner(member(4)))
    work(node)
    hear(node, 2, AppendReply(node.term, True, index))
    wanted = node.configuration.with_voter(4)

    with pytest.raises(ConfigurationRefused, match="has not confirmed"):
        node.propose_change(wanted)
    hear(node, 4, AppendReply(node.term, False, index - 1))
    with pytest.raises(ConfigurationRefused, match="has not confirmed"):
        node.propose_change(wanted)
    hear(node, 4, AppendReply(node.term, True, index))
    for _ in range(2 * node.config.election_ticks):
        node.tick()
        hear(node, 2, HeartbeatReply(node.term, 1))
    with pytest.raises(ConfigurationRefused, match="not heard lately"):
        node.propose_change(wanted)
    hear(node, 4, HeartbeatReply(node.term, 1))

    assert node.propose_change(wanted) == index + 1


@pytest.mark.parametrize(
    "odd",
    [replace(member(4), node_id=1 << 64), replace(member(4), node_id=-1),
     replace(member(4), raft_address="h" * 301), replace(member(4), service_address="h\ud800:1")],
)  # fmt: skip
def test_member_that_cannot_be_written_down_is_refused(odd: Member) -> None:
    """Once agreed on, it would stop every node that reads or writes it."""
    with pytest.raises(ConfigurationRefused):
        GROUP.with_learner(odd)


def test_empty_snapshot_that_came_damaged_is_asked_for_again() -> None:
    """Of a state without bytes, nothing stored is not all."""
    node = make()
    meta = SnapshotMeta(8, 2, GROUP, 0, 0)
    hear(node, 2, SnapshotChunk(2, meta, 0, b""))
    assert [ready.chunk_received is not None for ready in work(node)] == [True]

    node.chunk_stored(meta, 0)

    hear(node, 2, SnapshotChunk(2, meta, 0, b""))
    assert any(ready.chunk_received is not None for ready in work(node))


def test_removed_leader_does_not_count_itself() -> None:
    """Of the two that stay both are needed; then it goes, and asks one of them to follow it in office."""
    node = lead(make())
    index = node.propose_change(GROUP.without(1))
    work(node)

    hear(node, 2, AppendReply(node.term, True, index))
    assert node.commit_index == index - 1
    hear(node, 3, AppendReply(node.term, True, index))

    assert node.commit_index == index
    assert node.role is Role.LEARNER
    assert len(sent(work(node), CampaignNow)) == 1


def test_node_whose_removal_is_not_committed_still_campaigns() -> None:
    """It may be the only one that has the entry, and nobody with less could win against it (thesis 4.2.2)."""
    removal = Entry(2, 1, EntryKind.CONFIGURATION, GROUP.without(1).encode())
    joined = Entry(1, 1, EntryKind.CONFIGURATION, GROUP.encode())
    node = make([joined, removal], group=Configuration())

    for _ in range(12):
        node.tick()

    assert node.role is Role.PRE_CANDIDATE


def test_snapshot_comes_in_pieces_and_survives_doubled_ones() -> None:
    """Each piece is handed out once, and what comes again is answered with what is there."""
    node = make(term=2)
    hear(node, 2, SnapshotChunk(2, META, 0, b"ab"))
    hear(node, 2, SnapshotChunk(2, META, 0, b"ab"))
    ready = node.take_ready()
    assert ready.chunk_received is not None
    node.chunk_stored(META, 2)
    assert sent(work(node)) == [SnapshotReply(2, 8, 2)]
    hear(node, 2, SnapshotChunk(2, META, 0, b"ab"))
    assert sent(work(node)) == [SnapshotReply(2, 8, 2)]

    hear(node, 2, SnapshotChunk(2, META, 2, b"cd"))
    assert node.take_ready().chunk_received is not None
    node.snapshot_installed(META)

    assert (node.commit_index, node.applied_index, node.log.first_index) == (8, 8, 9)
    assert sent(work(node)) == [SnapshotReply(2, 8, 4)]


def test_log_stands_still_while_a_snapshot_is_installed() -> None:
    """What is acknowledged meanwhile would be gone afterwards."""
    node = make([entry(1, 1)], term=2)
    hear(node, 2, SnapshotChunk(2, META, 0, b"abcd"))
    node.take_ready()

    hear(node, 2, AppendRequest(2, 1, 1, (entry(2, 2),), 1))
    for _ in range(30):
        node.tick()

    assert node.log.last_index == 1
    assert work(node) == []


def test_damaged_snapshot_starts_again() -> None:
    """The next piece that is accepted is the first."""
    node = make(term=2)
    hear(node, 2, SnapshotChunk(2, META, 0, b"abcd"))
    node.take_ready()
    node.chunk_stored(META, 0)
    assert sent(work(node)) == [SnapshotReply(2, 8, 0)]

    hear(node, 2, SnapshotChunk(2, META, 0, b"abcd"))

    assert node.take_ready().chunk_received is not None


def test_snapshot_that_is_not_needed_is_answered_as_installed() -> None:
    """Neither an older one, nor one whose last entry is in the log."""
    node = make([entry(1, 1), entry(2, 1), entry(3, 1)])
    near = SnapshotMeta(2, 1, GROUP, 4, 0)

    hear(node, 2, SnapshotChunk(1, near, 0, b"ab"))
    hear(node, 2, SnapshotChunk(1, SnapshotMeta(1, 1, GROUP, 9, 0), 0, b"ab"))

    done = work(node)
    assert sent(done) == [SnapshotReply(1, 2, 4), SnapshotReply(1, 1, 9)]
    assert [e.index for ready in done for e in ready.committed] == [1, 2]


def test_transfer_resends_the_call_and_ends_with_the_time() -> None:
    """The call may be lost; the target may be gone."""
    node = lead(make())
    node.transfer(2)
    assert len(sent(work(node), CampaignNow)) == 1

    node.tick()
    hear(node, 2, HeartbeatReply(node.term, 1))
    assert len(sent(work(node), CampaignNow)) == 1
    for _ in range(6):
        node.tick()

    assert node.transfer_target is None
    node.propose([b"a"])


def test_nobody_but_a_voter_is_called_to_campaign() -> None:
    """A learner that is told to campaign stays what it is."""
    node = make(group=Configuration((member(2), replace(member(1), voter=False))))

    hear(node, 2, CampaignNow(1))

    assert work(node) == []
    assert node.role is Role.LEARNER


def test_two_leaders_of_a_term_are_a_bug() -> None:
    """Nothing that follows could be trusted, so it ends here."""
    node = lead(make())

    with pytest.raises(AssertionError, match="both lead"):
        hear(node, 3, Heartbeat(node.term, 0, 1))


def test_committed_entries_are_never_replaced() -> None:
    """A leader that would do it is broken, and so would be everything after it."""
    node = make([entry(1, 1), entry(2, 1)])
    hear(node, 2, Heartbeat(1, 2, 1))

    hear(node, 3, AppendRequest(2, 0, 0, (entry(1, 2),), 0))

    assert sent(work(node), AppendReply) == [AppendReply(2, True, 2)]
    assert node.log.term(1) == 1


def test_a_snapshot_on_its_way_goes_on_while_the_disk_still_has_it() -> None:
    """Snapshots that are taken faster than one can be sent do not keep a follower out permanently."""
    node = lead(make(kept_entries=0))

    def snapshot() -> SnapshotMeta:
        node.propose([b"x"])
        work(node)
        hear(node, 2, AppendReply(node.term, True, node.log.last_index))
        work(node)
        index = node.applied_index
        return SnapshotMeta(index, node.term, GROUP, 4 << 20, index)

    def wanted(done: list[Ready]) -> list[int]:
        return [chunk.meta.index for ready in done for chunk in ready.chunks_wanted if chunk.target == 3]

    first = snapshot()
    node.compacted(first)
    hear(node, 3, HeartbeatReply(node.term, 1))
    begun = wanted(work(node))
    second = snapshot()
    node.compacted(second, (first, second))
    meanwhile = wanted(work(node))
    third = snapshot()
    node.compacted(third, (second, third))
    afterwards = wanted(work(node))

    assert (begun, meanwhile, afterwards) == ([first.index], [], [third.index])
