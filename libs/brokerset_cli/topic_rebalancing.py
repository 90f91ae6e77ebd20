"""`brokerset topic rebalance`: makes topics on the broker groups that lack them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from brokerset_cli.output import CommandFailed
from brokerset_client.admin import Admin
from brokerset_client.errors import TopicNotFound
from brokerset_formats import names
from brokerset_formats.config import Permission, TopicConfig
from brokerset_protocol.bodies.routes import ClusterInfo

MESSAGE_TYPE: Final = "message.type"
ORDERED_TYPE: Final = "FIFO"
"""Message type of topics whose messages are ordered within a queue, ordered subjects among them."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One topic: where it is, and where it is to be as well."""

    topic: str
    before: Mapping[str, int]
    """Write queues by broker group."""

    missing: tuple[str, ...]
    """Groups on which it is to be made; empty when it stays as it is."""

    config: TopicConfig
    """What it is to be there."""

    refusal: str = ""
    """Why it stays as it is though groups lack it."""

    @property
    def after(self) -> dict[str, int]:
        """Write queues by group when it was made on the missing ones."""
        new = dict.fromkeys(self.missing, self.config.write_queue_nums)
        return dict(sorted({**self.before, **new}.items()))


def decide_rebalance(
    found: Mapping[str, TopicConfig], clusters: Iterable[Collection[str]], writable: Collection[str]
) -> Rebalance:
    """Decide for one topic, which the groups in `found` have.

    It gets the settings of the group with most write queues, on all groups of `writable` that lack it and are
    in a cluster with one that has it. Groups that have it stay as they are, even with fewer queues:
    somebody may have closed some.
    """
    config = max(found.values(), key=lambda each: each.write_queue_nums)
    near = {group for cluster in clusters if not found.keys().isdisjoint(cluster) for group in cluster}
    missing = tuple(sorted(near & set(writable) - found.keys()))
    before = {group: each.write_queue_nums for group, each in sorted(found.items())}
    refusal = _ordered(found.values()) if missing else ""
    return Rebalance(config.topic_name, before, () if refusal else missing, config, refusal)


def _ordered(configs: Iterable[TopicConfig]) -> str:
    """Why more queues would put messages of a topic out of order; empty when it promises no order."""
    for config in configs:
        if config.attributes.get(MESSAGE_TYPE) == ORDERED_TYPE:
            return "ordered within queues (FIFO): an ordered subject gets more by `brokerset subject scale`"
        if config.order:
            return "ordered within queues (order=true): its keys would go to other queues"
    return ""


def is_made_by_clients(topic: str, own_topics: Collection[str]) -> bool:
    """Whether a topic is one of those that clients make; brokers make the others where they need them."""
    return not (
        names.is_system_topic(topic, own_topics) or names.is_retry_topic(topic) or names.is_dlq_topic(topic)
    )


def as_new(config: TopicConfig) -> TopicConfig:
    """The topic as a request that makes it says it: each attribute is added."""
    return replace(config, attributes={f"+{name}": value for name, value in config.attributes.items()})


def own_topics(info: ClusterInfo) -> set[str]:
    """Topics that are named after clusters and broker groups."""
    replies = {names.reply_topic(cluster) for cluster in info.cluster_addr_table}
    return {*info.broker_addr_table, *info.cluster_addr_table, *replies}


async def rebalance_topics(
    admin: Admin,
    topics: Collection[str],
    at_cluster: str | None,
    confirm: Callable[[int], None] | None,
) -> list[Rebalance]:
    """Rebalance these topics, or all; returns what was decided for each.

    `confirm` is called with the number of topics that change before the first does, and may end the command;
    None changes nothing. Ends the command when a topic that is named cannot be rebalanced.
    """
    info = await admin.cluster_info()
    masters = await admin.masters(at_cluster)
    configs = {group: await admin.topic_configs(address) for group, address in masters.items()}
    writable = [group for group, address in masters.items() if await _takes_topics(admin, address)]
    own = own_topics(info)
    every = {topic for table in configs.values() for topic in table if is_made_by_clients(topic, own)}
    for topic in topics:
        if topic not in every:
            raise TopicNotFound(topic)
    decided = [
        decide_rebalance(
            {group: table[topic] for group, table in configs.items() if topic in table},
            info.cluster_addr_table.values(),
            writable,
        )
        for topic in sorted(topics or every)
    ]
    refused = [each for each in decided if each.refusal]
    if topics and refused:
        raise CommandFailed(
            "; ".join(f"{each.topic} is {each.refusal}" for each in refused),
            "nothing was changed; leave it out. When its consumers have read all of it, it can be made again",
        )
    changed = [each for each in decided if each.missing]
    if confirm is None or not changed:
        return decided
    confirm(len(changed))
    for each in changed:
        await _spread(admin, each, masters)
    return decided


async def _takes_topics(admin: Admin, address: str) -> bool:
    """Whether a broker may be written to: one that is to leave its set may not."""
    config = await admin.broker_config(address)
    return bool(int(config.get("brokerPermission", Permission.WRITE)) & Permission.WRITE)


async def _spread(admin: Admin, each: Rebalance, masters: Mapping[str, str]) -> None:
    """Make a topic on the groups that lack it; its consumer groups first, whose members may come at once."""
    consumers = [name for name in await admin.groups_of_topic(each.topic) if not names.is_system_group(name)]
    known = {
        name: masters[group] for group in each.before for name in await admin.groups(address=masters[group])
    }
    for group in each.missing:
        there = set(await admin.groups(address=masters[group]))
        for name in consumers:
            if name in known and name not in there:
                await admin.create_group(await admin.group_config(name, known[name]), address=masters[group])
        await admin.create_topic(as_new(each.config), address=masters[group])
    await admin.wait_for_route(each.topic, write_queues=sum(each.after.values()))
