"""Raft's promises, checked on what leaves the nodes, what they apply, and what their disks would keep."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Protocol

from brokerset_controller.replicas.state import Group
from brokerset_raft.engine import EngineStatus, Role
from brokerset_raft.messages import (
    AppendReply,
    AppendRequest,
    CampaignNow,
    Entry,
    EntryKind,
    Heartbeat,
    Message,
    SnapshotChunk,
    VoteReply,
    VoteRequest,
)
from brokerset_raft.storage import Loaded
from brokerset_sim.history import History, Violation

LEADER_PER_TERM = "14 one leader per term"
ONE_VOTE = "14 one vote per term"
LOG_MATCHING = "14 log matching"
STATE_MACHINE_SAFETY = "14 state machine safety"
LEADER_COMPLETENESS = "14 leader completeness"
SYNCED_BEFORE_SENT = "14 synced before sent"
COMMITTED_BY_MAJORITY = "14 committed by a majority"
OWN_TERM = "14 commit by an entry of the own term"
ONE_CHANGE = "14 one change of the members at a time"
NEVER_FORGOTTEN = "14 what is durable stays"


class NodeView(Protocol):
    """A node's durable disk, as the world shows it to checkers."""

    def durable(self) -> Loaded | None:
        """What a power failure now would leave; None for a node without data or with a damaged log."""


