"""An ordered subject under faults for as long as one wants: `make ordered-chaos`.

Consumers and brokers are killed and frozen at random, and the subject is scaled, while producers send. At the end
everything must have been handled in its order by an Exclusive group, and handled by a Shared one, and be stored once.
The seed draws the faults; how they meet is up to the machine.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from brokerset_rig.local_set import local_set
from brokerset_rig.ordered_run import (
    MANIFEST,
    PERMISSION_MS,
    SUBJECT,
    WAIT_MARGIN_MS,
    OrderedRun,
    with_short_permissions,
)

PRODUCERS, KEYS, RATE = 2, 40, 200.0
FROZEN_SECONDS = (PERMISSION_MS + WAIT_MARGIN_MS) / 1000 + 1
PAUSE_SECONDS = (0.5, 4.0)
SETTLE_SECONDS = 120.0
PARTITIONS = (2, 3, 4, 8)
GROUPS = ("orders-0", "orders-1")
MEMBERS = 3
SHARED = "mailers"


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class Faults:
    """What is done, one after the other."""

    def __init__(self, run: OrderedRun, source: random.Random) -> None:
        self.run, self.random, self.started = run, source, 0

    def start_consumer(self, *, shared: bool) -> None:
        self.started += 1
        if shared:
            self.run.consume(f"{SHARED}-{self.started}", SHARED, "Shared")
        else:
            self.run.consume(f"c{self.started}")

    def kill_consumer(self) -> None:
        name = self.random.choice(list(self.run.consumers))
        say(f"kill consumer {name}")
        self.run.signal(name, signal.SIGKILL)
        self.start_consumer(shared=name.startswith(SHARED))

    def freeze_consumer(self) -> None:
        name = self.random.choice(list(self.run.consumers))
        say(f"freeze consumer {name} beyond its permission")
        self.run.signal(name, signal.SIGSTOP)
        time.sleep(FROZEN_SECONDS)
        self.run.signal(name, signal.SIGCONT)

    def leave(self) -> None:
        name = self.random.choice(list(self.run.consumers))
        say(f"consumer {name} leaves")
        self.run.consumers.pop(name).terminate()
        self.start_consumer(shared=name.startswith(SHARED))

    def kill_master(self) -> None:
        group = self.random.choice(GROUPS)
        say(f"kill the master of {group}")
        self.run.local.until_healthy()
        self.run.kill_master(group)

    def kill_controller(self) -> None:
        name = self.random.choice(list(self.run.local.processes("controller")))
        say(f"kill {name}")
        self.run.local.until_healthy()
        self.run.local.kill(name)

    def scale(self) -> None:
        wanted = self.random.choice(PARTITIONS)
        say(f"scale to {wanted}")
        self.run.scale(wanted)

    def one(self) -> None:
        """Some fault."""
        self.random.choice((
            self.kill_consumer, self.freeze_consumer, self.leave, self.kill_master, self.kill_controller, self.scale,
        ))()  # fmt: skip


def chaos(folder: Path, seconds: float, seed: int) -> list[str]:
    """Run for so long; what was found."""
    with local_set(folder, MANIFEST) as local:
        with_short_permissions(local)
        local.until_healthy()
        run = OrderedRun(local, folder)
        try:
            local("subject", "create", SUBJECT, "--partitions", "2")
            faults = Faults(run, random.Random(seed))
            for _ in range(MEMBERS):
                faults.start_consumer(shared=False)
                faults.start_consumer(shared=True)
            count = int(seconds * RATE)
            producers = [run.produce(f"p{n}", keys=KEYS, count=count, rate=RATE) for n in range(PRODUCERS)]
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                time.sleep(faults.random.uniform(*PAUSE_SECONDS))
                faults.one()
            sent = run.sent(producers)
            run.wait_until_handled(sum(sent.values()), SETTLE_SECONDS)
            run.wait_until_handled(sum(sent.values()), SETTLE_SECONDS, SHARED)
            run.stop_consumers()
            verdict, shared, stored = run.verdict(sent), run.shared_verdict(sent, SHARED), run.stored(sent)
        finally:
            run.end()
    say(
        f"{sum(sent.values()):,} sent, {verdict.handled:,} handled, {verdict.repeated:,} times again, "
        f"{verdict.refused:,} late acts refused by token, {stored.handled:,} stored; "
        f"{shared.handled:,} handled by the shared group, {shared.repeated:,} times again"
    )
    return verdict.problems + shared.problems + stored.problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults go on [60]")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="which faults")
    options = parser.parse_args()
    say(f"seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="ordered-chaos-") as folder:
        problems = chaos(Path(folder), options.seconds, options.seed)
    for problem in problems:
        say(problem)
    say("FAILED" if problems else "all keys kept their order; nothing was lost or stored twice")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
