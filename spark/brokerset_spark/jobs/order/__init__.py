"""Whether the messages of ordered subjects are stored in order: an audit by their stamps."""

from brokerset_spark.jobs.order.job import OrderOptions, audit_order, parse_states

__all__ = ["OrderOptions", "audit_order", "parse_states"]
