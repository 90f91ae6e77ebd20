"""Closes an old master for sends, and gives a broker back what it allowed."""

from __future__ import annotations

import time
from typing import Final

from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover.broker_queries import Asker, clock_ms
from brokerset_cli.takeover.java_switchover import ACCEPTS, PERMISSION
from brokerset_client.errors import ClientError

CLOSED_MS: Final = 3_600_000
"""How long an old master turns sends away if nobody stops it; after that it is told again."""


async def set_permission(address: str, value: int, *, closes: bool) -> None:
    """Set `brokerPermission`, and turn every send away for a while or not at all.

    One does not follow from the other: a master without the right to write takes most sends.
    """
    changes = {PERMISSION: str(value)}
    async with Asker() as asker:
        try:
            if ACCEPTS in await asker.settings(address):
                now_ms = clock_ms(await asker.figures(address)) or time.time_ns() // 1_000_000
                changes[ACCEPTS] = str(now_ms + CLOSED_MS) if closes else "0"
            await asker.change(address, changes)
        except ClientError as error:
            raise CommandFailed(
                f"{address} did not take brokerPermission={value}: {error}",
                "see its log, or set it with mqadmin updateBrokerConfig, then repeat this",
            ) from None
