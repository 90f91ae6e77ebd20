"""What no sequence of events and decisions breaks."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from brokerset_controller.liveness import LiveReplica, LiveView, Standing
from brokerset_controller.replicas.apply import apply
from brokerset_controller.replicas.codec import decode_event, decode_groups, encode_event, encode_groups
from brokerset_controller.replicas.decide_cleaning import decide_clean, decide_rebuild
from brokerset_controller.replicas.decide_election import decide_elect, decide_failover
from brokerset_controller.replicas.decide_fencing import decide_fence
from brokerset_controller.replicas.decide_identity import decide_apply_id, decide_next_id, decide_register
from brokerset_controller.replicas.decide_sync_set import decide_alter_sync_state_set
from brokerset_controller.replicas.decisions import Decision
from brokerset_controller.replicas.describe import (
    advice,
    decide_replica_info,
    describe_group,
    describe_sync_states,
)
from brokerset_controller.replicas.events import (
    Applied,
    BrokerIdApplied,
    Event,
    FencingChanged,
    GroupRebuilt,
    MasterElected,
    ReplicaAdopted,
    ReplicaMoved,
    ReplicasCleaned,
    ReplicaStarted,
    Superseded,
    SyncStateSetAltered,
)
from brokerset_controller.replicas.state import LOSSES_KEPT_MAX, Group, PossibleLoss
from brokerset_protocol.bodies.replicas import SyncStateSet
from brokerset_protocol.headers.controller import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanControllerBrokerData,
    ElectMaster,
    FenceReplica,
    GetNextBrokerId,
    GetReplicaInfo,
    RegisterBrokerToController,
)
from brokerset_rig.examples import examples
from brokerset_sim.replica_groups import group_of

NAME = "a"
ids = st.integers(0, 5)
epochs = st.integers(0, 6)
id_sets = st.frozensets(ids, max_size=4)
clusters = st.sampled_from(["demo", "demo", "demo", "other"])
owners = st.sampled_from([None, None, "uid", "other"])
nonces = st.sampled_from(["n1", "n2", "n3", "x"])
addresses = st.sampled_from(["h1:1", "h2:1"])
codes = st.sampled_from(["h1:1;1", "h2:1;2"])
expected = st.sampled_from([0, 0, 2, 3])
losses = st.none() | st.builds(PossibleLoss, epochs, ids, st.integers(-1, 9), st.just("why"))

events: st.SearchStrategy[Event] = st.one_of(
    st.builds(BrokerIdApplied, clusters, st.just(NAME), owners, expected, ids, addresses, codes),
    st.builds(ReplicaAdopted, clusters, st.just(NAME), owners, expected, ids, addresses, nonces, epochs),
    st.builds(
        ReplicaStarted,
        st.just(NAME),
        ids,
        st.none() | nonces,
        nonces,
        addresses,
        st.booleans(),
        expected,
        owners,
    ),
    st.builds(ReplicaMoved, st.just(NAME), ids, addresses),
    st.builds(SyncStateSetAltered, st.just(NAME), ids, epochs, epochs, id_sets),
    st.builds(MasterElected, st.just(NAME), ids, epochs, epochs, epochs, st.booleans(), st.just(""), losses),
    st.builds(ReplicasCleaned, st.just(NAME), id_sets, epochs, epochs),
    st.builds(FencingChanged, st.just(NAME), ids, st.booleans(), epochs, epochs),
    st.builds(
        GroupRebuilt,
        st.builds(
            lambda members, epoch: group_of(*sorted(members), epoch=epoch),
            st.frozensets(st.integers(1, 4), min_size=1),
            epochs,
        ),
    ),
)


def member(group: Group, number: int) -> int:
    """One of the group's replicas; the number itself if there is none."""
    members = list(group.replicas)
    return members[number % len(members)] if members else number


