"""Policies: entries that allow or deny actions on resources to one subject, from some addresses or from all.

Source: RocketMQ's `Resource`, `PolicyEntry`, `Acl`, `Environment`, `AclConverter`, `IPAddressUtils`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Final, TypeAlias

from brokerset_formats.errors import FormatError

ENTRIES_MAX: Final = 1_000
"""Entries of one subject; one more is refused."""

ACL_BYTES_MAX: Final = 512 * 1024
"""Size of everything that is said about one subject, as JSON: it is one record of metadata."""

SOURCE_SIZE_MAX: Final = 64
"""Characters of an address or a range."""

SOURCES_MAX: Final = 100
"""Addresses and ranges of one entry."""

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ResourceType(StrEnum):
    """What a resource is."""

    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Pattern(StrEnum):
    """How the name of a policy's resource is compared."""

    ANY = "ANY"
    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


class Action(StrEnum):
    """What somebody wants to do; `ALL` stands for every one in policies."""

    ALL = "All"
    ANY = "Any"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Decision(StrEnum):
    """What a policy says."""

    ALLOW = "Allow"
    DENY = "Deny"


class PolicyType(StrEnum):
    """Default policies count only where no custom one matches."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


def word(kind: type[StrEnum], text: object) -> StrEnum | None:
    """The member of an enumeration with this name in any case, as Java takes them; None for anything else."""
    return next((each for each in kind if isinstance(text, str) and each.lower() == text.lower()), None)


@dataclass(frozen=True, slots=True)
class Resource:
    """What is accessed, or what a policy is about; `name` is None where every name is meant."""

    type: ResourceType
    name: str | None
    pattern: Pattern = Pattern.LITERAL

    @property
    def key(self) -> str:
        """As people write it: `*`, `Topic:*`, `Topic:orders`, `Group:shop-*`."""
        if self.type is ResourceType.ANY:
            return "*"
        if self.pattern is Pattern.ANY:
            return f"{self.type}:*"
        return f"{self.type}:{self.name}{'*' if self.pattern is Pattern.PREFIXED else ''}"

    def covers(self, wanted: Resource) -> bool:
        """Whether a policy about this resource is one about `wanted`."""
        if self.type is ResourceType.ANY:
            return True
        if self.type is not wanted.type:
            return False
        if self.pattern is Pattern.ANY:
            return True
        if self.name is None or wanted.name is None:  # all of a type: no name covers it
            return False
        if self.pattern is Pattern.LITERAL:
            return wanted.name == self.name
        return wanted.name.startswith(self.name)


def resource_of(key: str) -> Resource | None:
    """The resource that `key` names; None for a text that names none.

    Unlike Java, which takes `Topic:a*b*` for `Topic:a*`: that would allow more than was written.
    """
    if key == "*":
        return Resource(ResourceType.ANY, None, Pattern.ANY)
    kind, colon, name = key.partition(":")
    found = word(ResourceType, kind)
    if not isinstance(found, ResourceType) or not colon or not name or found is ResourceType.ANY:
        return None
    if name == "*":
        return Resource(found, None, Pattern.ANY)
    if name.endswith("*"):
        prefix = name[:-1]
        return None if "*" in prefix else Resource(found, prefix, Pattern.PREFIXED)
    return Resource(found, name)


@dataclass(frozen=True, slots=True)
class Entry:
    """One rule; without `sources` for requests from everywhere."""

    resource: Resource
    actions: tuple[Action, ...]
    decision: Decision
    sources: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """As Java's `PolicyEntryInfo`."""
        found: dict[str, object] = {
            "actions": [str(action) for action in self.actions],
            "decision": str(self.decision),
            "resource": self.resource.key,
        }
        return {**found, "sourceIps": list(self.sources)} if self.sources else found


_ByName: TypeAlias = tuple[Mapping[Resource, tuple[Entry, ...]], tuple[Entry, ...]]
"""Entries with a whole name by their resource, and the others."""


def _by_name(entries: Iterable[Entry]) -> _ByName:
    named: dict[Resource, tuple[Entry, ...]] = {}
    patterns = []
    for entry in entries:
        if entry.resource.pattern is Pattern.LITERAL:
            named[entry.resource] = (*named.get(entry.resource, ()), entry)
        else:
            patterns.append(entry)
    return named, tuple(patterns)


