"""Parts of a pod that `spec.podTemplate` hands on to Kubernetes; the CRD alone needs them declared."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Key = Annotated[str, Field(max_length=317)]
Labels = Annotated[tuple[Key, ...], Field(max_length=16)]
Value = Annotated[str, Field(max_length=253)]
LabelValue = Annotated[str, Field(max_length=63)]
Weight = Annotated[int, Field(ge=1, le=100)]
Whether = Literal["Honor", "Ignore"]


class Part(BaseModel):
    """What need not be there has None as its default."""

    model_config = ConfigDict(alias_generator=to_camel)


class NodeRequirement(Part):
    """One condition."""

    key: Key
    """Label or field of the node."""

    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How it is compared."""

    values: Annotated[tuple[Value, ...], Field(max_length=64)] = ()
    """Values to compare with."""


class NodeTerm(Part):
    """All of it must hold."""

    match_expressions: Annotated[tuple[NodeRequirement, ...], Field(max_length=32)] = ()
    """By labels."""

    match_fields: Annotated[tuple[NodeRequirement, ...], Field(max_length=32)] = ()
    """By fields."""


class NodeSelector(Part):
    """What must hold."""

    node_selector_terms: Annotated[tuple[NodeTerm, ...], Field(max_length=32)]
    """One of these must hold."""


class PreferredNodes(Part):
    """One wish."""

    weight: Weight
    """1 to 100."""

    preference: NodeTerm
    """All of it should hold."""


class NodeAffinity(Part):
    """Which nodes."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredNodes, ...], Field(max_length=32)
    ] = ()
    """What should hold."""


class LabelRequirement(Part):
    """One condition."""

    key: Key
    """Label."""

    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """In, NotIn, Exists or DoesNotExist."""

    values: Annotated[tuple[LabelValue, ...], Field(max_length=64)] = ()
    """Values, for In and NotIn."""


class LabelSelector(Part):
    """Which pods."""

    match_labels: Annotated[dict[str, LabelValue], Field(max_length=64)] = {}
    """Labels that must have exactly these values."""

    match_expressions: Annotated[tuple[LabelRequirement, ...], Field(max_length=32)] = ()
    """Conditions that must all hold."""


class PodTerm(Part):
    """Which pods and where."""

    label_selector: LabelSelector | None = None
    namespaces: Annotated[tuple[LabelValue, ...], Field(max_length=32)] = ()
    """In these namespaces; none means the set's own."""

    namespace_selector: LabelSelector | None = None
    """In namespaces with these labels."""

    topology_key: Key
    """Label of nodes that are the same place."""

    match_label_keys: Labels = ()
    """Labels of the pod itself that others must share."""

    mismatch_label_keys: Labels = ()
    """Labels of the pod itself that others must not share."""


class PreferredPods(Part):
    """One wish."""

    weight: Weight
    """1 to 100."""

    pod_affinity_term: PodTerm


class PodAffinity(Part):
    """Which neighbours."""

    required_during_scheduling_ignored_during_execution: Annotated[
        tuple[PodTerm, ...], Field(max_length=32)
    ] = ()
    """What must hold."""

    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredPods, ...], Field(max_length=32)
    ] = ()
    """What should hold."""


class Affinity(Part):
    """Which nodes and which neighbours the pods want."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None
    """Which neighbours not."""


class Spread(Part):
    """One constraint."""

    max_skew: Annotated[int, Field(ge=1)]
    """Largest difference between two places."""

    topology_key: Key
    """Label of nodes that are the same place."""

    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """What to do when it cannot be kept."""

    label_selector: LabelSelector | None = None
    """Which pods count."""

    min_domains: Annotated[int, Field(ge=1)] | None = None
    """Least number of places."""

    match_label_keys: Labels = ()
    """Labels of the pod itself that others must share to count."""

    node_affinity_policy: Whether | None = None
    """Whether nodes that affinity rules out count."""

    node_taints_policy: Whether | None = None
    """Whether nodes with taints count."""
