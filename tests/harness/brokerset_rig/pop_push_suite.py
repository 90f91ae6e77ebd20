"""Interop suite `pop-push`: Java's push consumer in POP mode, whose queues our brokers assign, while the master changes."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from brokerset_protocol.bodies.metadata import MessageRequestMode, SetMessageRequestMode
from brokerset_protocol.codes import RequestCode
from brokerset_rig import replicated_group, stack
from brokerset_rig.controller_parts import Add, step
from brokerset_rig.controllers import until
from brokerset_rig.pop_client import PopClient, PopRefused

TOPIC: Final = "pop-push"
GROUP: Final = "pop-pushers"
QUEUES: Final = 4
PLAIN, AGAIN = 60, 8
HANDLED_S: Final = 90.0
"""The client asks for its queues every 20 s, and waits 10 s before it wants a message again."""
ACKED_S: Final = 2.0
"""The client acks behind the handler's back; its acks have come by then."""


class Pusher:
    """A consumer of Java's. A context manager: killed at the end."""

    def __init__(self, env: dict[str, str], folder: Path, name: str) -> None:
        self._out = folder / f"{name}.out"
        command = [str(stack.PEERS / "bin" / "pop-push"), f"topic={TOPIC}", f"group={GROUP}"]
        with self._out.open("wb") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                env={**os.environ, **env, "CLIENT_HEAP": "256m"},
            )  # fmt: skip

    def lines(self) -> list[str]:
        return self._out.read_text().splitlines()

    def __enter__(self) -> Pusher:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def _seen(pushers: Sequence[Pusher], kind: str) -> Counter[str]:
    """How often each body was handled (`H`) or put off (`R`)."""
    lines = [line.split() for pusher in pushers for line in pusher.lines()]
    return Counter(words[1] for words in lines if words[0] == kind)


def _send(port: int, prefix: str, count: int) -> set[str]:
    bodies = [f"{prefix}-{number}" for number in range(count)]
    with PopClient(port, TOPIC, GROUP) as client:
        for number, body in enumerate(bodies):
            client.send(body, number % QUEUES)
    return set(bodies)


def _use_pop(port: int) -> bool:
    """Make the topic, and have the group pop it."""
    mode = SetMessageRequestMode(TOPIC, GROUP, MessageRequestMode.POP)
    with PopClient(port, TOPIC, GROUP) as client:
        client.create_topic(QUEUES)
        answer = client.call(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, mode.to_json())
    if answer.code:
        raise PopRefused(f"set mode: {answer.code} {answer.remark}")
    return True


def _wait_handled(pushers: Sequence[Pusher], wanted: set[str]) -> list[str]:
    """Until all is handled; what came too often."""
    try:
        until("all is handled", lambda: wanted <= _seen(pushers, "H").keys(), HANDLED_S)
    except stack.StackError:
        missing = sorted(wanted - _seen(pushers, "H").keys())
        return [f"not handled: {missing[:8]} of {len(wanted)}"]
    time.sleep(ACKED_S)
    often = [body for body, count in _seen(pushers, "H").items() if count > 1 and body in wanted]
    return [f"handled more than once: {often[:8]}"] if often else []


@contextmanager
def _pushers(found: replicated_group.Group) -> Iterator[list[Pusher]]:
    with (
        Pusher(found.env, found.folder, "java-1") as one,
        Pusher(found.env, found.folder, "java-2") as other,
    ):
        yield [one, other]


def run(add: Add) -> None:
    """All checks, one after the other."""
    with replicated_group.group("pop-push", 2) as found:
        members = [found.add("ours") for _ in range(2)]
        found.wait_in_sync()
        master, epoch = found.master()
        until("the master takes the mode", lambda: _use_pop(master.port), HANDLED_S)
        with _pushers(found) as pushers:
            with step(add, "two consumers of Java's handle each message once between them") as problems:
                problems += _wait_handled(pushers, _send(master.port, "plain", PLAIN))
            with step(add, "what the handler puts off comes again, once") as problems:
                again = _send(master.port, "again", AGAIN)
                problems += _wait_handled(pushers, again)
                put_off = _seen(pushers, "R")
                problems += [f"{b} was put off {put_off[b]} times" for b in again if put_off[b] != 1]
            with step(
                add, "what was put off before the master is killed comes again at the next one"
            ) as problems:
                waiting = _send(master.port, "again-later", AGAIN)
                until("all is put off", lambda: waiting <= _seen(pushers, "R").keys(), HANDLED_S)
                time.sleep(ACKED_S)
                found.kill_master()
                master, epoch = found.wait_master_after(epoch)
                problems += _wait_handled(pushers, waiting)
            with step(add, "and they go on there") as problems:
                problems += _wait_handled(pushers, _send(master.port, "then", PLAIN))
            with step(add, "and at the first one, which was restarted and leads again") as problems:
                first = next(member for member in members if member is not master)
                found.start(first)
                found.wait_in_sync()
                found.elect(first)
                master, _ = found.wait_master_after(epoch)
                until("the mode is known", lambda: _use_pop(master.port), HANDLED_S)
                problems += _wait_handled(pushers, _send(master.port, "last", PLAIN))


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
