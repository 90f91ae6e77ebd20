"""What a process loads before it serves: heavy libraries only where they are used, and few modules."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("aiohttp", "click", "kopf", "numpy", "prometheus_client", "pydantic", "rich", "yaml")
"""Libraries that take as long to load as a large part of a broker, or longer."""

UNUSED_BY_ONE_BROKER = (
    "brokerset_broker.member.dledger",
    "brokerset_broker.member.group_member",
    "brokerset_broker.outside.kubernetes",
    "brokerset_dledger",
    "brokerset_kube",
    "brokerset_raft",
)
"""Parts that a broker alone has no use for."""


def loaded(module: str) -> list[str]:
    """The names of all modules that a process has loaded when it could begin to serve."""
    code = f"import brokerset_runtime, {module}, sys; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return ended.stdout.split()


@pytest.mark.parametrize(
    ("module", "modules_max"),
    [
        ("brokerset_broker.command_line", 556),
        ("brokerset_controller.command_line", 408),
        ("brokerset_namesrv.command_line", 309),
    ],
)
def test_a_server_starts_without_the_libraries_that_it_may_not_need(module: str, modules_max: int) -> None:
    """Each module is a file to read before the first answer; who needs more raises the number on purpose."""
    found = loaded(module)

    assert [name for name in HEAVY if name in found] == []
    assert len(found) <= modules_max


def test_a_broker_alone_loads_no_part_of_a_group() -> None:
    """The part in a group of either kind, and the client of Kubernetes, are for brokers that have one."""
    found = loaded("brokerset_broker.command_line")

    assert [name for name in UNUSED_BY_ONE_BROKER if name in found] == []


def test_the_version_is_told_without_what_servers_need() -> None:
    """The command line loads the module of a command when the command runs."""
    found = loaded("brokerset_cli.main")

    assert [name for name in HEAVY if name in found and name != "click"] == []
    assert len(found) <= 210
