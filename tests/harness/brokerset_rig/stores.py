"""Stores handed back and forth: ours read by the Java broker, Java's gone on by ours, and the other way round."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brokerset_formats.records import ends_with_property_crc
from brokerset_rig import stack
from brokerset_rig.store_reading import Stored, read_commit_log

Add = Callable[[str, list[str], float], None]
Verb = Callable[..., dict[str, object]]
RECORDS = {"core": 100_000, "all": 1_000_000}


def loadgen() -> str:
    """Path of the load generator, built now."""
    target = os.environ.get("LOADGEN", str(Path(tempfile.gettempdir()) / "brokerset-loadgen"))
    subprocess.run(["go", "build", "-o", target, "."], cwd=stack.PEERS / "loadgen", check=True)
    return target


def load(program: str, mode: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run([program, mode, *arguments], capture_output=True, text=True, timeout=600)
    if not done.stdout:
        return {"ok": False, "error": done.stderr.strip()[-500:]}
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


def dump(verb: Verb, namesrv: str, folder: Path, name: str) -> dict[str, dict[str, Any]]:
    """Every message of every topic, as the Java client reads it: offset id -> what was read."""
    file = folder / f"{name}.jsonl"
    answer = verb(namesrv, folder, "dump", "topic=dump", f"file={file}")
    if not answer.get("ok"):
        raise stack.StackError(f"dump failed: {answer}")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {f"{line['topic']}/{line['queueId']}/{line['queueOffset']}": line for line in lines}


def run(add: Add, verb: Verb, size: str) -> None:
    _round_trip(add, verb)
    _property_crcs(add)
    _many_records(add, size)


def _round_trip(add: Add, verb: Verb) -> None:
    """Ours writes, Java reads and appends, ours reads all and appends, Java reads all."""
    with stack.Workspace("stores") as folder:
        ports = stack.free_ports(2, below=2)
        kept: dict[str, dict[str, Any]] = {}
        with stack.our_namesrv(folder, ports[0]) as namesrv:
            for round_number, (who, broker) in enumerate(
                [
                    ("ours", stack.our_broker),
                    ("Java", stack.java_broker),
                    ("ours", stack.our_broker),
                    ("Java", stack.java_broker),
                ]
            ):
                before = time.monotonic()
                with broker(folder, ports[1], namesrv.address):
                    _wait_registered(verb, namesrv.address, folder)
                    found = dump(verb, namesrv.address, folder, f"before-{round_number}") if kept else {}
                    lost = [key for key in kept if key not in found]
                    changed = [key for key in kept if key in found and not _same(kept[key], found[key])]
                    problems = [f"{len(lost)} messages are gone, first {lost[0]}"] if lost else []
                    problems += (
                        [f"{len(changed)} messages changed, first {kept[changed[0]]} -> {found[changed[0]]}"]
                        if changed
                        else []
                    )
                    add(
                        f"round {round_number}: {who} finds all {len(kept)} messages of the one before",
                        problems,
                        time.monotonic() - before,
                    )
                    sent = verb(
                        namesrv.address, folder, "send", f"topic=hand-over-{round_number}", "count=200"
                    )
                    batch = verb(
                        namesrv.address, folder, "batch", f"topic=hand-over-batch-{round_number}", "count=32"
                    )
                    again = verb(namesrv.address, folder, "send", "topic=hand-over-all", "count=100")
                    bad = [str(a) for a in (sent, batch, again) if not a.get("ok")]
                    add(f"round {round_number}: {who} goes on writing", bad, 0.0)
                    kept = dump(verb, namesrv.address, folder, f"after-{round_number}")
                    queues: dict[str, list[int]] = {}
                    for line in kept.values():
                        queues.setdefault(f"{line['topic']}/{line['queueId']}", []).append(
                            line["queueOffset"]
                        )
                    holes = [
                        q for q, offsets in queues.items() if sorted(offsets) != list(range(len(offsets)))
                    ]
                    add(f"round {round_number}: queues are dense", holes, 0.0)


def _property_crcs(add: Add) -> None:
    """Brokers of both makes write a CRC over each record, are killed, and recover each other's log.

    Java is told to check it (`forceVerifyPropCRC`), and then ends its log before a record without one.
    """
    program = loadgen()
    write = {"enabledAppendPropCRC": "true"}
    check = {**write, "forceVerifyPropCRC": "true"}
    with stack.Workspace("stores-crc") as folder:
        ports = stack.free_ports(2, below=2)
        kept: list[Stored] = []
        with stack.our_namesrv(folder, ports[0]) as namesrv:
            for who, broker, settings in 2 * [
                ("ours", stack.our_broker, write),
                ("Java", stack.java_broker, check),
            ]:
                before, sent = time.monotonic(), 0
                with broker(folder, ports[1], namesrv.address, settings) as server:
                    where = ("-addr", server.address, "-topic", "TBW102", "-size", "300", "-window", "4")
                    for more in (("-count", "300"), ("-count", "320", "-batch", "32")):
                        sent += int(load(program, "send", *where, *more).get("acked", 0))
                    server.kill()
                records = read_commit_log(folder / "broker-0" / "store")
                without = [each for each in records if not ends_with_property_crc(each.record.properties)]
                problems = [f"the record at {without[0].offset} has no property CRC"] if without else []
                if records[: len(kept)] != kept:
                    problems.append(f"not all of the {len(kept)} records from before are left")
                if not sent or len(records) < len(kept) + sent:
                    problems.append(f"{len(records)} records after {len(kept)} and {sent} new ones")
                add(
                    f"{who} recovers {len(kept)} records with property CRCs, and writes {sent}",
                    problems,
                    time.monotonic() - before,
                )
                kept = records


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    ignored = {"volatile"}
    return {k: v for k, v in a.items() if k not in ignored} == {
        k: v for k, v in b.items() if k not in ignored
    }


def _wait_registered(verb: Verb, namesrv: str, folder: Path) -> None:
    for _ in range(15):
        if verb(namesrv, folder, "route", "topic=TBW102").get("ok"):
            return
    raise stack.StackError(f"the broker did not register with {namesrv}; logs in {folder}")


def _many_records(add: Add, size: str) -> None:
    """A large store of ours, closed cleanly and killed, read completely by the Java broker."""
    program = loadgen()
    count = RECORDS[size]
    with stack.Workspace("stores") as folder:
        ports = stack.free_ports(2, below=2)
        topic, before = "many", time.monotonic()
        with stack.our_namesrv(folder, ports[0]) as namesrv:
            with stack.our_broker(folder, ports[1], namesrv.address) as broker:
                made = subprocess.run(
                    [str(stack.PEERS / "bin" / "mqadmin"), "updateTopic", "-n", namesrv.address, "-b", broker.address, "-t", topic, "-r", "8", "-w", "8"],
                    capture_output=True, text=True, env={**os.environ, "PEERS_RUN": str(folder / "client")},
                )  # fmt: skip
                add("create the topic", [] if "success" in made.stdout else [made.stdout + made.stderr], 0.0)
                wrote = load(
                    program,
                    "send",
                    "-addr",
                    broker.address,
                    "-topic",
                    topic,
                    "-size",
                    "200",
                    "-batch",
                    "32",
                    "-window",
                    "4",
                    "-count",
                    str(count),
                )
                wrote_single = load(
                    program,
                    "send",
                    "-addr",
                    broker.address,
                    "-topic",
                    topic,
                    "-size",
                    "200",
                    "-window",
                    "64",
                    "-count",
                    str(count // 20),
                )
            bad = [str(w) for w in (wrote, wrote_single) if w.get("errors") or not w.get("acked")]
            add(f"ours stores {count + count // 20:,} records", bad, time.monotonic() - before)
            total = int(wrote.get("acked", 0)) + int(wrote_single.get("acked", 0))
            for who, make in (("Java", stack.java_broker), ("ours", stack.our_broker)):
                before = time.monotonic()
                with make(folder, ports[1], namesrv.address) as broker:
                    read = load(program, "pull", "-addr", broker.address, "-topic", topic, "-crc")
                problems = (
                    []
                    if read.get("ok") and read.get("messages") == total
                    else [f"stored {total}, read {read}"]
                )
                add(
                    f"{who} reads {total:,} records of ours, each CRC right",
                    problems,
                    time.monotonic() - before,
                )
