"""Retry topics whose messages are in the store, and which the table of topics does not have.

A broker alone writes its topics down now and then. One that is killed before has a retry topic no more when
it starts: nobody would pop what came back, until something else does, and then all of it from the start.
"""

from __future__ import annotations

from itertools import chain

import structlog

from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.names import RETRY_PREFIX
from brokerset_formats.pop.names import split_retry_v1, split_retry_v2

log = structlog.get_logger(__name__)


def make_lost_topics(store: MessageStore, topics: TopicManager, groups: GroupManager) -> None:
    """Make retry topics again, of groups and topics that there are.

    A start looks at each queue once: there may be very many groups and topics, and the loop waits.
    """
    for name, queue_ids in store.queues().items():
        if not name.startswith(RETRY_PREFIX) or name in topics.items or not queue_ids:
            continue
        possible = chain(filter(None, (split_retry_v2(name),)), split_retry_v1(name))
        if not any(group in groups.items and topic in topics.items for group, topic in possible):
            continue
        if topics.create_own(name, max(queue_ids) + 1) is not None:
            log.info("made a retry topic again whose messages were stored before a crash", topic=name)
