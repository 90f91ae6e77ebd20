"""A real cluster for tests: found or started, with our image and chart in it, and clients inside."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from kubernetes.client import ApiException
from kubernetes.config import new_client_from_config
from kubernetes.dynamic import DynamicClient, ResourceList
from kubernetes.dynamic.exceptions import NotFoundError
from urllib3.exceptions import HTTPError

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[2]
OWN_CLUSTER: Final = ROOT / "tests" / "cluster"

SYSTEM: Final = "brokerset-system"
"""Namespace of the operator."""

RELEASE: Final = "brokerset"
OPERATOR: Final = f"{RELEASE}-operator"
"""Name of the operator's Deployment, Lease and account."""

IMAGE: Final = "brokerset"
SPARK_IMAGE: Final = "brokerset-spark"
TAG: Final = "e2e"
KIND_CLUSTER: Final = "brokerset-e2e"

CLIENT: Final = "client"
"""Name of the pod that `client` makes."""

CALL_SECONDS: Final = 60.0
"""Time-out of one kubectl call that does not wait for anything."""

BUILD_SECONDS: Final = 1200.0
START_SECONDS: Final = 600.0
POLL_SECONDS: Final = 0.25
LOG_LINES: Final = 2000
"""Most lines of each log that are kept when a test fails."""

AT_ONCE: Final = {"gracePeriodSeconds": 0}
"""How a pod is deleted that gets no time to end."""

POD_SECURITY: Final = {
    f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")
}

T = TypeVar("T")
Object = dict[str, Any]


class CommandFailed(AssertionError):
    """A command ended with an error; the text has what it said."""

    def __init__(self, command: Sequence[str], code: int | None, out: str, err: str) -> None:
        shown = shlex.join(command)
        ended = "took too long" if code is None else f"ended with {code}"
        super().__init__(f"{shown[:400]} {ended}:\n{out[-4000:]}\n{err[-4000:]}")
        self.code = code
        self.out = out
        self.err = err


def run(
    command: Sequence[str],
    *,
    given: str | None = None,
    seconds: float = CALL_SECONDS,
    env: Mapping[str, str] | None = None,
) -> str:
    """What a command prints. Raises `CommandFailed`."""
    try:
        done = subprocess.run(
            list(command),
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=dict(os.environ if env is None else env),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        out, err = ((part or b"").decode("utf-8", "replace") for part in (error.stdout, error.stderr))
        raise CommandFailed(command, None, out, err) from None
    if done.returncode:
        raise CommandFailed(command, done.returncode, done.stdout, done.stderr)
    return done.stdout


def until(what: str, check: Callable[[], T | None], seconds: float, pause: float = POLL_SECONDS) -> T:
    """Ask again and again until there is something true; fails with the last thing seen.

    Errors of commands and of the API count as not yet.
    """
    deadline = time.monotonic() + seconds
    last: object = None
    while True:
        try:
            found = check()
            if found:
                return found
            last = found
        except (CommandFailed, ApiException, HTTPError, KeyError, IndexError, ValueError) as error:
            last = error
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what}: not within {seconds:g} s; last seen: {last}")
        time.sleep(pause)


# -- where the cluster comes from -----------------------------------------------------------------------------


@dataclass(slots=True)
class Provider:
    """How a cluster is had, how an image gets in, and how it goes away again."""

    name: str
    kubeconfig: Path
    build: Callable[..., None]
    """Build our image under this name and let the cluster have it; `target` is one of the Dockerfile."""

    build_other: Callable[[Path, str], None]
    """Build an image of another folder with a Dockerfile under this name, and let the cluster have it."""

    end: Callable[[], None]
    pull_policy: str = "IfNotPresent"


def provider(scratch: Path) -> Provider:
    """`kind` where a Docker engine answers, else the cluster that KUBECONFIG names, else that of `tests/cluster`."""
    if _docker_answers() and shutil.which("kind"):
        return _kind(scratch)
    if os.environ.get("KUBECONFIG") and os.environ.get("BROKERSET_IMAGE_LOAD"):
        return _named()
    return _own()


