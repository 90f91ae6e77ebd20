"""What each account may do is written down in `rights.txt`, and which pods run as it and get its token.

Of the chart, of sets, and of jobs on store files with their Spark drivers and executors. Whatever is wider,
or less, fails.

To change a right on purpose: `REWRITE_RIGHTS=1 pytest tests/unit/chart/test_rights_table.py`, and have the
difference reviewed as what it is, a right in clusters of other people.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.unit.chart.test_chart import needs_helm, template
from tests.unit.operator.resources.sets import build
from tests.unit.operator.store_jobs.worlds import (
    NIGHT,
    AuditWorld,
    ExportWorld,
    audit_manifest,
    export_manifest,
    migration_manifest,
    observed_migration,
)

from brokerset_operator.model.actions import ApplyObject
from brokerset_operator.store_jobs.migration_plan import plan_migration
from brokerset_spec.store_audit_manifest import read_store_audit
from brokerset_spec.store_export_manifest import read_store_export
from brokerset_spec.store_migration_manifest import read_store_migration

TABLE = Path(__file__).parent / "rights.txt"

INSTALLATIONS: Mapping[str, Mapping[str, Any]] = {
    "as it comes": {},
    "with namespaces and executors": {"watchNamespaces": ["shop"], "spark": {"executors": True}},
    "with executors": {"spark": {"executors": True}},
    "with namespaces and certificates": {
        "watchNamespaces": ["shop"],
        "tls": {"authority": {"enabled": True}, "certManager": {"enabled": True}},
    },
    "with namespaces and users": {"watchNamespaces": ["shop"], "secrets": {"access": True}},
    "with everything that watches": {
        "replicas": 2,
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
    },
}
"""Values of the chart, by what they stand for."""

ROLES = frozenset({"Role", "ClusterRole"})
BINDINGS = frozenset({"RoleBinding", "ClusterRoleBinding"})
PARTS = frozenset({"apiGroups", "resources", "resourceNames", "verbs"})


def rights(objects: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each right that is given: who has it, where, on what, and what may be done."""
    listed = list(objects)
    roles = {key(each["kind"], each["metadata"]): each for each in listed if each["kind"] in ROLES}
    bound = set()
    for binding in (each for each in listed if each["kind"] in BINDINGS):
        space = binding["metadata"].get("namespace", "")
        ref = binding["roleRef"]
        at = (ref["kind"], ref["name"], space if ref["kind"] == "Role" else "")
        assert at in roles, f"{binding['metadata']['name']} gives a role that somebody else makes: {ref}"
        bound.add(at)
        place = f"in {space}" if binding["kind"] == "RoleBinding" else "everywhere"
        for subject in binding["subjects"]:
            who = f"{subject['kind']} {subject['namespace']}/{subject['name']}"
            yield from (f"{who} {place}: {line}" for line in lines(roles[at]["rules"]))
    for at in sorted(roles.keys() - bound):
        labels = sorted(name for name in roles[at]["metadata"].get("labels", {}) if "aggregate-to" in name)
        who = "who has " + ", ".join(name.rpartition("-to-")[2] for name in labels)
        who = who if labels else f"nobody yet ({at[0]} {at[1]})"
        yield from (f"{who}: {line}" for line in lines(roles[at]["rules"]))


def key(kind: str, metadata: Mapping[str, Any]) -> tuple[str, str, str]:
    """Which role it is."""
    return kind, metadata["name"], metadata.get("namespace", "")


