"""Conditions, the word for people, and reconciles in which nothing is done."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from brokerset_operator.model import names
from brokerset_operator.model.actions import ApplyObject, DeletePod, EmitEvent, Fence
from brokerset_operator.model.observed import Meta, Observed, Operator
from brokerset_operator.plan.deciding import plan
from brokerset_operator.plan.objects import time_text
from brokerset_operator.plan.pods import Pod, read_pod, why_failing
from brokerset_operator.plan.static import is_as_sent, to_send, with_mark
from brokerset_operator.plan.workflow import Workflow, read_workflow, write_workflow
from brokerset_sim.kubernetes_model import Kubernetes
from brokerset_sim.kubernetes_worlds import carry_on, condition, decide, is_done, of, settled
from brokerset_spec.manifest import Problem, default_manifest, read_manifest


def fresh(**changes: Any) -> Observed:
    """A set of which nothing is there yet."""
    meta = Meta(name="orders", namespace="shop", uid="u1", generation=1)
    given = Observed(
        meta=meta,
        manifest=default_manifest("orders"),
        operator=Operator(image="brokerset:1"),
        now=1_700_000_000.0,
    )
    return replace(given, **changes)


def test_the_first_reconcile_makes_everything_at_once() -> None:
    """All objects of the real builders, in their order, and a status that says Creating."""
    decided = plan(fresh())

    made = [
        (a.manifest["kind"], a.manifest["metadata"]["name"])
        for a in decided.actions
        if isinstance(a, ApplyObject)
    ]
    assert ("StatefulSet", "orders-controller") in made
    assert ("StatefulSet", "orders-0") in made
    assert ("Service", "orders-0-master") in made
    assert condition(dict(decided.status), "Ready") == ("False", "Creating")
    assert decided.status["phase"] == "Creating"
    assert decided.requeue_seconds <= 5


def test_what_was_sent_is_not_sent_again() -> None:
    """With everything there as it was sent nothing is sent, and the status does not change."""
    first = plan(fresh())
    sent = [a.manifest for a in first.actions if isinstance(a, ApplyObject)]
    tables: dict[str, dict[str, Any]] = {
        "StatefulSet": {},
        "Service": {},
        "ConfigMap": {},
        "EndpointSlice": {},
    }
    other = {}
    for manifest in sent:
        if manifest["kind"] in tables:
            tables[manifest["kind"]][manifest["metadata"]["name"]] = manifest
        else:
            other[f"{manifest['kind']}/{manifest['metadata']['name']}"] = manifest
    there = fresh(
        status=first.status,
        stateful_sets=tables["StatefulSet"],
        services=tables["Service"],
        config_maps=tables["ConfigMap"],
        endpoint_slices=tables["EndpointSlice"],
        other=other,
    )

    second = plan(there)

    assert not [action for action in second.actions if not isinstance(action, EmitEvent)]
    assert second.status == first.status


def test_a_status_is_json_and_comes_back_as_it_was() -> None:
    """What is remembered survives the API server."""
    world = settled(groups=2)

    text = json.dumps(world.status)

    assert json.loads(text) == world.status
    assert write_workflow(read_workflow(json.loads(text))) == world.status["workflow"]
    assert dict(decide(world.observe_now()).status) == world.status


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        [],
        "text",
        {"groups": "x"},
        {"groups": [1, None, {"index": "a", "name": 3}]},
        {"groups": [{"index": 0, "name": ""}], "controller": {"pod": 3}},
    ],
)
def test_a_damaged_memory_counts_as_none(damaged: object) -> None:
    """Who may write a status may write anything."""
    assert read_workflow({"workflow": damaged}) == Workflow()


def test_a_rest_is_a_rest() -> None:
    """When all is as wanted a reconcile does nothing, and the next one may be late."""
    world = settled()

    decided = decide(world.observe_now())

    assert decided.actions == ()
    assert decided.requeue_seconds >= 60
    assert world.status["phase"] == "Ready"
    assert world.status["inSync"] == "3/3"


def test_the_selector_of_the_scale_subresource_finds_one_broker_of_each_group() -> None:
    """An autoscaler multiplies the pods that it finds, and would count each broker as a group otherwise."""
    world = settled(groups=2)

    decide(world.observe_now())

    assert world.status["groupCount"] == 2
    assert world.status["selector"] == (
        "brokerset.io/set=orders,app.kubernetes.io/component=broker,apps.kubernetes.io/pod-index=0"
    )


def test_an_invalid_manifest_changes_nothing_and_names_every_problem() -> None:
    """What runs is left alone; the rest of the status stays."""
    world = settled()
    problems = (
        Problem("spec.groups", "is less than 1", "use 1 or more"),
        Problem("spec.x", "is not a field", "…"),
    )

    decided = decide(replace(world.observe_now(), manifest=None, problems=problems))

    assert [type(action) for action in decided.actions] == [EmitEvent]
    assert condition(dict(decided.status), "Ready") == ("False", "InvalidSpec")
    message = next(c["message"] for c in decided.status["conditions"] if c["type"] == "Ready")
    assert "spec.groups" in message
    assert "spec.x" in message
    assert decided.status["workflow"] == world.status["workflow"]


def test_a_paused_set_is_only_observed() -> None:
    """With the annotation nothing is done, whatever the manifest says."""
    world = settled()
    world.annotations[names.PAUSED] = "true"
    world.apply_manifest(replicas=5)
    world.image = "v2"

    decided = decide(world.observe_now())

    assert [action for action in decided.actions if not isinstance(action, EmitEvent)] == []
    assert decided.status["phase"] == "Paused"


def test_a_set_that_is_deleted_is_left_to_the_garbage_collector() -> None:
    """Owner references do the rest."""
    world = settled()
    observed = world.observe_now()

    decided = decide(replace(observed, meta=replace(observed.meta, deleting=True)))

    assert decided.actions == ()


def test_a_group_keeps_its_name() -> None:
    """Another name for a group that has volumes is refused before anything is changed."""
    world = settled()
    world.apply_manifest(brokerNames=["other"])

    decided = decide(world.observe_now())

    assert condition(dict(decided.status), "Ready") == ("False", "InvalidSpec")


@pytest.mark.parametrize(
    ("what", "ready", "degraded"),
    [
        ("no master", ("False", "NoMaster"), "True"),
        ("too few in sync", ("False", "TooFewInSync"), "True"),
        ("a slave is missing", ("False", "BrokersMissing"), "True"),
        ("controllers are silent", ("False", "ControllersSilent"), "True"),
        ("a controller is missing", ("False", "ControllersMissing"), "True"),
        ("another owner", ("False", "IdentityConflict"), "True"),
        ("a copied volume", ("False", "IdentityConflict"), "True"),
    ],
)
def test_conditions_say_what_is_wrong(what: str, ready: tuple[str, str], degraded: str) -> None:
    """Each trouble has its reason, and a message."""
    world = settled()
    group = world.groups["orders-0"]
    observed = None
    slaves = sorted(group.in_sync - {group.master})
    match what:
        case "no master":
            group.master = None
        case "too few in sync":
            group.in_sync -= set(slaves)
        case "a slave is missing":
            group.in_sync.discard(slaves[0])
        case "controllers are silent":
            world.leader = None
        case "a controller is missing":
            del world.pods["orders-controller-2"]
        case "another owner":
            found = world.observe_now()
            state = replace(found.groups["orders-0"], owner="somebody")
            observed = replace(found, groups={"orders-0": state})
        case _:
            observed = replace(
                world.observe_now(), conflicts={"orders-0-1": "another process has this identity"}
            )

    status = dict(decide(observed or world.observe_now()).status)

    assert condition(status, "Ready") == ready
    assert condition(status, "Degraded") == (degraded, ready[1])
    assert all(c["message"] for c in status["conditions"] if c["type"] == "Ready")


def test_what_a_broker_says_of_itself_is_told_with_its_name() -> None:
    """Not only that it is not in sync: why, and what to do, in the conditions and next to the broker."""
    world = settled()
    group = world.groups["orders-0"]
    slave = next(broker_id for broker_id in sorted(group.in_sync) if broker_id != group.master)
    group.in_sync.discard(slave)
    brokers = decide(world.observe_now()).status["groups"][0]["brokers"]
    pod = next(broker["pod"] for broker in brokers if broker["id"] == slave)
    why = "the log has no epoch in common with the master's; make it a new, empty replica"

    status = decide(replace(world.observe_now(), troubles={pod: why})).status

    told = {c["type"]: c["message"] for c in status["conditions"]}
    assert f"not in sync: {pod} ({pod}: {why})" in told["Ready"]
    assert told["Degraded"] == told["Ready"]
    assert {b["id"]: b.get("problem") for b in status["groups"][0]["brokers"]} == {
        b["id"]: why if b["id"] == slave else None for b in brokers
    }


END = {"exitCode": 1, "reason": "Error", "message": "starting\nunknown setting maxMessageSzie\n"}

CRASHING = {
    "in a crash loop": {
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}},
        "lastState": {"terminated": END},
        "restartCount": 3,
    },
    "between two crashes": {
        "state": {"running": {"startedAt": "NOW"}},
        "lastState": {"terminated": END},
        "restartCount": 3,
    },
    "just crashed": {"state": {"terminated": END}, "lastState": {}, "restartCount": 2},
}
"""Statuses of a container that crashes again and again."""


def _with_container(observed: Observed, pod: str, container: Mapping[str, Any]) -> Observed:
    """The same, with the status of a pod's container changed."""
    found = json.loads(json.dumps(observed.pods[pod]))
    text = json.dumps({"name": "main", **container}).replace('"NOW"', json.dumps(time_text(observed.now - 5)))
    found["status"]["containerStatuses"] = [json.loads(text)]
    return replace(observed, pods={**observed.pods, pod: found})


