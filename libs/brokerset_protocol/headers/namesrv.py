"""Headers of requests to and from name servers."""

from __future__ import annotations

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.headers.codec import Header, Int, Long


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker(Header):
    """REGISTER_BROKER (103); `body_crc32` is `crc31` of the body as sent, 0 for "do not check"."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    heartbeat_timeout_millis: Long | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerResponse(Header):
    """Answer to REGISTER_BROKER: the master's addresses, for a slave that has one."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnRegisterBroker(Header):
    """UNREGISTER_BROKER (104)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryDataVersion(Header):
    """QUERY_DATA_VERSION (322)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryDataVersionResponse(Header):
    """Answer to QUERY_DATA_VERSION."""

    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRouteInfo(Header):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetTopicsByCluster(Header):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBrokerMemberGroup(Header):
    """GET_BROKER_MEMBER_GROUP (901)."""

    cluster_name: str
    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterTopic(Header):
    """REGISTER_TOPIC_IN_NAMESRV (217)."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicFromNamesrv(Header):
    """DELETE_TOPIC_IN_NAMESRV (216)."""

    topic: str
    cluster_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeWritePermOfBroker(Header):
    """WIPE_WRITE_PERM_OF_BROKER (205)."""

    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WipeWritePermOfBrokerResponse(Header):
    """Answer to WIPE_WRITE_PERM_OF_BROKER."""

    wipe_topic_count: Int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddWritePermOfBroker(Header):
    """ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddWritePermOfBrokerResponse(Header):
    """Answer to ADD_WRITE_PERM_OF_BROKER."""

    add_topic_count: Int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutKVConfig(Header):
    """PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKVConfig(Header):
    """GET_KV_CONFIG (101)."""

    namespace: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKVConfigResponse(Header):
    """Answer to GET_KV_CONFIG."""

    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteKVConfig(Header):
    """DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKVListByNamespace(Header):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyMinBrokerIdChange(Header):
    """NOTIFY_MIN_BROKER_ID_CHANGE (905), name server to broker, one-way."""

    min_broker_id: Long | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None
