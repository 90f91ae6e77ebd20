"""The BrokerSet manifest: typed, with every default, and every error at once.

Read a manifest with `read_manifest`. It refuses, by name, what no part of the product serves yet: a
manifest that is accepted is a manifest that is carried out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, JsonValue, WithJsonSchema

from brokerset_spec.broker_settings import NAME_PATTERN, BrokerSettings
from brokerset_spec.dledger_mode import LEDGER_RULES, check_dledger
from brokerset_spec.external_access import External, check_external
from brokerset_spec.group_count import AUTO, AUTO_ELSEWHERE
from brokerset_spec.manifest_parts import (
    API_VERSION,
    GROUPS_MAX,
    NAME_LENGTH_MAX,
    BrokerName,
    Image,
    NamedPart,
    Part,
    SetName,
    each_once,
    page,
    rule,
    ruled,
)
from brokerset_spec.manifest_reader import ManifestReader, put_name
from brokerset_spec.network_peers import OUTSIDE_LEFT_OUT, NetworkPolicy, check_network_policy
from brokerset_spec.pod_template import check_pod_template, resource_problems
from brokerset_spec.problems import BROKER_NAME_SHAPE, ManifestError, Problem
from brokerset_spec.set_parts import (
    AUTHORITY_TOO_SHORT,
    CLIENTS_SHARED,
    CLIENTS_WITHOUT_AUTHORITY,
    CONTROLLERS_MAX,
    DLEDGER,
    ENFORCING,
    TLS_TWICE,
    TLS_WITHOUT_SECRET,
    TLS_WITHOUT_TRUST,
    TRUST_AND_AUTHORITY,
    TRUST_WITHOUT_SECRET,
    Acl,
    Controllers,
    ControllerStorage,
    Monitoring,
    Replication,
    Storage,
    Tls,
    Update,
)
from brokerset_spec.setting_fields import (
    SettingField,
    SettingValue,
    setting_fields,
    unknown_name,
    value_text,
)
from brokerset_spec.yaml_text import YamlProblem, read_yaml

__all__ = [
    "API_VERSION",
    "CONTROLLERS_MAX",
    "KIND",
    "NAME_LENGTH_MAX",
    "OWN_SETTINGS",
    "REPLICAS_MAX",
    "BrokerSet",
    "ControllerStorage",
    "ManifestError",
    "Problem",
    "Spec",
    "default_manifest",
    "least_in_sync",
    "read_manifest",
    "read_manifest_text",
    "value_text_of",
]

KIND: Final = "BrokerSet"

REPLICAS_MAX: Final = 9
"""Most brokers of one group."""

NOT_LOCAL: Final = {
    "secretName": "names a Secret, which only Kubernetes has",
    "issuerRef": "names an issuer, which only Kubernetes has",
    "authority": "is kept in Secrets, which only Kubernetes has",
}
"""Where certificates come from on Kubernetes alone."""

EXAMPLES: Final = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": "{name: orders}",
    "name": "orders",
}
"""What to write for a field that is missing."""

OWN_SETTINGS: Final[Mapping[str, str]] = {
    "brokerClusterName": "set spec.clusterName instead",
    "brokerName": "set spec.brokerNames instead",
    "brokerId": "ids are handed out and kept by brokerset; leave it out",
    "brokerRole": "roles are given by brokerset; leave it out",
    "brokerIP1": "addresses are chosen by brokerset; leave it out",
    "brokerIP2": "addresses are chosen by brokerset; leave it out",
    "bindAddress": "addresses are chosen by brokerset; leave it out",
    "advertisedAddress": "set spec.advertise instead",
    "advertisedMasterAddress": "set spec.advertise instead",
    "masterEndpointSlice": "addresses are chosen by brokerset; leave it out",
    "listenPort": "ports are chosen by brokerset; leave it out",
    "haListenPort": "ports are chosen by brokerset; leave it out",
    "httpPort": "ports are chosen by brokerset; leave it out",
    "namesrvAddr": "brokerset runs the name servers itself; leave it out",
    "fetchNamesrvAddrByDnsLookup": "brokerset runs the name servers itself; leave it out",
    "controllerAddr": "brokerset runs the controllers itself; leave it out",
    "fetchControllerAddrByDnsLookup": "brokerset runs the controllers itself; leave it out",
    "initAuthenticationUser": "a manifest is no place for passwords; set it in the environment of brokers",
    "innerClientAuthenticationCredentials": (
        "a manifest is no place for passwords; set it in the environment of brokers"
    ),
    "ownerUid": "is given by brokerset; leave it out",
    "expectedReplicas": "set spec.replicas instead",
    "storePathRootDir": "folders are chosen by brokerset; leave it out",
    "storePathCommitLog": "folders are chosen by brokerset; leave it out",
    "storePathBrokerIdentity": "folders are chosen by brokerset; leave it out",
    "storePathEpochFile": "folders are chosen by brokerset; leave it out",
    "enableControllerMode": "set spec.replication.mode instead",
    "allAckInSyncStateSet": "set spec.replication.acknowledge instead",
    "minInSyncReplicas": "set spec.replication.minInSyncReplicas instead",
    "asyncLearner": "every broker of a set is to be in sync; leave it out",
    "enableDLegerCommitLog": "set spec.replication.mode instead",
    "dLegerGroup": "a DLedger group is named after its brokers; set spec.brokerNames instead",
    "dLegerPeers": "members of a DLedger group are chosen by brokerset; set spec.replicas instead",
    "dLegerSelfId": "members of a DLedger group are chosen by brokerset; leave it out",
    "dLegerBrokersetOnly": "every broker of a set is of brokerset; leave it out",
    "storePathDLedgerCommitLog": "folders are chosen by brokerset; leave it out",
}
"""Settings that a manifest may not give under `config`, and what to do instead."""


class Metadata(NamedPart):
    """The part that all Kubernetes objects share."""

    name: SetName
    """Name of the set."""


_CLUSTER_STAYS: Final = "cannot be changed: clients, topics and volumes know the cluster by it"
_GROUPS_STAY: Final = "clients and volumes know the groups by them"


class Spec(Part):
    """What is wanted; everything has a default."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                "!has(self.brokerNames) || size(self.brokerNames) == 0 || !has(self.groups) || "
                "size(self.brokerNames) == self.groups",
                "has more or fewer names than groups says; list one name for each group, or leave groups out",
                "brokerNames",
            ),
            rule(
                "!has(self.replicas) || !has(self.replication) || "
                "!has(self.replication.minInSyncReplicas) || "
                "self.replication.minInSyncReplicas <= self.replicas",
                "so many can never be in sync, because replicas is smaller; use at most replicas, or "
                "leave it out",
                "replication.minInSyncReplicas",
            ),
            rule(
                "!has(self.tls) || !has(self.tls.clients) || !has(self.tls.clients.mode) || "
                "self.tls.clients.mode == 'none' || !has(self.controllers) || !has(self.controllers.ref)",
                "; ".join(CLIENTS_SHARED),
                "tls.clients",
            ),
            rule(
                "!has(self.external) || !has(self.networkPolicy) || !has(self.networkPolicy.clients) || "
                "self.networkPolicy.clients.exists(c, has(c.ipBlock))",
                "; ".join(OUTSIDE_LEFT_OUT),
                "networkPolicy.clients",
            ),
            *LEDGER_RULES,
        )
    )

    image: Annotated[Image, Field(json_schema_extra=page("the operator's"))] | None = None
    """Container image of controllers and brokers; none means the operator's own.

    A change replaces the pods one at a time, slaves first.
    """

    cluster_name: Annotated[
        BrokerName,
        Field(
            json_schema_extra=ruled(
                rule(
                    "self == oldSelf",
                    f"{_CLUSTER_STAYS}; create another BrokerSet",
                    expression=f"'{_CLUSTER_STAYS}; put back ' + oldSelf + ', or create another BrokerSet'",
                )
            )
        ),
    ] = "DefaultCluster"
    """RocketMQ cluster name. Cannot be changed."""

    groups: Annotated[
        Annotated[int, Field(ge=1, le=GROUPS_MAX)] | Literal["auto"],
        # The API server takes numbers only, as autoscalers read and write the field.
        WithJsonSchema({"type": "integer", "minimum": 1, "maximum": GROUPS_MAX}),
        Field(
            json_schema_extra={
                "default": None,
                **page("number of names, else 1", f"1 to {GROUPS_MAX}, with `brokerset up` also `auto`"),
            }
        ),
    ] = 1
    """Number of broker groups: as many as brokerNames lists, else 1. More are added, fewer are drained and
    then removed.

    A broker uses one core, so groups are what uses more of them. `auto`, with `brokerset up` only, takes as
    many as the machine has cores for, and keeps that number.
    """

    broker_names: Annotated[
        tuple[BrokerName, ...],
        Field(
            strict=False,
            max_length=GROUPS_MAX,
            json_schema_extra=ruled(
                each_once("a name is listed twice; give each group a name of its own"),
                rule(
                    "(size(self) == 0) == (size(oldSelf) == 0)",
                    f"names of groups cannot be changed, nor listed or left out later: {_GROUPS_STAY}; "
                    "put the list back as it was",
                ),
                rule(
                    "size(self) == 0 || size(oldSelf) == 0 || (self.join(',') + "
                    "',').startsWith(oldSelf.join(',')"
                    " + ',') || (oldSelf.join(',') + ',').startsWith(self.join(',') + ',')",
                    f"names of groups cannot be changed: {_GROUPS_STAY}; "
                    "add names at the end, or take the last ones away",
                ),
                **page("`<name>-0`, `<name>-1`, …"),
            ),
        ),
    ] = ()
    """Names of the groups; by default <name of the set>-0, -1, … Names can only be added or removed at the
    end."""

    replicas: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] = 3
    """Brokers in each group; one is elected master, and the others have copies of its messages."""

    replication: Replication = Replication()
    controllers: Controllers = Controllers()
    storage: Storage = Storage()

    config: Mapping[str, bool | int | float | str] = {}
    """Broker settings by RocketMQ's names. Unknown names are refused: the condition Ready then says
    InvalidSpec and names the nearest known one."""

    advertise: Literal["masterService", "podIP", "podName"] = "masterService"
    """What clients are told as a broker's address: a Service that follows the master, the pod's IP, or the
    pod's DNS name.

    With the Service, clients follow a failover without asking for the route again.
    """

    external: External | None = None
    """How clients outside the Kubernetes cluster get in; none means not at all. Whoever reaches these
    addresses can read and write everything."""

    network_policy: NetworkPolicy = NetworkPolicy()
    update: Update = Update()
    tls: Tls = Tls()
    acl: Acl = Acl()
    monitoring: Monitoring = Monitoring()

    pod_template: Mapping[str, JsonValue] = {}
    """What is added to the pods: where and with what they run. What would change their rights or their
    program is refused."""