@pytest.mark.parametrize("kind", list(CRASHING))
@pytest.mark.parametrize("prefix", ["orders-0-", "orders-controller-"])
def test_a_roll_whose_new_pod_crashes_is_degraded_and_stops(prefix: str, kind: str) -> None:
    """Ready=False, Degraded=True, with pod, container, exit code and last words; no other pod is touched."""
    world = settled()
    world.image = "v2"

    def rolls(found: Kubernetes) -> bool:
        work = found.status["workflow"]
        places = (work.get("controller"), *(each.get("replacing") for each in work["groups"]))
        began = [place for place in places if place and place["pod"].startswith(prefix)]
        return any(
            (pod := found.pods.get(place["pod"])) is not None
            and pod.uid != place["uid"]
            and pod.deleted_at is None
            for place in began
        )

    carry_on(world, rolls)
    observed = world.observe_now()
    work = observed.status["workflow"]
    name = (work.get("controller") or work["groups"][0].get("replacing"))["pod"]

    decided = decide(_with_container(observed, name, CRASHING[kind]))

    told = {c["type"]: c for c in decided.status["conditions"]}
    why = "container main ended with exit code 1: unknown setting maxMessageSzie"
    assert (told["Ready"]["status"], told["Degraded"]["status"]) == ("False", "True")
    assert f"{name}: " in told["Degraded"]["message"]
    assert why in told["Degraded"]["message"]
    assert told["Progressing"]["reason"] == "RollWaits"
    assert why in told["Progressing"]["message"]
    assert not [action for action in decided.actions if isinstance(action, DeletePod)]
    assert decided.status["workflow"]["groups"] == work["groups"]


