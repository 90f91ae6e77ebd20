"""Every object of whole sets, compared with files that people have read.

`pytest tests/unit/operator/resources --rewrite` writes the files again; the difference is to be reviewed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.operator.resources.sets import KINDS, observe, wanted

FOLDER = Path(__file__).parent / "golden"

PRODUCTION: Mapping[str, Any] = {
    "groups": 2,
    "brokerNames": ["broker-a", "broker-b"],
    "replicas": 3,
    "replication": {"acknowledge": "allInSync", "minInSyncReplicas": 2},
    "controllers": {"replicas": 3},
    "storage": {"size": "500Gi", "className": "fast", "whenDeleted": "Retain"},
    "config": {"flushDiskType": "SYNC_FLUSH", "fileReservedTime": 168, "mappedFileSizeCommitLog": 1073741824},
    "advertise": "masterService",
    "update": {"strategy": "supervised"},
    "monitoring": {"podMonitor": True},
    "podTemplate": {
        "metadata": {"annotations": {"example.com/team": "payments"}, "labels": {"team": "payments"}},
        "resources": {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "8Gi"}},
        "tolerations": [{"key": "dedicated", "value": "messaging", "effect": "NoSchedule"}],
        "nodeSelector": {"node.kubernetes.io/instance-type": "storage"},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "priorityClassName": "messaging",
        "imagePullSecrets": [{"name": "registry"}],
        "env": [{"name": "TZ", "value": "UTC"}],
    },
}


DLEDGER: Mapping[str, Any] = {"replication": {"mode": "dledger"}}
"""Groups that elect their leaders, and name servers alone."""


class _Plain(yaml.SafeDumper):
    """Writes everything out, so that each object can be read by itself, and texts line by line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Plain.add_representer(str, _text)


@pytest.mark.parametrize(
    ("name", "spec", "seen"),
    [("smallest", {}, {}), ("production", PRODUCTION, {"api_kinds": KINDS}), ("dledger", DLEDGER, {})],
)
def test_all_objects_of_a_set_are_as_written_down(
    name: str,
    spec: Mapping[str, Any],
    seen: Mapping[str, Any],
    pytestconfig: pytest.Config,
) -> None:
    """What is built for a manifest is, to the letter, what stands in the golden file."""
    file = FOLDER / f"{name}.yaml"

    found = "---\n".join(
        yaml.dump(dict(each), Dumper=_Plain, width=120) for each in wanted(observe(spec, **seen))
    )

    if pytestconfig.getoption("--rewrite"):
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8"), "read the difference, then run pytest with --rewrite"