def _docker_answers() -> bool:
    with contextlib.suppress(CommandFailed, FileNotFoundError):
        run(["docker", "info"], seconds=20)
        return True
    return False


def _kind(scratch: Path) -> Provider:
    kubeconfig = scratch / "kubeconfig"
    run(
        [
            "kind",
            "create",
            "cluster",
            "--name",
            KIND_CLUSTER,
            "--kubeconfig",
            str(kubeconfig),
            "--wait",
            "300s",
        ],
        seconds=START_SECONDS,
    )

    def build(image: str, target: str = "runtime") -> None:
        run(["docker", "build", "-t", image, "--target", target, str(ROOT)], seconds=BUILD_SECONDS)
        run(["kind", "load", "docker-image", image, "--name", KIND_CLUSTER], seconds=BUILD_SECONDS)

    def build_other(folder: Path, image: str) -> None:
        run(["docker", "build", "-t", image, str(folder)], seconds=BUILD_SECONDS)
        run(["kind", "load", "docker-image", image, "--name", KIND_CLUSTER], seconds=BUILD_SECONDS)

    def end() -> None:
        run(["kind", "delete", "cluster", "--name", KIND_CLUSTER], seconds=START_SECONDS)

    return Provider("kind", kubeconfig, build, build_other, end)


def _named() -> Provider:
    load = os.environ["BROKERSET_IMAGE_LOAD"]

    def build(image: str, target: str = "runtime") -> None:
        run([str(ROOT / "tests" / "image.sh"), image, target], seconds=BUILD_SECONDS)
        run(["bash", "-c", f"{load} {shlex.quote(image)}"], seconds=BUILD_SECONDS)

    def build_other(folder: Path, image: str) -> None:
        builder = next((name for name in ("docker", "podman") if shutil.which(name)), None)
        if builder is None:
            run([str(OWN_CLUSTER / "image-build"), str(folder), image], seconds=BUILD_SECONDS)
        else:
            run([builder, "build", "-t", image, str(folder)], seconds=BUILD_SECONDS)
        run(["bash", "-c", f"{load} {shlex.quote(image)}"], seconds=BUILD_SECONDS)

    return Provider("KUBECONFIG", Path(os.environ["KUBECONFIG"]), build, build_other, lambda: None)


def _own() -> Provider:
    ran = subprocess.run([OWN_CLUSTER / "status"], capture_output=True, check=False).returncode == 0
    if not ran:
        run([str(OWN_CLUSTER / "up")], seconds=BUILD_SECONDS)
    kubeconfig = Path(run([str(OWN_CLUSTER / "kubeconfig")]).strip())

    def build(image: str, target: str = "runtime") -> None:
        # Java's package writes its certificates: over those of the host, and none of it stays.
        certificates = ["--volume", "/etc/ssl/certs:/etc/ssl/certs:O"]
        program = str(OWN_CLUSTER / "image-build")
        run([program, str(ROOT), image, "--target", target, *certificates], seconds=BUILD_SECONDS)

    def build_other(folder: Path, image: str) -> None:
        run([str(OWN_CLUSTER / "image-build"), str(folder), image], seconds=BUILD_SECONDS)

    def end() -> None:
        if not ran:  # somebody else's stays
            run([str(OWN_CLUSTER / "down")], seconds=CALL_SECONDS)

    return Provider("tests/cluster", kubeconfig, build, build_other, end)


def tool(name: str) -> str:
    """Path of kubectl or helm: from the PATH, or as `tests/cluster/build` made it."""
    cache = Path(os.environ.get("BROKERSET_CACHE", Path.home() / ".cache" / "brokerset"))
    found = shutil.which(str(cache / "cluster" / "bin" / name)) or shutil.which(name)
    assert found is not None, f"no {name}: put it on the PATH, or run tests/cluster/build"
    return found


