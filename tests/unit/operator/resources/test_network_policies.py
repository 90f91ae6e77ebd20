"""Who may connect to which port of a set's pods: each cell of the table in docs/security.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from tests.unit.operator.resources.sets import OPERATOR_PODS, Objects, build, template

from brokerset_operator.store_jobs import labels as job_labels
from brokerset_rig.network_policies import Outside, Pod, allowed

PAGE: Final = Path(__file__).parents[4] / "docs" / "security.md"

LISTS: Final = {"`clients`": "clients", "`orderedClients`": "orderedClients", "`http`": "http"}
BY_DEFAULT: Final = {"yes": True, "no": False, "`clients`": True, "`orderedClients`": False, "`http`": True}
"""Whether a cell lets in where the manifest has no lists."""

SOMEBODY_ELSE: Final = [{"ipBlock": {"cidr": "192.0.2.0/24"}}]

APPLICATION: Final = Pod("shop", {"app": "checkout"})


def of_set(name: str, component: str, namespace: str = "shop") -> Pod:
    """A pod of a set."""
    return Pod(namespace, {"brokerset.io/set": name, "app.kubernetes.io/component": component})


SOURCES: Final[Mapping[str, tuple[Pod | Outside, ...]]] = {
    "controllers of the set": (of_set("orders", "controller"),),
    "brokers of the set": (of_set("orders", "broker"),),
    "pods of other sets of the namespace": (of_set("joined", "broker"), of_set("joined", "controller")),
    "jobs on store files of the namespace": (
        Pod("shop", job_labels.labels(job_labels.EXPORT, "lake", run=1, step=job_labels.LAKE)),
    ),
    "the operator": (Pod(OPERATOR_PODS.namespace, {**OPERATOR_PODS.labels, "pod-template-hash": "5d4"}),),
    "other pods": (
        APPLICATION,
        Pod("elsewhere", {"app": "checkout"}),
        of_set("orders", "controller", "elsewhere"),
        of_set("orders", "broker", "elsewhere"),
        Pod("elsewhere", OPERATOR_PODS.labels),
        Pod(OPERATOR_PODS.namespace, {"app": "checkout"}),
    ),
    "outside the cluster": (Outside("203.0.113.7"), Outside("2001:db8::7")),
}
"""Who connects, for each row of the table."""


def table() -> dict[str, dict[int, str]]:
    """Rows of the page's table by who connects, and in them cells by port."""
    block = PAGE.read_text().split("\n### On Kubernetes\n")[1].split("\n#")[0]
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*$", block, re.M)
    ]
    return {
        row[0]: {
            int(port): cell
            for ports, cell in zip(head[1:], row[1:], strict=True)
            for port in ports.split(",")
        }
        for row in rows
    }


TABLE: Final = table()


def sets(lists: Mapping[str, Any]) -> Iterator[Objects]:
    """A set with controllers, one with name servers by themselves; both have clients outside."""
    for mode in ("controller", "dledger"):
        spec = {"replication": {"mode": mode}, "external": {"type": "NodePort"}, "networkPolicy": lists}
        yield build(spec)


def policies_of(objects: Objects) -> list[Mapping[str, Any]]:
    """Those of a set."""
    return [each for (kind, _), each in objects.items() if kind == "NetworkPolicy"]


def pod_of(objects: Objects, name: str) -> Pod:
    """One that a StatefulSet makes."""
    return Pod("shop", template(objects, name)["metadata"]["labels"])


def answers(lists: Mapping[str, Any], source: Pod | Outside) -> dict[int, set[bool]]:
    """What becomes of connections to every port of every pod of these sets."""
    found: dict[int, set[bool]] = {}
    for objects in sets(lists):
        policies = policies_of(objects)
        for (kind, name), each in objects.items():
            if kind != "StatefulSet":
                continue
            target = pod_of(objects, name)
            (container,) = each["spec"]["template"]["spec"]["containers"]
            for port in (one["containerPort"] for one in container["ports"]):
                found.setdefault(port, set()).add(allowed(source, target, port, policies))
    return found


