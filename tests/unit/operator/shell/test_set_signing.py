"""What a set's Secret is good for, and what is wrong with it; and who reads which Secret."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from tests.unit.operator.resources.sets import build

from brokerset_operator.reconcile_queue import Key
from brokerset_operator.secret_index import SecretIndex
from brokerset_operator.set_signing import signing_by
from brokerset_protocol.commands import Command

GOOD = {
    "initAuthenticationUser": json.dumps({"username": "admin", "password": "first"}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": "broker", "secretKey": "second"}),
}


def secret(entries: dict[str, str], **more: Any) -> dict[str, Any]:
    data = {name: base64.b64encode(text.encode()).decode() for name, text in entries.items()}
    return {"metadata": {"name": "orders-access"}, "data": data, "immutable": True} | more


def test_the_operator_signs_as_the_administrator() -> None:
    """No password is in what is printed of it."""
    found = signing_by(secret(GOOD), "here")
    command = Command(1)
    assert found.sign is not None

    found.sign(command)

    assert command.ext["AccessKey"] == "admin"
    assert found.users == {"admin", "broker"}
    assert found.problem is None
    assert "first" not in repr(found)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (secret({}), "has no entry initAuthenticationUser"),
        (secret(GOOD | {"innerClientAuthenticationCredentials": "{}"}), "has no entry innerClient"),
        (secret({}, data={"initAuthenticationUser": "%"}), "has no entry initAuthenticationUser"),
        (
            secret(
                GOOD | {"innerClientAuthenticationCredentials": '{"accessKey":"admin","secretKey":"other"}'}
            ),
            "one user, two passwords",
        ),
        (secret(GOOD, immutable=None), "make it immutable: kubectl patch secret orders-access"),
    ],
)
def test_what_is_wrong_is_said_without_a_password(given: dict[str, Any], said: str) -> None:
    problem = signing_by(given, "Secret orders-access").problem

    assert problem is not None
    assert said in problem
    assert not any(password in problem for password in ("first", "second", "other"))


def test_pods_get_users_by_environment_and_no_config_map_has_them() -> None:
    """Of a new set: brokers and controllers check users and rights."""
    objects = build({"acl": {"secretName": "orders-access"}})
    checked = {
        "orders-controller": "authorizing",
        "orders-0": "checking",
    }

    for name, does in checked.items():
        template = objects["StatefulSet", name]["spec"]["template"]
        variables = {each["name"]: each for each in template["spec"]["containers"][0]["env"]}
        for entry in GOOD:
            reference = variables[f"BROKERSET_SET_{entry}"]["valueFrom"]["secretKeyRef"]
            assert reference == {"name": "orders-access", "key": entry}
        on = {
            each.removeprefix("BROKERSET_SET_")
            for each, found in variables.items()
            if found.get("value") == "true"
        }
        assert {"authenticationEnabled", "authorizationEnabled"} <= on
        assert template["metadata"]["annotations"]["brokerset.io/access"] == does
        assert "Authentication" not in json.dumps(objects["ConfigMap", name])


def test_who_reads_a_secret_is_known_until_it_reads_another_one() -> None:
    """Users read one of their own where they name none."""
    index, key = SecretIndex(), Key("User", "shop", "app")
    bset = Key("BrokerSet", "shop", "orders")
    index.saw(key, {"spec": {}})
    index.saw(bset, {"metadata": {}, "spec": {"acl": {"secretName": "given"}}})
    assert index.readers("shop", "app-credentials") == (key,)

    index.saw(key, {"spec": {"passwordSecret": {"name": "given"}}})

    assert index.readers("shop", "app-credentials") == ()
    assert index.readers("shop", "given") == (bset, key)
    assert index.readers("other", "given") == ()
    index.forget(key)
    index.forget(bset)
    assert index.readers("shop", "given") == ()
