"""Parts of a BrokerSet: replication, controllers, storage, and what is installed with it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from brokerset_spec.manifest_parts import (
    NEVER_SHRINKS,
    ClassName,
    ObjectName,
    Part,
    SetName,
    Size,
    page,
    rule,
    ruled,
    same_or_absent,
)
from brokerset_spec.pod_template import Resources

CONTROLLERS_MAX: Final = 7
"""Most controllers of one set."""

DLEDGER: Final = "dledger"
"""The mode in which groups elect their leaders by themselves."""

MODE_STAYS: Final = ("the logs differ", "create another BrokerSet")
"""Why the mode cannot be changed, and what to do."""


class Replication(Part):
    """How the brokers of a group keep copies of each other's messages."""

    mode: Annotated[
        Literal["controller", "dledger"],
        Field(
            json_schema_extra=ruled(
                rule("self == oldSelf", f"cannot be changed: {MODE_STAYS[0]}; {MODE_STAYS[1]}"),
            )
        ),
    ] = "controller"
    """Who decides which broker of a group is the master: controllers, or the group's brokers by a DLedger.

    With `dledger` a group has 3 or 5 brokers, permanently. Controllers run only if `controllers` says
    something of them, and serve names alone; else name servers take their place. **Cannot be changed.**
    """

    acknowledge: Annotated[
        Literal["allInSync", "master"],
        Field(json_schema_extra={"default": None, **page("`allInSync`")}),
    ] = "allInSync"
    """Which brokers must have a message before its sender is told that it is stored: all in sync, or the
    master alone, which may lose the last messages. Not with `dledger`, where it is more than half."""

    min_in_sync_replicas: (
        Annotated[
            int,
            Field(ge=1, json_schema_extra=page("2 from three replicas on, else 1", "1 to `replicas`")),
        ]
        | None
    ) = None
    """Fewer in-sync brokers than this refuse sends; by default 2 from three replicas on, else 1. Not with
    `dledger`."""

    unclean_election: bool = False
    """Whether a broker that may lack acknowledged messages can become master when no other is left. Never
    with `dledger`."""


class ControllersRef(Part):
    """Another set, whose controllers this one uses."""

    name: SetName
    """Name of the other set.

    Not together with the other fields of `controllers`, and not on one machine.
    """


class ControllerStorage(Part):
    """The volume of each controller, where it is to be another one than those of brokers."""

    size: (
        Annotated[
            Size, Field(json_schema_extra=ruled(NEVER_SHRINKS, **page("that of brokers, at most `20Gi`")))
        ]
        | None
    ) = None
    """Size of the volume, by default that of brokers, but at most 20Gi; it may grow later, if the storage
    class allows it, and never shrinks."""

    class_name: Annotated[ClassName, Field(json_schema_extra=page("that of brokers"))] | None = None
    """Storage class, by default that of brokers. Cannot be set, changed or taken away later."""


def _own(name: str) -> dict[str, Any]:
    message = (
        "is about controllers of the set's own, and ref says whose to use instead; leave one of them out"
    )
    return rule(f"!(has(self.ref) && has(self.{name}))", message, name)


class Controllers(Part):
    """The processes that serve names and decide who is master."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                "!(has(self.ref) && has(self.replicas))",
                "says how many controllers to run, and ref whose to use instead; leave one of them out",
                "replicas",
            ),
            _own("storage"),
            _own("resources"),
            rule(
                "(has(self.storage) && has(self.storage.className) ? self.storage.className : '') == "
                "(has(oldSelf.storage) && has(oldSelf.storage.className) ? oldSelf.storage.className : '')",
                "className cannot be set, changed or taken away later: volumes stay in the class that "
                "they were "
                "made in; create another BrokerSet",
                "storage",
            ),
            rule(
                "has(self.ref) == has(oldSelf.ref) && (!has(self.ref) || !has(oldSelf.ref) || "
                "self.ref.name == oldSelf.ref.name)",
                "cannot be set, changed or taken away later: the brokers' ids are kept by the controllers "
                "that "
                "they began with; create another BrokerSet",
                "ref",
            ),
        )
    )

    replicas: Annotated[
        int, Field(ge=1, le=CONTROLLERS_MAX, json_schema_extra={"default": None, **page("3")})
    ] = 3
    """Number of processes, by default 3; more than half must live, so an even number survives no more losses.

    Each has a name server in it.
    """

    ref: ControllersRef | None = None
    """Use those of another set in the same namespace instead. Cannot be set, changed or taken away later."""

    storage: ControllerStorage | None = None
    resources: Resources | None = None
    """What a controller's pod asks for and may use at most.

    By default 50m of cpu and 128Mi of memory are asked for; what is not named keeps its default. A change
    replaces the controllers one at a time.
    """


class Storage(Part):
    """The volume of each broker."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            same_or_absent(
                "className",
                "cannot be changed: volumes stay in the class that they were made in; create another "
                "BrokerSet",
            )
        )
    )

    size: Annotated[Size, Field(json_schema_extra=ruled(NEVER_SHRINKS))] = "20Gi"
    """Size of the volume; it may grow later, if the storage class allows it, and never shrinks.

    Controllers have volumes of this size, too, up to 20Gi.
    """

    class_name: Annotated[ClassName, Field(json_schema_extra=page("the cluster's"))] | None = None
    """Storage class; none means the cluster's default. Cannot be changed."""

    when_deleted: Literal["Retain", "Delete"] = "Retain"
    """What happens to volumes when the set is deleted.

    A set of the same name finds retained ones again.
    """


