"""`groups: auto`: how many groups a machine gets, and that what was chosen is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_spec.group_count import choose_groups, groups_for
from brokerset_spec.manifest import ManifestError, read_manifest
from brokerset_spec.plan import LocalPlan
from brokerset_spec.set_memory import SetMemory

from .planning import NEW, manifest_of, plan_of


def groups_of(plan: LocalPlan) -> list[str]:
    return list(dict.fromkeys(process.group or "" for process in plan.brokers))


@pytest.mark.parametrize(
    ("cores", "replicas", "groups"),
    [(1, 1, 1), (1, 3, 1), (2, 1, 2), (2, 3, 1), (4, 3, 2), (16, 1, 16), (16, 2, 10), (16, 3, 8), (16, 9, 3)],
)
def test_a_core_is_for_a_master_and_half_a_core_for_each_slave(
    cores: int, replicas: int, groups: int
) -> None:
    assert groups_for(cores, replicas) == groups


def test_auto_takes_as_many_groups_as_the_machine_has_cores_for() -> None:
    plan = plan_of(manifest_of(groups="auto", replicas=1), cores=4)

    assert groups_of(plan) == ["orders-0", "orders-1", "orders-2", "orders-3"]
    assert plan.memory.auto_groups == 4
    assert not [note for note in plan.notes if "auto" in note]


@pytest.mark.parametrize(
    ("cores", "said"), [(8, "write `groups: 8` to have more"), (1, "none is taken away")]
)
def test_another_machine_keeps_the_number_that_was_chosen_and_says_so(cores: int, said: str) -> None:
    manifest = manifest_of(groups="auto", replicas=1)
    before = plan_of(manifest, cores=2)

    plan = plan_of(manifest, memory=SetMemory.from_json(before.memory.to_json()), cores=cores)

    assert groups_of(plan) == ["orders-0", "orders-1"]
    assert plan.notes[0].startswith("spec.groups: auto has chosen 2 for this folder")
    assert said in plan.notes[0]


def test_auto_keeps_all_groups_that_a_folder_has() -> None:
    before = plan_of(manifest_of(groups=3, replicas=1))

    plan = plan_of(manifest_of(groups="auto", replicas=1), memory=before.memory, cores=2)

    assert groups_of(plan) == ["orders-0", "orders-1", "orders-2"]


def test_auto_grows_a_folder_in_which_it_has_not_chosen_before() -> None:
    before = plan_of(manifest_of(replicas=1))

    plan = plan_of(manifest_of(groups="auto", replicas=1), memory=before.memory, cores=2)

    assert groups_of(plan) == ["orders-0", "orders-1"]


def test_a_number_that_is_written_later_is_kept_by_auto() -> None:
    auto = manifest_of(groups="auto", replicas=1)
    first = plan_of(auto, cores=2)
    more = plan_of(manifest_of(groups=4, replicas=1), memory=first.memory, cores=2)

    plan = plan_of(auto, memory=more.memory, cores=2)

    assert plan.memory.auto_groups == 4
    assert len(groups_of(plan)) == 4


def test_a_set_has_no_more_groups_than_are_allowed() -> None:
    assert choose_groups("orders", NEW, cores=1000, replicas=1, most=256).auto_groups == 256


def test_a_folder_of_an_earlier_release_has_never_chosen() -> None:
    value = replace(NEW, auto_groups=2).to_json()
    del value["autoGroups"]

    assert SetMemory.from_json(value).auto_groups == 0


def test_kubernetes_is_told_that_a_set_knows_no_cores() -> None:
    head = {"apiVersion": "brokerset.io/v1alpha1", "kind": "BrokerSet", "metadata": {"name": "orders"}}

    with pytest.raises(ManifestError, match=r"spec\.groups: auto counts the cores of one machine"):
        read_manifest({**head, "spec": {"groups": "auto"}})


@pytest.mark.parametrize("groups", [0, 257, "many", True])
def test_what_is_neither_a_number_nor_auto_is_one_problem(groups: object) -> None:
    head = {"apiVersion": "brokerset.io/v1alpha1", "kind": "BrokerSet", "metadata": {"name": "orders"}}

    with pytest.raises(ManifestError) as found:
        read_manifest({**head, "spec": {"groups": groups}})

    assert [problem.path for problem in found.value.problems] == ["spec.groups"]


def test_auto_and_names_are_a_contradiction() -> None:
    with pytest.raises(ManifestError, match="lists 2 names for auto groups"):
        manifest_of(groups="auto", brokerNames=["a", "b"])
