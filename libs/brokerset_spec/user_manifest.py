"""The User manifest: one user of a BrokerSet with its policies, typed, with every default."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from brokerset_acl.former_passwords import FORMER_SECONDS_MAX
from brokerset_acl.policies import (
    ENTRIES_MAX,
    SOURCE_SIZE_MAX,
    SOURCES_MAX,
    Acl,
    Action,
    Decision,
    Entry,
    network_of,
    resource_of,
)
from brokerset_acl.users import UserStatus, UserType, subject_of
from brokerset_spec.manifest_parts import (
    API_VERSION,
    OBJECT_NAME_LENGTH_MAX,
    NamedPart,
    ObjectName,
    Part,
    SetName,
    each_once,
    page,
    rule,
    ruled,
    same_or_absent,
)
from brokerset_spec.manifest_reader import ManifestReader, put_name_and_set
from brokerset_spec.problems import ENTRY_SHAPE, RESOURCE_SHAPE, USER_NAME_SHAPE, Problem, listed_twice

KIND: Final = "User"

NAME_SIZE_MAX: Final = 128
"""Characters of a user's name."""

CREDENTIALS_SUFFIX: Final = "-credentials"
"""After the object's name: the Secret that the operator makes."""

POLICIES_MAX: Final = 100
RESOURCES_MAX: Final = 100
"""Most policies of a user, and resources of a policy."""

SUPER_POLICIES: Final = (
    "are of no use: a Super user may do everything",
    "leave them out, or use type Normal",
)

EXAMPLES: Final = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": "{name: shop}",
    "name": "shop",
    "spec": "{brokerSetRef: {name: orders}}",
    "brokerSetRef": "{name: orders}",
    "resources": '["Topic:orders"]',
    "actions": "[Pub]",
}
"""What to write for a field that is missing."""


class UserMetadata(NamedPart):
    """The part that all Kubernetes objects share."""

    name: ObjectName
    """Name of the object, and of the user if `username` does not say another."""


class UserSetRef(Part):
    """The set whose brokers have the user, in the same namespace. Cannot be changed."""

    name: Annotated[
        SetName,
        Field(
            json_schema_extra=ruled(
                rule("self == oldSelf", "cannot be changed: the user stays at its set; create another User")
            )
        ),
    ]
    """Name of the set, which has `acl.secretName`. **Cannot be changed.**"""


class PasswordSecret(Part):
    """A Secret in the same namespace that has the password."""

    name: ObjectName
    """Name of the Secret."""

    key: Annotated[str, Field(pattern=ENTRY_SHAPE, max_length=OBJECT_NAME_LENGTH_MAX)] = "password"
    """The entry of it. A changed one is the user's password within seconds."""