def test_the_page_has_every_port_and_who_connects() -> None:
    """Also those of DLedger, and of name servers for clients outside."""
    assert list(TABLE) == list(SOURCES)
    for row in TABLE.values():
        assert row.keys() == answers({}, APPLICATION).keys()
        assert set(row.values()) <= BY_DEFAULT.keys()


@pytest.mark.parametrize("row", SOURCES)
def test_without_lists_a_port_is_open_to_whom_the_page_says(row: str) -> None:
    """`clients` and `http` are everybody then, `orderedClients` is nobody."""
    for source in SOURCES[row]:
        expected = {port: {BY_DEFAULT[cell]} for port, cell in TABLE[row].items()}
        assert answers({}, source) == expected, source


@pytest.mark.parametrize("row", SOURCES)
def test_lists_that_name_somebody_else_close_what_the_page_says(row: str) -> None:
    """What the set itself needs stays open."""
    lists = dict.fromkeys(LISTS.values(), SOMEBODY_ELSE)

    for source in SOURCES[row]:
        assert answers(lists, source) == {port: {cell == "yes"} for port, cell in TABLE[row].items()}, source


@pytest.mark.parametrize("named", LISTS)
@pytest.mark.parametrize("row", SOURCES)
def test_who_is_in_a_list_gets_its_ports_and_no_others(row: str, named: str) -> None:
    """A list never opens ports of members."""
    for source in SOURCES[row]:
        lists = {
            **dict.fromkeys(LISTS.values(), SOMEBODY_ELSE),
            LISTS[named]: [*SOMEBODY_ELSE, peer_of(source)],
        }
        expected = {port: {cell in ("yes", named)} for port, cell in TABLE[row].items()}
        assert answers(lists, source) == expected, source


def peer_of(source: Pod | Outside) -> dict[str, Any]:
    """An entry of a list that names exactly this one."""
    if isinstance(source, Outside):
        return {"ipBlock": {"cidr": f"{source.address}/{128 if ':' in source.address else 32}"}}
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": source.namespace}},
        "podSelector": {"matchLabels": dict(source.labels)},
    }


@pytest.mark.parametrize(
    ("given", "here", "elsewhere"),
    [([], False, False), ([{"podSelector": {}}], True, False), ([{"namespaceSelector": {}}], True, True)],
)
@pytest.mark.parametrize(
    ("name", "port", "pods"),
    [
        ("clients", 10911, "orders-0"),
        ("orderedClients", 9878, "orders-controller"),
        ("http", 8080, "orders-0"),
    ],
)
def test_an_empty_list_is_nobody_and_an_empty_selector_is_every_pod(
    name: str, port: int, pods: str, given: list[dict[str, Any]], here: bool, elsewhere: bool
) -> None:
    """As in Kubernetes' own policies, but for a list that is empty: there it would be everybody."""
    objects = build({"networkPolicy": {name: given}})

    policies, target = policies_of(objects), pod_of(objects, pods)
    assert allowed(APPLICATION, target, port, policies) is here
    assert allowed(Pod("elsewhere", {"app": "checkout"}), target, port, policies) is elsewhere


def test_an_operator_that_nobody_knows_by_its_pods_reaches_controllers_all_the_same() -> None:
    """It runs outside the cluster, or was started without `podLabels`: only port 9878 is open then."""
    objects = build(operator_pods=None)

    policies = [each for (kind, _), each in objects.items() if kind == "NetworkPolicy"]
    target = Pod(
        "shop", objects["StatefulSet", "orders-controller"]["spec"]["template"]["metadata"]["labels"]
    )
    assert allowed(Outside("203.0.113.7"), target, 9878, policies)
    assert not allowed(Outside("203.0.113.7"), target, 9877, policies)


def test_a_pod_that_no_policy_selects_takes_everything() -> None:
    """The judge of these tests knows that policies close nothing elsewhere."""
    policies = policies_of(build())

    assert allowed(APPLICATION, Pod("shop", {"app": "x"}), 9877, policies)
    assert allowed(APPLICATION, Pod("elsewhere", {"brokerset.io/set": "orders"}), 9877, policies)
