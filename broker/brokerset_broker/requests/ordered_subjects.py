"""BROKERSET_SUBJECT_QUEUES (21031): the controllers say which partitions are here, and close them."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

import structlog

from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.changes import ChangeLog, topic_key
from brokerset_broker.requests.ordered_parts import QueueReads
from brokerset_broker.tables.metadata.records import Change, TopicsDeleted, TopicsPut
from brokerset_broker.tables.ordered.ordered_tables import OrderedTables
from brokerset_broker.tables.ordered.subject_plans import (
    SUBJECTS_MAX,
    RefusedSubject,
    WantedSubject,
    plan_subject,
)
from brokerset_broker.tables.ordered.values import Subject, SubjectsPut, subject_name
from brokerset_broker.tables.topics import QUEUES_MAX, READ_WRITE, TopicManager
from brokerset_formats.config import TopicConfig
from brokerset_formats.names import check_topic, is_dlq_topic, is_retry_topic
from brokerset_protocol.bodies.ordered import SubjectQueue, SubjectQueues
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.subject_words import PartitionStatus
from brokerset_runtime.remoting import Connection, Handler

log = structlog.get_logger(__name__)

FIFO: dict[str, str] = {"message.type": "FIFO"}
"""Attributes of a subject's topic: RocketMQ's tools show what it is."""


class SubjectQueuesProcessor:
    """Creates, opens, seals and deletes the queues of subjects."""

    def __init__(
        self,
        *,
        ordered: OrderedTables,
        store: QueueReads,
        topics: TopicManager,
        admission: Admission,
        changes: ChangeLog,
    ) -> None:
        self._ordered = ordered
        self._store = store
        self._topics = topics
        self._admission = admission
        self._changes = changes

    def handlers(self) -> dict[int, Handler]:
        """What this processor serves, by request code."""
        return {RequestCode.BROKERSET_SUBJECT_QUEUES: self.put}

    def put(self, connection: Connection, command: Command) -> Coroutine[Any, Any, Command]:
        """Let the queues of a subject be as the controllers want them."""
        self._admission.check_writes()
        if not self._changes.replicated:
            raise _refused(
                f"broker {self._admission.name} is in no group: ordered subjects need controllers or a "
                "DLedger, whose replicas confirm what a queue is; put the subject on another broker group"
            )
        wanted = SubjectQueues.from_json(command.body)
        topic = wanted.subject
        problem = check_topic(topic)
        if problem is None and (
            is_retry_topic(topic) or is_dlq_topic(topic) or self._topics.is_system(topic)
        ):
            problem = f"{topic} is the name of a topic of the system: choose another one for the subject"
        if problem is None and "%" in topic:
            problem = f"{topic}: a subject's name has no %, which divides the names of retry topics"
        if problem is not None:
            raise _refused(problem)
        if len({queue.queue_id for queue in wanted.queues}) != len(wanted.queues):
            raise _refused(f"a queue of {topic} is listed twice")
        return self._delete(command, wanted) if wanted.deleted else self._put(command, wanted)

    async def _put(self, command: Command, wanted: SubjectQueues) -> Command:
        topic = wanted.subject
        await self._changes.change([topic_key(topic)], partial(self._decide, wanted))
        subject = self._ordered.state.subjects.get(topic)
        if subject is None:
            raise _refused(f"the subject {topic} was deleted meanwhile")
        return command.reply(body=_body(wanted, subject).to_json())

    def _decide(self, wanted: SubjectQueues) -> Sequence[Change]:
        """What has to change. Nothing comes between the end of a queue that is read here and its record: a
        send is refused from the moment on that the record is written."""
        topic = wanted.subject
        current = self._ordered.state.subjects.get(topic)
        config = self._topics.get(topic)
        if current is None and config is not None:
            raise _refused(
                f"the topic {topic} exists, and is no ordered subject: delete it, or choose another name"
            )
        if current is None and len(self._ordered.state.subjects) >= SUBJECTS_MAX:
            raise _refused(f"this broker group has {SUBJECTS_MAX} ordered subjects, which is its limit")
        planned = plan_subject(
            current,
            WantedSubject(
                wanted.order_strategy,
                wanted.version,
                {queue.queue_id: (queue.partition_id, queue.state) for queue in wanted.queues},
            ),
            lambda queue_id: self._store.tail(topic, queue_id)[0],
            QUEUES_MAX - 1,
        )
        if isinstance(planned, RefusedSubject):
            raise _refused(f"subject {topic}: {planned.reason}")
        changes: list[Change] = []
        if planned != current:
            changes.append(SubjectsPut({topic: planned}))
            self._log_changes(topic, current, planned)
        # Behind the subject: a topic of that name without one would take sends without stamps.
        grown = self._grown(topic, config, max(planned.queues, default=-1) + 1)
        if grown is not None:
            changes.append(TopicsPut((grown,)))
        return changes

    def _grown(self, topic: str, config: TopicConfig | None, queues: int) -> TopicConfig | None:
        known = 0 if config is None else min(config.read_queue_nums, config.write_queue_nums)
        wanted = TopicConfig(topic, max(queues, known), max(queues, known), READ_WRITE, attributes=dict(FIFO))
        return self._topics.plan_update(wanted)

    @staticmethod
    def _log_changes(topic: str, current: Subject | None, planned: Subject) -> None:
        for queue_id, queue in planned.queues.items():
            known = None if current is None else current.queues.get(queue_id)
            if queue.state is PartitionStatus.SEALED and (known is None or known.state is not queue.state):
                log.info("queue is to be sealed", topic=topic, queue_id=queue_id, end=queue.end)
            elif queue.retired and known is not None and not known.retired:
                log.info("queue is to be retired", topic=topic, queue_id=queue_id, end=queue.end)

    async def _delete(self, command: Command, wanted: SubjectQueues) -> Command:
        topic = wanted.subject
        await self._changes.change([topic_key(topic)], partial(self._decide_deletion, wanted))
        done = SubjectQueues(topic, wanted.order_strategy, wanted.version, deleted=True)
        return command.reply(body=done.to_json())

    def _decide_deletion(self, wanted: SubjectQueues) -> Sequence[Change]:
        topic = wanted.subject
        current = self._ordered.state.subjects.get(topic)
        if current is None:
            if self._topics.get(topic) is not None:
                raise _refused(f"the topic {topic} is no ordered subject: its messages stay")
            return ()
        if wanted.version < current.version:
            raise _refused(
                f"subject {topic}: version {wanted.version} is older than {current.version},"
                " which is in force"
            )
        names = [config.topic_name for config in self._topics]
        retries = [name for name in names if name != topic and subject_name(name) == topic]
        log.info("subject is to be deleted", topic=topic, version=wanted.version, retry_topics=len(retries))
        return [TopicsDeleted((*retries, topic))]


def _body(wanted: SubjectQueues, subject: Subject) -> SubjectQueues:
    """What became of the queues that were asked for; all that were ever sealed here would have no bound."""
    listed = sorted(queue.queue_id for queue in wanted.queues)
    queues = tuple(
        SubjectQueue(
            queue_id, queue.partition_id, queue.state,
            queue.end if queue.state is PartitionStatus.SEALED else None,
        )
        for queue_id in listed
        if (queue := subject.queues.get(queue_id)) is not None
    )  # fmt: skip
    return SubjectQueues(wanted.subject, subject.order_strategy, subject.version, False, queues)


def _refused(reason: str) -> Rejected:
    return Rejected(ResponseCode.BROKERSET_SUBJECT_REFUSED, reason)
