"""Identity files of controller mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from brokerset_formats.errors import FormatError
from brokerset_formats.identity import BrokerIdentity


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
