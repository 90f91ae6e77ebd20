"""A kubectl that answers from files, and the verbs called in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from brokerset_cli.kubernetes import edits
from brokerset_cli.kubernetes.command import kubernetes

Object = dict[str, Any]


def pod(name: str, **status: Any) -> Object:
    """A pod of the set `orders` that runs and is ready."""
    resource, _, ordinal = name.rpartition("-")
    labels = {"brokerset.io/set": "orders", "app.kubernetes.io/component": "controller"}
    if not resource.endswith("-controller"):
        labels |= {"app.kubernetes.io/component": "broker", "brokerset.io/group": resource}
    component = labels["app.kubernetes.io/component"]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "uid": f"uid-{name}", "labels": labels},
        "spec": {"nodeName": f"node-{ordinal}", "containers": [{"name": component, "image": "brokerset:1"}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": component, "restartCount": 0, "state": {"running": {}}}],
            **status,
        },
    }


def condition(kind: str, status: str, reason: str, message: str = "") -> Object:
    """A condition of the set's status."""
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def broker_set(**status: Any) -> Object:
    """The set `orders`: a group of three brokers, in epoch 3, with broker 1 as master."""
    brokers = [
        {"id": n, "pod": f"orders-0-{n - 1}", "role": "slave", "maxOffset": 1000 - n, "lagBytes": n}
        for n in (1, 2, 3)
    ]
    brokers[0] |= {"role": "master", "lagBytes": 0}
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "BrokerSet",
        "metadata": {
            "name": "orders",
            "namespace": "shop",
            "generation": 2,
            "resourceVersion": "7",
            "annotations": {},
        },
        "spec": {"groups": 1, "replicas": 3, "controllers": {"replicas": 3}},
        "status": {
            "observedGeneration": 2,
            "phase": "Ready",
            "inSync": "3/3",
            "conditions": [
                condition("Ready", "True", "AsWanted", "every group has a master"),
                condition("Progressing", "False", "Done"),
                condition("Degraded", "False", "None"),
            ],
            "controllers": {
                "leader": 0,
                "ready": 3,
                "replicas": 3,
                "members": [0, 1, 2],
                "voters": [0, 1, 2],
            },
            "groups": [
                {
                    "name": "orders-0",
                    "epoch": 3,
                    "master": {"id": 1, "pod": "orders-0-0"},
                    "inSync": [1, 2, 3],
                    "brokers": brokers,
                }
            ],
            **status,
        },
    }


class FakeCluster:
    """The files that the fake kubectl answers from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("set.json", broker_set())
        names = [f"orders-{kind}-{n}" for kind in ("0", "controller") for n in range(3)]
        self.write("pods.json", [pod(name) for name in names])

    def write(self, name: str, value: object) -> None:
        """Let a file be this JSON document."""
        (self.folder / name).write_text(json.dumps(value))

    def log(self, name: str, text: str) -> None:
        """Let a pod have this log."""
        (self.folder / "logs").mkdir(exist_ok=True)
        (self.folder / "logs" / f"{name}.log").write_text(text)

    def fails(self, call: str, error_text: str) -> None:
        """Let a verb, or a verb and a kind, fail with this text."""
        (self.folder / "fails").mkdir(exist_ok=True)
        (self.folder / "fails" / call).write_text(error_text)

    def fails_list(self, error_text: str) -> None:
        """Let a look at all BrokerSets, not at one, fail with this text."""
        self.fails("list", error_text)

    def operator(self, *steps: tuple[Mapping[str, str | None], Mapping[str, Any]]) -> None:
        """Let the operator change the status, step by step, when it sees annotations."""
        self.write("operator.json", [list(step) for step in steps])

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations of the set as they are now."""
        found: dict[str, str] = json.loads((self.folder / "set.json").read_text())["metadata"]["annotations"]
        return found

    def annotate(self, **values: str) -> None:
        """Let the set have annotations `brokerset.io/<name>`, with _ for -."""
        item = json.loads((self.folder / "set.json").read_text())
        item["metadata"]["annotations"] = {
            f"brokerset.io/{key.replace('_', '-')}": value for key, value in values.items()
        }
        self.write("set.json", item)

    def calls(self, verb: str = "") -> list[list[str]]:
        """The calls of kubectl, or those with this verb."""
        file = self.folder / "calls"
        found: list[list[str]] = (
            [json.loads(x) for x in file.read_text().splitlines()] if file.exists() else []
        )
        return [call for call in found if not verb or verb in call]

    def run(self, *arguments: str) -> Result:
        """Call `kubectl brokerset …`."""
        return CliRunner().invoke(kubernetes, list(arguments))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """A kubectl in front of a cluster of files, with the set `orders`; looks come quickly."""
    program = tmp_path / "kubectl"
    fake = Path(__file__).with_name("fake_kubectl.py")
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -SE {fake} "$@"\n')
    program.chmod(0o755)
    folder = tmp_path / "cluster"
    folder.mkdir()
    monkeypatch.setenv("KUBECTL", str(program))
    monkeypatch.setenv("FAKE_KUBECTL", str(folder))
    monkeypatch.setattr(edits, "POLL_SECONDS", 0.01)
    return FakeCluster(folder)
