"""Whether the replicas of one broker agree: epochs, ends, and every byte that is confirmed."""

from brokerset_spark.jobs.audit.auditing import AuditOptions, audit, audit_with_maps
from brokerset_spark.jobs.audit.comparing import compare
from brokerset_spark.jobs.audit.controller_view import ControllerView, parse_view
from brokerset_spark.jobs.audit.inspection import Look, Request, look
from brokerset_spark.jobs.audit.mapping import MapOptions, map_replica
from brokerset_spark.jobs.audit.replica_map import ReplicaMap

__all__ = [
    "AuditOptions",
    "ControllerView",
    "Look",
    "MapOptions",
    "ReplicaMap",
    "Request",
    "audit",
    "audit_with_maps",
    "compare",
    "look",
    "map_replica",
    "parse_view",
]
