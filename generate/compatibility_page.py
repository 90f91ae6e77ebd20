"""The lists of request codes in `docs/compatibility.md`.

They are read off the handler tables of a broker and a name server, built for that without touching a file.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final

from generate.lists import item
from generate.marked import replaced

from brokerset_broker.app import Broker
from brokerset_broker.member.alone import Alone
from brokerset_broker.member.gateway.switchover import SwitchOver
from brokerset_broker.member.ha.ha_status import HaStatusProcessor
from brokerset_broker.member.membership.membership import Membership
from brokerset_broker.tables.metadata.standalone import FileChanges
from brokerset_controller.processors import Processors as ControllerProcessors
from brokerset_namesrv.kv_config import KvTable
from brokerset_namesrv.kv_file import KvFile
from brokerset_namesrv.processors import Processors
from brokerset_namesrv.routes import RouteTable
from brokerset_protocol.codes import RequestCode
from brokerset_runtime.clock import SystemClock
from brokerset_runtime.remoting import Handler
from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.controller_settings import ControllerSettings
from brokerset_spec.namesrv_settings import NamesrvSettings

FROM_BROKERS: Final = {
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
}
"""Requests that servers send to clients; who serves does not know them."""

OF_JRAFT: Final = {
    RequestCode.BROKER_CLOSE_CHANNEL_REQUEST,
    RequestCode.CHECK_NOT_ACTIVE_BROKER_REQUEST,
    RequestCode.GET_BROKER_LIVE_INFO_REQUEST,
    RequestCode.GET_SYNC_STATE_DATA_REQUEST,
    RequestCode.RAFT_BROKER_HEART_BEAT_EVENT_REQUEST,
}
"""Entries of the JRaft log of Java's controllers, not requests."""


MEANINGS: Final = {
    RequestCode.SEND_MESSAGE: "Store a message; field names as old clients and the C++ client spell them.",
    RequestCode.PULL_MESSAGE: "Messages of a queue, filtered by tags or SQL92; parked when there are none.",
    RequestCode.QUERY_CONSUMER_OFFSET: "How far a group is.",
    RequestCode.UPDATE_CONSUMER_OFFSET: "A consumer tells how far it is.",
    RequestCode.UPDATE_AND_CREATE_TOPIC: "Create or change a topic; answered when that is on the disk.",
    RequestCode.GET_ALL_TOPIC_CONFIG: "The content of topics.json, whole or a page.",
    RequestCode.GET_BROKER_CONFIG: "All settings in force, as properties text.",
    RequestCode.GET_BROKER_RUNTIME_INFO: "Measurements of the broker, under Java's keys.",
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "The first message at or after a time, or the last before.",
    RequestCode.GET_MAX_OFFSET: "The number behind a queue's last message.",
    RequestCode.GET_MIN_OFFSET: "The number of a queue's first message.",
    RequestCode.GET_EARLIEST_MSG_STORETIME: "When a queue's first message was stored.",
    RequestCode.HEART_BEAT: "Producers and consumers of a client, with their subscriptions.",
    RequestCode.UNREGISTER_CLIENT: "A producer or consumer goes away.",
    RequestCode.CONSUMER_SEND_MSG_BACK: "Deliver a message again later, or put it among the dead letters.",
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: "The members of a group.",
    RequestCode.LOCK_BATCH_MQ: "Take queues for orderly consumption; answers what the client holds now.",
    RequestCode.UNLOCK_BATCH_MQ: "Give queues back.",
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "Create or change a consumer group.",
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "The content of subscriptionGroup.json, whole or a page.",
    RequestCode.GET_TOPIC_STATS_INFO: "First and last message of each queue of a topic.",
    RequestCode.GET_CONSUMER_CONNECTION_LIST: "The clients of a consumer group and its subscriptions.",
    RequestCode.GET_PRODUCER_CONNECTION_LIST: "The clients of a producer group.",
    RequestCode.DELETE_SUBSCRIPTIONGROUP: "Delete a group; its offsets stay if nothing is said.",
    RequestCode.GET_CONSUME_STATS: "How far a group is in each queue, and how far it could be.",
    RequestCode.DELETE_TOPIC_IN_BROKER: "Delete a topic with its queues, offsets and counters.",
    RequestCode.QUERY_CONSUME_TIME_SPAN: "Store times: first, last and consumed message of each queue.",
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: "The topics that are the broker's own.",
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: "Nothing: queues follow the log by themselves.",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "Relayed to the client, which answers with its state.",
    RequestCode.QUERY_CORRECTION_OFFSET: "For each queue the lowest offset of all groups, some left out.",
    RequestCode.SEND_MESSAGE_V2: "Store a message; field names are single letters.",
    RequestCode.VIEW_BROKER_STATS_DATA: "One counter with its sums of the last minute, hour and day.",
    RequestCode.GET_BROKER_CONSUME_STATS: "Lag of all groups.",
    RequestCode.SEND_BATCH_MESSAGE: "Store several messages of one queue, all or none.",
    RequestCode.GET_ALL_PRODUCER_INFO: "All producers.",
    RequestCode.QUERY_TOPICS_BY_CONSUMER: "Topics that a group has read.",
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: "The subscription of a group to a topic.",
    RequestCode.GET_TOPIC_CONFIG: "The settings of one topic.",
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: "The settings of one group.",
    RequestCode.LITE_PULL_MESSAGE: "As 11; sent by pull consumers.",
}
"""Where the handler's docstring speaks to the reader of the code; everything else comes from there."""


