"""Headers of a broker's own administration: configuration, statistics, HA, users and access rules."""

from __future__ import annotations

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.headers.codec import Header


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerConfigResponse(Header):
    """Answer to GET_BROKER_CONFIG (26): `version` is a DataVersion as JSON text."""

    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewBrokerStatsData(Header):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str
