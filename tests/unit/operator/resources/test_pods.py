"""What pods may do, how they are watched, and what a manifest can change about them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operator.resources.sets import build, container_of, hash_of, template

from brokerset_operator.resources import brokers, controllers
from brokerset_operator.resources.pod_template import config_hash

BOTH = ("orders-controller", "orders-0")


@pytest.mark.parametrize("name", BOTH)
def test_pods_satisfy_the_restricted_standard(name: str) -> None:
    """No pod has more rights than the restricted pod security standard allows."""
    objects = build()
    spec, container = template(objects, name)["spec"], container_of(objects, name)

    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["fsGroup"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"configMap", "emptyDir", "projected"}


def test_only_brokers_have_a_token() -> None:
    """A broker's token is mounted where programs look for it; a controller has none."""
    objects = build()

    broker, controller = (template(objects, name)["spec"] for name in ("orders-0", "orders-controller"))
    assert broker["serviceAccountName"] == "orders-broker"
    (token,) = (volume for volume in broker["volumes"] if volume["name"] == "token")
    assert [list(source) for source in token["projected"]["sources"]] == [
        ["serviceAccountToken"],
        ["configMap"],
    ]
    assert "serviceAccountName" not in controller
    assert not [volume for volume in controller["volumes"] if volume["name"] == "token"]


@pytest.mark.parametrize("name", BOTH)
def test_only_a_stuck_process_is_restarted_by_its_probe(name: str) -> None:
    """Liveness asks whether tasks run, never about roles; a long recovery counts as starting."""
    container = container_of(build(), name)

    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["startupProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    startup = container["startupProbe"]
    assert startup["failureThreshold"] * startup["periodSeconds"] >= 600
    assert {"name": "http", "containerPort": 8080, "protocol": "TCP"} in container["ports"]


def test_pods_have_longer_to_end_than_their_processes_need() -> None:
    """A broker ends within 30 s, a controller within 7 s; neither is killed before."""
    assert brokers.GRACE_SECONDS > 30
    assert controllers.GRACE_SECONDS > 7


def test_pods_start_the_programs_with_their_settings_file() -> None:
    """Each pod runs the image's module with the file of its ConfigMap."""
    objects = build()

    for name, module, file in (
        ("orders-controller", "brokerset_controller", "controller.properties"),
        ("orders-0", "brokerset_broker", "broker.properties"),
    ):
        container = container_of(objects, name)
        assert container["command"] == ["python", "-m", module, "-c", f"/etc/brokerset/{file}"]
        assert container["image"] == "registry.example.com/brokerset:0.1.0"
        assert file in objects["ConfigMap", name]["data"]
        assert {"name": "settings", "configMap": {"name": name}} in template(objects, name)["spec"]["volumes"]


def test_the_manifests_image_goes_before_the_operators() -> None:
    """`spec.image` is what runs, and makes pods old."""
    given = build({"image": "registry.example.com/brokerset:0.2.0"})

    assert container_of(given, "orders-0")["image"] == "registry.example.com/brokerset:0.2.0"
    assert hash_of(given, "orders-0") != hash_of(build(), "orders-0")


def test_resources_of_the_manifest_are_the_brokers_and_fill_up_with_defaults() -> None:
    """What is not named keeps its default request, unless a limit stands for it; controllers keep theirs."""
    default, given = (
        build(spec)
        for spec in (
            {},
            {"podTemplate": {"resources": {"requests": {"cpu": "2000m"}, "limits": {"memory": "64Mi"}}}},
        )
    )

    assert container_of(default, "orders-0")["resources"] == {"requests": {"cpu": "100m", "memory": "256Mi"}}
    assert container_of(given, "orders-0")["resources"] == {
        "requests": {"cpu": "2"},
        "limits": {"memory": "64Mi"},
    }
    assert (
        container_of(given, "orders-controller")["resources"]
        == container_of(default, "orders-controller")["resources"]
    )


@pytest.mark.parametrize("name", BOTH)
def test_pods_are_spread_over_nodes_unless_the_manifest_says_how(name: str) -> None:
    """By default pods of one kind avoid each other's nodes; a manifest's constraints get their labels."""
    (default,) = template(build(), name)["spec"]["topologySpreadConstraints"]
    zone = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    objects = build({"podTemplate": {"topologySpreadConstraints": [zone]}})
    (given,) = template(objects, name)["spec"]["topologySpreadConstraints"]

    assert default["topologyKey"] == "kubernetes.io/hostname"
    assert default["whenUnsatisfiable"] == "ScheduleAnyway"
    selector = objects["StatefulSet", name]["spec"]["selector"]
    assert given == {**zone, "labelSelector": selector}
    assert default["labelSelector"] == selector


def test_labels_of_the_manifest_never_replace_those_that_select_pods() -> None:
    """Further labels are added to pods; the selector stays, and everything it asks for is on the pods."""
    objects = build({"podTemplate": {"metadata": {"labels": {"team": "payments"}}}})

    for name in BOTH:
        labels = template(objects, name)["metadata"]["labels"]
        assert labels["team"] == "payments"
        assert (
            objects["StatefulSet", name]["spec"]["selector"]
            == (build()["StatefulSet", name]["spec"]["selector"])
        )
        assert objects["StatefulSet", name]["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": 5},
        {"groups": 3},
        {"controllers": {"replicas": 5}},
        {"storage": {"size": "40Gi"}},
        {"update": {"strategy": "supervised"}},
        {"monitoring": {"podMonitor": True}},
        {"config": {"fileReservedTime": 24}},
        {"replication": {"minInSyncReplicas": 1, "acknowledge": "master"}},
    ],
    ids=lambda spec: next(iter(spec)),
)
def test_what_does_not_concern_a_process_makes_no_pod_old(spec: dict[str, Any]) -> None:
    """Growing a set, its volumes or its controllers restarts nothing, nor do live settings."""
    for name in BOTH:
        assert hash_of(build(spec), name) == hash_of(build(), name)


