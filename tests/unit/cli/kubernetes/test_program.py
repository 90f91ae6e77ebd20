"""One program, two names: `kubectl brokerset …` and `brokerset kubernetes …`."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner
from tests.unit.cli.kubernetes.conftest import FakeCluster

from brokerset_cli.main import is_plugin, main


@pytest.mark.parametrize(
    ("program", "plugin"),
    [
        ("/usr/local/bin/kubectl-brokerset", True),
        ("kubectl-brokerset.exe", True),
        ("/opt/kubectl_brokerset", True),
        ("/usr/local/bin/brokerset", False),
        ("/kubectl-brokerset/bin/brokerset", False),
    ],
)
def test_the_name_of_the_program_decides(program: str, plugin: bool) -> None:
    """kubectl finds plugins by their names, and hands the rest of the line on."""
    assert is_plugin(program) is plugin


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("/bin/kubectl-brokerset", "Usage: kubectl brokerset status"),
        ("/bin/brokerset", "Usage: brokerset status"),
    ],
)
def test_the_same_words_are_other_commands(program: str, says: str) -> None:
    """`status` is that of a set on Kubernetes, or that of the set on this machine."""
    code = (
        f"import sys; sys.argv = [{program!r}, 'status', '--help'];"
        "from brokerset_cli.main import main; main()"
    )

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert shown.startswith(says)


def test_the_group_has_the_same_verbs(cluster: FakeCluster) -> None:
    """Without the plugin installed, or to be clear in scripts."""
    as_group = CliRunner().invoke(main, ["kubernetes", "status", "orders", "-n", "shop"])

    assert as_group.exit_code == 0, as_group.output
    assert as_group.output == cluster.run("status", "orders", "-n", "shop").output
    assert {call.namespace for call in cluster.kube.calls} == {"shop"}
