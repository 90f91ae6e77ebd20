"""Who listens on a port."""

from __future__ import annotations

import os
import socket

import pytest

from brokerset_cli.processes import free_port, port_holder, port_is_free, wait_gone


def test_a_port_that_is_listened_on_is_not_free_and_its_holder_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        assert not port_is_free("127.0.0.1", port)
        assert not port_is_free("0.0.0.0", port)
        assert (port_holder(port) or "").startswith(f"process {os.getpid()} (")

    assert port_is_free("127.0.0.1", port)
    assert port_holder(port) is None


def test_a_free_port_is_free() -> None:
    assert port_is_free("127.0.0.1", free_port("127.0.0.1"))


def test_where_the_kernel_takes_nearly_all_ports_for_connections_free_ports_still_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`net.ipv4.ip_local_port_range = 1024 65535` is a common setting."""
    monkeypatch.setattr("brokerset_cli.processes._outgoing_ports_start", lambda: 1024)

    ports = [free_port("127.0.0.1") for _ in range(200)]

    assert max(ports) - min(ports) > 1_000


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(OSError, match="assign"):
        port_is_free("192.0.2.1", 23001)


def test_waiting_for_a_living_process_ends_in_time() -> None:
    from brokerset_cli.processes import start_ticks

    assert not wait_gone(os.getpid(), start_ticks(os.getpid()), 0.05)
    assert wait_gone(os.getpid(), 1, 0.05)