# -- the cluster ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Cluster:
    """A cluster by way of its API, kubectl and helm; namespaces that were made here go at the end."""

    provider: Provider
    scratch: Path
    kubectl_path: str = field(default_factory=lambda: tool("kubectl"))
    helm_path: str = field(default_factory=lambda: tool("helm"))
    namespaces: list[str] = field(default_factory=list)
    _kinds: dict[str, Any] = field(default_factory=dict)

    @property
    def image(self) -> str:
        """Our image, as pods name it."""
        return f"{IMAGE}:{TAG}"

    @property
    def env(self) -> dict[str, str]:
        """Of commands that talk to the cluster."""
        return {
            **os.environ,
            "KUBECONFIG": str(self.provider.kubeconfig),
            "HELM_CACHE_HOME": str(self.scratch / "helm"),
            "HELM_CONFIG_HOME": str(self.scratch / "helm"),
            "HELM_DATA_HOME": str(self.scratch / "helm"),
            "KUBECACHEDIR": str(self.scratch / "kubectl"),
        }

    @property
    def spark_image(self) -> str:
        """The image of jobs on store files."""
        return f"{SPARK_IMAGE}:{TAG}"

    # -- kubectl ------------------------------------------------------------------------------------------

    def kubectl(
        self,
        *arguments: str,
        namespace: str | None = None,
        given: str | None = None,
        seconds: float = CALL_SECONDS,
    ) -> str:
        """What kubectl prints. Raises `CommandFailed`."""
        where = [] if namespace is None else ["--namespace", namespace]
        return run([self.kubectl_path, *where, *arguments], given=given, seconds=seconds, env=self.env)

    # -- the API ------------------------------------------------------------------------------------------

    def kind(self, word: str) -> Any:
        """A kind of the API by a word that kubectl knows it by: pods, pod, po."""
        if word not in self._kinds:  # it may also be new
            client = new_client_from_config(str(self.provider.kubeconfig))
            api = DynamicClient(client, cache_file=str(self.scratch / f"kinds-{time.time_ns()}.json"))
            for one in reversed(api.resources.search()):  # of two Events the core's counts
                if not isinstance(one, ResourceList):
                    words = (one.name, one.singular_name, *(one.short_names or ()))
                    self._kinds.update(dict.fromkeys(words, one))
        return self._kinds[word]

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """An object; None if there is none."""
        try:
            found = self.kind(kind).get(name, namespace, _request_timeout=CALL_SECONDS)
        except NotFoundError:
            return None
        return dict(found.to_dict())

    def must_get(self, kind: str, name: str, namespace: str | None = None) -> Object:
        """An object that has to be there."""
        found = self.get(kind, name, namespace)
        assert found is not None, f"there is no {kind} {namespace or ''}/{name}"
        return found

    def items(self, kind: str, namespace: str | None = None, selector: str = "") -> list[Object]:
        """The objects of a kind, by name."""
        options = {"namespace": namespace, "label_selector": selector or None}
        found = self.kind(kind).get(**options, _request_timeout=CALL_SECONDS).to_dict()["items"]
        return sorted(found, key=lambda item: str(item["metadata"]["name"]))

    def apply(self, *manifests: Mapping[str, Any], namespace: str | None = None) -> None:
        """`kubectl apply` of objects."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        self.kubectl("apply", "-f", "-", namespace=namespace, given=text)

    def patch(self, kind: str, name: str, namespace: str, patch: Mapping[str, Any]) -> None:
        """A merge patch."""
        options = {"content_type": "application/merge-patch+json", "_request_timeout": CALL_SECONDS}
        self.kind(kind).patch(dict(patch), name, namespace, **options)

    def delete(
        self, kind: str, *names: str, namespace: str | None = None, seconds: float = 0, **options: Any
    ) -> None:
        """Delete objects, and wait so long until they are gone; `options` are those of the API."""
        for name in names:
            self.kind(kind).delete(name, namespace, options, _request_timeout=CALL_SECONDS)
        for name in names if seconds else ():
            self.wait_gone(kind, name, namespace, seconds)

    def annotate(self, kind: str, name: str, namespace: str, **annotations: str | None) -> None:
        """Set annotations `brokerset.io/<name>` (with _ for -); None removes one."""
        values = {f"brokerset.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
        self.patch(kind, name, namespace, {"metadata": {"annotations": values}})

    def execute(
        self, pod: str, namespace: str, *command: str, given: str | None = None, seconds: float = CALL_SECONDS
    ) -> str:
        """What a command prints that runs in a pod. Raises `CommandFailed`."""
        options = ["-i"] if given is not None else []
        return self.kubectl(
            "exec", *options, pod, "--", *command, namespace=namespace, given=given, seconds=seconds
        )

    def logs(self, pod: str, namespace: str, *options: str) -> str:
        """The log of a pod."""
        return self.kubectl("logs", pod, f"--tail={LOG_LINES}", *options, namespace=namespace)

    # -- waiting ------------------------------------------------------------------------------------------

    def condition(self, kind: str, name: str, namespace: str, condition: str) -> Object | None:
        """A condition of an object's status; None if it is not there."""
        status = (self.get(kind, name, namespace) or {}).get("status") or {}
        return next((one for one in status.get("conditions") or () if one["type"] == condition), None)

    def wait_condition(
        self,
        kind: str,
        name: str,
        namespace: str,
        condition: str,
        status: str = "True",
        *,
        reason: str | None = None,
        seconds: float = 120.0,
    ) -> Object:
        """Wait until a condition says so about the newest manifest; returns the object."""

        def check() -> Object | None:
            found = self.must_get(kind, name, namespace)
            conditions = (found.get("status") or {}).get("conditions") or ()
            one = next((one for one in conditions if one["type"] == condition), None)
            if one is None:
                raise ValueError(f"no condition {condition} among {[one['type'] for one in conditions]}")
            newest = one.get("observedGeneration") == found["metadata"]["generation"]
            if newest and one["status"] == status and reason in (None, one["reason"]):
                return found
            raise ValueError(f"{condition} is {one}")

        return until(f"{kind} {name} is {condition}={status}", check, seconds)

    def wait_pod(self, name: str, namespace: str, seconds: float = 120.0) -> None:
        """Wait until a pod is ready."""

        def check() -> bool:
            found = self.condition("pod", name, namespace, "Ready")
            return found is not None and found["status"] == "True"

        until(f"pod {name} is ready", check, seconds)

    def wait_rolled_out(self, what: str, namespace: str, seconds: float = 180.0) -> None:
        """Wait until a Deployment or StatefulSet has all its pods."""
        self.kubectl(
            "rollout", "status", what, f"--timeout={seconds:g}s", namespace=namespace, seconds=seconds + 10
        )

    def wait_gone(self, kind: str, name: str, namespace: str | None, seconds: float = 120.0) -> None:
        """Wait until an object is not there any more."""
        until(f"{kind} {name} is gone", lambda: self.get(kind, name, namespace) is None, seconds)

    # -- what tests need ----------------------------------------------------------------------------------

    def namespace(self, name: str, *, restricted: bool = True) -> str:
        """A namespace that refuses every pod which does not keep to the restricted profile."""
        labels = POD_SECURITY if restricted else {}
        metadata = {"name": name, "labels": labels}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        if name not in self.namespaces:
            self.namespaces.append(name)
        return name

    def delete_namespace(self, name: str, seconds: float = 120.0) -> None:
        """Delete a namespace with everything in it, and wait for that."""
        with contextlib.suppress(ApiException):  # it is gone, or ends already
            self.delete("namespace", name)
            for pod in self.items("pods", name):  # nobody waits for an orderly end: all their data goes too
                self.delete("pod", pod["metadata"]["name"], namespace=name, **AT_ONCE)
        until(f"namespace {name} is gone", lambda: self.get("namespace", name) is None, seconds)
        if name in self.namespaces:
            self.namespaces.remove(name)

    def install(self, *options: str, values: Mapping[str, Any] | None = None, seconds: float = 180.0) -> None:
        """Install or upgrade the chart in `brokerset-system`, and wait until the operator is ready."""
        self.namespace(SYSTEM)
        given = {
            "image": {"repository": IMAGE, "tag": TAG, "pullPolicy": self.provider.pull_policy},
            "spark": {"image": {"repository": SPARK_IMAGE, "tag": TAG}},
            **(values or {}),
        }
        file = self.scratch / "values.json"
        file.write_text(json.dumps(given))
        chart = str(ROOT / "charts" / "brokerset")
        command = [
            self.helm_path,
            "upgrade",
            "--install",
            RELEASE,
            chart,
            "--namespace",
            SYSTEM,
            "-f",
            str(file),
        ]
        run([*command, *options, "--wait", "--timeout", f"{seconds:g}s"], seconds=seconds + 30, env=self.env)
        self.wait_rolled_out(f"deployment/{OPERATOR}", SYSTEM)

    @contextlib.contextmanager
    def another_operator(self, system: str, values: Mapping[str, Any]) -> Iterator[str]:
        """A second release of the chart in a namespace of its own; gives its name as sets are marked with it."""
        self.namespace(system)
        image = {"repository": IMAGE, "tag": TAG, "pullPolicy": self.provider.pull_policy}
        file = self.scratch / f"{system}.json"
        file.write_text(json.dumps({"image": image, "crds": {"install": False}, "replicas": 1, **values}))
        command = [self.helm_path, "install", "second", str(ROOT / "charts" / "brokerset")]
        try:
            run([*command, "-n", system, "-f", str(file), "--wait"], seconds=200, env=self.env)
            yield f"{system}/second-operator"
        finally:
            with contextlib.suppress(CommandFailed):
                run(
                    [self.helm_path, "uninstall", "second", "-n", system, "--wait"], seconds=120, env=self.env
                )
            self.delete_namespace(system)

    def uninstall(self) -> None:
        """Take the chart away; BrokerSets and what they run stay."""
        run(
            [self.helm_path, "uninstall", RELEASE, "--namespace", SYSTEM, "--wait"], seconds=120, env=self.env
        )

    def operator_pods(self) -> list[str]:
        """Names of the operator's pods that are not ending."""
        selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/name=brokerset-operator"
        pods = self.items("pods", SYSTEM, selector)
        return [pod["metadata"]["name"] for pod in pods if not pod["metadata"].get("deletionTimestamp")]

    def leader(self) -> str | None:
        """Name of the operator pod that leads; None while nobody does."""
        lease = self.get("lease", OPERATOR, SYSTEM)
        holder = ((lease or {}).get("spec") or {}).get("holderIdentity") or ""
        return holder.rpartition("_")[0] or None

    def kill_operator(self) -> str:
        """Delete the leading operator's pod as fast as Kubernetes can; returns its name."""

        def living() -> str | None:
            name = self.leader()  # the Lease keeps the name of one that is gone for a while
            return name if name in self.operator_pods() else None

        leader = until("an operator leads", living, 60)
        self.delete("pod", leader, namespace=SYSTEM, **AT_ONCE)
        return leader

    @contextlib.contextmanager
    def without_operator(self) -> Iterator[None]:
        """No operator at all while the block runs."""
        before = self.must_get("deployment", OPERATOR, SYSTEM)["spec"]["replicas"]
        self.patch("deployment", OPERATOR, SYSTEM, {"spec": {"replicas": 0}})
        until(
            "the operator is gone",
            lambda: not self.items("pods", SYSTEM, f"app.kubernetes.io/instance={RELEASE}"),
            60,
        )
        try:
            yield
        finally:
            self.patch("deployment", OPERATOR, SYSTEM, {"spec": {"replicas": before}})
            self.wait_rolled_out(f"deployment/{OPERATOR}", SYSTEM)

    def client(self, namespace: str, broker_set: str, name: str = CLIENT) -> Client:
        """A pod with our image in which the command line runs against a set."""
        if self.get("pod", name, namespace) is None:
            self.apply(client_pod(name, self.image, self.provider.pull_policy), namespace=namespace)
        self.wait_pod(name, namespace)
        return Client(self, namespace, name, f"{broker_set}-namesrv.{namespace}.svc:9876")

    def collect(self, folder: Path) -> None:
        """Write down what helps to understand a failure: objects, Events and logs of our namespaces."""
        folder.mkdir(parents=True, exist_ok=True)
        for namespace in self.namespaces:
            asked = {
                "objects.txt": ["get", "all,pvc,cm,endpointslices,messaging,leases", "-o", "wide"],
                "sets.yaml": ["get", "messaging", "-o", "yaml"],
                "pods.txt": ["describe", "pods"],
                "events.txt": ["get", "events", "--sort-by=.lastTimestamp"],
            }
            for file, arguments in asked.items():
                self._keep(folder / f"{namespace}-{file}", *arguments, namespace=namespace)
            with contextlib.suppress(CommandFailed, ApiException):
                for pod in self.items("pods", namespace):
                    name = pod["metadata"]["name"]
                    options = [f"--tail={LOG_LINES}", "--all-containers"]
                    self._keep(
                        folder / f"{namespace}-{name}.log", "logs", name, *options, namespace=namespace
                    )
                    if any(one.get("restartCount") for one in pod["status"].get("containerStatuses") or ()):
                        file_before = folder / f"{namespace}-{name}.before.log"
                        self._keep(file_before, "logs", name, "--previous", *options, namespace=namespace)

    def _keep(self, file: Path, *arguments: str, namespace: str) -> None:
        try:
            file.write_text(self.kubectl(*arguments, namespace=namespace))
        except CommandFailed as error:
            file.write_text(str(error))


