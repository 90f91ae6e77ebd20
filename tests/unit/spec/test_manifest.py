"""Manifests: defaults, every error at once, and no field that is silently ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.manifest import (
    OWN_SETTINGS,
    BrokerSet,
    ManifestError,
    default_manifest,
    read_manifest,
    read_manifest_text,
)
from brokerset_spec.setting_fields import setting_fields

USERS = {"secretName": "orders-access"}
HEAD = "apiVersion: brokerset.io/v1alpha1\nkind: BrokerSet\nmetadata: {name: orders}\n"


def _problems(text: str) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        read_manifest_text(text)
    return [str(problem) for problem in caught.value.problems]


def _with_spec(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "BrokerSet",
        "metadata": {"name": "orders"},
        "spec": spec,
    }


def test_everything_but_the_name_has_a_default() -> None:
    manifest = read_manifest_text(HEAD)

    assert manifest.spec.cluster_name == "DefaultCluster"
    assert manifest.broker_names == ("orders-0",)
    assert (manifest.spec.replicas, manifest.min_in_sync_replicas) == (3, 2)
    assert manifest.spec.controllers.replicas == 3


def test_the_default_set_has_one_group_of_three_brokers() -> None:
    assert default_manifest().broker_names == ("brokerset-0",)
    assert default_manifest().spec.replicas == 3


def test_every_field_of_the_design_is_read() -> None:
    manifest = read_manifest_text(
        HEAD
        + """
spec:
  clusterName: DefaultCluster
  groups: 2
  brokerNames: [broker-a, broker-b]
  replicas: 1
  replication: {mode: controller, acknowledge: allInSync, minInSyncReplicas: 1, uncleanElection: true}
  controllers: {replicas: 5}
  storage: {size: 20Gi, className: null, whenDeleted: Retain}
  config: {flushDiskType: SYNC_FLUSH, fileReservedTime: 72, autoCreateTopicEnable: false, deleteWhen: "04"}
  advertise: masterService
  update: {strategy: automatic}
  tls: {secretName: null}
  acl: {secretName: null}
  monitoring: {podMonitor: false, dashboards: true, rules: true}
  podTemplate: {}
status: {observedGeneration: 3}
"""
    )

    assert manifest.broker_names == ("broker-a", "broker-b")
    assert manifest.config_values() == {
        "flush_disk_type": "SYNC_FLUSH",
        "file_reserved_time": 72,
        "auto_create_topic_enable": False,
        "delete_when": "04",
    }


def test_all_errors_are_reported_at_once_each_with_path_reason_and_advice() -> None:
    """Errors of shape do not hide contradictions, wrong settings or fields that are not served."""
    found = _problems(
        """
kind: BrokerSets
metadata: {}
spec:
  groops: 2
  replicas: "3"
  replication: {mode: dleger, minInSyncReplicas: 4, uncleanElection: true}
  controllers: {replicas: 8}
  config: {flushDiskType: X, fileReservedTim: 2, listenPort: 1, deleteWhen: "30", traceOn: [1]}
  tls: {secretName: a}
  brokerNames: [a, a]
