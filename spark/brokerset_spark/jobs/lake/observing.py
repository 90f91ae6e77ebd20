"""What the masters have of the wanted topics, by the questions of the wire source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from brokerset_client.admin import Admin
from brokerset_client.errors import ClientError, RequestRefused
from brokerset_client.instance import ClientInstance
from brokerset_protocol.bodies.routes import MASTER_ID
from brokerset_protocol.codes import ResponseCode
from brokerset_spark.jobs.lake.ranges import Exported, PassPlan
from brokerset_spark.topics.brokers import Questions
from brokerset_spark.topics.following import Ends
from brokerset_spark.topics.offsets import Mark, QueueKey
from brokerset_spark.topics.options import SourceOptions


@dataclass(frozen=True, slots=True)
class Observed:
    """The queues of the wanted topics, and who could not be asked.

    Only masters are asked: a slave may be behind, and its queue would seem to be another one.
    """

    extents: Mapping[QueueKey, Ends]
    silent: frozenset[tuple[str, str]]
    """Topic and broker name where no master answered: their queues are left for a later pass."""
    living: frozenset[str]
    """Names of brokers that have a master."""

    def gone(self, known: Collection[QueueKey]) -> list[QueueKey]:
        """Queues of the table that are not there any more, although their brokers are."""
        return sorted(
            queue
            for queue in known
            if queue not in self.extents
            and queue.broker in self.living
            and (queue.topic, queue.broker) not in self.silent
        )


async def observe(
    instance: ClientInstance,
    name_servers: str,
    topics: Collection[str],
    pattern: str,
    known: Collection[QueueKey] = (),
) -> Observed:
    """First and last offsets of all queues. `known`: queues of the table. Raises `ClientError`, also where a
    broker refuses for want of rights: nobody would give them by waiting.

    Topics of the system, retries and dead letters are there only if they are named.
    """
    extents: dict[QueueKey, Ends] = {}
    silent: frozenset[tuple[str, str]] = frozenset()
    for options in (
        SourceOptions(name_servers=name_servers, topics=tuple(topics)),
        SourceOptions(name_servers=name_servers, topic_pattern=pattern),
    ):
        if not options.topics and not options.topic_pattern:
            continue
        questions = Questions(instance, options)
        seen = await questions.observe()
        _refuse_to_go_on(questions)
        silent |= seen.silent
        extents |= seen.ends
    return Observed(extents, silent, await _living(instance, {queue.broker for queue in known}))


async def _living(instance: ClientInstance, brokers: Collection[str]) -> frozenset[str]:
    """Names of brokers that have a master: of all, or of these where name servers list them for Super users
    alone. Then a broker is known by its own topic, whose name is the broker's, and whose route is for
    everybody; one without that topic is taken for one that is away, and its queues stay as they are.
    """
    try:
        info = await Admin(instance=instance).cluster_info()
    except RequestRefused as error:
        if error.code != ResponseCode.NO_PERMISSION:
            raise
        found = set()
        for broker in sorted(brokers):
            with suppress(ClientError):
                route = await instance.route(broker, fresh=True)
                if not route.created_on_send and route.master(broker) is not None:
                    found.add(broker)
        return frozenset(found)
    return frozenset(name for name, data in info.broker_addr_table.items() if MASTER_ID in data.broker_addrs)


def _refuse_to_go_on(questions: Questions) -> None:
    """Raise what a broker refused for want of rights: else each pass would leave its queues for a later one,
    and say that it has passed."""
    if questions.denied is not None:
        raise questions.denied


async def marks(
    instance: ClientInstance,
    name_servers: str,
    exported: Mapping[QueueKey, Exported],
    extents: Mapping[QueueKey, Ends],
) -> dict[QueueKey, int | None]:
    """Store times of the messages before the exported ends. Queues without an answer are left out."""
    places = {
        queue: exported[queue].next_offset
        for queue, extent in extents.items()
        if queue in exported and extent.first < exported[queue].next_offset <= extent.last
    }
    questions = Questions(instance, SourceOptions(name_servers=name_servers))
    found = await questions.marks(places)
    _refuse_to_go_on(questions)
    return _times(found)


async def confirmed(instance: ClientInstance, name_servers: str, plan: PassPlan) -> PassPlan:
    """The plan without queues whose last message brokers do not give yet: it may disappear with its broker,
    and a task would wait for it."""
    questions = Questions(instance, SourceOptions(name_servers=name_servers))
    found, unsure = await questions.confirmed({each.key: each.end for each in plan.ranges})
    _refuse_to_go_on(questions)
    return plan.settled(_times(found), unsure)


def _times(marks: Mapping[QueueKey, Mark | None]) -> dict[QueueKey, int | None]:
    return {key: None if mark is None else mark.store_ms for key, mark in marks.items()}
