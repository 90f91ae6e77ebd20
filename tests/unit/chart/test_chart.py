"""What the chart makes of its values: rights, security, CRDs, refusals. Most of it needs helm."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from brokerset_kube import kinds
from brokerset_operator.app import CHILDREN
from brokerset_operator.settings import OperatorSettings
from brokerset_runtime.settings import from_environment, load
from brokerset_runtime.tls.config import KeyPair, TlsMode, read_tls_config

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "brokerset"

RENDER_SECONDS_MAX = 60

DRIVER_VERBS = ("get", "list", "watch", "create", "patch", "delete", "deletecollection")
"""What a Spark driver asks the API server for about pods, and may have."""

Rendered = dict[tuple[str, str], dict[str, Any]]


def _helm() -> str | None:
    """A helm program: the one that HELM names, one on the PATH, or that of the cluster for tests."""
    cache = Path(os.environ.get("BROKERSET_CACHE", Path.home() / ".cache" / "brokerset"))
    cached = cache / "cluster" / "bin" / "helm"
    return os.environ.get("HELM") or shutil.which("helm") or (str(cached) if cached.exists() else None)


HELM = _helm()
needs_helm = pytest.mark.skipif(HELM is None, reason="no helm: set HELM, or put it on the PATH")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run(
        [HELM, *arguments], capture_output=True, text=True, timeout=RENDER_SECONDS_MAX, check=False
    )


def template(tmp_path: Path, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """What helm says to these values."""
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values or {}), encoding="utf-8")
    return _run("template", "messaging", str(CHART), "--namespace", "system", "--values", str(file))


def _render(tmp_path: Path, values: Mapping[str, Any] | None = None) -> Rendered:
    answer = template(tmp_path, values)
    assert answer.returncode == 0, answer.stderr
    found = [each for each in yaml.load_all(answer.stdout, yaml.CSafeLoader) if each]
    assert len({(each["kind"], each["metadata"]["name"], _namespace(each)) for each in found}) == len(found)
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def _namespace(each: Mapping[str, Any]) -> str:
    return str(each["metadata"].get("namespace", ""))


def _rules(rendered: Rendered) -> list[dict[str, Any]]:
    """Rules of all roles that the operator itself has."""
    return [
        rule
        for (kind, name), each in rendered.items()
        if kind in ("Role", "ClusterRole") and not name.endswith((":view", ":edit"))
        for rule in each["rules"]
    ]


def _allowed(rendered: Rendered) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in _rules(rendered)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _kinds_of_crds() -> dict[str, tuple[str, str]]:
    """Kind and served version of each CRD, by its name."""
    found = [
        yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
        for path in (ROOT / "crds").glob("*.yaml")
    ]
    return {
        crd["metadata"]["name"]: (crd["spec"]["names"]["kind"], crd["spec"]["versions"][0]["name"])
        for crd in found
    }


def test_the_chart_lists_every_kind_that_it_installs() -> None:
    """A catalogue that reads `Chart.yaml` shows all kinds of `crds/`, and no other."""
    annotations = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["annotations"]

    listed = yaml.safe_load(annotations["artifacthub.io/crds"])

    assert {each["name"]: (each["kind"], each["version"]) for each in listed} == _kinds_of_crds()


def test_the_guide_removes_every_kind() -> None:
    """Who follows the page on uninstalling to its end has no CRD, and no object of one, left."""
    page = (ROOT / "docs" / "kubernetes" / "install.md").read_text(encoding="utf-8")

    crds = re.findall(r"^    kubectl delete crd (.+)$", page, re.MULTILINE)
    objects = re.findall(r"kubectl delete (\S+) --all -A", page)

    assert sorted(name for line in crds for name in line.split()) == sorted(_kinds_of_crds())
    named = {name.partition(".")[0] for line in objects for name in line.split(",")}
    assert named == {name.partition(".")[0] for name in _kinds_of_crds()}


@needs_helm
def test_the_chart_has_no_complaints() -> None:
    """`helm lint --strict` finds nothing."""
    answer = _run("lint", "--strict", "--quiet", str(CHART))

    assert answer.returncode == 0, answer.stdout + answer.stderr


@needs_helm
@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["a", "b"]}], ids=["cluster", "namespaces"])
def test_the_operator_can_do_nothing_that_it_need_not(tmp_path: Path, values: dict[str, Any]) -> None:
    """No wildcard, no secrets, nothing inside pods, no pods made, no rights beyond its own."""
    allowed = _allowed(_render(tmp_path, values))

    for group, resource, verb in allowed:
        assert "*" not in (group, resource, verb)
        assert resource not in (
            "secrets", "pods/exec", "pods/attach", "pods/portforward", "serviceaccounts/token",
            "pods/ephemeralcontainers", "clusterroles", "clusterrolebindings", "namespaces",
        )  # fmt: skip
        assert verb in ("get", "list", "watch", "create", "patch", "update", "delete")
        assert (resource, verb) != ("pods", "create")
        assert (resource, verb) != ("pods", "patch")
        assert resource != "pods/log" or verb == "get"
        if verb == "update":
            assert resource in (
                "leases", "brokersets/finalizers", "storeaudits/finalizers", "storemigrations/finalizers",
                "storeexports/finalizers", "users/finalizers",
            )  # fmt: skip


@needs_helm
@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["shop"]}], ids=["cluster", "namespaces"])
def test_executors_take_one_role_more_which_is_about_pods_alone(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    """Only when they are asked for; the operator may bind it by name, and has none of its rights."""
    without = _render(tmp_path, values)
    rendered = _render(tmp_path, {**values, "spark": {"executors": True}})

    kind, name = _environment(rendered)["BROKERSET_SET_sparkRole"].split("/")
    assert _environment(without)["BROKERSET_SET_sparkRole"] == ""
    assert (kind, name) not in without
    (rule,) = rendered[kind, name]["rules"]
    assert rule["resources"] == ["pods"], "claims are brokers' volumes"
    assert sorted(rule["verbs"]) == sorted(DRIVER_VERBS)
    binds = [
        rule
        for (role, called), each in rendered.items()
        if role in ("Role", "ClusterRole") and called != name
        for rule in each["rules"]
        if "bind" in rule["verbs"]
    ]
    (bind,) = binds
    assert bind["resources"] == [f"{kind.lower()}s"]
    assert (bind["resourceNames"], bind["verbs"]) == ([name], ["bind"])


@needs_helm
def test_jobs_have_an_image_unless_none_is_wanted(tmp_path: Path) -> None:
    """With the chart's version, a tag or a digest; empty where each job must name one."""
    digest = "sha256:" + "1" * 64

    assert _environment(_render(tmp_path))["BROKERSET_SET_sparkImage"] == "brokerset-spark:0.1.0"
    pinned = _render(tmp_path, {"spark": {"image": {"repository": "r.example.com/s", "digest": digest}}})
    assert _environment(pinned)["BROKERSET_SET_sparkImage"] == f"r.example.com/s@{digest}"
    none = _render(tmp_path, {"spark": {"image": {"repository": ""}}})
    assert _environment(none)["BROKERSET_SET_sparkImage"] == ""


