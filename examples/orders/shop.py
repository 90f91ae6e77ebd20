"""A shop: each step of an order is a transaction in SQLite, and a message if it is committed."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from pathlib import Path

from sqlalchemy import Column, Engine, MetaData, String, Table, create_engine, func, insert, select, update

from brokerset_client import Message
from brokerset_client.ordered import OrderedClient
from brokerset_client.ordered.outbox.adding import Outbox
from brokerset_client.ordered.outbox.sending import OutboxSender
from brokerset_client.ordered.outbox.tables import OutboxTables
from brokerset_runtime.logs import configure_logs

SUBJECT = "orders"
STEPS = ("created", "paid", "packed", "shipped")
ROLLED_BACK_EVERY = 7
"""So many transactions change their mind before they commit."""

metadata = MetaData()
orders = Table("orders", metadata, Column("id", String, primary_key=True), Column("step", String))
outbox = Outbox(OutboxTables(metadata))


class ChangedMind(Exception):
    """The transaction is rolled back."""


def take_step(database: Engine, order: str, step: str, *, commit: bool = True) -> None:
    """One business transaction: the order's row changes, and a message says so. Both happen, or neither."""
    try:
        with database.begin() as connection:
            if step == STEPS[0]:
                connection.execute(insert(orders).values(id=order, step=step))
            else:
                connection.execute(update(orders).where(orders.c.id == order).values(step=step))
            body = json.dumps({"order": order, "step": step, "real": commit}).encode()
            outbox.add(connection, Message(topic=SUBJECT, body=body), key=order)
            if not commit:
                raise ChangedMind
    except ChangedMind:
        pass


def trade(database: Engine, count: int) -> None:
    """Take all orders through all steps; which order comes next is drawn."""
    source = random.Random(17)
    left = {f"order-{number}": list(STEPS) for number in range(count)}
    done = 0
    while left:
        order = source.choice(list(left))
        step = left[order].pop(0)
        if done % ROLLED_BACK_EVERY == 0:
            take_step(database, order, step, commit=False)
        take_step(database, order, step)
        done += 1
        if not left[order]:
            del left[order]


async def main(namesrv: str, folder: Path, count: int) -> None:
    """Trade, and send what was committed until the outbox is empty."""
    database = create_engine(f"sqlite:///{folder / 'shop.db'}", connect_args={"timeout": 30})
    metadata.create_all(database)
    async with OrderedClient(namesrv) as client:
        sender = OutboxSender(
            database,
            lambda name, guard: client.producer(producer_id=name, may_use_epoch=guard),
            owner="shop",
        )
        sending = asyncio.create_task(sender.run())
        await asyncio.to_thread(trade, database, count)
        while await asyncio.to_thread(waiting, database):  # noqa: ASYNC110  # a database sets no event
            await asyncio.sleep(0.1)
        sender.stop()
        await sending


def waiting(database: Engine) -> int:
    """Messages that are committed and not sent yet."""
    with database.connect() as connection:
        return int(connection.execute(select(func.count()).select_from(outbox.tables.messages)).scalar_one())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("namesrv")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--orders", type=int, default=100)
    options = parser.parse_args()
    configure_logs("error", json=False)
    asyncio.run(main(options.namesrv, options.folder, options.orders))
