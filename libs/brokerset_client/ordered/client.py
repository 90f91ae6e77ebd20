"""`OrderedClient`: producers and consumers of ordered subjects over one set of connections.

async with OrderedClient("127.0.0.1:9876") as client:
    async with client.producer() as producer:
        await producer.send(Message(topic="orders", body=b"created"), key="order-17")

    consumer = client.consumer(group="billing")
    consumer.subscribe("orders", on_order)
    async with consumer: ...
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import SystemRandom
from typing import Final
from weakref import WeakKeyDictionary

from brokerset_client.errors import ClientClosed
from brokerset_client.instance import ClientInstance
from brokerset_client.instance_user import InstanceUser
from brokerset_client.ordered.consuming import OrderedConsumer, OrderedConsumerSettings, PullRegister
from brokerset_client.ordered.consuming.measurements import SubscriptionMeasurements
from brokerset_client.ordered.instance_transport import InstanceTransport
from brokerset_client.ordered.producing.measurements import ProducerMeasurements
from brokerset_client.ordered.producing.producer import EpochGuard, OrderedProducer
from brokerset_client.ordered.producing.settings import ProducerSettings
from brokerset_protocol.errors import LocalProtocolError

USERS_MAX: Final = 1_000
"""Producers and consumers of one client; a further one is an error of the application."""


@dataclass(frozen=True, slots=True)
class ClientMeasurements:
    """What producers and consumers of one client measure now."""

    subscriptions: tuple[SubscriptionMeasurements, ...]
    producers: tuple[ProducerMeasurements, ...]


class OrderedClient(InstanceUser):
    """Makes producers and consumers, and closes those that are still open when it is closed.

    `namesrv` is `host:port`, several joined by `;`; or give an `instance` to share. `controllers` likewise;
    without it the name servers are asked, which those in brokerset's controllers can answer. Use it with
    `async with`, or await `start` and `close`. Not safe for several event loops.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        controllers: str | Sequence[str] | None = None,
        client_id: str | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        """`client_id` is what administrators see; by default one is made of address, process and time."""
        super().__init__(namesrv, instance)
        if client_id is not None and instance is None:
            self.instance.client_id = client_id
        self.transport = InstanceTransport(self.instance, controllers)
        """How requests reach those who answer them; for own requests of the application, too."""
        self._register: PullRegister | None = None
        self._users: WeakKeyDictionary[OrderedProducer | OrderedConsumer, None] = WeakKeyDictionary()
        """Those that nobody uses any more are forgotten."""
        self._running: set[OrderedConsumer] = set()
        """Those that consume, and are not forgotten although nobody may refer to them."""
        self._closed = False

    def producer(
        self,
        *,
        producer_id: str | None = None,
        settings: ProducerSettings | None = None,
        may_use_epoch: EpochGuard | None = None,
    ) -> OrderedProducer:
        """A producer, which is to be started, best by `async with`.

        Give a `producer_id` that is the same after a restart to have the process before fenced. An outbox
        gives `may_use_epoch`. Raises `ClientClosed`, and `ValueError` for an id or settings that cannot be.
        """
        self._check_room()
        made = OrderedProducer(
            self.transport,
            clock=self.instance.clock,
            producer_id=producer_id,
            client_id=self.instance.client_id,
            settings=settings,
            random=SystemRandom(),
            may_use_epoch=may_use_epoch,
        )
        self._users[made] = None
        return made

    def consumer(self, *, group: str, settings: OrderedConsumerSettings | None = None) -> OrderedConsumer:
        """A member of a group, which is to be started, best by `async with`.

        Those without `settings` of their own share a register, so that a subject is not consumed twice for
        one group. Raises like `producer`.
        """
        self._check_room()
        clock = self.instance.clock
        if settings is None and self._register is None:
            self._register = PullRegister(
                self.transport,
                client_id=self.instance.client_id,
                clock=clock,
                settings=OrderedConsumerSettings(),
                random=SystemRandom(),
            )
        made = OrderedConsumer(
            self.transport,
            group=group,
            client_id=self.instance.client_id,
            clock=clock,
            settings=settings,
            random=SystemRandom(),
            register=self._register if settings is None else None,
            running=self._running,
        )
        self._users[made] = None
        return made

    def measurements(self) -> ClientMeasurements:
        """Snapshots of all that runs; `brokerset_client.ordered.metrics` exports them to Prometheus."""
        users = list(self._users)
        return ClientMeasurements(
            tuple(
                each for user in users if isinstance(user, OrderedConsumer) for each in user.measurements()
            ),
            tuple(
                each for user in users if isinstance(user, OrderedProducer) for each in user.measurements()
            ),
        )

    async def close(self, timeout: float | None = None) -> None:
        """Close what was made, all at once and gracefully, then the connections if they are its own.

        `timeout`: how many seconds producers and consumers may take, before what they still do is given up;
        without it 5 and 30. Whatever happens the connections are closed; then the first error of the others
        is raised.
        """
        self._closed = True
        bounds = {} if timeout is None else {"timeout": timeout}
        try:
            ends = await asyncio.gather(
                *(user.close(**bounds) for user in list(self._users)), return_exceptions=True
            )
        finally:
            self._users.clear()
            await super().close()
        for error in ends:
            if isinstance(error, BaseException):
                raise error

    def _check_room(self) -> None:
        if self._closed:
            raise ClientClosed("this client was closed: make a new one")
        self.instance.check_running()
        if len(self._users) >= USERS_MAX:
            raise LocalProtocolError(f"this client has made {len(self._users)} producers and consumers")
