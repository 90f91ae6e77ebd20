"""What CRCs in the properties cost a send: `property_crc.py [--rounds N] [--seconds S]`.

Two brokers of ours that differ in `enabledAppendPropCRC` alone, loaded in turns by the load generator of `tests/peers`. Prints a Markdown
table of the broker's CPU for each message: it does not depend on what else the machine does as much as messages per second do. The ratio is the
median of the ratios of neighbouring rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from contextlib import ExitStack

from brokerset_client import Admin
from brokerset_formats.config import TopicConfig
from brokerset_rig import stack, stores
from brokerset_rig.measuring import cpu_seconds, markdown

CASES = {
    "send 1 KB, one at a time": ("-window", "1"),
    "send 1 KB, window 64": ("-window", "64"),
    "send in batches of 32 × 1 KB": ("-window", "4", "-batch", "32"),
}
TOPIC = "crc"


def one_round(
    program: str, broker: stack.Server, case: tuple[str, ...], seconds: float
) -> tuple[float, float]:
    """Microseconds of CPU for each message, and messages a second."""
    before = cpu_seconds(broker.pid)
    arguments = ("-addr", broker.address, "-topic", TOPIC, "-seconds", str(seconds), "-warm", "0", *case)
    told = stores.load(program, "send", *arguments)
    if not told.get("acked") or told.get("errors"):
        raise stack.StackError(f"the load generator says {told}")
    return (cpu_seconds(broker.pid) - before) / told["acked"] * 1e6, told["acked"] / seconds


async def make_topic(namesrv: str, broker: str) -> None:
    async with Admin(namesrv=namesrv) as admin:
        config = TopicConfig(topic_name=TOPIC, read_queue_nums=8, write_queue_nums=8)
        await admin.create_topic(config, address=broker)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3)
    options = parser.parse_args()
    program = stores.loadgen()
    with stack.Workspace("property-crc") as folder, ExitStack() as ending:
        ports = stack.free_ports(3, below=2)
        found: dict[tuple[str, bool], list[tuple[float, float]]] = {}
        brokers: dict[bool, stack.Server] = {}
        namesrv = ending.enter_context(stack.our_namesrv(folder, ports[2]))
        for number, crc in enumerate((False, True)):
            settings = {"enabledAppendPropCRC": str(crc).lower()}
            broker = stack.our_broker(folder / str(crc), ports[number], namesrv.address, settings)
            brokers[crc] = ending.enter_context(broker)
            asyncio.run(make_topic(namesrv.address, broker.address))
        for name, case in CASES.items():
            for each in range(options.rounds + 1):
                for crc, broker in brokers.items():
                    measured = one_round(program, broker, case, options.seconds)
                    if each:  # the first makes the files and their pages
                        found.setdefault((name, crc), []).append(measured)
    rows = []
    for name in CASES:
        without, crc_on = found[name, False], found[name, True]
        ratios = [
            statistics.median(one[column] / other[column] for one, other in zip(crc_on, without, strict=True))
            for column in (0, 1)
        ]
        costs = [statistics.median(each[0] for each in runs) for runs in (without, crc_on)]
        rows.append((name, *(f"{cost:.2f}" for cost in costs), *(f"{ratio:.3f}" for ratio in ratios)))
    columns = ("case", "without, µs", "with, µs", "with / without", "messages a second, with / without")
    print(markdown(columns, rows))


if __name__ == "__main__":
    main()
