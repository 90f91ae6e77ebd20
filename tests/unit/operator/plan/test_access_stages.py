"""The way of a set to checked requests, and back, on a model of Kubernetes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brokerset_operator.model.access_stages import (
    AUTHORIZES,
    CHECKS,
    POLICIES_LOG_FORMAT,
    SECRET_ANNOTATION,
    SIGNS,
    AccessStage,
    does,
    next_step,
)
from brokerset_operator.model.observed import MemberPasswords, Observed
from brokerset_operator.model.password_rotation import (
    FORMER_LOG_FORMAT,
    changed_too_soon,
    signing_secret,
    template_secret,
)
from brokerset_operator.model.peers import PeerSet
from brokerset_operator.plan.deciding import plan
from brokerset_sim.kubernetes_model import Kubernetes, Pod
from brokerset_sim.kubernetes_wanted import wanted_of_model
from brokerset_sim.kubernetes_worlds import act, condition, decide, is_done, settled
from brokerset_spec.manifest import default_manifest

ENFORCING = {"secretName": "orders-access"}
PERMISSIVE = {**ENFORCING, "mode": "permissive"}
OTHER = {"secretName": "orders-access-2"}
DLEDGER: dict[str, Any] = {"replication": {"mode": "dledger"}}
SECONDS_MAX = 900


def component(pod: Pod) -> str:
    """What kind of process it has."""
    named = pod.keeper.rpartition("-")[2]
    return named if named in ("controller", "namesrv") else "broker"


def done(pod: Pod) -> str:
    """What the pod does about access."""
    return next((text for name, text in pod.access if name != SECRET_ANNOTATION), "")


def signs(pod: Pod) -> bool:
    """Whether others are asked with a signature: controllers that check nobody sign nothing."""
    return done(pod) in ((SIGNS, CHECKS) if component(pod) == "broker" else (CHECKS, AUTHORIZES))


def check(world: Kubernetes) -> None:
    """Whoever is checked by somebody signs, with the same users; controllers go by policies after brokers."""
    pods = list(world.pods.values())
    if any(done(pod) == AUTHORIZES for pod in pods):
        assert all(done(pod) in (CHECKS, AUTHORIZES) for pod in pods)
    for server in pods:
        for client in pods:
            if done(server) not in (CHECKS, AUTHORIZES) or client is server:
                continue
            if component(client) == "namesrv" or component(server) == component(client) == "controller":
                continue  # name servers ask nobody, and controllers talk by Raft
            assert signs(client), (server.name, client.name)
            assert dict(client.access)[SECRET_ANNOTATION] in world.accepted(server), (
                server.name,
                client.name,
            )
    metadata = [pod["metadata"] for pod in world.observe_now().pods.values()]
    signing = signing_secret(world.manifest.spec.acl.secret_name, metadata)
    assert all(signing in world.accepted(pod) for pod in pods if done(pod) in (CHECKS, AUTHORIZES))


def carried_on(world: Kubernetes) -> None:
    """Carry on until nothing is left to be done, with a check each second."""
    for _ in range(SECONDS_MAX):
        world.tick()
        act(world, decide(world.observe_now()))
        check(world)
        wanted = next_step(world.observe_now()).wanted
        if is_done(world) and all(done(pod) == does(component(pod), wanted) for pod in world.pods.values()):
            return
    raise AssertionError(f"not done after {SECONDS_MAX} s: {world.status}")


def found(world: Kubernetes) -> set[tuple[str, str]]:
    """What pods of each component do."""
    return {(component(pod), done(pod)) for pod in world.pods.values()}


@pytest.mark.parametrize(
    ("kind", "others", "enforced"),
    [
        ({}, "controller", AccessStage.AUTHORIZING),
        (DLEDGER, "namesrv", AccessStage.ENFORCING),
        ({**DLEDGER, "controllers": {"replicas": 3}}, "controller", AccessStage.ENFORCING),
    ],
)
@pytest.mark.parametrize(
    ("before", "after", "last"),
    [
        ({}, ENFORCING, AccessStage.AUTHORIZING),
        ({}, PERMISSIVE, AccessStage.SIGNING),
        (PERMISSIVE, ENFORCING, AccessStage.AUTHORIZING),
        (ENFORCING, PERMISSIVE, AccessStage.SIGNING),
        (PERMISSIVE, {}, AccessStage.OPEN),
        (PERMISSIVE, {**PERMISSIVE, "secretName": "orders-access-2"}, AccessStage.SIGNING),
        (PERMISSIVE, {"secretName": "orders-access-2"}, AccessStage.AUTHORIZING),
    ],
)
def test_no_pod_is_ever_asked_without_a_signature_by_one_that_it_checks(
    before: dict[str, Any],
    after: dict[str, Any],
    last: AccessStage,
    kind: dict[str, Any],
    others: str,
    enforced: AccessStage,
) -> None:
    """Not in any second of the way, in either direction, while the users become others, and in each mode."""
    last = min(last, enforced)
    world = settled(acl=before, **kind)
    check(world)

    world.apply_manifest(acl=after, **kind)
    carried_on(world)

    assert found(world) == {(each, does(each, last)) for each in (others, "broker")}
    assert {dict(pod.access).get(SECRET_ANNOTATION) for pod in world.pods.values() if done(pod)} <= {
        after.get("secretName")
    }


def test_who_thinks_better_of_it_on_the_way_gets_back_as_safely() -> None:
    """Whatever part of the way is behind it."""
    for seconds in range(5, 120, 23):
        world = settled(acl={})
        world.apply_manifest(acl=ENFORCING)
        for _ in range(seconds):
            world.tick()
            act(world, decide(world.observe_now()))
            check(world)

        world.apply_manifest(acl=PERMISSIVE)
        carried_on(world)

        assert found(world) == {("controller", ""), ("broker", SIGNS)}


def test_each_pod_is_replaced_twice() -> None:
    """Once less than there are stages: what does nothing new stays."""
    world = settled(acl={})
    before = {name: pod.uid for name, pod in world.pods.items()}
    uids: dict[str, set[str]] = {name: {uid} for name, uid in before.items()}
    world.apply_manifest(acl=ENFORCING)

    for _ in range(SECONDS_MAX):
        world.tick()
        act(world, decide(world.observe_now()))
        for name, pod in world.pods.items():
            uids[name].add(pod.uid)
        if is_done(world) and all(
            done(pod) == does(component(pod), AccessStage.AUTHORIZING) for pod in world.pods.values()
        ):
            break

    assert {name: len(each) - 1 for name, each in uids.items()} == dict.fromkeys(before, 2)


def test_controllers_of_an_older_version_are_given_no_policies() -> None:
    """They would end at a setting that they do not know; the condition says what to do."""
    world = settled(acl={})
    world.log_format = POLICIES_LOG_FORMAT - 1
    world.apply_manifest(acl=ENFORCING)
    for _ in range(SECONDS_MAX):
        world.tick()
        act(world, decide(world.observe_now()))
        check(world)
    step = next_step(world.observe_now())

    assert found(world) == {("controller", CHECKS), ("broker", CHECKS)}
    assert step.stage is AccessStage.ENFORCING
    assert "name a newer spec.image" in step.refused

    world.log_format = POLICIES_LOG_FORMAT
    carried_on(world)
    assert found(world) == {("controller", AUTHORIZES), ("broker", CHECKS)}


def before_policies() -> Observed:
    """Everything is checked, and the step to policies is the next one."""
    world = settled(acl={})
    world.log_format = POLICIES_LOG_FORMAT - 1
    world.apply_manifest(acl=ENFORCING)
    for _ in range(SECONDS_MAX):
        world.tick()
        act(world, decide(world.observe_now()))
    world.log_format = POLICIES_LOG_FORMAT
    seen = world.observe_now()
    assert next_step(seen).stage is AccessStage.AUTHORIZING
    return seen


def test_a_controller_that_does_not_answer_is_waited_for() -> None:
    """It may be of an older version."""
    seen = before_policies()
    answers = {number: each for number, each in seen.controllers.answers.items() if number != 1}

    step = next_step(replace(seen, controllers=replace(seen.controllers, answers=answers)))

    assert step.stage is AccessStage.ENFORCING
    assert step.waits_for == "orders-controller-1 does not answer"


def test_a_controller_that_is_to_get_another_image_is_waited_for() -> None:
    """What it says is not what the next one says."""
    seen = before_policies()
    old = {**seen.pods["orders-controller-1"], "spec": {"containers": [{"image": "example.com/older:1"}]}}

    step = next_step(replace(seen, pods={**seen.pods, "orders-controller-1": old}))

    assert step.stage is AccessStage.ENFORCING
    assert step.waits_for.startswith("orders-controller-1 does not have the image ")


def test_a_new_set_with_another_image_goes_by_policies_when_its_controllers_say_that_they_can() -> None:
    """Those of an older version would not start; the operator's own image has policies."""
    seen = settled(acl=ENFORCING).observe_now()
    new = replace(seen, stateful_sets={}, pods={})
    assert next_step(new).stage is AccessStage.AUTHORIZING
    assert new.manifest is not None

    spec = new.manifest.spec.model_copy(update={"image": "example.com/older:1"})
    other = new.manifest.model_copy(update={"spec": spec})

    assert next_step(replace(new, manifest=other)).stage is AccessStage.ENFORCING


