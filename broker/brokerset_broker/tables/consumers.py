"""Table of connected consumers: groups, members, subscriptions, and who must be told about a change.

Source: `ConsumerManager`, `ConsumerGroupInfo`, `DefaultConsumerIdsChangeListener`. The table decides; the
caller sends NOTIFY_CONSUMER_IDS_CHANGED to the channels that it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from brokerset_broker.tables.channels import Channel, Client
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_protocol.subscriptions import filter_codes, parse
from brokerset_runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group wants of one topic, ready for pulls."""

    data: SubscriptionData

    codes: frozenset[int] | None
    """Hash codes of the tags that it wants; `None` for all."""

    @property
    def version(self) -> int:
        """The client's `subVersion`: a pull that names a newer one must wait for the next heartbeat."""
        return self.data.sub_version


@dataclass(frozen=True, slots=True)
class Change:
    """What a heartbeat, a leave or a lost channel did to one group."""

    group: str

    changed: bool
    """Members or subscribed topics are not what they were."""

    notify: tuple[Channel, ...] = ()
    """Members that should rebalance now, if the group's configuration wants it; none when broadcasting."""

    ended: bool = False
    """Nobody is left; the group is no longer in the table."""


class ConsumerGroup:
    """A group with at least one connected member."""

    __slots__ = (
        "consume_from_where",
        "consume_type",
        "fingerprint",
        "members",
        "message_model",
        "name",
        "subscriptions",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type = ConsumeType.CONSUME_PASSIVELY
        self.message_model = MessageModel.CLUSTERING
        self.consume_from_where = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        self.members: dict[Channel, Client] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.fingerprint: int | None = None

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member gets every message."""
        return self.message_model is MessageModel.BROADCASTING

    def client_ids(self) -> list[str]:
        """Ids of the members, each once, in the order in which they came."""
        return list(dict.fromkeys(client.client_id for client in self.members.values()))

    def to_notify(self) -> tuple[Channel, ...]:
        """The channels to tell about a change."""
        return () if self.is_broadcasting else tuple(self.members)


def make_subscription(data: SubscriptionData) -> Subscription:
    """The subscription as pulls use it; hash codes that a client left out are made from its expression.

    Raises `Rejected` if that expression cannot be read.
    """
    codes = filter_codes(data)
    if codes is not None and not codes:
        codes = filter_codes(parse(data.topic, data.sub_string))
    return Subscription(data, codes)


class ConsumerTable:
    """All connected consumers of a broker."""

    groups_max = 50_000
    """Groups with connected members; a heartbeat of one more is refused."""

    members_max = 10_000
    """Members of one group; one more is refused."""

    popped_max = 100_000
    """Subscriptions that pops have brought; beyond that the oldest one is forgotten."""

    subscriptions_max = 2_000
    """Topics that one group subscribes to; a heartbeat with more is refused."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[Channel, dict[str, None]] = {}
        self._popped: dict[tuple[str, str], SubscriptionData] = {}

    # -- changes ------------------------------------------------------------------------------------------

    def register(
        self,
        group: str,
        channel: Channel,
        client_id: str,
        *,
        language: int,
        version: int,
        consume_type: ConsumeType,
        message_model: MessageModel,
        consume_from_where: ConsumeFromWhere,
        subscriptions: Iterable[SubscriptionData] | None,
    ) -> Change:
        """Note a heartbeat. `subscriptions` is everything that the group wants now; `None` leaves them.

        A topic's subscription is replaced only by one with a higher version. Raises `Rejected` at a limit and
        for an expression that cannot be read; then nothing has changed.
        """
        wanted = (
            None if subscriptions is None else {data.topic: make_subscription(data) for data in subscriptions}
        )
        entry = self._entry(group, channel, wanted)
        entry.consume_type = consume_type
        entry.message_model = message_model
        entry.consume_from_where = consume_from_where
        now = self._clock.monotonic()
        client = entry.members.get(channel)
        joined = client is None
        if client is None or client.client_id != client_id:
            entry.members[channel] = Client(channel, client_id, language, version, now)
            self._groups_of.setdefault(channel, {})[group] = None
        else:
            client.last_seen = now
        changed = joined
        if wanted is not None:
            changed = self._subscribe(entry, wanted) or joined
        return Change(group, changed, entry.to_notify() if changed else ())

    def unregister(self, group: str, channel: Channel) -> Change:
        """Take one member out of a group; also called for members that are gone."""
        entry = self._groups.get(group)
        if entry is None or entry.members.pop(channel, None) is None:
            return Change(group, False)
        groups = self._groups_of[channel]
        del groups[group]
        if not groups:
            del self._groups_of[channel]
        if not entry.members:
            del self._groups[group]
            return Change(group, True, ended=True)
        return Change(group, True, entry.to_notify())

    def popped(self, group: str, topic: str, wanted: SubscriptionData) -> bool:
        """Note what a group of the type CONSUME_POP wants; return whether that was known. It may send no
        heartbeats, as a group behind a proxy."""
        key = group, topic
        if self._popped.get(key) is wanted:
            return True
        known = self._popped.pop(key, None) == wanted
        if len(self._popped) >= self.popped_max:
            del self._popped[next(iter(self._popped))]
        self._popped[key] = wanted
        return known

    def closed(self, channel: Channel) -> list[Change]:
        """Take a closed channel out of all its groups."""
        return [self.unregister(group, channel) for group in list(self._groups_of.get(channel, ()))]

    def expire(self, idle_seconds_max: float) -> list[Change]:
        """Take out members without a heartbeat for so long: the connection may live, the client does not."""
        oldest = self._clock.monotonic() - idle_seconds_max
        gone = [
            (entry.name, client.channel)
            for entry in self._groups.values()
            for client in entry.members.values()
            if client.last_seen < oldest
        ]
        return [self.unregister(group, channel) for group, channel in gone]

    # -- questions ----------------------------------------------------------------------------------------

    def group(self, name: str) -> ConsumerGroup | None:
        """The group, if any member is connected."""
        return self._groups.get(name)

    def groups(self) -> Iterator[ConsumerGroup]:
        """All groups with connected members."""
        return iter(self._groups.values())

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """What the connected group wants of the topic, if it has subscribed."""
        entry = self._groups.get(group)
        return entry.subscriptions.get(topic) if entry is not None else None

    def popped_subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """What the group's last pop of the topic wanted."""
        return self._popped.get((group, topic))

    def subscription_count(self, group: str) -> int:
        """How many topics the connected group wants."""
        entry = self._groups.get(group)
        return len(entry.subscriptions) if entry is not None else 0

    def groups_of_topic(self, topic: str) -> list[str]:
        """Connected groups that subscribe to the topic."""
        return [entry.name for entry in self._groups.values() if topic in entry.subscriptions]

    def find(self, group: str, client_id: str) -> Client | None:
        """One member by its client id."""
        entry = self._groups.get(group)
        if entry is None:
            return None
        return next((client for client in entry.members.values() if client.client_id == client_id), None)

    # -- inside -------------------------------------------------------------------------------------------

    def _entry(self, group: str, channel: Channel, wanted: dict[str, Subscription] | None) -> ConsumerGroup:
        """The group's entry, made if it is new, after the limits were checked."""
        if wanted is not None and len(wanted) > self.subscriptions_max:
            raise Rejected(
                ResponseCode.SYSTEM_ERROR,
                f"the consumer group[{group}] subscribes to {len(wanted)} topics,"
                f" at most {self.subscriptions_max}",
            )
        entry = self._groups.get(group)
        if entry is None:
            if len(self._groups) >= self.groups_max:
                raise Rejected(
                    ResponseCode.SYSTEM_BUSY, f"{self.groups_max} consumer groups are connected already"
                )
            entry = self._groups[group] = ConsumerGroup(group)
        elif channel not in entry.members and len(entry.members) >= self.members_max:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"the consumer group[{group}] has {self.members_max} members already",
            )
        return entry

    @staticmethod
    def _subscribe(entry: ConsumerGroup, wanted: dict[str, Subscription]) -> bool:
        """Bring the subscriptions up to date; return whether topics came or went, not mere expressions."""
        changed = False
        for topic, subscription in wanted.items():
            old = entry.subscriptions.get(topic)
            if old is None or subscription.version > old.version:
                entry.subscriptions[topic] = subscription
            changed = changed or old is None
        for topic in [topic for topic in entry.subscriptions if topic not in wanted]:
            del entry.subscriptions[topic]
            changed = True
        return changed