@pytest.mark.parametrize("pod", ["orders-0-1", "orders-controller-1"])
def test_a_pod_that_crashes_without_a_roll_is_told_until_it_is_steady(pod: str) -> None:
    """Also while it is ready between two crashes; it is reconciled again soon: nobody tells of the end."""
    world = settled()

    decided = decide(_with_container(world.observe_now(), pod, CRASHING["between two crashes"]))
    found = decide(world.observe_now())

    told = next(c for c in decided.status["conditions"] if c["type"] == "Degraded")
    assert told["status"] == "True"
    assert f"{pod}: it was started again 3 times" in told["message"]
    assert decided.requeue_seconds <= 15
    assert condition(dict(found.status), "Degraded") == ("False", "None")


def test_a_pod_that_is_replaced_may_take_minutes_but_not_without_end() -> None:
    """Up to five it starts; a container that crashed long ago is forgiven."""
    now = 1_790_000_000.0

    def pod(*, ready: bool, since: float, restarts: int = 0, runs: float = 0) -> Pod:
        end = {"lastState": {"terminated": END}} if restarts else {}
        found = read_pod(
            {
                "metadata": {"name": "orders-0-1", "labels": {}},
                "status": {
                    "conditions": [
                        {
                            "type": "Ready",
                            "status": "True" if ready else "False",
                            "lastTransitionTime": time_text(now - since),
                        }
                    ],
                    "containerStatuses": [
                        {
                            "name": "broker",
                            "state": {"running": {"startedAt": time_text(now - runs)}},
                            "restartCount": restarts,
                            **end,
                        }
                    ],
                },
            }
        )
        assert found is not None
        return found

    assert why_failing(pod(ready=False, since=200), now) is None
    assert why_failing(pod(ready=False, since=301), now) == "it has not been ready for more than 5 minutes"
    assert why_failing(pod(ready=False, since=9, restarts=1, runs=9), now) is None
    assert why_failing(pod(ready=False, since=9, restarts=2, runs=9), now) is not None
    assert why_failing(pod(ready=True, since=9, restarts=2, runs=59), now) is not None
    assert why_failing(pod(ready=True, since=9, restarts=2, runs=61), now) is None


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"waiting": {"reason": "ContainerCreating"}}, "5 minutes; it may wait for the Secret orders-tls"),
        ({"running": {"startedAt": time_text(1_790_000_000.0)}}, "5 minutes"),
    ],
)
def test_a_pod_that_never_began_says_which_secret_it_may_wait_for(state: dict[str, Any], said: str) -> None:
    """The kubelet says that in Events alone; once a process runs the Secret was there."""
    now = 1_790_000_000.0
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": time_text(now - 301)}
    found = read_pod(
        {
            "metadata": {"name": "orders-0-1", "labels": {}},
            "spec": {"volumes": [{"name": "tmp"}, {"name": "tls", "secret": {"secretName": "orders-tls"}}]},
            "status": {"conditions": [ready], "containerStatuses": [{"name": "broker", "state": state}]},
        }
    )

    assert found is not None
    assert why_failing(found, now) == f"it has not been ready for more than {said}"