@needs_helm
def test_the_operator_can_keep_every_kind_that_it_works_with(tmp_path: Path) -> None:
    """For each kind of the client there is a rule, and what is applied may be made, patched and deleted."""
    allowed = _allowed(_render(tmp_path))
    read_only = {kinds.NODE.plural, kinds.STORAGE_CLASS.plural}
    not_made = {
        *read_only,
        *(kind.plural for kind in (kinds.POD, kinds.CLAIM, kinds.EVENT, *kinds.OWN)),
        kinds.LEASE.plural,
    }

    for kind in set(kinds.ALL) - set(kinds.WHERE_ALLOWED):
        verbs = {verb for group, resource, verb in allowed if (group, resource) == (kind.group, kind.plural)}
        assert verbs, f"nothing is allowed for {kind.plural}"
        if kind.plural not in not_made:
            assert kind in (*CHILDREN, kinds.JOB, *kinds.OPTIONAL)
            assert verbs == {"get", "list", "watch", "create", "patch", "delete"}, kind.plural
        if kind.plural in read_only:
            assert verbs == {"get"}, kind.plural


@needs_helm
@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["shop"]}], ids=["cluster", "namespaces"])
def test_certificates_take_rights_that_are_given_on_request_alone(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    """Secrets are neither listed nor watched nor deleted; each of both switches gives its own kind alone."""
    wanted = {
        kinds.SECRET: ("authority", {"get", "create", "update"}),
        kinds.CERTIFICATE: ("certManager", {"get", "create", "patch", "delete"}),
    }
    assert wanted.keys() == set(kinds.WHERE_ALLOWED)
    without = _allowed(_render(tmp_path, values))

    for kind, (switch, verbs) in wanted.items():
        tls = {"tls": {switch: {"enabled": True}}}
        more = _allowed(_render(tmp_path, {**values, **tls})) - without
        assert more == {(kind.group, kind.plural, verb) for verb in verbs}
        assert not [right for right in without if right[:2] == (kind.group, kind.plural)]


@needs_helm
@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["shop"]}], ids=["cluster", "namespaces"])
def test_users_take_rights_on_secrets_that_are_given_on_request_alone(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    """And only then are Secrets watched, which an operator without the right could not."""
    without = _render(tmp_path, values)
    rendered = _render(tmp_path, {**values, "secrets": {"access": True}})

    more = _allowed(rendered) - _allowed(without)
    assert more == {("", "secrets", verb) for verb in ("get", "list", "watch", "create", "patch")}
    assert _environment(without)["BROKERSET_SET_watchSecrets"] == "false"
    assert _environment(rendered)["BROKERSET_SET_watchSecrets"] == "true"


@needs_helm
def test_with_namespaces_there_is_no_right_on_the_cluster(tmp_path: Path) -> None:
    """Each namespace gets a Role with its binding; nothing of the chart but CRDs is without a namespace."""
    rendered = _render(tmp_path, {"watchNamespaces": ["shop", "billing"]})
    answer = template(tmp_path, {"watchNamespaces": ["shop", "billing"]})
    objects = [each for each in yaml.load_all(answer.stdout, yaml.CSafeLoader) if each]

    assert not [name for kind, name in rendered if kind.startswith("ClusterRole")]
    assert all(_namespace(each) for each in objects if each["kind"] != "CustomResourceDefinition")
    roles = {_namespace(each): each["metadata"]["name"] for each in objects if each["kind"] == "Role"}
    assert set(roles) == {"shop", "billing", "system"}
    for each in objects:
        if each["kind"] == "RoleBinding":
            assert each["subjects"] == [
                {"kind": "ServiceAccount", "name": "messaging-operator", "namespace": "system"}
            ]
    assert not {resource for _, resource, _ in _allowed(rendered)} & {"nodes", "storageclasses"}
    assert _environment(rendered)["BROKERSET_SET_namespaces"] == "shop,billing"


@needs_helm
def test_without_namespaces_all_are_looked_after(tmp_path: Path) -> None:
    """A ClusterRole, bound for the operator's account alone; names tell releases in two namespaces apart."""
    rendered = _render(tmp_path)

    assert ("ClusterRole", "system:messaging-operator") in rendered
    binding = rendered["ClusterRoleBinding", "system:messaging-operator"]
    assert [each["name"] for each in binding["subjects"]] == ["messaging-operator"]
    assert _environment(rendered)["BROKERSET_SET_namespaces"] == ""


@needs_helm
def test_pods_of_the_chart_satisfy_the_restricted_standard(tmp_path: Path) -> None:
    """The operator and the test run unprivileged, with a read-only root and nothing from the host."""
    rendered = _render(tmp_path, SECURED)
    operator = rendered["Deployment", "messaging-operator"]["spec"]["template"]["spec"]
    test = rendered["Pod", "messaging-operator-test"]["spec"]

    for pod in (operator, test):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not [volume for volume in pod.get("volumes", []) if "hostPath" in volume]
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}