def with_true_guards(group: Group | None, event: Event) -> Event:
    """The event as a leader that sees this state might propose it, so that random ones get through often."""
    if group is None:
        return replace(event, broker_id=1) if isinstance(event, BrokerIdApplied) else event
    match event:
        case BrokerIdApplied():
            return replace(event, broker_id=group.next_broker_id, cluster_name=group.cluster_name, owner=None)
        case SyncStateSetAltered() if group.master_id is not None:
            return replace(
                event,
                master_id=group.master_id,
                master_epoch=group.master_epoch,
                sync_state_set_epoch=group.sync_state_set_epoch,
                new_set=frozenset((*(member(group, key) for key in event.new_set), group.master_id)),
            )
        case MasterElected():
            return replace(
                event,
                master_id=member(group, event.master_id),
                new_epoch=group.master_epoch + 1 + event.new_epoch,
                expected_master_epoch=group.master_epoch,
                expected_set_epoch=group.sync_state_set_epoch,
            )
        case ReplicasCleaned():
            return replace(
                event,
                broker_ids=frozenset(member(group, key) for key in event.broker_ids),
                expected_master_epoch=group.master_epoch,
                expected_set_epoch=group.sync_state_set_epoch,
            )
        case FencingChanged():
            return replace(
                event,
                broker_id=member(group, event.broker_id),
                expected_master_epoch=group.master_epoch,
                expected_set_epoch=group.sync_state_set_epoch,
            )
        case ReplicaStarted() if group.known:
            broker_id = member(group, event.broker_id)
            return replace(
                event, broker_id=broker_id, expected_nonce=group.replicas[broker_id].nonce, owner=None
            )
        case _:
            return event


def check_state(group: Group) -> None:
    """What is true of every state."""
    members = group.replicas.keys()
    assert group.sync_state_set <= members
    assert group.suspects <= members
    assert group.unproven <= group.suspects
    assert group.fenced <= members
    assert not group.fenced & group.sync_state_set
    assert list(members) == sorted(members)
    assert all(0 <= key < group.next_broker_id for key in members)
    assert not group.unclaimed & members
    assert all(key < group.next_broker_id for key in group.unclaimed)
    assert len(group.losses) <= LOSSES_KEPT_MAX
    if group.master_id is not None:
        assert group.master_id in group.sync_state_set
    assert group.known or group.virgin


def check_step(before: Group | None, after: Group) -> None:
    """What is true of every change."""
    check_state(after)
    if before is None:
        return
    assert after.next_broker_id >= before.next_broker_id
    assert after.master_epoch >= before.master_epoch
    assert after.sync_state_set_epoch >= before.sync_state_set_epoch
    if after.sync_state_set != before.sync_state_set:
        assert after.sync_state_set_epoch > before.sync_state_set_epoch
    if before.sync_state_set and after.known:
        assert after.sync_state_set
    if after.master_id != before.master_id:
        assert after.master_epoch > before.master_epoch
        assert after.master_id not in after.fenced
    if before.suspects - after.suspects:
        assert after.sync_state_set_epoch > before.sync_state_set_epoch or after.replicas != before.replicas
    for key, replica in after.replicas.items():
        if key in before.replicas and replica.nonce != before.replicas[key].nonce:
            assert replica.incarnation == before.replicas[key].incarnation + 1
            assert after.master_id != key
    for key in after.replicas.keys() - before.replicas.keys():
        assert key >= before.next_broker_id or key in before.unclaimed or not before.known


steps = st.lists(st.tuples(events, st.sampled_from([True, True, True, False])), max_size=40)


def run(chosen: list[tuple[Event, bool]]) -> list[tuple[Event, Group | None, Group | None]]:
    """Apply the events; most of them with guards that hold."""
    trace: list[tuple[Event, Group | None, Group | None]] = []
    group: Group | None = None
    for event, adjust in chosen:
        event = with_true_guards(group, event) if adjust else event
        after, outcome = apply(group, event)
        assert isinstance(outcome, Applied) or after is group
        if isinstance(event, ReplicaStarted) and group is not None and after is not group:
            assert group.replicas[event.broker_id].nonce == event.expected_nonce
        trace.append((event, group, after))
        group = after
    return trace


