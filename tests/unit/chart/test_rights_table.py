"""What each account of the chart may do is written down in `rights.txt`; whatever is wider, or less, fails.

To change a right on purpose: `REWRITE_RIGHTS=1 pytest tests/unit/chart/test_rights_table.py`, and have the
difference reviewed as what it is, a right in clusters of other people.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.chart.test_chart import needs_helm, template
from tests.unit.operator.resources.sets import build

TABLE = Path(__file__).parent / "rights.txt"

INSTALLATIONS: Mapping[str, Mapping[str, Any]] = {
    "as it comes": {},
    "with namespaces and executors": {"watchNamespaces": ["shop"], "spark": {"executors": True}},
    "with executors": {"spark": {"executors": True}},
    "with namespaces and certificates": {
        "watchNamespaces": ["shop"],
        "tls": {"authority": {"enabled": True}, "certManager": {"enabled": True}},
    },
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


def written(tmp_path: Path) -> str:
    """The whole table as it is now."""
    found = []
    for name, values in INSTALLATIONS.items():
        answer = template(tmp_path, values)
        assert answer.returncode == 0, answer.stderr
        objects = [each for each in yaml.load_all(answer.stdout, yaml.CSafeLoader) if each]
        found.append(f"# The chart {name}\n" + "".join(f"{line}\n" for line in sorted(rights(objects))))
    of_set = build({"tls": {"secretName": "orders-tls"}, "groups": 2})
    own = sorted(rights(of_set.values()))
    found.append("# A BrokerSet with two groups, as the operator makes it\n" + "".join(f"{x}\n" for x in own))
    return "\n".join(found)


@needs_helm
def test_every_account_has_the_rights_that_are_written_down_and_no_other(tmp_path: Path) -> None:
    """A right that is added, widened or left out shows as a line of the table that differs."""
    now = written(tmp_path)

    if os.environ.get("REWRITE_RIGHTS"):
        TABLE.write_text(now, encoding="utf-8")
    assert now.splitlines() == TABLE.read_text(encoding="utf-8").splitlines()


def test_nobody_is_given_everything_or_secrets_unasked() -> None:
    """Also in an environment without helm: what is written down is checked by itself."""
    asked = False
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        asked = "certificates" in line if line.startswith("# ") else asked
        assert "*" not in line
        assert "/secrets" not in line or (asked and line.endswith("core/secrets: create get update"))
        assert "impersonate" not in line
        assert "escalate" not in line


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
