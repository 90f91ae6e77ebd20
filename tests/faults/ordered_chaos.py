"""An ordered subject under faults for as long as one wants: `make ordered-chaos`.

`ordered_chaos.py [--seconds N] [--seed N] [--order Strict|BestTried] [--consume Exclusive|Shared]`. Consumers, masters
and controllers are killed, consumers and masters frozen, links cut, and the subject is scaled, while producers send
and a few attempts of handlers fail. What must hold at the end:

* Strict, Exclusive: everything was handled in its order, and is stored once
* Strict, Shared: everything was handled, and is stored once; further handlings are counted
* BestTried: everything that was confirmed was handled; disorder and further handlings are counted

The set and each client run in network namespaces of their own. Where none can be had, no links are cut, which is said.
The seed draws the faults; how they meet is up to the machine. The folder is kept when something did not hold.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from brokerset_bench.network import HOST, INSIDE, OwnNetwork, inside_command, why_not
from brokerset_protocol.subject_words import ConsumeStrategy, OrderStrategy
from brokerset_rig.local_set import local_set
from brokerset_rig.ordered_run import (
    GROUP,
    MANIFEST,
    PERMISSION_MS,
    SUBJECT,
    WAIT_MARGIN_MS,
    OrderedRun,
    master_of,
    with_short_permissions,
)
from brokerset_rig.port_cuts import PortCuts

PRODUCERS, KEYS, RATE = 2, 40, 200.0
MEMBERS = 3
FAILING = 0.02
"""Share of attempts that fail: messages go back for retry, or their keys wait."""

FROZEN_SECONDS = (PERMISSION_MS + WAIT_MARGIN_MS) / 1000 + 1
FROZEN_MASTER_SECONDS = 2.0
"""So long a frozen master stays so when another one leads."""

CUT_SECONDS = (1.0, 8.0)
PAUSE_SECONDS = (0.5, 4.0)
SETTLE_SECONDS = 120.0
WAIT_SECONDS = 240.0
"""Of commands and for a healthy set, on a machine that is busy with other things as well."""

PARTITIONS = (2, 3, 4, 8)
GROUPS = ("orders-0", "orders-1")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


class Links:
    """A network namespace for each client, and cuts between them and the set, which runs at `HOST`."""

    def __init__(self, folder: Path) -> None:
        self.network = OwnNetwork(folder)
        self.members = [self.network.member() for _ in range(PRODUCERS + MEMBERS)]
        self.ports = PortCuts([address for _, address, _ in self.members])

    def enter(self, place: int) -> Sequence[str]:
        """What goes before the command of a client."""
        return self.members[place][2]

    def cut_client(self, place: int) -> None:
        self.network.cut(self.members[place][0])

    def mend_client(self, place: int) -> None:
        self.network.mend(self.members[place][0])


@dataclass(frozen=True)
class Variant:
    """What the subject promises, and how it is consumed."""

    order: OrderStrategy
    consume: ConsumeStrategy


class Faults:
    """What is done, one after the other; during a cut something else may happen, too."""

    def __init__(
        self, run: OrderedRun, source: random.Random, links: Links | None, consume: ConsumeStrategy
    ) -> None:
        self.run, self.random, self.links, self.strategy = run, source, links, consume
        self.started = 0
        self.places: dict[str, int] = {}
        self.next: list[Callable[[], None]] = []

    def enter(self, place: int) -> Sequence[str]:
        """What goes before the command of a client at a place."""
        return self.links.enter(place) if self.links is not None else ()

    def start_consumer(self, place: int) -> None:
        """Start one at a place where none runs."""
        self.started += 1
        name = f"c{self.started}"
        self.places[name] = place
        self.run.consume(name, GROUP, self.strategy, failing=FAILING, enter=self.enter(place))

    def _consumer(self) -> str:
        return self.random.choice(list(self.run.consumers))

    def kill_consumer(self) -> None:
        name = self._consumer()
        say(f"kill consumer {name}")
        self.run.signal(name, signal.SIGKILL)
        self.start_consumer(self.places.pop(name))

    def freeze_consumer(self) -> None:
        name = self._consumer()
        say(f"freeze consumer {name} beyond its permission")
        self.run.signal(name, signal.SIGSTOP)
        time.sleep(FROZEN_SECONDS)
        self.run.signal(name, signal.SIGCONT)

    def leave(self) -> None:
        name = self._consumer()
        say(f"consumer {name} leaves")
        self.run.consumers.pop(name).terminate()
        self.start_consumer(self.places.pop(name))

    def kill_master(self) -> None:
        group = self.random.choice(GROUPS)
        say(f"kill the master of {group}")
        self.run.local.until_healthy()
        self.run.kill_master(group)

    def freeze_master(self) -> None:
        group = self.random.choice(GROUPS)
        self.run.local.until_healthy()
        name = self.run.master(group)
        say(f"freeze {name}, master of {group}, until another one leads")
        self.run.signal_broker(name, signal.SIGSTOP)
        try:
            self.run.local.until(
                lambda view: master_of(view, group) not in ("", name), f"another master of {group}"
            )
            time.sleep(FROZEN_MASTER_SECONDS)
        finally:
            self.run.signal_broker(name, signal.SIGCONT)

    def kill_controller(self) -> None:
        name = self.random.choice(list(self.run.local.processes("controller")))
        say(f"kill {name}")
        self.run.local.until_healthy()
        self.run.local.kill(name)

    def scale(self) -> None:
        wanted = self.random.choice(PARTITIONS)
        say(f"scale to {wanted}")
        self.run.scale(wanted)

    @contextmanager
    def _cut(self, links: Links, what: str, meanwhile: Sequence[Callable[[], None]]) -> Iterator[None]:
        """The block cuts something; it stays so for seconds, in which something of `meanwhile` may happen."""
        seconds = self.random.uniform(*CUT_SECONDS)
        say(f"cut {what} for {seconds:.1f} s")
        ends = time.monotonic() + seconds
        try:
            yield
            time.sleep(self.random.uniform(0, seconds))
            if self.random.random() < 0.5:
                self.random.choice(meanwhile)()
            time.sleep(max(0.0, ends - time.monotonic()))
        finally:
            links.ports.mend()

    def cut_broker(self, links: Links) -> None:
        """Clients do not reach one broker."""
        name, broker = self.random.choice(list(self.run.local.processes("broker").items()))
        if self.random.random() < 0.7:  # most brokers serve no clients
            name = self.run.master(self.random.choice(GROUPS))
            broker = self.run.local.processes("broker")[name]
        with self._cut(links, f"clients and {name}", (self.kill_consumer, self.leave, self.scale)):
            links.ports.cut_from_clients([_port(broker["address"])])

    def cut_controllers(self, links: Links) -> None:
        """Clients reach neither controllers nor name servers."""
        with self._cut(links, "clients and all controllers", (self.kill_consumer, self.scale)):
            for controller in self.run.local.processes("controller").values():
                links.ports.cut_from_clients([_port(controller["address"]), _port(controller["namesrv"])])

    def cut_replicas(self, links: Links) -> None:
        """A master's replicas do not reach it."""
        group = self.random.choice(GROUPS)
        self.run.local.until_healthy()
        name = self.run.master(group)
        with self._cut(
            links, f"{name}, master of {group}, and its replicas", (self.kill_consumer, self.leave)
        ):
            links.ports.cut_from_all(_port(self.run.local.processes("broker")[name]["ha"]))

    def cut_client(self, links: Links) -> None:
        """A client reaches nothing."""
        place = self.random.randrange(PRODUCERS + MEMBERS)
        consumers = {place: name for name, place in self.places.items()}
        with self._cut(links, f"all links of {consumers.get(place, f'p{place}')}", (self.leave, self.scale)):
            links.cut_client(place)
        links.mend_client(place)

    def one(self) -> None:
        """Some fault; each comes once before any comes again."""
        if not self.next:
            self.next = self._all()
            self.random.shuffle(self.next)
        self.next.pop()()

    def _all(self) -> list[Callable[[], None]]:
        faults: list[Callable[[], None]] = [
            self.kill_consumer, self.freeze_consumer, self.leave, self.kill_master, self.freeze_master,
            self.kill_controller, self.scale,
        ]  # fmt: skip
        if self.links is not None:
            cuts = (self.cut_broker, self.cut_controllers, self.cut_replicas, self.cut_client)
            faults += [partial(cut, self.links) for cut in cuts]
        return faults


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def chaos(folder: Path, seconds: float, seed: int, variant: Variant) -> list[str]:
    """Run for so long; what was found."""
    links = Links(folder) if os.environ.get(INSIDE) == "1" else None
    options = ("--host", HOST) if links is not None else ()
    with local_set(folder, MANIFEST, *options, wait_seconds=WAIT_SECONDS) as local:
        with_short_permissions(local)
        local.until_healthy()
        run = OrderedRun(local, folder)
        try:
            local("subject", "create", SUBJECT, "--partitions", "2", "--order", variant.order)
            faults = Faults(run, random.Random(seed), links, variant.consume)
            for place in range(PRODUCERS, PRODUCERS + MEMBERS):
                faults.start_consumer(place)
            producers = [
                run.produce(
                    f"p{place}",
                    keys=KEYS,
                    count=int(seconds * RATE),
                    rate=RATE,
                    order=variant.order,
                    enter=faults.enter(place),
                )
                for place in range(PRODUCERS)
            ]
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                time.sleep(faults.random.uniform(*PAUSE_SECONDS))
                faults.one()
            return judged(run, producers, variant)
        finally:
            run.end()
            if links is not None:
                links.network.close()


