"""Filters by SQL92 over the properties of messages, and what brokers keep of them."""

from __future__ import annotations

from brokerset_broker.filters.bloom import BloomBits, BloomParameters
from brokerset_broker.filters.errors import EvaluationFailed, FilterError
from brokerset_broker.filters.filter_data import FilterData, FilterFile
from brokerset_broker.filters.sql_filter import SqlFilter, compile_filter

__all__ = [
    "BloomBits",
    "BloomParameters",
    "EvaluationFailed",
    "FilterData",
    "FilterError",
    "FilterFile",
    "SqlFilter",
    "compile_filter",
]