def lines(rules: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Rules, one resource to a line."""
    for rule in rules:
        assert rule.keys() <= PARTS, f"a part of a rule that the table does not show: {rule}"
        names = " ".join(f"[{name}]" for name in sorted(rule.get("resourceNames", ())))
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                yield f"{group or 'core'}/{resource}{names}: {' '.join(sorted(rule['verbs']))}"


EXECUTORS: Final = {"executors": {"instances": 2}}


def objects_of_jobs(role: str) -> list[dict[str, Any]]:
    """What the operator makes for each kind of job; with a role of drivers they have executors."""
    spec = EXECUTORS if role else {}
    audit = AuditWorld(manifest=read_store_audit(audit_manifest()), spark_role=role)
    audit.reconcile(now=NIGHT)
    audit.run()
    export = ExportWorld(manifest=read_store_export(export_manifest(**spec)), spark_role=role)
    export.begin()
    migration = observed_migration(
        manifest=read_store_migration(migration_manifest(engine="spark", **spec)),
        status={"phase": "Running"},
        spark_role=role,
    )
    actions = [action for plan in (*audit.plans, plan_migration(migration)) for action in plan.actions]
    made = [dict(each.manifest) for each in actions if isinstance(each, ApplyObject)]
    return [*made, *export.made]


def accounts(objects: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each kind of pod: whose account it runs as, and whether it gets the token of that."""
    for each in objects:
        name = f"{each['kind']} {each['metadata']['name']}"
        if each["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield f"{name}: {account(each['spec']['template']['spec'])}"
        elif each["kind"] == "Pod":
            yield f"{name}: {account(each['spec'])}"
        elif each["kind"] == "ConfigMap" and "executor.yaml" in each["data"]:
            yield f"executors of {name}: {account(json.loads(each['data']['executor.yaml'])['spec'])}"


def account(pod: Mapping[str, Any]) -> str:
    """Without a name it is the namespace's `default`, which the operator gives nothing."""
    sources = [
        source
        for volume in pod.get("volumes", ())
        for source in volume.get("projected", {}).get("sources", ())
    ]
    given = pod.get("automountServiceAccountToken", True) or any("serviceAccountToken" in s for s in sources)
    return f"{pod.get('serviceAccountName', 'default')}, {'its' if given else 'no'} token"


def section(title: str, found: Iterable[str]) -> str:
    """A part of the table."""
    return f"# {title}\n" + "".join(f"{line}\n" for line in sorted(set(found)))


def written(tmp_path: Path) -> str:
    """The whole table as it is now."""
    found, pods = [], []
    for name, values in INSTALLATIONS.items():
        answer = template(tmp_path, values)
        assert answer.returncode == 0, answer.stderr
        objects = [each for each in yaml.load_all(answer.stdout, yaml.CSafeLoader) if each]
        (operator,) = (each for each in objects if each["kind"] == "Deployment")
        (container,) = operator["spec"]["template"]["spec"]["containers"]
        (role,) = (each["value"] for each in container["env"] if each["name"] == "BROKERSET_SET_sparkRole")
        jobs = objects_of_jobs(role)
        pods += [*objects, *jobs]
        found.append(section(f"The chart {name}", rights([*objects, *(jobs if role else ())])))
        assert role or not list(rights(jobs)), "a job without executors has no right at all"
    of_set = build({"tls": {"secretName": "orders-tls"}, "groups": 2})
    found.append(section("A BrokerSet with two groups, as the operator makes it", rights(of_set.values())))
    pods += [*of_set.values(), *build({"replication": {"mode": "dledger"}}, name="ledger").values()]
    found.append(section("Accounts of pods", accounts(pods)))
    return "\n".join(found)


@needs_helm
def test_a_certificate_takes_no_right(tmp_path: Path) -> None:
    """The kubelet mounts the Secret: the operator may read none."""
    found = []
    for values in ({}, {"operatorTls": {"secretName": "operator-tls"}}):
        objects = yaml.load_all(template(tmp_path, values).stdout, yaml.CSafeLoader)
        found.append(sorted(rights(each for each in objects if each)))

    assert found[0] == found[1] != []


@needs_helm
def test_every_account_has_the_rights_that_are_written_down_and_no_other(tmp_path: Path) -> None:
    """A right that is added, widened or left out shows as a line of the table that differs."""
    now = written(tmp_path)

    if os.environ.get("REWRITE_RIGHTS"):
        TABLE.write_text(now, encoding="utf-8")
    assert now.splitlines() == TABLE.read_text(encoding="utf-8").splitlines()


def test_nobody_is_given_everything_or_secrets_unasked() -> None:
    """Also in an environment without helm: what is written down is checked by itself."""
    switches = {
        "certificates": "core/secrets: create get update",
        "users": "core/secrets: create get list patch watch",
    }
    asked = ""
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            asked = next((right for name, right in switches.items() if line.endswith(f" {name}")), "")
        assert "*" not in line
        assert "/secrets" not in line or (asked and line.endswith(asked))
        assert "impersonate" not in line
        assert "escalate" not in line


def test_only_who_asks_the_api_server_has_a_token() -> None:
    """The operator, brokers, and drivers that make executors: nobody can steal what a pod does not have."""
    _, _, listed = TABLE.read_text(encoding="utf-8").partition("# Accounts of pods\n")

    with_token = [line for line in listed.splitlines() if line.endswith(", its token")]

    who = {line.rpartition(": ")[2].removesuffix(", its token") for line in with_token}
    assert all(each.endswith(("-operator", "-broker", "-driver")) for each in who), who
    assert len(with_token) < len(listed.splitlines()) / 2
    assert ": default, its token" not in listed


def test_a_token_that_is_mounted_in_either_way_is_seen() -> None:
    """By default, by its name, or as a volume; a pod's own `false` alone keeps it away."""
    token = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    off: dict[str, Any] = {"automountServiceAccountToken": False, "volumes": []}

    assert account(off) == "default, no token"
    assert account({"volumes": []}) == "default, its token"
    assert account({**off, "volumes": [token], "serviceAccountName": "a"}) == "a, its token"


def test_a_widened_rule_is_another_line() -> None:
    """One verb more, one name fewer, one binding more: each is seen."""
    role = {"kind": "Role", "metadata": {"name": "a", "namespace": "s"}}
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["one"], "verbs": ["get"]}
    binding = {
        "kind": "RoleBinding",
        "metadata": {"name": "a", "namespace": "s"},
        "roleRef": {"kind": "Role", "name": "a"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "s", "name": "a"}],
    }

    def shown(**changed: Any) -> list[str]:
        return list(rights([{**role, "rules": [{**rule, **changed}]}, binding]))

    assert shown() == ["ServiceAccount s/a in s: core/secrets[one]: get"]
    assert shown(verbs=["get", "list"]) != shown()
    assert shown(resourceNames=[]) == ["ServiceAccount s/a in s: core/secrets: get"]
    with pytest.raises(AssertionError, match="does not show"):
        shown(nonResourceURLs=["/"])
    with pytest.raises(AssertionError, match="somebody else makes"):
        list(rights([{**binding, "roleRef": {"kind": "ClusterRole", "name": "cluster-admin"}}]))
