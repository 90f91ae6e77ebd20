"""The way of a set to TLS alone, and back, on a model of Kubernetes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from brokerset_operator.model.actions import EmitEvent
from brokerset_operator.model.certificates import trust_config_map
from brokerset_operator.model.observed import Observed
from brokerset_operator.model.tls_stages import TlsStage, connects_by_tls, jobs_use_tls, next_step
from brokerset_operator.plan.deciding import plan
from brokerset_sim.kubernetes_model import BAD_IMAGE, Kubernetes
from brokerset_sim.kubernetes_wanted import wanted_of_model
from brokerset_sim.kubernetes_worlds import act, condition, decide, is_done, settled

NAMES = {"secretName": "orders-tls", "trustConfigMap": "orders-authorities"}
ENFORCING = {**NAMES, "mode": "enforcing"}
PERMISSIVE = {**NAMES, "mode": "permissive"}
OWN = {"authority": {}, "mode": "enforcing"}
NOT_ASKED = {**OWN, "clients": {"trustConfigMap": "shop-clients"}}
OPTIONAL = {**OWN, "clients": {"trustConfigMap": "shop-clients", "mode": "optional"}}
REQUIRED = {**OWN, "clients": {"trustConfigMap": "shop-clients", "mode": "require"}}
SECONDS_MAX = 1200

SHOWS_ITSELF = {TlsStage.ASKING, TlsStage.REQUIRING}
CONNECTS_BY_TLS = {TlsStage.CONNECTING, TlsStage.ENFORCING, *SHOWS_ITSELF}
TAKES_TLS = {TlsStage.ACCEPTING, *CONNECTS_BY_TLS}
TAKES_PLAIN = {TlsStage.SERVING, TlsStage.ACCEPTING, TlsStage.CONNECTING}
"""What `resources/tls_files` makes of the stages; of all ports, those of members too."""


def stages(world: Kubernetes) -> list[TlsStage]:
    """Of all pods."""
    known = {stage.name.lower(): stage for stage in TlsStage}
    return [known.get(pod.tls or "", TlsStage.SERVING) for pod in world.pods.values()]


def check(world: Kubernetes) -> None:
    """Each pod reaches each other one, and the operator and a job that begins now all of them."""
    found, observed = stages(world), world.observe_now()
    by_tls = connects_by_tls(observed.pods)
    job_by_tls = observed.manifest is not None and (
        trust_config_map(observed.manifest) is not None and jobs_use_tls(observed.manifest, observed.pods)
    )
    for server in found:
        for client_by_tls in (by_tls, job_by_tls, *(stage in CONNECTS_BY_TLS for stage in found)):
            assert server in (TAKES_TLS if client_by_tls else TAKES_PLAIN), (found, by_tls, job_by_tls)
        if server is TlsStage.REQUIRING:
            assert set(found) <= SHOWS_ITSELF, found
            assert world.manifest.spec.tls.clients is not None, "by which the operator shows itself"


def carried_on(world: Kubernetes, seconds_max: int = SECONDS_MAX) -> list[set[TlsStage]]:
    """Carry on until nothing is left to be done, with a check each second; returns what stages there were."""
    seen = [set(stages(world))]
    for _ in range(seconds_max):
        world.tick()
        act(world, decide(world.observe_now()))
        check(world)
        if set(stages(world)) != seen[-1]:
            seen.append(set(stages(world)))
        if is_done(world) and len(seen[-1]) == 1:
            return seen
    raise AssertionError(f"not done after {seconds_max} s: {seen}, {world.status}")


def change(world: Kubernetes, tls: dict[str, Any], **spec: Any) -> None:
    """Another `spec.tls`."""
    world.apply_manifest(**spec, tls=tls)


@pytest.mark.parametrize("spec", [{}, {"replication": {"mode": "dledger"}}], ids=["controllers", "dledger"])
@pytest.mark.parametrize(
    ("before", "after", "last"),
    [
        ({}, ENFORCING, TlsStage.ENFORCING),
        ({"secretName": "orders-tls"}, ENFORCING, TlsStage.ENFORCING),
        (PERMISSIVE, ENFORCING, TlsStage.ENFORCING),
        (ENFORCING, PERMISSIVE, TlsStage.ACCEPTING),
        (PERMISSIVE, {}, TlsStage.SERVING),
        ({}, REQUIRED, TlsStage.REQUIRING),
        (OWN, OPTIONAL, TlsStage.ASKING),
        (OPTIONAL, REQUIRED, TlsStage.REQUIRING),
        (REQUIRED, NOT_ASKED, TlsStage.ENFORCING),
        (REQUIRED, NOT_ASKED | {"mode": "permissive"}, TlsStage.ACCEPTING),
    ],
)
def test_no_pod_is_ever_kept_out_by_another_one(
    before: dict[str, Any], after: dict[str, Any], last: TlsStage, spec: dict[str, Any]
) -> None:
    """Not in any second of the way, in either direction; nor is the operator by a pod."""
    world = settled(tls=before, **spec)
    check(world)

    change(world, after, **spec)
    seen = carried_on(world)

    assert seen[-1] == {last}
    assert all(max(each) - min(each) <= 1 for each in seen)
    passed = [max(each) for each in seen]
    assert all(abs(one - other) <= 1 for one, other in pairwise(passed)), "no stage is left out"


def test_who_thinks_better_of_it_on_the_way_gets_back_as_safely() -> None:
    """Whatever part of the way is behind it."""
    for seconds in range(5, 120, 9):
        world = settled(tls=PERMISSIVE)
        change(world, ENFORCING)
        for _ in range(seconds):
            world.tick()
            act(world, decide(world.observe_now()))
            check(world)

        change(world, PERMISSIVE)

        assert carried_on(world)[-1] == {TlsStage.ACCEPTING}


def test_a_step_whose_first_pod_does_not_come_back_can_be_taken_back() -> None:
    """As with a certificate that is no good: the others go on, and the operator sees them."""
    world = settled(tls=PERMISSIVE)
    change(world, ENFORCING)
    good, world.image = world.image, BAD_IMAGE
    for _ in range(60):
        world.tick()
        act(world, decide(world.observe_now()))
        check(world)
    assert sorted(stages(world)).count(TlsStage.CONNECTING) == 1
    assert not connects_by_tls(world.observe_now().pods)

    change(world, PERMISSIVE)
    world.image = good

    assert carried_on(world)[-1] == {TlsStage.ACCEPTING}


def test_a_new_set_takes_tls_alone_from_its_first_pod_on() -> None:
    """There is nobody to be kept out."""
    world = settled(tls=ENFORCING)

    assert set(stages(world)) == {TlsStage.ENFORCING}


def ready_to_connect() -> Observed:
    """A set all of whose pods take TLS, and that is to enforce it."""
    world = settled(tls=PERMISSIVE)
    change(world, ENFORCING)
    return world.observe_now()


def test_sets_that_share_the_controllers_keep_the_set_from_it_and_are_named() -> None:
    """Their brokers would be kept out."""
    observed = ready_to_connect()
    assert next_step(observed).stage is TlsStage.CONNECTING

    shared = replace(observed, shared_by=("invoices",))

    assert next_step(shared).stage is TlsStage.ACCEPTING
    decided = plan(shared, wanted_of_model)
    assert condition(dict(decided.status), "TlsRefused") == ("True", "Unsafe")
    (told,) = (c for c in decided.status["conditions"] if c["type"] == "TlsRefused")
    assert "invoices" in told["message"]
    assert "controllers of its own, or use mode: permissive" in told["message"]


def test_a_set_that_comes_to_share_the_controllers_stops_the_way_where_it_is() -> None:
    """Plain requests of its pods are still taken then."""
    world = settled(tls=PERMISSIVE)
    change(world, ENFORCING)
    connecting = {
        name: {
            "metadata": {
                "labels": {"app.kubernetes.io/component": "broker"},
                "annotations": {"brokerset.io/tls": "connecting"},
            }
        }
        for name in ("orders-0-0", "orders-0-1")
    }
    observed = replace(world.observe_now(), stateful_sets={}, pods=connecting)
    assert next_step(observed).stage is TlsStage.ENFORCING

    step = next_step(replace(observed, shared_by=("invoices",)))

    assert step.stage is TlsStage.CONNECTING
    assert "invoices" in step.refused


def test_authorities_that_cannot_be_read_keep_the_set_from_it() -> None:
    """Pods that mount them would not start, and the operator would see none of them."""
    problem = "ConfigMap orders-authorities (spec.tls.trustConfigMap) is not there: make it"

    for observed in (ready_to_connect(), _from_plain()):
        step = next_step(replace(observed, tls_trust_problem=problem))

        assert step.refused == problem
        assert step.stage == next_step(observed).stage - 1


def _from_plain() -> Observed:
    world = settled()
    change(world, ENFORCING)
    return world.observe_now()


def test_shared_controllers_wait_until_pods_connect_without_tls() -> None:
    """These would be asked by TLS, and show another name."""
    world = settled(tls=ENFORCING)
    change(world, PERMISSIVE, controllers={"ref": {"name": "others"}})

    decided = decide(world.observe_now())

    (ready,) = (c for c in decided.status["conditions"] if c["type"] == "Ready")
    assert ready["reason"] == "InvalidSpec"
    assert "spec.controllers.ref" in ready["message"]


def test_what_pods_need_cannot_be_taken_out_of_the_manifest_before_they_are_back() -> None:
    """The way back needs certificate and authorities, too; the manifest is refused and nothing is done."""
    world = settled(tls=ENFORCING)
    change(world, {})

    decided = decide(world.observe_now())

    (ready,) = (c for c in decided.status["conditions"] if c["type"] == "Ready")
    assert ready["reason"] == "InvalidSpec"
    assert "put both back with mode: permissive" in ready["message"]
    assert all(isinstance(action, EmitEvent) for action in decided.actions)


def test_whose_clients_are_asked_cannot_forget_by_whom_before_nobody_is() -> None:
    """The way back needs their authorities, and the operator knows by it that it has to show itself."""
    world = settled(tls=REQUIRED)
    change(world, OWN)

    decided = decide(world.observe_now())

    (ready,) = (c for c in decided.status["conditions"] if c["type"] == "Ready")
    assert ready["reason"] == "InvalidSpec"
    assert "spec.tls.clients" in ready["message"]
    assert "put it back with mode: none" in ready["message"]
    assert all(isinstance(action, EmitEvent) for action in decided.actions)

    change(world, NOT_ASKED)
    assert carried_on(world)[-1] == {TlsStage.ENFORCING}
    change(world, OWN)
    assert carried_on(world) == [{TlsStage.ENFORCING}], "nothing is left to be done"


def test_the_status_says_whether_clients_are_asked() -> None:
    """Next to where the certificate is from."""
    for tls, said in ((OWN, None), (NOT_ASKED, None), (OPTIONAL, "optional"), (REQUIRED, "require")):
        decided = decide(settled(tls=tls).observe_now())
        assert decided.status["tls"].get("clients") == said


def test_a_pod_that_is_missing_is_waited_for() -> None:
    """It may be made by a template of before."""
    world = settled(tls=PERMISSIVE)
    change(world, ENFORCING)
    observed = world.observe_now()
    gone = dict(observed.pods)
    gone.pop("orders-0-1")

    step = next_step(replace(observed, pods=gone))

    assert step.stage is TlsStage.ACCEPTING
    assert "orders-0-1" in step.waits_for


def test_a_job_uses_tls_before_its_set_refuses_plain() -> None:
    """On the way to `enforcing` from the stage on in which all pods take it, so that no run is in the way."""
    world = settled(tls=PERMISSIVE)
    assert stages(world)[0] is TlsStage.ACCEPTING
    observed = world.observe_now()
    assert observed.manifest is not None
    assert not jobs_use_tls(observed.manifest, observed.pods), "as it was before: clients need not trust it"

    change(world, ENFORCING)

    observed = world.observe_now()
    assert observed.manifest is not None
    assert jobs_use_tls(observed.manifest, observed.pods)
    assert jobs_use_tls(observed.manifest, {}), "a new set takes nothing else"
