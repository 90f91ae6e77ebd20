"""What serves POP consumers, put together; and what wakes those who wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.requests.admission import Admission
from brokerset_broker.requests.pop.checks import PopChecks
from brokerset_broker.requests.pop.log import PopLog
from brokerset_broker.requests.pop.notifications import NotificationProcessor
from brokerset_broker.requests.pop.ordered_pops import OrderedPops
from brokerset_broker.requests.pop.polls import Polls
from brokerset_broker.requests.pop.pops import PopProcessor
from brokerset_broker.requests.pop.positions import PopPositions
from brokerset_broker.requests.statistics import BrokerStats
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.tables.consumer_filters import ConsumerFilters
from brokerset_broker.tables.consumers import ConsumerTable
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.ordered.ordered_tables import OrderedTables
from brokerset_broker.tables.topics import TopicManager
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import Handler


class PopRequests:
    """POP_MESSAGE, NOTIFICATION, PEEK_MESSAGE, POLLING_INFO, and who waits for them."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        clock: Clock,
        store: MessageStore,
        topics: TopicManager,
        groups: GroupManager,
        offsets: OffsetManager,
        consumers: ConsumerTable,
        admission: Admission,
        ordered: OrderedTables,
        filters: ConsumerFilters | None,
        stats: BrokerStats,
        log: PopLog,
        memory_bytes: int,
        ordered_pops: OrderedPops,
    ) -> None:
        """`memory_bytes`: of the machine."""
        checks = PopChecks(
            topics=topics, groups=groups, admission=admission, ordered=ordered, filters=filters
        )
        positions = PopPositions(live=live, store=store, offsets=offsets, log=log, memory_bytes=memory_bytes)
        self._pop = PopProcessor(
            live=live, clock=clock, store=store, checks=checks, positions=positions, log=log,
            consumers=consumers, admission=admission, stats=stats, ordered_pops=ordered_pops,
            polls=lambda resume, expire: Polls(
                name="pops that wait", live=live, clock=clock, resume=resume, expire=expire
            ),
        )  # fmt: skip
        self.pops = self._pop.polls
        """Pops that wait; a `RoleService`."""
        notifications = NotificationProcessor(
            live=live, clock=clock, store=store, checks=checks, positions=positions, log=log,
            pops=self.pops,
            ordered_pops=ordered_pops,
            polls=lambda resume, expire: Polls(
                name="notifications that wait", live=live, clock=clock, resume=resume, expire=expire
            ),
        )  # fmt: skip
        self.notifications = notifications.polls
        """Notifications that wait; a `RoleService`."""
        self._both = self.pops, self.notifications
        for polls in self._both:
            polls.table.is_locked = ordered_pops.is_locked
        self._handlers = self._pop.handlers() | notifications.handlers()
        ordered_pops.on_free = log.on_free = self.wake_group

    def handlers(self) -> dict[int, Handler]:
        """The request codes that are served here."""
        return self._handlers

    def use_gate(self, is_open: Callable[[], bool]) -> None:
        """Ask this before a pop is served that has waited."""
        self._pop.is_open = is_open

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self.pops) + len(self.notifications)

    def arrived(self, topic: str, queue_id: int, next_queue_offset: int, tags_code: int | None) -> None:
        """The store's messages below `next_queue_offset` of one queue can be read."""
        for polls in self._both:
            polls.arrived(topic, queue_id, next_queue_offset, tags_code)

    def drop(self, owner: object) -> None:
        """Forget what a closed connection waited for."""
        for polls in self._both:
            polls.drop(owner)

    def leave(self, owner: object, group: str) -> None:
        """A member has left its group, and goes on with its connection."""
        for polls in self._both:
            polls.leave(owner, group)

    def wake_topic(self, topic: str) -> None:
        """A topic was changed or deleted."""
        for polls in self._both:
            polls.wake_topic(topic)

    def wake_deleted(self, is_deleted: Callable[[str], bool]) -> None:
        """Some topics were deleted: nobody waits for them any more."""
        for polls in self._both:
            for topic in polls.table.topics():
                if is_deleted(topic):
                    polls.wake_topic(topic)

    def wake_group(self, topic: str, group: str) -> None:
        """A group may take more of a topic than before."""
        for polls in self._both:
            polls.wake_group(topic, group)

    def reset(self, resets: Mapping[str, Mapping[int, int]]) -> None:
        """Offsets were reset, by `topic@group`."""
        for key in resets:
            topic, _, group = key.partition("@")
            self.wake_group(topic, group)
