"""The Subject manifest: one ordered subject of a BrokerSet, typed, with every default."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from brokerset_formats.names import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from brokerset_formats.order_keys import LOGICAL_PARTITIONS
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_spec.manifest_parts import (
    API_VERSION,
    GROUPS_MAX,
    BrokerName,
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
from brokerset_spec.problems import SUBJECT_SHAPE, SUBJECT_SIZE_MAX, Problem, listed_twice

KIND: Final = "Subject"

NAME_ADVICE: Final = f"1 to {SUBJECT_SIZE_MAX} letters, digits, _, - or |"
"""What controllers take as the name of a subject."""

EXAMPLES: Final = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": "{name: order-events}",
    "name": "order-events",
    "spec": "{brokerSetRef: {name: orders}}",
    "brokerSetRef": "{name: orders}",
}
"""What to write for a field that is missing."""


class SubjectMetadata(NamedPart):
    """The part that all Kubernetes objects share."""

    name: ObjectName
    """Name of the object, and of the subject if `subject` does not say another."""


class SubjectSetRef(Part):
    """The set whose brokers have the subject, in the same namespace. Cannot be changed."""

    name: Annotated[
        SetName,
        Field(
            json_schema_extra=ruled(
                rule(
                    "self == oldSelf",
                    "cannot be changed: the subject stays on the brokers that have its messages; create "
                    "another Subject",
                )
            )
        ),
    ]
    """Name of the set.

    **Cannot be changed**: messages stay on the brokers that have them. A set in mode `dledger` has no
    controllers, which subjects need.
    """


def _system_topics() -> dict[str, Any]:
    names = ", ".join(f"'{name}'" for name in sorted(SYSTEM_TOPICS))
    return rule(
        f"!self.startsWith('{SYSTEM_TOPIC_PREFIX}') && !(self in [{names}])",
        "is a topic of the system; choose another name",
    )


class SubjectSpec(Part):
    """What is wanted; everything but the set has a default."""

    broker_set_ref: SubjectSetRef

    subject: (
        Annotated[
            str,
            Field(
                pattern=SUBJECT_SHAPE,
                max_length=SUBJECT_SIZE_MAX,
                json_schema_extra=ruled(_system_topics(), **page("the object's name")),
            ),
        ]
        | None
    ) = None
    """Name of the subject, and of its topic; by default the object's. Cannot be changed."""

    order_strategy: Annotated[
        Literal["Strict", "BestTried"],
        Field(
            json_schema_extra=ruled(
                rule(
                    "self == oldSelf",
                    "cannot be changed: messages of a key from before and after would be in no order; create "
                    "another Subject",
                )
            )
        ),
    ] = "Strict"
    """What happens to a message that cannot be sent or handled. Cannot be changed.

    `Strict`: it waits, and those of its key behind it. `BestTried`: it may go to another partition, or be
    tried again later.
    """

    partitions: (
        Annotated[
            int, Field(ge=1, le=LOGICAL_PARTITIONS, json_schema_extra=page("one for each group of its route"))
        ]
        | None
    ) = None
    """Number of partitions, for all broker groups together; this is what `kubectl scale` changes.

    Without it the subject begins with one on each group of its route, and keeps what it has. Messages of a
    key stay in order when it changes.
    """

    route: Annotated[
        tuple[BrokerName, ...],
        Field(
            strict=False,
            max_length=GROUPS_MAX,
            json_schema_extra=ruled(
                each_once("a group is listed twice; list each group once"), **page("two groups")
            ),
        ),
    ] = ()
    """Names of the broker groups that have the partitions.

    Without it two are chosen when the subject is made, and stay. Another route moves the subject as another
    number of partitions does.
    """

    deletion_policy: Literal["Retain", "Delete"] = "Retain"
    """What happens to the subject and its messages when the object is deleted.

    `Delete` waits until no group of consumers has members.
    """


class Subject(Part):
    """One ordered subject of a BrokerSet."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            rule(
                f"has(self.spec.subject) || (size(self.metadata.name) <= {SUBJECT_SIZE_MAX} && "
                "!self.metadata.name.contains('.'))",
                f"is left out, and the object's name cannot be a subject's; give {NAME_ADVICE}",
                "spec.subject",
            ),
            same_or_absent(
                "spec.subject",
                "cannot be changed: messages stay in the subject that they were sent to; create "
                "another Subject",
            ),
        )
    )

    api_version: Literal["brokerset.io/v1alpha1"]
    kind: Literal["Subject"]
    metadata: SubjectMetadata
    spec: SubjectSpec
    status: Any = None
    """Written by the operator; not read."""

    @property
    def subject(self) -> str:
        """Name of the subject."""
        return self.spec.subject or self.metadata.name

    @property
    def order(self) -> OrderStrategy:
        """The strategy as the protocol says it."""
        return OrderStrategy(self.spec.order_strategy)


def check_subject_manifest(subject: Subject) -> list[Problem]:
    """Return what is wrong with a well-shaped manifest: its name, groups that are listed twice."""
    return [*_name_problems(subject), *_route_problems(subject.spec)]


def _name_problems(subject: Subject) -> Iterable[Problem]:
    name = subject.subject
    if subject.spec.subject is None and ("." in name or len(name) > SUBJECT_SIZE_MAX):
        yield Problem(
            "spec.subject", f"is left out, and {name[:64]} cannot be a subject", f"give {NAME_ADVICE}"
        )
    elif name.startswith(SYSTEM_TOPIC_PREFIX) or name in SYSTEM_TOPICS:
        yield Problem("spec.subject", f"{name} is a topic of the system", "choose another name")


def _route_problems(spec: SubjectSpec) -> Iterable[Problem]:
    yield from listed_twice("spec.route", spec.route, "list each group once")


read_subject: Final = ManifestReader(
    model=Subject,
    api_version=API_VERSION,
    kind=KIND,
    outline="metadata: {name: …}, spec: …",
    examples=EXAMPLES,
    check=check_subject_manifest,
    complete=put_name_and_set,
).read
"""Check a manifest; see `ManifestReader.read`."""