class BrokerSet(Part):
    """Broker groups with their controllers and name servers: a RocketMQ cluster."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                "self.metadata.name.matches('^[a-z][-a-z0-9]*$')",
                "use at most 40 lower-case letters, digits and -, starting with a letter: pods and "
                "Services are "
                "named after it",
                "metadata.name",
            ),
            rule(
                "!has(self.spec.controllers.ref) || self.spec.controllers.ref.name != self.metadata.name",
                "is this set itself; name another set, or leave it out: this set then runs its own",
                "spec.controllers.ref.name",
            ),
        )
    )

    api_version: Literal["brokerset.io/v1alpha1"]
    kind: Literal["BrokerSet"]
    metadata: Metadata
    spec: Spec = Spec()
    status: Any = None
    """Written by the operator; not read."""

    @property
    def broker_names(self) -> tuple[str, ...]:
        """Name of each group, in order; with `groups: auto` that of the first, which there is in any case."""
        number = 1 if self.spec.groups == AUTO else self.spec.groups
        return self.spec.broker_names or tuple(f"{self.metadata.name}-{n}" for n in range(number))

    def with_groups(self, number: int) -> BrokerSet:
        """The same set with so many groups."""
        return self.model_copy(update={"spec": self.spec.model_copy(update={"groups": number})})

    @property
    def is_dledger(self) -> bool:
        """Whether groups elect their leaders by themselves."""
        return self.spec.replication.mode == DLEDGER

    @property
    def controllers_wanted(self) -> int:
        """Number of controllers to run; with a DLedger none, unless the manifest asks for some."""
        own = self.spec.controllers
        asked = any(getattr(own, name) is not None for name in own.model_fields_set)
        return own.replicas if asked or not self.is_dledger else 0

    @property
    def min_in_sync_replicas(self) -> int:
        """Fewest in-sync brokers that take a send."""
        return self.min_in_sync_of(self.spec.replicas)

    def min_in_sync_of(self, replicas: int) -> int:
        """The same for a group that has so many brokers at the moment; a DLedger wants more than half."""
        if self.is_dledger:
            return replicas // 2 + 1
        return least_in_sync(self.spec.replication.min_in_sync_replicas, replicas)

    def config_values(self) -> dict[str, SettingValue]:
        """The settings of `spec.config`, by Python name, ready for `BrokerSettings`."""
        known = setting_fields(BrokerSettings)
        return {known[k].name: known[k].parse(value_text_of(v)) for k, v in self.spec.config.items()}


def least_in_sync(chosen: int | None, replicas: int) -> int:
    """Fewest in-sync brokers that take a send, of so many; `chosen` is what the manifest says, if it does."""
    return min(chosen, replicas) if chosen is not None else (2 if replicas >= 3 else 1)


def default_manifest(name: str = "brokerset") -> BrokerSet:
    """Return the set that is run without a manifest: three controllers, and one group of three brokers."""
    return read_manifest({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}})


def read_manifest_text(text: str) -> BrokerSet:
    """Read a manifest for this machine from YAML or JSON; raises `ManifestError`.

    `groups: auto` means something here, as `plan_local` knows the machine.
    """
    try:
        document = read_yaml(text)
    except YamlProblem as error:
        problem = Problem("", f"the text cannot be read as YAML: {error}", "correct the text")
        raise ManifestError([problem]) from None
    return _LOCAL_READER.read(document)


def read_manifest(document: object) -> BrokerSet:
    """Check a manifest that was read from the Kubernetes API; raises `ManifestError`.

    A field that is null counts as left out, as it does for the Kubernetes API.
    """
    return _READER.read(document)


def check_manifest(manifest: BrokerSet) -> list[Problem]:
    """Return what is wrong with a well-shaped manifest on Kubernetes, where a set knows no cores."""
    elsewhere = [Problem("spec.groups", *AUTO_ELSEWHERE)] if manifest.spec.groups == AUTO else []
    return [*elsewhere, *_everywhere(manifest)]


def check_local_manifest(manifest: BrokerSet) -> list[Problem]:
    """Return what is wrong with a well-shaped manifest on one machine, where there are no Secrets.

    Plain connections instead of those that were asked for would be a surprise, hence no note but a refusal.
    """
    found = _everywhere(manifest)
    for source in manifest.spec.tls.sources:
        advice = "leave it out, and start the set with brokerset up --tls"
        found.append(Problem(f"spec.tls.{source}", NOT_LOCAL[source], advice))
    if manifest.spec.acl.secret_name is not None:
        advice = "leave it out, and start the set with brokerset up --acl"
        found.append(Problem("spec.acl.secretName", "names a Secret, which only Kubernetes has", advice))
    return found


def _everywhere(manifest: BrokerSet) -> list[Problem]:
    """Contradictions, settings, what is not served."""
    return [
        *_contradictions(manifest),
        *_config_problems(manifest),
        *check_pod_template(manifest.spec.pod_template),
        *_tls_problems(manifest),
        *_acl_problems(manifest),
        *_external_problems(manifest),
        *check_network_policy(manifest.spec.network_policy, has_external=manifest.spec.external is not None),
        *check_dledger(
            manifest.spec.replication, manifest.spec.replicas, manifest.spec.controllers, manifest.spec.config
        ),
        *_not_served(manifest),
    ]


def value_text_of(value: bool | int | float | str) -> str:
    """Return a value of `spec.config` as settings files spell it."""
    return value_text(str(value) if isinstance(value, float) else value)


def _contradictions(manifest: BrokerSet) -> Iterable[Problem]:
    spec = manifest.spec
    names = spec.broker_names
    if names and "groups" in spec.model_fields_set and len(names) != spec.groups:
        reason = f"lists {len(names)} names for {spec.groups} groups"
        yield Problem("spec.brokerNames", reason, "list one name for each group, or leave groups out")
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem("spec.brokerNames", f"{name} is listed twice", "give each group a name of its own")
    minimum = spec.replication.min_in_sync_replicas
    if minimum is not None and minimum > spec.replicas:
        reason = f"{minimum} can never be in sync with replicas: {spec.replicas}"
        allowed = f"1 to {spec.replicas}" if spec.replicas > 1 else "1"
        yield Problem("spec.replication.minInSyncReplicas", reason, f"use {allowed}, or leave it out")
    controllers = spec.controllers
    if controllers.ref is not None:
        if "replicas" in controllers.model_fields_set:
            reason = "says how many controllers to run, and controllers.ref whose to use instead"
            yield Problem("spec.controllers.replicas", reason, "leave one of them out")
        for name in ("storage", "resources"):
            if getattr(controllers, name) is not None:
                reason = (
                    "is about controllers of the set's own, and controllers.ref says whose to use instead"
                )
                yield Problem(f"spec.controllers.{name}", reason, "leave one of them out")
        if controllers.ref.name == manifest.metadata.name:
            advice = "name another set, or leave it out: this set then runs its own"
            yield Problem("spec.controllers.ref.name", "is this set itself", advice)
    if controllers.resources is not None:
        yield from resource_problems(controllers.resources, "spec.controllers.resources")


def _tls_problems(manifest: BrokerSet) -> Iterable[Problem]:
    tls = manifest.spec.tls
    if len(tls.sources) > 1:
        yield Problem("spec.tls", *TLS_TWICE)
    if tls.mode == ENFORCING and not tls.sources:
        yield Problem("spec.tls.secretName", *TLS_WITHOUT_SECRET)
    if tls.mode == ENFORCING and tls.trust_config_map is None and tls.authority is None:
        yield Problem("spec.tls.trustConfigMap", *TLS_WITHOUT_TRUST)
    if tls.trust_config_map is not None and not tls.sources:
        yield Problem("spec.tls.trustConfigMap", *TRUST_WITHOUT_SECRET)
    if tls.trust_config_map is not None and tls.authority is not None:
        yield Problem("spec.tls.trustConfigMap", *TRUST_AND_AUTHORITY)
    if tls.clients_mode != "none" and (tls.mode != ENFORCING or tls.authority is None):
        yield Problem("spec.tls.clients", *CLIENTS_WITHOUT_AUTHORITY)
    if tls.clients_mode != "none" and manifest.spec.controllers.ref is not None:
        yield Problem("spec.tls.clients", *CLIENTS_SHARED)
    own = tls.authority
    if own is not None and own.authority_days < 3 * own.certificate_days:
        yield Problem("spec.tls.authority.authorityDays", *AUTHORITY_TOO_SHORT)


def _acl_problems(manifest: BrokerSet) -> Iterable[Problem]:
    spec = manifest.spec
    if spec.acl.secret_name is None:
        return
    for name in ("authenticationEnabled", "authorizationEnabled", "refuseSignedRequests"):
        if name in spec.config:
            yield Problem(f"spec.config.{name}", "is up to spec.acl", "leave it out, and set acl.mode")


def _external_problems(manifest: BrokerSet) -> list[Problem]:
    return check_external(
        manifest.spec.external,
        set_name=manifest.metadata.name,
        groups=manifest.broker_names,
        own_controllers=manifest.spec.controllers.ref is None,
        names=manifest.spec.advertise != "podIP",
    )


def _config_problems(manifest: BrokerSet) -> list[Problem]:
    known = setting_fields(BrokerSettings)
    found: list[Problem] = []
    values: dict[str, Any] = {}
    for name, raw in manifest.spec.config.items():
        path = f"spec.config.{name}"
        item = known.get(name)
        if item is None:
            reason, _, near = unknown_name(BrokerSettings, name).removeprefix(f"{name} ").partition("; ")
            found.append(Problem(path, reason, near or "correct the name or leave it out"))
        elif name in OWN_SETTINGS:
            found.append(Problem(path, "is set by brokerset itself", OWN_SETTINGS[name]))
        else:
            if wanted := _other_kind(item, raw):
                found.append(Problem(path, f"is not {wanted}", f"give {wanted}"))
                continue
            if isinstance(raw, str) and raw.splitlines() not in ([], [raw]):
                # In a settings file the rest would be settings of their own.
                found.append(Problem(path, "has more than one line", "write it on one line"))
                continue
            try:
                value = item.parse(value_text_of(raw))
                if text := item.problem(value):
                    raise ValueError(text.partition(": ")[2])
                values[item.name] = value
            except ValueError as error:
                found.append(Problem(path, f"{value_text_of(raw)!r}: {error}", "correct the value"))
    for text in BrokerSettings(**values).problems():
        name = re.split("[=: ]", text, maxsplit=1)[0]
        found.append(Problem(f"spec.config.{name}", text[len(name) :].lstrip("=: "), "correct the value"))
    return found


def _other_kind(item: SettingField, value: bool | int | float | str) -> str | None:
    """What a setting wants when `value` is of another kind: `"72"` is no number, as for Kubernetes."""
    match item.kind:
        case "boolean":
            return None if isinstance(value, bool) else "true or false, without quotes"
        case "number":
            right = isinstance(value, int) and not isinstance(value, bool)
            return None if right else "a whole number, without quotes"
        case _:
            return None if isinstance(value, str) else "a text, in quotes"


def _not_served(manifest: BrokerSet) -> Iterable[Problem]:
    """Name the fields that ask for something that does not exist yet, so that nobody relies on it."""
    spec = manifest.spec
    asked = (
        (
            not spec.monitoring.dashboards,
            "monitoring.dashboards",
            "one set alone cannot be without dashboards: they are for all sets",
            "leave it out, or install the chart with dashboards.enabled=false",
        ),
    )
    return [Problem(f"spec.{path}", reason, advice) for when, path, reason, advice in asked if when]


_READER: Final = ManifestReader(
    model=BrokerSet,
    api_version=API_VERSION,
    kind=KIND,
    outline="metadata: {name: …}",
    examples=EXAMPLES,
    check=check_manifest,
    complete=put_name,
)
_LOCAL_READER: Final = replace(_READER, check=check_local_manifest)


assert NAME_PATTERN.pattern in BROKER_NAME_SHAPE, "two places say what a broker name looks like"