@given(steps)
@examples(300)
def test_ids_are_never_reused_and_epochs_never_fall(chosen: list[tuple[Event, bool]]) -> None:
    """Whatever is proposed in whatever order, the invariants of the state hold."""
    owner_of_id: dict[int, str] = {}
    for event, before, after in run(chosen):
        if after is None:
            continue
        check_step(before, after)
        if isinstance(event, GroupRebuilt):
            owner_of_id |= {key: replica.check_code for key, replica in after.replicas.items()}
            continue
        for key, replica in after.replicas.items():
            assert owner_of_id.setdefault(key, replica.check_code) == replica.check_code


@given(steps)
@examples(200)
def test_events_mean_the_same_after_the_wire_and_twice(chosen: list[tuple[Event, bool]]) -> None:
    """Every controller comes to the same state, also from a snapshot; a repetition changes nothing."""
    for event, before, after in run(chosen):
        read = decode_event(encode_event(event))
        assert read == event
        if before is not None:
            assert decode_groups(encode_groups([before])) == {before.broker_name: before}
        assert apply(before, read) == apply(before, event)
        again, outcome = apply(after, event)
        assert again == after or isinstance(event, ReplicaMoved)
        if isinstance(apply(before, event)[1], Applied):
            assert isinstance(outcome, Applied)


@given(steps, st.integers(0, 29))
@examples(200)
def test_events_that_were_overtaken_by_an_election_change_nothing(
    chosen: list[tuple[Event, bool]], position: int
) -> None:
    """A guard that names an older epoch does not hold any more."""
    trace = run(chosen)
    final = trace[-1][2] if trace else None
    if final is None or position >= len(trace):
        return
    event, _, after = trace[position]
    guarded = isinstance(event, SyncStateSetAltered | MasterElected | ReplicasCleaned | FencingChanged)
    if not guarded or after is None or final.master_epoch == after.master_epoch:
        return
    if isinstance(event, MasterElected) and event.new_epoch == final.master_epoch:
        return
    if (
        isinstance(event, MasterElected | ReplicasCleaned | FencingChanged)
        and event.expected_master_epoch == final.master_epoch
    ):
        return
    if isinstance(event, SyncStateSetAltered) and event.master_epoch == final.master_epoch:
        return
    unchanged, outcome = apply(final, event)
    assert unchanged is final
    cleaned_already = isinstance(event, ReplicasCleaned) and not event.broker_ids & final.replicas.keys()
    fenced_already = isinstance(event, FencingChanged) and (event.broker_id in final.fenced) == event.fenced
    assert isinstance(outcome, Superseded) or cleaned_already or fenced_already


lives = st.builds(
    LiveReplica,
    addresses,
    st.none() | nonces,
    st.integers(-1, 8),
    st.integers(-1, 9),
    st.integers(-1, 9),
    st.integers(0, 3),
    st.just(0.0),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([None, True, False]),
    st.booleans(),
)
standings = st.sampled_from([Standing.ALIVE, Standing.ALIVE, Standing.DEAD, Standing.UNKNOWN])
views = st.builds(
    lambda found, lease: LiveView(
        {key: standing for key, (standing, _) in found.items()},
        {key: one for key, (_, one) in found.items()},
        lease,
    ),
    st.dictionaries(ids, st.tuples(standings, lives), min_size=2),
    st.sampled_from([0.0, 0.0, 2.0]),
)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    """Any state that obeys `check_state`."""
    members = sorted(draw(st.frozensets(st.integers(1, 5), min_size=1)))
    subsets = st.frozensets(st.sampled_from(members))
    in_sync = draw(subsets)
    master = draw(st.none() | st.sampled_from(sorted(in_sync))) if in_sync else None
    group = group_of(
        *members,
        master=master,
        epoch=draw(epochs),
        in_sync=in_sync,
        set_epoch=draw(epochs),
        suspects=draw(st.just(frozenset[int]()) | subsets),
        expected=draw(expected),
        fenced=draw(subsets) - in_sync,
    )
    group = replace(group, unproven=draw(subsets) & group.suspects)
    check_state(group)
    return group


