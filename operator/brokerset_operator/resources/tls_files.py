"""TLS of a set's pods: the Secret that they mount, and the files that say how it is used (`spec.tls`).

The kubelet mounts the Secret, so the operator needs no right on Secrets and never sees a key. It replaces
all files of a Secret at once, and processes read them again by themselves: a renewed certificate restarts
nobody.

The ConfigMap has a file of keys for each stage (`model/tls_stages`), and a pod's template says which one its
process reads: a pod stays in its stage, also when its container is started again, until it is replaced.

All pods show the same certificate and are connected to by IP as well as by name. So whoever connects expects
the one name that each certificate of the set has, that of its name servers' Service, wherever it connects.
"""

from __future__ import annotations

from typing import Final

from brokerset_operator.model import names
from brokerset_operator.model.certificates import certificate_secret, trust_config_map
from brokerset_operator.model.tls_stages import (
    ANNOTATION,
    CLIENTS_VOLUME,
    TRUST_VOLUME,
    VOLUME,
    TlsStage,
)
from brokerset_operator.resources.set_facts import NewObject, SetFacts

CONFIG_FILE: Final = "tls.properties"
"""Next to the settings, in the same ConfigMap; of pods that serve clients by TLS, and are plain otherwise."""

STAGE_FILES: Final = {
    stage: f"tls-{stage.name.lower()}.properties" for stage in TlsStage if stage > TlsStage.SERVING
}
"""Those of the later stages."""

SECRET_FOLDER: Final = "/etc/brokerset-tls"
CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
"""Names that Kubernetes gives the entries of a Secret of type `kubernetes.io/tls`."""

TRUST_FOLDER: Final = "/etc/brokerset-trust"
CLIENTS_FOLDER: Final = "/etc/brokerset-clients"
AUTHORITIES_FILE: Final = "ca.crt"
"""Entry of the ConfigMap with authorities, as in Kubernetes' own `kube-root-ca.crt`."""

READABLE_BY_GROUP: Final = 0o440
"""Mode of the files: they belong to root and to the group of the pod's user."""

FILE_VARIABLE: Final = "BROKERSET_SET_tlsConfigFile"
"""Variable of the setting `tlsConfigFile`; it counts before what the settings file says."""


def server_name(name: str, namespace: str) -> str:
    """The name that each certificate of a set is for, and that pods and operator expect."""
    return f"{names.namesrv_service(name)}.{namespace}.svc"


def tls_settings(facts: SetFacts, folder: str) -> dict[str, str]:
    """Settings of every process that has TLS; `folder` is where its settings are mounted."""
    return {"tlsConfigFile": f"{folder}/{CONFIG_FILE}"} if _secret(facts) is not None else {}


def tls_variables(facts: SetFacts, folder: str) -> list[NewObject]:
    """Variables of a container that say which file counts for its stage."""
    file = STAGE_FILES.get(facts.tls_stage)
    return [] if file is None else [{"name": FILE_VARIABLE, "value": f"{folder}/{file}"}]


def tls_annotations(facts: SetFacts) -> dict[str, str]:
    """Annotations of a pod: its stage, unless nobody has to know."""
    stage = facts.tls_stage
    return {ANNOTATION: stage.name.lower()} if stage > TlsStage.SERVING else {}


def probe_scheme(facts: SetFacts) -> dict[str, str]:
    """Fields of a probe: the kubelet connects by TLS, too, from then on. It checks no certificate."""
    return {"scheme": "HTTPS"} if facts.tls_stage >= TlsStage.CONNECTING else {}


def scrape_scheme(facts: SetFacts) -> NewObject:
    """Fields of a PodMonitor's endpoint: all pods take TLS when the first one connects by it."""
    if facts.tls_stage < TlsStage.CONNECTING:
        return {}
    authorities = {"name": trust_config_map(facts.manifest), "key": AUTHORITIES_FILE}
    return {
        "scheme": "https",
        "tlsConfig": {
            "ca": {"configMap": authorities},
            "serverName": server_name(facts.name, facts.namespace),
        },
    }


