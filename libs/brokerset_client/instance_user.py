"""What producers, consumers and `Admin` have in common: an instance of their own, or one that is shared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from brokerset_client.instance import ClientInstance


class InstanceUser:
    """Uses a `ClientInstance`; starts and ends it if it is its own. An asynchronous context."""

    def __init__(self, namesrv: str | Sequence[str] | None, instance: ClientInstance | None) -> None:
        """Raises `ValueError` if neither is given."""
        if instance is None and namesrv is None:
            raise ValueError("give namesrv or instance")
        self._owns_instance = instance is None
        self.instance = instance or ClientInstance(namesrv or ())
        """The connections that are used, maybe by others, too."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Reach a name server. Raises `NameServerUnavailable`."""
        if self._owns_instance:
            try:
                await self.instance.start()
            except BaseException:
                await self.instance.close()
                raise

    async def close(self) -> None:
        """Close the instance if it is our own."""
        if self._owns_instance:
            await self.instance.close()