def test_what_a_newer_operator_wrote_counts_as_the_last_stage() -> None:
    """An older operator takes templates back by single stages, as its own."""
    world = settled(acl=ENFORCING)
    for pod in world.pods.values():
        if component(pod) == "controller":
            pod.access = tuple((k, "surpassing" if v == AUTHORIZES else v) for k, v in pod.access)

    assert next_step(world.observe_now()).stage is AccessStage.AUTHORIZING


@pytest.mark.parametrize("kind", [DLEDGER, {**DLEDGER, "controllers": {"replicas": 3}}])
def test_other_users_wait_for_pods_that_check_nobody(kind: dict[str, Any]) -> None:
    """Where no controllers keep users, with other passwords nobody would be let in: the manifest is refused,
    and nothing changes."""
    world = settled(acl=ENFORCING, **kind)
    world.apply_manifest(acl=OTHER)

    decided = plan(world.observe_now(), wanted_of_model)

    assert condition(dict(decided.status), "Ready") == ("False", "InvalidSpec")
    assert "mode: permissive" in (changed_too_soon(world.observe_now()) or "")
    world.apply_manifest(acl={})
    assert changed_too_soon(world.observe_now()) is not None


def secrets(world: Kubernetes) -> set[str]:
    """Those that pods have."""
    return {dict(pod.access)[SECRET_ANNOTATION] for pod in world.pods.values()}


