"""Popped messages of a store, or of a group, that goes from a broker of one make to one of the other.

What was acked is not delivered again, what was not comes once, and not before its time; acks with handles that the
other make gave count; an ordered pop keeps its queue locked.
"""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from brokerset_rig import replicated_group, stack
from brokerset_rig.controller_parts import Add, step
from brokerset_rig.controllers import until
from brokerset_rig.pop_client import Given, PopClient

TOPIC: Final = "popped-store"
ORDERED: Final = "popped-in-order"
GROUP: Final = "poppers"
COUNT: Final = 24
ACKED, LATE_ACKED, CHANGED = 8, 12, 16
"""Messages below the first number are acked at once, those below the next at the other broker, and those below the
last are invisible for longer."""

INVISIBLE_S: Final = 50.0
"""Longer than it takes to stop one broker, start the other, and ack there."""
CHANGED_S: Final = 60.0
POLL_S: Final = 12.0
"""Slaves of either make have asked for positions and locks by then."""
WRITTEN_S: Final = 18.0
"""Java writes positions and locks each 5 s, 10 s after its start for the first time; ours flushes a few bytes each 10 s."""
LATE_S_MAX: Final = 30.0
"""Java looks at what is due every 10 s at most."""
QUIET_S: Final = 5.0
"""So long nothing may come any more."""
READY_S: Final = 40.0
AT_ONCE: Final = 2
"""Stores side by side: most of the time nothing is due."""


@dataclass(slots=True)
class Batch:
    """What one broker gave, by body: when it may come again, and what must not."""

    prefix: str
    due: dict[str, float] = field(default_factory=dict)
    late_acks: list[Given] = field(default_factory=list)
    ordered: list[Given] = field(default_factory=list)


def _topics(port: int) -> bool:
    """Both topics are there; a master that has just begun may refuse."""
    for topic in (TOPIC, ORDERED):
        with PopClient(port, topic, GROUP) as client:
            client.create_topic()
    return True


def ready(port: int) -> None:
    """Wait until the broker takes writes."""
    until("the topics are made", lambda: _topics(port), READY_S)


def give(port: int, prefix: str) -> tuple[Batch, list[str]]:
    """Send, pop, ack some, change some; what is wrong."""
    batch = Batch(prefix)
    with PopClient(port, TOPIC, GROUP) as client:
        for number in range(COUNT):
            client.send(f"{prefix}-{number}")
        given = _all(client, COUNT)
        given.sort(key=lambda each: int(each.body.rpartition("-")[2]))
        problems = [] if len(given) == COUNT else [f"only {len(given)} of {COUNT} were given"]
        for number, each in enumerate(given):
            if number < ACKED:
                problems += _acked(client, each)
            elif number < LATE_ACKED:
                batch.late_acks.append(each)
            elif number < CHANGED:
                batch.due[each.body] = client.change(each, CHANGED_S).visible_at
            else:
                batch.due[each.body] = each.visible_at
    with PopClient(port, ORDERED, GROUP) as client:
        first = client.end()
        for number in range(4):
            client.send(f"{prefix}-{number}")
        until("all four can be popped", lambda: client.end() == first + 4, READY_S)
        batch.ordered = client.pop(INVISIBLE_S, queue_id=0, attempt=f"{prefix}-1")
        bodies = [each.body for each in batch.ordered]
        if bodies != [f"{prefix}-{number}" for number in range(4)]:
            problems.append(f"an ordered pop gave {bodies}")
        for each in batch.ordered[:2]:
            problems += _acked(client, each)
    return batch, problems


def _all(client: PopClient, count: int) -> list[Given]:
    """Pop until there are so many, or nothing comes."""
    found: list[Given] = []
    while len(found) < count:
        more = client.pop(INVISIBLE_S, poll_s=5.0)
        if not more:
            break
        found += more
    return found


def _acked(client: PopClient, given: Given) -> list[str]:
    code = client.ack(given)
    return [f"the ack of {given.body} is answered with {code}"] if code else []


def ack_late(port: int, batch: Batch) -> list[str]:
    """Ack at the other broker what the first one gave."""
    with PopClient(port, TOPIC, GROUP) as client:
        problems = [problem for each in batch.late_acks for problem in _acked(client, each)]
    late = [each.body for each in batch.late_acks if each.visible_at < time.time()]
    return [*problems, f"this machine was too slow: {late} were visible before"] if late else problems


