"""Open transactions of a group of both makes, whose master is killed while it is Java's, and while it is ours.

Other than in `transaction_stores` the log, and how far the checks are, come to the next master by replication:
it knows what a slave of its make knows, and nothing that the killed process had in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from brokerset_formats.records import SysFlag
from brokerset_rig import replicated_group
from brokerset_rig.controllers import until
from brokerset_rig.local_servers import records
from brokerset_rig.replicated_group import Group, Member
from brokerset_rig.store_reading import read_commit_log
from brokerset_rig.transaction_client import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    Half,
    Question,
    TransactionClient,
    transaction_client,
)

Add = Callable[[str, list[str], float], None]

TOPIC: Final = "transactions-of-both"
SETTINGS: Final = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}
JAVA_SETTINGS: Final = {**SETTINGS, "transactionOpBatchInterval": "100"}
"""Op records are written before the next pass: else Java asks once more, and makes a copy that nothing ends."""

CHECK_SECONDS_MAX: Final = 60.0
DELIVERED_SECONDS_MAX: Final = 20.0
"""A new master confirms the log of the last one when its slaves have it."""

QUIET_SECONDS: Final = 6.0
"""So long nothing may come any more: several passes of checks."""


@dataclass
class History:
    """What the producer has begun, how each transaction is to end, and what was seen of it."""

    halves: dict[str, Half] = field(default_factory=dict)
    committed: set[str] = field(default_factory=set)
    rolled_back: set[str] = field(default_factory=set)
    may_be_asked: set[str] = field(default_factory=set)
    """Transactions that have ended, but whose op record was perhaps lost with a Java master."""

    @property
    def open(self) -> set[str]:
        return self.halves.keys() - self.committed - self.rolled_back


def run(add: Add) -> None:
    """Java's master begins and is killed, ours goes on and is killed, Java's ends what is left, ours reads."""
    with replicated_group.group("transaction-groups", 2) as found:
        java = found.add("Java", JAVA_SETTINGS)
        ours = found.add("ours", SETTINGS)
        history = History()
        found.wait_in_sync()
        replicated_group.ready_topic(found, TOPIC)
        topics = ours.server.folder / "broker-0" / "store" / "config" / "topics.json"
        until("ours has asked Java's for its topics", lambda: TOPIC in topics.read_text(), CHECK_SECONDS_MAX)
        _step(add, java, history, _begin)
        for dead, successor, work in ((java, ours, _go_on), (ours, java, _end)):
            began = time.monotonic()
            _, epoch = found.master()
            dead.server.kill()
            master, _ = found.wait_master_after(epoch)
            problems = [] if master is successor else [f"{master} leads"]
            add(
                f"{dead.make}'s master is killed, {successor.make}'s leads",
                problems,
                time.monotonic() - began,
            )
            _step(add, successor, history, work)
            dead.server.start()
            found.wait_in_sync()
        _back(add, found, ours, history)


def _step(
    add: Add,
    member: Member,
    history: History,
    work: Callable[[TransactionClient, History], Awaitable[tuple[str, list[str]]]],
) -> None:
    began = time.monotonic()

    async def with_client() -> tuple[str, list[str]]:
        async with transaction_client(member.port) as client:
            what, problems = await work(client, history)
            return what, problems + await _delivered(client, history)

    what, problems = asyncio.run(with_client())
    add(f"{member.make}: {what}", problems, time.monotonic() - began)


async def _delivered(client: TransactionClient, history: History) -> list[str]:
    """What consumers find, compared with what was committed."""
    wanted = sorted(history.committed)
    deadline = time.monotonic() + DELIVERED_SECONDS_MAX
    while True:
        found = sorted(record.body.decode() for record in records(await client.pull(TOPIC, 0)))
        if found == wanted:
            return []
        if time.monotonic() > deadline or not set(found) <= set(wanted):
            return [f"delivered are {found}, and committed were {wanted}"]
        await asyncio.sleep(0.2)


async def _end_as(
    client: TransactionClient, history: History, half: Half, kind: int, check: bool
) -> list[str]:
    if kind == UNKNOWN:
        client.end_one_way(half, kind, check=check)  # nobody answers that
        return []
    reply = await client.end(half, kind, check=check)
    (history.committed if kind == COMMIT else history.rolled_back).add(half.key)
    return [f"{half.key}: {reply.remark}"] if reply.code else []


async def _begin_halves(client: TransactionClient, history: History, keys: str) -> None:
    for key in keys:
        history.halves[key] = await client.send_half(TOPIC, key.encode(), key)


async def _asked(client: TransactionClient, history: History, problems: list[str]) -> Question:
    """The next check of a transaction that is open; what is asked about others."""
    while True:
        question = await asyncio.wait_for(client.asked(), CHECK_SECONDS_MAX)
        key = question.fields["msgId"]
        if key in history.open:
            return question
        if key not in history.may_be_asked:
            problems.append(f"{key} is asked about, though it has ended")
        kind = COMMIT if key in history.committed else ROLLBACK
        await client.end(question.half, kind, check=True)  # as a producer does that still knows


async def _begin(client: TransactionClient, history: History) -> tuple[str, list[str]]:
    await _begin_halves(client, history, "ABCDE")
    problems = await _end_as(client, history, history.halves["A"], COMMIT, False)
    problems += await _end_as(client, history, history.halves["B"], ROLLBACK, False)
    history.may_be_asked.add("B")  # Java's op record of it may not be written yet, and nothing else says so
    return "of five transactions one is committed, and one rolled back", problems


async def _go_on(client: TransactionClient, history: History) -> tuple[str, list[str]]:
    """C is committed after two checks, so that its older copies lie below the progress; D and E stay open."""
    problems: list[str] = []
    times: Counter[str] = Counter()
    while history.open != {"D", "E"} or min(times["D"], times["E"]) < 2:
        question = await _asked(client, history, problems)
        key = question.fields["msgId"]
        times[key] += 1
        kind = COMMIT if key == "C" and times[key] == 3 else UNKNOWN
        problems += await _end_as(client, history, question.half, kind, True)
    await _begin_halves(client, history, "FG")
    problems += await _end_as(client, history, history.halves["F"], COMMIT, False)
    history.may_be_asked.clear()  # ours has written all op records
    return f"asks about those that are open ({times.total()} checks), and has two more", problems


async def _end(client: TransactionClient, history: History) -> tuple[str, list[str]]:
    problems: list[str] = []
    while history.open:
        question = await _asked(client, history, problems)
        kind = ROLLBACK if question.fields["msgId"] == "E" else COMMIT
        problems += await _end_as(client, history, question.half, kind, True)
    return "asks about those that are left, and about no other", problems + await _quiet(client, history)


async def _read(client: TransactionClient, history: History) -> tuple[str, list[str]]:
    return "nobody is asked any more", await _quiet(client, history)


async def _quiet(client: TransactionClient, history: History) -> list[str]:
    """Nothing is asked for a while."""
    await asyncio.sleep(QUIET_SECONDS)
    asked = {client.questions.get_nowait().fields["msgId"] for _ in range(client.questions.qsize())}
    return [f"{sorted(asked)} are asked about, though all have ended"] if asked else []


def _back(add: Add, found: Group, ours: Member, history: History) -> None:
    """The master goes to ours while Java's lives; both logs are the same, with one final record for each."""
    found.elect(ours)
    began = time.monotonic()
    master, _ = found.master()
    add(
        "ours is elected while Java's lives",
        [] if master is ours else [f"{master} leads"],
        time.monotonic() - began,
    )
    _step(add, ours, history, _read)
    began = time.monotonic()
    problems, _ = found.compare()
    store = ours.server.folder / "broker-0" / "store"
    finals = Counter(
        record.body.decode()
        for record in (each.record for each in read_commit_log(store))
        if record.topic == TOPIC and record.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT
    )
    if finals != Counter(history.committed):
        problems.append(f"final records are {dict(finals)}, and committed were {sorted(history.committed)}")
    add("both logs are the same, with one final record of each commit", problems, time.monotonic() - began)


def main() -> None:
    """Run it alone."""

    def add(what: str, problems: list[str], seconds: float) -> None:
        print("ok  " if not problems else "FAIL", what, f"({seconds:.1f} s)", *problems, sep="\n    ")

    run(add)


if __name__ == "__main__":
    main()
