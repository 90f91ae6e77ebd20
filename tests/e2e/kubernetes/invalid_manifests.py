"""Manifests that must be refused, with what the API server and the reader of manifests say; used by tests of both."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

LEFT_OUT: Final = object()
"""Stands in a patch for a field that is taken away."""

SET: Final[Mapping[str, Any]] = {
    "apiVersion": "brokerset.io/v1alpha1",
    "kind": "BrokerSet",
    "metadata": {"name": "orders"},
    "spec": {
        "clusterName": "Shop",
        "groups": 2,
        "brokerNames": ["broker-a", "broker-b"],
        "replicas": 3,
        "storage": {"size": "20Gi"},
        "config": {"fileReservedTime": 48},
    },
}
"""A valid set."""

TOPIC: Final[Mapping[str, Any]] = {
    "apiVersion": "brokerset.io/v1alpha1",
    "kind": "Topic",
    "metadata": {"name": "payments"},
    "spec": {"brokerSetRef": {"name": "orders"}, "topicName": "Payments"},
}
"""A valid topic."""

USER: Final[Mapping[str, Any]] = {
    "apiVersion": "brokerset.io/v1alpha1",
    "kind": "User",
    "metadata": {"name": "shop"},
    "spec": {
        "brokerSetRef": {"name": "orders"},
        "username": "Shop",
        "policies": [{"resources": ["Topic:orders"], "actions": ["Pub"]}],
    },
}
"""A valid user."""

SUBJECT: Final[Mapping[str, Any]] = {
    "apiVersion": "brokerset.io/v1alpha1",
    "kind": "Subject",
    "metadata": {"name": "events"},
    "spec": {"brokerSetRef": {"name": "orders"}, "subject": "Events", "partitions": 2},
}
"""A valid subject."""

AUDIT: Final[Mapping[str, Any]] = {
    "apiVersion": "brokerset.io/v1alpha1",
    "kind": "StoreAudit",
    "metadata": {"name": "nightly"},
    "spec": {"brokerSetRef": {"name": "orders"}, "schedule": "0 3 * * *"},
}
"""A valid audit."""

EXPORT: Final[Mapping[str, Any]] = {
    "apiVersion": "brokerset.io/v1alpha1",
    "kind": "StoreExport",
    "metadata": {"name": "lake"},
    "spec": {
        "brokerSetRef": {"name": "orders"},
        "topics": ["payments"],
        "target": {"url": "s3://lake/orders", "credentials": {"secretName": "lake-keys"}},
    },
}
"""A valid export."""

MIGRATION: Final[Mapping[str, Any]] = {
    "apiVersion": "brokerset.io/v1alpha1",
    "kind": "StoreMigration",
    "metadata": {"name": "take-over"},
    "spec": {"source": {"claimName": "old"}, "target": {"claimName": "new"}},
}
"""A valid migration."""


@dataclass(frozen=True, slots=True)
class Case:
    """A manifest that must be refused."""

    name: str
    patch: Mapping[str, Any]
    """What makes the valid manifest invalid."""

    api: str | None
    """Part of what the API server says; None: it takes the manifest, and the operator refuses it."""

    reader: str | None = None
    """Part of what `read_manifest` says; None: it sees one manifest and cannot know."""

    valid: Mapping[str, Any] = field(default_factory=lambda: SET)
    before: Mapping[str, Any] | None = None
    """A patch for what was there before, when the change is what is wrong."""

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest that must be refused."""
        return patched(self.valid, self.patch)

    @property
    def earlier(self) -> dict[str, Any] | None:
        """The valid manifest that it would change."""
        return None if self.before is None else patched(self.valid, self.before)


