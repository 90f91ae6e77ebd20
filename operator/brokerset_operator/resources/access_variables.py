"""Users of a set's pods: what of its Secret they get, and whether they check (`spec.acl`).

All of it is in the pod's template and comes by environment: passwords are in no ConfigMap, the kubelet reads
the Secret, and a pod stays in its stage until it is replaced (`model/access_stages`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from brokerset_operator.model.access_stages import ANNOTATION, AUTHORIZES, CHECKS, SECRET_ANNOTATION, does
from brokerset_operator.resources.set_facts import NewObject, SetFacts

FIRST_USER: Final = "initAuthenticationUser"
INNER_CREDENTIALS: Final = "innerClientAuthenticationCredentials"
"""Entries of the Secret, and settings whose texts they have."""

AUTHENTICATION, AUTHORIZATION = "authenticationEnabled", "authorizationEnabled"

CHECKING: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    CHECKS: {"broker": (AUTHENTICATION, AUTHORIZATION), "controller": (AUTHENTICATION,)},
    AUTHORIZES: {"controller": (AUTHENTICATION, AUTHORIZATION)},
}
"""Settings of a component that let it do what it does. Name servers that run by themselves have policies of
nobody."""


def access_variables(facts: SetFacts, component: str) -> list[NewObject]:
    """Variables of a container."""
    done = does(component, facts.access_stage)
    if not done:
        return []
    found: list[NewObject] = [
        {
            "name": f"BROKERSET_SET_{entry}",
            "valueFrom": {"secretKeyRef": {"name": facts.access_secret, "key": entry}},
        }
        for entry in (FIRST_USER, INNER_CREDENTIALS)
    ]
    checks = CHECKING[done].get(component, (AUTHENTICATION,)) if done in CHECKING else ()
    return [*found, *({"name": f"BROKERSET_SET_{setting}", "value": "true"} for setting in checks)]


def access_annotations(facts: SetFacts, component: str) -> dict[str, str]:
    """Annotations of a pod: what it does, and with whose users."""
    done = does(component, facts.access_stage)
    return {ANNOTATION: done, SECRET_ANNOTATION: str(facts.access_secret)} if done else {}