def client_pod(name: str, image: str, pull_policy: str) -> Object:
    """A pod that does nothing, and may run the command line."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "runAsGroup": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "client",
                    "image": image,
                    "imagePullPolicy": pull_policy,
                    "command": ["sleep", "infinity"],
                    "workingDir": "/tmp",
                    "env": [{"name": "HOME", "value": "/tmp"}],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                }
            ],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }


@dataclass(slots=True)
class Client:
    """The command line inside the cluster."""

    cluster: Cluster
    namespace: str
    pod: str
    namesrv: str

    def run(self, *arguments: str, given: str | None = None, seconds: float = CALL_SECONDS) -> str:
        """What `brokerset …` prints. Raises `CommandFailed`."""
        return self.cluster.execute(
            self.pod, self.namespace, "brokerset", *arguments, given=given, seconds=seconds
        )

    def create_topic(self, topic: str, queues: int = 8, *, only: str = "") -> None:
        """Create a topic at all groups, or only at those of one cluster of brokers."""
        where = ["--cluster", only] if only else []
        self.run("topic", "create", topic, "--queues", str(queues), *where, "--namesrv", self.namesrv)

    def send(self, topic: str, bodies: Sequence[str], *, seconds: float = CALL_SECONDS) -> None:
        """Send one message for each body."""
        text = "".join(f"{body}\n" for body in bodies)
        self.run("send", topic, "--file", "-", "--namesrv", self.namesrv, given=text, seconds=seconds)

    def consume(self, topic: str, group: str, count: int, *, seconds: float = CALL_SECONDS) -> list[str]:
        """Consume so many messages from the beginning; returns their bodies."""
        options = ["--group", group, "--count", str(count), "--from", "earliest", "--json"]
        text = self.run("consume", topic, *options, "--namesrv", self.namesrv, seconds=seconds)
        return [json.loads(line)["body"] for line in text.splitlines() if line.strip()]

    def python(self, program: str, *arguments: str, seconds: float = CALL_SECONDS) -> str:
        """What a program prints that runs in the pod, with our packages; for load that measures gaps."""
        return self.cluster.execute(
            self.pod, self.namespace, "python", "-", *arguments, given=program, seconds=seconds
        )


def broker_set(name: str, namespace: str, **spec: Any) -> Object:
    """A BrokerSet that fits on one small node."""
    resources = {"requests": {"cpu": "10m", "memory": "96Mi"}}
    given = {"storage": {"size": "1Gi"}, "podTemplate": {"resources": resources}}
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "BrokerSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**given, **spec},
    }


def say(text: str) -> None:
    """Tell whoever looks on what goes on; a start takes minutes."""
    sys.stderr.write(f"[cluster] {text}\n")
    sys.stderr.flush()
