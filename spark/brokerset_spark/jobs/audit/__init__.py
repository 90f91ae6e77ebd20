"""Whether the replicas of one broker agree: epochs, ends, and every byte that is confirmed."""

from brokerset_spark.jobs.audit.findings import ControllerView
from brokerset_spark.jobs.audit.job import AuditOptions, audit, audit_with_maps, compare, parse_view
from brokerset_spark.jobs.audit.mapping import MapOptions, map_replica
from brokerset_spark.jobs.audit.records import Answer, Query, answer
from brokerset_spark.jobs.audit.replica import ReplicaMap

__all__ = [
    "Answer",
    "AuditOptions",
    "ControllerView",
    "MapOptions",
    "Query",
    "ReplicaMap",
    "answer",
    "audit",
    "audit_with_maps",
    "compare",
    "map_replica",
    "parse_view",
]
