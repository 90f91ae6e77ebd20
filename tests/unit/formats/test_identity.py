"""Identity files of controller mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from brokerset_formats.errors import FormatError
from brokerset_formats.hashing import crc31
from brokerset_formats.identity import TRIED_NONCES_MAX, BrokerIdentity, StartRecord


def test_files_of_a_java_store(unpack: Callable[[str, str], Path]) -> None:
    """Both replicas' identities decode and encode to the same bytes."""
    folder = unpack("controller-mode", "broker-").parent
    for broker, broker_id in (("broker-0", 1), ("broker-1", 2)):
        data = (folder / broker / "store" / "brokerIdentity").read_bytes()

        identity = BrokerIdentity.decode(data)

        assert identity == BrokerIdentity("DefaultCluster", "broker-a", broker_id)
        assert identity.encode() == data


def test_while_the_id_is_claimed() -> None:
    """The temporary file has a check code."""
    identity = BrokerIdentity("DefaultCluster", "broker-a", 2, "10.0.0.2:10911;1726700000000")

    assert identity.encode() == b"DefaultCluster#broker-a#2#10.0.0.2:10911;1726700000000"
    assert BrokerIdentity.decode(identity.encode()) == identity


@pytest.mark.parametrize(
    "data",
    [b"", b"a#b", b"a#b#x", b"#b#1", b"a#b#1#", b"a#b#1#c#d", b"a#b#-1", b"\xff#b#1", b"a#b#1" + b"0" * 5000],
)
def test_damaged_files(data: bytes) -> None:
    """Short, empty and garbled files are refused."""
    with pytest.raises(FormatError):
        BrokerIdentity.decode(data)


@pytest.mark.parametrize(
    "identity",
    [
        BrokerIdentity("a#b", "c", 1),
        BrokerIdentity("", "c", 1),
        BrokerIdentity("a", " c", 1),
        BrokerIdentity("a", "c", -1),
        BrokerIdentity("a", "c", 1, "x#y"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(identity: BrokerIdentity) -> None:
    """Names with the separator are refused before they reach the disk."""
    with pytest.raises(FormatError):
        identity.encode()


@pytest.mark.parametrize(
    "record",
    [
        StartRecord(),
        StartRecord("a1", None, (), "10.0.0.2:10911;1726700000000", 4, 7, "0c1d-2e"),
        StartRecord("a1", "b2", ("c3", "d4"), "[::1]:10911;1", 4, 2**31 - 1, ""),
        StartRecord(None, "b2", tuple(f"t{number}" for number in range(TRIED_NONCES_MAX))),
    ],
)
def test_a_start_record_is_read_back(record: StartRecord) -> None:
    """As one line without an end, of version 1, with a checksum."""
    data = record.encode()

    assert StartRecord.decode(data) == record
    assert data.startswith(b"1#")
    assert b"\n" not in data


def test_every_changed_byte_of_a_start_record_is_noticed() -> None:
    """And every cut: a wrong nonce would lock the broker out, or let a copy in."""
    data = StartRecord("a1", "b2", ("c3",), "10.0.0.2:10911;1", 4, 7, "boot").encode()

    for position in range(len(data)):
        with pytest.raises(FormatError):
            StartRecord.decode(data[:position])
        with pytest.raises(FormatError):
            StartRecord.decode(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])


@pytest.mark.parametrize(
    "fields",
    [
        "2#########",
        "1#a#b##x#1#2",
        "1#a b#c##x#1#2#boot",
        "1#a#b##x#-1#2#boot",
        "1#a#b##x#1#9999999999999999999#boot",
        "1#a#b##x#1#2#b/t",
        "1#a#b#" + ",".join(["t"] * 65) + "#x#1#2#boot",
        "1#a#b##x#1#2#\udcff",
    ],
)
def test_a_start_record_with_a_right_checksum_may_be_wrong_all_the_same(fields: str) -> None:
    """Other versions, too few or too many parts, values out of bounds."""
    data = fields.encode(errors="surrogateescape")

    with pytest.raises(FormatError):
        StartRecord.decode(data + b"#%d" % crc31(data))


@pytest.mark.parametrize(
    "record",
    [
        StartRecord("a#b"),
        StartRecord(""),
        StartRecord(tried_nonces=("a,b",)),
        StartRecord(check_code="a#b"),
        StartRecord(next_broker_id=-1),
        StartRecord(boot_id="a#b"),
    ],
)
def test_a_start_record_that_could_not_be_read_back_is_not_written(record: StartRecord) -> None:
    """The separators are kept out."""
    with pytest.raises(FormatError):
        record.encode()


def test_a_start_file_of_any_size_is_refused_quickly() -> None:
    """It has a few hundred bytes."""
    with pytest.raises(FormatError):
        StartRecord.decode(b"1#" + b"a" * 5000)
