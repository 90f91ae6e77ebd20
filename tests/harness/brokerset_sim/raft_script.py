"""The commands that raft scenarios may use: cores with synchronous disks and a wire that is moved by hand."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace

from brokerset_raft.configuration import Configuration, ConfigurationRefused
from brokerset_raft.engine import EngineError, Role
from brokerset_raft.log import RaftLog
from brokerset_raft.messages import (
    AppendReply,
    AppendRequest,
    Body,
    CampaignNow,
    ChunkReceived,
    Entry,
    EntryKind,
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
from brokerset_sim.core_cluster import Disk, member

ROUNDS_MAX = 50
"""Rounds of deliveries after which `settle` takes the talk for endless."""


class RaftScript:
    """Handles one command after the other and tells what happened.

    `append_bytes MOST`, `set LIMIT VALUE` (a field of `NodeConfig`, before `nodes`), `nodes COUNT [SPARES]`,
    `tick NODE COUNT`, `campaign NODE` (tick until it does), `deliver` (one round), `settle` (rounds until
    silence; messages are not shown), `beat NODE` (a heartbeat, then settle), `cut NODE [OTHER]`, `mend`,
    `lose` (all on the wire), `reverse` (the wire), `propose NODE TEXT...`, `read NODE ID`, `transfer NODE
    TARGET`, `add NODE ID`, `promote NODE ID`, `remove NODE ID`, `snapshot NODE`, `crash NODE`, `slow NODE`
    (its disk, until `sync NODE`), `log`, `state`.

    Messages of others than these cores, as `message_line` shows them, are put on the wire by
    `append SOURCE TARGET TERM AFTER/TERM COMMIT [INDEX/TERM:TEXT...]`, `heartbeat SOURCE TARGET TERM COMMIT`,
    `vote|pre-vote SOURCE TARGET TERM LAST/TERM`, `granted SOURCE TARGET TERM`,
    `has SOURCE TARGET TERM INDEX`, `lacks SOURCE TARGET TERM INDEX TRY/TERM`.
    """

    def __init__(self) -> None:
        self._config = NodeConfig(node_id=0, chunk_bytes=16, kept_entries=0, promote_lag_max=3)
        self._initial: dict[int, Configuration] = {}
        self._nodes: dict[int, Node] = {}
        self._disks: dict[int, Disk] = {}
        self._states: dict[int, list[str]] = {}
        self._roles: dict[int, tuple[Role, int]] = {}
        self._wire: list[Message] = []
        self._cut: set[int] = set()
        self._cut_links: set[tuple[int, int]] = set()
        self._unsynced: dict[int, list[Ready]] = {}
        self._quiet = False

    def handle(self, command: str) -> str:
        """Carry out a command; the lines are what happened, in order."""
        name, *words = command.split()
        try:
            return self._run(name, words)
        except (EngineError, ConfigurationRefused) as error:
            return f"{type(error).__name__}: {error}\n"

    def _run(self, name: str, words: list[str]) -> str:
        match name, words:
            case "append_bytes", [most]:
                self._config = replace(self._config, append_bytes_max=int(most))
                return ""
            case "set", [limit, value]:
                self._config = replace(self._config, **{limit: int(value)})
                return ""
            case "nodes", [count, *spares]:
                return self._make(int(count), int(spares[0]) if spares else 0)
            case "tick", [node_id, count]:
                for _ in range(int(count)):
                    self._nodes[int(node_id)].tick()
                return self._drain(int(node_id))
            case "campaign", [node_id]:
                node = self._nodes[int(node_id)]
                for _ in range(2 * self._config.election_ticks):
                    if node.role not in (Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER):
                        node.tick()
                return self._drain(int(node_id))
            case "deliver", []:
                return self._deliver()
            case "settle", []:
                return self._settle()
            case "beat", [node_id]:
                return self._beat(int(node_id))
            case "cut", [node_id]:
                self._cut.add(int(node_id))
                return ""
            case "cut", [node_id, other]:
                self._cut_links |= {(int(node_id), int(other)), (int(other), int(node_id))}
                return ""
            case "mend", []:
                self._cut.clear()
                self._cut_links.clear()
                return ""
            case "reverse", []:
                self._wire.reverse()
                return ""
            case "slow", [node_id]:
                self._unsynced[int(node_id)] = []
                return ""
            case "sync", [node_id]:
                return self._sync(int(node_id))
            case "append" | "heartbeat" | "vote" | "pre-vote" | "granted" | "has" | "lacks", _:
                self._wire.append(read_message(name, words))
                return f"{message_line(self._wire[-1])}\n"
            case "lose", []:
                self._wire.clear()
                return ""
            case "propose", [node_id, *texts]:
                self._nodes[int(node_id)].propose([text.encode() for text in texts])
                return self._drain(int(node_id))
            case "read", [node_id, request_id]:
                self._nodes[int(node_id)].read(int(request_id))
                return self._drain(int(node_id))
            case "transfer", [node_id, target]:
                self._nodes[int(node_id)].transfer(int(target))
                return self._drain(int(node_id))
            case "add" | "promote" | "remove", [node_id, changed]:
                return self._change(name, int(node_id), int(changed))
            case "snapshot", [node_id]:
                return self._take_snapshot(int(node_id))
            case "crash", [node_id]:
                return self._boot(int(node_id))
            case "log", []:
                return "".join(f"{i}: {_show_log(node)}\n" for i, node in self._nodes.items())
            case "state", []:
                return "".join(f"{i}: {_show_state(node)}\n" for i, node in self._nodes.items())
            case _:
                raise ValueError(f"unknown command: {name} {words}")

    def _make(self, count: int, spares: int) -> str:
        group = Configuration(tuple(member(node_id) for node_id in range(1, count + 1)))
        for node_id in range(1, count + spares + 1):
            self._initial[node_id] = group if node_id <= count else Configuration()
            self._disks[node_id] = Disk()
            self._boot(node_id)
        return ""

    def _boot(self, node_id: int) -> str:
        disk = self._disks[node_id]
        self._unsynced.pop(node_id, None)
        self._states[node_id] = disk.state.decode().split()
        node = Node(
            replace(self._config, node_id=node_id),
            hard_state=disk.hard_state,
            log=RaftLog(disk.meta, disk.entries),
            configuration=self._initial[node_id],
            applied=disk.base,
            random_source=random.Random(node_id),
        )
        self._nodes[node_id] = node
        self._roles[node_id] = (node.role, node.term)
        return ""

    def _change(self, name: str, node_id: int, changed: int) -> str:
        node = self._nodes[node_id]
        match name:
            case "add":
                wanted = node.configuration.with_learner(member(changed))
            case "promote":
                wanted = node.configuration.with_voter(changed)
            case _:
                wanted = node.configuration.without(changed)
        node.propose_change(wanted)
        return self._drain(node_id)

    def _take_snapshot(self, node_id: int) -> str:
        node, disk = self._nodes[node_id], self._disks[node_id]
        index, term = node.applied_index, node.log.term(node.applied_index)
        assert term is not None, "the last applied entry is in the log"
        state = " ".join(self._states[node_id]).encode()
        meta = SnapshotMeta(index, term, node.configuration_at(index), len(state), zlib.crc32(state))
        disk.use_snapshot(meta, state, [entry for entry in disk.entries if entry.index > index])
        node.compacted(meta)
        return f"{node_id} has a snapshot of {len(state)} bytes up to {index}\n" + self._drain(node_id)

    def _deliver(self) -> str:
        batch, self._wire = self._wire, []
        lines: list[str] = []
        for message in batch:
            ends = (message.source, message.target)
            if self._cut.isdisjoint(ends) and ends not in self._cut_links:
                self._nodes[message.target].step(message)
                lines.append(self._drain(message.target))
        return "".join(lines)

    def _settle(self) -> str:
        self._quiet = True
        lines: list[str] = []
        for _ in range(ROUNDS_MAX):
            if not self._wire:
                break
            lines.append(self._deliver())
        else:
            raise AssertionError(f"still talking after {ROUNDS_MAX} rounds: {self._wire}")
        self._quiet = False
        return "".join(lines)

    def _beat(self, node_id: int) -> str:
        self._quiet = True
        self._nodes[node_id].tick()
        return self._drain(node_id) + self._settle()

    def _drain(self, node_id: int) -> str:
        node = self._nodes[node_id]
        lines: list[str] = []
        while node.has_ready():
            role = (node.role, node.term)
            if role != self._roles[node_id]:
                self._roles[node_id] = role
                lines.append(f"{node_id} is {role[0].value} in term {role[1]}")
            ready = node.take_ready()
            lines += [f"{message_line(m)} (now)" for m in ready.messages_now if not self._quiet]
            self._wire += ready.messages_now
            if node_id in self._unsynced:
                self._unsynced[node_id].append(ready)
                continue
            lines += self._carry_out(node_id, node, ready)
        return "".join(f"{line}\n" for line in lines)

    def _sync(self, node_id: int) -> str:
        """The disk has everything now, and works again as it should."""
        lines: list[str] = []
        for ready in self._unsynced.pop(node_id):
            lines += self._carry_out(node_id, self._nodes[node_id], ready)
        return "".join(f"{line}\n" for line in lines) + self._drain(node_id)

    def _carry_out(self, node_id: int, node: Node, ready: Ready) -> list[str]:
        disk, lines = self._disks[node_id], list[str]()
        for wanted in ready.chunks_wanted:
            data = disk.state[wanted.offset : wanted.offset + wanted.size]
            piece = SnapshotChunk(wanted.term, wanted.meta, wanted.offset, data)
            self._wire.append(Message(node_id, wanted.target, piece))
            lines.append(message_line(self._wire[-1]))
        if ready.hard_state is not None:
            lines.append(f"{node_id} saves term={ready.hard_state.term} vote={ready.hard_state.voted_for}")
        if ready.entries:
            lines.append(f"{node_id} saves {_show_entries(ready.entries)}")
        if self._quiet:
            lines.clear()
        disk.write(ready.hard_state, ready.entries)
        if ready.entries:
            node.persisted(ready.entries[-1].index, ready.entries[-1].term)
        if ready.chunk_received is not None:
            lines += self._store(node_id, node, ready.chunk_received)
        self._wire += ready.messages
        if not self._quiet:
            lines += [message_line(m) for m in ready.messages]
        if ready.committed:
            lines.append(f"{node_id} applies {_show_entries(ready.committed)}")
            self._states[node_id] += [e.data.decode() for e in ready.committed if e.kind is EntryKind.DATA]
            node.applied(ready.committed[-1].index)
        lines += [f"{node_id} answers read {read.request_id} at {read.index}" for read in ready.reads]
        lines += [f"{node_id} refuses read {request_id}" for request_id in ready.reads_refused]
        return lines

    def _store(self, node_id: int, node: Node, piece: ChunkReceived) -> list[str]:
        disk = self._disks[node_id]
        before = disk.partial[1] if disk.partial is not None and piece.offset else b""
        state = before + piece.data
        disk.partial = (piece.meta, state)
        if len(state) < piece.meta.size:
            node.chunk_stored(piece.meta, len(state))
            return [f"{node_id} stores bytes {piece.offset} to {len(state)}"]
        disk.partial = None
        disk.use_snapshot(piece.meta, state, [])
        self._states[node_id] = state.decode().split()
        node.snapshot_installed(piece.meta)
        return [f"{node_id} installs the snapshot up to {piece.meta.index}: {state.decode()}"]


def read_message(kind: str, words: list[str]) -> Message:
    """A message that a scenario writes down."""
    source, target, term, *rest = words
    body: Body
    match kind, rest:
        case "append", [after, commit, *texts]:
            index, previous_term = _pair(after)
            entries = tuple(_read_entry(text) for text in texts)
            body = AppendRequest(int(term), index, previous_term, entries, int(commit))
        case "heartbeat", [commit]:
            body = Heartbeat(int(term), int(commit), 1)
        case "vote" | "pre-vote", [last]:
            body = VoteRequest(int(term), *_pair(last), pre=kind == "pre-vote")
        case "granted", []:
            body = VoteReply(int(term), True)
        case "has", [index]:
            body = AppendReply(int(term), True, int(index))
        case "lacks", [index, hint]:
            body = AppendReply(int(term), False, int(index), *_pair(hint))
        case _:
            raise ValueError(f"unknown message: {kind} {words}")
    return Message(int(source), int(target), body)


def _pair(text: str) -> tuple[int, int]:
    first, _, second = text.partition("/")
    return int(first), int(second)


def _read_entry(text: str) -> Entry:
    index, term = _pair(text.partition(":")[0])
    data = text.partition(":")[2]
    return Entry(index, term, EntryKind.NOOP if data == "noop" else EntryKind.DATA, data.encode())


def message_line(message: Message) -> str:
    """One message, for people."""
    return f"{message.source}->{message.target} {_show_body(message.body)}"


def _show_body(body: Body) -> str:
    match body:
        case VoteRequest():
            kind = "pre-vote?" if body.pre else "vote for transfer?" if body.transfer else "vote?"
            return f"{kind} t{body.term} last={body.last_index}/t{body.last_term}"
        case VoteReply():
            answer = "granted" if body.granted else "refused"
            return f"{'pre-vote' if body.pre else 'vote'} {answer} t{body.term}"
        case AppendRequest():
            after = f"after {body.previous_index}/t{body.previous_term}"
            return f"append t{body.term} {after}: {_show_entries(body.entries)}, commit {body.commit}"
        case AppendReply(success=True):
            return f"has up to {body.match_index} t{body.term}"
        case AppendReply():
            return f"lacks {body.match_index} t{body.term}, try {body.hint_index}/t{body.hint_term}"
        case Heartbeat():
            return f"heartbeat t{body.term} round {body.round} commit {body.commit}"
        case HeartbeatReply():
            return f"heard round {body.round} t{body.term}"
        case SnapshotChunk():
            end = body.offset + len(body.data)
            return f"snapshot {body.meta.index} t{body.term} bytes {body.offset} to {end} of {body.meta.size}"
        case SnapshotReply():
            return f"has {body.next_offset} bytes of snapshot {body.index} t{body.term}"
        case CampaignNow():
            return f"campaign now! t{body.term}"


def _show_entries(entries: tuple[Entry, ...]) -> str:
    return " ".join(_show_entry(entry) for entry in entries) or "nothing"


def _show_entry(entry: Entry) -> str:
    match entry.kind:
        case EntryKind.NOOP:
            what = "noop"
        case EntryKind.DATA:
            what = entry.data.decode()
        case EntryKind.CONFIGURATION:
            wanted = Configuration.decode(entry.data)
            what = f"voters={list(wanted.voters)},learners={list(wanted.learners)}".replace(" ", "")
    return f"{entry.index}/t{entry.term}:{what}"


def _show_log(node: Node) -> str:
    first, last = node.log.first_index, node.log.last_index
    start = f"snapshot {first - 1}; " if first > 1 else ""
    return start + _show_entries(node.log.slice(first, last, 1 << 30))


def _show_state(node: Node) -> str:
    members = f"voters={list(node.configuration.voters)} learners={list(node.configuration.learners)}"
    return (
        f"{node.role.value} t{node.term} leader={node.leader_id} last={node.log.last_index} "
        f"commit={node.commit_index} {members}"
    )