class RaftChecker:
    """Sees every message and every applied command of one raft group."""

    def __init__(self, history: History, random_source: random.Random, *, disk_checks: float = 0.15) -> None:
        self.history = history
        self._random = random_source
        self._disk_checks = disk_checks
        self._leaders: dict[int, int] = {}
        self._votes: dict[tuple[int, int], int] = {}
        self._entries: dict[tuple[int, int], Entry] = {}
        self._term_max = 0
        self._announced: dict[int, int] = {}
        """By term: the highest commit index that its leader told."""

        self._changes: dict[int, list[int]] = {}
        """By term: indexes of changes of the members that its leader appended."""

        self._settled: dict[int, int] = {}
        """By index of a committed command: the highest term anyone had shown when it was applied first."""

        self._promised_term: dict[int, tuple[int, int | None]] = {}
        self._promised_match: dict[int, tuple[int, int]] = {}

    @property
    def leader_count(self) -> int:
        """How many terms had a leader."""
        return len(self._leaders)

    @property
    def change_count(self) -> int:
        """How many changes of the members leaders appended."""
        return sum(map(len, self._changes.values()))

    def sent(self, node: NodeView, message: Message) -> None:
        """A message leaves its node."""
        body = message.body
        source = message.source
        promise = False
        match body:
            case AppendRequest() | Heartbeat() | SnapshotChunk() | CampaignNow():
                known = self._leaders.setdefault(body.term, source)
                if known != source:
                    raise Violation(LEADER_PER_TERM, f"nodes {known} and {source} lead term {body.term}")
                if isinstance(body, AppendRequest | Heartbeat):
                    self._announced[body.term] = max(body.commit, self._announced.get(body.term, 0))
                if isinstance(body, AppendRequest):
                    self._check_entries(source, body)
            case VoteReply(granted=True, pre=False):
                self._vote(source, body.term, message.target)
                promise = True
            case VoteRequest(pre=False):
                self._vote(source, body.term, source)
                promise = True
            case AppendReply(success=True):
                self._promised_match[source] = max(
                    self._promised_match.get(source, (0, 0)), (body.term, body.match_index)
                )
                promise = True
            case _:
                pass
        pre = isinstance(body, VoteRequest | VoteReply) and body.pre
        if not pre:
            self._term_max = max(self._term_max, body.term)
            if body.term > self._promised_term.get(source, (0, None))[0]:
                self._promised_term[source] = (body.term, None)
        if promise and self._random.random() < self._disk_checks:
            self.check_durable(source, node.durable(), SYNCED_BEFORE_SENT)

    def check_durable(self, node_id: int, loaded: Loaded | None, invariant: str) -> None:
        """A node's disk must hold everything that the node ever promised."""
        if loaded is None:
            if node_id in self._promised_match or self._promised_term.get(node_id, (0, None))[1] is not None:
                raise Violation(invariant, f"node {node_id} has promised, and nothing is on its disk")
            return
        term, vote = self._promised_term.get(node_id, (0, None))
        hard = loaded.hard_state
        if vote is not None and (hard.term < term or (hard.term == term and hard.voted_for != vote)):
            raise Violation(
                invariant, f"node {node_id} voted for {vote} in term {term}; its disk says {hard}"
            )
        match_term, match_index = self._promised_match.get(node_id, (0, 0))
        last = loaded.entries[-1].index if loaded.entries else 0
        if loaded.snapshot is not None:
            last = max(last, loaded.snapshot.index)
        if hard.term < match_term or (hard.term == match_term and last < match_index):
            raise Violation(
                invariant,
                f"node {node_id} acknowledged entry {match_index} in term {match_term}; "
                f"its disk has term {hard.term} and entries until {last}",
            )

    def applied(
        self,
        node_id: int,
        index: int,
        data: bytes,
        groups: Mapping[str, Group],
        status: EngineStatus,
        disks: Callable[[], Mapping[int, Loaded | None]],
    ) -> bool:
        """A node applied a command. Returns whether it was the first to do so."""
        history = self.history
        moment = history.moment_of_index.get(index)
        if moment is not None:
            if history.datas[moment - 1] != data:
                raise Violation(STATE_MACHINE_SAFETY, f"node {node_id} applied another command at {index}")
            if history.states[moment] != groups:
                raise Violation(STATE_MACHINE_SAFETY, f"node {node_id} has another state after {index}")
            return False
        if history.indexes and index < history.indexes[-1]:
            raise Violation(STATE_MACHINE_SAFETY, f"node {node_id} applied {index}, which others passed over")
        history.append(index, data, groups)
        self._settled[index] = self._term_max
        if self._random.random() < 2 * self._disk_checks:
            self._check_majority(index, data, status, disks())
        return True

    def _check_majority(
        self, index: int, data: bytes, status: EngineStatus, disks: Mapping[int, Loaded | None]
    ) -> None:
        voters = status.configuration.voters
        told = max((commit for term, commit in self._announced.items() if term < status.term), default=0)
        if status.role is Role.LEADER and voters and told < index:
            current = [
                node_id
                for node_id in voters
                if (loaded := disks.get(node_id)) is not None
                and any(entry.index >= index and entry.term == status.term for entry in loaded.entries)
            ]
            if len(current) * 2 <= len(voters):
                raise Violation(
                    OWN_TERM,
                    f"leader {node_id_text(status)} applied {index}; entries of its own are with {current}",
                )
        holders = [
            node_id for node_id, loaded in disks.items() if loaded is not None and _holds(loaded, index, data)
        ]
        count = sum(1 for node_id in voters if node_id in holders)
        if voters and count * 2 <= len(voters):
            raise Violation(
                COMMITTED_BY_MAJORITY,
                f"entry {index} was applied; of voters {voters} only {holders} have it on disk",
            )

    def _check_entries(self, source: int, body: AppendRequest) -> None:
        for entry in body.entries:
            key = (entry.index, entry.term)
            known = self._entries.setdefault(key, entry)
            if known is not entry and known != entry:
                raise Violation(LOG_MATCHING, f"two entries with index {entry.index} and term {entry.term}")
            if entry.kind is EntryKind.CONFIGURATION and entry.term == body.term:
                changes = self._changes.setdefault(body.term, [])
                if entry.index not in changes:
                    changes.append(entry.index)
                    waiting = [each for each in changes if body.commit < each < entry.index]
                    if waiting:
                        raise Violation(
                            ONE_CHANGE,
                            f"leader {source} of term {body.term} changes at {waiting} and {entry.index}",
                        )
            moment = self.history.moment_of_index.get(entry.index)
            if moment is None or body.term <= self._settled[entry.index]:
                continue
            if self.history.datas[moment - 1] != entry.data:
                raise Violation(
                    LEADER_COMPLETENESS, f"leader {source} of term {body.term} lacks entry {entry.index}"
                )

    def _vote(self, node_id: int, term: int, candidate: int) -> None:
        known = self._votes.setdefault((node_id, term), candidate)
        if known != candidate:
            raise Violation(ONE_VOTE, f"node {node_id} voted for {known} and {candidate} in term {term}")
        if term >= self._promised_term.get(node_id, (0, None))[0]:
            self._promised_term[node_id] = (term, candidate)

    def forget_node(self, node_id: int) -> None:
        """The node was removed from the group and its disk wiped: what it promised counts no more."""
        self._promised_term.pop(node_id, None)
        self._promised_match.pop(node_id, None)


def node_id_text(status: EngineStatus) -> str:
    """Which leader."""
    return f"{status.node_id} of term {status.term}"


def _holds(loaded: Loaded, index: int, data: bytes) -> bool:
    if loaded.snapshot is not None and loaded.snapshot.index >= index:
        return True
    return any(entry.index == index and entry.data == data for entry in loaded.entries)