def test_other_passwords_are_accepted_by_all_before_a_pod_has_them_and_the_former_ones_end() -> None:
    """While everybody is checked; each pod is replaced once."""
    world = settled(acl=ENFORCING)
    uids: dict[str, set[str]] = {name: {pod.uid} for name, pod in world.pods.items()}
    world.apply_manifest(acl=OTHER)
    for _ in range(SECONDS_MAX):
        world.tick()
        act(world, decide(world.observe_now()))
        check(world)
        for name, pod in world.pods.items():
            uids[name].add(pod.uid)
        if is_done(world) and secrets(world) == {"orders-access-2"} and not world.stored_passwords:
            break

    assert secrets(world) == {"orders-access-2"}
    assert world.stored_passwords == ()
    assert {name: len(each) - 1 for name, each in uids.items()} == dict.fromkeys(uids, 1)
    assert found(world) == {("controller", AUTHORIZES), ("broker", CHECKS)}
    carried_on(world)
    assert "changedUsers" not in world.status["workflow"]


@pytest.mark.parametrize("seconds", range(1, 90, 17))
def test_who_thinks_better_of_other_passwords_gets_the_former_ones_back_as_safely(seconds: int) -> None:
    """And nothing of it is left."""
    world = settled(acl=ENFORCING)
    world.apply_manifest(acl=OTHER)
    for _ in range(seconds):
        world.tick()
        act(world, decide(world.observe_now()))
        check(world)

    world.apply_manifest(acl=ENFORCING)
    for _ in range(SECONDS_MAX):
        world.tick()
        act(world, decide(world.observe_now()))
        check(world)
        if is_done(world) and "changedUsers" not in world.status["workflow"]:
            break

    assert secrets(world) == {"orders-access"}
    assert world.stored_passwords == ()


def on_the_way_to_other_passwords() -> Kubernetes:
    """Pods have the users of either Secret."""
    world = settled(acl=ENFORCING)
    world.apply_manifest(acl=OTHER)
    for _ in range(SECONDS_MAX):
        world.tick()
        act(world, decide(world.observe_now()))
        if len(secrets(world)) > 1:
            return world
    raise AssertionError("no pod was replaced")


@pytest.mark.parametrize("acl", [{"secretName": "third"}, {**OTHER, "mode": "permissive"}, {}])
def test_on_the_way_to_other_passwords_nothing_else_is_begun(acl: dict[str, Any]) -> None:
    """A pod of the first Secret would not be let in with a third one's; the refusal says what to do."""
    world = on_the_way_to_other_passwords()
    world.apply_manifest(acl=acl)

    decided = plan(world.observe_now(), wanted_of_model)

    assert condition(dict(decided.status), "Ready") == ("False", "InvalidSpec")
    assert "Secret orders-access or orders-access-2" in (changed_too_soon(world.observe_now()) or "")


