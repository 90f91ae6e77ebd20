"""The API server by its official client: the user's login and rights, and errors that say what to do."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from enum import Enum
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from brokerset_cli.kubernetes.sets import Object, part
from brokerset_cli.output import CommandFailed
from brokerset_kube.kinds import BROKER_SET, POD, Kind

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

CONNECT_SECONDS: Final = 10.0
READ_SECONDS: Final = 20.0
"""Longest time that the API server may be silent within an answer."""

LOGIN_SECONDS: Final = 60.0
"""Longest time that reading the kubeconfig may take; programs that log in have to be done by then."""

MESSAGE_CHARACTERS_MAX: Final = 600
MANAGER: Final = "kubectl-brokerset"
"""Who has set the annotations, in the managed fields of a BrokerSet."""

ACCEPT: Final = "application/json, */*"
MERGE_PATCH: Final = "application/merge-patch+json"
ACCOUNT_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

Query = Mapping[str, str]


class Trouble(Enum):
    """Kinds of failures that need different advice."""

    NO_CLIENT = "no client"
    BAD_CONTEXT = "bad context"
    UNREACHABLE = "unreachable"
    LOGIN = "login"
    FORBIDDEN = "forbidden"
    NOT_INSTALLED = "not installed"
    NOT_FOUND = "not found"
    CONFLICT = "conflict"
    TIMEOUT = "timeout"
    OTHER = "other"


_ADVICE: Final = {
    Trouble.NO_CLIENT: "`pip install 'brokerset[kubectl]'` into the environment of this program",
    Trouble.BAD_CONTEXT: "`kubectl config get-contexts` lists what there is; choose with --context or "
    "--kubeconfig",
    Trouble.UNREACHABLE: "check with `kubectl version` that this context reaches its API server, then try "
    "again",
    Trouble.LOGIN: "log in to the cluster as you do for kubectl; `kubectl get brokersets` shows when it "
    "works",
    Trouble.FORBIDDEN: "ask who administers the cluster for the right that the message names; "
    "docs/kubectl-plugin.md has a Role with all of them",
    Trouble.NOT_INSTALLED: "this cluster does not know BrokerSets: install the operator with "
    "`helm install`, or choose another cluster with --context",
    Trouble.CONFLICT: "somebody else changed it at the same moment; try again",
    Trouble.NOT_FOUND: "`kubectl get brokersets -A` lists what there is; choose a namespace with -n",
    Trouble.TIMEOUT: "if your login asks for something, run `kubectl get brokersets` first",
}

_BY_STATUS: Final[Mapping[int, Trouble]] = {
    HTTPStatus.UNAUTHORIZED: Trouble.LOGIN,
    HTTPStatus.FORBIDDEN: Trouble.FORBIDDEN,
    HTTPStatus.CONFLICT: Trouble.CONFLICT,
    HTTPStatus.TOO_MANY_REQUESTS: Trouble.UNREACHABLE,
    HTTPStatus.BAD_GATEWAY: Trouble.UNREACHABLE,
    HTTPStatus.SERVICE_UNAVAILABLE: Trouble.UNREACHABLE,
    HTTPStatus.GATEWAY_TIMEOUT: Trouble.UNREACHABLE,
}


class ApiFailed(CommandFailed):
    """The API server did not do what it was asked for; `trouble` says of what kind that is."""

    def __init__(self, trouble: Trouble, message: str, advice: str = "") -> None:
        super().__init__(message[:MESSAGE_CHARACTERS_MAX], advice or _ADVICE.get(trouble, ""))
        self.trouble = trouble


def refusal(status: int, content: bytes) -> ApiFailed:
    """The error for an answer with this status, whose content is a Status of Kubernetes or a text."""
    try:
        answered = json.loads(content)
    except ValueError:
        answered = None
    answered = answered if isinstance(answered, dict) else {}
    text = str(answered.get("message") or " ".join(content.decode("utf-8", "replace").split()))
    trouble = _BY_STATUS.get(status)
    if status == HTTPStatus.NOT_FOUND:
        # Of an object that is not there its name is told; of a kind that nobody serves nothing is.
        trouble = Trouble.NOT_FOUND if part(answered, "details").get("name") else Trouble.NOT_INSTALLED
    elif text.startswith("etcdserver: "):
        trouble = Trouble.UNREACHABLE
    return ApiFailed(trouble or Trouble.OTHER, text or f"the API server answered with {status}")


def unreachable(client: ApiClient, error: Exception) -> ApiFailed:
    """The error for a request that got no answer."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return ApiFailed(
        Trouble.UNREACHABLE, f"the API server {client.configuration.host} does not answer: {reason}"
    )