names = st.just(NAME)
flags = st.booleans()
no_flag = st.none() | flags
optional_nonces = st.none() | nonces
requests = st.one_of(
    st.builds(
        ApplyBrokerId,
        cluster_name=clusters,
        broker_name=names,
        applied_broker_id=ids,
        register_check_code=codes,
        owner_uid=owners,
        expected_replicas=expected,
    ),
    st.builds(
        RegisterBrokerToController,
        cluster_name=clusters,
        broker_name=names,
        broker_id=ids,
        broker_address=addresses,
        last_nonce=optional_nonces,
        tried_nonces=st.sampled_from([None, "n1", "n2;n3"]),
        next_nonce=optional_nonces,
        owner_uid=owners,
        expected_replicas=expected,
        log_epoch=st.none() | epochs,
        log_offset=st.none() | epochs,
        lost_cache=no_flag,
        unclean_stop=no_flag,
        adopt=no_flag,
    ),
    st.builds(
        ElectMaster,
        broker_name=names,
        broker_id=st.integers(-1, 5),
        designate_elect=flags,
        unclean=no_flag,
        handover_epoch=st.none() | st.none() | epochs,
    ),
    st.builds(FenceReplica, broker_name=names, broker_id=ids, fenced=flags, force=no_flag),
    st.builds(
        CleanControllerBrokerData,
        cluster_name=clusters,
        broker_name=names,
        broker_controller_ids_to_clean=st.sampled_from([None, "1", "2;3", "1;2;3;4"]),
        is_clean_living_broker=flags,
    ),
    st.builds(AlterSyncStateSet, broker_name=names, master_broker_id=ids, master_epoch=epochs),
)


def likely(group: Group | None, request: object, view: LiveView) -> object:
    """The request as a broker of this group might send it."""
    if group is None:
        return replace(request, applied_broker_id=1) if isinstance(request, ApplyBrokerId) else request
    match request:
        case ApplyBrokerId():
            return replace(
                request, applied_broker_id=group.next_broker_id, cluster_name="demo", owner_uid=group.owner
            )
        case RegisterBrokerToController() if group.known:
            broker_id = member(group, request.broker_id or 0)
            last = group.replicas[broker_id].nonce
            return replace(
                request, broker_id=broker_id, last_nonce=last, cluster_name="demo", owner_uid=group.owner
            )
        case ElectMaster() if group.known:
            epoch = None if request.handover_epoch is None else group.master_epoch
            return replace(request, broker_id=member(group, request.broker_id), handover_epoch=epoch)
        case FenceReplica() if group.known:
            return replace(request, broker_id=member(group, request.broker_id))
        case _:
            return request


def decide(group: Group | None, request: object, view: LiveView, extra: frozenset[int]) -> Decision:
    """The decision on any of the requests."""
    match request:
        case ApplyBrokerId():
            return decide_apply_id(group, request)
        case RegisterBrokerToController():
            return decide_register(group, request, view)
        case ElectMaster():
            return decide_elect(group, request, view, unclean_allowed=0 in extra)
        case CleanControllerBrokerData():
            return decide_clean(group, request, view)
        case FenceReplica():
            return decide_fence(group, request)
        case AlterSyncStateSet():
            if group is not None and group.master_id is not None:
                request = replace(request, master_broker_id=group.master_id, master_epoch=group.master_epoch)
                extra = frozenset((*(key for key in extra if view.alive(key)), group.master_id))
            body = SyncStateSet(extra, 0 if group is None else group.sync_state_set_epoch)
            return decide_alter_sync_state_set(group, request, body, view)
        case _:
            raise AssertionError(request)


@given(st.lists(st.tuples(requests, views, id_sets, st.sampled_from([True, True, False])), max_size=30))
@examples(400)
def test_what_is_decided_can_be_applied_at_once(
    asked: list[tuple[object, LiveView, frozenset[int], bool]],
) -> None:
    """On the state that it was decided on, an event takes effect, and the next reply agrees with it."""
    group: Group | None = None
    for wish, view, extra, adjust in asked:
        request = likely(group, wish, view) if adjust else wish
        decision = decide(group, request, view, extra)
        assert decision.accepted or decision.event is None
        assert decision.accepted or decision.remark
        if decision.event is None:
            continue
        before = group
        group, outcome = apply(group, decision.event)
        assert outcome == Applied()
        assert group is not None
        check_step(before, group)
        if isinstance(request, RegisterBrokerToController | ApplyBrokerId):
            again = decide(group, request, view, extra)
            assert (again.code, again.event) == (0, None)
            if isinstance(request, RegisterBrokerToController):
                assert again == replace(decision, event=None)
        if isinstance(decision.event, MasterElected):
            assert group.master_epoch > max(
                (one.epoch for key, one in view.lives.items() if key in group.replicas), default=0
            )
            hands_over = isinstance(request, ElectMaster) and request.handover_epoch is not None
            check_election(before, decision.event, view, hands_over=hands_over)


