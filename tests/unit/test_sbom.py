"""The bill of materials names what the locks pin, all of it and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HASH = "a" * 64


@pytest.fixture
def sbom(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module; `generate` is found from the root alone."""
    monkeypatch.syspath_prepend(str(ROOT))
    return import_module("generate.sbom")


@pytest.mark.parametrize("lock", ["operator", "spark"])
def test_each_pinned_package_is_named_once_with_all_its_hashes(sbom: Any, lock: str) -> None:
    """Counted apart from how the lock is read: lines with a pin, and hashes."""
    text = (ROOT / "locks" / f"{lock}.txt").read_text()
    found = sbom.python_components(text)
    pinned = re.findall(r"^([\w.-]+)==", text, re.MULTILINE)
    assert [component["name"] for component in found] == [name.lower().replace("_", "-") for name in pinned]
    assert sum(len(each["externalReferences"]) for each in found) == text.count("--hash=")


def test_each_crate_but_our_own_is_named_with_its_checksum(sbom: Any) -> None:
    """Crates without a source are built from this repository."""
    text = (ROOT / "native" / "Cargo.lock").read_text()
    found = {component["name"]: component["hashes"][0]["content"] for component in sbom.rust_components(text)}
    packages = tomllib.loads(text)["package"]
    assert found == {p["name"]: p["checksum"] for p in packages if p["name"] != "brokerset-native"}


def test_a_package_without_a_hash_or_a_version_is_no_bill(sbom: Any) -> None:
    """Nothing is left out in silence."""
    for line in ("one==1.0", f"one>=1.0 --hash=sha256:{HASH}", f"-e . --hash=sha256:{HASH}"):
        with pytest.raises(ValueError, match="not a pinned package with hashes"):
            sbom.python_components(line)


def test_a_marker_is_kept_without_the_hashes(sbom: Any) -> None:
    """What is installed on some platforms only is said so."""
    (found,) = sbom.python_components(f"One_x==1 ; os_name == 'nt' \\\n    --hash=sha256:{HASH}\n")
    assert found["purl"] == "pkg:pypi/one-x@1"
    assert found["properties"] == [{"name": "brokerset:marker", "value": "os_name == 'nt'"}]


def test_the_same_locks_give_the_same_bill(sbom: Any) -> None:
    """In any order; another component gives another serial number."""
    one, two = sbom.python_components(f"a==1 --hash=sha256:{HASH}\nb==2 --hash=sha256:{HASH}\n")
    assert sbom.bill("x", "1", [one, two]) == sbom.bill("x", "1", [two, one])
    assert sbom.bill("x", "1", [one])["serialNumber"] != sbom.bill("x", "1", [two])["serialNumber"]


def test_it_is_made_without_any_package_as_in_the_build_of_the_image() -> None:
    """`-I -S` leaves the standard library alone."""
    command = [
        sys.executable,
        "-I",
        "-S",
        "generate/sbom.py",
        "locks/operator.txt",
        "--cargo",
        "native/Cargo.lock",
    ]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=True).stdout
    assert '"bomFormat": "CycloneDX"' in shown