@pytest.mark.parametrize("state", ["creating", "no master", "too few in sync"])
def test_a_group_that_does_not_serve_says_what_its_brokers_say(state: str) -> None:
    """A volume of another cluster, say, keeps a group from its first master."""
    world = settled()
    group = world.groups["orders-0"]
    observed = world.observe_now()
    match state:
        case "creating":
            observed = replace(observed, groups={}, status={})
        case "no master":
            group.master = None
            observed = world.observe_now()
        case _:
            group.in_sync = {group.master} if group.master is not None else set()
            observed = world.observe_now()

    status = decide(replace(observed, troubles={"orders-0-1": "belongs to cluster B"})).status

    message = next(c["message"] for c in status["conditions"] if c["type"] == "Ready")
    assert "orders-0-1: belongs to cluster B" in message


def test_times_of_transition_stay_while_a_condition_stays() -> None:
    """Only a change of True and False is a transition."""
    world = settled()
    before = {c["type"]: c["lastTransitionTime"] for c in world.status["conditions"]}
    world.now += 100
    world.groups["orders-0"].in_sync = set()

    after = {c["type"]: c["lastTransitionTime"] for c in decide(world.observe_now()).status["conditions"]}

    assert after["ControllersReady"] == before["ControllersReady"]
    assert after["Ready"] != before["Ready"]


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"spec": {"ports": [{"port": 1, "protocol": "TCP"}], "clusterIP": "10.0.0.1"}}, True),
        ({"spec": {"ports": [{"port": 2}]}}, False),
        ({"spec": {"ports": [{"port": 1}, {"port": 2}]}}, False),
        ({"spec": {"ports": []}}, False),
        ({"metadata": {"labels": {}, "annotations": {}}}, False),
    ],
)
def test_what_is_there_may_be_more_than_what_is_wanted(changed: dict[str, Any], same: bool) -> None:
    """Defaults and other writers' fields are no difference; what somebody changed of ours is."""
    marked = with_mark({"kind": "Service", "metadata": {"name": "x"}, "spec": {"ports": [{"port": 1}]}})
    found = {key: value for key, value in marked.items() if key != "kind"}

    assert is_as_sent({**found, **changed}, marked) is same


def test_quantities_are_compared_by_what_they_mean() -> None:
    """The API server writes 1000m as 1; that is no difference that would be corrected again and again."""
    manifest = {"kind": "StatefulSet", "metadata": {"name": "x"}, "spec": {"cpu": "1000m", "gone": []}}
    marked = with_mark(manifest)

    assert to_send(manifest, {**marked, "spec": {"cpu": "1"}}) is None
    assert to_send(manifest, {**marked, "spec": {"cpu": "2"}}) == ApplyObject(marked)
    assert to_send(manifest, None) == ApplyObject(marked)


def test_a_field_that_was_taken_out_is_noticed() -> None:
    """The manifest's own hash differs then, though all that is left is there."""
    with_field, without = with_mark({"metadata": {}, "a": 1, "b": 2}), with_mark({"metadata": {}, "a": 1})

    assert not is_as_sent(with_field, without)