class Update(Part):
    """How a change reaches the brokers."""

    strategy: Literal["automatic", "supervised"] = "automatic"
    """Whether the switchover of each group waits for a person.

    `supervised`: it waits for the annotation `brokerset.io/approve-switchover`.
    """


CERTIFICATE_DAYS_MAX: Final = 825
"""Longest that a certificate is good; some clients refuse longer ones."""

AUTHORITY_DAYS_MAX: Final = 7300
ENFORCING: Final = "enforcing"
"""Mode in which plain requests are refused."""

TLS_WITHOUT_SECRET: Final = (
    "is missing, and mode enforcing needs a certificate",
    "name a Secret, or use authority or issuerRef",
)
TLS_WITHOUT_TRUST: Final = (
    "is missing, and mode enforcing needs what pods and operator trust",
    "name a ConfigMap whose entry ca.crt has the authorities, or use authority",
)
TRUST_WITHOUT_SECRET: Final = (
    "is of no use without a certificate",
    "name a Secret in secretName, or leave it out",
)
TRUST_AND_AUTHORITY: Final = (
    "is of no use with an authority of the set's own, which has a ConfigMap of its own",
    "leave it out",
)
CLIENTS_SHARED: Final = (
    "asks clients for certificates, which is not possible with controllers of another set",
    "leave it out, or leave controllers.ref out: this set then runs its own",
)
CLIENTS_WITHOUT_AUTHORITY: Final = (
    "asks clients for certificates, which needs mode enforcing and an authority of the set's own",
    "use mode enforcing with authority, or clients.mode none",
)
TLS_TWICE: Final = (
    "says where the certificate comes from more than once",
    "use one of secretName, issuerRef and authority",
)
AUTHORITY_TOO_SHORT: Final = (
    "is too short for certificateDays: an authority lasts at least three times as long",
    "use a greater number",
)
"""What is wrong with a section, and what to do about it; for the API server, and for us."""


class IssuerRef(Part):
    """An issuer of cert-manager."""

    name: ObjectName
    """Name of the issuer."""

    kind: Literal["Issuer", "ClusterIssuer"] = "Issuer"
    """An `Issuer` is in the namespace of the set."""

    group: ObjectName = "cert-manager.io"
    """API group of that kind: issuers of others than cert-manager have their own."""


