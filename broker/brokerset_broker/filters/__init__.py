"""Filters by SQL92 over the properties of messages, and what brokers keep of them."""

from __future__ import annotations

from brokerset_broker.filters.errors import EvaluationFailed, FilterError
from brokerset_broker.filters.sql_filter import SqlFilter, compile_filter

__all__ = ["EvaluationFailed", "FilterError", "SqlFilter", "compile_filter"]
