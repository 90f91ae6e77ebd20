"""A cluster with a set, and the verbs called in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from click.testing import CliRunner, Result

from brokerset_cli.kubernetes import edits
from brokerset_cli.kubernetes.command import kubernetes
from brokerset_rig.fake_kube import Call, FakeKube, Fault, kubeconfig, merge_patch

Object = dict[str, Any]
T = TypeVar("T")

SECONDS_MAX: Final = 10.0


def pod(name: str, **status: Any) -> Object:
    """A pod of the set `orders` that runs and is ready."""
    resource, _, ordinal = name.rpartition("-")
    labels = {"brokerset.io/set": "orders", "app.kubernetes.io/component": "controller"}
    if not resource.endswith("-controller"):
        labels |= {"app.kubernetes.io/component": "broker", "brokerset.io/group": resource}
    component = labels["app.kubernetes.io/component"]
    return {
        "apiVersion": "v1",
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
    """An API server in a thread of its own, with the set `orders` in the namespace `shop`."""

    def __init__(self, kube: FakeKube, loop: asyncio.AbstractEventLoop) -> None:
        self.kube = kube
        self._loop = loop
        self._steps: list[tuple[Mapping[str, str | None], Mapping[str, Any]]] = []
        self.conflicts = 0
        """How many changes of the set find that somebody was faster, who sets `annotations_of_others`."""

        self.annotations_of_others: dict[str, str] = {}
        self.written: list[dict[str, str]] = []
        """Annotations of the set after each change of them."""

        kube.on_call = self._called
        self.set(broker_set())
        self.pods([pod(f"orders-{kind}-{n}") for kind in ("0", "controller") for n in range(3)])

    def do(self, work: Callable[[], T]) -> T:
        """Do something where the server runs."""

        async def done() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(SECONDS_MAX)

    def put(self, *manifests: Object) -> None:
        """Let there be these objects."""
        for each in manifests:
            self.do(partial(self.kube.put, each))

    def remove(self, plural: str) -> None:
        """Let there be none of a kind."""
        keys = [key for key in self.kube.objects if key[1] == plural]
        for _, _, namespace, name in keys:
            self.do(partial(self.kube.remove, plural, name, namespace))

    def set(self, item: Object) -> None:
        """Let the set be this one."""
        self.remove("brokersets")
        self.put(item)

    def pods(self, pods: list[Object]) -> None:
        """Let there be these pods and no others."""
        self.remove("pods")
        self.put(*pods)

    def log(self, name: str, text: str) -> None:
        """Let a pod have this log; `<name>.previous` is that of its container before the last restart."""
        self.kube.logs[name] = text

    def operator(self, *steps: tuple[Mapping[str, str | None], Mapping[str, Any]]) -> None:
        """Let the operator change the status, one step at each look, when the set has these annotations."""
        self._steps = list(steps)

    def fault(self, verb: str, plural: str, code: int, message: str) -> None:
        """Let every such request fail."""
        self.kube.faults.append(Fault(verb, plural, code, "", message, times=1000))

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations of the set as they are now."""
        item = self.kube.get("brokersets", "orders", "shop")
        assert item is not None
        return dict(item["metadata"].get("annotations", {}))

    def annotate(self, **values: str) -> None:
        """Let the set have annotations `brokerset.io/<name>`, with _ for -."""
        given = {f"brokerset.io/{key.replace('_', '-')}": value for key, value in values.items()}
        self.do(lambda: self._change(lambda item: item["metadata"].update(annotations=given)))

    def queries(self, subresource: str) -> list[Mapping[str, str]]:
        """How a part of pods was asked for."""
        return [call.query for call in self.kube.calls if call.subresource == subresource]

    def run(self, *arguments: str) -> Result:
        """Call `kubectl brokerset …`."""
        return CliRunner().invoke(kubernetes, list(arguments))

    def _change(self, edit: Callable[[Object], None]) -> None:
        self.kube.change("brokersets", "orders", "shop", edit)

    def _called(self, call: Call) -> None:
        item = self.kube.get("brokersets", "orders", "shop")
        if call.plural != "brokersets" or item is None:
            return
        have = item["metadata"].get("annotations", {})
        if have not in self.written[-1:]:
            self.written.append(dict(have))
        if call.verb == "patch" and self.conflicts:
            self.conflicts -= 1
            self._change(lambda item: item["metadata"]["annotations"].update(self.annotations_of_others))
            self._change(lambda item: item["metadata"].update(labels={"changed": str(self.conflicts)}))
        if call.verb != "patch" and self._steps:
            wanted, changes = self._steps[0]
            if all(have.get(key) == value for key, value in wanted.items()):
                del self._steps[0]
                self._change(lambda item: merge_patch(item["status"], changes))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """A cluster that the kubeconfig leads to; looks come quickly."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    kube = FakeKube()
    try:
        asyncio.run_coroutine_threadsafe(kube.__aenter__(), loop).result(SECONDS_MAX)
        (tmp_path / "kubeconfig").write_text(kubeconfig(kube.url, "shop"))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        monkeypatch.setattr(edits, "POLL_SECONDS", 0.01)
        yield FakeCluster(kube, loop)
    finally:
        asyncio.run_coroutine_threadsafe(kube.__aexit__(), loop).result(SECONDS_MAX)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