class OwnAuthority(Part):
    """An authority of the set's own, which the operator makes, keeps and renews in Secrets."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                "self.authorityDays >= 3 * self.certificateDays",
                "; ".join(AUTHORITY_TOO_SHORT),
                "authorityDays",
            )
        )
    )

    certificate_days: Annotated[int, Field(ge=1, le=CERTIFICATE_DAYS_MAX)] = 90
    """How long a certificate of the set is good; it is renewed when a third of that is left."""

    authority_days: Annotated[int, Field(ge=3, le=AUTHORITY_DAYS_MAX)] = 1825
    """How long the authority is good; it is renewed when a third of that is left. Three times
    `certificateDays` at least."""


class ClientCertificates(Part):
    """Certificates of clients, by an authority of their own, which makes nobody one of the set."""

    mode: Literal["none", "optional", "require"] = "none"
    """`optional`: who shows one must show a good one. `require`: who shows none is refused.

    A set that runs gets there and back in steps, each of which replaces its pods one at a time: first pods
    show each other their own and take those of clients, then they require them.
    """

    trust_config_map: Annotated[ObjectName, Field(json_schema_extra=page(values="none"))]
    """ConfigMap in the same namespace whose entry `ca.crt` has the authorities, in PEM, that sign clients'
    certificates. It must be there before. A change of it is used without a restart.
    """


def _one_source(has: str) -> str:
    """The rule that holds only where the certificate comes from somewhere."""
    return f"{has} || has(self.secretName) || has(self.issuerRef) || has(self.authority)"


class Tls(Part):
    """Encrypted connections, and where their certificate comes from: one of `secretName`, `issuerRef` and
    `authority`; without any there is none."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                "[has(self.secretName), has(self.issuerRef), has(self.authority)].filter(x, x).size() <= 1",
                "; ".join(TLS_TWICE),
            ),
            rule(
                _one_source(f"!has(self.mode) || self.mode != '{ENFORCING}'"),
                "; ".join(TLS_WITHOUT_SECRET),
                "secretName",
            ),
            rule(
                f"!has(self.mode) || self.mode != '{ENFORCING}' || has(self.trustConfigMap) || "
                "has(self.authority)",
                "; ".join(TLS_WITHOUT_TRUST),
                "trustConfigMap",
            ),
            rule(
                _one_source("!has(self.trustConfigMap)"),
                "; ".join(TRUST_WITHOUT_SECRET),
                "trustConfigMap",
            ),
            rule(
                "!has(self.trustConfigMap) || !has(self.authority)",
                "; ".join(TRUST_AND_AUTHORITY),
                "trustConfigMap",
            ),
            rule(
                "!has(self.clients) || !has(self.clients.mode) || self.clients.mode == 'none' || "
                f"(has(self.mode) && self.mode == '{ENFORCING}' && has(self.authority))",
                "; ".join(CLIENTS_WITHOUT_AUTHORITY),
                "clients",
            ),
        )
    )

    mode: Literal["permissive", "enforcing"] = "permissive"
    """`permissive`: plain requests are served, too, and pods connect to each other without TLS. `enforcing`:
    each port of the set takes TLS alone; it needs `trustConfigMap` or `authority`. Sets that share
    controllers have it together.

    A set that runs gets there and back in steps, each of which replaces its pods one at a time: first all
    accept TLS, then all connect by it, then plain requests are refused.
    """

    secret_name: Annotated[ObjectName, Field(json_schema_extra=page(values="none"))] | None = None
    """Secret of type `kubernetes.io/tls` in the same namespace, which somebody else keeps.

    With it brokers, name servers and controllers serve TLS and plain requests on the same ports. It must be
    there before. A renewed certificate is used without a restart; another name replaces the pods.
    """

    issuer_ref: IssuerRef | None = None
    """Issuer of cert-manager that signs the certificate. The operator keeps a `Certificate` called
    `<set>-certificate` with all names of the set, and cert-manager the Secret of that name.

    The chart gives the operator what it needs for it with `tls.certManager.enabled`.
    """

    authority: OwnAuthority | None = None
    """An authority of the set's own: the operator makes and renews it, and the certificate, in the Secrets
    `<set>-authority` and `<set>-certificate`. Whom to trust is in the ConfigMap `<set>-authority`.

    The chart gives the operator what it needs for it with `tls.authority.enabled`.
    """

    trust_config_map: Annotated[ObjectName, Field(json_schema_extra=page(values="none"))] | None = None
    """ConfigMap in the same namespace whose entry `ca.crt` has the authorities, in PEM, that sign the set's
    certificates. Pods and operator trust them, and pods let in as one of theirs whom they have signed.
    """

    clients: ClientCertificates | None = None
    """Whether pods ask clients for certificates, at the ports for everybody; those of the set are served by
    their own. It needs `mode: enforcing` and `authority`.
    """

    @property
    def clients_mode(self) -> str:
        """Whether clients are asked for certificates, or are to be."""
        return "none" if self.clients is None else self.clients.mode

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the fields that say where the certificate comes from."""
        given = {"secretName": self.secret_name, "issuerRef": self.issuer_ref, "authority": self.authority}
        return tuple(name for name, value in given.items() if value is not None)


class Acl(Part):
    """Who may do what: brokers check users and policies, name servers and controllers who administers."""

    mode: Literal["permissive", "enforcing"] = "enforcing"
    """`permissive`: pods have users and sign what they ask each other, and nobody is checked. `enforcing`:
    each request at brokers, name servers and controllers is.

    A set that runs gets there and back in steps, which replace its pods one at a time: brokers sign first,
    then name servers and controllers check, then brokers do, then controllers go by policies, too.
    """

    secret_name: Annotated[ObjectName, Field(json_schema_extra=page(values="none"))] | None = None
    """Secret in the same namespace with the administrator of the set, and as whom its pods sign; none means
    that nobody is checked.

    Its entries are `initAuthenticationUser` and `innerClientAuthenticationCredentials`, with the texts that
    brokers' settings of these names have. It must be immutable, and the operator must be allowed to read it.
    Another Secret with the same users and other passwords is taken over while everybody is checked, if the
    set has controllers of its own alone; all else needs `permissive` first.
    """


class Monitoring(Part):
    """What is installed for the people who watch."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                "!has(self.dashboards) || self.dashboards",
                "one set alone cannot be without dashboards: they are for all sets; leave it out, or "
                "install the "
                "chart with dashboards.enabled=false",
                "dashboards",
            )
        )
    )

    pod_monitor: bool = False
    """A PodMonitor, for clusters with the Prometheus operator."""

    dashboards: Annotated[bool, Field(json_schema_extra=page(values="`true`"))] = True
    """Dashboards for Grafana; the chart installs them, for all sets.

    They are labelled ConfigMaps; `dashboards.enabled=false` of the chart leaves them out.
    """

    rules: bool = True
    """Alert rules, for clusters with the Prometheus operator."""
