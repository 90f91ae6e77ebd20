"""Hosts and message ids."""

from __future__ import annotations

import pytest

from brokerset_formats.errors import FormatError
from brokerset_formats.hosts import Host
from brokerset_formats.message_ids import UniqueIds, decode_offset_id, encode_offset_id

LOCAL = Host.from_text("127.0.0.1", 10911)
NOVEMBER_2023_MS = 1_698_796_800_000


def test_offset_id_vector() -> None:
    """The verified id of 127.0.0.1:10911 at offset 4096."""
    assert encode_offset_id(LOCAL, 4096) == "7F00000100002A9F0000000000001000"
    assert decode_offset_id("7F00000100002A9F0000000000001000") == (LOCAL, 4096)


def test_offset_id_with_ipv6() -> None:
    """With 16 address bytes the id has 56 digits."""
    host = Host.from_text("fd00::1", 10911)

    text = encode_offset_id(host, 1 << 40)

    assert len(text) == 56
    assert decode_offset_id(text) == (host, 1 << 40)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7F",
        "x" * 32,
        "7F00000100002A9F 000000000001000",
        "7F00000100002A9F  00000000001000",
        "0" * 57,
        "é" * 32,
    ],
)
def test_no_offset_id(text: str) -> None:
    """Other text is refused."""
    with pytest.raises(FormatError):
        decode_offset_id(text)


def test_hosts() -> None:
    """Hosts are 8 or 20 bytes, and IPv4 addresses in IPv6 form become IPv4."""
    assert LOCAL.encode().hex() == "7f00000100002a9f"
    assert Host.decode(LOCAL.encode()) == LOCAL
    assert LOCAL.text == "127.0.0.1:10911"
    assert not LOCAL.v6
    six = Host.from_text("fe80::1%eth0", 80)
    assert six.v6
    assert six.text == "[fe80::1]:80"
    assert Host.decode(b"xx" + six.encode(), 2, v6=True) == six
    assert Host.from_text("::ffff:10.0.0.1", 1) == Host(bytes([10, 0, 0, 1]), 1)


def test_bad_hosts() -> None:
    """Names, wrong ports and cut bytes are refused."""
    for address, port in (("localhost", 1), ("", 1), ("127.0.0.1", -1), ("127.0.0.1", 65536)):
        with pytest.raises(FormatError):
            Host.from_text(address, port)
    with pytest.raises(FormatError):
        Host.decode(LOCAL.encode()[:7])
    with pytest.raises(FormatError):
        Host.decode(LOCAL.encode(), v6=True)


def test_unique_ids_have_the_layout_of_java() -> None:
    """Address, process, maker, milliseconds of the month, counter."""
    ids = UniqueIds(LOCAL.address, 0x10F2A, 0x18B4AAC2)

    assert ids.next_id(NOVEMBER_2023_MS + 10) == "7F0000010F2A18B4AAC20000000A0001"
    assert ids.next_id(NOVEMBER_2023_MS + 10) == "7F0000010F2A18B4AAC20000000A0002"
    assert ids.next_id(NOVEMBER_2023_MS - 1) == f"7F0000010F2A18B4AAC2{31 * 86_400_000 - 1:08X}0003"
    assert ids.next_id(NOVEMBER_2023_MS + 30 * 86_400_000) == "7F0000010F2A18B4AAC2000000000004"
    assert len(UniqueIds(bytes(16), 1, 1).next_id(0)) == 56


def test_unique_ids_count_from_the_local_month() -> None:
    """East of Greenwich the month begins earlier."""
    ids = UniqueIds(LOCAL.address, 1, 1, utc_offset_ms=3_600_000)

    assert ids.next_id(NOVEMBER_2023_MS)[-12:-4] == f"{3_600_000:08X}"


def test_unique_ids_do_not_repeat_within_a_millisecond() -> None:
    """The counter tells apart all ids that one millisecond can hold."""
    ids = UniqueIds(LOCAL.address, 1, 1)

    assert len({ids.next_id(5) for _ in range(65_536)}) == 65_536


def test_an_odd_address_is_refused() -> None:
    """Only IPv4 and IPv6 addresses make ids."""
    with pytest.raises(FormatError):
        UniqueIds(b"abc", 1, 1)
