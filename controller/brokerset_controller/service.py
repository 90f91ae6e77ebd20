"""The controller's requests: decide on the agreed state, have the event agreed on, then answer.

Nothing is serialised: many requests are under way at once, also about one group. That is safe because every
event carries guards that are checked again when it is applied; who comes second is `Superseded` and decides
again. An answer that depends on the state without changing it is given behind a read barrier, so a deposed
leader never answers from the past.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Hashable, Sequence
from typing import Final

import structlog

from brokerset_controller.access_service import AccessService
from brokerset_controller.agreement import Agreement
from brokerset_controller.broker_masters import RegisteredMasters
from brokerset_controller.broker_probes import UNKNOWN, BrokerProbes
from brokerset_controller.engine_errors import TimedOut
from brokerset_controller.liveness import (
    PRIORITY_DEFAULT,
    TIMEOUT_MS_DEFAULT,
    Beat,
    Liveness,
    LiveView,
    ReplicaKey,
    Standing,
)
from brokerset_controller.liveness_task import Watch
from brokerset_controller.machine import Change, ReplicasMachine
from brokerset_controller.measurements import Measurements
from brokerset_controller.notices import Notices
from brokerset_controller.reliefs import Reliefs
from brokerset_controller.replicas.codec import encode_event
from brokerset_controller.replicas.decide_cleaning import decide_clean, decide_rebuild
from brokerset_controller.replicas.decide_election import decide_elect
from brokerset_controller.replicas.decide_fencing import decide_fence
from brokerset_controller.replicas.decide_identity import decide_apply_id, decide_next_id, decide_register
from brokerset_controller.replicas.decide_sync_set import decide_alter_sync_state_set
from brokerset_controller.replicas.decisions import Decision
from brokerset_controller.replicas.describe import decide_replica_info, describe_group, describe_sync_states
from brokerset_controller.replicas.election import HANDED_OVER, RELIEVED
from brokerset_controller.replicas.events import (
    Applied,
    Event,
    FencingChanged,
    MasterElected,
    Outcome,
    ReplicasCleaned,
    ReplicaStarted,
    Superseded,
)
from brokerset_controller.replicas.state import Group
from brokerset_controller.subject_service import SubjectService
from brokerset_protocol.bodies.controllers import GroupStates
from brokerset_protocol.bodies.replicas import BrokerReplicasInfo, SyncStateSet
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.controller import (
    AlterSyncStateSet,
    ApplyBrokerId,
    BrokerHeartbeat,
    BrokerHeartbeatAnswer,
    CleanControllerBrokerData,
    ElectMaster,
    FenceReplica,
    GetNextBrokerId,
    GetReplicaInfo,
    RegisterBrokerToController,
)
from brokerset_raft.engine import Engine, EngineStatus
from brokerset_runtime.clock import Clock
from brokerset_runtime.peer_requests import Asker
from brokerset_spec.controller_settings import ControllerSettings

log = structlog.get_logger(__name__)

GROUPS_SHOWN_MAX: Final = 2_000
"""Broker groups in one answer; for more the request must name the ones that it wants."""

LEASE_BARRIER_SECONDS: Final = 1.0
"""How long a heartbeat waits for the barrier that its lease needs; the broker beats again long before."""


class ControllerService:
    """All requests of one controller, and what it does unasked while `run` is on."""

    def __init__(
        self,
        *,
        settings: ControllerSettings,
        engine: Engine,
        machine: ReplicasMachine,
        liveness: Liveness,
        clock: Clock,
        asker: Asker,
        measurements: Measurements | None = None,
        source: random.Random | None = None,
    ) -> None:
        """`asker` must use a new connection for each question: an old one may be half-open. `source` is for
        choices of routes and for waits; without one they are the same for each start of this node."""
        self.settings = settings
        self.engine = engine
        self.machine = machine
        self.liveness = liveness
        self.clock = clock
        self.measurements = measurements if measurements is not None else Measurements()
        self._agreement = Agreement(
            engine=engine,
            clock=clock,
            measurements=self.measurements,
            timeout=lambda: self.settings.request_timeout / 1000,
            on_leading=liveness.leads,
        )
        self.subjects = SubjectService(
            settings=lambda: self.settings,
            engine=engine,
            machine=machine.ordered,
            masters=RegisteredMasters(machine, liveness, clock),
            clock=clock,
            asker=asker,
            source=source if source is not None else random.Random(settings.node_id),
            measurements=self.measurements,
            others=self._other_controllers,
        )
        """Ordered subjects: their requests and tasks."""

        self.access = AccessService(
            settings=lambda: self.settings,
            agreement=self._agreement,
            machine=machine,
            clock=clock,
            asker=asker,
            others=self._other_controllers,
        )
        """Users and policies of the cluster."""

        self._electing: dict[str, dict[MasterElected, int]] = {}
        """Elections of a group that were proposed, and may be applied yet, with the term of the proposal."""
        self._reliefs = Reliefs()
        self._notices = Notices(asker, self.measurements)
        self._probes = BrokerProbes(
            asker=asker,
            liveness=liveness,
            machine=machine,
            clock=clock,
            timeout=lambda: self.settings.probe_timeout / 1000,
            on_answer=self._answered,
            measurements=self.measurements,
        )
        self._watch = Watch(
            settings=lambda: self.settings,
            engine=engine,
            machine=machine,
            liveness=liveness,
            probes=self._probes,
            clock=clock,
            propose=self._propose_now,
            measurements=self.measurements,
        )
        machine.listeners.append(self._applied)

    async def run(self) -> None:
        """Scan, ask, elect and tell, for as long as this task runs."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch.run())
            group.create_task(self._probes.run())
            group.create_task(self._notices.run())
            group.create_task(self.subjects.run())

    def use_settings(self, settings: ControllerSettings) -> None:
        """Take changed settings; they count from the next request and the next scan on."""
        self.settings = settings

    def engine_changed(self, status: EngineStatus) -> None:
        """For the engine's `on_change`; without it the role is checked often enough."""
        self._watch.role_changed(status)
        self.subjects.role_changed()

    def connection_closed(self, connection: Hashable) -> None:
        """A connection to this controller ended."""
        self._watch.connection_closed(connection)

    @property
    def masterless_groups(self) -> int:
        """Groups without a living master, as far as this node leads and knows."""
        return self._watch.masterless

    def view(self, broker_name: str) -> LiveView:
        """Who of a group is alive, as this controller has heard."""
        return self.liveness.view(broker_name, self.clock.monotonic())

    # -- brokers ------------------------------------------------------------------------------------------

    def heartbeat(self, header: BrokerHeartbeat, broker_id: int, connection: Hashable) -> bool:
        """904: whether the beat counts. It does not when this node knows no such replica, or knows that
        another process with the replica's identity was registered (later, unless this node lags)."""
        self.measurements.heartbeats += 1
        if not self._beat_counts(header, broker_id):
            self.measurements.heartbeats_ignored += 1
            return False
        self._hear(
            ReplicaKey(header.broker_name, broker_id),
            Beat(
                address=header.broker_addr,
                nonce=header.nonce,
                epoch=_or(header.epoch, UNKNOWN),
                max_offset=_or(header.max_offset, UNKNOWN),
                confirm_offset=_or(header.confirm_offset, UNKNOWN),
                timeout_ms=_or(header.heartbeat_timeout_mills, TIMEOUT_MS_DEFAULT),
                priority=_or(header.election_priority, PRIORITY_DEFAULT),
                append_age_ms=header.append_age_ms,
                all_ack=header.all_ack,
                lost_cache=bool(header.lost_cache),
            ),
            connection,
        )
        return True

    def fenced(self, header: BrokerHeartbeat, broker_id: int) -> bool | None:
        """Whether the sender of a beat is fenced; None when this node does not lead, so it may lag."""
        group = self.machine.groups.get(header.broker_name)
        return broker_id in group.fenced if group is not None and self.engine.status.leading else None

    def may_have_lease(self, header: BrokerHeartbeat, broker_id: int) -> bool:
        """Whether the sender of a beat is master, as far as this node knows, and this node leads."""
        status, group = self.engine.status, self.machine.groups.get(header.broker_name)
        return (
            status.leading
            and group is not None
            and group.master_id == broker_id
            and header.nonce is not None
            and group.replicas[broker_id].nonce == header.nonce
            and broker_id not in group.fenced
        )

    async def lease(self, header: BrokerHeartbeat, broker_id: int) -> BrokerHeartbeatAnswer:
        """The answer to a heartbeat of a master: with a lease, if this node surely leads still.

        The barrier begins after the heartbeat has arrived, so no other controller can have led, and elected
        somebody else, before the heartbeat was sent; and the lease runs from that moment.
        """
        deadline = asyncio.get_running_loop().time() + LEASE_BARRIER_SECONDS
        try:
            await self._barrier(deadline)
        except Rejected as rejected:
            self.measurements.leases_refused += 1
            log.debug("no lease given", broker=header.broker_name, reason=rejected.remark)
            known = self.machine.groups.get(header.broker_name)
            return BrokerHeartbeatAnswer(master_epoch=None if known is None else known.master_epoch)
        fenced = self.fenced(header, broker_id)
        group = self.machine.groups.get(header.broker_name)
        if (
            group is None
            or not self.may_have_lease(header, broker_id)
            or not self.view(header.broker_name).fit(broker_id)
            or self._election_may_come(group)
        ):
            self.measurements.leases_refused += 1
            epoch = None if group is None else group.master_epoch
            return BrokerHeartbeatAnswer(fenced=fenced, master_epoch=epoch)
        length = self.liveness.lease_granted(
            ReplicaKey(header.broker_name, broker_id),
            header.nonce or "",
            _or(header.heartbeat_timeout_mills, TIMEOUT_MS_DEFAULT),
            self.clock.monotonic(),
        )
        self.measurements.leases += 1
        return BrokerHeartbeatAnswer(lease_ms=length, lease_epoch=group.master_epoch, fenced=fenced)

    def _election_may_come(self, group: Group) -> bool:
        """Whether an election was decided on that is not applied yet: it went by the leases known then."""
        name = group.broker_name
        term = self.engine.status.term
        return any(proposed == term for proposed in self._electing.get(name, {}).values())

    async def check_overtaken(self, header: BrokerHeartbeat, broker_id: int) -> None:
        """Raise `Rejected` (2100) when it is certain that the sender of a beat was overtaken.

        Only a leader can be certain, behind a read barrier: a lagging node may not know the latest process
        yet, and the sender gives up its role on this answer.
        """
        if not self.engine.status.leading:
            return
        await self._barrier()
        group = self.machine.groups.get(header.broker_name)
        replica = group.replicas.get(broker_id) if group is not None else None
        if replica is not None and header.nonce is not None and header.nonce != replica.nonce:
            raise Rejected(
                ResponseCode.BROKERSET_IDENTITY_CONFLICT,
                f"another process was registered as replica {broker_id} of {header.broker_name} (start"
                f" {replica.incarnation}, address {replica.address}): stop this one; if it is the right one,"
                " stop the other and restart this one",
            )

    async def next_broker_id(self, header: GetNextBrokerId) -> Decision:
        """1012."""
        return await self._read(lambda: decide_next_id(self._group(header.broker_name), header))

    async def apply_broker_id(self, header: ApplyBrokerId) -> Decision:
        """1013."""
        return await self._commit(
            lambda: decide_apply_id(self._group(header.broker_name), header, group_count=self._group_count)
        )

    async def register_broker(self, header: RegisterBrokerToController, connection: Hashable) -> Decision:
        """1003: a process of a replica starts. The answer is decided on the state after its event."""
        self._must_lead()
        broker_name, broker_id = header.broker_name or "", _or(header.broker_id, 0)
        if header.next_nonce is not None:
            await self._settle_previous_process(broker_name, broker_id, header.next_nonce)
        lost_cache = False

        def decide() -> Decision:
            nonlocal lost_cache
            decision = decide_register(
                self._group(broker_name), header, self.view(broker_name), group_count=self._group_count
            )
            if isinstance(decision.event, ReplicaStarted):  # gone once it is applied
                lost_cache = decision.event.lost_cache
            return decision

        decision = await self._commit(decide, decide_again=True)
        if decision.code == ResponseCode.SUCCESS and header.next_nonce is not None:
            self._hear(
                ReplicaKey(broker_name, broker_id),
                Beat(
                    address=header.broker_address or "",
                    nonce=header.next_nonce,
                    epoch=_or(header.log_epoch, UNKNOWN),
                    max_offset=_or(header.log_offset, UNKNOWN),
                    append_age_ms=header.append_age_ms,
                    # Of a volume that another program made it is not known what it lost.
                    lost_cache=not header.adopt and (lost_cache or bool(header.lost_cache)),
                ),
                connection,
            )
        return decision

    async def replica_info(self, header: GetReplicaInfo) -> Decision:
        """1004."""
        return await self._read(lambda: decide_replica_info(self._group(header.broker_name), header))

    async def alter_sync_state_set(self, header: AlterSyncStateSet, body: SyncStateSet) -> Decision:
        """1001."""
        name = header.broker_name or ""
        return await self._commit(
            lambda: decide_alter_sync_state_set(self._group(name), header, body, self.view(name))
        )

    async def elect_master(self, header: ElectMaster, connection: Hashable) -> Decision:
        """1002: from a broker (its own id), from an administrator (`designate_elect`), or from a master that
        hands over."""
        self._must_lead()
        name = header.broker_name
        hands_over = header.handover_epoch is not None
        if hands_over and header.relief is not None:
            self._check_relief(name)
        if not header.designate_elect and not hands_over:
            self._hear_candidate(header, connection)
        group = self._group(name)
        if not hands_over and (header.designate_elect or group is None or not self._has_living_master(group)):
            await self._settle_unknown(name)
        decision = await self._commit(
            lambda: decide_elect(
                self._group(name),
                header,
                self.view(name),
                unclean_allowed=self.settings.enable_elect_unclean_master,
            )
        )
        if decision.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
            self.measurements.election_done(header.cluster_name, name, "keep_current_master")
        elif decision.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED:
            self.measurements.election_done(header.cluster_name, name, "no_master_elected")
        return decision

    def _check_relief(self, broker_name: str) -> None:
        """Raise `Rejected` when the group's last relief is not long enough ago."""
        wait = self._reliefs.wait_seconds(broker_name, self.clock.monotonic())
        if wait > 0:
            raise Rejected(
                ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
                f"a master of {broker_name} that heard no replica was relieved a moment ago; the next one may"
                f" be in {wait:.0f} s: check the network between the brokers",
            )

    # -- administrators -----------------------------------------------------------------------------------

    async def sync_states(self, names: Sequence[str]) -> BrokerReplicasInfo:
        """1006: the known ones among these groups."""
        await self._barrier()
        found = (self.machine.groups.get(name) for name in names)
        return describe_sync_states([group for group in found if group is not None], self.view)

    async def clean(self, header: CleanControllerBrokerData) -> Decision:
        """1011."""
        self._must_lead()
        name = header.broker_name
        await self._settle_unknown(name)
        return await self._commit(lambda: decide_clean(self._group(name), header, self.view(name)))

    async def fence(self, header: FenceReplica) -> Decision:
        """21007: take a replica out of service, or back."""
        return await self._commit(lambda: decide_fence(self._group(header.broker_name), header))

    async def rebuild(self, wanted: Group) -> Decision:
        """21006: take in a group that was put together from what its brokers hold."""
        return await self._commit(
            lambda: decide_rebuild(self._group(wanted.broker_name), wanted, group_count=self._group_count)
        )

    async def group_states(self, names: Sequence[str], *, local: bool) -> GroupStates:
        """21005: these groups, or all. `local` asks for this node's own state, which may lag; it is for times
        without a leader."""
        if not local:
            await self._barrier()
        groups = self.machine.groups
        wanted = list(names) if names else sorted(groups)
        if len(wanted) > GROUPS_SHOWN_MAX:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"there are {len(wanted)} groups; name those to show, GROUPS_SHOWN_MAX is {GROUPS_SHOWN_MAX}",
            )
        now = self.clock.monotonic()
        return GroupStates(
            tuple(
                describe_group(groups[name], self.liveness.view(name, now), now)
                for name in wanted
                if name in groups
            )
        )

    def _other_controllers(self) -> dict[int, str]:
        status = self.engine.status
        return {
            member.node_id: member.service_address
            for member in status.configuration.members
            if member.node_id != status.node_id
        }

    # -- agreement ----------------------------------------------------------------------------------------

    async def _read(self, decide: Callable[[], Decision]) -> Decision:
        await self._barrier()
        return decide()

    async def _commit(self, decide: Callable[[], Decision], *, decide_again: bool = False) -> Decision:
        """Decide until the event is applied, or until there is none on a state that was current.

        With `decide_again` the answer is what the state after the event gives.
        """
        deadline = self._deadline()
        attempts = self.settings.elect_master_max_retry_count
        current = False
        for _ in range(attempts):
            self._must_lead()
            decision = decide()
            if decision.event is None and not current:
                await self._barrier(deadline)
                decision = decide()
            if decision.event is None:
                return decision
            outcome = await self._propose(decision.event, deadline)
            if isinstance(outcome, Applied):
                if not decide_again:
                    return decision
                final = decide()
                if final.event is None:
                    return final
            current = True  # what this node has applied is at least as new as its own entry
        raise Rejected(
            ResponseCode.SYSTEM_ERROR,
            f"other changes of the group came in between {attempts} times; repeat the request",
        )

    async def _propose_now(self, event: Event) -> Outcome:
        return await self._propose(event, self._deadline())

    async def _propose(self, event: Event, deadline: float) -> Outcome:
        if not isinstance(event, MasterElected):
            return await self._agree(event, deadline)
        term = self.engine.status.term
        elections = self._electing.get(event.broker_name, {})
        current = {each: proposed for each, proposed in elections.items() if proposed == term}
        self._electing[event.broker_name] = {**current, event: term}
        try:
            return await self._agree(event, deadline)
        except TimedOut:
            raise  # it may be applied yet
        except Rejected:
            self._is_settled(event)
            raise

    def _is_settled(self, event: MasterElected) -> None:
        """An election was applied, or never will be: leases may be given again."""
        elections = self._electing.get(event.broker_name, {})
        elections.pop(event, None)
        if not elections:
            self._electing.pop(event.broker_name, None)

    async def _agree(self, event: Event, deadline: float) -> Outcome:
        outcome = await self._agreement.propose(encode_event(event), deadline)
        assert isinstance(outcome, Applied | Superseded), outcome
        return outcome

    async def _barrier(self, deadline: float | None = None) -> None:
        await self._agreement.barrier(deadline)

    def _must_lead(self) -> None:
        self._agreement.must_lead()

    def _deadline(self) -> float:
        return self._agreement.deadline()

    def _group(self, broker_name: str | None) -> Group | None:
        return self.machine.group(broker_name)

    @property
    def _group_count(self) -> int:
        return len(self.machine.groups)

    # -- signs of life ------------------------------------------------------------------------------------

    def _beat_counts(self, header: BrokerHeartbeat, broker_id: int) -> bool:
        group = self.machine.groups.get(header.broker_name)
        replica = group.replicas.get(broker_id) if group is not None else None
        return replica is not None and (header.nonce is None or header.nonce == replica.nonce)

    def _hear(self, key: ReplicaKey, beat: Beat, connection: Hashable) -> None:
        self.liveness.heard(key, beat, connection, self.clock.monotonic())
        self._watch.heard(key.broker_name)
        if beat.stuck:
            self._watch.answered(key.broker_name)

    def _hear_candidate(self, header: ElectMaster, connection: Hashable) -> None:
        """A Java broker may ask for an election before its first heartbeat arrives: the request is one.

        Of a replica with a nonce it does not tell which process sent it; such a one is asked instead.
        """
        group = self._group(header.broker_name)
        replica = group.replicas.get(header.broker_id) if group is not None else None
        if (
            replica is None
            or replica.nonce is not None
            or self.view(header.broker_name).alive(header.broker_id)
        ):
            return
        self._hear(ReplicaKey(header.broker_name, header.broker_id), Beat(replica.address), connection)

    def _has_living_master(self, group: Group) -> bool:
        return group.master_id is not None and self.view(group.broker_name).fit(group.master_id)

    async def _settle_unknown(self, broker_name: str) -> None:
        """Ask those of a group that nobody knows about, so that the decision need not be put off."""
        group = self._group(broker_name)
        if group is None:
            return
        view = self.view(broker_name)
        unknown = [
            replica
            for broker_id, replica in sorted(group.replicas.items())
            if view.standing(broker_id) is Standing.UNKNOWN
        ]
        await asyncio.gather(
            *(
                self._probes.ask_now(ReplicaKey(broker_name, replica.broker_id), replica.address)
                for replica in unknown
            )
        )

    async def _settle_previous_process(self, broker_name: str, broker_id: int, next_nonce: str) -> None:
        """Know whether the replica's latest process still runs before another may take its place."""
        group = self._group(broker_name)
        replica = group.replicas.get(broker_id) if group is not None else None
        if replica is None or replica.nonce == next_nonce:
            return
        standing = self.view(broker_name).standing(broker_id)
        if replica.nonce is None and standing is Standing.UNKNOWN:
            return  # the first start of ours, and nothing was heard of a Java process
        if standing is not Standing.DEAD:
            await self._probes.ask_now(ReplicaKey(broker_name, broker_id), replica.address)

    def _answered(self, broker_name: str) -> None:
        if self.engine.status.leading:
            self._watch.answered(broker_name)

    # -- what was agreed on -------------------------------------------------------------------------------

    def _applied(self, change: Change) -> None:
        """An event took effect here, whoever proposed it: also one whose request was given up."""
        event, group = change.event, change.after
        if isinstance(event, MasterElected):
            self._is_settled(event)
        if group is None or group is change.before:
            return
        if _master_of(group) != _master_of(change.before):
            self.subjects.master_changed(group.broker_name)
        if isinstance(event, ReplicasCleaned):
            for broker_id in sorted(event.broker_ids):
                self.liveness.forget(ReplicaKey(event.broker_name, broker_id))
            if not group.known:
                self._watch.forget(event.broker_name)
                self._reliefs.forget(event.broker_name)
        if not self.engine.status.leading:
            return
        if isinstance(event, MasterElected):
            self._elected(event, group)
        elif isinstance(event, FencingChanged):
            self._fencing_changed(event, group)
        elif group.master_id is None:
            self._watch.judge_soon(group.broker_name)

    def _fencing_changed(self, event: FencingChanged, group: Group) -> None:
        self.measurements.fencing_done(event.fenced)
        log.info(
            "replica fenced" if event.fenced else "replica no longer fenced",
            broker=group.broker_name,
            id=event.broker_id,
            in_sync=sorted(group.sync_state_set),
        )
        if self.settings.notify_broker_role_changed:
            self._notices.tell(group, self.view(group.broker_name))
        if not event.fenced:
            self._watch.answered(group.broker_name)

    def _elected(self, event: MasterElected, group: Group) -> None:
        self.measurements.election_done(group.cluster_name, group.broker_name, "new_master_elected")
        self.measurements.elected(event.reason)
        if event.reason == HANDED_OVER:
            self.measurements.hand_overs += 1
        if event.reason == RELIEVED:
            self._reliefs.relieved(event.broker_name, self.clock.monotonic())
        log.info(
            "elected master",
            broker=group.broker_name,
            id=event.master_id,
            address=group.replicas[event.master_id].address,
            epoch=event.new_epoch,
            reason=event.reason,
        )
        if event.loss is not None:
            self.measurements.possible_losses += 1
            log.warning(
                "acknowledged messages may be lost",
                broker=group.broker_name,
                epoch=event.loss.master_epoch,
                from_offset=event.loss.from_offset,
                reason=event.loss.reason,
            )
        self._watch.forget(group.broker_name)
        if self.settings.notify_broker_role_changed:
            self._notices.tell(group, self.view(group.broker_name))


def _master_of(group: Group | None) -> tuple[int, str] | None:
    """Epoch and address of a group's master."""
    if group is None or group.master_id is None:
        return None
    return group.master_epoch, group.replicas[group.master_id].address


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
