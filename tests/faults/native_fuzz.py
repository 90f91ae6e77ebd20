"""The byte work of the native core under libFuzzer: `native_fuzz.py [--seconds 10]`, for each of its targets.

The fuzzers call what knows nothing of Python, with checks of overflows, and begin with what the Python
encoders write. They are built by stable Rust: its compiler has the counters of coverage that libFuzzer reads.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from brokerset_formats.batches import BatchItem, encode_batch
from brokerset_formats.hosts import Host
from brokerset_formats.names import TIMER_TOPIC
from brokerset_formats.properties import encode_properties
from brokerset_formats.queue_units import UNIT
from brokerset_formats.records import Record, encode_record
from brokerset_formats.timer_files import TimerUnit
from brokerset_protocol.commands import Command, encode

CRATE = Path(__file__).parents[2] / "native" / "fuzz"
COVERAGE = (
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "--cfg=fuzzing",
)
"""What cargo-fuzz gives to the compiler, without the sanitizers, which only nightly Rust has."""

HOST = Host(bytes([127, 0, 0, 1]), 10911)
END = {
    "producerGroup": "g", "tranStateTableOffset": "7", "commitLogOffset": "700", "commitOrRollback": "8",
    "fromTransactionCheck": "false", "msgId": "id", "transactionId": "id",
}  # fmt: skip
WAITING = [
    encode_properties(each)
    for each in (
        {"TRAN_MSG": "true", "PGROUP": "g", "UNIQ_KEY": "id", "REAL_TOPIC": "t", "REAL_QID": "1"},
        {"UNIQ_KEY": "id", "TIMER_DELAY_MS": "5", "TIMER_OUT_MS": "77", "REAL_TOPIC": "t", "REAL_QID": "1"},
        {"UNIQ_KEY": "id", "TIMER_DELAY_SEC": "5"},
    )
]
INPUT_SIZE_MAX = 4096
BUILD_SECONDS_MAX = 600
STOP_SECONDS_MAX = 120
RUNS = re.compile(r"^Done (\d+) runs", re.M)


def seeds() -> dict[str, list[bytes]]:
    """Inputs of each target that are right, and say much of what a client can say."""
    properties = [
        encode_properties(each)
        for each in (
            {},
            {"UNIQ_KEY": "7F0000010001"},
            {"KEYS": "order-1 order-2", "UNIQ_KEY": "7F0000010001", "WAIT": "true", "TAGS": "paid"},
            {"TAGS": "größer", "DELAY": "3", "TRAN_MSG": "true", "WAIT": "false"},
        )
    ]
    batches = [
        encode_batch(
            BatchItem(flag=number, body=b"x" * number, properties=each) for number, each in enumerate(some)
        )
        for some in (properties, properties[:1], [])
    ]
    frames = [
        encode(Command(code, _fields(text.decode(), batch=code == 320), body, opaque=number))
        for number, text in enumerate(properties)
        for code, body in ((310, b"body"), (320, batches[0]))
    ]
    pull = {
        "consumerGroup": "group", "topic": "topic", "queueId": "1", "queueOffset": "7", "maxMsgNums": "32",
        "sysFlag": "2", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "a || b",
        "subVersion": "1790000000000", "expressionType": "TAG",
    }  # fmt: skip
    frames.append(encode(Command(11, pull, b"", opaque=9)))
    timer = encode_record(
        Record(
            queue_id=0, queue_offset=0, offset=0, born_timestamp=1, born_host=HOST, store_timestamp=12_345,
            store_host=HOST, body=b"body", topic=TIMER_TOPIC,
            properties=b"TIMER_OUT_MS\x0120000\x02REAL_TOPIC\x01t\x02REAL_QID\x013\x02",
        )
    )  # fmt: skip
    logs = [_log(properties, crc=crc) for crc in (False, True)]
    return {
        "sends": [*frames, b"".join(frames)],
        "scan": [bytes([flags]) + log for flags in (0, 2) for log in logs],
        "batches": batches,
        "properties": properties,
        "filters": [bytes([0, 1]) + _unit(0, len(log)) + log for log in logs],
        "links": [bytes([1]) + _unit(0, len(timer)) + timer],
        "waiting": [
            encode(Command(37, END, opaque=7))[8:],
            *(_log([each], crc=crc, topic="T") for each in WAITING for crc in (False, True)),
            *WAITING,
            TimerUnit(-1, 1, 1_000, 0, 9, 99, 7).encode() * 3,
        ],
        "index": [bytes([1]), bytes([39, *range(256)]), bytes(1 + 40 + 7 * 4)],
    }


def _log(properties: list[bytes], *, crc: bool, topic: str | None = None) -> bytes:
    """Records of one queue, one behind the other."""
    log = b""
    for number, each in enumerate(properties):
        record = Record(
            queue_id=1, queue_offset=0, offset=len(log), born_timestamp=1, born_host=HOST, store_timestamp=2,
            store_host=HOST, body=b"body", topic=topic or f"topic-{number}", properties=each,
        )  # fmt: skip
        log += encode_record(record, property_crc=crc)
    return log


def _unit(offset: int, size: int) -> bytes:
    """A unit of a queue."""
    return UNIT.pack(offset, size, 0)


def _fields(properties: str, *, batch: bool) -> dict[str, str]:
    return {
        "a": "group", "b": "topic", "c": "TBW102", "d": "8", "e": "1", "f": "0", "g": "1790000000000", "h": "0",
        "i": properties, "j": "0", "k": "false", "l": "16", "m": str(batch).lower(), "n": "broker",
    }  # fmt: skip


def build(cargo: str) -> Path:
    """Build all targets; returns the folder with the programs. A failure shows what the compiler said."""
    told = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    target = re.search(r"^host: (.+)$", told, re.M)
    assert target is not None, told
    environment = {**os.environ, "RUSTFLAGS": " ".join(COVERAGE)}
    # With a target the flags are not given to what runs while building.
    command = [cargo, "build", "--quiet", "--release", "--locked", "--target", target[1]]
    subprocess.run(command, cwd=CRATE, env=environment, check=True, timeout=BUILD_SECONDS_MAX)
    return Path(os.environ.get("CARGO_TARGET_DIR", CRATE / "target")) / target[1] / "release"


def run(program: Path, inputs: list[bytes], seconds: int, seed: int) -> int:
    """Run one target; returns the number of inputs that it tried, 0 if one of them failed."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder)
        for number, data in enumerate(inputs):
            (corpus / f"seed-{number}").write_bytes(data)
        found = CRATE / "artifacts" / f"{program.name}-"
        found.parent.mkdir(exist_ok=True)
        command = [
            str(program),
            str(corpus),
            f"-max_total_time={seconds}",
            f"-seed={seed}",
            f"-artifact_prefix={found}",
        ]
        done = subprocess.run(
            [*command, f"-max_len={INPUT_SIZE_MAX}", "-print_final_stats=0", "-verbosity=1"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds + STOP_SECONDS_MAX,
        )
    runs = RUNS.search(done.stderr)
    if done.returncode or runs is None:
        print(done.stderr[-4000:])
        return 0
    return int(runs[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=10, help="of each target")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    cargo = shutil.which("cargo")
    if cargo is None:
        print("the fuzzers cannot be built: install cargo (Rust) and a C++ compiler")
        return 1
    folder = build(cargo)
    inputs = seeds()
    targets = [each["name"] for each in tomllib.loads((CRATE / "Cargo.toml").read_text())["bin"]]
    assert inputs.keys() == set(targets), "every target has seeds"
    failed = []
    for name in targets:
        runs = run(folder / name, inputs[name], given.seconds, given.seed)
        print(f"{name}: {f'{runs:,} inputs' if runs else 'FAILED'}", flush=True)
        if not runs:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}; the inputs lie in {CRATE / 'artifacts'}, seed {given.seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