def take(port: int, batch: Batch) -> list[str]:
    """Pop what comes again, and compare it with what is due."""
    seen: dict[str, float] = {}
    counts: Counter[str] = Counter()
    deadline = max(batch.due.values()) + LATE_S_MAX
    with PopClient(port, TOPIC, GROUP) as client:
        quiet_until = 0.0
        while time.time() < (quiet_until or deadline):
            for each in client.pop(300.0, poll_s=1.0):
                counts[each.body] += 1
                seen.setdefault(each.body, each.at)
                client.ack(each)
            if not quiet_until and seen.keys() >= batch.due.keys():
                quiet_until = time.time() + QUIET_S
    problems = [f"{body} was lost" for body in batch.due if body not in seen]
    problems += [f"{body} came, though it is done" for body in seen if body not in batch.due]
    problems += [f"{body} came {count} times" for body, count in counts.items() if count > 1]
    for body in batch.due.keys() & seen.keys():
        early = batch.due[body] - seen[body]
        if early > 0:
            problems.append(f"{body} came {early:.2f} s before its time")
    return problems[:10]


def locked(port: int, batch: Batch) -> list[str]:
    """What is wrong with an ordered pop of somebody else while the first one's messages are invisible."""
    with PopClient(port, ORDERED, GROUP) as client:
        got = [each.body for each in client.pop(INVISIBLE_S, queue_id=0, attempt="other")]
    if batch.ordered[-1].visible_at < time.time():
        return ["this machine was too slow: the ordered messages were visible before"]
    return [f"a locked queue gave {got}"] if got else []


def take_in_order(port: int, batch: Batch) -> list[str]:
    """The ordered messages that were not acked come in their order, and no other."""
    wanted = [each.body for each in batch.ordered[2:]]
    got: list[str] = []
    deadline = batch.ordered[-1].visible_at + LATE_S_MAX
    with PopClient(port, ORDERED, GROUP) as client:
        while len(got) < len(wanted) and time.time() < deadline:
            for each in client.pop(300.0, queue_id=0, poll_s=1.0, attempt="next"):
                got.append(each.body)
                client.ack(each)
    return [] if got == wanted else [f"in order came {got}, wanted were {wanted}"]


def _handed_over(add: Add, first: str, second: str, port: int, batch: Batch, *, locks: bool = True) -> None:
    """What the second broker makes of what the first one gave."""
    with step(add, f"{second} takes acks of what {first} gave, and leaves a locked queue alone") as problems:
        problems += ack_late(port, batch)
        problems += locked(port, batch) if locks else []
    with step(add, f"{second} delivers once, in time, what {first} gave and nobody acked") as problems:
        problems += take(port, batch)
        problems += take_in_order(port, batch)


def _stores(add: Add) -> None:
    """One store, stopped or killed under one make, goes on under the other."""
    cases = [
        (first, second, how)
        for first, second in (("Java", "ours"), ("ours", "Java"))
        for how in ("is stopped", "is killed")
    ]
    ports = iter(stack.free_ports(2 * len(cases), below=2))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for each in [pool.submit(_one_store, add, *case, next(ports), next(ports)) for case in cases]:
            each.result()


def _one_store(add: Add, first: str, second: str, how: str, name_server_port: int, port: int) -> None:
    makes = {"ours": stack.our_broker, "Java": stack.java_broker}
    with stack.Workspace("pop-stores") as folder, stack.our_namesrv(folder, name_server_port) as names:
        with (
            makes[first](folder, port, names.address) as broker,
            step(add, f"{first} gives messages to poppers, and {how}") as problems,
        ):
            ready(port)
            batch, wrong = give(port, "a")
            problems += wrong
            time.sleep(WRITTEN_S)
            if how == "is killed":
                broker.kill()
        if not problems:
            with makes[second](folder, port, names.address):
                ready(port)
                _handed_over(add, f"{first} ({how})", second, port, batch)


def _lead(found: replicated_group.Group, member: replicated_group.Member) -> None:
    """Make it the master, until it takes writes."""
    found.wait_in_sync()
    master, epoch = found.master()
    if master is not member:
        found.elect(member)
        master, _ = found.wait_master_after(epoch)
        if master is not member:
            raise stack.StackError(f"{master} leads instead of {member}")
    ready(member.port)


def _group(add: Add) -> None:
    """The master goes from Java's broker to ours and back. Java's brokers do not replicate locks of ordered pops."""
    with replicated_group.group("pop-groups", 2) as found:
        java, ours = found.add("Java"), found.add("ours")
        for first, second in ((java, ours), (ours, java)):
            with step(add, f"{first.make}'s master gives, and {second.make}'s takes over") as problems:
                _lead(found, first)
                batch, wrong = give(first.port, first.make)
                problems += wrong
                time.sleep(POLL_S)
                _lead(found, second)
            if not problems:
                _handed_over(
                    add, f"{first.make}'s master", f"{second.make}'s", second.port, batch, locks=False
                )


def run(add: Add) -> None:
    """Stores that are handed over, and a group of both makes."""
    _stores(add)
    _group(add)


def main() -> None:
    """Run it alone."""

    def add(what: str, problems: list[str], seconds: float) -> None:
        print(
            "ok  " if not problems else "FAIL",
            what,
            f"({seconds:.1f} s)",
            *problems,
            sep="\n    ",
            flush=True,
        )

    run(add)


if __name__ == "__main__":
    main()
