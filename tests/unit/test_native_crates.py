"""Each crate of the native core has a licence that `native/deny.toml` allows, and is from the registry."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
TERM = re.compile(r"[\w.+-]+(?: WITH [\w.-]+)?")
CARGO_SECONDS_MAX = 100


def allowed() -> set[str]:
    return set(tomllib.loads((NATIVE / "deny.toml").read_text(encoding="utf-8"))["licenses"]["allow"])


def permitted(licences: str, names: set[str]) -> bool:
    """Whether an SPDX expression (AND, OR, parentheses) can be met with these licences alone."""

    def term(found: re.Match[str]) -> str:
        return found[0].lower() if found[0] in ("AND", "OR") else str(found[0] in names)

    condition = TERM.sub(term, licences)
    assert re.fullmatch(r"(True|False|and|or|[() ])+", condition), licences
    return bool(eval(condition))


@pytest.mark.parametrize(
    ("licences", "met"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("Unlicense OR MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", True),
        ("(MIT OR Apache-2.0) AND GPL-3.0-only", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("Apache-2.0 WITH Classpath-exception-2.0", False),
    ],
)
def test_an_expression_is_met_by_allowed_licences_alone(licences: str, met: bool) -> None:
    """One of those between OR, all of those between AND; an exception is a licence of its own."""
    assert permitted(licences, allowed()) is met


def test_every_locked_crate_comes_from_the_registry_with_a_hash() -> None:
    """But for the crate itself."""
    packages = tomllib.loads((NATIVE / "Cargo.lock").read_text(encoding="utf-8"))["package"]

    foreign = [each for each in packages if each["name"] != "brokerset-native"]

    assert foreign
    for package in foreign:
        assert package["source"] == "registry+https://github.com/rust-lang/crates.io-index", package
        assert len(package["checksum"]) == 64


@pytest.mark.skipif(shutil.which("cargo") is None, reason="only cargo knows the licences of crates")
def test_every_crate_has_an_allowed_licence() -> None:
    """What cargo reads in their manifests."""
    command = [
        "cargo",
        "metadata",
        "--format-version=1",
        "--locked",
        "--manifest-path",
        str(NATIVE / "Cargo.toml"),
    ]
    done = subprocess.run(command, capture_output=True, timeout=CARGO_SECONDS_MAX, check=True)
    packages = {each["name"]: each["license"] for each in json.loads(done.stdout)["packages"]}

    names = allowed()

    assert "pyo3" in packages
    assert {n: text for n, text in packages.items() if text is None or not permitted(text, names)} == {}
