"""Two brokers on one episode: this process's, and the reference in a process of its own, without the native core.

What differs is cut down to few actions and few bytes, and told with both traces.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection as Pipe
from types import TracebackType
from typing import Any, Final, Self
from unittest import mock

from brokerset_formats import native
from brokerset_rig.send_episodes import Action, Chunks, Episode
from brokerset_rig.send_side import Trace, run_episode

SHRINK_RUNS_MAX: Final = 400
"""Runs that are spent on making an episode smaller."""

REFERENCE_SECONDS_MAX: Final = 120.0

Broken = Callable[[], AbstractContextManager[Any]]
"""Something that is wrong with this process's broker while it is entered."""


class Reference:
    """The process with the reference; a context manager."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        with mock.patch.dict(os.environ, {native.VARIABLE: "off"}):
            self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
            self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join(5)
        self._process.kill()
        self._process.join()

    def begin(self, episode: Episode, *, detailed: bool = False) -> None:
        """Have the episode run there, while this process does something else."""
        self._pipe.send((episode, detailed))

    def trace(self) -> Trace:
        """The trace of what was begun. Raises `RuntimeError` with what went wrong there."""
        if not self._pipe.poll(REFERENCE_SECONDS_MAX):
            raise RuntimeError(f"the reference did not answer in {REFERENCE_SECONDS_MAX:.0f} s")
        found = self._pipe.recv()
        if isinstance(found, Trace):
            return found
        raise RuntimeError(f"the reference failed: {found}")


def _serve(pipe: Pipe) -> None:
    assert native.core is None, "the reference is the path without the native core"
    while True:
        try:
            episode, detailed = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(run_episode(episode, detailed=detailed))
        except Exception as error:  # the edge of a process: whoever waits is told
            pipe.send(repr(error))


@dataclass(frozen=True, slots=True)
class Difference:
    """An episode that is as small as it got, and where its traces part."""

    episode: Episode
    where: str

    def __str__(self) -> str:
        actions = "\n".join(f"    {action!r}," for action in self.episode.actions)
        return f"seed {self.episode.seed}: {self.where}\n  {self.episode.setup!r}\n  actions:\n{actions}"


def run_pair(reference: Reference, episode: Episode, broken: Broken = nullcontext, *, detailed: bool = False) -> tuple[Trace, Trace]:
    """The traces of the reference and of this process."""
    reference.begin(episode, detailed=detailed)
    with broken():
        ours = run_episode(episode, detailed=detailed)
    return reference.trace(), ours


def shrunk(reference: Reference, episode: Episode, broken: Broken = nullcontext) -> Difference:
    """The smallest episode that was found in which the two differ."""
    runs = 0

    def differs(smaller: Episode) -> bool:
        nonlocal runs
        runs += 1
        theirs, ours = run_pair(reference, smaller, broken)
        return theirs.observed != ours.observed

    def cut(parts: list[Any], build: Callable[[list[Any]], Episode]) -> list[Any]:
        """Leave out halves, quarters, …, single parts, as long as the difference stays."""
        size = len(parts)
        while size >= 1:
            at = 0
            while at < len(parts) and runs < SHRINK_RUNS_MAX:
                fewer = parts[:at] + parts[at + size :]
                if differs(build(fewer)):
                    parts = fewer
                else:
                    at += size
            size //= 2
        return parts

    theirs, ours = run_pair(reference, episode, broken)
    first = _first_difference(theirs, ours)
    actions: list[Action] = list(episode.actions[: first + 1])
    if not differs(replace(episode, actions=tuple(actions))):
        actions = list(episode.actions)
    actions = cut(actions, lambda fewer: replace(episode, actions=tuple(fewer)))
    for number, action in enumerate(actions):
        if isinstance(action, Chunks):
            whole = Chunks(action.connection, (b"".join(action.pieces),))
            if differs(replace(episode, actions=(*actions[:number], whole, *actions[number + 1 :]))):
                action = actions[number] = whole
            frames = _frames(action) if len(action.pieces) == 1 else list(action.pieces)

            def with_frames(fewer: list[bytes], number: int = number, action: Chunks = action) -> Episode:
                joined = (b"".join(fewer),) if len(action.pieces) == 1 else tuple(fewer)
                return replace(episode, actions=(*actions[:number], replace(action, pieces=joined), *actions[number + 1 :]))

            actions = list(with_frames(cut(frames, with_frames)).actions)
    smallest = replace(episode, actions=tuple(actions))
    return Difference(smallest, describe(*run_pair(reference, smallest, broken, detailed=True)))


def _frames(action: Chunks) -> list[bytes]:
    """The frames of a chunk, as far as their lengths are right; the rest is one."""
    data = b"".join(action.pieces)
    found = []
    while len(data) >= 4 and 4 <= (size := int.from_bytes(data[:4], "big")) <= len(data) - 4:
        found.append(data[: 4 + size])
        data = data[4 + size :]
    return [*found, data] if data else found


def _first_difference(theirs: Trace, ours: Trace) -> int:
    for number, (one, other) in enumerate(zip(theirs.observed, ours.observed, strict=True)):
        if one != other:
            return number
    return len(theirs.observed)


def describe(theirs: Trace, ours: Trace) -> str:
    """Where two traces part, and what each has there."""
    number = _first_difference(theirs, ours)
    if number == len(theirs.observed):
        return "no difference"
    path, one, other = _descend((), theirs.observed[number], ours.observed[number])
    return f"action {number}, at {'/'.join(map(str, path))}:\n  reference {one!r}\n  here      {other!r}"


def _descend(path: tuple[object, ...], one: Any, other: Any) -> tuple[tuple[object, ...], Any, Any]:
    """The smallest parts that differ."""
    pairs: Iterable[tuple[object, Any, Any]] = ()
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        pairs = ((key, one[key], other[key]) for key in one)
    elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        pairs = zip(range(len(one)), one, other, strict=True)
    elif isinstance(one, bytes) and isinstance(other, bytes) and min(len(one), len(other)) > 400:
        at = next((at for at in range(min(len(one), len(other))) if one[at] != other[at]), min(len(one), len(other)))
        return (*path, f"byte {at}"), one[max(0, at - 40) : at + 60], other[max(0, at - 40) : at + 60]
    for key, left, right in pairs:
        if left != right:
            return _descend((*path, key), left, right)
    return path, one, other
