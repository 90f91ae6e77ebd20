"""An audit of three replicas that run: clean under load, and a byte that is changed behind their back is named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerset_rig.local_set import LocalSet, Sending, local_set
from brokerset_rig.replica_stores import flip

MANIFEST = """
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {name: audited}
spec:
  replicas: 3
  config: {mappedFileSizeCommitLog: 4194304, maxMessageSize: 1048576, maxHashSlotNum: 1000, maxIndexNum: 4000}
"""
BODY = b"x" * 4000
BEFORE = 1_200
"""Messages before the first audit: more than one file of the log."""


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSet]:
    """A group of three brokers with a controller."""
    with local_set(tmp_path_factory.mktemp("audited"), MANIFEST) as found:
        found.until_whole()
        yield found


def audit(folder: Path, stores: list[str], view: dict[str, Any], code: int) -> dict[str, Any]:
    """The report of the command, given what the brokers and their controllers said just before."""
    (folder / "status.json").write_text(json.dumps(view))
    confirmed = min(each["confirmedOffset"] for each in view["groups"][0]["replicas"])
    command = [
        sys.executable, "-m", "brokerset_spark", "audit", "run", *stores, "--json",
        "--confirm-offset", str(confirmed),
        "--controller", str(folder / "status.json"), "--page", str(folder / "audit.html"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_three_live_replicas_are_clean_under_load_and_a_flipped_byte_is_named(
    trio: LocalSet, tmp_path: Path
) -> None:
    """The byte is changed in a store whose broker was stopped; the other two go on."""
    processes = trio.processes("broker")
    stores = {name: str(Path(each["folder"]) / "store") for name, each in processes.items()}

    with Sending(trio, "audited", body=lambda _: BODY.decode(), pause=0, at_least=BEFORE) as sending:
        live = audit(tmp_path, list(stores.values()), trio.status(), 0)
        sent = len(sending.acknowledged)

    assert [each for each in live["findings"] if each["level"] == "error"] == []
    assert live["counters"]["bytesNotCompared"] == 0
    compared = [pair["to"] - pair["from"] for pair in live["facts"]["pairs"]]
    assert min(compared) > 4_194_304
    assert all(each["written"] for each in live["facts"]["replicas"])
    assert sent >= BEFORE

    group = trio.status()["groups"][0]
    victim = next(each for each in group["replicas"] if each["brokerId"] != group["masterId"])
    name = str(victim["process"])
    before = trio.until(
        lambda view: all(r["lagBytes"] == 0 for r in view["groups"][0]["replicas"]), "nobody is behind"
    )
    supervisor = int(trio.state()["pid"])
    os.kill(supervisor, signal.SIGSTOP)  # it would start the broker again
    try:
        os.kill(int(trio.processes("broker")[name]["pid"]), signal.SIGKILL)
        first_file = (Path(stores[name]) / "commitlog" / f"{0:020d}").read_bytes()
        offset = first_file.index(BODY, 2_000_000) + 1_000
        flip(Path(stores[name]), offset)
        damaged = audit(tmp_path, list(stores.values()), before, 1)
    finally:
        os.kill(supervisor, signal.SIGCONT)

    found = [each for each in damaged["findings"] if each["code"] == "bytes"]
    assert {each["store"] for each in found} == {stores[name]}
    assert all(each["offset"] <= offset < each["offset"] + len(BODY) + 600 for each in found)
    first = next(pair["firstDifference"] for pair in damaged["facts"]["pairs"] if pair["firstDifference"])
    assert first["offset"] + first["byte"] == offset
    assert {first["one"]["topic"], first["other"]["topic"]} == {"audited"}
    assert f"{group['brokerName']}/{victim['brokerId']} must not become master" in damaged["facts"]["verdict"]
    assert "Not in order" in (tmp_path / "audit.html").read_text()
