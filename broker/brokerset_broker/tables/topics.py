"""Topics of this broker: their table, their file, and the ones that come into being by themselves.

Source: `TopicConfigManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.tables.attributes import TOPIC_ATTRIBUTES, alter
from brokerset_broker.tables.config_table import ConfigTable
from brokerset_broker.tables.metadata.records import METADATA_TOPIC
from brokerset_formats import names
from brokerset_formats.config import Permission, TopicConfig, TopicTable
from brokerset_formats.light_queues import is_light
from brokerset_formats.pop.names import revive_topic
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import Clock
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)

READ_WRITE = Permission.READ | Permission.WRITE
READ_WRITE_INHERIT = READ_WRITE | Permission.INHERIT

QUEUES_MAX = 16_384
"""Queues of one topic; a request for more is refused. Each used queue has files of its own."""

LIGHT_MAX = 100_000
"""Light queues whose settings, all the same, are kept as objects; the table is emptied when it is full."""

Listener = Callable[[tuple[TopicConfig, ...]], None]
"""Gets the topics that were created or changed; nothing means that topics were deleted."""


def sync_member_topic(broker_name: str) -> str:
    """The topic whose route tells the members of a broker group."""
    return f"{names.SYSTEM_TOPIC_PREFIX}SYNC_BROKER_MEMBER_{broker_name}"


def own_topics(settings: BrokerSettings) -> list[TopicConfig]:
    """The topics that a broker creates for itself at every start, if its file does not have them."""
    cluster, broker = settings.broker_cluster_name, settings.broker_name
    cluster_perm = READ_WRITE_INHERIT if settings.cluster_topic_enable else Permission.INHERIT
    broker_perm = READ_WRITE_INHERIT if settings.broker_topic_enable else Permission.INHERIT
    template_queues = settings.default_topic_queue_nums
    found = [_topic(names.SELF_TEST_TOPIC, 1)]
    if settings.auto_create_topic_enable:
        found.append(_topic(names.DEFAULT_TOPIC, template_queues, READ_WRITE_INHERIT))
    found += [
        _topic(names.BENCHMARK_TOPIC, 1024),
        _topic(cluster, 16, cluster_perm),
        _topic(broker, 1, broker_perm),
        _topic(names.OFFSET_MOVED_TOPIC, 1),
        _topic(names.SCHEDULE_TOPIC, max(18, len(settings.message_delay_level.split()))),
    ]
    if settings.trace_topic_enable:
        found.append(_topic(names.TRACE_TOPIC, 1))
    found += [
        _topic(names.reply_topic(cluster), 1),
        _topic(revive_topic(cluster), settings.revive_queue_num),
        _topic(sync_member_topic(broker), 1, Permission.INHERIT),
        _topic(names.HALF_TOPIC, 1),
        _topic(names.OP_HALF_TOPIC, 1),
        _topic(names.TIMER_TOPIC, 1),
    ]
    if settings.enable_controller_mode:
        found.append(_topic(METADATA_TOPIC, 1, Permission.READ))
    return found


def _topic(name: str, queues: int, perm: int = READ_WRITE) -> TopicConfig:
    return TopicConfig(name, queues, queues, perm)


class TopicManager(ConfigTable[TopicConfig]):
    """The topics of a broker."""

    topics_max = 100_000
    """Topics of one broker; one more is refused."""

    def __init__(self, settings: LiveSettings, clock: Clock) -> None:
        path = settings.current.store_path_root_dir / "config" / "topics.json"
        super().__init__(path, lambda: self.table().encode, clock.now_ms())
        self._settings = settings
        self._clock = clock
        self._listeners: list[Listener] = []
        self._has_light = settings.current.enable_lmq
        self._light: dict[str, TopicConfig] = {}
        self.frozen = False
        """Whether topics come into being by the log alone, because this broker follows a master."""
        self.on_created: Callable[[TopicConfig], bool] | None = None
        """Writes a topic that comes into being by itself to the log; False if that cannot be done."""
        self.change_later: Callable[[TopicConfig], None] | None = None
        """Has a change of a topic, that nobody waits for, carried out by way of the log."""
        self.on_going: Callable[[str], object] | None = None
        """Told of each topic that is being deleted from now on."""
        self.going: dict[str, int] = {}
        """Topics whose deletion is in the log but not confirmed: nothing more is sent to them."""
        self.unsaved: dict[str, None] = {}
        """New topics whose file is not written yet: no message in them is acknowledged before that. Only
        without controllers, where the file is what makes a topic safe."""

    # -- file ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file and add what every broker has. Raises `ConfigDamaged`."""
        saved = self._file.load(TopicTable.decode)
        if saved is not None:
            self.items = dict(saved.topics)
            self._version = saved.data_version
        for topic in own_topics(self._settings.current):
            self.items.setdefault(topic.topic_name, topic)
        log.info("loaded topics", topics=len(self.items), counter=self._version.counter)

    # -- queries ------------------------------------------------------------------------------------------

    def get(self, name: str) -> TopicConfig | None:
        """The settings of a topic, `None` if this broker does not have it. Light queues need not be made."""
        config = self.items.get(name)
        if config is None and self._has_light and is_light(name):
            config = self._light.get(name)
            if config is None:
                if len(self._light) >= LIGHT_MAX:
                    self._light.clear()
                config = self._light[name] = _topic(name, 1)
        return config

    def table(self) -> TopicTable:
        """Everything, as it is now: later changes do not show in it."""
        return TopicTable(self._version, dict(self.items))

    def is_system(self, topic: str) -> bool:
        """Whether the topic belongs to the system, so that clients cannot change or delete it."""
        current = self._settings.current
        own = (
            current.broker_cluster_name,
            current.broker_name,
            names.reply_topic(current.broker_cluster_name),
        )
        return names.is_system_topic(topic, own)

    def system_topics(self) -> list[str]:
        """The names of all system topics, sorted."""
        fixed = [topic for topic in names.SYSTEM_TOPICS if topic != names.TRACE_TOPIC or topic in self.items]
        return sorted({*fixed, *(topic for topic in self.items if self.is_system(topic))})

    # -- changes ------------------------------------------------------------------------------------------

    def on_change(self, listener: Listener) -> None:
        """Call `listener` after every change; registration at the name servers is one."""
        self._listeners.append(listener)

    def plan_on_send(
        self, topic: str, default_topic: str, default_queue_nums: int, remote: str, topic_sys_flag: int = 0
    ) -> TopicConfig | None:
        """The topic that a send to an unknown one makes, from `default_topic`; `None` if it may not."""
        template = self.items.get(default_topic)
        if default_topic == names.DEFAULT_TOPIC and not self._settings.current.auto_create_topic_enable:
            template = None
        if template is None or not template.inheritable or names.check_topic(topic) is not None:
            log.warning("topic not created", topic=topic, template=default_topic, producer=remote)
            return None
        queues = max(0, min(default_queue_nums, template.write_queue_nums))
        if len(self.items) >= self.topics_max:
            log.warning("topic not created: too many", topic=topic, topics_max=self.topics_max)
            return None
        return replace(
            template,
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=template.perm & ~Permission.INHERIT,
            topic_sys_flag=topic_sys_flag,
            attributes={},
        )

    def create_retry(
        self, group: str, queue_nums: int, *, order: bool = False, topic_sys_flag: int = 0
    ) -> TopicConfig | None:
        """The retry topic of a group, made if it does not exist; `None` if it may not be made."""
        return self._create_for_group(names.retry_topic(group), queue_nums, order, topic_sys_flag)

    def create_dlq(self, group: str) -> TopicConfig | None:
        """The dead-letter topic of a group, made if it does not exist; `None` if it may not be made."""
        return self._create_for_group(names.dlq_topic(group), 1, False, 0)

    def create_own(self, topic: str, queues: int = 1) -> TopicConfig | None:
        """A topic that the broker itself writes, made with so many queues if it does not exist; `None` if it
        may not be made."""
        return self.items.get(topic) or self._create(_topic(topic, queues), None)

    def update(self, config: TopicConfig, attribute_changes: Mapping[str, str] | None = None) -> bool:
        """Create or change a topic; return whether anything changed.

        With `attribute_changes` (keys begin with + or -) they are applied to the attributes it has; without,
        those of `config` are taken. Raises `Rejected` for attributes that cannot be, and at the limit.
        """
        planned = self.plan_update(config, attribute_changes)
        return planned is not None and self.put(planned)

    def plan_update(
        self, config: TopicConfig, attribute_changes: Mapping[str, str] | None = None
    ) -> TopicConfig | None:
        """What `update` would put into the table; `None` if that is there already."""
        current = self.items.get(config.topic_name)
        if attribute_changes is not None:
            before = current.attributes if current is not None else {}
            after = alter(TOPIC_ATTRIBUTES, before, attribute_changes, create=current is None)
            config = replace(config, attributes=after)
        if config == current:
            return None
        if current is None and len(self.items) >= self.topics_max:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, f"this broker has {self.topics_max} topics, which is its limit"
            )
        return config

    def put(self, config: TopicConfig) -> bool:
        """Put a topic that was decided on into the table; whether that changed anything."""
        current = self.items.get(config.topic_name)
        if config == current:
            return False
        self.items[config.topic_name] = config
        self._changed((config,))
        log.info("topic changed" if current else "topic created", topic=config.topic_name, config=config)
        return True

    def delete(self, topic: str) -> bool:
        """Take a topic out of the table; return whether it was there. The caller deletes its messages."""
        if self.items.pop(topic, None) is None:
            return False
        self._changed(())
        log.info("topic deleted", topic=topic)
        return True

    def bump(self) -> None:
        """Let the data version grow without a change of topics: name servers take everything again."""
        self._changed(())

    def take_over(self, topics: Mapping[str, TopicConfig]) -> bool:
        """Have these topics and those that every broker has; touches only what differs. Whether any did."""
        own = {topic.topic_name for topic in own_topics(self._settings.current)}
        gone = [name for name in self.items if name not in topics and name not in own]
        for name in gone:
            del self.items[name]
        changed = tuple(topic for name, topic in topics.items() if self.items.get(name) != topic)
        for topic in changed:
            self.items[topic.topic_name] = topic
        if gone:
            self._changed(())
        if changed:
            self._changed(changed)
        if gone or changed:
            log.info("topics taken over", changed=len(changed), deleted=len(gone))
        return bool(gone or changed)

    # -- inside -------------------------------------------------------------------------------------------

    def _create_for_group(
        self, topic: str, queue_nums: int, order: bool, topic_sys_flag: int
    ) -> TopicConfig | None:
        existing = self.items.get(topic)
        if existing is not None:
            if existing.order != order and not self.frozen:
                wanted = replace(existing, order=order)
                if self.change_later is not None:
                    self.change_later(wanted)
                else:
                    self.put(wanted)
                    existing = wanted
            return existing
        if names.check_topic(topic) is not None or not 0 <= queue_nums <= QUEUES_MAX:
            return None
        queues = queue_nums
        created = TopicConfig(topic, queues, queues, READ_WRITE, topic_sys_flag=topic_sys_flag, order=order)
        return self._create(created, None)

    def _create(self, config: TopicConfig, remote: str | None) -> TopicConfig | None:
        if len(self.items) >= self.topics_max:
            log.warning("topic not created: too many", topic=config.topic_name, topics_max=self.topics_max)
            return None
        if self.frozen:
            return config
        if config.topic_name in self.going or (self.on_created is not None and not self.on_created(config)):
            return None
        self.items[config.topic_name] = config
        self._changed((config,))
        log.info("topic created on demand", topic=config.topic_name, client=remote, config=config)
        return config

    def _changed(self, topics: tuple[TopicConfig, ...]) -> None:
        self._version = self._version.next(self._clock.now_ms(), self.state_version)
        self._file.touch()
        for listener in self._listeners:
            listener(topics)
