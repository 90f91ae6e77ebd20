"""The simulation of the raft core sees the classic mistakes: each is made on purpose and must be found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from brokerset_raft.configuration import Configuration
from brokerset_raft.engine import Role
from brokerset_raft.messages import (
    AppendReply,
    AppendRequest,
    HardState,
    ReadReady,
    Ready,
    VoteRequest,
)
from brokerset_raft.node import Node
from brokerset_sim.core_cluster import CoreCluster, Faults, NoProgress, SafetyViolated

BAD = Faults(
    loss=0.1,
    delay_ticks_max=3,
    crash=0.01,
    crash_in_write=0.01,
    down_ticks_max=10,
    cut=0.02,
    cut_ticks_max=30,
    slow_disk=0.2,
    pause=0.03,
    pause_ticks_max=30,
    transfer=0.01,
    change=0.1,
    snapshot=0.02,
)


class VoteForgotten(Node):
    """Hands out its term for the disk, but not its vote."""

    def take_ready(self) -> Ready:
        ready = super().take_ready()
        return replace(ready, hard_state=ready.hard_state and HardState(ready.hard_state.term, None))


class VoteBeforeDisk(Node):
    """Sends everything before the disk has anything."""

    def take_ready(self) -> Ready:
        ready = super().take_ready()
        return replace(ready, messages_now=ready.messages_now + ready.messages, messages=())


class OldTermCommitted(Node):
    """Commits by counting whatever a majority has, of any term."""

    def _may_count(self, index: int) -> bool:
        return True


class HalfElects(Node):
    """Takes half of an even number of voters for enough to elect."""

    def _count_votes(self) -> None:
        granted = [node_id for node_id in self._configuration.voters if self._votes.get(node_id)]
        if 2 * len(granted) >= len(self._configuration.voters):
            if self._role is Role.PRE_CANDIDATE:
                self._ask_for_votes(transfer=False)
            else:
                self._become_leader()


class HalfCommits(Node):
    """Takes half of an even number of voters for enough to commit."""

    def _majority_has(self, values: Iterable[int]) -> int:
        ordered = sorted(values, reverse=True)
        return ordered[(len(ordered) + 1) // 2 - 1]


class StaleRead(Node):
    """Answers reads at once, without a round."""

    def _start_read(self, request_id: int) -> None:
        self._reads_ready.append(ReadReady(request_id, self.commit_index))


class ReadBeforeOwnCommit(Node):
    """Answers reads with the commit index that it happens to know when it becomes leader."""

    def read(self, request_id: int) -> None:
        self._require_leader()
        self._start_read(request_id)


class TwoChangesAtOnce(Node):
    """Checks no change of the members, so that two may be under way."""

    def _check_change(self, wanted: Configuration) -> None:
        pass


class LeaderCountsUnsynced(Node):
    """Counts its own entries before its disk has them."""

    def _match_index(self, node_id: int) -> int:
        return self.log.last_index if node_id == self.node_id else super()._match_index(node_id)


class AnyLogElected(Node):
    """Votes for candidates that lack entries."""

    def _on_vote_request(self, source: int, request: object) -> None:
        log, self.log = self.log, type(self.log)(None, [])
        super()._on_vote_request(source, request)  # type: ignore[arg-type]  # handed through
        self.log = log


class NothingResent(Node):
    """Never notices that messages were lost."""

    def _on_append_reply(self, source: int, reply: AppendReply) -> None:
        if reply.success:
            super()._on_append_reply(source, reply)


class RefusesNothing(Node):
    """Takes entries without comparing what comes before them."""

    def _on_append_request(self, source: int, request: AppendRequest) -> None:
        previous = self.log.term(min(request.previous_index, self.log.last_index))
        if previous is not None and request.previous_index <= self.log.last_index:
            request = replace(request, previous_term=previous)
        super()._on_append_request(source, request)


class CommitsOwnLast(Node):
    """A follower takes its whole log for what the leader's commit index speaks of."""

    def _on_append_request(self, source: int, request: AppendRequest) -> None:
        super()._on_append_request(source, request)
        self._commit_to(min(request.commit, self.log.last_index))


class LongerLogElected(Node):
    """Compares the lengths of logs, and not the terms of their last entries."""

    def _on_vote_request(self, source: int, request: VoteRequest) -> None:
        super()._on_vote_request(source, replace(request, last_term=self.log.last_term))


class ReadInRoundUnderWay(Node):
    """Takes answers to a round that was sent before the read."""

    def _start_read(self, request_id: int) -> None:
        idle = self._confirmed_round() >= self._round
        self._reads.add(request_id, self.commit_index, self._round)
        if idle:
            self._start_round()


class MembersNotRolledBack(Node):
    """Keeps the members of a change that was cut from its log."""

    def _adopt_configuration(self) -> None:
        if self.log.configuration_index >= self.log.last_index or self.log.snapshot is not None:
            super()._adopt_configuration()


class NeverStepsDown(Node):
    """Leads on without a majority."""

    def _heard_majority(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("broken", "seeds_max"),
    [
        (CommitsOwnLast, 60),
        (LongerLogElected, 30),
        (ReadInRoundUnderWay, 30),
        (MembersNotRolledBack, 30),
        (NeverStepsDown, 30),
    ],
)
def test_mistake_is_found_by_drawn_seeds(broken: type[Node], seeds_max: int) -> None:
    """What needs long old tails, isolated leaders that are asked, or changes that are cut, is drawn too."""
    for seed in range(seeds_max):
        cluster = CoreCluster(seed, node_type=broken)
        try:
            cluster.run(200)
            cluster.heal()
        except (SafetyViolated, NoProgress, AssertionError) as error:
            print(f"found with seed {seed}: {error}")
            return
    pytest.fail(f"{broken.__name__} was not found in {seeds_max} seeds")


@pytest.mark.parametrize(
    ("broken", "seeds_max"),
    [
        (VoteForgotten, 5),
        (VoteBeforeDisk, 5),
        (OldTermCommitted, 60),
        (HalfElects, 60),
        (HalfCommits, 20),
        (StaleRead, 60),
        (ReadBeforeOwnCommit, 60),
        (TwoChangesAtOnce, 120),
        (LeaderCountsUnsynced, 20),
        (AnyLogElected, 60),
        (NothingResent, 20),
        (RefusesNothing, 200),
    ],
)
def test_mistake_is_found(broken: type[Node], seeds_max: int) -> None:
    """A core with this mistake breaks a promise, or itself, within so many seeds."""
    for seed in range(seeds_max):
        cluster = CoreCluster(seed, faults=BAD, node_type=broken)
        try:
            cluster.run(300)
            cluster.heal()
        except (SafetyViolated, NoProgress, AssertionError) as error:
            print(f"found with seed {seed}: {error}")
            return
    pytest.fail(f"{broken.__name__} was not found in {seeds_max} seeds")


def test_sound_core_is_not_blamed() -> None:
    """The same faults and checkers find nothing in the core as it is."""
    for seed in range(20):
        cluster = CoreCluster(seed, faults=BAD)
        cluster.run(300)
        cluster.heal()
