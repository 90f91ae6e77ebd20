"""What `status` shows of brokers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_cli.status import BrokerView, View, show

BROKER = BrokerView(
    cluster="C", group="orders-0", id=0, role="master", address="h:1", version="V5_5_0", native_core=None,
    boot_ms=None, put_per_second=0.0, get_per_second=0.0, stored_bytes=0, reachable=True,
)  # fmt: skip


def test_brokers_that_run_without_the_native_core_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Whether it is on, in a column; scripts get its version, or why it is off. Java's brokers have none."""
    brokers = tuple(
        replace(BROKER, address=address, native_core=core)
        for address, core in (
            ("h:1", "on (0.1.0)"),
            ("h:2", "off (brokerset-native is not installed)"),
            ("java:3", None),
        )
    )
    view = View("h:9", None, brokers, None, (), ())

    show(view)

    _, heads, *rows = capsys.readouterr().out.splitlines()
    at = heads.split().index("NATIVE")
    assert [row.split()[at] for row in rows] == ["on", "off", "-"]
    assert [each["nativeCore"] for each in view.to_json()["brokers"]] == [
        "on (0.1.0)", "off (brokerset-native is not installed)", None,
    ]  # fmt: skip
    assert view.to_json()["healthy"]
