"""What sends need to know of a topic, kept ready."""

from __future__ import annotations

from brokerset_broker.requests.statistics import Flow
from brokerset_broker.requests.traffic import TopicTraffic
from brokerset_formats.config import TopicConfig
from brokerset_formats.names import is_retry_topic


class TopicFacts:
    """What sends need to know of a topic, as long as its configuration is the same object."""

    __slots__ = (
        "asides",
        "config",
        "flow",
        "is_ordered",
        "is_retry",
        "is_special",
        "name_size",
        "queues",
        "traffic",
        "write_queues",
    )

    def __init__(self, config: TopicConfig, flow: Flow, traffic: TopicTraffic) -> None:
        self.config = config
        self.queues = max(config.read_queue_nums, config.write_queue_nums)
        self.write_queues = config.write_queue_nums
        self.is_ordered = False
        """Whether it is an ordered subject: then stamps decide what is stored."""

        self.is_retry = is_retry_topic(config.topic_name)
        self.is_special = self.is_retry
        """Whether each message is examined before it is stored: retries, and where types are checked."""

        self.name_size = len(config.topic_name)
        self.flow = flow
        self.traffic = traffic
        self.asides: dict[int, TopicTraffic] = {}
        """The counters of its messages that are put aside, by `AsideKind`."""