def judged(run: OrderedRun, producers: Sequence[subprocess.Popen[str]], variant: Variant) -> list[str]:
    """Wait until all is handled; what was not as it must be."""
    sent, unconfirmed = run.attempted(producers)
    total = sum(sent.values())
    run.wait_until_handled(total - len(unconfirmed), SETTLE_SECONDS, unconfirmed=unconfirmed)
    run.stop_consumers()
    ordered = variant == Variant(OrderStrategy.STRICT, ConsumeStrategy.EXCLUSIVE)
    verdict = run.verdict(sent) if ordered else run.unordered_verdict(sent, GROUP, unconfirmed)
    problems = list(verdict.problems)
    text = f"{total:,} sent, {verdict.handled:,} handled, {verdict.repeated:,} times again"
    if ordered:
        text += f", {verdict.refused:,} late acts refused by token"
    else:
        text += f", {verdict.disordered:,} after a later one of their key"
    if variant.order is OrderStrategy.STRICT:
        stored = run.stored(sent)
        problems += stored.problems
        problems += [f"send failed: {key} {number}" for key, number in sorted(unconfirmed)]
        text += f", {stored.handled:,} stored"
    else:
        text += f"; {len(unconfirmed):,} sends failed"
    say(text)
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults go on [60]")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="which faults")
    parser.add_argument("--order", type=OrderStrategy, choices=OrderStrategy, default=OrderStrategy.STRICT)
    parser.add_argument(
        "--consume", type=ConsumeStrategy, choices=ConsumeStrategy, default=ConsumeStrategy.EXCLUSIVE
    )
    options = parser.parse_args()
    if os.environ.get(INSIDE) != "1":
        if why := why_not():
            say(f"no links are cut: no network of its own can be had: {why}")
        else:
            command = inside_command([__file__, *sys.argv[1:]])
            os.execvpe(command[0], command, {**os.environ, INSIDE: "1"})
    say(f"seed {options.seed}, {options.order}, {options.consume}")
    folder = Path(tempfile.mkdtemp(prefix="ordered-chaos-"))
    kept = True
    try:
        problems = chaos(folder, options.seconds, options.seed, Variant(options.order, options.consume))
        kept = bool(problems)
    finally:
        if kept:
            say(f"kept {folder}")
        else:
            shutil.rmtree(folder)
    for problem in problems:
        say(problem)
    say("FAILED" if problems else "nothing that was promised is broken")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