@dataclass(frozen=True, slots=True)
class Acl:
    """All that is said about one subject; no resource is twice in one of the two."""

    subject: str
    custom: tuple[Entry, ...] = ()
    default: tuple[Entry, ...] = ()
    _by_name: tuple[_ByName, _ByName] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", (_by_name(self.custom), _by_name(self.default)))

    def about(self, wanted: Resource) -> Iterator[Iterable[Entry]]:
        """The custom entries that may cover a resource, then the default ones: those with its whole name, and
        all with patterns."""
        for named, patterns in self._by_name:
            yield (*named.get(wanted, ()), *patterns)

    def of(self, kind: PolicyType) -> tuple[Entry, ...]:
        """The entries of one type."""
        return self.custom if kind is PolicyType.CUSTOM else self.default

    def merged(self, other: Acl) -> Acl:
        """With the entries of `other`, which replace those about the same resource."""
        return replace(
            self, custom=_merge(self.custom, other.custom), default=_merge(self.default, other.default)
        )

    def without(self, kind: PolicyType, resource: Resource) -> Acl:
        """Without what one type says about a resource."""
        left = tuple(entry for entry in self.of(kind) if entry.resource != resource)
        return replace(self, custom=left) if kind is PolicyType.CUSTOM else replace(self, default=left)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is said."""
        return not self.custom and not self.default

    def to_json(self) -> dict[str, object]:
        """As Java's `AclInfo`."""
        policies: list[object] = [
            {"entries": [entry.to_json() for entry in self.of(kind)], "policyType": str(kind)}
            for kind in PolicyType
            if self.of(kind)
        ]
        return {"policies": policies, "subject": self.subject}

    @classmethod
    def from_json(cls, found: Mapping[str, object]) -> Acl:
        """Read what `to_json` made, or an administrator sent. Raises FormatError with Java's text."""
        subject = found.get("subject")
        if not isinstance(subject, str):
            raise FormatError("The subject is null.")
        entries: dict[PolicyType, list[Entry]] = {PolicyType.CUSTOM: [], PolicyType.DEFAULT: []}
        for policy in _objects(found.get("policies"), "The policies is empty."):
            kind = word(PolicyType, policy.get("policyType")) or PolicyType.CUSTOM
            assert isinstance(kind, PolicyType)
            entries[kind] += map(_entry, _objects(policy.get("entries"), "The policy entries is empty."))
        custom = _merge((), entries[PolicyType.CUSTOM])
        return cls(subject, custom, _merge((), entries[PolicyType.DEFAULT]))


def _merge(entries: Iterable[Entry], newer: Iterable[Entry]) -> tuple[Entry, ...]:
    found = {entry.resource: entry for entry in entries}
    found.update((entry.resource, entry) for entry in newer)
    return tuple(found.values())


def _objects(value: object, empty: str) -> list[Mapping[str, object]]:
    items = value if isinstance(value, list) else []
    found: list[Mapping[str, object]] = [each for each in items if isinstance(each, dict)]
    if not found or len(found) < len(items):
        raise FormatError(empty)
    return found


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _entry(found: Mapping[str, object]) -> Entry:
    key = found.get("resource")
    resource = resource_of(key) if isinstance(key, str) else None
    if resource is None:
        raise FormatError("The resource is null.")
    names = _texts(found.get("actions"))
    actions = [action for action in (word(Action, name) for name in names) if isinstance(action, Action)]
    if not actions or len(actions) < len(names):  # Java takes the actions that it knows
        raise FormatError("The actions is empty." if not actions else "The actions are not all known.")
    if Action.ANY in actions:
        raise FormatError("The actions can not be Any.")
    sources = _texts(found.get("sourceIps"))
    if len(sources) > SOURCES_MAX:
        raise FormatError(f"an entry has more than {SOURCES_MAX} source ips")
    for source in sources:
        if not source.strip():
            raise FormatError("The source ip is empty.")
        if network_of(source) is None:
            raise FormatError("The source ip is invalid.")
    decision = word(Decision, found.get("decision"))
    if not isinstance(decision, Decision):
        raise FormatError("The decision is null or illegal.")
    return Entry(resource, tuple(dict.fromkeys(actions)), decision, tuple(sources))


# -- addresses --------------------------------------------------------------------------------------------


def network_of(text: str) -> _Network | None:
    """The addresses that a source means: one, or a range; None for a text that is neither.

    Names of hosts are none, though Java looks them up.
    """
    return _network_of(text) if len(text) <= SOURCE_SIZE_MAX else None


@lru_cache(maxsize=4_096)
def _network_of(text: str) -> _Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


@lru_cache(maxsize=4_096)
def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address of a peer, an IPv4 one also where an IPv6 socket took it; None if it is no address."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def comes_from(source: str, sources: Sequence[str]) -> bool:
    """Whether a request from the address `source` is one from `sources`; without any, every one is."""
    if not sources:
        return True
    address = address_of(source)
    if address is None:
        return False
    for each in sources:
        network = network_of(each)
        if network is not None and network.version == address.version and address in network:
            return True
    return False