SECURED: Final[Mapping[str, Any]] = {
    "operatorTls": {"secretName": "operator-tls"},
    "podMonitor": {"enabled": True},
}
SERVER_NAME: Final = "messaging-operator.system.svc"


@needs_helm
def test_the_operator_finds_the_certificate_that_the_chart_mounts(tmp_path: Path) -> None:
    """Its setting names a file of the ConfigMap, whose keys name files of the Secret; plain is off."""
    rendered = _render(tmp_path, SECURED)
    pod = rendered["Deployment", "messaging-operator"]["spec"]["template"]["spec"]
    mounted = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    settings = rendered["ConfigMap", volumes["tls-settings"]["configMap"]["name"]]["data"]

    folder, _, name = _environment(rendered)["BROKERSET_SET_tlsConfigFile"].rpartition("/")
    file = tmp_path / name
    file.write_text(settings[name], encoding="utf-8")
    found = read_tls_config(file)

    assert folder == mounted["tls-settings"]
    assert found.mode is TlsMode.ENFORCING
    assert found.server == KeyPair(Path(mounted["tls"], "tls.crt"), Path(mounted["tls"], "tls.key"))
    assert volumes["tls"]["secret"]["secretName"] == "operator-tls"
    assert {each["path"] for each in volumes["tls"]["secret"]["items"]} == {"tls.crt", "tls.key"}
    given = from_environment({"BROKERSET_SET_tlsConfigFile": str(file)})
    assert load(OperatorSettings, ("environment", {"image": "x", **given})).tls_config_file == file


