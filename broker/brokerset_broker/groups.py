"""Consumer groups of this broker: their settings, their file, and which topics they may not read.

Source: `SubscriptionGroupManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import structlog

from brokerset_broker.attributes import GROUP_ATTRIBUTES, alter
from brokerset_broker.config_files import ConfigFile
from brokerset_broker.settings_update import LiveSettings
from brokerset_formats import names
from brokerset_formats.config import DataVersion, GroupTable, SubscriptionGroupConfig
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

READ_FORBIDDEN_BIT = 1 << 2
"""Bit of a forbidden mask: the group may not read the topic (`PermName.INDEX_PERM_READ`)."""

RETRY_QUEUES_MAX = 1_024
"""Queues of a retry topic; a configuration with more is refused."""

SAVE_PAUSE_SECONDS = 1.0
"""Shortest time between two writes of changes that nobody waits for."""


class GroupManager:
    """The consumer groups of a broker."""

    groups_max = 100_000
    """Groups of one broker; one more is refused."""

    def __init__(self, settings: LiveSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self._forbidden: dict[str, dict[str, int]] = {}
        self._version = DataVersion(0, 0, clock.now_ms())
        self.state_version = 0
        """Epoch of the master, in controller mode; it goes into the data version."""
        self.frozen = False
        """Whether groups come into being by the log alone, because this broker follows a master."""
        self.on_created: Callable[[SubscriptionGroupConfig], None] | None = None
        """Told of each group that came into being by itself."""
        self.going: dict[str, int] = {}
        """Groups whose deletion is in the log but not confirmed: they do not come into being meanwhile."""
        path = settings.current.store_path_root_dir / "config" / "subscriptionGroup.json"
        self._file = ConfigFile(path, lambda: self.table().encode)

    # -- file ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file and add what every broker has. Raises `ConfigDamaged`."""
        saved = self._file.load(GroupTable.decode)
        if saved is not None:
            self._groups = dict(saved.groups)
            self._forbidden = {group: dict(masks) for group, masks in saved.forbidden.items()}
            self._version = saved.data_version
        for group in sorted(names.SYSTEM_GROUPS):
            self._groups.setdefault(group, SubscriptionGroupConfig(group))
        log.info("loaded groups", groups=len(self._groups), counter=self._version.counter)

    def persist(self) -> None:
        """Write the file now, in this thread."""
        self._file.persist()

    async def saved(self) -> None:
        """Return when every change so far is on the disk."""
        await self._file.saved()

    async def run(self) -> None:
        """Write changes down, for as long as this task runs."""
        await self._file.run(SAVE_PAUSE_SECONDS)

    # -- questions ----------------------------------------------------------------------------------------

    @property
    def data_version(self) -> DataVersion:
        """Grows with every change; slaves compare it."""
        return self._version

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's settings, `None` if this broker does not know it."""
        return self._groups.get(group)

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[SubscriptionGroupConfig]:
        return iter(self._groups.values())

    def table(self) -> GroupTable:
        """Everything, as it is now: later changes do not show in it."""
        forbidden = {group: dict(masks) for group, masks in self._forbidden.items()}
        return GroupTable(self._version, dict(self._groups), forbidden)

    def is_read_forbidden(self, group: str, topic: str) -> bool:
        """Whether an administrator keeps the group from reading the topic."""
        if not self._forbidden:
            return False
        return self._forbidden.get(group, {}).get(topic, 0) & READ_FORBIDDEN_BIT != 0

    # -- changes ------------------------------------------------------------------------------------------

    def get_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's settings; an unknown group is created if it may be, else `None`."""
        config = self._groups.get(group)
        if config is not None:
            return config
        allowed = self._settings.current.auto_create_subscription_group or names.is_system_group(group)
        if not allowed or names.check_group(group) is not None:
            return None
        if len(self._groups) >= self.groups_max:
            log.warning("group not created: too many", group=group, groups_max=self.groups_max)
            return None
        config = SubscriptionGroupConfig(group)
        if self.frozen or group in self.going:
            return config
        self._groups[group] = config
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
        current = self._groups.get(config.group_name)
        if attribute_changes is not None:
            before = current.attributes if current is not None else {}
            after = alter(GROUP_ATTRIBUTES, before, attribute_changes, create=current is None)
            config = replace(config, attributes=after)
        if config == current:
            return None
        if current is None and len(self._groups) >= self.groups_max:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR, f"this broker has {self.groups_max} groups, which is its limit"
            )
        return config

    def put(self, config: SubscriptionGroupConfig) -> bool:
        """Put a group that was decided on into the table; whether that changed anything."""
        current = self._groups.get(config.group_name)
        if config == current:
            return False
        self._groups[config.group_name] = config
        self._changed()
        log.info("group changed" if current else "group created", group=config.group_name, config=config)
        return True

    def delete(self, group: str) -> bool:
        """Take a group out of the table; return whether it was there."""
        if self._forbidden.pop(group, None):
            self._file.touch()
        if self._groups.pop(group, None) is None:
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
        wanted = {name: self._groups[name] for name in sorted(names.SYSTEM_GROUPS) if name in self._groups}
        wanted.update(groups)
        masks = {group: dict(topics) for group, topics in forbidden.items() if topics}
        if wanted == self._groups and masks == self._forbidden:
            return False
        self._groups = wanted
        self._forbidden = masks
        self._changed()
        log.info("groups taken over", groups=len(groups))
        return True

    def _changed(self) -> None:
        self._version = self._version.next(self._clock.now_ms(), self.state_version)
        self._file.touch()