def patched(manifest: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest with the fields of `patch` in their places."""
    found = copy.deepcopy(dict(manifest))
    for key, value in patch.items():
        if value is LEFT_OUT:
            found.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(found.get(key), dict):
            found[key] = patched(found[key], value)
        else:
            found[key] = copy.deepcopy(value)
    return found


def _spec(name: str, api: str | None, reader: str | None, **spec: Any) -> Case:
    return Case(name, {"spec": spec}, api, reader)


def _pods(name: str, api: str, reader: str, **template: Any) -> Case:
    return Case(name, {"spec": {"podTemplate": template}}, api, reader)


def _change(name: str, api: str, before: Mapping[str, Any], **spec: Any) -> Case:
    return Case(name, {"spec": spec}, api, None, before={"spec": before})


def _topic(name: str, api: str, reader: str | None, **spec: Any) -> Case:
    return Case(name, {"spec": spec}, api, reader, valid=TOPIC)


def _user(name: str, api: str | None, reader: str | None, **spec: Any) -> Case:
    return Case(name, {"spec": spec}, api, reader, valid=USER)


def _policy(name: str, api: str | None, reader: str, **policy: Any) -> Case:
    given = {"resources": ["Topic:orders"], "actions": ["Pub"], **policy}
    return _user(name, api, reader, policies=[given])


def _subject(name: str, api: str, reader: str | None, **spec: Any) -> Case:
    return Case(name, {"spec": spec}, api, reader, valid=SUBJECT)


def _audit(name: str, api: str, reader: str, **spec: Any) -> Case:
    return Case(name, {"spec": spec}, api, reader, valid=AUDIT)


def _export(name: str, api: str, reader: str, **spec: Any) -> Case:
    return Case(name, {"spec": spec}, api, reader, valid=EXPORT)


def _migration(name: str, api: str, reader: str, **spec: Any) -> Case:
    return Case(name, {"spec": spec}, api, reader, valid=MIGRATION)


_TEXT = "use lower-case letters, digits and -"
_RIGHTS = "cannot be set; pods run with the least rights that they need, and those cannot be changed"
_PROGRAM = "cannot be set; what a pod runs is decided by brokerset"
_OWN = "is set by brokerset itself; "

SHAPES: Final = (
    Case(
        "a name with a dot",
        {"metadata": {"name": "or.ders"}},
        "use at most 40 lower-case letters",
        _TEXT,
    ),
    Case(
        "a name that starts with a digit",
        {"metadata": {"name": "1orders"}},
        "metadata.name: Forbidden: use at most 40 lower-case letters",
        _TEXT,
    ),
    Case(
        "a name that is too long",
        {"metadata": {"name": "o" * 41}},
        "metadata.name: Too long",
        "metadata.name: is longer than 40",
    ),
    Case("a name in capitals", {"metadata": {"name": "Orders"}}, "metadata.name: Invalid value", _TEXT),
    _spec(
        "load balancers' networks at node ports",
        "has no effect with type NodePort; leave it out",
        "spec.external.loadBalancerSourceRanges: has no effect with type: NodePort",
        external={"type": "NodePort", "loadBalancerSourceRanges": ["10.0.0.0/8"]},
    ),
    _spec(
        "one host for many load balancers",
        "give advertisedHost under nameServers and masters instead",
        "spec.external.advertisedHost: each load balancer has an address of its own",
        external={"type": "LoadBalancer", "advertisedHost": "mq.example.com"},
    ),
    _spec(
        "single brokers that are not let out",
        "set perBroker to true, or leave it out",
        "spec.external.brokers: has no effect without perBroker",
        external={"type": "NodePort", "brokers": [{"pod": "orders-0-0"}]},
    ),
    _spec(
        "a master of an unknown group",
        None,
        "spec.external.masters.0.group: the set has no group broker-c",
        external={"type": "NodePort", "masters": [{"group": "broker-c"}]},
    ),
    _spec(
        "somebody who may connect and is nobody",
        "give podSelector, namespaceSelector or both, or else ipBlock",
        "spec.networkPolicy.clients.0: says nothing, or names both pods and addresses",
        networkPolicy={"clients": [{}]},
    ),
    _spec(
        "somebody who is a pod and an address",
        "give podSelector, namespaceSelector or both, or else ipBlock",
        "spec.networkPolicy.http.0: says nothing, or names both pods and addresses",
        networkPolicy={"http": [{"podSelector": {}, "ipBlock": {"cidr": "203.0.113.0/24"}}]},
    ),
    _spec(
        "an address for a network",
        None,
        "spec.networkPolicy.http.0.ipBlock.cidr: '203.0.113.7' is no network",
        networkPolicy={"http": [{"ipBlock": {"cidr": "203.0.113.7"}}]},
    ),
    _spec(
        "the name of a label with a space",
        None,
        "spec.networkPolicy.orderedClients.0.podSelector.matchLabels: 'a b' is not the name of a label",
        networkPolicy={"orderedClients": [{"podSelector": {"matchLabels": {"a b": "c"}}}]},
    ),
    _spec(
        "clients outside that nobody lets in",
        "add an ipBlock with their addresses, or leave clients out",
        "spec.networkPolicy.clients: leaves out clients outside the cluster",
        external={"type": "NodePort"},
        networkPolicy={"clients": [{"podSelector": {}}]},
    ),
    _spec("groups as a text", "spec.groups", "spec.groups: is not a whole number", groups="2"),
    _spec("no groups", "should be greater than or equal to 1", "spec.groups: is less than 1", groups=0),
    _spec(
        "too many groups", "should be less than or equal to 256", "spec.groups: is more than 256", groups=257
    ),
    _spec(
        "no replicas",
        "spec.replicas in body should be greater than or equal to 1",
        "spec.replicas: is less than 1",
        replicas=0,
    ),
    _spec(
        "too many replicas", "should be less than or equal to 9", "spec.replicas: is more than 9", replicas=10
    ),
    _spec(
        "too many controllers",
        "spec.controllers.replicas in body should be less than or equal to 7",
        "spec.controllers.replicas: is more than 7",
        controllers={"replicas": 8},
    ),
    _spec(
        "an unknown acknowledgement",
        'supported values: "allInSync", "master"',
        "spec.replication.acknowledge: is not 'allInSync' or 'master'",
        replication={"acknowledge": "all"},
    ),
    _spec(
        "an unknown mode",
        "spec.replication.mode: Unsupported value",
        "is not 'controller' or 'dledger'",
        replication={"mode": "raft"},
    ),
    _spec(
        "an unknown address",
        'supported values: "masterService", "podIP", "podName"',
        "spec.advertise: is not 'masterService', 'podIP' or 'podName'",
        advertise="nodePort",
    ),
    _spec(
        "an unknown strategy",
        "spec.update.strategy: Unsupported value",
        "spec.update.strategy: is not",
        update={"strategy": "manual"},
    ),
    _spec(
        "an unknown fate of volumes",
        "spec.storage.whenDeleted: Unsupported value",
        "is not 'Retain' or 'Delete'",
        storage={"whenDeleted": "Recycle"},
    ),
    _spec(
        "a size without sense",
        "spec.storage.size: Invalid value",
        "spec.storage.size: is not a size",
        storage={"size": "20 GB"},
    ),
    _spec(
        "no size at all",
        "spec.storage.size: Invalid value",
        "spec.storage.size: is not a size",
        storage={"size": "0"},
    ),
    _spec(
        "a cluster name with a space",
        "spec.clusterName: Invalid value",
        "spec.clusterName: is not a name",
        clusterName="my cluster",
    ),
    _spec(
        "a group name with a dot",
        "spec.brokerNames[0]: Invalid value",
        "spec.brokerNames.0: is not a name",
        brokerNames=["a.b", "c"],
    ),
    _spec(
        "an image with a space", "spec.image: Invalid value", "spec.image: is not an image", image="bro ker:1"
    ),
    _spec(
        "an unknown field",
        'unknown field "spec.replicass"',
        "spec.replicass: is not a field; did you mean replicas?",
        replicass=3,
    ),
    _spec(
        "an unknown field inside",
        'unknown field "spec.storage.sise"',
        "spec.storage.sise: is not a field; did you mean size?",
        storage={"sise": "1Gi"},
    ),
)
"""What the types and limits of fields refuse."""

CONTRADICTIONS: Final = (
    _spec(
        "more names than groups",
        "spec.brokerNames: Forbidden: has more or fewer names than groups says; list one name for each group",
        "lists 3 names for 2 groups; list one name for each group, or leave groups out",
        brokerNames=["a", "b", "c"],
    ),
    _spec(
        "a name that is listed twice",
        "a name is listed twice; give each group a name of its own",
        "a is listed twice; give each group a name of its own",
        brokerNames=["a", "a"],
    ),
    _spec(
        "more in sync than there are",
        "minInSyncReplicas: Forbidden: so many can never be in sync, because replicas is smaller; use at most",
        "4 can never be in sync with replicas: 3; use 1 to 3, or leave it out",
        replication={"minInSyncReplicas": 4},
    ),
    _spec(
        "more in sync than the single broker",
        "so many can never be in sync, because replicas is smaller",
        "2 can never be in sync with replicas: 1; use 1, or leave it out",
        replicas=1,
        replication={"minInSyncReplicas": 2},
    ),
    _spec(
        "controllers of its own and another set's",
        "whose to use instead; leave one of them out",
        "whose to use instead; leave one of them out",
        controllers={"replicas": 3, "ref": {"name": "other"}},
    ),
    _spec(
        "volumes for another set's controllers",
        "spec.controllers.storage: Forbidden: is about controllers of the set's own",
        "spec.controllers.storage: is about controllers of the set's own",
        controllers={"storage": {"size": "5Gi"}, "ref": {"name": "other"}},
    ),
    _spec(
        "resources for another set's controllers",
        "spec.controllers.resources: Forbidden: is about controllers of the set's own",
        "spec.controllers.resources: is about controllers of the set's own",
        controllers={"resources": {"requests": {"cpu": 1}}, "ref": {"name": "other"}},
    ),
    _spec(
        "a controller that asks for more than it may use",
        "spec.controllers.resources.requests: Forbidden: more is asked for than may be used",
        "spec.controllers.resources.requests.memory: 2Gi are asked for, and at most 1Gi may be used",
        controllers={"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}},
    ),
    _spec(
        "its own controllers as another set's",
        "spec.controllers.ref.name: Forbidden: is this set itself; name another set",
        "spec.controllers.ref.name: is this set itself; name another set",
        controllers={"ref": {"name": "orders"}},
    ),
    _spec(
        "a DLedger of four",
        "spec.replicas: Forbidden: a DLedger group has 3 or 5 brokers: more than half of them must agree; use 3 or 5",
        "spec.replicas: a DLedger group has 3 or 5 brokers, not 4",
        replication={"mode": "dledger"},
        replicas=4,
    ),
    _spec(
        "a DLedger with in-sync sets",
        "spec.replication.minInSyncReplicas: Forbidden: there are no in-sync sets with dledger",
        "spec.replication.minInSyncReplicas: there are no in-sync sets with dledger",
        replication={"mode": "dledger", "minInSyncReplicas": 2},
    ),
    _spec(
        "a DLedger that acknowledges otherwise",
        "spec.replication.acknowledge: Forbidden: cannot be chosen with dledger",
        "spec.replication.acknowledge: cannot be chosen with dledger",
        replication={"mode": "dledger", "acknowledge": "allInSync"},
    ),
    _spec(
        "a DLedger with unclean elections",
        "spec.replication.uncleanElection: Forbidden: a DLedger elects no broker that may lack acknowledged messages",
        "spec.replication.uncleanElection: a DLedger elects no broker that may lack acknowledged messages",
        replication={"mode": "dledger", "uncleanElection": True},
    ),
    _spec(
        "a DLedger with another set's controllers",
        "spec.controllers.ref: Forbidden: a DLedger group elects its leader itself, and needs no controllers",
        "spec.controllers.ref: a DLedger group elects its leader itself, and needs no controllers",
        replication={"mode": "dledger"},
        controllers={"ref": {"name": "others"}},
    ),
    _change(
        "more members of a DLedger",
        "spec.replicas: Forbidden: members of a DLedger group cannot be added or taken away, as in RocketMQ",
        {"replication": {"mode": "dledger"}},
        replication={"mode": "dledger"},
        replicas=5,
    ),
    _change(
        "a DLedger instead of controllers",
        "spec.replication.mode: Forbidden: cannot be changed: the logs differ; create another BrokerSet",
        {},
        replication={"mode": "dledger"},
    ),
    _change(
        "controllers of a DLedger later",
        "spec.controllers: Forbidden: cannot be added or taken away with dledger",
        {"replication": {"mode": "dledger"}},
        replication={"mode": "dledger"},
        controllers={"replicas": 3},
    ),
    _spec(
        "a Secret with a name that none can have",
        "spec.tls.secretName: Invalid value",
        "spec.tls.secretName: is not a name; use lower-case letters",
        tls={"secretName": "Orders TLS"},
    ),
    _spec(
        "TLS alone without a certificate",
        "spec.tls.secretName: Forbidden: is missing, and mode enforcing needs a certificate; name a Secret",
        "spec.tls.secretName: is missing, and mode enforcing needs a certificate; name a Secret",
        tls={"mode": "enforcing", "trustConfigMap": "orders-authorities"},
    ),
    _spec(
        "TLS alone without what pods trust",
        "spec.tls.trustConfigMap: Forbidden: is missing, and mode enforcing needs what pods and operator trust",
        "spec.tls.trustConfigMap: is missing, and mode enforcing needs what pods and operator trust",
        tls={"mode": "enforcing", "secretName": "orders-tls"},
    ),
    _spec(
        "authorities without a certificate",
        "spec.tls.trustConfigMap: Forbidden: is of no use without a certificate",
        "spec.tls.trustConfigMap: is of no use without a certificate; name a Secret in secretName",
        tls={"trustConfigMap": "orders-authorities"},
    ),
    _spec(
        "certificates from two places",
        "spec.tls: Forbidden: says where the certificate comes from more than once",
        "spec.tls: says where the certificate comes from more than once; use one of",
        tls={"secretName": "orders-tls", "authority": {}},
    ),
    _spec(
        "whom to trust besides an authority of the set's own",
        "spec.tls.trustConfigMap: Forbidden: is of no use with an authority of the set's own",
        "spec.tls.trustConfigMap: is of no use with an authority of the set's own",
        tls={"trustConfigMap": "orders-authorities", "authority": {}},
    ),
    _spec(
        "an authority that ends before its certificates",
        "spec.tls.authority.authorityDays: Forbidden: is too short for certificateDays",
        "spec.tls.authority.authorityDays: is too short for certificateDays",
        tls={"authority": {"authorityDays": 100}},
    ),
    _spec(
        "certificates of clients without an authority of the set's own",
        "spec.tls.clients: Forbidden: asks clients for certificates, which needs mode enforcing and an authority",
        "spec.tls.clients: asks clients for certificates, which needs mode enforcing and an authority",
        tls={
            "mode": "enforcing",
            "secretName": "orders-tls",
            "trustConfigMap": "orders-authorities",
            "clients": {"mode": "require", "trustConfigMap": "shop-clients"},
        },
    ),
    _spec(
        "certificates of clients where plain requests are served",
        "spec.tls.clients: Forbidden: asks clients for certificates, which needs mode enforcing and an authority",
        "spec.tls.clients: asks clients for certificates, which needs mode enforcing and an authority",
        tls={"authority": {}, "clients": {"mode": "optional", "trustConfigMap": "shop-clients"}},
    ),
    _spec(
        "certificates of clients of nobody knows whom",
        "spec.tls.clients.trustConfigMap: Required value",
        "spec.tls.clients.trustConfigMap: ",
        tls={"authority": {}, "mode": "enforcing", "clients": {"mode": "require"}},
    ),
    _spec(
        "TLS alone by cert-manager, without what pods trust",
        "spec.tls.trustConfigMap: Forbidden: is missing, and mode enforcing needs what pods and operator trust",
        "spec.tls.trustConfigMap: is missing, and mode enforcing needs what pods and operator trust",
        tls={"mode": "enforcing", "issuerRef": {"name": "companys"}},
    ),
    _spec(
        "an issuer of a kind that there is not",
        "spec.tls.issuerRef.kind: Unsupported value",
        "spec.tls.issuerRef.kind: ",
        tls={"issuerRef": {"name": "companys", "kind": "Vault"}},
    ),
    _spec(
        "TLS alone with controllers of another set",
        "spec.tls.mode: Forbidden: enforcing is not possible with controllers of another set",
        "spec.tls.mode: enforcing is not possible with controllers of another set; use permissive",
        tls={"mode": "enforcing", "secretName": "orders-tls", "trustConfigMap": "orders-authorities"},
        controllers={"ref": {"name": "other"}},
    ),
    _spec(
        "a mode of TLS that there is not",
        "spec.tls.mode: Unsupported value",
        "spec.tls.mode: ",
        tls={"mode": "disabled"},
    ),
    _spec(
        "a mode of access control that there is not",
        "spec.acl.mode: Unsupported value",
        "spec.acl.mode: ",
        acl={"mode": "off"},
    ),
    _spec(
        "no dashboards",
        "spec.monitoring.dashboards: Forbidden: one set alone cannot be without dashboards",
        "spec.monitoring.dashboards: one set alone cannot be without dashboards: they are for all sets; leave it out",
        monitoring={"dashboards": False},
    ),
)
"""What contradicts itself, and what nothing serves yet."""

SETTINGS: Final = (
    _spec(
        "an unknown setting",
        None,
        "spec.config.fileReservedTim: is not a setting; did you mean fileReservedTime?",
        config={"fileReservedTim": 2},
    ),
    _spec(
        "a role",
        f"spec.config.brokerRole: Forbidden: {_OWN}roles are given by brokerset",
        f"{_OWN}roles are given",
        config={"brokerRole": "SLAVE"},
    ),
    _spec(
        "an id",
        f"spec.config.brokerId: Forbidden: {_OWN}ids are handed out",
        f"{_OWN}ids are handed out",
        config={"brokerId": 0},
    ),
    _spec(
        "an address",
        f"spec.config.brokerIP1: Forbidden: {_OWN}addresses are chosen",
        f"{_OWN}addresses are chosen",
        config={"brokerIP1": "10.0.0.1"},
    ),
    _spec(
        "a port",
        f"spec.config.listenPort: Forbidden: {_OWN}ports are chosen",
        f"{_OWN}ports are chosen",
        config={"listenPort": 10911},
    ),
    _spec(
        "the fewest in sync as a setting",
        f"{_OWN}set spec.replication.minInSyncReplicas instead",
        f"{_OWN}set spec.replication.minInSyncReplicas instead",
        config={"minInSyncReplicas": 1},
    ),
    _spec(
        "the mode as a setting",
        f"{_OWN}set spec.replication.mode instead",
        f"{_OWN}set spec.replication.mode instead",
        config={"enableControllerMode": False},
    ),
    _spec(
        "a setting that is too small",
        "spec.config.fileReservedTime in body should be greater than or equal to 1",
        "spec.config.fileReservedTime: '0': must be from 1 to",
        config={"fileReservedTime": 0},
    ),
    _spec(
        "an unknown choice",
        'supported values: "ASYNC_FLUSH", "SYNC_FLUSH"',
        "'FSYNC': must be ASYNC_FLUSH or SYNC_FLUSH",
        config={"flushDiskType": "FSYNC"},
    ),
    _spec(
        "a number in quotes",
        "spec.config.fileReservedTime: Invalid value",
        "spec.config.fileReservedTime: is not a whole number, without quotes",
        config={"fileReservedTime": "48"},
    ),
    _spec(
        "a truth value in quotes",
        "spec.config.traceOn: Invalid value",
        "spec.config.traceOn: is not true or false, without quotes",
        config={"traceOn": "true"},
    ),
    _spec(
        "an hour without quotes",
        "spec.config.deleteWhen: Invalid value",
        "spec.config.deleteWhen: is not a text, in quotes",
        config={"deleteWhen": 4},
    ),
    _spec(
        "an hour that no day has",
        "spec.config.deleteWhen: Invalid value",
        "'30' is not an hour from 00 to 23",
        config={"deleteWhen": "30"},
    ),
    _spec(
        "a delay without a unit",
        "spec.config.messageDelayLevel: Invalid value",
        "'5' is not a number followed by s, m, h or d",
        config={"messageDelayLevel": "1s 5"},
    ),
    _spec(
        "a second setting hidden behind a line break",
        "spec.config.regionId: Invalid value",
        "spec.config.regionId: has more than one line",
        config={"regionId": "a\nbrokerId=7"},
    ),
    _spec(
        "messages larger than a file",
        "must fit into a file of mappedFileSizeCommitLog; lower the one or raise the other",
        "spec.config.maxMessageSize: 4194304: does not fit into a file",
        config={"mappedFileSizeCommitLog": 1048576},
    ),
    _spec(
        "a heartbeat slower than its time-out",
        "must be at least twice brokerHeartbeatInterval",
        "must be at least twice brokerHeartbeatInterval",
        config={"brokerHeartbeatInterval": 1500},
    ),
)
"""What `spec.config` may not say."""

PODS: Final = (
    _pods(
        "more rights",
        f"spec.podTemplate.securityContext: Forbidden: {_RIGHTS}",
        f"spec.podTemplate.securityContext: {_RIGHTS}",
        securityContext={"runAsUser": 0},
    ),
    _pods(
        "the node's network",
        f"hostNetwork: Forbidden: {_RIGHTS}",
        f"hostNetwork: {_RIGHTS}",
        hostNetwork=True,
    ),
    _pods("the node's processes", f"hostPID: Forbidden: {_RIGHTS}", f"hostPID: {_RIGHTS}", hostPID=True),
    _pods("the node's memory", f"hostIPC: Forbidden: {_RIGHTS}", f"hostIPC: {_RIGHTS}", hostIPC=True),
    _pods(
        "another account",
        f"serviceAccountName: Forbidden: {_RIGHTS}",
        f"serviceAccountName: {_RIGHTS}",
        serviceAccountName="admin",
    ),
    _pods(
        "a token",
        f"automountServiceAccountToken: Forbidden: {_RIGHTS}",
        f"automountServiceAccountToken: {_RIGHTS}",
        automountServiceAccountToken=True,
    ),
    _pods(
        "another runtime",
        f"runtimeClassName: Forbidden: {_RIGHTS}",
        f"runtimeClassName: {_RIGHTS}",
        runtimeClassName="runc-privileged",
    ),
    _pods(
        "a folder of the node",
        f"volumes: Forbidden: {_PROGRAM}",
        f"volumes: {_PROGRAM}",
        volumes=[{"name": "host", "hostPath": {"path": "/"}}],
    ),
    _pods(
        "a further container",
        f"containers: Forbidden: {_PROGRAM}",
        f"containers: {_PROGRAM}",
        containers=[{"name": "shell", "image": "busybox", "securityContext": {"privileged": True}}],
    ),
    _pods(
        "a container before",
        f"initContainers: Forbidden: {_PROGRAM}",
        f"initContainers: {_PROGRAM}",
        initContainers=[{"name": "sysctl", "image": "busybox"}],
    ),
    _pods("another command", f"command: Forbidden: {_PROGRAM}", f"command: {_PROGRAM}", command=["sh"]),
    _pods(
        "variables from a secret",
        "envFrom: Forbidden: cannot be set; write each variable under env",
        "envFrom: cannot be set; write each variable under env",
        envFrom=[{"secretRef": {"name": "other"}}],
    ),
    _pods(
        "a whole pod",
        "spec.podTemplate.spec: Forbidden: cannot be set; write the fields directly under podTemplate",
        "spec.podTemplate.spec: cannot be set; write the fields directly under podTemplate",
        spec={"hostNetwork": True},
    ),
    _pods(
        "a node by name",
        "nodeName: Forbidden: cannot be set; use nodeSelector or affinity",
        "nodeName: cannot be set; use nodeSelector or affinity",
        nodeName="node-1",
    ),
    _pods(
        "an own label",
        "are brokerset's own; leave them out",
        "brokerset.io/set is brokerset's own; leave it out",
        metadata={"labels": {"brokerset.io/set": "other"}},
    ),
    _pods(
        "an annotation that weakens security",
        "are brokerset's own; leave them out",
        "is brokerset's own; leave it out",
        metadata={"annotations": {"container.apparmor.security.beta.kubernetes.io/broker": "unconfined"}},
    ),
    _pods(
        "a setting as a variable",
        "are brokerset's own; use spec.config for settings",
        "BROKERSET_SET_brokerId is brokerset's own; use spec.config for settings",
        env=[{"name": "BROKERSET_SET_brokerId", "value": "7"}],
    ),
    _pods(
        "a program as a variable",
        "are brokerset's own",
        "LD_PRELOAD is brokerset's own",
        env=[{"name": "LD_PRELOAD", "value": "/data/x.so"}],
    ),
    _pods(
        "another API server",
        "are brokerset's own",
        "KUBERNETES_SERVICE_HOST is brokerset's own",
        env=[{"name": "KUBERNETES_SERVICE_HOST", "value": "192.0.2.1"}],
    ),
    _pods(
        "more asked for than may be used",
        "spec.podTemplate.resources.requests: Forbidden: more is asked for than may be used; lower the request",
        "spec.podTemplate.resources.requests.memory: 2048Mi are asked for, and at most 1.5Gi may be used",
        resources={"requests": {"cpu": 1, "memory": "2048Mi"}, "limits": {"cpu": "1000m", "memory": "1.5Gi"}},
    ),
    _pods(
        "a label with a space",
        "spec.podTemplate.metadata.labels.team: Invalid value",
        "spec.podTemplate.metadata.labels.team: is not a label's value",
        metadata={"labels": {"team": "two words"}},
    ),
    _pods(
        "a variable from a secret",
        'unknown field "spec.podTemplate.env[0].valueFrom"',
        "spec.podTemplate.env.0.valueFrom: is not a field",
        env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
    ),
    _pods(
        "a variable that is there twice",
        "spec.podTemplate.env[1]: Duplicate value",
        "A is there twice; keep one",
        env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
    ),
    _pods(
        "a priority of the system",
        "is for parts of Kubernetes itself; use a class of your own",
        "is for parts of Kubernetes itself; use a class of your own",
        priorityClassName="system-node-critical",
    ),
    _pods(
        "an amount without sense",
        "spec.podTemplate.resources.limits.memory: Invalid value",
        "spec.podTemplate.resources.limits.memory",
        resources={"limits": {"memory": "1 GB"}},
    ),
    _pods(
        "a label as a number",
        "spec.podTemplate.metadata.labels.team: Invalid value",
        "spec.podTemplate.metadata.labels.team: is not a text",
        metadata={"labels": {"team": 7}},
    ),
    _pods(
        "an unknown field of a pod",
        'unknown field "spec.podTemplate.tolerationz"',
        "spec.podTemplate.tolerationz: is not a field; did you mean tolerations?",
        tolerationz=[],
    ),
)
"""What the pod template may not say."""

CHANGES: Final = (
    _change(
        "another cluster name",
        "spec.clusterName: Forbidden: cannot be changed: clients, topics and volumes know the cluster by it; put back "
        "Shop, or create another BrokerSet",
        {},
        clusterName="Other",
    ),
    _change(
        "a smaller volume",
        "spec.storage.size: Forbidden: volumes never shrink; use 20Gi or more",
        {},
        storage={"size": "19Gi"},
    ),
    _change(
        "a smaller volume in other units",
        "volumes never shrink; use 20Gi or more",
        {},
        storage={"size": "20G"},
    ),
    _change(
        "a storage class that was not there",
        "spec.storage.className: Forbidden: cannot be changed: volumes stay in the class",
        {},
        storage={"className": "fast"},
    ),
    _change(
        "another storage class",
        "spec.storage.className: Forbidden: cannot be changed",
        {"storage": {"className": "slow"}},
        storage={"className": "fast"},
    ),
    _change(
        "no storage class any more",
        "spec.storage.className: Forbidden: cannot be changed",
        {"storage": {"className": "slow"}},
    ),
    _change(
        "a renamed group",
        "spec.brokerNames: Forbidden: names of groups cannot be changed",
        {},
        brokerNames=["broker-a", "broker-c"],
    ),
    _change(
        "groups in another order",
        "names of groups cannot be changed",
        {},
        brokerNames=["broker-b", "broker-a"],
    ),
    _change(
        "a group before the others",
        "names of groups cannot be changed",
        {},
        groups=3,
        brokerNames=["broker-0", "broker-a", "broker-b"],
    ),
    _change(
        "names for groups that have others",
        "names of groups cannot be changed, nor listed or left out later",
        {"brokerNames": LEFT_OUT},
    ),
    _change(
        "no names any more",
        "names of groups cannot be changed, nor listed or left out later",
        {},
        brokerNames=LEFT_OUT,
    ),
    _change(
        "a smaller volume of controllers",
        "spec.controllers.storage.size: Forbidden: volumes never shrink; use 5Gi or more",
        {"controllers": {"storage": {"size": "5Gi"}}},
        controllers={"storage": {"size": "4Gi"}},
    ),
    _change(
        "another class for controllers afterwards",
        "spec.controllers.storage: Forbidden: className cannot be set, changed or taken away later",
        {"controllers": {"storage": {"size": "5Gi"}}},
        controllers={"storage": {"size": "5Gi", "className": "quick"}},
    ),
    _change(
        "another set's controllers afterwards",
        "spec.controllers.ref: Forbidden: cannot be set, changed or taken away later",
        {},
        controllers={"ref": {"name": "other"}},
    ),
    _change(
        "own controllers afterwards",
        "spec.controllers.ref: Forbidden: cannot be set, changed or taken away later",
        {"controllers": {"ref": {"name": "other"}}},
    ),
    _change(
        "a third set's controllers",
        "spec.controllers.ref: Forbidden: cannot be set, changed or taken away later",
        {"controllers": {"ref": {"name": "other"}}},
        controllers={"ref": {"name": "third"}},
    ),
)
"""What cannot be changed once it is there."""

TOPICS: Final = (
    Case(
        "a topic without a set",
        {"spec": {"brokerSetRef": LEFT_OUT}},
        "spec.brokerSetRef: Required value",
        "spec.brokerSetRef: is missing; add brokerSetRef: {name: orders}",
        valid=TOPIC,
    ),
    _topic(
        "a set without a name",
        "spec.brokerSetRef.name: Required value",
        "spec.brokerSetRef.name: is missing",
        brokerSetRef={"name": LEFT_OUT},
    ),
    _topic(
        "a topic with a dot",
        "spec.topicName: Invalid value",
        "spec.topicName: is not a name",
        topicName="a.b",
    ),
    Case(
        "a dot in the name that becomes the topic's",
        {"metadata": {"name": "pay.ments"}, "spec": {"topicName": LEFT_OUT}},
        "spec.topicName: Forbidden: is left out, and the object's name cannot be a topic's",
        "spec.topicName: is left out, and pay.ments cannot be a topic; give spec.topicName",
        valid=TOPIC,
    ),
    _topic(
        "a retry topic",
        "belongs to a consumer group; choose another name",
        "%RETRY%payers belongs to a consumer group; choose another name",
        topicName="%RETRY%payers",
    ),
    _topic(
        "a topic of the system",
        "spec.topicName: Forbidden: is a topic of the system; choose another name",
        "spec.topicName: SCHEDULE_TOPIC_XXXX is a topic of the system; choose another name",
        topicName="SCHEDULE_TOPIC_XXXX",
    ),
    _topic(
        "no queues",
        "spec.queues.write in body should be greater than or equal to 1",
        "spec.queues.write: is less than 1",
        queues={"write": 0},
    ),
    _topic(
        "too many queues",
        "should be less than or equal to 16384",
        "spec.queues.read: is more than 16384",
        queues={"read": 16385},
    ),
    _topic(
        "queues that nobody would read",
        "spec.queues: Forbidden: more queues are written than read, and messages in the rest would wait permanently; "
        "raise read or lower write",
        "spec.queues: 16 are written and only 8 read; use 16 or more for read, or fewer for write",
        queues={"write": 16},
    ),
    _topic(
        "a permission as a number",
        "spec.permission",
        "spec.permission: is not 'rw', 'r' or 'w'",
        permission=6,
    ),
    _topic(
        "a group that is listed twice",
        "a group is listed twice; list each group once",
        "a is listed twice; list each group once",
        groups=["a", "a"],
    ),
    _topic(
        "an unknown fate of messages",
        "spec.deletionPolicy: Unsupported value",
        "spec.deletionPolicy: is not 'Retain' or 'Delete'",
        deletionPolicy="Recycle",
    ),
    _topic(
        "an unknown field of a topic",
        'unknown field "spec.queueCount"',
        "spec.queueCount: is not a field",
        queueCount=3,
    ),
    Case(
        "another name of the topic",
        {"spec": {"topicName": "Invoices"}},
        "spec.topicName: Forbidden: cannot be changed: messages stay in the topic that they were sent to",
        valid=TOPIC,
        before={},
    ),
    Case(
        "another set of the topic",
        {"spec": {"brokerSetRef": {"name": "others"}}},
        "spec.brokerSetRef.name: Forbidden: cannot be changed",
        valid=TOPIC,
        before={},
    ),
    Case(
        "no name of the topic any more",
        {"spec": {"topicName": LEFT_OUT}},
        "spec.topicName: Forbidden: cannot be changed",
        valid=TOPIC,
        before={},
    ),
)
"""What a topic may not say."""

SUBJECTS: Final = (
    Case(
        "a subject without a set",
        {"spec": {"brokerSetRef": LEFT_OUT}},
        "spec.brokerSetRef: Required value",
        "spec.brokerSetRef: is missing; add brokerSetRef: {name: orders}",
        valid=SUBJECT,
    ),
    Case(
        "a subject called as its object, which has dots",
        {"metadata": {"name": "order.events"}, "spec": {"subject": LEFT_OUT}},
        "spec.subject: Forbidden: is left out, and the object's name cannot be a subject's",
        "spec.subject: is left out, and order.events cannot be a subject; give 1 to 100",
        valid=SUBJECT,
    ),
    _subject(
        "a subject with a per cent sign",
        "spec.subject in body should match",
        "spec.subject: is not a subject's name; use 1 to 100 letters, digits, _, - or |",
        subject="%RETRY%payers",
    ),
    _subject(
        "a subject that is a topic of the system",
        "spec.subject: Forbidden: is a topic of the system; choose another name",
        "spec.subject: TBW102 is a topic of the system; choose another name",
        subject="TBW102",
    ),
    _subject(
        "an order that there is not",
        'supported values: "Strict", "BestTried"',
        "spec.orderStrategy: is not 'Strict' or 'BestTried'; use one of these",
        orderStrategy="strict",
    ),
    _subject(
        "no partitions",
        "spec.partitions in body should be greater than or equal to 1",
        "spec.partitions: is less than 1",
        partitions=0,
    ),
    _subject(
        "more partitions than logical ones",
        "spec.partitions in body should be less than or equal to 1024",
        "spec.partitions: is more than 1024",
        partitions=1025,
    ),
    _subject(
        "a route with a group twice",
        "spec.route: Forbidden: a group is listed twice; list each group once",
        "spec.route: broker-a is listed twice; list each group once",
        route=["broker-a", "broker-b", "broker-a"],
    ),
    _subject(
        "a field of a topic",
        'unknown field "spec.queues"',
        "spec.queues: is not a field",
        queues={"read": 4},
    ),
    Case(
        "another order",
        {"spec": {"orderStrategy": "BestTried"}},
        "spec.orderStrategy: Forbidden: cannot be changed: messages of a key from before and after",
        valid=SUBJECT,
        before={},
    ),
    Case(
        "another name of the subject",
        {"spec": {"subject": "Others"}},
        "spec.subject: Forbidden: cannot be changed: messages stay in the subject that they were sent to",
        valid=SUBJECT,
        before={},
    ),
    Case(
        "no name of the subject any more",
        {"spec": {"subject": LEFT_OUT}},
        "spec.subject: Forbidden: cannot be changed",
        valid=SUBJECT,
        before={},
    ),
    Case(
        "another set of the subject",
        {"spec": {"brokerSetRef": {"name": "others"}}},
        "spec.brokerSetRef.name: Forbidden: cannot be changed",
        valid=SUBJECT,
        before={},
    ),
)
"""What a subject may not say."""

STORE_JOBS: Final = (
    _audit(
        "a schedule of four fields", "spec.schedule", "spec.schedule: is not a schedule", schedule="0 3 * *"
    ),
    _audit(
        "a time zone with a space", "spec.timeZone", "spec.timeZone: is not a time zone", timeZone="Eu rope"
    ),
    _audit("an audit of no set", "spec.brokerSetRef", "spec.brokerSetRef: is missing", brokerSetRef=LEFT_OUT),
    _audit(
        "executors without Spark",
        "only Spark has executors; set engine to spark, or leave executors out",
        "spec.executors: asks for 3 executors, and processes has none",
        executors={"instances": 3},
    ),
    _audit(
        "executors as a number",
        "spec.executors: Invalid value",
        "spec.executors: is not an object with fields",
        engine="spark",
        executors=3,
    ),
    _audit(
        "an executor too small for Spark",
        "the memory is too little for Java and Python together; give 1Gi or more",
        "spec.executors.resources.limits.memory: 512Mi is too little for Java and Python together",
        engine="spark",
        executors={"instances": 1, "resources": {"limits": {"memory": "512Mi"}}},
    ),
    _audit(
        "two amounts of memory for an executor",
        "less memory is asked for than may be used, and Spark makes both the same",
        "spec.executors.resources.requests.memory: asks for 1Gi, and 2Gi may be used",
        engine="spark",
        executors={
            "instances": 1,
            "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        },
    ),
    _migration(
        "more asked for than an executor may use",
        "more is asked for than may be used; lower the request, or raise the limit",
        "spec.executors.resources.requests.cpu: 2 are asked for, and at most 1500m may be used",
        executors={"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}},
    ),
    _migration(
        "an executor with a disk",
        "executors take cpu and memory; leave everything else out",
        "spec.executors.resources.requests.ephemeral-storage: is nothing that Spark asks for",
        executors={"resources": {"requests": {"ephemeral-storage": "1Gi"}}},
    ),
    _migration(
        "a driver too small for Spark",
        "the memory is too little for Java and Python together; give 1Gi or more",
        "spec.limits.resources.limits.memory: 900Mi is too little for Java and Python together",
        engine="spark",
        limits={"resources": {"limits": {"memory": "900Mi"}}},
    ),
    _audit(
        "a group that is audited twice",
        "a group is listed twice; list each group once",
        "spec.groups: a is listed twice",
        groups=["a", "a"],
    ),
    _audit(
        "a policy of its own",
        "spec.concurrencyPolicy",
        "spec.concurrencyPolicy: is not",
        concurrencyPolicy="Allow",
    ),
    _audit(
        "a folder outside of the volume",
        "spec.report.path",
        "spec.report.path: is not a folder within a volume",
        report={"claimName": "reports", "path": "../x"},
    ),
    _audit(
        "more asked for than a job may use",
        "more is asked for than may be used",
        "spec.limits.resources.requests.cpu: 2 are asked for, and at most 1 may be used",
        limits={"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}},
    ),
    _migration(
        "no target",
        "either broker or claimName",
        "spec.target: names no volume",
        target={"claimName": LEFT_OUT},
    ),
    _migration(
        "two targets",
        "either broker or claimName",
        "spec.target: names a broker and a volume as well",
        target={"broker": {"set": {"name": "orders"}}},
    ),
    _migration(
        "a target that is the source",
        "is the volume of the source",
        "spec.target: is the volume of the source",
        target={"claimName": "old"},
    ),
    _migration("another layout", "spec.mode", "spec.mode: is not", mode="kafka"),
    _migration(
        "a topic that is chosen twice",
        "a topic is listed twice; list each topic once",
        "spec.options.topics: a is listed twice",
        options={"topics": ["a", "a"]},
    ),
    _export(
        "an export of no topics",
        "give either topics or topicPattern",
        "spec.topics: are not named",
        topics=[],
    ),
    _export(
        "topics by name and by pattern",
        "give either topics or topicPattern",
        "spec.topics: are named in two ways",
        topicPattern="pay.*",
    ),
    _export(
        "a topic that is exported twice",
        "a topic is listed twice; list each topic once",
        "spec.topics: a is listed twice",
        topics=["a", "a"],
    ),
    _export(
        "a password in the address of a table",
        "spec.target.url",
        "spec.target.url: is not the address of a table",
        target={"url": "s3://key:secret@lake/orders"},
    ),
    _export(
        "a token in the address of a table",
        "spec.target.url",
        "spec.target.url: is not the address of a table",
        target={"url": "abfss://lake@account.dfs.core.windows.net/orders?sig=abc"},
    ),
    _export(
        "a table in two places",
        "give either url or claimName",
        "spec.target: names an address and a volume as well",
        target={"claimName": "lake"},
    ),
    _export(
        "a table nowhere",
        "give either url or claimName",
        "spec.target: names no place",
        target={"url": LEFT_OUT, "credentials": LEFT_OUT},
    ),
    _export(
        "credentials for a volume",
        "a volume takes no credentials",
        "spec.target.credentials: a volume takes none",
        target={"url": LEFT_OUT, "claimName": "lake"},
    ),
    _export(
        "a format that nobody writes",
        "spec.target.format",
        "spec.target.format: is not",
        target={"format": "csv"},
    ),
    _export(
        "fields of JSON without columns",
        "jsonColumns and schema json belong together",
        "spec.jsonColumns: has 0 columns, and the schema is json",
        schema="json",
    ),
    _export(
        "columns of raw bodies",
        "jsonColumns and schema json belong together",
        "spec.jsonColumns: has 1 columns, and the schema is raw",
        jsonColumns=[{"name": "id", "type": "bigint"}],
    ),
    _export(
        "Iceberg without a catalog",
        "a catalog belongs to the format iceberg",
        "spec.target.catalog: is missing, and the format is iceberg",
        target={"format": "iceberg"},
    ),
    _export(
        "a catalog of Delta",
        "a catalog belongs to the format iceberg",
        "spec.target.catalog: is there, and the format is delta",
        target={"catalog": {"type": "rest", "uri": "https://catalog:8181"}},
    ),
    _export(
        "a catalog's password that everybody can read",
        "spec.target.catalog.uri",
        "spec.target.catalog.uri: is not the address of a service",
        target={"format": "iceberg", "catalog": {"type": "sql", "uri": "postgresql://lake:secret@db/lake"}},
    ),
    _export(
        "Avro without a registry",
        "avro and schema avro belong together",
        "spec.avro: is missing, and the schema is avro",
        schema="avro",
    ),
    _export("columns of their own", "spec.schema", "spec.schema: is not", schema="xml"),
    _export(
        "a driver of an export too small for Spark",
        "the memory is too little for Java and Python together; give 1Gi or more",
        "spec.limits.resources.limits.memory: 900Mi is too little for Java and Python together",
        limits={"resources": {"limits": {"memory": "900Mi"}}},
    ),
    Case(
        "another source of the migration",
        {"spec": {"source": {"claimName": "older"}}},
        "cannot be changed: a migration is done once; create another StoreMigration",
        valid=MIGRATION,
        before={},
    ),
)
"""What jobs may not say."""

USERS: Final = (
    _user("a user with a blank", "spec.username", "spec.username: is not a user's name", username="a b"),
    _user("a type of user that there is not", "spec.type: Unsupported value", "spec.type: ", type="Admin"),
    _user(
        "policies of a Super user",
        "are of no use: a Super user may do everything",
        "spec.policies: are of no use: a Super user may do everything",
        type="Super",
    ),
    _policy("a policy without a kind", "resources", "is not a resource", resources=["orders"]),
    _policy("a policy about nothing", "resources", "resources", resources=[]),
    _policy("an action that there is not", "actions", "actions", actions=["Read"]),
    _policy("an action twice", "an action is listed twice", "actions", actions=["Pub", "Pub"]),
    _policy("a resource twice", "resources[1]: Duplicate value", "spec.policies", resources=["*", "*"]),
    _policy(
        "a source that is no address", None, "sourceIps: somewhere is no address", sourceIps=["somewhere"]
    ),
    _user(
        "a resource in two policies",
        None,
        "spec.policies",
        policies=[{"resources": ["*"], "actions": ["Pub"]}, {"resources": ["*"], "actions": ["Sub"]}],
    ),
    _user(
        "an entry that no Secret has",
        "key",
        "is not the name of an entry",
        passwordSecret={"name": "a", "key": "/"},
    ),
    Case(
        "another name of the user",
        {"spec": {"username": "Other"}},
        "cannot be changed: create another User",
        valid=USER,
        before={},
    ),
    Case(
        "another set of the user",
        {"spec": {"brokerSetRef": {"name": "others"}}},
        "cannot be changed: the user stays at its set; create another User",
        valid=USER,
        before={},
    ),
)
"""What users may not say."""

CASES: Final = (*SHAPES, *CONTRADICTIONS, *SETTINGS, *PODS, *CHANGES, *TOPICS, *SUBJECTS, *USERS, *STORE_JOBS)
"""All of them."""

ACCEPTED: Final[Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any] | None, Mapping[str, Any]]]] = {
    "a set": (SET, None, {}),
    "a set that says who may connect": (
        SET,
        {},
        {
            "spec": {
                "external": {"type": "NodePort"},
                "networkPolicy": {
                    "clients": [{"namespaceSelector": {}}, {"ipBlock": {"cidr": "203.0.113.0/24"}}],
                    "orderedClients": [{"podSelector": {"matchLabels": {"example.com/app": "billing"}}}],
                    "http": [],
                },
            }
        },
    ),
    "a topic": (TOPIC, None, {}),
    "a subject": (SUBJECT, None, {}),
    "a user": (USER, None, {}),
    "a user that is changed": (USER, {}, {"spec": {"enabled": False, "policies": LEFT_OUT, "type": "Super"}}),
    "a subject without a number": (SUBJECT, None, {"spec": {"partitions": LEFT_OUT}}),
    "an audit": (AUDIT, None, {}),
    "an audit that is changed": (AUDIT, {}, {"spec": {"schedule": "0 4 * * *", "suspend": True}}),
    "an audit without a schedule": (AUDIT, None, {"spec": {"schedule": LEFT_OUT}}),
    "an export": (EXPORT, None, {}),
    "an export of topics by pattern to a volume": (
        EXPORT,
        None,
        {
            "spec": {
                "topics": LEFT_OUT,
                "topicPattern": "pay.*",
                "target": {"url": LEFT_OUT, "credentials": LEFT_OUT, "claimName": "lake"},
                "executors": {"instances": 2},
            }
        },
    ),
    "a migration": (MIGRATION, None, {}),
    "executors of every size": (
        MIGRATION,
        None,
        {
            "spec": {
                "engine": "spark",
                "executors": {
                    "instances": 3,
                    "resources": {
                        "requests": {"cpu": "500m", "memory": "2Gi"},
                        "limits": {"cpu": 2, "memory": "2048Mi"},
                    },
                },
                "limits": {"resources": {"limits": {"memory": "1Gi"}}},
            }
        },
    ),
    "a migration to a broker": (
        MIGRATION,
        None,
        {"spec": {"target": {"claimName": LEFT_OUT, "broker": {"set": {"name": "orders"}}}}},
    ),
    "a DLedger": (SET, None, {"spec": {"replication": {"mode": "dledger"}, "replicas": 5}}),
    "a DLedger with controllers": (
        SET,
        {"spec": {"replication": {"mode": "dledger"}, "controllers": {"replicas": 3}}},
        {"spec": {"replication": {"mode": "dledger"}, "controllers": {"replicas": 5}}},
    ),
    "only a name": (SET, None, {"spec": LEFT_OUT}),
    "nulls": (
        SET,
        None,
        {
            "spec": {
                "image": None,
                "brokerNames": None,
                "replication": {"minInSyncReplicas": None},
                "controllers": {"ref": None, "replicas": 3, "storage": None, "resources": None},
                "storage": {"className": None},
                "tls": {"secretName": None},
                "acl": {"secretName": None},
                "external": None,
                "podTemplate": {"priorityClassName": None},
            }
        },
    ),
    "clients outside": (
        SET,
        None,
        {
            "spec": {
                "external": {
                    "type": "NodePort",
                    "perBroker": True,
                    "advertisedHost": "mq.example.com",
                    "preferredNodeAddressType": "ExternalIP",
                    "nameServers": {"nodePort": 30876, "annotations": {"example.com/a": "b"}},
                    "masters": [{"group": "broker-a", "advertisedHost": "fd00::1", "advertisedPort": 443}],
                    "brokers": [{"pod": "orders-0-1", "nodePort": 30920}],
                }
            }
        },
    ),
    "names without the number of groups": (SET, None, {"spec": {"groups": LEFT_OUT}}),
    "settings of each type": (
        SET,
        None,
        {"spec": {"config": {"flushDiskType": "SYNC_FLUSH", "traceOn": False, "deleteWhen": "04;16"}}},
    ),
    "all of a pod template": (
        SET,
        None,
        {
            "spec": {
                "podTemplate": {
                    "metadata": {"labels": {"team": "shop"}, "annotations": {"example.com/note": "x"}},
                    "resources": {"requests": {"cpu": 2, "memory": "4Gi"}, "limits": {"memory": "4Gi"}},
                    "affinity": {
                        "nodeAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": {
                                "nodeSelectorTerms": [
                                    {
                                        "matchExpressions": [
                                            {"key": "disk", "operator": "In", "values": ["ssd"]}
                                        ]
                                    }
                                ]
                            }
                        },
                        "podAntiAffinity": {
                            "preferredDuringSchedulingIgnoredDuringExecution": [
                                {
                                    "weight": 10,
                                    "podAffinityTerm": {
                                        "topologyKey": "kubernetes.io/hostname",
                                        "labelSelector": {"matchLabels": {"app": "db"}},
                                    },
                                }
                            ]
                        },
                    },
                    "tolerations": [{"key": "dedicated", "value": "broker", "effect": "NoSchedule"}],
                    "nodeSelector": {"disk": "ssd"},
                    "priorityClassName": "messaging",
                    "topologySpreadConstraints": [
                        {
                            "maxSkew": 1,
                            "topologyKey": "topology.kubernetes.io/zone",
                            "whenUnsatisfiable": "ScheduleAnyway",
                            "labelSelector": {"matchLabels": {"brokerset.io/set": "orders"}},
                        }
                    ],
                    "imagePullSecrets": [{"name": "registry"}],
                    "env": [{"name": "TZ", "value": "Europe/Berlin"}],
                }
            }
        },
    ),
    "controllers with volumes and resources of their own": (
        SET,
        None,
        {
            "spec": {
                "controllers": {
                    "storage": {"size": "5Gi", "className": "quick"},
                    "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "1Gi"}},
                }
            }
        },
    ),
    "larger volumes of controllers": (
        SET,
        {"spec": {"controllers": {"storage": {"size": "5Gi"}}}},
        {"spec": {"controllers": {"storage": {"size": "6Gi"}, "resources": {"limits": {"cpu": 1}}}}},
    ),
    "another set's controllers": (SET, None, {"spec": {"controllers": {"ref": {"name": "other"}}}}),
    "a larger volume": (SET, {}, {"spec": {"storage": {"size": "1Ti"}}}),
    "the same volume in other units": (SET, {}, {"spec": {"storage": {"size": "20480Mi"}}}),
    "a further group": (
        SET,
        {},
        {"spec": {"groups": 3, "brokerNames": ["broker-a", "broker-b", "broker-c"]}},
    ),
    "a group less": (SET, {}, {"spec": {"groups": 1, "brokerNames": ["broker-a"]}}),
    "more replicas": (SET, {}, {"spec": {"replicas": 5}}),
    "other settings": (SET, {}, {"spec": {"config": {"fileReservedTime": 24}}}),
    "another number of controllers": (SET, {}, {"spec": {"controllers": {"replicas": 5}}}),
    "more partitions on another route": (
        SUBJECT,
        {},
        {"spec": {"partitions": 1024, "route": ["broker-b"], "deletionPolicy": "Delete"}},
    ),
    "fewer queues": (
        TOPIC,
        {"spec": {"queues": {"read": 8, "write": 8}}},
        {"spec": {"queues": {"read": 8, "write": 4}}},
    ),
}
"""What must be accepted: by name, a valid manifest, the patch for what was there before, the patch."""
