"""The command as a whole: help, names, and how fast it is there."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from brokerset_cli.main import COMMANDS, main


def test_help_names_every_command_without_loading_any() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from brokerset_cli.main import main;"
        "print(CliRunner().invoke(main, ['--help']).output);"
        "print('loaded', sorted(m for m in sys.modules if m.split('.')[0] in"
        " ('rich', 'pydantic', 'yaml', 'asyncio', 'structlog', 'brokerset_client', 'brokerset_runtime')))"
    )

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert all(f"  {name} " in shown for name in COMMANDS)
    assert shown.splitlines()[-1] == "loaded []"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_loads_and_explains_itself(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])

    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"Usage: main {name}")


def test_a_command_that_does_not_exist_is_answered_with_the_nearest_one() -> None:
    result = CliRunner().invoke(main, ["statsu"])

    assert result.exit_code == 2
    assert "There is no command 'statsu'. Did you mean status?" in result.output


def test_the_version_is_shown() -> None:
    assert CliRunner().invoke(main, ["--version"]).output.startswith("brokerset, version ")


def test_a_wrong_file_of_tls_is_a_mistake_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named, without a traceback."""
    monkeypatch.setenv("BROKERSET_TLS_CONFIG_FILE", "/nowhere/clients.properties")

    result = CliRunner().invoke(main, ["topic", "list", "--namesrv", "127.0.0.1:1"])

    assert result.exit_code == 1
    assert "Error: /nowhere/clients.properties: cannot be read: No such file or directory" in result.output
    assert "What to do" in result.output
