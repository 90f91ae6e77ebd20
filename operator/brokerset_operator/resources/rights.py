"""What the pods of a set may do at the API server: brokers may move their group's `-master` Service."""

from __future__ import annotations

from collections.abc import Iterable

from brokerset_operator.model import names
from brokerset_operator.resources.brokers import COMPONENT
from brokerset_operator.resources.set_facts import NewObject, SetFacts


def rights_objects(facts: SetFacts, groups: Iterable[int]) -> tuple[NewObject, ...]:
    """ServiceAccount, Role and RoleBinding of the set's brokers: get and patch the named slices.

    All groups of a set share them: they trust each other with everything else, too. Controllers have neither
    an account of their own nor a token.
    """
    name = names.service_account(facts.name)
    slices = [names.master_service(facts.name, index) for index in sorted(groups)]
    return (
        facts.an_object(
            "v1", "ServiceAccount", name, component=COMPONENT, automountServiceAccountToken=False
        ),
        facts.an_object(
            "rbac.authorization.k8s.io/v1",
            "Role",
            name,
            component=COMPONENT,
            rules=[
                {
                    "apiGroups": ["discovery.k8s.io"],
                    "resources": ["endpointslices"],
                    "resourceNames": slices,
                    "verbs": ["get", "patch"],
                }
            ]
            if slices  # a rule without names would be one about all slices
            else [],
        ),
        facts.an_object(
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            name,
            component=COMPONENT,
            roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            subjects=[{"kind": "ServiceAccount", "name": name, "namespace": facts.namespace}],
        ),
    )
