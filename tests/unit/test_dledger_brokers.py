"""What the interop suite `dledger-brokers` takes for wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerset_formats.dledger import LedgerEntry
from brokerset_rig import dledger_brokers
from brokerset_rig.dledger_admin import form
from brokerset_rig.dledger_group import count_entries
from brokerset_rig.dledger_load import Place, Stored, gaps


def test_a_queue_with_a_gap_or_a_number_twice_is_reported() -> None:
    """Offsets of a queue are dense from 0 on."""
    whole = [Stored(Place(queue, number, 0), b"") for queue in (0, 1) for number in (0, 1, 2)]

    assert gaps(whole) == []
    assert gaps(whole[:1] + whole[2:]) == ["queue 0: 2 messages, the last is 2"]
    assert gaps([*whole, whole[-1]]) == ["queue 1: 4 messages, the last is 2"]


def test_entries_that_do_not_follow_each_other_are_told(tmp_path: Path) -> None:
    """Index, position and term grow as they must."""
    entries = [LedgerEntry(0, 1, 0, b"a" * 16), LedgerEntry(1, 2, 64, b"b" * 16)]
    end = 128
    file = tmp_path / f"{0:020d}"

    def write(*some: LedgerEntry) -> None:
        file.write_bytes(b"".join(entry.encode() for entry in some).ljust(4_096, b"\0"))

    write(*entries)
    assert count_entries(tmp_path, end) == 2
    assert count_entries(tmp_path, 64) == 1
    for wrong in (LedgerEntry(2, 2, 64, b""), LedgerEntry(1, 0, 64, b""), LedgerEntry(1, 2, 63, b"")):
        write(entries[0], wrong)
        with pytest.raises(AssertionError):
            count_entries(tmp_path, end)


def test_texts_of_mqadmin_are_compared_without_their_values() -> None:
    """Ids, numbers, addresses and times differ from run to run."""
    one = "DefaultCluster broker-a 0 127.0.0.1:10911 0A00000100002A9F0000000000000000 2026-11-26 07:00:00,123"
    other = "DefaultCluster broker-a 3 127.0.0.1:11911 0A00000100002A9F00000000000000FF 2026-11-26 08:00:00,5"

    assert form("topicStatus", one) == form("topicStatus", other)
    assert form("topicStatus", one) != form("topicStatus", one.replace("broker-a", "broker-b"))


def test_a_mix_that_there_is_not_is_refused() -> None:
    """Nothing is started for a name that was mistyped."""
    with pytest.raises(ValueError, match="jjj"):
        dledger_brokers.run(lambda *_: None, ["jjj"])