class Login:
    """The user's way to the cluster: found at the first request, for all threads."""

    def __init__(self, context: str | None, kubeconfig: str | None, as_user: str | None) -> None:
        self._context = context
        self._kubeconfig = kubeconfig
        self._as_user = as_user
        self._lock = threading.Lock()
        self._found: tuple[ApiClient, str] | None = None
        self._works = False

    def get(self) -> tuple[ApiClient, str]:
        """The official client, and the namespace of the context. Raises `ApiFailed`."""
        with self._lock:
            if self._found is None:
                self._found = _in_time(self._load)
            return self._found

    def worked(self) -> None:
        """Remember that somebody was let in."""
        self._works = True

    def is_renewed(self, client: ApiClient) -> bool:
        """Log in again when a login that worked is over; False for one that never did."""
        with self._lock:
            if self._found is not None and self._found[0] is client:
                if not self._works:
                    return False
                self._found, self._works = None, False
                client.rest_client.close()
            return True

    def close(self) -> None:
        """Close all connections."""
        if self._found is not None:
            self._found[0].rest_client.close()

    def _load(self) -> tuple[ApiClient, str]:
        try:
            import yaml
            from kubernetes.client import ApiClient, Configuration
            from kubernetes.config import ConfigException, load_incluster_config
            from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger
        except ImportError as error:
            raise ApiFailed(
                Trouble.NO_CLIENT, f"the official client of Kubernetes is not installed: {error}"
            ) from None
        configuration, said = Configuration(), _Errors(logging.ERROR)
        configuration.retries = False
        path = self._kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        logging.getLogger().addHandler(said)
        try:
            files = KubeConfigMerger(path)
            if files.config is not None:
                loader = KubeConfigLoader(files.config, self._context, None, None, files.save_changes)
                loader.load_and_set(configuration)
                namespace = loader.current_context["context"].get("namespace")
            elif self._kubeconfig or self._context or "KUBERNETES_SERVICE_HOST" not in os.environ:
                raise ApiFailed(Trouble.BAD_CONTEXT, f"there is no kubeconfig {path}")
            else:
                load_incluster_config(configuration)
                namespace = ACCOUNT_NAMESPACE.read_text("utf-8").strip()
        except (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, AttributeError) as error:
            text = " ".join(str(error).split())
            raise ApiFailed(Trouble.BAD_CONTEXT, f"the kubeconfig cannot be used: {text}") from None
        finally:
            logging.getLogger().removeHandler(said)
        if said.texts and not (configuration.api_key or configuration.cert_file):
            # The official client only logs that a program did not log in, and would go on as nobody.
            # On a terminal the program has said why; the client then fails to look for that in a pipe.
            text = "see above" if "NoneType" in said.texts[-1] else said.texts[-1]
            raise ApiFailed(Trouble.LOGIN, f"the login failed: {text}")
        client = ApiClient(configuration)
        client.user_agent = MANAGER
        if self._as_user:
            client.set_default_header("Impersonate-User", self._as_user)
        return client, str(namespace or "default")


