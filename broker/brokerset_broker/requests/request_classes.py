"""Which kind of request each code is, as far as a broker's role matters; the marks of forwarded ones. Pure.

A new request code must be classified here: `Gateway` refuses handlers of codes that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from brokerset_protocol.codes import RequestCode

FORWARDED: Final = "brokersetForwarded"
"""Header field of a request that a broker passes on to its master; it is never passed on again."""

BORN_HOST: Final = "brokersetBornHost"
"""Header field of a forwarded request: `ip:port` (`[v6]:port`) of the client."""

NOT_HERE: Final = "brokersetNotHere"
"""Header field of an answer to a forwarded request: not carried out, another broker may be master."""

DENIED: Final = "brokersetDenied"
"""Header field of an answer to a forwarded request that access control refused: it counts where it came."""


class RequestClass(StrEnum):
    """What a request needs of the broker that serves it."""

    WRITE = "writes"
    """Stores something that others are told is safe."""

    COMMIT = "commits"
    """Consumer progress: to be repeated by clients every few seconds, and never confirmed."""

    LOCK = "locks"
    """Locks of queues: only one broker may grant them."""

    PROGRESS = "progress"
    """Where a group is: exact at the master only, and not far off elsewhere."""

    ENDS = "ends"
    """Where queues end, also at a time: the master knows it, once all that it took over is confirmed."""

    READ = "reads"
    """Answered from what is confirmed, by every member."""

    OPEN = "open"
    """About the broker itself, or about a client's own connection: answered whatever the role is."""


def _table(classes: Mapping[RequestClass, Iterable[RequestCode]]) -> dict[int, RequestClass]:
    return {int(code): kind for kind, codes in classes.items() for code in codes}


CLASSES: Final[Mapping[int, RequestClass]] = _table(
    {
        RequestClass.WRITE: (
            RequestCode.SEND_MESSAGE,
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.CONSUMER_SEND_MSG_BACK,
            RequestCode.END_TRANSACTION,
            RequestCode.RESUME_CHECK_HALF_MESSAGE,
            RequestCode.SEND_REPLY_MESSAGE,
            RequestCode.SEND_REPLY_MESSAGE_V2,
            RequestCode.RECALL_MESSAGE,
            RequestCode.POP_MESSAGE,
            RequestCode.ACK_MESSAGE,
            RequestCode.BATCH_ACK_MESSAGE,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            RequestCode.DELETE_TOPIC_IN_BROKER,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            RequestCode.CLONE_GROUP_OFFSET,
            RequestCode.SET_MESSAGE_REQUEST_MODE,
            RequestCode.AUTH_CREATE_USER,
            RequestCode.AUTH_UPDATE_USER,
            RequestCode.AUTH_DELETE_USER,
            RequestCode.AUTH_CREATE_ACL,
            RequestCode.AUTH_UPDATE_ACL,
            RequestCode.AUTH_DELETE_ACL,
            RequestCode.BROKERSET_SUBJECT_QUEUES,
            RequestCode.BROKERSET_CLAIM_QUEUE,
            RequestCode.BROKERSET_ACKNOWLEDGE,
            RequestCode.BROKERSET_RELEASE_QUEUE,
            RequestCode.BROKERSET_SEND_BACK,
        ),
        RequestClass.COMMIT: (RequestCode.UPDATE_CONSUMER_OFFSET,),
        RequestClass.LOCK: (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ),
        RequestClass.PROGRESS: (
            RequestCode.QUERY_CONSUMER_OFFSET,
            RequestCode.NOTIFICATION,
            RequestCode.PEEK_MESSAGE,
            RequestCode.POLLING_INFO,
        ),
        RequestClass.ENDS: (
            RequestCode.GET_MAX_OFFSET,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            RequestCode.GET_EARLIEST_MSG_STORETIME,
            RequestCode.GET_TOPIC_STATS_INFO,
            RequestCode.GET_CONSUME_STATS,
        ),
        RequestClass.READ: (
            RequestCode.PULL_MESSAGE,
            RequestCode.LITE_PULL_MESSAGE,
            RequestCode.QUERY_MESSAGE,
            RequestCode.VIEW_MESSAGE_BY_ID,
            RequestCode.GET_MIN_OFFSET,
            RequestCode.QUERY_CONSUME_QUEUE,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            RequestCode.CHECK_CLIENT_CONFIG,
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            RequestCode.GET_PRODUCER_CONNECTION_LIST,
            RequestCode.GET_ALL_PRODUCER_INFO,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            RequestCode.GET_ALL_TOPIC_CONFIG,
            RequestCode.GET_TOPIC_CONFIG,
            RequestCode.GET_BROKER_LITE_INFO,
            RequestCode.GET_PARENT_TOPIC_INFO,
            RequestCode.GET_LITE_TOPIC_INFO,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
            RequestCode.QUERY_TOPICS_BY_CONSUMER,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
            RequestCode.GET_BROKER_CONSUME_STATS,
            RequestCode.QUERY_CONSUME_TIME_SPAN,
            RequestCode.GET_ALL_CONSUMER_OFFSET,
            RequestCode.QUERY_CORRECTION_OFFSET,
            RequestCode.GET_ALL_DELAY_OFFSET,
            RequestCode.GET_TIMER_CHECK_POINT,
            RequestCode.GET_TIMER_METRICS,
            RequestCode.QUERY_ASSIGNMENT,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
            RequestCode.AUTH_GET_USER,
            RequestCode.AUTH_LIST_USER,
            RequestCode.AUTH_GET_ACL,
            RequestCode.AUTH_LIST_ACL,
            RequestCode.CLEAN_UNUSED_TOPIC,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
            RequestCode.DELETE_EXPIRED_COMMITLOG,
        ),
        RequestClass.OPEN: (
            RequestCode.HEART_BEAT,
            RequestCode.UNREGISTER_CLIENT,
            RequestCode.UPDATE_BROKER_CONFIG,
            RequestCode.GET_BROKER_CONFIG,
            RequestCode.GET_BROKER_RUNTIME_INFO,
            RequestCode.VIEW_BROKER_STATS_DATA,
            RequestCode.GET_BROKER_HA_STATUS,
            RequestCode.GET_BROKER_EPOCH_CACHE,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
            RequestCode.BROKERSET_SWITCH_OVER,
            RequestCode.POP_ROLLBACK,
        ),
    }
)
"""The class of every code that a broker serves."""

REPEATABLE: Final = frozenset({RequestClass.LOCK, RequestClass.PROGRESS, RequestClass.ENDS})
"""Carried out twice they do what they do once, so a forward without an answer may be tried again. Commits are
not among them: the first try may still be on its way, and set back what was committed after the second."""


def is_forwarded(ext: Mapping[str, str]) -> bool:
    """Whether a broker has passed this request on."""
    return FORWARDED in ext


def forwarding_fields(ext: Mapping[str, str]) -> dict[str, str]:
    """The marks among header fields, for who makes new fields of them."""
    return {name: ext[name] for name in (FORWARDED, BORN_HOST) if name in ext}


def forwarded_peer(ext: Mapping[str, str]) -> tuple[str, int] | None:
    """Address and port of the client behind a forwarded request; None for one that came directly."""
    if FORWARDED not in ext:
        return None
    host, _, port = ext.get(BORN_HOST, "").rpartition(":")
    if not host or not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
        return None
    return host.strip("[]"), int(port)


def peer_text(peer: tuple[str, int]) -> str:
    """The text that `forwarded_peer` reads."""
    host, port = peer
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
