"""kubectl as a subprocess: the user's context, login and rights, and errors that say what to do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NoReturn

from brokerset_cli.kubernetes import names
from brokerset_cli.output import CommandFailed

REQUEST_SECONDS: Final = 20
"""Time-out that kubectl itself has for one request."""

CALL_SECONDS: Final = 60.0
"""Time-out of one kubectl that follows nothing; programs that log in have to be done by then."""

MESSAGE_CHARACTERS_MAX: Final = 600

PROGRAM_VARIABLE: Final = "KUBECTL"
"""Environment variable with the path of kubectl, where it is not on the PATH."""

Object = Mapping[str, Any]
"""An object of Kubernetes, as kubectl writes it."""


class Trouble(Enum):
    """Kinds of failures that need different advice."""

    NO_KUBECTL = "no kubectl"
    BAD_CONTEXT = "bad context"
    UNREACHABLE = "unreachable"
    LOGIN = "login"
    FORBIDDEN = "forbidden"
    NOT_INSTALLED = "not installed"
    NOT_FOUND = "not found"
    CONFLICT = "conflict"
    TIMEOUT = "timeout"
    OTHER = "other"


class KubectlFailed(CommandFailed):
    """kubectl could not do what it was asked for; `trouble` says of what kind that is."""

    def __init__(self, trouble: Trouble, message: str, advice: str = "") -> None:
        super().__init__(message, advice)
        self.trouble = trouble


_SIGNS: Final = (
    (Trouble.CONFLICT, r"\(Conflict\)|the object has been modified"),
    (Trouble.FORBIDDEN, r"\(Forbidden\)|is forbidden:"),
    (Trouble.LOGIN, r"\(Unauthorized\)|must be logged in|getting credentials|exec plugin"),
    (Trouble.NOT_INSTALLED, r"doesn't have a resource type|no matches for kind|could not find the requested"),
    (Trouble.NOT_FOUND, r"\(NotFound\)"),
    (
        Trouble.BAD_CONTEXT,
        r"context was not found|context \S+ does not exist|no configuration has been provided"
        r"|invalid configuration|error loading config|error: stat ",
    ),
    (
        Trouble.UNREACHABLE,
        r"connection to the server|Unable to connect|connection refused|no such host|i/o timeout"
        r"|deadline exceeded|Client\.Timeout|TLS handshake|x509:|ServiceUnavailable|no route to host"
        r"|\(Timeout\)|connection reset|unexpected EOF|\(TooManyRequests\)|etcdserver: ",
    ),
)
"""What standard error of kubectl has in it; the first that fits counts."""

_ADVICE: Final = {
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
    Trouble.TIMEOUT: "if your login asks for something, run `kubectl get brokersets` first; else check with "
    "`kubectl version` that the API server answers",
}


def classify(error_text: str) -> Trouble:
    """Tell from kubectl's standard error what kind of failure it is."""
    return next((kind for kind, sign in _SIGNS if re.search(sign, error_text)), Trouble.OTHER)


def main_line(error_text: str) -> str:
    """What people should read of kubectl's standard error; log lines of its libraries are left out."""
    lines = [line.strip() for line in error_text.splitlines() if line.strip()]
    lines = [line for line in lines if not re.match(r"[IWEF]\d{4} ", line)] or lines
    text = re.sub(r"^(?:error: |Error from server(?: \(\w+\))?: )", "", " ".join(lines[-3:]))
    return text[:MESSAGE_CHARACTERS_MAX] or "kubectl gave no reason"


