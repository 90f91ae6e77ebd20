"""Sends to a DLedger group of three, ours and Java's one after the other: `dledger.py [--size small|full] [--only ours|java]`.

Uses the load generator of `tests/peers`, which checks every answer. Both count a message when it is in the memory of two members. Only
ratios of one run mean something. Exit status 1 when an answer was wrong.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from brokerset_protocol.bodies.dledger import DLedgerRequestCode, MetadataRequest, MetadataResponse
from brokerset_protocol.commands import Command
from brokerset_rig import stack
from brokerset_rig.measuring import arguments, makes, markdown, middle, ratio, shown, wrong_answers
from brokerset_runtime.peer_requests import PoolRequester
from brokerset_runtime.remoting import ConnectionClosed, ConnectionPool, RequestTimeout

PEERS_BENCH = stack.PEERS / "bench"
LOADGEN = Path("/tmp/brokerset-loadgen")
CASES = "send-1k-sync1,send-1k-sync16,send-1k-sync64,send-1k-batch32"
GROUP = "broker-a"
LEADER_SECONDS_MAX = 90.0
FILE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    runs: int
    seconds: float


SIZES = {"small": Size(1, 4), "full": Size(3, 8)}


async def find_leader(peers: Mapping[str, str]) -> str:
    """The id of the member that says it leads. Raises `StackError`."""
    pool = ConnectionPool()
    requester = PoolRequester(pool)
    deadline = time.monotonic() + LEADER_SECONDS_MAX
    try:
        while time.monotonic() < deadline:
            for member, address in peers.items():
                body = MetadataRequest(group=GROUP, remote_id=member).to_json()
                try:
                    answer = await requester.ask(address, Command(DLedgerRequestCode.METADATA, body=body), 2)
                except (ConnectionClosed, RequestTimeout):
                    continue
                if MetadataResponse.from_json(answer.body).leader_id == member:
                    return member
            await asyncio.sleep(0.2)
    finally:
        await pool.close()
    raise stack.StackError("nobody leads the group")


def sends(who: str, size: Size, out: Path) -> None:
    """Start a group, and send to its leader."""
    with stack.Workspace("dledger-bench") as folder, ExitStack() as running:
        ports = stack.free_ports(3, below=3)
        names = stack.free_port()
        ledgers = dict(zip(("n0", "n1", "n2"), stack.free_ports(3), strict=True))
        start_names, start_broker = {
            "ours": (stack.our_namesrv, stack.our_broker),
            "java": (stack.java_namesrv, stack.java_broker),
        }[who]
        running.enter_context(start_names(folder / "namesrv", names))
        brokers = {}
        for (member, _), port in zip(ledgers.items(), ports, strict=True):
            settings = {
                "brokerName": GROUP,
                "enableDLegerCommitLog": "true",
                "dLegerGroup": GROUP,
                "dLegerSelfId": member,
                "dLegerPeers": ";".join(f"{name}-127.0.0.1:{ledger}" for name, ledger in ledgers.items()),
                "mappedFileSizeCommitLog": str(FILE_BYTES),
                **({"dLegerBrokersetOnly": "true"} if who == "ours" else {}),
            }
            broker = start_broker(folder / member, port, f"127.0.0.1:{names}", settings)
            brokers[member] = running.enter_context(broker)
        leader = brokers[asyncio.run(find_leader({m: f"127.0.0.1:{p}" for m, p in ledgers.items()}))]
        pids = ",".join(str(broker.pid) for broker in brokers.values())
        subprocess.run(
            [sys.executable, str(PEERS_BENCH / "throughput.py"), "--broker", leader.address, "--pids", pids, "--name", f"{who}/dledger",
             "--out", str(out), "--cases", CASES, "--runs", str(size.runs), "--seconds", str(size.seconds),
             "--prewarm", "2" if who == "ours" else "10"],
            check=True, env={**os.environ, "LOADGEN": str(LOADGEN)},
        )  # fmt: skip


ROWS = [
    (label if key == "perSecond" else f"… {key.removesuffix('ms')}", f"dledger/{case}", key, "/s" if key == "perSecond" else "ms")
    for label, case in (
        ("send 1 KB to 3 members, one at a time", "send-1k-sync1"),
        ("… window 16", "send-1k-sync16"),
        ("… window 64", "send-1k-sync64"),
        ("… batches of 32", "send-1k-batch32"),
    )
    for key in ("perSecond", "p50ms", "p99ms")
]  # fmt: skip


def table(results: Mapping[str, Mapping[str, object]]) -> str:
    """Java's, ours, the ratio."""
    rows = []
    for label, entry, key, unit in ROWS:
        java, ours = (middle(results.get(f"{who}/{entry}", {}), key) for who in ("java", "ours"))
        rows.append((label, shown(java, unit), shown(ours, unit), ratio(ours, java)))
    return markdown(("what", "Java", "ours", "ours / Java"), rows)


def main() -> int:
    options = arguments(__doc__, "bench-dledger.json", SIZES).parse_args()
    who_is_measured = makes(options)
    if options.only is None:
        options.out.unlink(missing_ok=True)
    subprocess.run(["go", "build", "-o", str(LOADGEN), "."], cwd=stack.PEERS / "loadgen", check=True)
    for who in who_is_measured:
        sends(who, SIZES[options.size], options.out)
    results = json.loads(options.out.read_text())
    print(f"\n{table(results)}\n")
    wrong = wrong_answers(results)
    if wrong:
        print(f"wrong answers in: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