def check_election(
    before: Group | None, event: MasterElected, view: LiveView, *, hands_over: bool = False
) -> None:
    """Nobody who may lack messages is elected without a record of it."""
    assert before is not None
    assert event.master_id not in before.fenced
    if before.virgin:
        return
    assert view.fit(event.master_id)
    sound = before.sync_state_set - before.suspects
    by_master_alone = any(one.all_ack is False for key, one in view.lives.items() if key in before.replicas)
    if hands_over:
        assert event.master_id in sound - {before.master_id}
        assert before.master_id is not None
        assert view.alive(before.master_id)
    elif (by_master_alone or event.unclean) and event.master_id != before.master_id:
        surely_dead = before.master_id is not None and view.surely_dead(before.master_id)
        masters = before.replicas if before.master_id is None else (before.master_id,)
        no_leases = all(before.replicas[key].nonce is None for key in masters)  # RocketMQ's get none
        assert view.lease_seconds <= 0 or surely_dead or no_leases or before.master_epoch == 0
    if event.master_id not in sound:
        assert not any(view.fit(key) for key in sound)
        if event.loss is None:
            assert event.master_id in before.unproven == before.suspects
            assert not sound
            assert all(view.fit(key) for key in before.suspects)
        assert before.master_id is None or view.election_standing(before.master_id) is Standing.DEAD


@given(groups(), views, flags)
@examples(500)
def test_the_controllers_own_trigger_never_replaces_a_master_that_may_live(
    group: Group, view: LiveView, unclean: bool
) -> None:
    """It elects, or does nothing; it never makes a group masterless, and everything can be described."""
    decision = decide_failover(group, view, unclean_allowed=unclean)
    why = advice(group, view)
    described = describe_group(group, view, 1.0)
    decide_replica_info(group, GetReplicaInfo(broker_name=NAME))
    decide_next_id(group, GetNextBrokerId(cluster_name="demo", broker_name=NAME))
    describe_sync_states([group], lambda _: view)

    assert described.advice == why
    assert decide_rebuild(group, group).event is None
    assert (why is None) == (group.master_id is not None and view.fit(group.master_id))
    if decision is None:
        return
    assert isinstance(decision.event, MasterElected)
    assert group.master_id is None or view.election_standing(group.master_id) is Standing.DEAD
    assert view.fit(decision.event.master_id)
    check_election(group, decision.event, view)
    after, outcome = apply(group, decision.event)
    assert outcome == Applied()
    assert after is not None
    check_step(group, after)
    assert decide_failover(after, view, unclean_allowed=unclean) is None


@given(groups(), requests, views, id_sets)
@examples(500)
def test_every_request_gets_an_answer_in_every_state(
    group: Group, request: object, view: LiveView, extra: frozenset[int]
) -> None:
    """Decisions are total, and what they propose takes effect at once."""
    decision = decide(group, likely(group, request, view), view, extra)

    assert decision.accepted == (decision.code == 0)
    if decision.event is not None:
        after, outcome = apply(group, decision.event)
        assert outcome == Applied()
        assert after is not None
        check_step(group, after)
        if isinstance(decision.event, MasterElected):
            asked = request if isinstance(request, ElectMaster) else None
            named = asked is not None and (asked.designate_elect or asked.handover_epoch is not None)
            old = group.master_id
            assert named or old is None or view.standing(old) is Standing.DEAD
            hands_over = asked is not None and asked.handover_epoch is not None
            check_election(group, decision.event, view, hands_over=hands_over)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_bytes_make_the_decoders_raise_anything_else(data: bytes) -> None:
    """`ValueError` or a value."""
    for decode in (decode_event, decode_groups):
        with contextlib.suppress(ValueError):
            decode(data)
