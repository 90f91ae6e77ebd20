"""Two brokers on one episode: this process's, and the reference in a process of its own, without the native core,
where every request comes to its handler by itself.

What differs is cut down to few actions and few bytes, and told with both traces.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection as Pipe
from types import TracebackType
from typing import Any, Final, Self
from unittest import mock

from brokerset_formats import native
from brokerset_rig.send_episodes import Action, Chunks, Episode
from brokerset_rig.send_side import Trace, request_by_request, run_episode

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
            with request_by_request():
                trace = run_episode(episode, detailed=detailed)
            pipe.send(trace)
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


def run_pair(
    reference: Reference, episode: Episode, broken: Broken = nullcontext, *, detailed: bool = False
) -> tuple[Trace, Trace]:
    """The traces of the reference and of this process."""
    reference.begin(episode, detailed=detailed)
    with broken():
        ours = run_episode(episode, detailed=detailed)
    return reference.trace(), ours


def shrunk(reference: Reference, episode: Episode, broken: Broken = nullcontext) -> Difference:
    """The smallest episode that was found in which the two differ."""
    return _Shrinking(reference, episode, broken).result()


class _Shrinking:
    def __init__(self, reference: Reference, episode: Episode, broken: Broken) -> None:
        self._reference = reference
        self._episode = episode
        self._broken = broken
        self._runs = 0

    def result(self) -> Difference:
        first = _first_difference(*run_pair(self._reference, self._episode, self._broken))
        actions = list(self._episode.actions)
        self._take(actions[: first + 1])
        self._shorten(list(self._episode.actions), self._take)
        for number, action in enumerate(self._episode.actions):
            if isinstance(action, Chunks):
                self._take_pieces(number, action, [b"".join(action.pieces)])
                kept = self._episode.actions[number]
                assert isinstance(kept, Chunks)
                whole = len(kept.pieces) == 1
                self._shorten(
                    _frames(kept) if whole else list(kept.pieces),
                    partial(self._take_frames if whole else self._take_pieces, number, kept),
                )
        smallest = self._episode
        return Difference(
            smallest, describe(*run_pair(self._reference, smallest, self._broken, detailed=True))
        )

    def _take(self, actions: list[Action]) -> bool:
        """Go on with these actions, if the two still differ."""
        self._runs += 1
        smaller = replace(self._episode, actions=tuple(actions))
        theirs, ours = run_pair(self._reference, smaller, self._broken)
        if theirs.observed == ours.observed:
            return False
        self._episode = smaller
        return True

    def _take_pieces(self, number: int, action: Chunks, pieces: list[bytes]) -> bool:
        actions = list(self._episode.actions)
        actions[number] = replace(action, pieces=tuple(pieces))
        return self._take(actions)

    def _take_frames(self, number: int, action: Chunks, frames: list[bytes]) -> bool:
        return self._take_pieces(number, action, [b"".join(frames)])

    def _shorten(self, parts: list[Any], take: Callable[[list[Any]], bool]) -> None:
        """Leave out halves, quarters, …, single parts, as long as the difference stays."""
        size = len(parts)
        while size >= 1:
            at = 0
            while at < len(parts) and self._runs < SHRINK_RUNS_MAX:
                fewer = parts[:at] + parts[at + size :]
                if take(fewer):
                    parts = fewer
                else:
                    at += size
            size //= 2


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
        at = next(
            (at for at in range(min(len(one), len(other))) if one[at] != other[at]), min(len(one), len(other))
        )
        return (*path, f"byte {at}"), one[max(0, at - 40) : at + 60], other[max(0, at - 40) : at + 60]
    for key, left, right in pairs:
        if left != right:
            return _descend((*path, key), left, right)
    return path, one, other
