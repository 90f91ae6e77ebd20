"""Looks at what leaves processes, and asks the checkers. Never changes anything."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from brokerset_controller.replicas.apply import broker_name_of
from brokerset_controller.replicas.codec import decode_event
from brokerset_controller.replicas.state import Group
from brokerset_protocol.bodies.replicas import BrokerReplicasInfo, SyncStateSet
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import (
    ApplyBrokerId,
    BrokerHeartbeat,
    BrokerHeartbeatAnswer,
    CleanControllerBrokerData,
    ElectMaster,
    ElectMasterResponse,
    GetNextBrokerId,
    GetNextBrokerIdResponse,
    GetReplicaInfo,
    GetReplicaInfoResponse,
    RegisterBrokerToController,
    RegisterBrokerToControllerResponse,
)
from brokerset_raft.messages import AppendReply, CampaignNow, Message, VoteReply
from brokerset_raft.storage import Loaded
from brokerset_sim.group_checker import EPOCHS_GROW, INCARNATION, OWN_GROUP, READS, REPLIES, GroupChecker
from brokerset_sim.history import History, Violation
from brokerset_sim.lease_checker import LeaseChecker
from brokerset_sim.process import Process
from brokerset_sim.raft_checker import RaftChecker
from brokerset_sim.survivors import epoch_on_disk

CODES = RequestCode
COUNTED_BY_SUBJECT = ("admin", "step")
"""Kinds of notes whose last word tells what is counted."""


@dataclass(frozen=True, slots=True)
class Since:
    """When a request left: what was committed by then."""

    history: History
    moment: int
    client: Process
    at: float
    """Seconds of virtual time."""


class Witness:
    """All checkers of one run, and its trace."""

    def __init__(self, now: Callable[[], float], *, show: bool = False) -> None:
        self._now = now
        self._show = show
        self._trace = hashlib.sha256()
        self.events = 0
        self.failure: Violation | None = None
        self.on_failure: Callable[[], object] = lambda: None
        self.history = History()
        self.raft: RaftChecker
        self.groups: dict[str, GroupChecker] = {}
        self.counts: Counter[str] = Counter()
        """What happened how often, so that nothing fails to happen unnoticed."""

        self.on_event: Callable[[Group | None, Group, Any], object] = lambda was, now, event: None
        """Told of every event that took effect."""

        self.on_reply: Callable[[Process, Command, Command], object] | None = None
        """Told of every answer that leaves: who, to what, and what."""

        self.leases: LeaseChecker | None = None
        self._nonce_holders: dict[tuple[str, int, str], Process] = {}
        self.nonces: dict[Process, str] = {}

    # -- trace and failures -------------------------------------------------------------------------------

    @property
    def trace(self) -> str:
        """Hash of everything noted so far."""
        return self._trace.hexdigest()

    def note(self, kind: str, *what: object) -> None:
        """Add to the trace."""
        self.events += 1
        self.counts[f"{kind}: {what[-1]}" if kind in COUNTED_BY_SUBJECT else kind] += 1
        line = f"{self._now():.6f} {kind} {what!r}"
        if self._show:
            print(line)
        self._trace.update(line.encode())

    def fail(self, violation: Violation) -> None:
        """Record the first violation; it ends the run."""
        if self.failure is None:
            self.failure = violation
            self.note("VIOLATION", str(violation))
            self.on_failure()

    def guard(self, check: Callable[[], object]) -> None:
        """Run a check; what it raises ends the run and not the process that is looked at."""
        try:
            check()
        except Violation as violation:
            self.fail(violation)

    def group(self, name: str) -> GroupChecker:
        """The checker of a broker group."""
        found = self.groups.get(name)
        if found is None:
            found = self.groups[name] = GroupChecker(name)
        return found

    # -- raft ---------------------------------------------------------------------------------------------

    def end_era(self) -> None:
        """Count what the history of this raft group was."""
        self.counts["raft: leader"] += self.raft.leader_count
        self.counts["raft: change of the members"] += self.raft.change_count

    def raft_left(self, process: Process, message: Message) -> None:
        self._count_raft(message)
        self.guard(lambda: self.raft.sent(process.node, message))

    def _count_raft(self, message: Message) -> None:
        match message.body:
            case VoteReply(granted=True, pre=False):
                self.counts["raft: vote"] += 1
            case AppendReply(success=False):
                self.counts["raft: append refused"] += 1
            case CampaignNow():
                self.counts["raft: transfer"] += 1
            case _:
                pass

    def applied(
        self,
        node: Any,
        index: int,
        data: bytes,
        groups: Mapping[str, Group],
        disks: Callable[[], Mapping[int, Loaded | None]],
    ) -> None:
        """A controller applied a command; `groups` is its state now."""
        self.note("applied", node.node_id, index)
        before = self.history.groups
        status = node.engine.status

        def check() -> None:
            if not self.raft.applied(node.node_id, index, data, groups, status, disks):
                return
            event = decode_event(data)
            name = broker_name_of(event)
            was, now = before.get(name), groups.get(name)
            self.note("event", index, type(event).__name__, name, was != now)
            self.counts[f"event: {type(event).__name__}{'' if was != now else ' without effect'}"] += 1
            if was != now:
                self.group(name).changed(was, now, event)
                if now is not None:
                    self.on_event(was, now, event)
            others = {each: group for each, group in groups.items() if each != name}
            if others != {each: group for each, group in before.items() if each != name}:
                raise Violation(OWN_GROUP, f"{event} changed another group than {name}")

        self.guard(check)

    # -- requests -----------------------------------------------------------------------------------------

    def request_sent(self, client: Process, address: str, request: Command) -> Since:
        if request.code == CODES.CONTROLLER_REGISTER_BROKER:
            header = RegisterBrokerToController.from_ext(request.ext)
            if header.next_nonce is not None and header.broker_name is not None:
                known = {header.next_nonce, *(header.tried_nonces or "").split(";")}
                if header.last_nonce is not None:
                    known.add(header.last_nonce)
                seen = self.group(header.broker_name).known_nonces
                seen[header.next_nonce] = seen.get(header.next_nonce, frozenset()) | (known - {""})
                self.nonces[client] = header.next_nonce
                if hasattr(client.node, "nonces"):
                    client.node.nonces[header.next_nonce] = None
        elif request.code == CODES.BROKER_HEARTBEAT:
            self.guard(lambda: self._check_beat(client, BrokerHeartbeat.from_ext(request.ext)))
        elif (
            request.code == CODES.CONTROLLER_ELECT_MASTER
            and self.leases is not None
            and ElectMaster.from_ext(request.ext).handover_epoch is not None
        ):
            self.leases.given_up(client, self._now())
        return Since(self.history, self.history.moment, client, self._now())

    def _check_beat(self, client: Process, beat: BrokerHeartbeat) -> None:
        if beat.nonce is None or beat.broker_id is None:
            return
        holder = self._nonce_holders.setdefault((beat.broker_name, beat.broker_id, beat.nonce), client)
        if holder is not client:
            raise Violation(
                INCARNATION, f"{holder} and {client} both use the nonce {beat.nonce} of {beat.broker_name}"
            )
        if beat.nonce not in self.group(beat.broker_name).starts:
            raise Violation(
                INCARNATION, f"{client} believes its start {beat.nonce} committed, which it is not"
            )

    def reply_left(self, server: Process, request: Command, reply: Command, token: object) -> None:
        self.counts[f"answer: {request.code} {reply.code}"] += 1
        self.note("answer", server.name, request.code, reply.code, reply.remark)
        if self.on_reply is not None:
            self.on_reply(server, request, reply)
        if isinstance(token, Since) and token.history is self.history:
            self.guard(lambda: self._check_reply(server, request, reply, token.moment))
        if isinstance(token, Since) and request.code == CODES.BROKER_HEARTBEAT and reply.ext:
            self._note_lease(reply, token)

    def _note_lease(self, reply: Command, token: Since) -> None:
        answer = BrokerHeartbeatAnswer.from_ext(reply.ext)
        if self.leases is not None and answer.lease_ms is not None and answer.lease_epoch is not None:
            self.leases.granted(token.client, token.at, answer.lease_ms / 1000, answer.lease_epoch)

    def reply_arrived(
        self, client: Process, address: str, request: Command, reply: Command, token: object
    ) -> None:
        """Checked when it left."""

    def handler_failed(self, server: Process, request: Command, error: Exception) -> None:
        if server.alive:
            error.add_note(f"while {server} served request {request.code} {request.ext}")
            violation = Violation("handlers answer", f"{server} failed on request {request.code}: {error!r}")
            violation.__cause__ = error
            self.fail(violation)

    def _check_reply(self, server: Process, request: Command, reply: Command, since: int) -> None:
        success = reply.code == ResponseCode.SUCCESS
        match request.code:
            case CODES.CONTROLLER_GET_REPLICA_INFO if success:
                self._check_replica_info(server, request, reply, since)
            case CODES.CONTROLLER_GET_REPLICA_INFO if (
                reply.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
            ):
                name = GetReplicaInfo.from_ext(request.ext).broker_name or ""
                self._require(READS, server, name, since, lambda g: g is None or not g.known, reply)
            case CODES.CONTROLLER_GET_SYNC_STATE_DATA if success:
                self._check_sync_states(server, reply, since)
            case CODES.CONTROLLER_GET_NEXT_BROKER_ID if success:
                name = GetNextBrokerId.from_ext(request.ext).broker_name or ""
                told = GetNextBrokerIdResponse.from_ext(reply.ext).next_broker_id
                self._require(
                    READS,
                    server,
                    name,
                    since,
                    lambda g: (1 if g is None else g.next_broker_id) == told,
                    reply,
                )
            case CODES.CONTROLLER_APPLY_BROKER_ID if success:
                apply = ApplyBrokerId.from_ext(request.ext)
                self._require(
                    REPLIES,
                    server,
                    apply.broker_name or "",
                    since,
                    lambda g: _code_of(g, apply.applied_broker_id) == apply.register_check_code,
                    reply,
                )
            case CODES.CONTROLLER_REGISTER_BROKER if success:
                self._check_registered(server, request, reply, since)
            case CODES.CONTROLLER_ALTER_SYNC_STATE_SET if success:
                body = SyncStateSet.from_json(reply.body)
                name = request.ext.get("brokerName", "")
                self._require(
                    REPLIES,
                    server,
                    name,
                    since,
                    lambda g: (
                        g is not None
                        and (g.sync_state_set, g.sync_state_set_epoch)
                        == (body.sync_state_set, body.sync_state_set_epoch)
                    ),
                    reply,
                )
            case CODES.CONTROLLER_ELECT_MASTER if reply.code in (
                0,
                ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
            ):
                elect = ElectMasterResponse.from_ext(reply.ext)
                self._require(
                    REPLIES,
                    server,
                    ElectMaster.from_ext(request.ext).broker_name,
                    since,
                    lambda g: (
                        g is not None
                        and (g.master_id, g.master_epoch) == (elect.master_broker_id, elect.master_epoch)
                    ),
                    reply,
                )
            case CODES.CLEAN_BROKER_DATA if success:
                clean = CleanControllerBrokerData.from_ext(request.ext)
                ids = [int(i) for i in (clean.broker_controller_ids_to_clean or "").split(";") if i]
                self._require(
                    REPLIES,
                    server,
                    clean.broker_name,
                    since,
                    lambda g: g is None or not any(i in g.replicas for i in ids),
                    reply,
                )
            case _:
                pass

    def _require(
        self,
        invariant: str,
        server: Process,
        name: str,
        since: int,
        holds: Callable[[Group | None], bool],
        reply: Command,
    ) -> None:
        if not self.history.any_state(name, since, holds):
            raise Violation(
                invariant,
                f"{server} answered {reply.ext} {reply.body!r}; {name} was never so since its request:"
                f" {[state.get(name) for state in self.history.states[since:]]}",
            )

    def _check_replica_info(self, server: Process, request: Command, reply: Command, since: int) -> None:
        name = GetReplicaInfo.from_ext(request.ext).broker_name or ""
        info = GetReplicaInfoResponse.from_ext(reply.ext)
        body = SyncStateSet.from_json(reply.body)
        told = (info.master_broker_id, info.master_epoch, body.sync_state_set, body.sync_state_set_epoch)
        self._require(
            READS,
            server,
            name,
            since,
            lambda g: (
                g is not None
                and (g.master_id, g.master_epoch, g.sync_state_set, g.sync_state_set_epoch) == told
            ),
            reply,
        )

    def _check_sync_states(self, server: Process, reply: Command, since: int) -> None:
        for name, info in BrokerReplicasInfo.from_json(reply.body).replicas_info_table.items():
            in_sync = frozenset(each.broker_id for each in info.in_sync_replicas)
            everybody = in_sync | {each.broker_id for each in info.not_in_sync_replicas}
            told = (info.master_broker_id, info.master_epoch, info.sync_state_set_epoch, in_sync, everybody)
            self._require(
                READS,
                server,
                name,
                since,
                lambda g, told=told: (
                    g is not None  # type: ignore[misc]  # mypy cannot type the default
                    and (
                        g.master_id,
                        g.master_epoch,
                        g.sync_state_set_epoch,
                        g.sync_state_set & g.replicas.keys(),
                        set(g.replicas),
                    )
                    == told
                ),
                reply,
            )

    def _check_registered(self, server: Process, request: Command, reply: Command, since: int) -> None:
        header = RegisterBrokerToController.from_ext(request.ext)
        answer = RegisterBrokerToControllerResponse.from_ext(reply.ext)
        body = SyncStateSet.from_json(reply.body)

        def holds(group: Group | None) -> bool:
            replica = None if group is None else group.replicas.get(header.broker_id or 0)
            if group is None or replica is None:
                return False
            if header.next_nonce is not None and replica.nonce != header.next_nonce:
                return False
            if group.sync_state_set != body.sync_state_set:
                return False
            master = answer.master_broker_id
            return master is None or (master, answer.master_epoch) == (group.master_id, group.master_epoch)

        self._require(READS, server, header.broker_name or "", since, holds, reply)

    # -- roles --------------------------------------------------------------------------------------------

    def role_changed(self, process: Process, name: str, broker_id: int, before: Any, after: Any) -> None:
        """A broker takes a role."""

        self.counts[f"role: {after.role.value}"] += 1

        def check() -> None:
            if after.epoch < before.epoch:
                raise Violation(EPOCHS_GROW, f"{process} went from {before} to {after}")
            if after.role == "master":
                if epoch_on_disk(process.node) < after.epoch:
                    raise Violation(EPOCHS_GROW, f"{process} acts in {after.epoch}, which is not on its disk")
                self.group(name).acts_as_master(process, broker_id, after.epoch, self.nonces.get(process))

        self.guard(check)


def _code_of(group: Group | None, broker_id: int | None) -> str | None:
    replica = None if group is None else group.replicas.get(broker_id or 0)
    return None if replica is None else replica.check_code
