"""Which path runs: the native core, or pure Python; and that both packages belong together."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from brokerset_cli.main import main
from brokerset_formats import native

ROOT = Path(__file__).parents[3]


def _toml(path: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / path).read_text(encoding="utf-8"))


def _installed(monkeypatch: pytest.MonkeyPatch, interface: int | None) -> None:
    """Let there be a module with this number; None: there is no module."""
    if interface is None:
        monkeypatch.setitem(sys.modules, "brokerset_native", None)
        return
    module = ModuleType("brokerset_native")
    module.INTERFACE = interface  # type: ignore[attr-defined]
    module.__version__ = "7.8.9"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "brokerset_native", module)


@pytest.mark.parametrize("wish", ["auto", "require"])
def test_an_installed_core_is_used(wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, native.INTERFACE)

    core, description = native.load(wish)

    assert core is sys.modules["brokerset_native"]
    assert description == "on (7.8.9)"


def test_off_keeps_an_installed_core_out(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, native.INTERFACE)

    assert native.load("off") == (None, "off (BROKERSET_NATIVE=off)")


@pytest.mark.parametrize(
    ("interface", "reason"),
    [
        (None, "brokerset-native is not installed"),
        (native.INTERFACE + 1, f"has interface {native.INTERFACE + 1}, this code needs {native.INTERFACE}"),
    ],
)
def test_python_serves_where_no_core_fits_unless_one_is_required(
    interface: int | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A core with another interface is as good as none."""
    _installed(monkeypatch, interface)

    core, description = native.load("auto")

    assert core is None
    assert description.startswith("off (")
    assert reason in description
    with pytest.raises(native.NativeCoreMissing, match="install"):
        native.load("require")


def test_a_wish_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`BROKERSET_NATIVE=required` would otherwise go without a core and say nothing."""
    _installed(monkeypatch, native.INTERFACE)

    with pytest.raises(ValueError, match="BROKERSET_NATIVE=required is none of auto, off, require"):
        native.load("required")


def test_the_command_line_says_which_path_runs() -> None:
    shown = CliRunner().invoke(main, ["--version"])

    assert shown.exit_code == 0
    assert shown.output.splitlines()[-1] == f"native core: {native.description}"


def test_both_sides_speak_the_same_interface() -> None:
    """The number stands in Rust and in Python; a change of one alone would turn the core off."""
    source = (ROOT / "native" / "src" / "lib.rs").read_text(encoding="utf-8")

    assert f"const INTERFACE: u32 = {native.INTERFACE};" in source


def test_both_packages_have_the_same_version() -> None:
    """And the extra `native` installs just that one."""
    project = _toml("pyproject.toml")["project"]

    assert _toml("native/pyproject.toml")["project"]["version"] == project["version"]
    assert _toml("native/Cargo.toml")["package"]["version"] == project["version"]
    assert project["optional-dependencies"]["native"] == [f"brokerset-native=={project['version']}"]
