"""Sets that share controllers on their ways to TLS and to checked requests: a small model of pods alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from tests.unit.operator.resources.sets import observe

from brokerset_operator.model import access_stages, names, tls_stages
from brokerset_operator.model.access_stages import (
    AUTHORIZES,
    CHECKS,
    POLICIES_LOG_FORMAT,
    SECRET_ANNOTATION,
    SIGNS,
    AccessStage,
)
from brokerset_operator.model.observed import Controllers, Observed
from brokerset_operator.model.peers import PeerSet
from brokerset_operator.model.staging import Ladder
from brokerset_operator.model.tls_stages import TlsStage
from brokerset_operator.plan.deciding import plan
from brokerset_protocol.bodies.controllers import ControllerStatus

SEEDS: Final = 30
STEPS: Final = 250
SETTLING_STEPS: Final = 600

TLS: Final = {"secretName": "tls", "trustConfigMap": "authorities"}
TLS_MODES: Final[tuple[dict[str, str], ...]] = (
    {},
    {**TLS, "mode": "permissive"},
    {**TLS, "mode": "enforcing"},
)
ACL_MODES: Final[tuple[dict[str, str], ...]] = (
    {},
    {"secretName": "access", "mode": "permissive"},
    {"secretName": "access"},
)

ANSWER: Final = ControllerStatus(0, "follower", 1, 0, False, 1, 1, 1, 0, (), log_format=POLICIES_LOG_FORMAT)


@dataclass(slots=True)
class SetModel:
    """One set: what its templates and its pods have as annotations; each component has one template."""

    name: str
    components: Mapping[str, int]
    ref: str | None = None
    section: dict[str, Any] = field(default_factory=dict)
    templates: dict[str, dict[str, str]] = field(default_factory=dict)
    pods: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class Family:
    """`core` has the controllers; the others use them. One section of the manifests changes."""

    rng: random.Random
    section: str
    sets: dict[str, SetModel] = field(
        default_factory=lambda: {
            "core": SetModel("core", {"controller": 3, "broker": 2}),
            "bills": SetModel("bills", {"broker": 2}, "core"),
            "mails": SetModel("mails", {"broker": 1}, "core"),
        }
    )

    def observed(self, one: SetModel, *, alone: bool = False) -> Observed:
        """What the operator sees when it reconciles the set."""
        spec: dict[str, Any] = {"replicas": 1, self.section: one.section}
        if one.ref is not None:
            spec["controllers"] = {"ref": {"name": one.ref}}
        metadata = {
            name: {"labels": {names.COMPONENT_LABEL: name.rpartition("-")[0]}, "annotations": found}
            for name, found in one.pods.items()
        }
        sets = {
            component: {
                "spec": {
                    "replicas": one.components[component],
                    "template": {
                        "metadata": {"labels": {names.COMPONENT_LABEL: component}, "annotations": found}
                    },
                }
            }
            for component, found in one.templates.items()
        }
        return observe(
            spec,
            name=one.name,
            pods={name: {"metadata": each} for name, each in metadata.items()},
            stateful_sets=sets,
            peers=() if alone else self.peers(one),
            controllers=Controllers(answers=dict.fromkeys(range(3), ANSWER)),
        )

    def peers(self, one: SetModel) -> tuple[PeerSet, ...]:
        """As `peers_view` reads them."""
        if one.ref is not None:
            return (self.peer(self.sets[one.ref], "controller"),)
        return tuple(self.peer(each, "broker") for each in self.sets.values() if each.ref == one.name)

    def peer(self, one: SetModel, component: str) -> PeerSet:
        seen = self.observed(one, alone=True)
        pods = [pod["metadata"] for name, pod in seen.pods.items() if name.startswith(component)]
        templates = [
            each["spec"]["template"]["metadata"]
            for name, each in seen.stateful_sets.items()
            if name == component
        ]
        return PeerSet(name=one.name, manifest=seen.manifest, pods=(*pods, *templates), authorities="x")

    def reconcile(self, one: SetModel) -> None:
        """Templates get their stage; the operator replaces at most one old pod, or makes one."""
        seen = self.observed(one)
        if _refused(seen):
            return
        for component in one.components:
            one.templates[component] = _annotations(seen, component, one.section)
        old = [n for n, each in one.pods.items() if each != one.templates[n.rpartition("-")[0]]]
        if old:
            del one.pods[self.rng.choice(old)]
        self.make_pods(one)

    def make_pods(self, one: SetModel) -> None:
        """The StatefulSet controller."""
        for component, found in one.templates.items():
            for number in range(one.components[component]):
                if self.rng.random() < 0.7:
                    one.pods.setdefault(f"{component}-{number}", dict(found))

    def step(self) -> None:
        """Whatever comes next: a reconcile, a pod that is evicted, or the StatefulSet controller."""
        one = self.rng.choice(list(self.sets.values()))
        happens = self.rng.random()
        if happens < 0.8:
            self.reconcile(one)
        elif happens < 0.9 and one.pods:
            del one.pods[self.rng.choice(list(one.pods))]
        else:
            self.make_pods(one)

    def pairs(self) -> list[tuple[dict[str, str], str, dict[str, str], str]]:
        """Who asks whom: annotations and component of both."""
        found = []
        for one in self.sets.values():
            for other in self.sets.values():
                for name, pod in one.pods.items():
                    for asked, server in other.pods.items():
                        client, serving = name.rpartition("-")[0], asked.rpartition("-")[0]
                        crosses = {client, serving} == {"controller", "broker"}
                        if (one is other or crosses) and pod is not server:
                            found.append((pod, client, server, serving))
        return found

    def is_settled(self, ladder: Ladder) -> bool:
        """Whether all pods are there, and are where their manifests want them."""
        for one in self.sets.values():
            manifest = self.observed(one).manifest
            assert manifest is not None
            last = ladder.wanted(manifest)
            for name, found in one.pods.items():
                if found.get(ladder.annotation, "") != ladder.written(name.rpartition("-")[0], last):
                    return False
            if len(one.pods) != sum(one.components.values()):
                return False
        return True


def _refused(seen: Observed) -> bool:
    return any(
        problem is not None
        for problem in (
            tls_stages.forgotten(seen),
            access_stages.changed_too_soon(seen),
            tls_stages.must_wait(seen),
            access_stages.must_wait(seen),
        )
    )


def _annotations(seen: Observed, component: str, section: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    stage = tls_stages.next_step(seen).stage
    if text := tls_stages.LADDER.written(component, stage):
        found[tls_stages.ANNOTATION] = text
    if done := access_stages.does(component, access_stages.next_step(seen).stage):
        found |= {access_stages.ANNOTATION: done, SECRET_ANNOTATION: str(section.get("secretName"))}
    return found


def check_tls(family: Family) -> None:
    """Whoever asks another pod by TLS is taken, and who asks it plain, too."""
    stages = {stage.name.lower(): stage for stage in TlsStage}
    for client, _, server, _ in family.pairs():
        asks = stages.get(client.get(tls_stages.ANNOTATION, ""), TlsStage.SERVING)
        takes = stages.get(server.get(tls_stages.ANNOTATION, ""), TlsStage.SERVING)
        by_tls = asks >= TlsStage.CONNECTING
        assert takes >= TlsStage.ACCEPTING if by_tls else takes < TlsStage.ENFORCING, (asks, takes)


def check_access(family: Family) -> None:
    """Whoever is checked by another pod signs, as a user that it knows; controllers go by policies when all
    brokers check."""
    for client, component, server, serving in family.pairs():
        done = server.get(access_stages.ANNOTATION)
        if done not in (CHECKS, AUTHORIZES) or component == serving == "controller":
            continue
        if done == AUTHORIZES:
            assert client.get(access_stages.ANNOTATION) == CHECKS, (component, client, serving)
        signs = (SIGNS, CHECKS) if component == "broker" else (CHECKS, AUTHORIZES)
        assert client.get(access_stages.ANNOTATION) in signs, (component, client, serving)
        assert client[SECRET_ANNOTATION] == server[SECRET_ANNOTATION]


WAYS: Final = {
    "tls": (TLS_MODES, check_tls, tls_stages.LADDER),
    "acl": (ACL_MODES, check_access, access_stages.LADDER),
}


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("section", WAYS)
def test_pods_of_sets_that_share_controllers_never_keep_each_other_out(section: str, seed: int) -> None:
    """Each manifest changes as it likes; when all want the same in the end, all get there."""
    modes, check, ladder = WAYS[section]
    family = Family(random.Random(seed), section)
    for number in range(STEPS):
        if number % 25 == 0:
            one = family.rng.choice(list(family.sets.values()))
            one.section = dict(family.rng.choice(modes))
        family.step()
        check(family)

    for one in family.sets.values():
        one.section = dict(modes[-1])
    for _ in range(SETTLING_STEPS):
        family.step()
        check(family)
        if family.is_settled(ladder):
            break
    else:
        raise AssertionError({one.name: (one.templates, one.pods) for one in family.sets.values()})
    for one in family.sets.values():
        one.section = dict(modes[1])
    for _ in range(SETTLING_STEPS):
        family.step()
        check(family)
        if family.is_settled(ladder):
            return
    raise AssertionError({one.name: (one.templates, one.pods) for one in family.sets.values()})


def far_ahead(section: str) -> Family:
    """`core` and `mails` are where they want to be; `bills` has no pods."""
    modes, _, ladder = WAYS[section]
    family = Family(random.Random(1), section)
    for one in family.sets.values():
        one.section = dict(modes[-1])
    while not family.is_settled(ladder):
        family.step()
    family.sets["bills"].pods.clear()
    family.sets["bills"].templates.clear()
    return family


@pytest.mark.parametrize(
    ("section", "wanted", "text"),
    [
        ("tls", {}, "spec.tls.mode: pods of BrokerSet core, which shares controllers"),
        ("acl", {}, "with the users of Secret access: name it here, too"),
        ("acl", {"secretName": "another"}, "with the users of Secret access: name it here, too"),
    ],
)
def test_a_new_set_that_controllers_would_not_let_in_is_not_made(
    section: str, wanted: dict[str, str], text: str
) -> None:
    """The manifest is refused with what to do, and nothing is done."""
    family = far_ahead(section)
    family.sets["bills"].section = dict(wanted)

    decided = plan(family.observed(family.sets["bills"]))

    (ready,) = (c for c in decided.status["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "False"
    assert text in ready["message"]
    assert all(type(action).__name__ == "EmitEvent" for action in decided.actions)


@pytest.mark.parametrize("is_new", [True, False], ids=["a new set", "a set that goes back"])
def test_controllers_go_by_no_policies_while_a_set_that_uses_them_checks_nobody(is_new: bool) -> None:
    """Its clients need not sign. The controllers go back by themselves, and nothing is refused."""
    family = far_ahead("acl")
    if not is_new:
        family = Family(random.Random(1), "acl")
        for one in family.sets.values():
            one.section = dict(ACL_MODES[-1])
        while not family.is_settled(access_stages.LADDER):
            family.step()
    bills = family.sets["bills"]
    bills.section = dict(ACL_MODES[1])
    for _ in range(SETTLING_STEPS):
        family.step()
        assert not any(access_stages.next_step(family.observed(one)).refused for one in family.sets.values())

    check_access(family)
    assert {each.get(access_stages.ANNOTATION) for each in bills.pods.values()} == {SIGNS}
    assert {each.get(access_stages.ANNOTATION) for each in family.sets["core"].pods.values()} == {CHECKS}

    bills.section = dict(ACL_MODES[-1])
    for _ in range(SETTLING_STEPS):
        family.step()
        check_access(family)
        if family.is_settled(access_stages.LADDER):
            return
    raise AssertionError({one.name: one.pods for one in family.sets.values()})


def test_a_set_that_goes_back_first_is_kept_until_the_controllers_do() -> None:
    """They refuse plain connections; the condition says what to do."""
    family = far_ahead("tls")
    mails = family.sets["mails"]
    mails.section = dict(TLS_MODES[1])
    for _ in range(20):
        family.reconcile(mails)

    step = tls_stages.next_step(family.observed(mails))

    assert step.stage is TlsStage.CONNECTING
    assert "BrokerSet core" in step.refused
    assert "mode: permissive first" in step.refused


def test_authorities_of_another_set_that_are_not_known_keep_pods_from_connecting() -> None:
    """They would refuse its pods."""
    family = Family(random.Random(1), "tls")
    for one in family.sets.values():
        one.section = dict(TLS_MODES[1])
    while not family.is_settled(tls_stages.LADDER):
        family.step()
    core = family.sets["core"]
    for one in family.sets.values():
        one.section = dict(TLS_MODES[2])
    seen = family.observed(core)
    assert tls_stages.next_step(seen).stage is TlsStage.CONNECTING

    blind = replace(seen, peers=tuple(replace(each, trust_problem="no ConfigMap") for each in seen.peers))

    assert tls_stages.next_step(blind).stage is TlsStage.ACCEPTING
    assert "no ConfigMap" in tls_stages.next_step(blind).refused


@pytest.mark.parametrize("section", WAYS)
def test_a_set_that_went_back_while_the_controllers_went_on_comes_within_reach_again(section: str) -> None:
    """Each had observed the other one before that began its step. Nobody becomes more open for it."""
    _, check, ladder = WAYS[section]
    family = far_ahead(section)
    mails = family.sets["mails"]
    mails.section = {**mails.section, "mode": "permissive"}
    for each in (*mails.templates.values(), *mails.pods.values()):
        each.clear()
        if section == "tls":
            each[ladder.annotation] = ladder.written("broker", TlsStage.ACCEPTING)
    with pytest.raises(AssertionError):
        check(family)

    for _ in range(20):
        for one in (family.sets["core"], mails):
            family.reconcile(one)

    check(family)
    last = (
        TlsStage.ENFORCING if section == "tls" else AccessStage.ENFORCING
    )  # no policies: mails checks nobody
    core = {
        each[ladder.annotation] for name, each in family.sets["core"].pods.items() if "controller" in name
    }
    assert core == {ladder.written("controller", last)}


OWN: Final = {"authority": {}, "mode": "enforcing"}
ASKS: Final = {**OWN, "clients": {"mode": "require", "trustConfigMap": "clients"}}


def settled_in(stage: TlsStage, section: dict[str, Any], others: dict[str, Any]) -> Family:
    """The set with the controllers is in a stage, the others are `ENFORCING`."""
    family = Family(random.Random(1), "tls")
    for one in family.sets.values():
        reached = stage if one.ref is None else TlsStage.ENFORCING
        one.section = section if one.ref is None else others
        for component, count in one.components.items():
            found = {tls_stages.ANNOTATION: tls_stages.LADDER.written(component, reached)}
            one.templates[component] = dict(found)
            one.pods |= {f"{component}-{number}": dict(found) for number in range(count)}
    return family


def test_a_set_whose_controllers_others_use_asks_no_clients_for_certificates() -> None:
    """Brokers of the others are clients of its controllers, which know none of their certificates."""
    family = settled_in(TlsStage.ENFORCING, ASKS, OWN)

    step = tls_stages.next_step(family.observed(family.sets["core"]))

    assert step.stage is TlsStage.ENFORCING
    assert "BrokerSet bills, mails uses the controllers of this set" in step.refused
    assert tls_stages.next_step(family.observed(family.sets["core"], alone=True)).stage is TlsStage.ASKING


def test_a_set_is_not_made_whose_controllers_would_want_its_certificates() -> None:
    """And one that is there does not get to stages that it has no files for."""
    family = settled_in(TlsStage.REQUIRING, ASKS, OWN)
    bills = family.sets["bills"]
    assert tls_stages.next_step(family.observed(bills)).stage is TlsStage.ENFORCING

    bills.pods.clear()
    bills.templates.clear()

    problem = tls_stages.must_wait(family.observed(bills))
    assert problem is not None
    assert "tls.clients.mode: none first" in problem
