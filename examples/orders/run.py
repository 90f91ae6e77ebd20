"""Runs the example: a set, the shop, and two order books, one of which is killed; then judges.

python examples/orders/run.py
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).parent
STEPS = ["created", "paid", "packed", "shipped"]
SECONDS_MAX = 120.0

MANIFEST = """
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {name: shop}
spec:
  groups: 2
  replicas: 1
  config: {mappedFileSizeCommitLog: 16777216, maxHashSlotNum: 1000, maxIndexNum: 4000}
"""


def brokerset(*arguments: str) -> None:
    """Run the command."""
    subprocess.run([sys.executable, "-m", "brokerset_cli.main", *arguments], check=True)


def say(text: str) -> None:
    """Say what happens, with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def histories(file: Path) -> dict[str, list[tuple[str, str]]]:
    """By order the steps in the book, and which process wrote each."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    if file.exists():
        with closing(sqlite3.connect(file, timeout=30)) as database:
            rows = database.execute("SELECT name, step, process FROM history ORDER BY number").fetchall()
        for name, step, process in rows:
            found[name].append((step, process))
    return found


def written(file: Path) -> int:
    """Steps in the book so far."""
    try:
        return sum(len(each) for each in histories(file).values())
    except sqlite3.OperationalError:  # its first process has made no tables yet
        return 0


def judge(book: dict[str, list[tuple[str, str]]], orders: int) -> list[str]:
    """What is wrong with the book: each order is to have each step once, in order."""
    problems = [f"{orders} orders were shipped, the book has {len(book)}"] if len(book) != orders else []
    for name, history in sorted(book.items()):
        steps = [step for step, _ in history]
        if steps != STEPS:
            problems.append(f"{name}: {', '.join(steps)}")
    return problems


def trade(namesrv: str, folder: Path, orders: int) -> list[str]:
    """Run shop and book, and kill one process of the book; what is wrong at the end."""
    file = folder / "book.db"
    processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(program: str, name: str, *more: str) -> None:
        command = [sys.executable, str(HERE / program), namesrv, str(folder), *more]
        processes[name] = subprocess.Popen(command)

    def wait_for(count: int) -> None:
        ends = time.monotonic() + SECONDS_MAX
        while written(file) < count and time.monotonic() < ends:
            time.sleep(0.2)

    try:
        for name in ("book-1", "book-2"):
            start("book.py", name, "--name", name)
        start("shop.py", "shop", "--orders", str(orders))
        say(
            f"the shop takes {orders} orders through {', '.join(STEPS)}; every 7th transaction is rolled back"
        )
        wait_for(orders)
        processes["book-1"].kill()
        say(f"book-1 is killed after {written(file)} steps; book-2 goes on within 35 s")
        wait_for(orders * len(STEPS))
        if processes["shop"].wait(SECONDS_MAX):
            return ["the shop has failed"]
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait(30)
    book = histories(file)
    wrote = Counter(writer for history in book.values() for _, writer in history)
    say(", ".join(f"{writer} wrote {count} steps" for writer, count in sorted(wrote.items())))
    return judge(book, orders)


def main() -> int:
    """Run everything in a folder that is removed at the end; 0 if the book is right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="orders-") as name:
        folder = Path(name)
        (folder / "set.yaml").write_text(MANIFEST)
        data = ("--data", str(folder / "data"))
        ports = ("--namesrv-port", "0", "--broker-port", "0", "--http-port", "0")
        try:
            brokerset("up", "--detach", "-f", str(folder / "set.yaml"), *ports, *data)
            brokerset("subject", "create", "orders", "--partitions", "4", *data)
            namesrv = json.loads((folder / "data" / "state.json").read_text())["namesrv"]
            problems = trade(namesrv, folder, options.orders)
        finally:
            brokerset("down", *data)
    for problem in problems:
        say(problem)
    say(
        "the book is WRONG"
        if problems
        else f"the book is right: {options.orders} orders, each step once, in order"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
