"""Judges kept histories of `brokerset bench failover`: `python -m brokerset_rig.history_check FILE...`.

Reads JSON lines and nothing else; what counts as a violation is told in `brokerset_bench.history`, for
transactions and timers in `brokerset_bench.event_log`.
Prints one JSON object for each file. Exit status 1 when a promise was broken, 2 when a file cannot be read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from brokerset_bench.event_log import MessageVerdict, Subject
from brokerset_bench.history import Verdict, check, read_events
from brokerset_bench.message_loads import CHECKS


def check_file(path: Path) -> Verdict | MessageVerdict:
    """Judge one history, by the judge that its first event names, if it names one.

    Raises `OSError` or `ValueError` when it cannot be read.
    """
    with path.open("rb") as lines:
        try:
            events = list(read_events(lines))
            if events and events[0]["kind"] == "subject":
                return CHECKS[Subject(events[0]["of"])](events)
            return check(events)
        except (KeyError, TypeError) as error:
            raise ValueError(f"an event lacks {error}") from error


def main(arguments: Sequence[str]) -> int:
    """Judge every file; returns the exit status."""
    if not arguments:
        print(__doc__)
        return 2
    status = 0
    for name in arguments:
        try:
            verdict = check_file(Path(name))
        except (OSError, ValueError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
        print(json.dumps({"file": name, **verdict.to_object()}))
        status = status if verdict.ok else 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
