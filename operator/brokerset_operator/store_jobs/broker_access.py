"""How a job, and its executors, connect to brokers that take TLS alone or check who signs. Pure.

Secrets reach the containers by their names: the kubelet puts their entries into the environment, or into
files, and the operator need not read them. The authorities are mounted from the set's own ConfigMap, so that
a run that is on follows a renewal; next to them lies the file of keys that `brokerset_runtime.tls` reads,
from a ConfigMap of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from brokerset_operator.resources.set_facts import NewObject
from brokerset_operator.resources.tls_files import AUTHORITIES_FILE, READABLE_BY_GROUP, TRUST_FOLDER

TLS_VARIABLE: Final = "BROKERSET_TLS_CONFIG_FILE"
SIGNING_VARIABLES: Final = {"BROKERSET_ACCESS_KEY": "accessKey", "BROKERSET_SECRET_KEY": "secretKey"}
"""Variable of every program of ours -> entry of the Secret that the operator makes of a User."""

CONFIG_FILE: Final = "clients.properties"
TOGETHER_FILE: Final = "authorities.crt"
CERTIFICATE_FILES: Final = {"tls.crt": "client.crt", "tls.key": "client.key"}
"""Entry of the Secret with a certificate -> its file, next to the authorities."""

VOLUME: Final = "broker-trust"


@dataclass(frozen=True, slots=True)
class BrokerTrust:
    """Whom a job trusts; then all its connections to brokers and name servers use TLS."""

    config_map: str
    """ConfigMap whose entry `ca.crt` has the authorities."""

    server_name: str
    """The name that each certificate of the set is for."""

    together: str = ""
    """In PEM: whom to trust where name servers are another set's; as of the start of the run."""


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """How a job connects; without anything, plain and unsigned."""

    trust: BrokerTrust | None = None
    secret: str | None = None
    """Secret with the access key and the password that the job signs with."""

    certificate: str | None = None
    """Secret with the certificate that it shows where it connects by TLS, and the key of that."""


def config_map_name(job: str) -> str:
    """Name of the ConfigMap of a run with its file of keys."""
    return f"{job}-trust"


def config_data(trust: BrokerTrust, *, shows_certificate: bool = False) -> dict[str, str]:
    """Entries of that ConfigMap. Paths are meant from the file's folder."""
    values = {
        "tls.enable": "true",
        "tls.client.trustCertPath": TOGETHER_FILE if trust.together else AUTHORITIES_FILE,
        "tls.client.serverName": trust.server_name,
        "tls.members.trustCertPath": AUTHORITIES_FILE,  # as pods have it: it may be one below a root
    }
    if shows_certificate:
        values["tls.client.certPath"], values["tls.client.keyPath"] = CERTIFICATE_FILES.values()
    files = {CONFIG_FILE: "".join(f"{key}={value}\n" for key, value in values.items())}
    return files | ({TOGETHER_FILE: trust.together} if trust.together else {})


def access_variables(access: BrokerAccess) -> list[NewObject]:
    """Variables of a container; Kubernetes does not start it while the Secret, or an entry, is missing."""
    found: list[NewObject] = []
    if access.trust is not None:
        found.append({"name": TLS_VARIABLE, "value": f"{TRUST_FOLDER}/{CONFIG_FILE}"})
    if access.secret is not None:
        found += [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": access.secret, "key": key}}}
            for name, key in SIGNING_VARIABLES.items()
        ]
    return found


def access_mounts(access: BrokerAccess) -> list[NewObject]:
    """Where a container finds the files: one folder, because single files would not follow a renewal."""
    if access.trust is None:
        return []
    return [{"name": VOLUME, "mountPath": TRUST_FOLDER, "readOnly": True}]


def access_volumes(access: BrokerAccess, job: str) -> list[NewObject]:
    """Volumes of a pod of the job `job`."""
    if access.trust is None:
        return []
    files = {access.trust.config_map: [AUTHORITIES_FILE], config_map_name(job): [CONFIG_FILE]}
    if access.trust.together:
        files[config_map_name(job)].append(TOGETHER_FILE)
    sources: list[NewObject] = [
        {"configMap": {"name": name, "items": [{"key": file, "path": file} for file in entries]}}
        for name, entries in files.items()
    ]
    if access.certificate is not None:
        items = [
            {"key": entry, "path": file, "mode": READABLE_BY_GROUP}
            for entry, file in CERTIFICATE_FILES.items()
        ]
        sources.append({"secret": {"name": access.certificate, "items": items}})
    return [{"name": VOLUME, "projected": {"sources": sources}}]
