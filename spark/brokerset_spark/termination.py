"""The one sentence that a job which fails leaves for Kubernetes, as its container's termination message.

Without it Kubernetes takes the end of the log, and there Java's warnings stand behind the error.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

TERMINATION_LOG: Final = "BROKERSET_TERMINATION_LOG"
"""Names the file for the sentence. The image of jobs sets it; without it none is written."""

SENTENCE_CHARACTERS_MAX: Final = 420
"""The operator keeps 500 characters for each replica, with the name of the pod."""

_FRAME: Final = re.compile(r'\s*(at [\w.$<>/]+\(|\.\.\. \d+ (more|common)|File "|Traceback )')
"""Lines of stacks, of Java and of Python."""

_CALLING: Final = "An error occurred while calling "
"""How Py4J begins; what happened stands in the next line."""

_CAUSED: Final = ("Caused by: ", "↳ ")
"""How Java names a cause, and how deltalake does."""

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")

_KEYS: Final = re.compile(
    r"AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN)|BROKERSET_REGISTRY_PASSWORD"
    r"|PYICEBERG_CATALOG__.*(URI|CREDENTIAL|TOKEN|SECRET|PASSWORD|ACCESS_KEY|ACCESS-KEY).*"
)
"""Variables whose values a storage, catalog or registry may name in its answer; they are in no sentence."""


def one_line(said: str) -> str:
    """The text of an error without stacks: what it says first, and the last cause that it names."""
    plain = _COLOURS.sub("", said)
    lines = [line.strip().removeprefix(": ") for line in plain.splitlines() if not _FRAME.match(line)]
    lines = [line for line in lines if line and not line.startswith(_CALLING)]
    first = next(iter(lines), " ".join(plain.split()))
    causes = [line.removeprefix(each) for line in lines for each in _CAUSED if line.startswith(each)]
    return f"{first}; caused by {causes[-1]}" if causes and causes[-1] not in first else first


def sentence(job: str, places: Sequence[str], said: str, advice: str = "") -> str:
    """What happened, where, and what to do next; of an error that is too long its end is left out."""
    where = f" of {', '.join(places)}" if places else ""
    begin = f"{job}{where} failed: "[: SENTENCE_CHARACTERS_MAX // 2]
    end = (
        f". What to do: {' '.join(advice.split()).rstrip('.')}"[: SENTENCE_CHARACTERS_MAX // 3]
        if advice
        else ""
    )
    room = SENTENCE_CHARACTERS_MAX - len(begin) - len(end)
    told = one_line(said).rstrip(".")
    if len(told) > room:
        told = f"{told[: room - 1]}…"
    return f"{begin}{told}{end}"


def leave(text: str) -> None:
    """Write it where the environment says. That it cannot be written changes nothing of how a job ends."""
    path = os.environ.get(TERMINATION_LOG)
    if path:
        for name, value in os.environ.items():
            if value and _KEYS.fullmatch(name):
                text = text.replace(value, "***")
        with contextlib.suppress(OSError):
            Path(path).write_text(text, encoding="utf-8")
