"""What the operator and the brokers may do at the API server: what the chart says, and not more."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.rig import OPERATOR, RELEASE, SYSTEM, Cluster, CommandFailed, Object, run

Right = tuple[str, str, str, str]
"""API group, resource, name of the object (`` for all), verb."""

EVERYBODY = frozenset(
    {
        ("authorization.k8s.io", "selfsubjectaccessreviews", "", "create"),
        ("authorization.k8s.io", "selfsubjectrulesreviews", "", "create"),
        ("authentication.k8s.io", "selfsubjectreviews", "", "create"),
    }
)
"""What Kubernetes lets everybody do who has a name."""

FORBIDDEN = [
    ("get", "secrets"),
    ("list", "secrets"),
    ("create", "pods"),
    ("create", "pods/exec"),
    ("create", "pods/attach"),
    ("create", "pods/portforward"),
    ("create", "serviceaccounts/token"),
    ("delete", "brokersets.brokerset.io"),
    ("delete", "persistentvolumes"),
    ("delete", "namespaces"),
    ("create", "clusterroles.rbac.authorization.k8s.io"),
    ("impersonate", "users"),
    ("escalate", "roles.rbac.authorization.k8s.io"),
    ("bind", "roles.rbac.authorization.k8s.io"),
    ("patch", "nodes"),
    ("delete", "deployments.apps"),
]
"""What neither the operator nor a broker may do."""

FOR_JOBS = [
    ("create", "jobs.batch"),
    ("create", "persistentvolumeclaims"),
    ("get", "pods/log"),
]
"""What the operator may do because of jobs on store files, and a broker may not."""


def rights_of(rules: Iterable[Mapping[str, Any]]) -> set[Right]:
    """Rules, taken apart."""
    return {
        (group, resource, name, verb)
        for rule in rules
        for group in rule.get("apiGroups") or ()
        for resource in rule.get("resources") or ()
        for name in rule.get("resourceNames") or ("",)
        for verb in rule["verbs"]
    }


def account(namespace: str, name: str) -> str:
    """A service account as a user."""
    return f"system:serviceaccount:{namespace}:{name}"


def rights_at_server(cluster: Cluster, user: str, namespace: str) -> set[Right]:
    """What the API server says that a user may do in a namespace."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    groups = ["system:serviceaccounts", "system:authenticated"]
    text = cluster.kubectl(
        "create",
        "-f",
        "-",
        "-o",
        "json",
        "--validate=false",
        f"--as={user}",
        *(f"--as-group={group}" for group in groups),
        given=json.dumps(review),
    )
    status = json.loads(text)["status"]
    assert not status["incomplete"], status
    return rights_of(status["resourceRules"]) - EVERYBODY


def objects_of(text: str) -> list[Object]:
    """JSON objects that stand one behind the other."""
    found: list[Object] = []
    place, decoder = 0, json.JSONDecoder()
    while text[place:].strip():
        one, end = decoder.raw_decode(text[place:].lstrip())
        place = len(text) - len(text[place:].lstrip()) + end
        found += one["items"] if one["kind"] == "List" else [one]
    return found


def chart_rights(cluster: Cluster, *kinds: str) -> set[Right]:
    """The rules of the installed chart's roles of these kinds that are bound to the operator's account."""
    command = [cluster.helm_path, "get", "manifest", RELEASE, "--namespace", SYSTEM]
    text = run(command, env=cluster.env)
    shown = cluster.kubectl("create", "--dry-run=client", "-f", "-", "-o", "json", given=text)
    items = objects_of(shown)
    bound = {
        item["roleRef"]["name"]
        for item in items
        if item["kind"] in ("RoleBinding", "ClusterRoleBinding")
        and any(subject["name"] == OPERATOR for subject in item["subjects"])
    }
    rules = [
        rule
        for item in items
        if item["kind"] in kinds and item["metadata"]["name"] in bound
        for rule in item["rules"]
    ]
    return rights_of(rules)


def test_the_operator_has_the_rights_of_the_chart_alone(cluster: Cluster) -> None:
    """Everywhere those of its ClusterRole, and in its own namespace one Lease; nothing is granted by wildcard."""
    user = account(SYSTEM, OPERATOR)

    elsewhere = rights_at_server(cluster, user, "default")
    at_home = rights_at_server(cluster, user, SYSTEM)

    assert elsewhere == chart_rights(cluster, "ClusterRole")
    assert at_home == chart_rights(cluster, "ClusterRole", "Role")
    assert not [right for right in at_home if "*" in right]
    resources = {resource for _, resource, _, _ in at_home}
    assert not resources & {"secrets", "pods/exec", "pods/attach", "pods/portforward", "*"}


def test_brokers_may_move_their_masters_service_and_controllers_have_no_account(
    cluster: Cluster, namespace: str
) -> None:
    """A broker gets and patches one EndpointSlice by its name; a controller's pod has no token at all."""
    orders = Deployed(cluster, namespace)
    orders.create(replicas=1, controllers={"replicas": 1})
    broker = account(namespace, "orders-broker")

    assert rights_at_server(cluster, broker, namespace) == {
        ("discovery.k8s.io", "endpointslices", "orders-0-master", "get"),
        ("discovery.k8s.io", "endpointslices", "orders-0-master", "patch"),
    }
    assert rights_at_server(cluster, account(namespace, "default"), namespace) == set()
    controller = orders.pods("controller")["orders-controller-0"]["spec"]
    assert controller["automountServiceAccountToken"] is False
    mounts = [mount["mountPath"] for mount in controller["containers"][0]["volumeMounts"]]
    assert not [path for path in mounts if "serviceaccount" in path]


def may(cluster: Cluster, user: str, verb: str, resource: str, namespace: str = "default") -> bool:
    """What the API server answers to `kubectl auth can-i`."""
    kind, _, below = resource.partition("/")  # kubectl takes what is behind a slash for a name
    options = [f"--as={user}", f"--subresource={below}"]
    try:
        answer = cluster.kubectl("auth", "can-i", verb, kind, *options, namespace=namespace)
    except CommandFailed as error:
        answer = error.out
    assert answer.strip() in ("yes", "no"), answer
    return answer.strip() == "yes"


@pytest.mark.parametrize(("verb", "resource"), FORBIDDEN, ids=lambda value: str(value).replace("/", "-"))
def test_nobody_of_ours_may(cluster: Cluster, verb: str, resource: str) -> None:
    """The API server answers no, for the operator and for a broker's account."""
    for user in (account(SYSTEM, OPERATOR), account("default", "orders-broker")):
        assert not may(cluster, user, verb, resource)


@pytest.mark.parametrize(("verb", "resource"), FOR_JOBS, ids=lambda value: str(value).replace("/", "-"))
def test_the_operator_alone_may(cluster: Cluster, verb: str, resource: str) -> None:
    """The API server answers yes for the operator, and no for a broker's account."""
    assert may(cluster, account(SYSTEM, OPERATOR), verb, resource)
    assert not may(cluster, account("default", "orders-broker"), verb, resource)


def test_the_operators_namespace_refuses_pods_with_privileges(cluster: Cluster) -> None:
    """The restricted profile is enforced, and the operator runs under it."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "mighty"},
        "spec": {
            "containers": [{"name": "a", "image": cluster.image, "securityContext": {"privileged": True}}]
        },
    }

    with pytest.raises(CommandFailed) as refused:
        cluster.apply(pod, namespace=SYSTEM)

    assert "violates PodSecurity" in refused.value.err
    assert len(cluster.operator_pods()) == 2
