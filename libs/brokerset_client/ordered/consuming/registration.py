"""One subject that a group of this process consumes: what all its partitions share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from brokerset_client.ordered.consuming.consume_rules import RULES, ConsumeRules
from brokerset_client.ordered.consuming.handling import HandlerCaller, HandlingContext
from brokerset_client.ordered.consuming.ordered_message import OrderedMessage
from brokerset_client.ordered.consuming.permission import NO_PERMISSION, Permission
from brokerset_client.ordered.consuming.settings import OrderedConsumerSettings, SubscriptionOptions
from brokerset_client.ordered.consuming.slots import HandlerSlots
from brokerset_client.ordered.transport import OrderedTransport
from brokerset_protocol.bodies.heartbeat import SubscriptionData
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_runtime.clock import Clock


@dataclass(slots=True)
class Counters:
    """What happened to messages since the start; all only grow."""

    handled: int = 0
    failed: int = 0
    """Attempts that failed; a message may have several."""

    sent_back: int = 0
    dead: int = 0
    skipped: int = 0
    too_late: int = 0
    """Attempts that ended without the permission: their results did not count."""

    acks: int = 0
    """Acknowledgements that were confirmed; each is a range."""

    fenced: int = 0
    """Partitions whose broker said that a newer owner is known."""

    resynced: int = 0
    """Times that the position was none of the broker's: the log had lost its end, or was reset. Of a Shared
    group it is so after each change of the master, too."""

    expired: int = 0
    """Queue offsets that retention had taken before they were consumed."""


@dataclass(slots=True, kw_only=True)
class Registration:
    """A subject, a group, and the session that consumes; partitions read it, the register writes it."""

    subject: str
    group: str
    session: str
    transport: OrderedTransport
    clock: Clock
    random: Random
    settings: OrderedConsumerSettings
    options: SubscriptionOptions
    filter: SubscriptionData
    caller: HandlerCaller
    slots: HandlerSlots
    heartbeat_soon: Callable[[], None]
    permission: Permission = NO_PERMISSION
    paused: bool = False
    strategy: OrderStrategy = OrderStrategy.STRICT
    """The subject's, from the first assignment on."""

    counters: Counters = field(default_factory=Counters)
    contexts: dict[HandlingContext, OrderedMessage] = field(default_factory=dict)
    """Handlers that run."""

    running: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there are some."""

    @property
    def rules(self) -> ConsumeRules:
        """What differs between Exclusive and Shared groups."""
        return RULES[self.options.consume_strategy]

    @property
    def sends_back(self) -> bool:
        """Whether messages that have failed go to the group's retry topic, which it consumes, too."""
        return self.rules.shared or self.strategy is OrderStrategy.BEST_TRIED

    def may_begin(self) -> bool:
        """Whether something new may start now."""
        return self.permission.may_begin(self.clock.monotonic())

    def may_go_on(self) -> bool:
        """Whether what runs counts now."""
        return self.permission.may_go_on(self.clock.monotonic())

    def begin(self, message: OrderedMessage, context: HandlingContext) -> None:
        """A handler starts in the running task."""
        self.contexts[context] = message
        self.running.set()

    def end(self, context: HandlingContext) -> None:
        """It has ended."""
        del self.contexts[context]
        if not self.contexts:
            self.running.clear()

    def trouble_seconds(self, failures: int) -> float:
        """How long to wait after so many requests in a row that failed."""
        backoff = self.settings.trouble
        return backoff.delay_ms(failures) / 1000 * (0.5 + self.random.random() / 2)

    async def watch_deadlines(self) -> None:
        """Cancel handlers whose deadline has passed; until this is cancelled itself."""
        while True:
            await self.running.wait()
            for context in list(self.contexts):
                if not context.cancelled and context.remaining() <= 0:
                    context.cancel()
            await asyncio.sleep(self.settings.deadline_check_seconds)