class Policy(Part):
    """What the user may do, or not, on some resources."""

    resources: Annotated[
        tuple[Annotated[str, Field(pattern=RESOURCE_SHAPE, max_length=300)], ...],
        Field(
            strict=False,
            min_length=1,
            max_length=RESOURCES_MAX,
            # A rule about so many texts would cost the API server too much.
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ]
    """`*`, `Topic:*`, `Topic:name`, `Topic:prefix*`, and the same of `Group` and `Cluster`. None may be in
    two policies: RocketMQ keeps one entry for each."""

    actions: Annotated[
        tuple[Literal["All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List"], ...],
        Field(
            strict=False,
            min_length=1,
            max_length=8,
            json_schema_extra=ruled(each_once("an action is listed twice; list each once")),
        ),
    ]
    """What is meant. Clients need `Pub` for topics that they send to; `Sub` for topics that they consume, and
    for their group."""

    source_ips: Annotated[
        tuple[Annotated[str, Field(max_length=SOURCE_SIZE_MAX)], ...],
        Field(strict=False, max_length=SOURCES_MAX, json_schema_extra=page("from everywhere")),
    ] = ()
    """Addresses and ranges, as `10.0.0.0/8`, from which requests must come; none means every one."""

    decision: Literal["Allow", "Deny"] = "Allow"
    """Whether it allows or denies. Of policies that match, that with the most specific resource decides."""


class UserSpec(Part):
    """What is wanted; everything but the set has a default."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                "!has(self.type) || self.type != 'Super' || !has(self.policies) || size(self.policies) == 0",
                "; ".join(SUPER_POLICIES),
                "policies",
            )
        )
    )

    broker_set_ref: UserSetRef

    username: (
        Annotated[
            str,
            Field(
                pattern=USER_NAME_SHAPE,
                max_length=NAME_SIZE_MAX,
                json_schema_extra=page("the object's name"),
            ),
        ]
        | None
    ) = None
    """RocketMQ's name of the user, the access key of clients; by default the object's. Cannot be changed."""

    type: Literal["Normal", "Super"] = "Normal"
    """`Super` may do everything, make users too; `Normal` what policies allow."""

    enabled: bool = True
    """Whether the user's requests are let in; a user that is not stays, with password and policies."""

    password_secret: PasswordSecret | None = None
    """Where the password is. Without it the operator makes one, in the Secret `<name>-credentials`."""

    password_overlap_seconds: Annotated[int, Field(ge=0, le=FORMER_SECONDS_MAX)] = 0
    """How long the former password is accepted, too, after a change of the Secret; 0: not at all."""

    policies: Annotated[tuple[Policy, ...], Field(strict=False, max_length=POLICIES_MAX)] = ()
    """What the user may do. What nobody allows is refused."""


class User(Part):
    """One user of a BrokerSet, with its policies."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                f"has(self.spec.username) || size(self.metadata.name) <= {NAME_SIZE_MAX}",
                f"is left out, and the object's name is too long for a user; give 1 to {NAME_SIZE_MAX} "
                "letters, digits and . _ @ % | -",
                "spec.username",
            ),
            same_or_absent("spec.username", "cannot be changed: create another User"),
        )
    )

    api_version: Literal["brokerset.io/v1alpha1"]
    kind: Literal["User"]
    metadata: UserMetadata
    spec: UserSpec
    status: Any = None
    """Written by the operator; not read."""

    @property
    def username(self) -> str:
        """RocketMQ's name of the user."""
        return self.spec.username or self.metadata.name

    @property
    def user_type(self) -> UserType:
        """As requests have it."""
        return UserType(self.spec.type)

    @property
    def user_status(self) -> UserStatus:
        """As requests have it."""
        return UserStatus.ENABLE if self.spec.enabled else UserStatus.DISABLE

    @property
    def acl(self) -> Acl:
        """All that is to be said about the user; `check_user_manifest` has found that it can be."""
        return Acl(subject_of(self.username), tuple(_entries(self.spec.policies)))


def _entries(policies: Iterable[Policy]) -> Iterable[Entry]:
    for policy in policies:
        actions = tuple(Action(name) for name in policy.actions)
        for key in policy.resources:
            resource = resource_of(key)
            assert resource is not None, "its shape is checked"
            yield Entry(resource, actions, Decision(policy.decision), policy.source_ips)


def check_user_manifest(user: User) -> list[Problem]:
    """Return what is wrong with a well-shaped manifest: its name, contradictions, addresses."""
    return list(_problems(user))


def _problems(user: User) -> Iterable[Problem]:
    spec = user.spec
    if len(user.username) > NAME_SIZE_MAX:
        reason = "is left out, and the object's name is too long for a user"
        yield Problem("spec.username", reason, f"give at most {NAME_SIZE_MAX} characters")
    if user.user_type is UserType.SUPER and spec.policies:
        yield Problem("spec.policies", *SUPER_POLICIES)
    named = [key for policy in spec.policies for key in policy.resources]
    yield from listed_twice("spec.policies", named, "list each resource once, with all its actions")
    if len(named) > ENTRIES_MAX:
        yield Problem("spec.policies", f"has {len(named)} resources, more than {ENTRIES_MAX}", "use prefixes")
    for number, policy in enumerate(spec.policies):
        path = f"spec.policies[{number}]"
        yield from listed_twice(f"{path}.actions", policy.actions, "list each action once")
        for source in policy.source_ips:
            if network_of(source) is None:
                advice = "write an address or a range, as 10.0.0.0/8"
                yield Problem(f"{path}.sourceIps", f"{source} is no address", advice)


read_user: Final = ManifestReader(
    model=User,
    api_version=API_VERSION,
    kind=KIND,
    outline="metadata: {name: …}, spec: …",
    examples=EXAMPLES,
    check=check_user_manifest,
    complete=put_name_and_set,
).read
"""Check a manifest; see `ManifestReader.read`."""
