"""The table in `docs/ordered.md`: what ordered subjects promise, and the tests that show it.

A test says in its docstring which it shows: `(statement 43)`, `(statements 43, 56)`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from generate.marked import replaced

TESTS: Final = Path(__file__).parents[1] / "tests"
SHOWN_MAX: Final = 3
"""Tests that are named for one statement."""

NONE: Final = "*none yet*"

NAMED: Final = re.compile(r"\(statements? ([0-9]+(?:, ?[0-9]+)*)\)")

PARTS: Final = {
    "Routing": range(1, 11),
    "Controllers": range(11, 23),
    "Producer": range(23, 37),
    "Consumer": range(37, 53),
    "Broker": range(53, 71),
    "Faults": range(71, 83),
}

STATEMENTS: Final = {
    1: "Key hash and logical partition equal the vectors, with surrogates, empty key, least integer",
    2: "Ranges of 1 to 1,024 partitions cover each logical partition once; other counts are refused",
    3: "One key and one version of the route give the same partition at every producer",
    4: "Messages without a key spread over logical partitions; the empty key is a key",
    5: "The default route outlives restarts of controllers and new broker groups",
    6: "The default route has exactly the configured number of broker groups when there are more",
    7: "A consumer never creates a subject",
    8: "Producers that create a subject at the same time get one and the same",
    9: "Names with forbidden characters, or too long ones, are refused",
    10: "A broker group that is out of service gets no new partitions, for all clients",
    11: "Each partition has one owner in a group; counts of members differ by one at most",
    12: "Members beyond the number of partitions get nothing, and nothing is moved again and again",
    13: "Two controllers that reassign at once change the version once",
    14: "Nothing changes while membership and partitions stay",
    15: "A member more or less moves as few partitions as possible",
    16: "A leaving member is replaced at once, a dead one after permission and margins",
    17: "The last member may leave; the next one goes on",
    18: "Older assignments that arrive late are ignored",
    19: "Controllers that are away change nothing at clients; Strict consumers stop in time and resume",
    20: "Differences of wall clocks do not matter",
    21: "A group stays Exclusive; members that want it otherwise are refused",
    22: "Two processes with one client id never own one partition",
    23: "One batch of a partition is on its way at a time",
    24: "A refused message of a batch does not change the order of the others",
    25: "A lost answer stores nothing twice",
    26: "A restarted producer fences the process before",
    27: "Strict: a broker that is down for long loses and reorders nothing",
    28: "Strict: busy and blocked answers drop nothing and let nothing pass",
    29: "BestTried: other groups take over, tries are bounded, one failure is reported",
    30: "Memory is bounded with a dead broker; sends wait or raise",
    31: "A message that cannot be sent fails alone",
    32: "Retries back off",
    33: "A master that moves is found without a restart",
    34: "Outbox: a crash between commit and send keeps the order",
    35: "Outbox: what was rolled back is never sent",
    36: "One message object sent twice is two messages",
    37: "A key has one handler at a time, anywhere",
    38: "Strict: a failed message is tried again, spaced, and stops its key alone",
    39: "BestTried: a failed message comes again later, and at last as a dead letter",
    40: "A copy for retry reaches its own group only",
    41: "A message without an answer is handled again after its deadline, not at once",
    42: "BestTried: a message that is never answered does not stop its partition",
    43: "Acknowledgements are contiguous ranges, whatever the order of completion",
    44: "Messages without acknowledgement are bounded for each partition",
    45: "A changed assignment touches only what has changed",
    46: "When a partition is given up, no handler starts and acks are stored first",
    47: "Giving up partitions of one subject delays no heartbeat of another",
    48: "Without permission nothing new starts, in handlers and pulls alike",
    49: "Without permission the lock is not renewed, and a successor starts in time",
    50: "Leaving stops handlers, and not pulls alone",
    51: "An idempotence filter skips what was completed",
    52: "Nothing runs on after close",
    53: "The lock: one holder, again for itself, ends with its time, released by its holder alone",
    54: "After a restart of the broker a lower epoch is refused",
    55: "A stale epoch changes nothing",
    56: "An acknowledgement with a gap is refused",
    57: "An acknowledgement beyond what was given is refused",
    58: "Repeated acknowledgements are harmless",
    59: "Shared: gaps of acknowledgements go to the retry topic once",
    60: "A new owner begins behind the last ack; a lost answer to a pull loses nothing",
    61: "Exclusive keeps no pull log; Shared does",
    62: "Long polls wake on new messages, end in time, and end with their connection",
    63: "A parked pull of an old owner ends and cannot take the lock again",
    64: "A filtered pull goes on, with true offsets",
    65: "A killed broker keeps what was confirmed, and truncates what was half written",
    66: "A position behind the end after a failover is an explicit error; nothing is skipped",
    67: "A confirmed message survives the loss of the master's disk",
    68: "A lock that is taken and a bad parameter have different codes",
    69: "A message for retry is not visible before its delay",
    70: "Resetting offsets works for Exclusive groups, and fences the owner first",
    71: "Consumers are killed and started at random",
    72: "A consumer is paused beyond its permission; its late acks and tokens are refused",
    73: "Brokers are restarted and killed",
    74: "Masters are exchanged",
    75: "Controllers are restarted, and cut off from each other",
    76: "2, 4, 3 and 8 partitions under load, with slow consumers and an idle producer",
    77: "Consumers join and leave every second",
    78: "Each link is cut, and both of a client at once",
    79: "Wall clocks jump by five minutes",
    80: "All of it at once, for ten minutes",
    81: "BestTried under the same faults loses nothing; disorder is counted",
    82: "Clocks whose rates differ by 10 % pass with 30 s and a margin of 5 s",
}
"""In the words of this project; from 71 on, what is done while keys have to keep their order."""


def tests_by_statement(root: Path) -> dict[int, list[str]]:
    """By statement the tests that say they show it, as `unit/x/test_y.py::test_z`."""
    found: dict[int, list[str]] = {}
    for file in sorted(root.rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if "(statement" not in text:
            continue
        for name, numbers in _shown(ast.parse(text)):
            for number in numbers:
                found.setdefault(number, []).append(f"{file.relative_to(root)}::{name}")
    return found


def _shown(tree: ast.Module) -> Iterator[tuple[str, list[int]]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        docstring = " ".join((ast.get_docstring(node) or "").split())
        numbers = [int(each) for group in NAMED.findall(docstring) for each in group.split(",")]
        if numbers:
            yield node.name, numbers


def table() -> str:
    """The tables, one for each part."""
    tests = tests_by_statement(TESTS)
    lines: list[str] = []
    for part, numbers in PARTS.items():
        lines += [f"**{part}**", "", "| | statement | tests |", "| --- | --- | --- |"]
        for number in numbers:
            named = tests.get(number, [])
            shown = _spread(named)
            cell = ", ".join(f"`{test}`" for test in shown) or NONE
            more = ", …" if len(named) > len(shown) else ""
            lines.append(f"| {number} | {STATEMENTS[number]} | {cell}{more} |")
        lines.append("")
    missing = [str(number) for number in STATEMENTS if number not in tests]
    lines.append(f"Without a test yet: {', '.join(missing) or 'none'}.")
    return "\n".join(lines)


def _spread(tests: list[str]) -> list[str]:
    """Some of the tests, of as many files as there are."""
    by_file: dict[str, list[str]] = {}
    for test in tests:
        by_file.setdefault(test.split("::")[0], []).append(test)
    firsts = [named[0] for named in by_file.values()]
    rest = [test for named in by_file.values() for test in named[1:]]
    return [*firsts, *rest][:SHOWN_MAX]


def renewed(page: str) -> str:
    """The page with the tables as they are now."""
    return replaced(page, "statements", table())
