"""A BrokerSet on the cluster, as tests see it; and load on it from inside the cluster."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.e2e.kubernetes.pod_process import PodProcess
from tests.e2e.kubernetes.rig import AT_ONCE, HERE, Client, Cluster, Object, broker_set, until

LOAD_FILE: Final = "/tmp/load.py"
SAVE: Final = f"import sys; open({LOAD_FILE!r}, 'w').write(sys.stdin.read())"

ANSWER_SECONDS: Final = 30.0
VERDICT_SECONDS: Final = 240.0
"""Longest time until a load has read everything back."""

READY_SECONDS: Final = 60.0
"""How soon a new set must serve clients."""

SETTLE_SECONDS: Final = 180.0
RATE: Final = 100.0
"""Messages in a second that tests send while something happens."""


@dataclass(slots=True)
class Deployed:
    """One BrokerSet with its pods."""

    cluster: Cluster
    namespace: str
    name: str = "orders"

    def create(self, **spec: Any) -> None:
        """Apply the manifest, and wait until clients are served. Volumes go with the set."""
        storage = {"size": "1Gi", "whenDeleted": "Delete"}
        self.cluster.apply(broker_set(self.name, self.namespace, **{"storage": storage, **spec}))
        self.cluster.wait_condition("brokerset", self.name, self.namespace, "Ready", seconds=READY_SECONDS)

    def change(self, **spec: Any) -> None:
        """Patch the manifest."""
        self.cluster.patch("brokerset", self.name, self.namespace, {"spec": spec})

    def annotate(self, **annotations: str | None) -> None:
        """Set annotations of the product."""
        self.cluster.annotate("brokerset", self.name, self.namespace, **annotations)

    @property
    def status(self) -> Object:
        """What the operator tells."""
        found = self.cluster.must_get("brokerset", self.name, self.namespace)
        status: Object = found["status"]
        return status

    def condition(self, kind: str) -> Object:
        """A condition; one that is absent counts as false."""
        found = self.cluster.condition("brokerset", self.name, self.namespace, kind)
        return found or {"type": kind, "status": "False", "reason": "Absent", "message": ""}

    def ids(self) -> dict[str, int]:
        """Id of the broker in each pod."""
        groups = self.status["groups"]
        return {
            broker["pod"]: broker["id"]
            for group in groups
            for broker in group.get("brokers", ())
            if "pod" in broker
        }

    def all_ids(self, group: int = 0) -> list[int]:
        """Ids that the controllers know, with or without a pod."""
        return sorted(broker["id"] for broker in self.status["groups"][group]["brokers"])

    def roles(self, group: int = 0) -> dict[int, str]:
        """Role of each id that the controllers know: master, slave, fenced, dead."""
        return {broker["id"]: broker["role"] for broker in self.status["groups"][group]["brokers"]}

    def master(self, group: int = 0) -> str:
        """Pod of a group's master."""
        name: str = self.status["groups"][group]["master"]["pod"]
        return name

    def epoch(self, group: int = 0) -> int:
        """Master epoch of a group."""
        number: int = self.status["groups"][group]["epoch"]
        return number

    def pods(self, component: str = "") -> dict[str, Object]:
        """The set's pods by name; `component` is `broker` or `controller`."""
        selector = f"brokerset.io/set={self.name}"
        if component:
            selector += f",app.kubernetes.io/component={component}"
        return {pod["metadata"]["name"]: pod for pod in self.cluster.items("pods", self.namespace, selector)}

    def uids(self, component: str = "") -> dict[str, str]:
        """Pods' uids by name."""
        return {name: pod["metadata"]["uid"] for name, pod in self.pods(component).items()}

    def ips(self) -> dict[str, str]:
        """Pods' addresses by name."""
        return {name: pod["status"]["podIP"] for name, pod in self.pods().items()}

    def ready(self, component: str = "") -> list[str]:
        """Names of the pods that are ready."""
        return [name for name, pod in self.pods(component).items() if is_ready(pod)]

    def delete_pods(self, *pods: str, force: bool = False) -> None:
        """Delete pods without waiting."""
        self.cluster.delete("pod", *pods, namespace=self.namespace, **(AT_ONCE if force else {}))

    def wait_settled(
        self, brokers: int = 3, controllers: int = 3, *, groups: int = 1, seconds: float = SETTLE_SECONDS
    ) -> None:
        """Wait until all pods are ready, all brokers in sync, and nothing is left to be done."""

        def check() -> bool:
            for component, count in (("broker", brokers * groups), ("controller", controllers)):
                pods = self.pods(component)
                ready = [name for name, pod in pods.items() if is_ready(pod)]
                if len(ready) != count or len(pods) != count:
                    raise ValueError(f"{component} pods {sorted(pods)}, ready are {ready}, wanted {count}")
            found = self.cluster.must_get("brokerset", self.name, self.namespace)
            generation, status = found["metadata"]["generation"], found["status"]
            conditions = {one["type"]: one for one in status["conditions"]}
            wanted = f"{brokers * groups}/{brokers * groups}"
            if (
                conditions["Ready"]["status"] == "True"
                and conditions["Progressing"]["status"] == "False"
                and conditions["Ready"]["observedGeneration"] == generation
                and status["inSync"] == wanted
                and len(status["groups"]) == groups
            ):
                return True
            shown = [
                f"{one['type']}={one['status']} {one['reason']} {one['message']}"
                for one in conditions.values()
            ]
            raise ValueError(f"in sync {status['inSync']}, wanted {wanted}; {shown}")

        until(f"{self.name} has settled", check, seconds, pause=0.5)

    def wait_replaced(self, before: dict[str, str], seconds: float = SETTLE_SECONDS) -> None:
        """Wait until other pods than `before` (uids by name) have these names."""

        def check() -> bool:
            now = self.uids()
            return all(now.get(name) not in (None, uid) for name, uid in before.items())

        until(f"{sorted(before)} are new pods", check, seconds, pause=0.5)

    def client(self, topic: str = "", only: str = "") -> Client:
        """A pod of our image, with a topic if one is named; `only` is the brokers' cluster that gets it."""
        client = self.cluster.client(self.namespace, self.name)
        if topic:
            client.create_topic(topic, only=only)
        return client

    @contextlib.contextmanager
    def load(
        self,
        topic: str = "events",
        *,
        rate: float = RATE,
        scan: bool = True,
        only: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Iterator[Load]:
        """Write and read while the block runs, and until `finish` is called; `env` is that of the program."""
        client = self.client(topic, only)
        load = Load(client, topic, rate=rate, scan=scan, env=env)
        try:
            yield load
        finally:
            load.end()


def is_ready(pod: Object) -> bool:
    """Whether a pod is ready and not on its way out."""
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions") or ()}
    return "deletionTimestamp" not in pod["metadata"] and conditions.get("Ready") == "True"


class Load:
    """A writer and a reader in the client's pod (`load.py`)."""

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        rate: float,
        scan: bool,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.client, self.topic = client, topic
        cluster = client.cluster
        program = (HERE / "load.py").read_text()
        cluster.execute(client.pod, client.namespace, "python", "-c", SAVE, given=program)
        options = {
            "namesrv": client.namesrv,
            "topic": topic,
            "rate": rate,
            "run": f"{topic}-{time.time_ns()}",
            "scan": scan,
        }
        variables = [f"{name}={value}" for name, value in (env or {}).items()]
        self._process = PodProcess(
            cluster,
            client.namespace,
            client.pod,
            *("env", *variables, "python", LOAD_FILE, json.dumps(options)),
        )
        self._answer(ANSWER_SECONDS + 30)

    def _answer(self, seconds: float) -> Object:
        answer: Object = json.loads(self._process.line(seconds))
        return answer

    def look(self) -> Object:
        """What happened since the last look: acked, failed, gapMs, reasons."""
        self._process.tell("look")
        return self._answer(ANSWER_SECONDS)

    def goes_on(self, messages: int = 50, seconds: float = 60.0) -> Object:
        """Wait until so many more are acknowledged; returns the sum of the looks, with the longest gap."""
        found: Object = {"acked": 0, "failed": 0, "gapMs": 0, "gapEndedAt": 0.0, "reasons": {}}

        def check() -> bool:
            seen = self.look()
            found["acked"] += seen["acked"]
            found["failed"] += seen["failed"]
            if seen["gapMs"] > found["gapMs"]:
                found["gapMs"], found["gapEndedAt"] = seen["gapMs"], seen["gapEndedAt"]
            found["reasons"] = seen["reasons"]
            if found["acked"] < messages:
                raise ValueError(f"{found}")
            return True

        until("sends are acknowledged", check, seconds)
        return found

    def finish(self) -> Object:
        """Stop writing, let the reader end, and judge: nothing acknowledged may be lost or unread."""
        self._process.tell("stop")
        verdict = self._answer(VERDICT_SECONDS)
        assert verdict["acked"] > 0, f"nothing was acknowledged: {verdict}"
        assert not verdict["lost"], f"acknowledged messages are lost: {verdict}"
        assert not verdict["unread"], f"acknowledged messages were never read: {verdict}"
        return verdict

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.end()