def test_a_third_secret_is_refused_as_soon_as_passwords_have_changed() -> None:
    """Also before a pod has the second one: servers keep one former password, and pods have the first."""
    world = settled(acl=ENFORCING)
    world.apply_manifest(acl=OTHER)
    for _ in range(SECONDS_MAX):
        world.tick()
        act(world, decide(world.observe_now()))
        if world.stored_passwords:
            break
    assert secrets(world) == {"orders-access"}

    world.apply_manifest(acl={"secretName": "third"})

    assert "name Secret orders-access or orders-access-2" in (changed_too_soon(world.observe_now()) or "")
    world.apply_manifest(acl=ENFORCING)
    assert changed_too_soon(world.observe_now()) is None


def test_who_checks_goes_on_checking_until_the_former_passwords_have_ended() -> None:
    """What the controllers have stored would count against a third Secret later."""
    world = on_the_way_to_other_passwords()
    world.tick()
    for _ in range(SECONDS_MAX):
        if len(secrets(world)) == 1:
            break
        act(world, decide(world.observe_now()))
        world.tick()
    assert secrets(world) == {"orders-access-2"}
    assert world.stored_passwords
    world.apply_manifest(acl={**OTHER, "mode": "permissive"})
    assert "until Progressing says Done" in (changed_too_soon(world.observe_now()) or "")

    world.apply_manifest(acl=OTHER)
    carried_on(world)
    world.apply_manifest(acl={**OTHER, "mode": "permissive"})
    assert changed_too_soon(world.observe_now()) is None


def test_other_passwords_are_not_begun_with_controllers_of_an_older_version() -> None:
    """They would refuse the former ones at once."""
    world = settled(acl=ENFORCING)
    world.log_format = FORMER_LOG_FORMAT - 1
    world.apply_manifest(acl=OTHER)

    assert "mode: permissive" in (changed_too_soon(world.observe_now()) or "")


def test_what_is_wrong_with_the_other_secret_is_said_and_pods_keep_theirs() -> None:
    """It has other users, or cannot be read."""
    world = settled(acl=ENFORCING)
    world.apply_manifest(acl=OTHER)
    observed = replace(world.observe_now(), passwords=MemberPasswords(problem="it has other users"))

    decided = plan(observed, wanted_of_model)

    assert condition(dict(decided.status), "AccessRefused") == ("True", "Unsafe")
    assert template_secret(observed) == "orders-access"
    assert not any(type(action).__name__ == "ChangePasswords" for action in decided.actions)


def on_its_way() -> Observed:
    """A set that has not begun."""
    world = settled(acl={})
    world.apply_manifest(acl=ENFORCING)
    return world.observe_now()


def test_what_cannot_be_safe_is_not_begun() -> None:
    """An operator that could not administer the set."""
    observed = on_its_way()
    assert next_step(observed).stage is AccessStage.SIGNING

    kept = replace(observed, access_problem="Secret orders-access may not be read")

    assert next_step(kept).stage is AccessStage.OPEN
    assert condition(dict(plan(kept, wanted_of_model).status), "AccessRefused") == ("True", "NoCredentials")


def test_brokers_of_another_set_that_sign_nothing_keep_controllers_from_checking_and_are_named() -> None:
    """They would not be let in any more; to sign is harmless, and done."""
    world = settled(acl=PERMISSIVE)
    world.apply_manifest(acl=ENFORCING)
    assert next_step(world.observe_now()).stage is AccessStage.ADMINISTRATION

    kept = replace(
        world.observe_now(), peers=(PeerSet(name="invoices", manifest=default_manifest("invoices")),)
    )

    assert next_step(kept).stage is AccessStage.SIGNING
    assert "BrokerSet invoices" in next_step(kept).refused
    assert condition(dict(plan(kept, wanted_of_model).status), "AccessRefused") == ("True", "Unsafe")


def test_a_new_set_waits_for_credentials_and_then_checks_from_its_first_pod_on() -> None:
    """It is never open, not even for a moment, and never one that nobody can administer."""
    world = settled(acl=ENFORCING)
    assert found(world) == {("controller", AUTHORIZES), ("broker", CHECKS)}
    new = replace(world.observe_now(), stateful_sets={}, pods={}, access_problem="it is not there")

    decided = plan(new, wanted_of_model)

    assert condition(dict(decided.status), "Ready") == ("False", "NoCredentials")
    assert decided.requeue_seconds <= 15
    assert all(type(action).__name__ == "EmitEvent" for action in decided.actions)
