"""What every thread and task of this process does now, as text: our answer where Java's clients send a
jstack."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from types import FrameType
from typing import Final

TASKS_MAX: Final = 500
"""Tasks that are shown; how many more there are is said."""

FRAMES_MAX: Final = 16
"""Frames of one thread or task, the innermost ones."""

SIZE_MAX: Final = 512 * 1024
"""Characters of the whole text."""


def stack_dump() -> str:
    """Threads first, then the tasks of the running loop, with the place at which each is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, '?')} {ident}\n{''.join(traceback.format_stack(frame, FRAMES_MAX))}"
        for ident, frame in sys._current_frames().items()
    ]
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    parts += [
        f"task {task.get_name()}\n{_frames(task.get_stack(limit=FRAMES_MAX))}" for task in tasks[:TASKS_MAX]
    ]
    if len(tasks) > TASKS_MAX:
        parts.append(f"and {len(tasks) - TASKS_MAX} more tasks\n")
    text = "\n".join(parts)
    return text if len(text) <= SIZE_MAX else text[:SIZE_MAX] + "\n… and more\n"


def _frames(frames: list[FrameType]) -> str:
    summary = traceback.StackSummary.extract(((frame, frame.f_lineno) for frame in frames), lookup_lines=True)
    return "".join(summary.format())