def test_forming_the_controllers_makes_no_pod_old() -> None:
    """`raftJoin` counts only for who has no data: no controller is restarted for it."""
    joined = build(shape={"raft_join": True, "controller_replicas": 5})

    assert hash_of(joined, "orders-controller") == hash_of(build(), "orders-controller")


@pytest.mark.parametrize(
    ("spec", "old"),
    [
        ({"config": {"flushIntervalCommitLog": 400}}, {"orders-0"}),
        ({"replication": {"uncleanElection": True}}, {"orders-controller"}),
        ({"advertise": "podIP"}, {"orders-0"}),
        ({"podTemplate": {"metadata": {"annotations": {"a": "b"}}}}, {"orders-0", "orders-controller"}),
    ],
)
def test_what_concerns_a_process_makes_its_pods_old(spec: dict[str, Any], old: set[str]) -> None:
    """Settings and templates that changed are seen in the hash of exactly the pods that use them."""
    assert {name for name in BOTH if hash_of(build(spec), name) != hash_of(build(), name)} == old


def test_the_hash_does_not_depend_on_the_order_of_keys() -> None:
    """Equal templates and settings have equal hashes, however they were put together."""
    assert config_hash({"a": 1, "b": [2]}, {"x": "1", "y": "2"}) == config_hash(
        {"b": [2], "a": 1}, {"y": "2", "x": "1"}
    )
    assert config_hash({"a": 1}, {}) != config_hash({"a": 2}, {})


def test_volumes_are_kept_or_deleted_as_the_manifest_says() -> None:
    """Scaling in never deletes a claim; deleting the set does only if the manifest says so."""
    for chosen in ("Retain", "Delete"):
        found = build({"storage": {"whenDeleted": chosen, "className": "fast", "size": "1Ti"}})
        for name in BOTH:
            spec = found["StatefulSet", name]["spec"]
            assert spec["persistentVolumeClaimRetentionPolicy"] == {
                "whenDeleted": chosen,
                "whenScaled": "Retain",
            }
            (claim,) = spec["volumeClaimTemplates"]
            assert claim["spec"]["storageClassName"] == "fast"
            assert claim["metadata"]["name"] == "data"


def test_controllers_have_no_larger_volumes_than_they_need() -> None:
    """A broker's volume is as large as the manifest says, a controller's that large up to 20 GiB."""
    for asked, of_broker, of_controller in (
        ("1Ti", "1Ti", "20Gi"),
        ("2048Mi", "2Gi", "2Gi"),
        ("20Gi", "20Gi", "20Gi"),
    ):
        objects = build({"storage": {"size": asked}})
        for name, expected in (("orders-0", of_broker), ("orders-controller", of_controller)):
            (claim,) = objects["StatefulSet", name]["spec"]["volumeClaimTemplates"]
            assert claim["spec"]["resources"] == {"requests": {"storage": expected}}


def test_the_manifest_says_what_controllers_have() -> None:
    """Their own size, class and resources; without them those of brokers, and what they always had."""
    own = {
        "storage": {"size": "40Gi", "className": "quick"},
        "resources": {"requests": {"memory": "300Mi"}, "limits": {"memory": "1024Mi"}},
    }
    plain = build({"storage": {"size": "1Ti", "className": "large"}})
    found = build({"storage": {"size": "1Ti", "className": "large"}, "controllers": own})

    (claim,) = found["StatefulSet", "orders-controller"]["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"] == {"requests": {"storage": "40Gi"}}
    assert claim["spec"]["storageClassName"] == "quick"
    assert container_of(found, "orders-controller")["resources"] == {
        "requests": {"cpu": "50m", "memory": "300Mi"},
        "limits": {"memory": "1Gi"},
    }
    (before,) = plain["StatefulSet", "orders-controller"]["spec"]["volumeClaimTemplates"]
    assert before["spec"]["resources"] == {"requests": {"storage": "20Gi"}}
    assert before["spec"]["storageClassName"] == "large"
    assert found["StatefulSet", "orders-0"] == plain["StatefulSet", "orders-0"]


def test_nobody_but_the_operator_replaces_pods() -> None:
    """StatefulSets neither roll by themselves nor wait for one pod before they make the next."""
    for name in BOTH:
        spec = build()["StatefulSet", name]["spec"]
        assert spec["updateStrategy"] == {"type": "OnDelete"}
        assert spec["podManagementPolicy"] == "Parallel"
