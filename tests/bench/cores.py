"""How one topic's sends grow with the number of broker groups: `cores.py [--size small|full] [--out FILE]`.

Each broker gets a part of a core of its own, by a control group with a CPU quota: so the growth from one to four groups
can be seen on a machine of two cores, where the load generator needs some, too. Then without quotas: one broker and two,
every one on a core of its own that it shares with the generator. One load generator for each group sends to the same
topic. Needs the right to make control groups (`/sys/fs/cgroup`); without it only the second part is measured. Exit
status 1 when an answer was wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from brokerset_client.admin import Admin
from brokerset_formats.config import TopicConfig
from brokerset_rig import stack
from brokerset_rig.measuring import arguments, cpu_seconds, markdown

TOPIC = "cores"
QUEUES = 8
QUOTA = 0.25
"""Of a core, for each broker: four of them leave a core to the generators."""
PERIOD_US = 20_000
GROUPS = (1, 2, 4)
PART, WHOLE = f"{QUOTA:g} of a core", "a whole core"
SECONDS = {"small": 2.0, "full": 10.0}
ROUNDS = 3
"""Every case is measured so often, in turn."""
WARM_SECONDS = 1.0
CGROUPS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
"""Where control groups are made: version 1 with the CPU's own tree, or version 2."""
LOADGEN = Path(os.environ.get("LOADGEN", "/tmp/brokerset-loadgen"))


@contextlib.contextmanager
def limited(pid: int, cores: float) -> Iterator[None]:
    """Give a process so much of a core until the end, or until the process has ended."""
    root = next(each for each in CGROUPS if each.is_dir())
    folder = root / f"brokerset-bench-{pid}"
    folder.mkdir()
    try:
        quota = int(cores * PERIOD_US)
        if (folder / "cpu.max").exists():
            (folder / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
        (folder / "cgroup.procs").write_text(str(pid))
        yield
        (root / "cgroup.procs").write_text(str(pid))
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def may_limit() -> bool:
    """Whether control groups can be made here."""
    with contextlib.suppress(OSError, StopIteration), limited(os.getpid(), 1.0):
        return True
    return False


async def create_topic(namesrv: str, groups: int) -> None:
    async with Admin(namesrv=namesrv) as admin:
        while len(await admin.masters()) < groups:  # noqa: ASYNC110 - another process knows it
            await asyncio.sleep(0.05)
        await admin.create_topic(TopicConfig(TOPIC, QUEUES, QUEUES))


def load(brokers: Sequence[stack.Server], seconds: float) -> dict[str, Any]:
    """Send to all brokers at once; messages a second in all, and CPU of the brokers for each message."""
    flags = ["-topic", TOPIC, "-size", "1024", "-window", "64", "-seconds", f"{seconds:g}"]
    before = cpu_seconds(*(each.pid for each in brokers))
    running = [
        subprocess.Popen(
            [str(LOADGEN), "send", "-addr", each.address, *flags, "-warm", f"{WARM_SECONDS:g}"],
            stdout=subprocess.PIPE, text=True,
        )
        for each in brokers
    ]  # fmt: skip
    results = [json.loads(each.communicate()[0]) for each in running]
    used = cpu_seconds(*(each.pid for each in brokers)) - before
    rate = sum(each["perSecond"] for each in results)
    return {
        "perSecond": round(rate),
        "brokerCores": round(used / (seconds + WARM_SECONDS), 2),
        "ok": all(each["ok"] for each in results),
    }


def measure(groups: int, seconds: float, quota: float | None) -> dict[str, Any]:
    """One topic on so many groups, each with its quota, or pinned to a core."""
    with stack.Workspace("cores") as folder, contextlib.ExitStack() as owned:
        port, *ports = stack.free_ports(groups + 1, below=2)
        namesrv = owned.enter_context(stack.our_namesrv(folder, port))
        brokers = [
            owned.enter_context(
                stack.our_broker(folder / f"broker-{n}", each, namesrv.address, {"brokerName": f"cores-{n}"})
            )
            for n, each in enumerate(ports)
        ]
        asyncio.run(create_topic(namesrv.address, groups))
        for n, broker in enumerate(brokers):
            if quota is not None:
                owned.enter_context(limited(broker.pid, quota))
            else:
                for task in Path(f"/proc/{broker.pid}/task").iterdir():
                    os.sched_setaffinity(int(task.name), {sorted(os.sched_getaffinity(0))[n]})
        return load(brokers, seconds)


def main() -> int:
    options = arguments(__doc__, "cores.json", SECONDS).parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["go", "build", "-o", str(LOADGEN), "."], cwd=stack.PEERS / "loadgen", check=True)
    cores = len(os.sched_getaffinity(0))
    cases: list[tuple[str, int, float | None]] = [(WHOLE, n, None) for n in range(1, min(2, cores) + 1)]
    if may_limit():
        cases = [*((PART, n, QUOTA) for n in GROUPS), *cases]
    runs: dict[str, list[dict[str, Any]]] = {f"{each}/{number}": [] for each, number, _ in cases}
    for _ in range(ROUNDS):
        for each, number, quota in cases:
            runs[f"{each}/{number}"].append(measure(number, SECONDS[options.size], quota))
    options.out.write_text(json.dumps(runs, indent=1))
    rows = []
    for each, number, _ in cases:
        rates = [run["perSecond"] for run in runs[f"{each}/{number}"]]
        of_one = [rate / run["perSecond"] for rate, run in zip(rates, runs[f"{each}/1"], strict=True)]
        used = statistics.median(run["brokerCores"] for run in runs[f"{each}/{number}"])
        rate = statistics.median(rates)
        rows.append(
            (
                each,
                number,
                f"{rate:,.0f}",
                f"{statistics.median(of_one):.2f} ×",
                f"{used / rate * 1e6:.1f} µs",
            )
        )
    print(markdown(("each broker has", "groups", "sends a second", "of one", "CPU for each"), rows))
    return 0 if all(run["ok"] for each in runs.values() for run in each) else 1


if __name__ == "__main__":
    sys.exit(main())