def failure(error_text: str) -> KubectlFailed:
    """The error for what kubectl wrote to standard error when it failed."""
    trouble = classify(error_text)
    return KubectlFailed(trouble, main_line(error_text), _ADVICE.get(trouble, ""))


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Runs kubectl with what the user chose; every method raises `KubectlFailed`."""

    namespace: str | None = None
    """None for that of the context."""

    context: str | None = None
    kubeconfig: str | None = None
    as_user: str | None = None
    program: str | None = None
    """Path of kubectl; None for what the environment says."""

    def command(self, *arguments: str, everywhere: bool = False) -> list[str]:
        """The command line; `everywhere` leaves the namespace out, for all of them or for none."""
        chosen = (
            ("--context", self.context),
            ("--kubeconfig", self.kubeconfig),
            ("--as", self.as_user),
            ("--namespace", None if everywhere else self.namespace),
        )
        options = [f"{name}={value}" for name, value in chosen if value]
        return [self.program or os.environ.get(PROGRAM_VARIABLE) or "kubectl", *options, *arguments]

    def run(self, *arguments: str, everywhere: bool = False, seconds: float = CALL_SECONDS) -> str:
        """What kubectl prints."""
        command = self.command(*arguments, f"--request-timeout={REQUEST_SECONDS}s", everywhere=everywhere)
        try:
            done = subprocess.run(
                command,
                # Programs that log in may ask; nobody else reads.
                stdin=None if sys.stdin is not None and sys.stdin.isatty() else subprocess.DEVNULL,
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="replace",
                timeout=seconds,
                env=environment(),
                check=False,
            )
        except OSError as error:
            no_kubectl(command[0], error)
        except subprocess.TimeoutExpired:
            shown = " ".join(arguments[:3])
            raise KubectlFailed(
                Trouble.TIMEOUT,
                f"`kubectl {shown}` was not done after {seconds:g} s",
                _ADVICE[Trouble.TIMEOUT],
            ) from None
        if done.returncode:
            raise failure(done.stderr)
        return done.stdout

    def read(self, *arguments: str, everywhere: bool = False) -> Object:
        """The JSON document that kubectl prints."""
        text = self.run(*arguments, "-o", "json", everywhere=everywhere)
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise KubectlFailed(
                Trouble.OTHER,
                f"`kubectl {' '.join(arguments[:3])}` did not write an object: {text[:80]!r}",
                "check with `kubectl version` that it is Kubernetes' kubectl that runs",
            )
        return found

    def objects(self, kind: str, selector: str = "", *, all_namespaces: bool = False) -> list[Object]:
        """The objects of a kind, by namespace and name."""
        options = ["-l", selector] if selector else []
        options += ["--all-namespaces"] if all_namespaces else []
        found = self.read("get", kind, *options, everywhere=all_namespaces).get("items")
        items = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
        return sorted(items, key=_place)

    def broker_set(self, name: str) -> Object:
        """A BrokerSet; when there is none of this name the error lists those that there are."""
        try:
            return self.read("get", names.SETS, name)
        except KubectlFailed as error:
            if error.trouble is not Trouble.NOT_FOUND:
                raise
        try:
            found = [_place(item)[1] for item in self.objects(names.SETS)]
            there = f"; it has {', '.join(found) or 'none'}"
        except KubectlFailed:
            there = ""  # a right to get is none to list, and the first answer counts
        raise KubectlFailed(
            Trouble.NOT_FOUND,
            f"namespace {self.namespace or self.current_namespace()} has no BrokerSet {name!r}{there}",
            "choose a namespace with -n; `kubectl brokerset status -A` shows all that you may see",
        )

    def current_namespace(self) -> str:
        """The namespace that the context names; where there is no context, as in a pod, a word for it."""
        try:
            found = self.run(
                "config",
                "view",
                "--minify",
                "-o",
                "jsonpath={.contexts[0].context.namespace}",
                everywhere=True,
            )
        except KubectlFailed:
            return "of this kubectl"
        return found.strip() or "default"

    def annotate(self, name: str, values: Mapping[str, str | None], resource_version: str) -> None:
        """Set annotations of a BrokerSet, None to remove one, if it is still as it was read.

        Raises `KubectlFailed` with `Trouble.CONFLICT` when it is not.
        """
        given = [f"{key}-" if value is None else f"{key}={value}" for key, value in values.items()]
        self.run(
            "annotate", names.SETS, name, *given, "--overwrite", f"--resource-version={resource_version}"
        )


def environment() -> dict[str, str]:
    """Environment of kubectl: its messages in English, because they are looked at here."""
    return {**os.environ, "LC_ALL": "C"}


def no_kubectl(program: str, error: OSError) -> NoReturn:
    """End the command because kubectl cannot be started."""
    raise KubectlFailed(
        Trouble.NO_KUBECTL,
        f"kubectl could not be started: {program}: {error.strerror or error}",
        f"install kubectl, put it on the PATH, or let the variable {PROGRAM_VARIABLE} name it",
    )


def selector(labels: Mapping[str, str]) -> str:
    """Labels as an option of kubectl."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _place(item: Object) -> tuple[str, str]:
    meta = item.get("metadata")
    found = meta if isinstance(meta, dict) else {}
    return str(found.get("namespace", "")), str(found.get("name", ""))
