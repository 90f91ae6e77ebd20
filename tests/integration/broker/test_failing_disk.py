"""Processes of brokers whose disk fails."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from brokerset_rig import stack, wire
from brokerset_rig.acked_load import QUEUES, TOPIC, Ledger, create_topic, verify
from brokerset_rig.failing_disks import FailingSyncs

pytestmark = pytest.mark.long

SETTINGS = {"mappedFileSizeCommitLog": str(4 * 1024 * 1024), "maxMessageSize": "1048576",
            "mappedFileSizeConsumeQueue": "60000", "maxHashSlotNum": "10", "maxIndexNum": "4000"}  # fmt: skip


SERVICE_NOT_AVAILABLE = 14


def send(port: int, ledger: Ledger, count: int, *, disk_fails: bool = False) -> None:
    """Send one after the other, and keep what is acknowledged, until a disk that fails refuses."""
    with wire.Client(port) as client:
        for number in range(len(ledger.keys), len(ledger.keys) + count):
            key, body = f"K{number}", b"%d" % number
            answer = client.call(
                wire.SEND_V2, wire.send_ext(TOPIC, number % QUEUES, f"KEYS\x01{key}\x02"), body
            )
            if disk_fails and answer.code == SERVICE_NOT_AVAILABLE:  # a sync has failed meanwhile
                return
            assert answer.code == 0, answer.remark
            ledger.ack(int(answer.ext["queueId"]), int(answer.ext["queueOffset"]), body, key)


@pytest.mark.parametrize("part", ["/commitlog/", "/consumequeue/", "/index/"])
def test_a_broker_whose_syncs_fail_is_not_closed_in_order(tmp_path: Path, part: str) -> None:
    """SIGTERM finds that the disk does not take a file: `abort` stays, without a boot, and the next start has
    everything and gives no queue offset twice."""
    faults = FailingSyncs(tmp_path / "faults")
    (port,) = stack.free_ports(1, below=2)
    broker = stack.our_broker(tmp_path, port, "", SETTINGS)
    broker.environment.update(faults.environment)
    abort = tmp_path / "broker-0" / "store" / "abort"
    ledger = Ledger()
    with broker:
        create_topic(port)
        send(port, ledger, 20)  # now all files have their blocks
        faults.begin(part)
        send(port, ledger, 100, disk_fails=True)
        broker.stop()
        assert abort.read_text().split("\n")[1] == ""
        faults.end()

        broker.start()

        send(port, ledger, 20)
        assert verify(port, ledger, [0] * QUEUES, random.Random(1)) == []
        assert abort.read_text().split("\n")[1] != ""
        assert broker.stop() == 0
        assert not abort.exists()
