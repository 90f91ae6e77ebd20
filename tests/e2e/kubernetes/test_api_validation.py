"""A real API server takes valid manifests and refuses invalid ones, with a message that says what to do."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.e2e.kubernetes import rig

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[2]
TABLE = runpy.run_path(str(HERE / "invalid_manifests.py"), run_name="table")
CASES: list[Any] = list(TABLE["CASES"])
ACCEPTED: dict[str, Any] = dict(TABLE["ACCEPTED"])
LEFT_OUT: object = TABLE["LEFT_OUT"]

NAMESPACE: Final = "brokerset-api-validation"
CRDS: Final = tuple(
    f"{kind}.brokerset.io"
    for kind in (
        "brokersets",
        "topics",
        "subjects",
        "users",
        "storeaudits",
        "storemigrations",
        "storeexports",
    )
)
CALL_SECONDS_MAX: Final = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What kubectl said."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Api:
    """A cluster by way of kubectl, in one namespace."""

    kubectl: str
    environment: dict[str, str]

    def run(self, *arguments: str, document: object = None) -> Answer:
        """Call kubectl; `document` is its standard input."""
        done = subprocess.run(
            [self.kubectl, "--namespace", NAMESPACE, *arguments],
            input="" if document is None else json.dumps(document),
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=CALL_SECONDS_MAX,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def must(self, *arguments: str, document: object = None) -> str:
        """Call kubectl, which must succeed, and return what it printed."""
        answer = self.run(*arguments, document=document)
        assert answer.code == 0, answer.err
        return answer.out

    def try_out(self, document: object, *options: str) -> Answer:
        """Ask the API server what it would do with a manifest."""
        return self.run("apply", "--dry-run=server", "-o", "json", "-f", "-", *options, document=document)


@pytest.fixture(scope="module")
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    """A cluster with our CRDs, and a namespace of its own.

    KUBECONFIG alone names any cluster, without our image or chart in it; else the cluster of all these tests.
    """
    kubeconfig, alone = os.environ.get("KUBECONFIG"), contextlib.ExitStack()
    if kubeconfig and not os.environ.get("BROKERSET_IMAGE_LOAD"):
        found = Api(rig.tool("kubectl"), dict(os.environ))
        for name in CRDS:
            file = ROOT / "crds" / f"{name.partition('.')[0]}.yaml"
            found.must("apply", "--server-side", "--force-conflicts", "-f", str(file))
    else:
        cluster: rig.Cluster = request.getfixturevalue("cluster")
        found = Api(cluster.kubectl_path, cluster.env)
        alone.enter_context(cluster.without_operator())  # it writes the status of every set, paused or not
    for crd in CRDS:
        found.must("wait", "--for=condition=Established", f"crd/{crd}", "--timeout=30s")
        conditions = json.loads(found.must("get", "crd", crd, "-o", "json"))["status"]["conditions"]
        assert not [c for c in conditions if c["type"] == "NonStructuralSchema"], conditions
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    found.must("apply", "-f", "-", document=space)
    try:
        yield found
    finally:
        found.run("delete", "namespace", NAMESPACE, "--wait=false")
        alone.close()


@pytest.fixture
def left_alone(api: Api) -> Iterator[Api]:
    """The same; what a test makes is gone after it, and no operator does anything with it."""
    yield api
    api.must(
        "delete",
        "brokersets,topics,subjects,users.brokerset.io,storeaudits,storemigrations",
        "--all",
        "--wait=true",
        "--timeout=30s",
    )


def _paused(document: dict[str, Any]) -> dict[str, Any]:
    """The manifest for an operator that may run in the cluster: do nothing."""
    annotations = {"annotations": {"brokerset.io/paused": "true"}}
    return {**document, "metadata": {**document["metadata"], **annotations}}


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.api and case.before is None], ids=lambda case: str(case.name)
)
def test_an_invalid_manifest_is_refused(api: Api, case: Any) -> None:
    """By name of the field, and with what to do."""
    answer = api.try_out(case.manifest)

    assert answer.code != 0, answer.out
    assert case.api in answer.err, answer.err


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.before is not None], ids=lambda case: str(case.name)
)
def test_a_change_of_what_cannot_be_changed_is_refused(left_alone: Api, case: Any) -> None:
    """The same manifest would be valid as a new one."""
    left_alone.must("create", "-f", "-", document=_paused(case.earlier))

    answer = left_alone.run("replace", "--dry-run=server", "-f", "-", document=_paused(case.manifest))

    assert answer.code != 0, answer.out
    assert case.api in answer.err, answer.err


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.api is None], ids=lambda case: str(case.name)
)
def test_what_only_the_operator_refuses_reaches_it(api: Api, case: Any) -> None:
    """The API server does not drop it without a word."""
    kept = json.loads(api.try_out(case.manifest).out)["spec"]

    for part in ("config", "policies"):
        assert _is_within(case.manifest["spec"].get(part), kept.get(part))


def _is_within(given: Any, kept: Any) -> bool:
    """Whether nothing of what was given is missing; the API server adds defaults."""
    if isinstance(given, dict):
        return all(_is_within(value, kept.get(key)) for key, value in given.items())
    if isinstance(given, list):
        return len(given) == len(kept) and all(map(_is_within, given, kept))
    return bool(given == kept)


@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_a_valid_manifest_is_accepted_without_a_warning(left_alone: Api, name: str) -> None:
    """New ones, and changes."""
    valid, before, patch = ACCEPTED[name]
    patched = TABLE["patched"]
    if before is None:
        answer = left_alone.try_out(_paused(patched(valid, patch)))
    else:
        left_alone.must("create", "-f", "-", document=_paused(patched(valid, before)))
        changed = _paused(patched(valid, patch))
        answer = left_alone.run("replace", "--dry-run=server", "-f", "-", document=changed)

    assert answer.code == 0, answer.err
    assert answer.err == ""


@pytest.mark.parametrize("client_side", [True, False], ids=["apply", "server-side apply"])
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: str(path.name))
def test_every_example_is_accepted(api: Api, path: Path, client_side: bool) -> None:
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        if not document["apiVersion"].startswith("brokerset.io/"):
            continue  # another operator's kind
        answer = api.try_out(document, *([] if client_side else ["--server-side"]))

        assert answer.code == 0, answer.err
        assert answer.err == ""


def test_the_smallest_manifest_gets_every_default(api: Api) -> None:
    """As the reader of manifests gives them, but for those that depend on other fields."""
    smallest = yaml.safe_load((ROOT / "examples" / "smallest.yaml").read_text(encoding="utf-8"))

    spec = json.loads(api.try_out(smallest).out)["spec"]

    assert spec == {
        "acl": {"mode": "enforcing"},
        "advertise": "masterService",
        "brokerNames": [],
        "clusterName": "DefaultCluster",
        "config": {},
        "controllers": {},
        "monitoring": {"dashboards": True, "podMonitor": False, "rules": True},
        "networkPolicy": {},
        "podTemplate": {},
        "replicas": 3,
        "replication": {"mode": "controller", "uncleanElection": False},
        "storage": {"size": "20Gi", "whenDeleted": "Retain"},
        "tls": {"mode": "permissive"},
        "update": {"strategy": "automatic"},
    }


def test_a_client_that_does_not_ask_for_strictness_cannot_weaken_security(api: Api) -> None:
    """Other unknown fields are dropped with a warning then; these are refused all the same."""
    refused = [
        case
        for case in CASES
        if case.name in ("more rights", "a further container", "a folder of the node", "a token")
    ]
    assert len(refused) == 4

    for case in refused:
        answer = api.try_out(case.manifest, "--validate=ignore")

        assert answer.code != 0, case.name
        assert case.api in answer.err, answer.err


def test_the_columns_tell_what_to_know_at_a_glance(left_alone: Api) -> None:
    """Also for several groups."""
    left_alone.must("create", "-f", "-", document=_paused(dict(TABLE["SET"])))
    status = {
        "phase": "Ready",
        "masters": "orders-0-1,orders-1-0",
        "epochs": "4,2",
        "inSync": "6/6",
        "groupCount": 2,
        "lagBytes": 0,
        "conditions": [
            {
                "type": kind,
                "status": "True",
                "reason": "AsWanted",
                "message": "as the manifest says",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
            for kind in ("Ready", "ControllersReady")
        ],
    }
    left_alone.must(
        "patch",
        "bset",
        "orders",
        "--subresource=status",
        "--type=merge",
        "-p",
        json.dumps({"status": status}),
    )

    head, row = left_alone.must("get", "messaging", "-o", "wide").splitlines()[:2]

    columns = head.split()
    assert columns == [
        *("NAME", "READY", "PHASE", "MASTERS", "EPOCHS", "IN-SYNC", "LAG", "AGE"),
        *("CLUSTER", "GROUPS", "REPLICAS", "CONTROLLERS", "REASON"),
    ]
    shown = dict(zip(columns, row.split(), strict=True))
    assert shown["NAME"].removeprefix("brokerset.brokerset.io/") == "orders"
    assert (shown["READY"], shown["PHASE"], shown["IN-SYNC"], shown["LAG"]) == ("True", "Ready", "6/6", "0")
    assert (shown["MASTERS"], shown["EPOCHS"]) == ("orders-0-1,orders-1-0", "4,2")
    assert (shown["CLUSTER"], shown["GROUPS"], shown["REPLICAS"]) == ("Shop", "2", "3")
    assert (shown["CONTROLLERS"], shown["REASON"]) == ("True", "AsWanted")


def test_kubectl_scale_changes_the_partitions_of_a_subject(left_alone: Api) -> None:
    """Its number of now is what the status says; without one in the manifest autoscalers cannot read it."""
    left_alone.must("create", "-f", "-", document=dict(TABLE["SUBJECT"]))
    patch = json.dumps({"status": {"partitions": 2}})
    left_alone.must("patch", "bsubject", "events", "--subresource=status", "--type=merge", "-p", patch)

    left_alone.must("scale", "bsubject", "events", "--replicas=4", "--current-replicas=2")

    found = json.loads(left_alone.must("get", "bsubject", "events", "-o", "json"))
    assert (found["spec"]["partitions"], found["status"]["partitions"]) == (4, 2)
    assert found["metadata"]["generation"] == 2
    refused = left_alone.run("scale", "bsubject", "events", "--replicas=1025")
    assert "should be less than or equal to 1024" in refused.err
    open_number = TABLE["patched"](TABLE["SUBJECT"], {"spec": {"partitions": LEFT_OUT}})
    left_alone.must("replace", "-f", "-", document=open_number)
    path = f"/apis/brokerset.io/v1alpha1/namespaces/{NAMESPACE}/subjects/events/scale"
    assert left_alone.run("get", "--raw", path).code != 0
    left_alone.must("scale", "bsubject", "events", "--replicas=4")


def test_who_may_write_the_status_cannot_change_what_is_wanted(left_alone: Api) -> None:
    """And a change of the status is no new generation."""
    left_alone.must("create", "-f", "-", document=_paused(dict(TABLE["SET"])))
    patch = {
        "spec": {"replicas": 9},
        "status": {"observedGeneration": 1, "workflow": {"any": [{"thing": 1.5}]}},
    }

    left_alone.must(
        "patch", "bset", "orders", "--subresource=status", "--type=merge", "-p", json.dumps(patch)
    )

    found = json.loads(left_alone.must("get", "bset", "orders", "-o", "json"))
    assert found["spec"]["replicas"] == 3
    assert found["metadata"]["generation"] == 1
    assert found["status"] == patch["status"]


def test_every_field_explains_itself(api: Api) -> None:
    """Settings among them."""
    text = api.must("explain", "brokerset.spec.config.fileReservedTime")

    assert "Hours that a commit log file is kept after its last change. Default: 72." in " ".join(
        text.split()
    )
