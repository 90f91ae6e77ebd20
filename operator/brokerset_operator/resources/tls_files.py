"""TLS of a set's pods: the Secret that they mount, and the file that says how it is used (`spec.tls`).

The kubelet mounts the Secret, so the operator needs no right on Secrets and never sees a key. It replaces
all files of a Secret at once, and processes read them again by themselves: a renewed certificate restarts
nobody. The mode is permissive, since the operator and the pods among themselves connect without TLS.
"""

from __future__ import annotations

from typing import Final

from brokerset_operator.resources.set_facts import NewObject, SetFacts

CONFIG_FILE: Final = "tls.properties"
"""Next to the settings, in the same ConfigMap."""

SECRET_FOLDER: Final = "/etc/brokerset-tls"
CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
"""Names that Kubernetes gives the entries of a Secret of type `kubernetes.io/tls`."""

READABLE_BY_GROUP: Final = 0o440
"""Mode of the files: they belong to root and to the group of the pod's user."""

VOLUME: Final = "tls"


def tls_settings(facts: SetFacts, folder: str) -> dict[str, str]:
    """Settings of every process that has TLS; `folder` is where its settings are mounted."""
    return {"tlsConfigFile": f"{folder}/{CONFIG_FILE}"} if _secret(facts) is not None else {}


def tls_config_file(facts: SetFacts) -> dict[str, str]:
    """What the ConfigMap has in addition to the settings, by name of the file."""
    if _secret(facts) is None:
        return {}
    lines = (
        "tls.server.mode=permissive",
        f"tls.server.certPath={SECRET_FOLDER}/{CERTIFICATE_FILE}",
        f"tls.server.keyPath={SECRET_FOLDER}/{KEY_FILE}",
    )
    return {CONFIG_FILE: "".join(f"{line}\n" for line in lines)}


def tls_volumes(facts: SetFacts) -> list[NewObject]:
    """The Secret; a pod whose Secret or one of the two entries is missing does not start."""
    name = _secret(facts)
    if name is None:
        return []
    items = [{"key": file, "path": file} for file in (CERTIFICATE_FILE, KEY_FILE)]
    secret = {"secretName": name, "items": items, "defaultMode": READABLE_BY_GROUP}
    return [{"name": VOLUME, "secret": secret}]


def tls_mounts(facts: SetFacts) -> list[NewObject]:
    """Where processes find it: the whole folder, because single files would not follow a renewal."""
    if _secret(facts) is None:
        return []
    return [{"name": VOLUME, "mountPath": SECRET_FOLDER, "readOnly": True}]


def _secret(facts: SetFacts) -> str | None:
    return facts.manifest.spec.tls.secret_name
