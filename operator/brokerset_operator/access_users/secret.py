"""The Secret of a user that the operator makes: access key, password, and files for Java's tools and clients.

Java reads `tools.yml` as `conf/tools.yml` of `mqadmin`, and `rmq-acl.properties` where the property
`rocketmq.client.keyFile` names it. Source: RocketMQ's `AclUtils`, `SessionCredentials`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from brokerset_acl.users import PASSWORD_SIZE_MAX
from brokerset_operator.model import names
from brokerset_operator.plan.objects import items, part
from brokerset_spec.manifest_parts import API_VERSION
from brokerset_spec.user_manifest import CREDENTIALS_SUFFIX, KIND

ACCESS_KEY: Final = "accessKey"
SECRET_KEY: Final = "secretKey"
TOOLS: Final = "tools.yml"
PROPERTIES: Final = "rmq-acl.properties"
"""Entries."""

USER_LABEL: Final = f"{names.DOMAIN}/user"
"""Label of the Secret: the object that it belongs to, where that is short enough."""

LABEL_SIZE_MAX: Final = 63


def secret_name(name: str) -> str:
    """Name of the Secret of the User `name`."""
    return f"{name}{CREDENTIALS_SUFFIX}"


def made_secret(live: Mapping[str, Any], username: str, password: str) -> dict[str, Any]:
    """The Secret of a User, which goes with it."""
    metadata = live["metadata"]
    name = str(metadata["name"])
    quoted = {ACCESS_KEY: json.dumps(username), SECRET_KEY: json.dumps(password)}
    entries = {
        ACCESS_KEY: username,
        SECRET_KEY: password,
        TOOLS: "".join(f"{key}: {value}\n" for key, value in quoted.items()),
        PROPERTIES: f"AccessKey={username}\nSecretKey={password}\n",
    }
    labels = {"app.kubernetes.io/managed-by": names.FIELD_MANAGER}
    if len(name) <= LABEL_SIZE_MAX:
        labels[USER_LABEL] = name
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": secret_name(name),
            "namespace": metadata["namespace"],
            "labels": labels,
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "name": name,
                    "uid": metadata["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "type": "Opaque",
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in entries.items()},
    }


def is_owned_by(secret: Mapping[str, Any], uid: str) -> bool:
    """Whether the operator has made a Secret for the User with this UID."""
    return any(str(owner.get("uid")) == uid for owner in items(part(secret, "metadata"), "ownerReferences"))


def password_problem(password: str | None) -> str | None:
    """What is wrong with an entry as a password; None if nothing is."""
    if password is None:
        return "is not there, or is no text"
    if not password.strip():
        return "is blank"
    if password.splitlines() != [password]:
        return "has more than one line, or ends with a line break"
    if len(password) > PASSWORD_SIZE_MAX:
        return f"has more than {PASSWORD_SIZE_MAX} characters"
    return None