def tls_config_file(facts: SetFacts) -> dict[str, str]:
    """What the ConfigMap has in addition to the settings, by name of the file.

    Those of all stages at any time: pods of two stages read the same ConfigMap.
    """
    if _secret(facts) is None:
        return {}
    serving = {
        "tls.server.mode": "permissive",
        "tls.server.certPath": f"{SECRET_FOLDER}/{CERTIFICATE_FILE}",
        "tls.server.keyPath": f"{SECRET_FOLDER}/{KEY_FILE}",
    }
    files = {CONFIG_FILE: _text(serving)}
    if trust_config_map(facts.manifest) is None:
        return files
    authorities = f"{TRUST_FOLDER}/{AUTHORITIES_FILE}"
    accepting = {**serving, "tls.members.trustCertPath": authorities}
    connecting = {
        **accepting,
        "tls.enable": "true",
        "tls.client.trustCertPath": authorities,
        "tls.client.serverName": server_name(facts.name, facts.namespace),
    }
    enforcing = {**connecting, "tls.server.mode": "enforcing"}
    of_stages = {
        TlsStage.ACCEPTING: accepting,
        TlsStage.CONNECTING: connecting,
        TlsStage.ENFORCING: enforcing,
    }
    if facts.manifest.spec.tls.clients is not None:
        asking = {
            **enforcing,
            "tls.client.certPath": serving["tls.server.certPath"],
            "tls.client.keyPath": serving["tls.server.keyPath"],
            "tls.server.trustCertPath": f"{CLIENTS_FOLDER}/{AUTHORITIES_FILE}",
            "tls.server.need.client.auth": "optional",
        }
        of_stages[TlsStage.ASKING] = asking
        of_stages[TlsStage.REQUIRING] = {**asking, "tls.server.need.client.auth": "require"}
    return files | {STAGE_FILES[stage]: _text(values) for stage, values in of_stages.items()}


def tls_volumes(facts: SetFacts) -> list[NewObject]:
    """The Secret, and from `ACCEPTING` on the authorities; a pod does not start that lacks an entry."""
    name = _secret(facts)
    if name is None:
        return []
    items = [{"key": file, "path": file} for file in (CERTIFICATE_FILE, KEY_FILE)]
    secret = {"secretName": name, "items": items, "defaultMode": READABLE_BY_GROUP}
    found: list[NewObject] = [{"name": VOLUME, "secret": secret}]
    if facts.tls_stage > TlsStage.SERVING:
        found.append(_authorities(TRUST_VOLUME, trust_config_map(facts.manifest)))
    clients = facts.manifest.spec.tls.clients
    if facts.tls_stage >= TlsStage.ASKING:
        assert clients is not None, "a manifest without is refused until pods are back"
        found.append(_authorities(CLIENTS_VOLUME, clients.trust_config_map))
    return found


def _authorities(volume: str, config_map: str | None) -> NewObject:
    items = [{"key": AUTHORITIES_FILE, "path": AUTHORITIES_FILE}]
    return {"name": volume, "configMap": {"name": config_map, "items": items}}


def tls_mounts(facts: SetFacts) -> list[NewObject]:
    """Where processes find it: whole folders, because single files would not follow a renewal."""
    if _secret(facts) is None:
        return []
    found: list[NewObject] = [{"name": VOLUME, "mountPath": SECRET_FOLDER, "readOnly": True}]
    if facts.tls_stage > TlsStage.SERVING:
        found.append({"name": TRUST_VOLUME, "mountPath": TRUST_FOLDER, "readOnly": True})
    if facts.tls_stage >= TlsStage.ASKING:
        found.append({"name": CLIENTS_VOLUME, "mountPath": CLIENTS_FOLDER, "readOnly": True})
    return found


def _text(values: dict[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in values.items())


def _secret(facts: SetFacts) -> str | None:
    return certificate_secret(facts.manifest)
