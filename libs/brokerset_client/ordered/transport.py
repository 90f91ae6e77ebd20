"""How producers and consumers of ordered subjects reach controllers and brokers; a simulation has its own."""

from __future__ import annotations

from typing import Protocol

from brokerset_protocol.commands import Command


class OrderedTransport(Protocol):
    """Requests to whoever leads: the controllers, or a broker group."""

    async def ask_controllers(self, command: Command, timeout: float) -> Command:
        """The answer of the controller that leads, whatever its code.

        Raises `ClientError` if there is none in `timeout` seconds: whether it was carried out is unknown.
        """

    async def ask_master(self, topic: str, broker_group: str, command: Command, timeout: float) -> Command:
        """The answer of the master of a broker group that has the topic, whatever its code.

        A master that was replaced is found again by the route; then codes of brokers that do not serve are
        answers as well. Raises `ClientError` as above.
        """

    def route_is_stale(self, topic: str) -> None:
        """An answer says that another broker is master: read the route again before the next request."""
