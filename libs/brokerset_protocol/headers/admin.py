"""Headers of a broker's own administration: configuration, statistics, HA, users and access rules."""

from __future__ import annotations

from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.headers.codec import Header, Int, Long


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
class NamedUser(Header):
    """AUTH_CREATE_USER (3001), AUTH_UPDATE_USER (3002), AUTH_DELETE_USER (3003), AUTH_GET_USER (3004)."""

    username: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateUser(NamedUser):
    """AUTH_UPDATE_USER (3002), whose body has the rest."""

    # brokerset
    former_password_seconds: Int | None = None
    """How long the password of before is accepted, too; None: not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateUserResponse(Header):
    """Answer to AUTH_UPDATE_USER (3002); Java's has no fields."""

    # brokerset
    former_until: Long | None = None
    """Milliseconds since 1970; None where no former password is accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListUsers(Header):
    """AUTH_LIST_USER (3005): those whose name contains `filter`."""

    filter: str | None = None

    # brokerset
    former_passwords: bool | None = None
    """Whether former passwords are wanted, where passwords are shown: of brokers that take users over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSubject(Header):
    """AUTH_CREATE_ACL (3006), AUTH_UPDATE_ACL (3007), AUTH_GET_ACL (3009)."""

    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAcl(Header):
    """AUTH_DELETE_ACL (3008): everything of the subject, or what it says about one resource."""

    subject: str
    policy_type: str | None = None
    resource: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListAcls(Header):
    """AUTH_LIST_ACL (3010): those whose subject and resources contain these texts."""

    subject_filter: str | None = None
    resource_filter: str | None = None
