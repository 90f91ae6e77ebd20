"""A client of RocketMQ 5 that sends and consumes in lines while something happens to the brokers, and what may come twice."""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, TypeAlias

from brokerset_rig import stack
from brokerset_rig.controllers import until
from brokerset_rig.proxy_clients import command, environment

MESSAGES: Final = 100
"""So many of both kinds are enough to say that a client goes on."""

ACKED_SECONDS_MAX: Final = 5.0
"""Between a delivery and the answer to its acknowledgement while the master lives: work of 0.1 s, a loaded machine."""

Times: TypeAlias = list[tuple[float, str]]
"""When, on the monotonic clock, and which body."""


class Steady:
    """A client that sends and consumes in lines, until it is ended. A context manager."""

    def __init__(
        self, client: str, cache: Path, folder: Path, endpoints: str, topic: str, groups: int = 0
    ) -> None:
        """With `groups` the messages are of so many message groups, in turn."""
        self.groups = groups
        self.acked: Times = []
        self.failed: list[str] = []
        """Each with the client's words."""
        self.got: Times = []
        self.topic = topic
        home = folder / f"steady-{client}-{topic}"
        home.mkdir()
        self._errors = (home / "errors").open("wb")
        self._process = subprocess.Popen(
            command(client, cache, endpoints, "steady", topic, str(groups)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment(cache, home),
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            kind, _, rest = raw.decode(errors="replace").strip().partition(" ")
            body = rest.partition(" ")[2]
            if kind == "fail":
                self.failed.append(body)
            elif kind in ("ack", "got"):
                (self.acked if kind == "ack" else self.got).append((time.monotonic(), body))

    def __enter__(self) -> Steady:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.send_no_more()
        self._process.kill()
        self._process.wait()
        self._reader.join(5)
        self._errors.close()

    def send_no_more(self) -> None:
        """Close its input."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self, what: str, condition: Callable[[], bool], seconds: float) -> None:
        """Until it is so. Raises `StackError`."""
        try:
            until(f"the client of {self.topic} {what}", condition, seconds)
        except stack.StackError as error:
            seen = (
                f"{len(self.acked)} sent, {len(self.got)} got, {len(self.failed)} failed: {self.failed[-1:]}"
            )
            raise stack.StackError(f"{error}; {seen}") from None

    def goes_on_after(self, moment: float, seconds: float) -> None:
        """Wait for messages of a time when nothing of the old master can be left, acknowledged and delivered."""
        self.wait(
            "goes on",
            lambda: min(_after(self.acked, moment + 1.0), _after(self.got, moment + 1.0)) >= MESSAGES,
            seconds,
        )

    def flows(self) -> bool:
        """Whether it has begun to send and to consume."""
        return min(len(self.acked), len(self.got)) >= MESSAGES

    def complete(self) -> bool:
        """Whether everything that was acknowledged to the producer has come."""
        return not self.missing()

    def missing(self) -> list[str]:
        """What was acknowledged to the producer and has not come."""
        return sorted({body for _, body in self.acked} - {body for _, body in self.got})


def _after(times: Times, moment: float) -> int:
    return sum(at > moment for at, _ in times)


def pause(times: Times, moment: float) -> float:
    """The longest time between two, of those that end after a moment."""
    return max((b - a for (a, _), (b, _) in itertools.pairwise(times) if b > moment), default=0.0)


def repeated(got: Times, changes: Sequence[tuple[float, float]]) -> tuple[list[str], list[str]]:
    """What came more than once: with a reason, without.

    The reason is that the consumer's acknowledgement fell into a change: time of the change, time when the client went on.
    """
    first: dict[str, float] = {}
    again: set[str] = set()
    for at, body in got:
        if body in first:
            again.add(body)
        first.setdefault(body, at)
    why = {body for body in again if any(a - ACKED_SECONDS_MAX <= first[body] <= b for a, b in changes)}
    return sorted(why), sorted(again - why)


def out_of_order(got: Times, groups: int) -> list[str]:
    """Messages of a message group that came for the first time after a later one; bodies end in their number."""
    newest = [-1] * groups
    found = []
    for body in dict.fromkeys(body for _, body in got):
        number = int(body.rpartition("-")[2])
        if number < newest[number % groups]:
            found.append(f"{body} after {newest[number % groups]}")
        newest[number % groups] = max(number, newest[number % groups])
    return found
