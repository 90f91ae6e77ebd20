"""Open transactions of a store that goes from a Java broker to ours and back: each is ended once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from brokerset_rig import stack
from brokerset_rig.local_servers import records
from brokerset_rig.transaction_client import COMMIT, ROLLBACK, UNKNOWN, TransactionClient, transaction_client

Add = Callable[[str, list[str], float], None]

TOPIC = "handed-over"
SOON = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}
CHECK_SECONDS_MAX = 60.0
QUIET_SECONDS = 4.0
"""So long nothing may come any more: three passes of checks, and Java's op records."""


def run(add: Add) -> None:
    """Java begins and is killed, ours goes on and is killed, Java ends what is left."""
    with stack.Workspace("transaction-stores") as folder:
        ports = stack.free_ports(2, below=2)
        with stack.our_namesrv(folder, ports[0]) as namesrv:
            for who, broker, work in (
                ("Java", stack.java_broker, _begin),
                ("ours", stack.our_broker, _go_on),
                ("Java", stack.java_broker, _end),
                ("ours", stack.our_broker, _read),
            ):
                before = time.monotonic()
                with broker(folder, ports[1], namesrv.address, SOON) as server:
                    what, problems = asyncio.run(_with_client(server.address, work))
                    server.kill()
                add(f"{who}: {what}", problems, time.monotonic() - before)


async def _with_client(address: str, work: Callable[[TransactionClient], object]) -> tuple[str, list[str]]:
    async with transaction_client(int(address.rpartition(":")[2])) as client:
        return await work(client)  # type: ignore[misc,no-any-return]  # all of them are coroutines


async def _begin(client: TransactionClient) -> tuple[str, list[str]]:
    await client.create_topic(TOPIC, queues=1)
    halves = {key: await client.send_half(TOPIC, key.encode(), key) for key in "ABCDE"}
    answers = [await client.end(halves["A"], COMMIT), await client.end(halves["B"], ROLLBACK)]
    problems = [str(reply) for reply in answers if reply.code]
    return "of five transactions one is committed and one rolled back, and the broker is killed", problems


async def _go_on(client: TransactionClient) -> tuple[str, list[str]]:
    """What Java has committed is known by its final record: its op record was lost with the process. Of the
    rollback nothing is left, so it is asked about, as Java itself would."""
    problems = []
    asked: dict[str, int] = {}
    wanted = {"B": ROLLBACK, "C": COMMIT, "D": UNKNOWN, "E": UNKNOWN}
    while asked.keys() < wanted.keys() or asked.get("D", 0) < 2:
        question = await asyncio.wait_for(client.asked(), CHECK_SECONDS_MAX)
        key = question.fields["msgId"]
        asked[key] = asked.get(key, 0) + 1
        kind = wanted.get(key)
        if kind is None:
            problems.append(f"{key} is asked about, though it has ended")
        elif kind != UNKNOWN:
            reply = await client.end(question.half, kind, check=True)
            problems += [f"{key}: {reply.remark}"] if reply.code else []
    halves = {key: await client.send_half(TOPIC, key.encode(), key) for key in "FG"}
    reply = await client.end(halves["F"], COMMIT)
    problems += [f"F: {reply.remark}"] if reply.code else []
    return f"asks about those that are open ({sum(asked.values())} checks), and has two more", problems


async def _end(client: TransactionClient) -> tuple[str, list[str]]:
    problems = []
    ended: set[str] = set()
    while ended < {"D", "E", "G"}:
        question = await asyncio.wait_for(client.asked(), CHECK_SECONDS_MAX)
        key = question.fields["msgId"]
        if key in "ABCF":
            problems.append(f"{key} is asked about, though it has ended")
        elif key not in ended:
            ended.add(key)
            kind = ROLLBACK if key == "E" else COMMIT
            reply = await client.end(question.half, kind, check=True)
            problems += [f"{key}: {reply.remark}"] if reply.code else []
    await asyncio.sleep(QUIET_SECONDS)
    return "asks about those that are left, and about no other", problems


async def _read(client: TransactionClient) -> tuple[str, list[str]]:
    await asyncio.sleep(QUIET_SECONDS)
    asked = [client.questions.get_nowait().fields["msgId"] for _ in range(client.questions.qsize())]
    found = [record.body.decode() for record in records(await client.pull(TOPIC, 0))]
    problems = [f"asks about {sorted(asked)}, though all have ended"] if asked else []
    if sorted(found) != ["A", "C", "D", "F", "G"]:
        problems.append(f"delivered are {found}, and committed were A, C, D, F, G")
    return "each commit is delivered once, and nobody is asked any more", problems


def main() -> None:
    """Run it alone."""

    def add(what: str, problems: list[str], seconds: float) -> None:
        print("ok  " if not problems else "FAIL", what, f"({seconds:.1f} s)", *problems, sep="\n    ")

    run(add)


if __name__ == "__main__":
    main()