"""
    )

    assert found == [
        "apiVersion: is missing; add apiVersion: brokerset.io/v1alpha1",
        "kind: is not 'BrokerSet'; write exactly that",
        "metadata.name: is missing; add name: orders",
        "spec.replicas: is not a whole number; give a whole number",
        "spec.replication.mode: is not 'controller' or 'dledger'; use one of these",
        "spec.controllers.replicas: is more than 7; use 7 or less",
        "spec.config.traceOn: is not a text, a number, or true or false; "
        "give a text, a number, or true or false",
        "spec.groops: is not a field; did you mean groups?",
        "spec.brokerNames: a is listed twice; give each group a name of its own",
        "spec.replication.minInSyncReplicas: 4 can never be in sync with replicas: 3; use 1 to 3, "
        "or leave it out",
        "spec.config.flushDiskType: 'X': must be ASYNC_FLUSH or SYNC_FLUSH; correct the value",
        "spec.config.fileReservedTim: is not a setting; did you mean fileReservedTime?",
        "spec.config.listenPort: is set by brokerset itself; ports are chosen by brokerset; leave it out",
        "spec.config.deleteWhen: '30' is not an hour from 00 to 23; correct the value",
        "spec.tls.secretName: names a Secret, which only Kubernetes has; "
        "leave it out, and start the set with brokerset up --tls",
    ]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"acl": USERS, "config": {"authenticationEnabled": True}}, "spec.config.authenticationEnabled"),
        ({"monitoring": {"dashboards": False}}, "spec.monitoring.dashboards"),
    ],
)
def test_what_nothing_serves_yet_is_refused_by_name(spec: dict[str, Any], path: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read_manifest(_with_spec(spec))

    assert [problem.path for problem in caught.value.problems] == [path]


@pytest.mark.parametrize(
    ("spec", "of_all", "of_two", "of_one"),
    [
        ({"replicas": 1}, 1, 1, 1),
        ({"replicas": 2}, 1, 1, 1),
        ({"replicas": 3}, 2, 1, 1),
        ({"replicas": 5}, 2, 1, 1),
        ({"replicas": 3, "replication": {"minInSyncReplicas": 1}}, 1, 1, 1),
        ({"replicas": 3, "replication": {"minInSyncReplicas": 3}}, 3, 2, 1),
    ],
)
def test_fewest_in_sync_are_two_from_three_replicas_on_unless_the_manifest_says_otherwise(
    spec: dict[str, Any], of_all: int, of_two: int, of_one: int
) -> None:
    """And never more than there are."""
    manifest = read_manifest(_with_spec(spec))

    assert manifest.min_in_sync_replicas == of_all
    assert (manifest.min_in_sync_of(2), manifest.min_in_sync_of(1)) == (of_two, of_one)


@pytest.mark.parametrize("name", sorted(OWN_SETTINGS))
def test_settings_that_brokerset_chooses_itself_are_refused(name: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read_manifest(_with_spec({"config": {name: "1"}}))

    assert [problem.path for problem in caught.value.problems] == [f"spec.config.{name}"]


def test_every_setting_that_brokerset_chooses_itself_is_one() -> None:
    assert OWN_SETTINGS.keys() <= setting_fields(BrokerSettings).keys()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("fileReservedTime", "72", "is not a whole number, without quotes"),
        ("fileReservedTime", 7.5, "is not a whole number, without quotes"),
        ("fileReservedTime", True, "is not a whole number, without quotes"),
        ("traceOn", "true", "is not true or false, without quotes"),
        ("traceOn", 1, "is not true or false, without quotes"),
        ("deleteWhen", 4, "is not a text, in quotes"),
        ("regionId", "a\nbrokerId=7", "has more than one line"),
        ("regionId", "a\n", "has more than one line"),
        ("regionId", "a\u2028b", "has more than one line"),
    ],
)
def test_a_setting_has_the_type_that_the_api_server_asks_for(name: str, value: object, reason: str) -> None:
    """A manifest that runs on one machine is taken by Kubernetes as well."""
    with pytest.raises(ManifestError) as caught:
        read_manifest(_with_spec({"config": {name: value}}))

    assert [(p.path, p.reason) for p in caught.value.problems] == [(f"spec.config.{name}", reason)]


def test_a_set_may_use_the_controllers_of_another_one() -> None:
    manifest = read_manifest(_with_spec({"controllers": {"ref": {"name": "other"}}}))

    assert manifest.spec.controllers.ref is not None
    assert manifest.spec.controllers.ref.name == "other"


def test_fields_of_lists_get_advice_too() -> None:
    """The path has the number of the item."""
    with pytest.raises(ManifestError) as caught:
        read_manifest(_with_spec({"podTemplate": {"tolerations": [{"key": "a"}, {"efect": "NoSchedule"}]}}))

    assert [str(problem) for problem in caught.value.problems] == [
        "spec.podTemplate.tolerations.1.efect: is not a field; did you mean effect?"
    ]


def test_problems_of_the_pod_template_come_with_all_others() -> None:
    with pytest.raises(ManifestError) as caught:
        read_manifest(
            _with_spec(
                {
                    "replicas": 0,
                    "podTemplate": {
                        "hostNetwork": True,
                        "metadata": {"labels": {"a": 1}},
                        "resources": {"limits": {"cpu": -1, "memory": "1GB"}},
                    },
                }
            )
        )

    assert [problem.path for problem in caught.value.problems] == [
        "spec.replicas",
        "spec.podTemplate.hostNetwork",
        "spec.podTemplate.metadata.labels.a",
        "spec.podTemplate.resources.limits.cpu",
        "spec.podTemplate.resources.limits.memory",
    ]


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ManifestError) as caught:
        read_manifest(_with_spec({"config": {"mappedFileSizeCommitLog": 1_048_576}}))

    assert [problem.path for problem in caught.value.problems] == ["spec.config.maxMessageSize"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a BrokerSet manifest"),
        ("- 1", "is not a BrokerSet manifest"),
        ("a: [", "line 1, column 5"),
        ("a: 1\n---\nb: 2", "more than one document"),
        ("a: &x 1\nb: *x", "line 2: aliases"),
        ("spec: {}\nspec: {}", "line 2: spec is there twice"),
        ("1: 2", "the name '1' is not a text"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("a: " + "[" * 100, "nested more than"),
        ("a: \x00", "character 3 cannot stand in YAML"),
        ("a: " + "x" * 2_000_000, "longer than"),
    ],
)
def test_a_text_that_is_no_plain_yaml_document_is_refused(text: str, reason: str) -> None:
    found = _problems(text)

    assert len(found) == 1
    assert reason in found[0]


@pytest.mark.parametrize("name", ["Orders", "-a", "a-", "1a", "a.b", "", "a" * 41, 3])
def test_a_name_must_fit_kubernetes(name: object) -> None:
    with pytest.raises(ManifestError) as caught:
        read_manifest({**_with_spec({}), "metadata": {"name": name}})

    assert [problem.path for problem in caught.value.problems] == ["metadata.name"]


def test_a_null_counts_as_left_out() -> None:
    assert read_manifest_text(HEAD + "spec:\n  config:\n  storage: {size: ~}\n") == read_manifest_text(
        HEAD + "spec: {config: {}, storage: {}}"
    )


def test_what_kubernetes_adds_to_metadata_is_let_through() -> None:
    text = HEAD.replace(
        "orders}", "orders, creationTimestamp: 2026-01-01T00:00:00Z, managedFields: [{a: 1}]}"
    )

    assert read_manifest_text(text).metadata.name == "orders"


def test_names_of_groups_may_be_given_without_their_number() -> None:
    assert read_manifest(_with_spec({"brokerNames": ["a", "b"]})).broker_names == ("a", "b")


def test_a_manifest_written_as_json_reads_back_as_the_same() -> None:
    manifest = read_manifest(_with_spec({"groups": 2, "config": {"traceOn": False}}))

    text = manifest.model_dump_json(by_alias=True, exclude_unset=True)

    assert read_manifest_text(text) == manifest
    assert isinstance(manifest, BrokerSet)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"tls": {"secretName": "a"}}, "spec.tls.secretName: names a Secret, which only Kubernetes has"),
        (
            {"tls": {"mode": "enforcing", "issuerRef": {"name": "a"}}},
            "spec.tls.issuerRef: names an issuer, which only Kubernetes has",
        ),
        ({"tls": {"authority": {}}}, "spec.tls.authority: is kept in Secrets, which only Kubernetes has"),
        ({"tls": {"mode": "enforcing"}}, "spec.tls.mode: is about certificates of Kubernetes"),
        ({"tls": {"trustConfigMap": "a"}}, "spec.tls: is about certificates of Kubernetes"),
        ({"acl": {"secretName": "a"}}, "spec.acl.secretName: names a Secret, which only Kubernetes has"),
        (
            {"acl": {"mode": "enforcing"}},
            "spec.acl.mode: is about users of a Secret, which only Kubernetes has",
        ),
    ],
)
def test_security_of_kubernetes_is_refused_on_one_machine_with_the_switch_that_is_there(
    spec: dict[str, Any], said: str
) -> None:
    """Plain connections instead, or a set that checks nobody, would be a surprise."""
    (switch,) = spec
    with pytest.raises(ManifestError) as caught:
        read_manifest_text(json.dumps(_with_spec(spec)))

    (found,) = caught.value.problems
    assert str(found) == f"{said}; leave it out, and start the set with brokerset up --{switch}"


@pytest.mark.parametrize("spec", [{}, {"tls": {"mode": "permissive"}}, {"acl": {"mode": "permissive"}}])
def test_what_asks_for_no_security_is_taken_on_one_machine(spec: dict[str, Any]) -> None:
    """As are the fields without a value."""
    empty = {"tls": {"secretName": None}, "acl": {"secretName": None}}
    for each in (spec, empty):
        assert read_manifest_text(json.dumps(_with_spec(each))).metadata.name == "orders"
