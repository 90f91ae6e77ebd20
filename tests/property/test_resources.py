"""Whatever a valid manifest says, what is built for it has valid names, stable selectors and no rights."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from brokerset_operator.model.observed import Meta, Observed, Operator
from brokerset_operator.resources.wanted import Shape, wanted_objects
from brokerset_runtime.settings import from_properties, load
from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.manifest import NAME_LENGTH_MAX, read_manifest

KINDS = frozenset({"monitoring.coreos.com/PodMonitor", "monitoring.coreos.com/PrometheusRule"})

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

set_names = st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)

label_values = st.from_regex(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,8}[A-Za-z0-9])?)?", fullmatch=True)

texts = st.text("abcXYZ019 -_=\n", max_size=12)

pod_templates = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "labels": st.dictionaries(st.sampled_from(["team", "app", "example.com/a"]), label_values),
                "annotations": st.dictionaries(st.sampled_from(["team", "example.com/note"]), texts),
            },
        ),
        "resources": st.fixed_dictionaries(
            {},
            optional={
                "requests": st.dictionaries(
                    st.sampled_from(["cpu", "memory"]), st.sampled_from([1, "2", "500m"])
                ),
                "limits": st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from([4, "8Gi"])),
            },
        ),
        "nodeSelector": st.dictionaries(st.sampled_from(["zone", "disk"]), label_values),
        "tolerations": st.lists(
            st.sampled_from(
                [{"operator": "Exists"}, {"key": "a", "effect": "NoExecute", "tolerationSeconds": 5}]
            )
        ),
        "affinity": st.sampled_from([{}, {"nodeAffinity": {"x": [1, {"y": None}]}}]),
        "topologySpreadConstraints": st.lists(st.sampled_from([{"maxSkew": 2}, {"topologyKey": "zone"}])),
        "env": st.sampled_from([[], [{"name": "TZ", "value": "UTC"}]]),
    },
)

specs = st.fixed_dictionaries(
    {},
    optional={
        "groups": st.integers(1, 4),
        "replicas": st.integers(1, 9),
        "controllers": st.one_of(
            st.fixed_dictionaries({"replicas": st.integers(1, 7)}),
            st.just({"ref": {"name": "shared--other"}}),
        ),
        "storage": st.fixed_dictionaries(
            {"size": st.sampled_from(["1Gi", "20Gi", "5T"])},
            optional={
                "className": st.sampled_from(["fast", ""]),
                "whenDeleted": st.sampled_from(["Retain", "Delete"]),
            },
        ),
        "config": st.dictionaries(
            st.sampled_from(["fileReservedTime", "maxMsgsNumBatch"]), st.integers(1, 1000)
        ),
        "advertise": st.sampled_from(["masterService", "podIP", "podName"]),
        "monitoring": st.fixed_dictionaries({"podMonitor": st.booleans(), "rules": st.booleans()}),
        "replication": st.fixed_dictionaries(
            {"acknowledge": st.sampled_from(["allInSync", "master"]), "uncleanElection": st.booleans()}
        ),
        "podTemplate": pod_templates,
    },
)

shapes = st.builds(
    Shape,
    controller_replicas=st.integers(0, 7),
    raft_join=st.booleans(),
    groups=st.dictionaries(st.integers(0, 255), st.integers(0, 9), max_size=4),
    read_only_groups=st.frozensets(st.integers(0, 3)),
)


def _observed(name: str, spec: Mapping[str, Any], **seen: Any) -> Observed:
    document = {"apiVersion": "brokerset.io/v1alpha1", "kind": "BrokerSet", "metadata": {"name": name}}
    return Observed(
        meta=Meta(name=name, namespace="n" * 63, uid="u-1", generation=1),
        manifest=read_manifest({**document, "spec": spec}),
        operator=Operator(image="brokerset:1", api_kinds=KINDS),
        now=0.0,
        **seen,
    )


def _stateful_sets(objects: tuple[Mapping[str, Any], ...]) -> dict[str, Mapping[str, Any]]:
    return {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "StatefulSet"}


def _hashes(objects: tuple[Mapping[str, Any], ...]) -> dict[str, str]:
    return {
        name: spec["template"]["metadata"]["annotations"]["brokerset.io/config-hash"]
        for name, spec in _stateful_sets(objects).items()
    }


@given(set_names, specs, shapes)
def test_names_are_valid_and_unique(name: str, spec: dict[str, Any], shape: Shape) -> None:
    """No manifest makes a name or label that Kubernetes refuses, or two objects of one kind and name."""
    objects = wanted_objects(_observed(name, spec), shape)

    assert len(name) <= NAME_LENGTH_MAX
    found = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(found) == len(set(found))
    for _kind, each in found:
        assert len(each) <= 63
        assert LABEL.fullmatch(each), each
    for each in objects:
        for value in each["metadata"]["labels"].values():
            assert len(value) <= 63
    for each, sts in _stateful_sets(objects).items():
        pod = f"{each}-{max(0, sts['replicas'] - 1)}"
        assert len(pod) <= 63
        assert len(f"{each}-0123456789") <= 63, "the label controller-revision-hash would not fit"
    json.dumps(objects)


@given(set_names, specs, shapes)
def test_pods_never_get_rights(name: str, spec: dict[str, Any], shape: Shape) -> None:
    """Every pod satisfies the restricted standard, and its own labels and hash are the operator's."""
    objects = wanted_objects(_observed(name, spec), shape)

    for each, sts in _stateful_sets(objects).items():
        pod = sts["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC", "initContainers", "hostUsers"}
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "lifecycle" not in container
        assert not any("hostPath" in volume for volume in pod["volumes"])
        variables = [item["name"] for item in container["env"]]
        assert len(variables) == len(set(variables))
        labels = sts["template"]["metadata"]["labels"]
        assert sts["selector"]["matchLabels"].items() <= labels.items(), each


