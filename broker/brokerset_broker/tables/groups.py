"""Consumer groups of this broker: their settings, their file, and which topics they may not read.

Source: `SubscriptionGroupManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.tables.attributes import GROUP_ATTRIBUTES, alter
from brokerset_broker.tables.config_table import ConfigTable
from brokerset_formats import names
from brokerset_formats.config import GroupTable, SubscriptionGroupConfig
from brokerset_formats.light_queues import is_light
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

READ_FORBIDDEN_BIT = 1 << 2
"""Bit of a forbidden mask: the group may not read the topic (`PermName.INDEX_PERM_READ`)."""

RETRY_QUEUES_MAX = 1_024
"""Queues of a retry topic; a configuration with more is refused."""


class GroupManager(ConfigTable[SubscriptionGroupConfig]):
    """The consumer groups of a broker."""

    groups_max = 100_000
    """Groups of one broker; one more is refused."""

    def __init__(self, settings: LiveSettings, clock: Clock) -> None:
        path = settings.current.store_path_root_dir / "config" / "subscriptionGroup.json"
        super().__init__(path, lambda: self.table().encode, clock.now_ms())
        self._settings = settings
        self._clock = clock
        self._forbidden: dict[str, dict[str, int]] = {}
        self.frozen = False
        """Whether groups come into being by the log alone, because this broker follows a master."""
        self.on_created: Callable[[SubscriptionGroupConfig], None] | None = None
        """Told of each group that came into being by itself."""
        self.going: dict[str, int] = {}
        """Groups whose deletion is in the log but not confirmed: they do not come into being meanwhile."""

    # -- file ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file and add what every broker has. Raises `ConfigDamaged`."""
        saved = self._file.load(GroupTable.decode)
        if saved is not None:
            self.items = dict(saved.groups)
            self._forbidden = {group: dict(masks) for group, masks in saved.forbidden.items()}
            self._version = saved.data_version
        for group in sorted(names.SYSTEM_GROUPS):
            self.items.setdefault(group, SubscriptionGroupConfig(group))
        log.info("loaded groups", groups=len(self.items), counter=self._version.counter)

    # -- queries ------------------------------------------------------------------------------------------

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """The settings of a group, `None` if this broker does not have it. Those of light queues, whose names
        begin as theirs, need not be made."""
        config = self.items.get(name)
        if config is None and self._settings.current.enable_lmq and is_light(name):
            return SubscriptionGroupConfig(name)
        return config

    def table(self) -> GroupTable:
        """Everything, as it is now: later changes do not show in it."""
        forbidden = {group: dict(masks) for group, masks in self._forbidden.items()}
        return GroupTable(self._version, dict(self.items), forbidden)

    def is_read_forbidden(self, group: str, topic: str) -> bool:
        """Whether an administrator keeps the group from reading the topic."""
        if not self._forbidden:
            return False
        return self._forbidden.get(group, {}).get(topic, 0) & READ_FORBIDDEN_BIT != 0

    # -- changes ------------------------------------------------------------------------------------------

    def get_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's settings; an unknown group is created if it may be, else `None`."""
        config = self.get(group)
        if config is not None:
            return config
        allowed = self._settings.current.auto_create_subscription_group or names.is_system_group(group)
        if not allowed or names.check_group(group) is not None:
            return None
        if len(self.items) >= self.groups_max:
            log.warning("group not created: too many", group=group, groups_max=self.groups_max)
            return None
        config = SubscriptionGroupConfig(group)
        if self.frozen or group in self.going:
            return config
        self.items[group] = config
        self._changed()
        if self.on_created is not None:
            self.on_created(config)
        log.info("group created on demand", group=group)
        return config

    def update(
        self, config: SubscriptionGroupConfig, attribute_changes: Mapping[str, str] | None = None
    ) -> bool:
        """Create or change a group; return whether anything changed.

        With `attribute_changes` (keys begin with + or -) they are applied to the attributes it has; without,
        those of `config` are taken. Raises `Rejected` for names and values that cannot be, and at the limit.
        """
        planned = self.plan_update(config, attribute_changes)
        return planned is not None and self.put(planned)

    def plan_update(
        self, config: SubscriptionGroupConfig, attribute_changes: Mapping[str, str] | None = None
    ) -> SubscriptionGroupConfig | None:
        """What `update` would put into the table; `None` if that is there already."""
        problem = names.check_group(config.group_name)
        if problem is None and not 0 <= config.retry_queue_nums <= RETRY_QUEUES_MAX:
            problem = f"retryQueueNums={config.retry_queue_nums}: must be from 0 to {RETRY_QUEUES_MAX}"
        if problem is not None:
            raise Rejected(ResponseCode.INVALID_PARAMETER, problem)
        current = self.items.get(config.group_name)
        if attribute_changes is not None:
            before = current.attributes if current is not None else {}
            after = alter(GROUP_ATTRIBUTES, before, attribute_changes, create=current is None)
            config = replace(config, attributes=after)
        if config == current:
            return None
        if current is None and len(self.items) >= self.groups_max:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, f"this broker has {self.groups_max} groups, which is its limit"
            )
        return config

    def put(self, config: SubscriptionGroupConfig) -> bool:
        """Put a group that was decided on into the table; whether that changed anything."""
        current = self.items.get(config.group_name)
        if config == current:
            return False
        self.items[config.group_name] = config
        self._changed()
        log.info("group changed" if current else "group created", group=config.group_name, config=config)
        return True

    def delete(self, group: str) -> bool:
        """Take a group out of the table; return whether it was there."""
        if self._forbidden.pop(group, None):
            self._file.touch()
        if self.items.pop(group, None) is None:
            return False
        self._changed()
        log.info("group deleted", group=group)
        return True

    def forbid_reading(self, group: str, topic: str, forbidden: bool) -> None:
        """Keep the group from reading the topic, or let it again."""
        self.put_forbidden(group, self.plan_forbidden(group, topic, forbidden))

    def plan_forbidden(self, group: str, topic: str, forbidden: bool) -> dict[str, int]:
        """The group's masks by topic, as `forbid_reading` would leave them."""
        masks = dict(self._forbidden.get(group, {}))
        before = masks.get(topic, 0)
        after = before | READ_FORBIDDEN_BIT if forbidden else before & ~READ_FORBIDDEN_BIT
        if after:
            masks[topic] = after
        else:
            masks.pop(topic, None)
        return masks

    def forbidden_of(self, group: str) -> Mapping[str, int]:
        """The group's masks by topic."""
        return self._forbidden.get(group, {})

    def put_forbidden(self, group: str, masks: Mapping[str, int]) -> None:
        """Set all masks of a group."""
        if masks == self._forbidden.get(group, {}):
            return
        self._forbidden.pop(group, None)
        if masks:
            self._forbidden[group] = dict(masks)
        self._changed()

    def forbidden_groups(self) -> list[str]:
        """Groups that have masks."""
        return list(self._forbidden)

    def take_over(
        self,
        groups: Mapping[str, SubscriptionGroupConfig],
        forbidden: Mapping[str, Mapping[str, int]],
    ) -> bool:
        """Have these groups and those of the system; touches only what differs. Whether any did."""
        wanted = {name: self.items[name] for name in sorted(names.SYSTEM_GROUPS) if name in self.items}
        wanted.update(groups)
        masks = {group: dict(topics) for group, topics in forbidden.items() if topics}
        if wanted == self.items and masks == self._forbidden:
            return False
        self.items = wanted
        self._forbidden = masks
        self._changed()
        log.info("groups taken over", groups=len(groups))
        return True

    def _changed(self) -> None:
        self._version = self._version.next(self._clock.now_ms(), self.state_version)
        self._file.touch()