def renewed(text: str) -> str:
    """The document with tables that are up to date."""
    broker, namesrv, controller = broker_handlers(), namesrv_handlers(), controller_handlers()
    neither = sorted(
        set(RequestCode) - broker.keys() - namesrv.keys() - controller.keys() - FROM_BROKERS - OF_JRAFT
    )
    for name, table in (
        ("name server", _served(namesrv)),
        ("broker", _served(broker)),
        ("controller", _served(controller)),
        ("neither", _names(neither)),
    ):
        text = replaced(text, name, table)
    return text


def broker_handlers() -> Mapping[int, Handler]:
    """The table of a broker as it serves."""

    async def build() -> Mapping[int, Handler]:
        with TemporaryDirectory() as folder:
            broker = Broker(BrokerSettings(store_path_root_dir=Path(folder)))
            broker._build()
            broker._part = Alone(0, FileChanges(broker._tables, lambda: 0), broker.services)
            in_controller_mode: dict[int, Any] = {
                RequestCode.GET_BROKER_HA_STATUS: HaStatusProcessor.status,
                RequestCode.GET_BROKER_EPOCH_CACHE: Membership.epoch_cache,
                RequestCode.NOTIFY_BROKER_ROLE_CHANGED: Membership.role_changed,
                RequestCode.BROKERSET_SWITCH_OVER: SwitchOver.switch_over,
            }
            return {**broker._handlers(), **in_controller_mode}

    return asyncio.run(build())


def namesrv_handlers() -> Mapping[int, Handler]:
    """The table of a name server as it serves."""
    settings, kv = NamesrvSettings(), KvTable()
    processors = Processors(
        settings=settings,
        table=RouteTable(settings),
        kv=kv,
        kv_file=KvFile(settings.kv_config_path, kv),
        clock=SystemClock(),
        tell=lambda notices: None,
    )
    return processors.handlers()


def controller_handlers() -> Mapping[int, Handler]:
    """The table of a controller as it serves."""
    service: Any = SimpleNamespace(
        engine=None, clock=SystemClock(), measurements=None, subjects=None, access=None
    )
    return ControllerProcessors(service, ControllerSettings()).handlers()


def _served(handlers: Mapping[int, Handler]) -> str:
    items = []
    for code in sorted(handlers):
        name = RequestCode(code).name
        items.append(
            item(name, str(code), MEANINGS.get(RequestCode(code)) or _sentence(handlers[code], name))
        )
    return "\n".join(items)


def _sentence(handler: Handler, name: str) -> str:
    """The first paragraph of the handler's docstring, without the request's own name and number in front."""
    text = " ".join((inspect.getdoc(handler) or "").split("\n\n")[0].split())
    _, named, rest = text.partition(": ")
    head = text[: len(text) - len(rest)]
    if named and re.fullmatch(r"[A-Z_0-9]*( \(\d+\))?(, [A-Z_0-9 ()]+)?: |\d+: ", head):
        text = rest
    assert text, f"the handler of {name} has no docstring"
    return text[0].upper() + text[1:]


def _names(codes: Iterable[RequestCode]) -> str:
    return ",\n".join(f"`{code.name}` {int(code)}" for code in codes) + "."