@given(set_names, specs, specs, shapes)
def test_selectors_never_change(
    name: str, before: dict[str, Any], after: dict[str, Any], shape: Shape
) -> None:
    """Whatever is changed in a manifest, fields that Kubernetes holds fixed stay as they are."""
    first, second = (_stateful_sets(wanted_objects(_observed(name, spec), shape)) for spec in (before, after))

    for each in first.keys() & second.keys():
        for field in ("selector", "serviceName", "podManagementPolicy"):
            assert first[each][field] == second[each][field]


@given(set_names, specs, st.integers(1, 9), st.integers(1, 7), st.booleans())
def test_the_hash_is_about_processes_only(
    name: str, spec: dict[str, Any], replicas: int, controllers: int, joined: bool
) -> None:
    """Numbers of pods, the forming of the controllers, draining and the order of fields make no pod old."""
    observed = _observed(name, spec)
    shape = Shape(controller_replicas=3, raft_join=False, groups={0: 3, 1: 3})
    other = Shape(
        controller_replicas=controllers,
        raft_join=joined,
        groups={0: replicas, 1: 3},
        read_only_groups=frozenset({1}),
    )

    first = _hashes(wanted_objects(observed, shape))

    assert _hashes(wanted_objects(observed, other)) == first
    assert _hashes(wanted_objects(_observed(name, dict(reversed(spec.items()))), shape)) == first


@given(set_names, specs, shapes)
def test_brokers_accept_every_settings_file(name: str, spec: dict[str, Any], shape: Shape) -> None:
    """A manifest that is valid makes a file that the broker's own loader takes without a complaint."""
    for each in wanted_objects(_observed(name, spec), shape):
        if each["kind"] == "ConfigMap" and "broker.properties" in each["data"]:
            found = load(BrokerSettings, ("file", from_properties(each["data"]["broker.properties"])))
            assert found.enable_controller_mode
