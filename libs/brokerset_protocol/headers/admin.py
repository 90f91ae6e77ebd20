"""Headers of a broker's own administration: configuration, statistics, HA, users and access rules."""

from __future__ import annotations

from dataclasses import dataclass

from brokerset_protocol.headers.codec import Header, Long


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerConfigResponse(Header):
    """Answer to GET_BROKER_CONFIG (26): `version` is a DataVersion as JSON text."""

    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewBrokerStatsData(Header):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetAllProducerInfo(Header):
    """GET_ALL_PRODUCER_INFO (328)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeHAInfo(Header):
    """EXCHANGE_BROKER_HA_INFO (906), between brokers of one group."""

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeHAInfoResponse(Header):
    """Answer to EXCHANGE_BROKER_HA_INFO."""

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetMasterFlushOffset(Header):
    """RESET_MASTER_FLUSH_OFFSET (908)."""

    master_flush_offset: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class AddBroker(Header):
    """ADD_BROKER (902), to a broker container."""

    config_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveBroker(Header):
    """REMOVE_BROKER (903), to a broker container."""

    broker_name: str
    broker_cluster_name: str
    broker_id: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRocksDBConfigToJson(Header):
    """EXPORT_ROCKSDB_CONFIG_TO_JSON (355)."""

    config_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UserName(Header):
    """AUTH_CREATE_USER, _UPDATE_USER, _DELETE_USER, _GET_USER (3001 to 3004)."""

    username: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListUsers(Header):
    """AUTH_LIST_USER (3005)."""

    filter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AclSubject(Header):
    """AUTH_CREATE_ACL, _UPDATE_ACL, _GET_ACL (3006, 3007, 3009)."""

    subject: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAcl(Header):
    """AUTH_DELETE_ACL (3008)."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListAcls(Header):
    """AUTH_LIST_ACL (3010)."""

    subject_filter: str | None = None
    resource_filter: str | None = None