class _Errors(logging.Handler):
    """Keeps what is logged as an error, so that it is an error of the command."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(" ".join(record.getMessage().split()))


def _in_time(load: Callable[[], tuple[ApiClient, str]]) -> tuple[ApiClient, str]:
    """What `load` returns; a program that waits for an answer that nobody gives does not hang scripts."""
    found: Future[tuple[ApiClient, str]] = Future()

    def work() -> None:
        try:
            found.set_result(load())
        except BaseException as error:  # whoever waits raises it
            found.set_exception(error)

    threading.Thread(target=work, name="login", daemon=True).start()
    try:
        return found.result(LOGIN_SECONDS)
    except TimeoutError:
        raise ApiFailed(Trouble.TIMEOUT, f"the login was not done after {LOGIN_SECONDS:g} s") from None


class KubeApi:
    """Requests to the API server as what the user chose; every method raises `ApiFailed`."""

    def __init__(
        self,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
        as_user: str | None = None,
    ) -> None:
        """`namespace` is None for that of the context; `kubeconfig` is None for where kubectl finds it."""
        self.login = Login(context, kubeconfig, as_user)
        self._namespace = namespace

    @property
    def namespace(self) -> str:
        """The namespace that is asked about."""
        if not self._namespace:
            self._namespace = self.login.get()[1]
        return self._namespace

    def within(self, namespace: str) -> KubeApi:
        """The same login in another namespace."""
        found = KubeApi(namespace)
        found.login = self.login
        return found

    def close(self) -> None:
        """Close all connections."""
        self.login.close()

    def request(
        self, method: str, path: str, query: Query | None = None, body: Object | None = None
    ) -> bytes:
        """The content of an answer; a body is a merge patch."""
        self.login.get()  # one thread loads the official client: several at a time end in a deadlock
        import urllib3.exceptions
        from kubernetes.client import ApiException

        while True:
            client, _ = self.login.get()
            try:
                call = serialized(client, method, path, query, body)
                answer = client.call_api(*call, _request_timeout=(CONNECT_SECONDS, READ_SECONDS))
                content: bytes = answer.read()
            except (urllib3.exceptions.HTTPError, ApiException, OSError) as error:
                raise unreachable(client, error) from None
            if 200 <= answer.status < 300:
                self.login.worked()
                return content
            if answer.status != HTTPStatus.UNAUTHORIZED or not self.login.is_renewed(client):
                raise refusal(answer.status, content)

    def read(self, path: str, query: Query | None = None) -> Object:
        """A JSON document of the API."""
        content = self.request("GET", path, query)
        try:
            found = json.loads(content)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            shown = content[:80].decode("utf-8", "replace")
            raise ApiFailed(Trouble.UNREACHABLE, f"what answers {path} is no API server: {shown!r}")
        return found

    def objects(self, kind: Kind, selector: str = "", *, all_namespaces: bool = False) -> list[Object]:
        """The objects of a kind, by namespace and name."""
        path = kind.path(None if all_namespaces or not kind.namespaced else self.namespace)
        found = self.read(path, {"labelSelector": selector} if selector else None).get("items")
        items = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
        return sorted(items, key=_place)

    def log(self, pod: str, query: Query) -> str:
        """What a pod has written."""
        return self.request("GET", POD.path(self.namespace, pod, "log"), query).decode("utf-8", "replace")

    def broker_set(self, name: str) -> Object:
        """A BrokerSet; when there is none of this name the error lists those that there are."""
        try:
            return self.read(BROKER_SET.path(self.namespace, name))
        except ApiFailed as error:
            if error.trouble is not Trouble.NOT_FOUND:
                raise
        try:
            found = [_place(item)[1] for item in self.objects(BROKER_SET)]
            there = f"; it has {', '.join(found) or 'none'}"
        except ApiFailed:
            there = ""  # a right to get is none to list, and the first answer counts
        raise ApiFailed(
            Trouble.NOT_FOUND,
            f"namespace {self.namespace} has no BrokerSet {name!r}{there}",
            "choose a namespace with -n; `kubectl brokerset status -A` shows all that you may see",
        )

    def annotate(self, name: str, values: Mapping[str, str | None], resource_version: str) -> None:
        """Set annotations of a BrokerSet, None to remove one, if it is still as it was read.

        Raises `ApiFailed` with `Trouble.CONFLICT` when it is not.
        """
        body = {"metadata": {"resourceVersion": resource_version, "annotations": dict(values)}}
        self.request("PATCH", BROKER_SET.path(self.namespace, name), {"fieldManager": MANAGER}, body)


def serialized(
    client: ApiClient, method: str, path: str, query: Query | None = None, body: Object | None = None
) -> tuple[Any, ...]:
    """A request with the token of the login: method, address, headers, body and form."""
    patch = {"Content-Type": MERGE_PATCH} if body is not None else {}
    found: tuple[Any, ...] = client.param_serialize(
        method,
        path,
        query_params=list((query or {}).items()),
        header_params={"Accept": ACCEPT, **patch},
        body=body,
        auth_settings=["BearerToken"],
    )
    return found


def selector(labels: Mapping[str, str]) -> str:
    """Labels as a query has them."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def log_query(container: str, *, tail: int = -1, **more: str) -> Query:
    """How a pod's log is asked for; `tail` is -1 for all of it."""
    found = {"timestamps": "true", **more}
    if container:
        found["container"] = container
    return {**found, "tailLines": str(tail)} if tail >= 0 else found


def _place(item: Object) -> tuple[str, str]:
    meta = part(item, "metadata")
    return str(meta.get("namespace", "")), str(meta.get("name", ""))
