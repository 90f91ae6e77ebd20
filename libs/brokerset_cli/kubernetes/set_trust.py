"""Whom to trust in the pods of a set: whom its own ConfigMap names, as the operator and the pods do."""

from __future__ import annotations

from brokerset_cli.kubernetes import names
from brokerset_cli.kubernetes.kube_api import ApiFailed, KubeApi, Trouble
from brokerset_cli.kubernetes.sets import Object, part
from brokerset_cli.output import CommandFailed
from brokerset_kube.kinds import CONFIG_MAP
from brokerset_runtime.tls import ServerTrust, trust_of


def config_map_of(broker_set: Object) -> str | None:
    """Name of the ConfigMap with the authorities of a BrokerSet; None if it names none."""
    meta, tls = part(broker_set, "metadata"), part(part(broker_set, "spec"), "tls")
    if "authority" in tls:
        return names.authority(str(meta.get("name", "")))
    given = tls.get("trustConfigMap")
    return str(given) if given else None


def trust_of_set(api: KubeApi, name: str, authorities: str | None = None) -> ServerTrust:
    """Trust the authorities of a set, in PEM those that are given, in servers that show its certificate.

    Raises `ApiFailed`, and `CommandFailed` with what is wrong with the authorities.
    """
    broker_set = api.broker_set(name)
    spec = part(broker_set, "spec")
    if part(part(spec, "tls"), "clients").get("mode") == "require":
        raise CommandFailed(
            f"pods of {name} require certificates of clients, and this command has none",
            "connect from within the cluster, with a certificate, or use tls.clients.mode: optional",
        )
    # Certificates of a set are for the name servers that its clients ask.
    serving = str(part(part(spec, "controllers"), "ref").get("name") or name)
    expected = names.server_name(serving, api.namespace)
    if authorities is not None:
        return _trust("the file of --authorities", authorities, expected)
    config_map = config_map_of(broker_set)
    if config_map is None:
        raise CommandFailed(
            f"pods of {name} take TLS alone, and its spec.tls names no ConfigMap of authorities",
            "give the authorities that sign its certificates by --authorities FILE",
        )
    where = f"ConfigMap {config_map}, which says whom to trust in {name}"
    try:
        found = api.read(CONFIG_MAP.path(api.namespace, config_map))
    except ApiFailed as error:
        if error.trouble not in (Trouble.FORBIDDEN, Trouble.NOT_FOUND, Trouble.NOT_INSTALLED):
            raise
        advice = "ask for the right to get it, or give the authorities by --authorities FILE"
        raise ApiFailed(error.trouble, f"{where}, cannot be read: {error.message}", advice) from None
    return _trust(where, str(part(found, "data").get(names.AUTHORITIES_ENTRY, "")), expected)


def _trust(where: str, text: str, expected: str) -> ServerTrust:
    try:
        return trust_of(text, expected)
    except ValueError as error:
        raise CommandFailed(
            f"{where}, {error}",
            f"put the authorities there, in PEM ({names.AUTHORITIES_ENTRY} of a ConfigMap)",
        ) from None
