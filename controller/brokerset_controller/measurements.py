"""What a controller has counted since its start; shown as metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

LATENCY_BOUNDS_US: Final = (
    1, 3, 5, 10, 30, 50, 100, 300, 500,
    1_000, 3_000, 5_000, 10_000, 30_000, 50_000, 100_000, 300_000, 500_000,
    1_000_000, 3_000_000, 5_000_000, 10_000_000,
)  # fmt: skip
"""Upper bounds of RocketMQ's latency buckets in microseconds: 1 us to 10 s (ControllerMetricsManager)."""

Status = Literal["success", "failed", "timeout"]
"""How a request or a proposal ended; an answer with an error code is a success, as in RocketMQ."""


class Histogram:
    """Counts of values by upper bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[int, ...] = LATENCY_BOUNDS_US) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Values in each bucket alone; the last is for those above all bounds."""

        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value, in the unit of the bounds."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Bucket bounds as text, and how many values are not above each."""
        found: list[tuple[str, float]] = []
        sum_so_far = 0
        for bound, count in zip((*map(float, self.bounds), float("inf")), self.counts, strict=True):
            sum_so_far += count
            found.append(("+Inf" if bound == float("inf") else str(bound), sum_so_far))
        return found


@dataclass(slots=True)
class Measurements:
    """Counters and histograms. Keys are few: request types, states, broker groups."""

    requests: dict[tuple[str, Status], int] = field(default_factory=dict)
    """By RocketMQ's name of the request, and how it ended."""

    request_latency: dict[str, Histogram] = field(default_factory=dict)
    """Microseconds, by RocketMQ's name of the request."""

    proposals: dict[Status, int] = field(default_factory=dict)
    proposal_latency: Histogram = field(default_factory=Histogram)
    """Microseconds from a proposal to its application on this node: network and a majority's disks."""

    disk_latency: Histogram = field(default_factory=Histogram)
    """Microseconds of each batch of work on this node's disk, syncs included."""

    elections: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """By cluster, broker name and RocketMQ's name of the result."""

    election_reasons: dict[str, int] = field(default_factory=dict)
    """Elections of a master that were committed, by what made them necessary."""

    hand_overs: int = 0
    """Committed elections that the master asked for itself."""

    fences: dict[str, int] = field(default_factory=dict)
    """Committed changes of fencing, by `fenced` or `unfenced`."""

    requests_denied: Counter[str] = field(default_factory=Counter)
    """Requests that access control refused, by the check: `authentication`, `authorization`."""

    leases: int = 0
    """Leases given to masters."""

    leases_refused: int = 0
    """Heartbeats of a master that got no lease: an election is under way, or no barrier was passed."""

    possible_losses: int = 0
    """Committed elections after which acknowledged messages may be gone."""

    probes: dict[str, int] = field(default_factory=dict)
    """Probes to brokers that were not heard, by what came of them."""

    notices_sent: int = 0
    notices_dropped: int = 0
    heartbeats: int = 0
    heartbeats_ignored: int = 0
    """Heartbeats of replicas that this node does not know (yet), or of a process that is not the latest."""

    permissions: int = 0
    """Heartbeats of members of consumer groups that were answered with a permission."""

    permissions_refused: int = 0
    """Heartbeats of consumers that were refused, or not answered in time."""

    joins: int = 0
    """Committed joinings of members."""

    departures: int = 0
    """Committed departures of members."""

    reassignments: int = 0
    """Committed changes of assignments that this node planned."""

    subject_pushes: int = 0
    """Requests to broker groups about queues of subjects."""

    subject_pushes_failed: int = 0
    """Those that were refused, or not answered."""

    def request_done(self, name: str, status: Status, microseconds: float) -> None:
        """Count one answered request."""
        key = (name, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        histogram = self.request_latency.get(name)
        if histogram is None:
            histogram = self.request_latency[name] = Histogram()
        histogram.observe(microseconds)

    def proposal_done(self, status: Status, microseconds: float) -> None:
        """Count one proposal."""
        self.proposals[status] = self.proposals.get(status, 0) + 1
        self.proposal_latency.observe(microseconds)

    def election_done(self, cluster: str, broker_name: str, result: str) -> None:
        """Count an election, or a request for one."""
        key = (cluster, broker_name, result)
        self.elections[key] = self.elections.get(key, 0) + 1

    def elected(self, reason: str) -> None:
        """Count a committed election by its reason."""
        self.election_reasons[reason] = self.election_reasons.get(reason, 0) + 1

    def fencing_done(self, fenced: bool) -> None:
        """Count a committed change of fencing."""
        name = "fenced" if fenced else "unfenced"
        self.fences[name] = self.fences.get(name, 0) + 1

    def probe_done(self, result: str) -> None:
        """Count an answered question."""
        self.probes[result] = self.probes.get(result, 0) + 1


def timed(clock: Callable[[], float], since: float) -> float:
    """Microseconds on the clock (seconds) since a moment of it."""
    return (clock() - since) * 1e6
