"""Objects of sets whose groups elect their leaders by a DLedger."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operator.resources.sets import build, container_of, hash_of, template

from brokerset_operator.resources.settings_files import read_file
from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.namesrv_settings import NamesrvSettings
from brokerset_spec.setting_fields import setting_fields

DLEDGER: dict[str, Any] = {"replication": {"mode": "dledger"}}


def settings_of(objects: Any, name: str = "orders-0") -> dict[str, str]:
    return read_file(objects["ConfigMap", name])


def test_brokers_start_with_settings_that_a_member_takes() -> None:
    """Which member it is comes by environment, from the number of the pod."""
    objects = build(DLEDGER)

    said = settings_of(objects)
    environment = {each["name"]: each for each in container_of(objects, "orders-0")["env"]}

    assert environment["BROKERSET_SET_dLegerSelfId"]["value"] == "n$(POD_INDEX)"
    known = setting_fields(BrokerSettings)
    values: dict[str, Any] = {known[name].name: known[name].parse(text) for name, text in said.items()}
    settings = BrokerSettings(**values, broker_ip1="10.0.0.1", dledger_self_id="n2")
    assert settings.problems() == []
    assert settings.enable_dledger_commit_log
    assert settings.dledger_brokerset_only
    assert not settings.enable_controller_mode
    assert settings.dledger_addresses() == {
        f"n{number}": f"orders-0-{number}.orders-0.shop.svc:40911" for number in range(3)
    }


def test_members_stay_those_that_the_group_began_with_whatever_the_manifest_says() -> None:
    began = build(DLEDGER)
    config_maps = {"orders-0": began["ConfigMap", "orders-0"]}

    later = build({**DLEDGER, "replicas": 5}, config_maps=config_maps, shape={"groups": {0: 3}})

    assert settings_of(later)["dLegerPeers"] == settings_of(began)["dLegerPeers"]
    assert hash_of(later, "orders-0") == hash_of(began, "orders-0")


def test_groups_are_dledgers_of_their_own_with_the_names_of_the_manifest() -> None:
    objects = build({**DLEDGER, "groups": 2, "brokerNames": ["a", "b"]})

    assert [settings_of(objects, name)["dLegerGroup"] for name in ("orders-0", "orders-1")] == ["a", "b"]
    peers = [settings_of(objects, name)["dLegerPeers"] for name in ("orders-0", "orders-1")]
    assert not set(peers[0].split(";")) & set(peers[1].split(";"))


def test_members_reach_each_others_dledger_port_by_their_names() -> None:
    """Who else does: `test_network_policies`."""
    objects = build(DLEDGER)

    assert 40911 in [port["port"] for port in objects["Service", "orders-0"]["spec"]["ports"]]


def test_name_servers_take_the_place_of_controllers_and_kubernetes_replaces_them() -> None:
    objects = build(DLEDGER)

    found = objects["StatefulSet", "orders-namesrv"]["spec"]
    assert not any("controller" in name for _, name in objects)
    assert (found["replicas"], found["serviceName"]) == (2, "orders-namesrv-pods")
    assert found["updateStrategy"] == {"type": "RollingUpdate"}
    assert container_of(objects, "orders-namesrv")["command"][2] == "brokerset_namesrv"
    labels = template(objects, "orders-namesrv")["metadata"]["labels"]
    for service in ("orders-namesrv", "orders-namesrv-pods"):
        assert objects["Service", service]["spec"]["selector"].items() <= labels.items()
    assert settings_of(objects)["namesrvAddr"] == "orders-namesrv-pods.shop.svc:9876"


def test_controllers_that_are_asked_for_serve_names_in_place_of_them() -> None:
    objects = build({**DLEDGER, "controllers": {"replicas": 3}})

    assert ("StatefulSet", "orders-namesrv") not in objects
    assert objects["StatefulSet", "orders-controller"]["spec"]["replicas"] == 3
    assert settings_of(objects)["namesrvAddr"] == "orders-controller.shop.svc:9876"
    assert "controllerAddr" not in settings_of(objects)


@pytest.mark.parametrize("spec", [DLEDGER, {}], ids=["dledger", "controller"])
def test_clients_outside_are_led_to_the_pods_that_serve_names(spec: dict[str, Any]) -> None:
    objects = build({**spec, "external": {"type": "NodePort"}})

    selector = objects["Service", "orders-namesrv-external"]["spec"]["selector"]
    name = "orders-namesrv" if spec else "orders-controller"
    assert selector.items() <= template(objects, name)["metadata"]["labels"].items()
    assert 9879 in [port["containerPort"] for port in container_of(objects, name)["ports"]]


def test_brokers_and_name_servers_check_with_the_users_of_the_set() -> None:
    """Name servers know these two alone; brokers have the other users in the log of their group."""
    objects = build({**DLEDGER, "acl": {"secretName": "orders-access"}})

    def access(name: str) -> set[str]:
        prefix = "BROKERSET_SET_"
        environment = {each["name"].removeprefix(prefix) for each in container_of(objects, name)["env"]}
        return {each for each in environment if "uth" in each}

    users = {"initAuthenticationUser", "innerClientAuthenticationCredentials", "authenticationEnabled"}
    assert access("orders-namesrv") == users <= setting_fields(NamesrvSettings).keys()
    assert access("orders-0") == {*users, "authorizationEnabled"}
