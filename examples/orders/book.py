"""The order book: writes each step down once and in order, and refuses owners of yesterday."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sqlite3
from pathlib import Path

from brokerset_client.ordered import HandlingContext, OrderedClient, OrderedMessage
from brokerset_client.ordered.outbox.adding import OUTBOX_ID
from brokerset_runtime.logs import configure_logs

SUBJECT, GROUP = "orders", "book"
TABLES = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS book (
    name TEXT PRIMARY KEY, step TEXT NOT NULL, token INTEGER NOT NULL, outbox_id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS history (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL, step TEXT NOT NULL, process TEXT NOT NULL);
"""


class Fenced(Exception):
    """A newer owner has written already: this process was paused, and does not know it yet."""


class Book:
    """Written by all processes of the group."""

    def __init__(self, file: Path, process: str) -> None:
        self._database = sqlite3.connect(file, timeout=30, isolation_level=None)
        self._database.executescript(TABLES)
        self._process = process

    def write(self, order: str, step: str, *, token: int, outbox_id: str) -> None:
        """One step. A repetition of the last one changes nothing. Raises `Fenced`."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            row = self._database.execute(
                "SELECT token, outbox_id FROM book WHERE name = ?", (order,)
            ).fetchone()
            if row is not None and row[0] > token:
                raise Fenced(f"{order} was written with token {row[0]}, this process has {token}")
            if row is None or row[1] != outbox_id:
                self._database.execute(
                    "INSERT OR REPLACE INTO book VALUES (?, ?, ?, ?)", (order, step, token, outbox_id)
                )
                self._database.execute(
                    "INSERT INTO history (name, step, process) VALUES (?, ?, ?)", (order, step, self._process)
                )
            self._database.execute("COMMIT")
        except BaseException:
            self._database.execute("ROLLBACK")
            raise


async def main(namesrv: str, folder: Path, process: str) -> None:
    """Consume until SIGTERM."""
    book = Book(folder / "book.db", process)

    async def on_message(message: OrderedMessage, context: HandlingContext) -> None:
        said = json.loads(message.body)
        book.write(said["order"], said["step"], token=context.epoch, outbox_id=message.properties[OUTBOX_ID])
        await asyncio.sleep(0.002)  # an order book takes its time

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with OrderedClient(namesrv) as client:
        consumer = client.consumer(group=GROUP)
        consumer.subscribe(SUBJECT, on_message)
        async with consumer:
            await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("namesrv")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", default="book")
    options = parser.parse_args()
    configure_logs("error", json=False)
    asyncio.run(main(options.namesrv, options.folder, options.name))