@needs_helm
@pytest.mark.parametrize(
    ("values", "scheme"), [({}, "HTTP"), (SECURED, "HTTPS")], ids=["plain", "with a certificate"]
)
def test_probes_and_the_test_of_the_release_connect_as_the_operator_listens(
    tmp_path: Path, values: dict[str, Any], scheme: str
) -> None:
    """A probe that speaks otherwise would end the operator again and again."""
    rendered = _render(tmp_path, values)
    (container,) = rendered["Deployment", "messaging-operator"]["spec"]["template"]["spec"]["containers"]
    (test,) = rendered["Pod", "messaging-operator-test"]["spec"]["containers"]

    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
    assert [each["scheme"] for each in probes] == [scheme] * 3
    assert f'"{scheme.lower()}://{SERVER_NAME}:8080/readyz"' in test["command"][2]
    compile(test["command"][2], "the test of the release", "exec")


@needs_helm
@pytest.mark.parametrize(
    ("given", "authorities"),
    [
        ({}, {"secret": {"name": "operator-tls", "key": "ca.crt"}}),
        ({"trustConfigMap": "trust"}, {"configMap": {"name": "trust", "key": "ca.crt"}}),
    ],
    ids=["of the Secret", "of a ConfigMap"],
)
def test_prometheus_and_the_test_of_the_release_check_the_operators_certificate(
    tmp_path: Path, given: dict[str, Any], authorities: dict[str, Any]
) -> None:
    """By its name, and by authorities that the Secret has or a value names; nobody is given the key."""
    rendered = _render(tmp_path, {**SECURED, "operatorTls": {**SECURED["operatorTls"], **given}})
    (scraped,) = rendered["PodMonitor", "messaging-operator"]["spec"]["podMetricsEndpoints"]
    (volume,) = rendered["Pod", "messaging-operator-test"]["spec"]["volumes"]

    assert scraped["scheme"] == "https"
    assert scraped["tlsConfig"] == {"ca": authorities, "serverName": SERVER_NAME}
    source = volume.get("secret") or volume["configMap"]
    assert source["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    assert next(iter(authorities.values()))["name"] in (source.get("secretName"), source.get("name"))
    plain = _render(tmp_path, {"podMonitor": {"enabled": True}})["PodMonitor", "messaging-operator"]
    assert plain["spec"]["podMetricsEndpoints"] == [{"port": "http", "path": "/metrics"}]


@needs_helm
def test_authorities_without_a_certificate_are_refused(tmp_path: Path) -> None:
    """Somebody meant to have TLS, and would not."""
    answer = template(tmp_path, {"operatorTls": {"trustConfigMap": "trust"}})

    assert answer.returncode != 0
    assert "name its Secret in operatorTls.secretName" in answer.stderr


@needs_helm
def test_two_replicas_stand_by_each_other(tmp_path: Path) -> None:
    """Two replicas avoid each other's nodes, and a drain takes one at a time; one alone has no budget."""
    rendered = _render(tmp_path)

    spec = rendered["Deployment", "messaging-operator"]["spec"]
    assert spec["replicas"] == 2
    assert "podAntiAffinity" in spec["template"]["spec"]["affinity"]
    assert rendered["PodDisruptionBudget", "messaging-operator"]["spec"]["maxUnavailable"] == 1
    assert not [kind for kind, _ in _render(tmp_path, {"replicas": 1}) if kind == "PodDisruptionBudget"]


@needs_helm
def test_brokers_run_the_operators_image_unless_another_is_named(tmp_path: Path) -> None:
    """The image is told with its tag or digest; `brokerImage` is told instead."""
    digest = "sha256:" + "0" * 64

    assert _environment(_render(tmp_path))["BROKERSET_SET_image"] == "brokerset:0.1.0"
    pinned = _render(tmp_path, {"image": {"repository": "registry.example.com/b", "digest": digest}})
    assert _environment(pinned)["BROKERSET_SET_image"] == f"registry.example.com/b@{digest}"
    assert _environment(_render(tmp_path, {"brokerImage": "other:2"}))["BROKERSET_SET_image"] == "other:2"


@needs_helm
def test_policies_of_sets_know_the_operator_by_labels_that_all_its_pods_have(tmp_path: Path) -> None:
    """Those that select the Deployment's pods, which never change; further labels do not matter."""
    rendered = _render(tmp_path, {"podLabels": {"team": "a"}})
    spec = rendered["Deployment", "messaging-operator"]["spec"]

    found = dict(each.split("=") for each in _environment(rendered)["BROKERSET_SET_podLabels"].split(","))

    assert found == spec["selector"]["matchLabels"]
    assert found.items() <= spec["template"]["metadata"]["labels"].items()


@needs_helm
def test_crds_are_upgraded_with_the_release_and_survive_it(tmp_path: Path) -> None:
    """CRDs are templates with helm's mark to keep them, and mean the same as the project's own."""
    rendered = _render(tmp_path)
    own = {
        found["metadata"]["name"]: found
        for found in (
            yaml.load(file.read_text(), yaml.CSafeLoader) for file in sorted((ROOT / "crds").glob("*.yaml"))
        )
    }

    there = {name: each for (kind, name), each in rendered.items() if kind == "CustomResourceDefinition"}
    assert sorted(there) == sorted(own)
    for name, each in there.items():
        assert each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        assert each["spec"] == own[name]["spec"]
    gone = _render(tmp_path, {"crds": {"install": False}})
    assert not [name for kind, name in gone if kind == "CustomResourceDefinition"]


@needs_helm
def test_dashboards_are_found_by_grafana(tmp_path: Path) -> None:
    """There is a labelled ConfigMap for each dashboard file of the chart, and none when switched off."""
    files = sorted(file.name for file in (CHART / "dashboards").glob("*.json"))

    made = [each for (kind, _), each in _render(tmp_path).items() if kind == "ConfigMap"]
    assert sorted(name for each in made for name in each["data"]) == files
    for each in made:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        for text in each["data"].values():
            json.loads(text)
    off = _render(tmp_path, {"dashboards": {"enabled": False}})
    assert not [kind for kind, _ in off if kind == "ConfigMap"]


@needs_helm
@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"replicas": 0}, "replicas"),
        ({"replicas": "two"}, "replicas"),
        ({"watchNamespace": ["a"]}, "watchNamespace"),
        ({"watchNamespaces": "a"}, "watchNamespaces"),
        ({"watchNamespaces": ["A"]}, "watchNamespaces"),
        ({"watchNamespaces": ["a", "a"]}, "watchNamespaces"),
        ({"image": {"repository": "", "tag": "1"}}, "image"),
        ({"image": {"repository": "b", "digest": "0123"}}, "image"),
        ({"image": {"repository": "b", "pullPolicy": "Sometimes"}}, "image"),
        ({"crds": {"instal": True}}, "crds"),
        ({"logLevel": "loud"}, "logLevel"),
        ({"spark": {"executors": 3}}, "executors"),
        ({"spark": {"image": "x"}}, "image"),
        ({"settings": {"worker": 8}}, "settings"),
        ({"settings": {"workers": 0}}, "settings"),
        ({"podLabels": {"a": 1}}, "podLabels"),
        ({"securityContext": {"privileged": True}}, "securityContext"),
        ({"fullnameOverride": "Upper"}, "fullnameOverride"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_wrong_values_are_refused(tmp_path: Path, values: dict[str, Any], field: str) -> None:
    """The schema names the value that is unknown or ill-formed, and nothing is rendered."""
    answer = template(tmp_path, values)

    assert answer.returncode != 0
    assert field in answer.stderr


@needs_helm
def test_the_operator_accepts_what_the_chart_sets(tmp_path: Path) -> None:
    """Every variable is a setting of the operator, and its Lease is the one that the Role names."""
    rendered = _render(
        tmp_path,
        {
            "watchNamespaces": ["shop"],
            "spark": {"executors": True},
            "settings": {
                "workers": 4,
                "resyncSeconds": 60,
                "leaseSeconds": 30,
                "apiTimeoutSeconds": 5,
                "trustSpreadSeconds": 90,
            },
        },
    )
    variables = {name: value or "from the pod" for name, value in _environment(rendered).items()}

    found = load(OperatorSettings, ("environment", from_environment(variables)))

    assert found.image == "brokerset:0.1.0"
    assert found.namespace_list == ("shop",)
    assert (found.workers, found.resync_seconds) == (4, 60)
    named = {
        rule["resources"][0]: rule["resourceNames"] for rule in _rules(rendered) if "resourceNames" in rule
    }
    assert named == {"leases": [found.lease_name], "roles": [found.spark_role.removeprefix("Role/")]}
    assert found.spark_image == "brokerset-spark:0.1.0"


def _environment(rendered: Rendered) -> dict[str, Any]:
    (container,) = rendered["Deployment", "messaging-operator"]["spec"]["template"]["spec"]["containers"]
    return {item["name"]: item.get("value") for item in container["env"]}


@needs_helm
def test_who_may_edit_sets_may_scale_them(tmp_path: Path) -> None:
    """`kubectl scale` writes a subresource, for which the right to write the set is not enough."""
    rendered = _render(tmp_path)

    def verbs(role: str) -> set[str]:
        rules = rendered["ClusterRole", f"system:messaging-operator:{role}"]["rules"]
        return {verb for rule in rules if "brokersets/scale" in rule["resources"] for verb in rule["verbs"]}

    assert verbs("view") == {"get"}
    assert verbs("edit") == {"update", "patch"}
