"""As whom the operator signs what it asks the pods of a set: as the administrator in the set's own Secret.

The right to read Secrets is one that whoever installs the operator gives it, or not (`secrets.access` of the
chart). Nothing of a Secret is logged, remembered, or written anywhere but where the kind `User` says so.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from brokerset_acl.signatures import Credentials, Sign
from brokerset_kube import kinds
from brokerset_kube.client import KubeClient
from brokerset_kube.errors import Forbidden, NotFound
from brokerset_operator.model.password_rotation import signing_secret
from brokerset_operator.plan.objects import part, text
from brokerset_operator.resources.access_variables import FIRST_USER, INNER_CREDENTIALS
from brokerset_spec.access_settings import credentials_problems, first_user_of, inner_credentials_of

RIGHT_ADVICE: Final = "install the chart with secrets.access=true, or give the operator the right otherwise"


@dataclass(frozen=True, slots=True)
class SetSigning:
    """What a set's Secret is good for."""

    sign: Sign | None = field(default=None, repr=False)
    """For all requests to its pods; None without a Secret, or if that is wrong."""

    users: frozenset[str] = frozenset()
    """Names that the Secret has; nobody else may make users of them."""

    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Those of the manifest's Secret, by name: first the one that members sign with, then the
    administrator's. Empty if it is wrong."""

    problem: str | None = None
    """What is wrong with the Secret, and what to do."""


def secret_of(broker_set: Mapping[str, Any]) -> str | None:
    """The Secret with the users of a BrokerSet; its manifest may be invalid."""
    return text(part(part(broker_set, "spec"), "acl").get("secretName"))


async def signing_of(
    client: KubeClient, broker_set: Mapping[str, Any], pods: Iterable[Mapping[str, Any]] = ()
) -> SetSigning:
    """Read a BrokerSet's Secret, if it names one. Raises a `KubeError` if the API server does not tell.

    Of `pods`, which are asked, some may have another Secret with the same users: it signs with that one, and
    if that is not there any more, with the manifest's.
    """
    name = secret_of(broker_set)
    if name is None:
        return SetSigning()
    namespace = broker_set["metadata"]["namespace"]
    mine = await _read(client, name, namespace)
    of_pods = signing_secret(name, [part(pod, "metadata") for pod in pods])
    if of_pods is None or of_pods == name:
        return mine
    theirs = await _read(client, of_pods, namespace)
    problem = mine.problem
    if problem is None and theirs.users and theirs.users != mine.users:
        has, had = ", ".join(sorted(mine.users)), ", ".join(sorted(theirs.users))
        problem = (
            f"Secret {name} (spec.acl.secretName) has the users {has}, and pods have {had}: name a Secret"
            " with the same names and other passwords"
        )
    return replace(mine, sign=theirs.sign or mine.sign, users=mine.users | theirs.users, problem=problem)


async def _read(client: KubeClient, name: str, namespace: str) -> SetSigning:
    where = f"Secret {name} (spec.acl.secretName)"
    try:
        found = await client.get(kinds.SECRET, name, namespace)
    except NotFound:
        entries = f"{FIRST_USER} and {INNER_CREDENTIALS}"
        return SetSigning(problem=f"{where} is not there: make it, immutable, with {entries}")
    except Forbidden as error:
        return SetSigning(problem=f"{where} may not be read: {error.message}; {RIGHT_ADVICE}")
    return signing_by(found, where)


def signing_by(secret: Mapping[str, Any], where: str) -> SetSigning:
    """Sign as the administrator that a Secret names."""
    first_text, inner_text = entry_of(secret, FIRST_USER), entry_of(secret, INNER_CREDENTIALS)
    first, inner = first_user_of(first_text or ""), inner_credentials_of(inner_text or "")
    missing = [name for name, found in ((FIRST_USER, first), (INNER_CREDENTIALS, inner)) if found is None]
    if missing:
        shapes = '{"username":"…","password":"…"} and {"accessKey":"…","secretKey":"…"}'
        return SetSigning(problem=f"{where} has no entry {missing[0]} that can be read; the two are {shapes}")
    assert first is not None, "it is not missing"
    assert inner is not None, "it is not missing"
    users = frozenset((first[0], inner[0]))
    problems = credentials_problems(first_text or "", inner_text or "")
    if problems:
        return SetSigning(users=users, problem=f"{where} has {problems[0]}")
    sign, passwords = Credentials(*first).sign, {inner[0]: inner[1], first[0]: first[1]}
    if secret.get("immutable") is not True:
        patch = "'{\"immutable\":true}'"
        advice = f"kubectl patch secret {secret['metadata']['name']} -p {patch}"
        return SetSigning(
            sign,
            users,
            passwords,
            f"{where} may be changed under pods that have read it: make it immutable: {advice}",
        )
    return SetSigning(sign, users, passwords)


def entry_of(secret: Mapping[str, Any], name: str) -> str | None:
    """An entry of a Secret as text; None if it is not there, or no text."""
    encoded = part(secret, "data").get(name)
    if not isinstance(encoded, str):
        return None
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