def test_ready_names_brokers_that_are_not_in_sync_on_purpose() -> None:
    """A fenced broker does not make a set unready, but nobody is told that it is in sync."""
    world = settled()
    group = world.groups["orders-0"]
    slave = max(group.in_sync - {group.master})
    pod = next(
        pod for pod in world.pods.values() if pod.keeper == group.name and pod.volume.broker_id == slave
    )
    assert _message(world.status, "Ready") == "every group has a master and all its brokers in sync"

    world.carry_out(Fence("orders-0", slave, True, "somebody asked for it"))
    world.tick()
    status = dict(decide(world.observe_now()).status)

    assert condition(status, "Ready") == ("True", "AsWanted")
    assert status["inSync"] == "2/3"
    assert _message(status, "Ready") == (
        f"every group has a master, and its brokers are in sync but for some (fenced: {pod.name})"
    )


def test_ready_names_pods_that_are_being_replaced() -> None:
    """While a roll goes on, what is told of brokers and controllers is true in every reconcile."""
    world = settled()
    world.image = "v2"
    told: set[str] = set()

    def done(found: Kubernetes) -> bool:
        in_sync, wanted = found.status["inSync"].split("/")
        for kind in ("Ready", "ControllersReady"):
            if condition(found.status, kind) == ("True", "AsWanted"):
                told.add(_message(found.status, kind))
        if condition(found.status, "Ready") == ("True", "AsWanted"):
            whole = _message(found.status, "Ready") == "every group has a master and all its brokers in sync"
            assert whole == (in_sync == wanted)
        return is_done(found)

    carry_on(world, done)

    assert any("replaced: orders-0-" in message for message in told)
    assert any("all but " in message and "which is replaced, vote" in message for message in told)


@pytest.mark.parametrize("seed", range(8))
def test_a_set_that_is_being_created_is_not_degraded(seed: int) -> None:
    """Nobody is warned before everything has been as wanted for the first time; after that everybody is."""
    world = Kubernetes(random.Random(seed))
    world.apply_manifest(replicas=3, groups=2, replication={"minInSyncReplicas": 2})

    done = carry_on(world, lambda found: condition(found.status, "Ready") == ("True", "AsWanted"))

    told = [(event.reason, event.warning) for event in of(EmitEvent, done)]
    assert told == [("ReadyCreating", False), ("ReadyAsWanted", False)]
    world.groups["orders-0"].in_sync = {world.groups["orders-0"].master or 0}
    later = decide(world.observe_now())
    assert condition(dict(later.status), "Degraded") == ("True", "TooFewInSync")
    warned = [event.reason for event in of(EmitEvent, later.actions) if event.warning]
    assert warned == ["ReadyTooFewInSync", "DegradedTooFewInSync"]


def test_a_new_group_is_created_and_does_not_degrade_its_set() -> None:
    """What holds for a set holds for a group that is added."""
    world = settled(replication={"minInSyncReplicas": 2})
    world.apply_manifest(groups=2)

    done = carry_on(world, is_done)

    told = {(event.reason, event.warning) for event in of(EmitEvent, done)}
    assert told == {("ReadyCreating", False), ("ReadyAsWanted", False)}


def test_a_group_that_fails_over_before_it_was_whole_is_degraded() -> None:
    """Also without a memory of better days, which a new operator may not have."""
    world = settled()
    group = world.groups["orders-0"]
    group.in_sync, group.epoch = {group.master or 0}, 2
    for work in world.status["workflow"]["groups"]:
        del work["whole"]

    status = dict(decide(world.observe_now()).status)

    assert condition(status, "Degraded") == ("True", "TooFewInSync")


def _message(status: Mapping[str, Any], kind: str) -> str:
    return next(str(c["message"]) for c in status["conditions"] if c["type"] == kind)


@pytest.mark.parametrize("spec", [{}, {"groups": 1}, {"groups": 2}, {"brokerNames": ["a", "b", "c"]}])
def test_the_number_of_groups_is_told_however_it_is_given(spec: dict[str, Any]) -> None:
    """Also when the manifest leaves it out, or lists names; `kubectl get` shows it."""
    document = {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "BrokerSet",
        "metadata": {"name": "orders"},
        "spec": spec,
    }

    status = plan(fresh(manifest=read_manifest(document))).status

    assert status["groupCount"] == spec.get("groups", len(spec.get("brokerNames", "1")))
