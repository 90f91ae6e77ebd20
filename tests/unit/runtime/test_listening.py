"""Where a process listens: also where a pod has nothing but IPv6."""

from __future__ import annotations

import pytest

from brokerset_runtime.listening import listen_host, listen_hosts


@pytest.mark.parametrize(
    ("bind_address", "own_ip", "host"),
    [
        ("0.0.0.0", "10.0.0.7", "0.0.0.0"),
        ("0.0.0.0", "", "0.0.0.0"),
        ("0.0.0.0", "fd00::7", "::"),
        ("127.0.0.1", "fd00::7", "127.0.0.1"),
        ("::", "10.0.0.7", "::"),
    ],
)
def test_who_is_told_to_others_by_ipv6_listens_there(bind_address: str, own_ip: str, host: str) -> None:
    """All of IPv4 becomes all addresses; one that somebody chose stays."""
    assert listen_host(bind_address, own_ip) == host


def test_all_addresses_are_those_of_both_families() -> None:
    """A server for `::` would refuse IPv4; a free port cannot be the same for two sockets."""
    assert listen_hosts("::", 9876) == ("::", "0.0.0.0")
    assert listen_hosts("::", 0) == "::"
    assert listen_hosts("fd00::7", 9876) == "fd00::7"
    assert listen_hosts("0.0.0.0", 9876) == "0.0.0.0"
