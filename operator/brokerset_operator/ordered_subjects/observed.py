"""What is known of one subject in one reconcile, and what controllers can be asked to do. Plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from brokerset_protocol.bodies.ordered import PartitionState, SubjectState
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus
from brokerset_spec.subject_manifest import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A manifest, and what the controllers of its set agree on."""

    wanted: Subject
    set_groups: tuple[str, ...]
    """Broker groups that the BrokerSet has by its manifest."""

    foreign_groups: frozenset[str] = frozenset()
    """Broker groups of other sets that the same controllers serve."""

    with_master: frozenset[str] = frozenset()
    """Those of the set's groups that have a living master."""

    state: SubjectState | None = None
    """The subject as agreed; None if there is none of that name."""

    @property
    def set_name(self) -> str:
        """Name of the BrokerSet."""
        return self.wanted.spec.broker_set_ref.name


@dataclass(frozen=True, slots=True)
class Create:
    """BROKERSET_CREATE_SUBJECT."""

    subject: str
    order: OrderStrategy
    partitions: int | None
    """None: one for each group of the route."""

    route: tuple[str, ...]
    """None given: controllers choose."""


@dataclass(frozen=True, slots=True)
class Scale:
    """BROKERSET_SCALE_SUBJECT."""

    subject: str
    before: int
    """Partitions of the generation that is open now."""

    partitions: int
    route: tuple[str, ...]
    """None given: that of before."""


Request = Create | Scale


def newest(state: SubjectState) -> list[PartitionState]:
    """The partitions of the newest generation."""
    return [each for each in state.partitions if each.generation == state.generation]


def open_count(state: SubjectState) -> int:
    """How many partitions of the newest generation take messages."""
    return sum(each.status is PartitionStatus.OPEN for each in newest(state))


def with_status(state: SubjectState, status: PartitionStatus) -> list[PartitionState]:
    """The partitions, of whatever generation, that are so far."""
    return [each for each in state.partitions if each.status is status]


def is_scaling(state: SubjectState) -> bool:
    """Whether a partition of the newest generation does not take messages yet; no other can be begun then."""
    return bool(with_status(state, PartitionStatus.PREPARED) or with_status(state, PartitionStatus.SEALING))


def counted(groups: Iterable[str]) -> str:
    """Broker groups with how often each occurs, for people: `orders-0 (2), orders-1`."""
    numbers = Counter(groups)
    return ", ".join(f"{name} ({numbers[name]})" if numbers[name] > 1 else name for name in sorted(numbers))
