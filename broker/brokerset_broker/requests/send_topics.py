"""The topics that messages are sent to: what is known of them, and their creation by a send."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.changes import ChangeLog, topic_key
from brokerset_broker.requests.message_types import LightQueues, MessageType, type_of_topic
from brokerset_broker.requests.send_lane import SendLane
from brokerset_broker.requests.send_properties import is_stamped
from brokerset_broker.requests.send_refusals import no_topic, topic_text
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.requests.topic_facts import TopicFacts
from brokerset_broker.requests.traffic import Traffic
from brokerset_broker.tables.metadata.records import METADATA_TOPIC, Change, TopicsPut
from brokerset_broker.tables.ordered.ordered_tables import OrderedTables
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.config import TopicConfig
from brokerset_formats.light_queues import is_light
from brokerset_formats.names import (
    RETRY_PREFIX,
    check_topic,
    is_dlq_topic,
    is_retry_topic,
    is_send_forbidden,
)
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.send import SendMessageV2
from brokerset_runtime.remoting import Connection

FACTS_MAX: Final = 10_000
"""Topics whose facts are kept ready; the table is emptied when it is full."""

_NOT_CONFIRMED: Final = (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT)


class SendTopics:
    """Keeps what sends need to know of their topics ready."""

    def __init__(
        self,
        *,
        topics: TopicManager,
        admission: Admission,
        stats: BrokerStats,
        traffic: Traffic,
        changes: ChangeLog,
        ordered: OrderedTables,
        light_queues: LightQueues,
        lane: SendLane | None,
        checks_types: bool,
    ) -> None:
        """`changes` makes new topics safe before a message is stored in them; `lane` forgets topics, too."""
        self._topics = topics
        self._admission = admission
        self._stats = stats
        self._traffic = traffic
        self._changes = changes
        self._ordered = ordered
        self._light_queues = light_queues
        self._lane = lane
        self._checks_types = checks_types
        self.facts: dict[str, TopicFacts] = {}
        """Of topics that were sent to, by name; of use while `config` is the one that the topic has."""
        topics.on_going = lambda topic: self.forget((topic,))
        ordered.on_subjects = self.forget

    def check_types(self, wanted: bool) -> None:
        """Whether messages are refused whose type is not that of their topic (`refuseOtherMessageTypes`)."""
        if wanted != self._checks_types:
            self._checks_types = wanted
            self.forget_all()

    def forget(self, topics: Iterable[str]) -> None:
        """Look these topics up again."""
        for topic in topics:
            self.facts.pop(topic, None)
            if self._lane is not None:
                self._lane.forget(topic)

    def forget_all(self) -> None:
        """Look every topic up again; called now and then, because counters of quiet topics are dropped."""
        self.facts.clear()
        if self._lane is not None:
            self._lane.forget_all()

    def known(self, topic: str) -> TopicFacts | None:
        """A topic that `facts` has nothing of, checked; None if it must be created first."""
        if self._topics.get(topic) is None or topic in self._topics.unsaved:
            return None
        return self._checked_facts(topic)

    def _checked_facts(self, topic: str) -> TopicFacts:
        """Check a topic that is new here, has changed, or is sent to while the broker is read-only."""
        config = self._topics.get(topic)
        if not self._admission.writable and config is not None and config.order:
            raise Rejected(
                ResponseCode.NO_PERMISSION, f"the broker[{self._admission.name}] sending message is forbidden"
            )
        self._check_topic(topic)
        if config is None:
            raise no_topic(topic)
        if len(self.facts) >= FACTS_MAX:
            self.forget_all()
        facts = TopicFacts(config, self._stats.topic_put(topic), self._traffic.of_topic(topic))
        facts.is_ordered = self._ordered.is_subject(topic)
        if self._checks_types and not self._topics.is_system(topic) and not is_dlq_topic(topic):
            facts.is_special = facts.is_retry or type_of_topic(config) is not MessageType.MIXED
        if is_light(topic):
            self._light_queues.check_room([topic])
        self.facts[topic] = facts
        return facts

    def _check_topic(self, topic: str) -> None:
        """Raise `Rejected` for what clients may not send to, whether it exists or not."""
        problem = check_topic(topic)
        if problem is not None:
            raise Rejected(ResponseCode.INVALID_PARAMETER, problem)
        if is_send_forbidden(topic) or topic == METADATA_TOPIC:
            raise Rejected(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        if topic in self._topics.going:
            raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] is being deleted")

    async def create(self, connection: Connection, command: Command, topic: str) -> None:
        """Create the topic of a send as the send asks for it. Raises `Rejected`."""
        self._check_topic(topic)
        try:
            await self._changes.change([topic_key(topic)], partial(self._decide, connection, command, topic))
        except Rejected as rejected:
            if rejected.code not in _NOT_CONFIRMED:
                raise
            # The codes of a stored message would need its id: this one is not stored.
            raise Rejected(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"topic[{topic}] was not made in time: {rejected.remark}"
            ) from rejected

    def _decide(self, connection: Connection, command: Command, topic: str) -> Sequence[Change]:
        if self._topics.get(topic) is not None:
            return ()
        header = SendMessageV2.from_ext(command.ext)
        if is_stamped(command, header.properties or ""):
            raise Rejected(
                ResponseCode.BROKERSET_QUEUE_NOT_OPEN,
                f"the ordered subject {topic} is not on this broker (yet); try again soon, with a new route",
            )
        remote = f"{connection.peer[0]}:{connection.peer[1]}"
        planned = self._topics.plan_on_send(
            topic, header.default_topic, header.default_topic_queue_nums, remote
        )
        if planned is not None:
            return [TopicsPut((planned,))]
        if (
            not is_retry_topic(topic)
            or self._topics.create_retry(topic.removeprefix(RETRY_PREFIX), 1) is None
        ):
            raise no_topic(topic)
        return ()


def bad_queue(connection: Connection, config: TopicConfig, queue_id: int) -> Rejected:
    """The answer to a message for a queue that its topic does not have."""
    return Rejected(
        ResponseCode.INVALID_PARAMETER,
        f"request queueId[{queue_id}] is illegal, {topic_text(config)} "
        f"Producer: {connection.peer[0]}:{connection.peer[1]}",
    )
